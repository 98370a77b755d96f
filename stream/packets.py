"""Packets, embeddings and feedback as messages: a header, and each array as a raw part.

Arrays that come in share the memory of the part that they came in, and are read-only. Parts that are not what
their header says, or not what such a packet holds, raise TransportError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from arr_coc.types import Feedback, FramePacket, QueryEmbedding, TileGrid, TokenPacket
from stream.errors import TransportError
from stream.messages import Answered, ArraySpec, Asking, Looked, Message, Tokens, WholeFrame

Array: TypeAlias = npt.NDArray[Any]
Part: TypeAlias = bytes | memoryview
Layout: TypeAlias = tuple[str, tuple[int | str, ...]]
"""Dtype and shape that a part must have; a name in the shape stands for any length, the same one for the same name."""

REGIONS: Layout = ("int32", ("K", 3))
SCORES: Layout = ("float32", ("K",))
PIXELS: Layout = ("uint8", ("K", 3, 32, 32))


def specs_of(*arrays: Array) -> tuple[ArraySpec, ...]:
    """The header entries for `arrays`. Raises TransportError for a dtype that messages do not carry."""
    try:
        return msgspec.convert([(array.dtype.name, array.shape) for array in arrays], tuple[ArraySpec, ...])
    except msgspec.ValidationError as error:
        raise TransportError(f"an array cannot travel: {error}") from error


def token_message(answer: int, turn: int, packet: TokenPacket, *, speak: bool = True) -> tuple[Tokens, list[Array]]:
    """A TokenPacket as message and parts."""
    arrays: list[Array] = [packet.regions, packet.relevance, packet.pixels]
    specs = specs_of(*arrays)
    message = Tokens(answer=answer, turn=turn, stamp=packet.stamp, grid=packet.grid, speak=speak, arrays=specs)
    return message, arrays


def token_packet(message: Tokens, parts: Sequence[Part]) -> TokenPacket:
    """The TokenPacket of a message."""
    _check_grid(message.grid)
    regions, relevance, pixels = _arrays(message, parts, REGIONS, SCORES, PIXELS)
    return TokenPacket(message.stamp, message.grid, regions, relevance, pixels)


def frame_message(
    answer: int, turn: int, packet: FramePacket, *, in_snapshot: bool, speak: bool = True
) -> tuple[WholeFrame, list[Array]]:
    """A FramePacket as message and parts; the image is a part unless it lies in the snapshot."""
    arrays: list[Array] = [packet.regions, packet.relevance, *([] if in_snapshot else [packet.image])]
    specs = specs_of(*arrays)
    message = WholeFrame(
        answer=answer,
        turn=turn,
        stamp=packet.stamp,
        grid=packet.grid,
        in_snapshot=in_snapshot,
        speak=speak,
        arrays=specs,
    )
    return message, arrays


def frame_packet(message: WholeFrame, parts: Sequence[Part], snapshot: Array | None = None) -> FramePacket:
    """The FramePacket of a message; `snapshot` is the image of one that lies there."""
    grid = message.grid
    _check_grid(grid)
    relevance: Layout = ("float32", grid.shape)
    image: Layout = ("uint8", (grid.padded_height_px, grid.padded_width_px, 3))
    if not message.in_snapshot:
        regions, scores, snapshot = _arrays(message, parts, REGIONS, relevance, image)
    elif snapshot is not None:
        regions, scores = _arrays(message, parts, REGIONS, relevance)
    else:
        raise TransportError("a frame lies in the snapshot, and this link has none")
    return FramePacket(message.stamp, grid, regions, scores, snapshot)


def embedding_of(message: Asking, parts: Sequence[Part]) -> QueryEmbedding:
    """The embedding of the question that holds now."""
    (tokens,) = _arrays(message, parts, ("float32", ("Lq", "D")))
    return QueryEmbedding(message.query, tokens, message.model_id)


def feedback_arrays(feedback: Feedback | None) -> list[Array]:
    """The parts of an Answered or Looked message."""
    return [] if feedback is None else [feedback.regions, feedback.attention, feedback.similarity]


def feedback_of(message: Answered | Looked, parts: Sequence[Part]) -> Feedback | None:
    """The feedback that an answer carries, if any."""
    if message.feedback_stamp is None:
        _arrays(message, parts)
        return None
    return Feedback(message.feedback_stamp, *_arrays(message, parts, REGIONS, SCORES, SCORES))


def _check_grid(grid: TileGrid) -> None:
    if grid.height_px < 1 or grid.width_px < 1 or grid != TileGrid.of(grid.height_px, grid.width_px):
        raise TransportError(f"{grid} is not the tile grid of its own picture size")


def _arrays(message: Message, parts: Sequence[Part], *layouts: Layout) -> list[Array]:
    """The parts as arrays, once header and sizes have been checked."""
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


def _matches(shape: tuple[int, ...], wanted: tuple[int | str, ...], lengths: dict[str, int]) -> bool:
    return len(shape) == len(wanted) and all(
        length == (lengths.setdefault(want, length) if isinstance(want, str) else want)
        for length, want in zip(shape, wanted, strict=True)
    )


def _array(kind: str, spec: ArraySpec, part: Part) -> Array:
    dtype = np.dtype(spec.dtype)
    expected_bytes, got_bytes = math.prod(spec.shape) * dtype.itemsize, memoryview(part).nbytes
    if got_bytes != expected_bytes:
        raise TransportError(
            f"{kind} announces {spec.dtype}{list(spec.shape)}, {expected_bytes} bytes, and came with {got_bytes}"
        )
    array = np.frombuffer(part, dtype=dtype).reshape(spec.shape)
    array.flags.writeable = False
    return array
