"""Codec of packets, embeddings and feedback: a message and its raw array parts, validated.

Received arrays share the memory of their parts, and are read-only. Parts that do not match their header or the type of
packet raise TransportError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from arr_coc.errors import counted
from arr_coc.texture.regions import exist_on
from arr_coc.types import (
    EMBEDDING_COMPONENTS,
    REGION_SHAPES,
    TILE_PX,
    Feedback,
    FramePacket,
    FrameStamp,
    QueryEmbedding,
    Question,
    TileGrid,
    TokenPacket,
)
from stream.errors import TransportError
from stream.protocol.messages import (
    AnswerReply,
    ArraySpec,
    EarlierFrame,
    Embedded,
    FramePacketMessage,
    GlancePacketMessage,
    GlanceReply,
    IdlePacketMessage,
    Message,
    PixelPlace,
    TokenPacketMessage,
    YesNoReply,
    check_bounds,
)
from stream.untrusted import LONG_SIDE_PX_MAX

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
TakePixels: TypeAlias = "Callable[[PixelPlace, int], torch.Tensor]"
"""Return the pixels of K regions, uint8 [K, 3, 32, 32], from the place on a device that a message names."""
Part: TypeAlias = bytes | memoryview
Layout: TypeAlias = tuple[str, tuple[int | str, ...]]
"""Required dtype and shape of a part; a name in the shape stands for any length, equal for equal names."""

TILES_MAX = LONG_SIDE_PX_MAX // TILE_PX
"""Limit of a grid's rows and columns of tiles."""

REGIONS: Layout = ("int32", ("K", 3))
SCORES: Layout = ("float32", ("K",))
EMBEDDING: Layout = ("float32", ("K", EMBEDDING_COMPONENTS))
FEEDBACK: tuple[Layout, ...] = (REGIONS, SCORES, SCORES)
NUMBERS: Layout = ("int32", ("M",))
PIXELS: Layout = ("uint8", ("K", 3, 32, 32))


def specs_of(*arrays: Array) -> tuple[ArraySpec, ...]:
    """Return the header entries for `arrays`. Raises TransportError for a dtype that messages do not carry."""
    try:
        return msgspec.convert([(array.dtype.name, array.shape) for array in arrays], tuple[ArraySpec, ...])
    except msgspec.ValidationError as error:
        raise TransportError(f"an array cannot travel: {error}") from error


AnyTokenMessage: TypeAlias = TokenPacketMessage | GlancePacketMessage | IdlePacketMessage
"""Message with a TokenPacket."""


def token_message(
    answer: int,
    turn: int,
    packet: TokenPacket,
    question: Question,
    *,
    pixels_at: PixelPlace | None = None,
    earlier_packets: Sequence[TokenPacket] = (),
) -> tuple[TokenPacketMessage, list[Array]]:
    """Return a TokenPacket as message and parts.

    Args:
        answer: number of the request.
        turn: number of the turn that is used.
        packet: packet of the newest frame.
        question: question about it.
        pixels_at: place of the pixels of all packets on a device; None makes them a part of the message.
        earlier_packets: packets before `packet` in its group of pictures that the server lacks, in order.

    Returns:
        The message; and its parts: regions int32 [K, 3], relevance float32 [K], pixels uint8 [K, 3, 32, 32] unless
        they are on a device, and superseded tokens int32 [M] with a place in a group. K counts the regions of
        `earlier_packets` first.
    """
    fields, arrays = _token_fields(turn, packet, pixels_at, earlier_packets)
    return TokenPacketMessage(answer=answer, question=question, overview=packet.overview, **fields), arrays


def glance_message(
    glance: int,
    turn: int,
    packet: TokenPacket,
    text: str,
    *,
    pixels_at: PixelPlace | None = None,
    earlier_packets: Sequence[TokenPacket] = (),
) -> tuple[GlancePacketMessage, list[Array]]:
    """Return a TokenPacket that is an overview, or in a group of pictures, as message and parts.

    Args:
        glance: number of the glance.
        turn: number of the turn that is used.
        packet: overview of a frame, or the new tokens of a frame of a group.
        text: text of the question.
        pixels_at: as in `token_message`.
        earlier_packets: as in `token_message`.

    Returns:
        The message and its parts, as in `token_message`.
    """
    fields, arrays = _token_fields(turn, packet, pixels_at, earlier_packets)
    return GlancePacketMessage(glance=glance, text=text, **fields), arrays


def idle_message(
    number: int,
    packet: TokenPacket,
    *,
    pixels_at: PixelPlace | None = None,
    earlier_packets: Sequence[TokenPacket] = (),
) -> tuple[IdlePacketMessage, list[Array]]:
    """Return a TokenPacket to read ahead as message and parts, as in `token_message`.

    Args:
        number: number of the credit that is used.
        packet: packet of a group of pictures.
        pixels_at: as in `token_message`.
        earlier_packets: as in `token_message`.
    """
    fields, arrays = _token_fields(0, packet, pixels_at, earlier_packets)
    del fields["turn"]
    return IdlePacketMessage(number=number, **fields), arrays


def _token_fields(
    turn: int, packet: TokenPacket, pixels_at: PixelPlace | None, earlier_packets: Sequence[TokenPacket]
) -> tuple[dict[str, Any], list[Array]]:
    """Return the fields that messages with tokens share, and their parts."""
    packets = [*earlier_packets, packet]
    columns: list[list[Array]] = [[packet.regions for packet in packets], [packet.relevance for packet in packets]]
    if pixels_at is None:
        columns.append([packet.host_pixels for packet in packets])
    if packet.place is not None:
        columns.append([packet.superseded for packet in packets])
    arrays = [np.concatenate(column) if len(column) > 1 else column[0] for column in columns]
    fields = {
        "turn": turn,
        "stamp": packet.stamp,
        "grid": packet.grid,
        "arrays": specs_of(*arrays),
        "pixels_at": pixels_at,
        "place": packet.place,
        "earlier": tuple(
            EarlierFrame(packet.stamp, len(packet.regions), packet.overview, len(packet.superseded))
            for packet in earlier_packets
        ),
    }
    return fields, arrays


def token_packet(message: AnyTokenMessage, parts: Sequence[Part], take: TakePixels | None = None) -> TokenPacket:
    """Return the TokenPacket of a message without the frames before it in its group.

    Args:
        message: as in `token_packets`.
        parts: as in `token_packets`.
        take: as in `token_packets`.

    Raises:
        TransportError: as `token_packets`.
    """
    return token_packets(message, parts, take)[-1]


def token_packets(message: AnyTokenMessage, parts: Sequence[Part], take: TakePixels | None = None) -> list[TokenPacket]:
    """Return the TokenPackets of a message: frames before it in its group of pictures, in order, and its own.

    The packet of a glance is an overview only, unless it has a place in a group.

    Args:
        message: message of a packet or a glance.
        parts: the arrays of the message, as bytes; see `token_message`.
        take: function that reads pixels on a device; None if the link shares none.

    Raises:
        TransportError: the message or its parts are invalid, or its pixels are on a device and `take` is None.
    """
    kind = type(message).__name__
    check_bounds(message)
    pixels: Any
    in_group = [] if message.place is None else [NUMBERS]
    if message.pixels_at is None:
        regions, relevance, pixels, *numbers = _arrays(message, parts, REGIONS, SCORES, PIXELS, *in_group)
    elif take is None:
        raise TransportError(f"{kind} says that its pixels lie on a device, and this link shares none")
    else:
        regions, relevance, *numbers = _arrays(message, parts, REGIONS, SCORES, *in_group)
        pixels = take(message.pixels_at, len(regions))
    superseded = numbers[0] if numbers else np.zeros(0, np.int32)
    if superseded.size and superseded.min() < 0:
        raise TransportError(f"{kind} says that a token is superseded which no group of pictures has")
    _check_regions(kind, regions, message.grid.rows, message.grid.cols)
    _check_finite(kind, relevance)
    frames = _frames_of(message, len(regions), len(superseded))
    packets: list[TokenPacket] = []
    end = 0
    superseded_end = 0
    place = message.place
    for before, frame in zip(range(len(frames) - 1, -1, -1), frames, strict=True):
        rows = slice(end, end + frame.regions)
        end = end + frame.regions
        if place is None:
            at = None
        else:
            at = replace(place, frame=place.frame - before)
        columns = regions[rows], relevance[rows], pixels[rows]
        begin = superseded_end
        superseded_end = superseded_end + frame.superseded
        packets.append(
            TokenPacket(frame.stamp, message.grid, *columns, frame.overview, at, superseded[begin:superseded_end])
        )
    return packets


def _frames_of(message: AnyTokenMessage, regions: int, superseded_tokens: int) -> list[EarlierFrame]:
    """Return the frames among which a message divides its regions and superseded tokens, its own last. Raises
    TransportError if the numbers do not match."""
    kind = type(message).__name__
    place = message.place
    earlier_frames = message.earlier
    own_superseded = superseded_tokens - sum(frame.superseded for frame in earlier_frames)
    if own_superseded < 0:
        raise TransportError(
            f"{kind} names {counted(superseded_tokens, 'superseded token')}, and earlier frames have more"
        )
    own_regions = regions - sum(frame.regions for frame in earlier_frames)
    if own_regions < 0:
        raise TransportError(
            f"{kind} holds {regions} regions, and says that {regions - own_regions} are of earlier frames"
        )
    if isinstance(message, TokenPacketMessage):
        overview = message.overview
    else:
        overview = 0
    if isinstance(message, GlancePacketMessage):
        overview = own_regions if place is None else 0
        if place is None and not own_regions:
            raise TransportError(f"{kind} holds no overview")
    if not all(frame.regions or frame.superseded for frame in earlier_frames) or (
        place is not None and not place.frame and not own_regions
    ):
        raise TransportError(f"{kind} holds nothing of a frame that others in its group of pictures build on")
    frames = [*earlier_frames, EarlierFrame(message.stamp, own_regions, overview, own_superseded)]
    for frame in frames:
        if frame.overview > frame.regions:
            raise TransportError(
                f"{kind} holds {frame.regions} regions, and says that {frame.overview} of them are an overview"
            )
    return frames


def frame_message(
    answer: int,
    turn: int,
    packet: FramePacket,
    question: Question,
    *,
    in_snapshot: bool,
) -> tuple[FramePacketMessage, list[Array]]:
    """Return a FramePacket as message and parts.

    Args:
        answer: number of the request.
        turn: number of the turn that is used.
        packet: packet of the full frame.
        question: question about it.
        in_snapshot: whether the image is in shared memory and no part of the message.

    Returns:
        The message; and its parts: regions int32 [K, 3], relevance float32 [gh, gw], and image uint8 [H, W, 3] unless
        `in_snapshot`.
    """
    arrays: list[Array] = [packet.regions, packet.relevance, *([] if in_snapshot else [packet.image])]
    specs = specs_of(*arrays)
    message = FramePacketMessage(
        answer=answer,
        turn=turn,
        question=question,
        stamp=packet.stamp,
        grid=packet.grid,
        in_snapshot=in_snapshot,
        arrays=specs,
    )
    return message, arrays


def frame_packet(message: FramePacketMessage, parts: Sequence[Part], snapshot: Array | None = None) -> FramePacket:
    """Return the FramePacket of a message.

    Args:
        message: message of the packet.
        parts: the arrays of the message, as bytes; see `frame_message`.
        snapshot: image in shared memory, uint8 [H, W, 3], padded to whole tiles; None if the link has none.

    Raises:
        TransportError: the message or its parts are invalid, or it refers to a missing snapshot.
    """
    grid = message.grid
    check_bounds(message)
    relevance: Layout = ("float32", grid.shape)
    image: Layout = ("uint8", (grid.padded_height_px, grid.padded_width_px, 3))
    if not message.in_snapshot:
        regions, scores, snapshot = _arrays(message, parts, REGIONS, relevance, image)
    elif snapshot is not None:
        regions, scores = _arrays(message, parts, REGIONS, relevance)
    else:
        raise TransportError("a frame refers to shared memory, and this link has none")
    _check_regions(type(message).__name__, regions, grid.rows, grid.cols)
    _check_finite(type(message).__name__, scores)
    return FramePacket(message.stamp, grid, regions, scores, snapshot)


def embedding_of(message: Embedded, parts: Sequence[Part]) -> QueryEmbedding:
    """Return the embedding of a question's text."""
    (tokens,) = _arrays(message, parts, ("float32", ("Lq", "D")))
    if not tokens.size:
        raise TransportError("the embedding of a question holds nothing")
    _check_finite(type(message).__name__, tokens)
    return QueryEmbedding(message.text, tokens, message.model_id)


def feedback_arrays(feedback: Feedback | None) -> list[Array]:
    """Return the parts of an AnswerReply, YesNoReply or GlanceReply."""
    if feedback is None:
        return []
    embedding = [] if feedback.embedding is None else [feedback.embedding]
    return [feedback.regions, feedback.attention, feedback.similarity, *embedding]


def feedback_of(message: AnswerReply | YesNoReply | GlanceReply, parts: Sequence[Part]) -> Feedback | None:
    """Return the feedback in a reply, if any."""
    if message.feedback_stamp is None:
        _arrays(message, parts)
        return None
    embedding = (EMBEDDING,) if len(message.arrays) > len(FEEDBACK) else ()
    return checked_feedback(Feedback(message.feedback_stamp, *_arrays(message, parts, *FEEDBACK, *embedding)))


def checked_feedback(feedback: Feedback) -> Feedback:
    """Return the feedback unchanged. Raises TransportError if it is invalid for every frame."""
    if not len(feedback.regions) == len(feedback.attention) == len(feedback.similarity):
        raise TransportError("feedback holds as many regions as it has numbers for")
    _check_regions("feedback", feedback.regions, TILES_MAX, TILES_MAX)
    _check_finite("feedback", feedback.attention, feedback.similarity)
    if feedback.embedding is not None:
        if len(feedback.embedding) != len(feedback.regions):
            raise TransportError("feedback holds as many embeddings as regions")
        if not (np.abs(feedback.embedding) <= 1).all():
            raise TransportError("feedback holds an embedding beyond 1")
    return feedback


def feedback_on(
    message: AnswerReply | YesNoReply | GlanceReply, parts: Sequence[Part], stamp: FrameStamp, grid: TileGrid
) -> Feedback | None:
    """Return the feedback in a reply; None if it has none.

    Args:
        message: reply of the answer server.
        parts: the arrays of the reply, as bytes.
        stamp: stamp of the requested frame.
        grid: tiles of the requested frame.

    Raises:
        TransportError: the feedback is invalid, or is about a later frame or regions outside the frame.
    """
    feedback = feedback_of(message, parts)
    check_feedback(feedback, stamp, grid)
    return feedback


def check_feedback(feedback: Feedback | None, stamp: FrameStamp, grid: TileGrid) -> None:
    """Raise TransportError for feedback on regions outside the requested frame, or on a later frame."""
    if feedback is None or feedback.stamp.epoch != stamp.epoch:
        return  # feedback of an earlier epoch is not used
    if feedback.stamp.frame_index > stamp.frame_index or feedback.stamp.media_ns > stamp.media_ns:
        raise TransportError(f"feedback on frame {feedback.stamp.frame_index} came before it")
    _check_regions("feedback", feedback.regions, grid.rows, grid.cols)


def _check_regions(subject: str, regions: Array, rows: int, cols: int) -> None:
    """Raise TransportError unless each region, int32 [K, 3], has an existing shape and lies within the grid."""
    if regions.size and (regions.min() < 0 or regions[:, 0].max() >= len(REGION_SHAPES)):
        raise TransportError(f"{subject} holds a region that no texture has")
    if not exist_on(regions, (rows, cols)).all():
        raise TransportError(f"{subject} holds a region outside its frame")


def _check_finite(subject: str, *arrays: Array) -> None:
    for array in arrays:
        if not np.isfinite(array).all():
            raise TransportError(f"{subject} contains NaN or Inf")


def _arrays(message: Message, parts: Sequence[Part], *layouts: Layout) -> list[Array]:
    """Return the parts as arrays, after a check of header and sizes."""
    kind = type(message).__name__
    lengths: dict[str, int] = {}
    fits = len(message.arrays) == len(layouts) and all(
        spec.dtype == dtype and _matches(spec.shape, shape, lengths)
        for spec, (dtype, shape) in zip(message.arrays, layouts, strict=True)
    )
    if not fits:
        raise TransportError(f"{kind} must announce the arrays {list(layouts)}, got {list(message.arrays)}")
    if len(parts) != len(layouts):
        raise TransportError(f"{kind} announces {len(layouts)} arrays and came with {len(parts)}")
    return [_array(kind, spec, part) for spec, part in zip(message.arrays, parts, strict=True)]


def _matches(shape: tuple[int, ...], expected: tuple[int | str, ...], lengths: dict[str, int]) -> bool:
    return len(shape) == len(expected) and all(
        length == (lengths.setdefault(side, length) if isinstance(side, str) else side)
        for length, side in zip(shape, expected, strict=True)
    )


def _array(kind: str, spec: ArraySpec, part: Part) -> Array:
    dtype = np.dtype(spec.dtype)
    expected_bytes = math.prod(spec.shape) * dtype.itemsize
    got_bytes = memoryview(part).nbytes
    if got_bytes != expected_bytes:
        raise TransportError(
            f"{kind} announces {spec.dtype}{list(spec.shape)}, {expected_bytes} bytes, and came with {got_bytes}"
        )
    array = np.frombuffer(part, dtype=dtype).reshape(spec.shape)
    array.flags.writeable = False
    return array
