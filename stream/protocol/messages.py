"""Every message between stages; strict msgpack encode/decode; `PROTOCOL`.

Decoding is strict: a field of the wrong type, a value beyond `stream.untrusted`, or an unknown kind of message raises
TransportError. `stream.protocol.codec` checks the arrays against their header.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from arr_coc.errors import counted
from arr_coc.schema_reader import SCHEMA_BYTES_MAX
from arr_coc.types import TILE_PX, FrameStamp, GroupPlace, Question, TileGrid, Work
from stream.errors import TransportError
from stream.media import MediaSegment, SkippedItem
from stream.untrusted import (
    ANSWER_CHARS_MAX,
    ARRAYS_MAX,
    CLIENTS_MAX,
    COUNT_MAX,
    DIMENSIONS_MAX,
    EARLIER_MAX,
    HEADER_BYTES_MAX,
    HISTORY_CHARS_MAX,
    HISTORY_MAX,
    LONG_SIDE_PX_MAX,
    MS_MAX,
    NAME_CHARS_MAX,
    QUERY_LIMIT_CHARS,
    SIDE_PX_MAX,
    TIME_NS_MAX,
    WATCH_CHARS_MAX,
    WATCHES_MAX,
    WEIGHTS_BYTES_MAX,
    Count,
    Details,
    DurationMs,
    Length,
    Name,
    Query,
    Reason,
    Settings,
    Share,
    Weights,
    Words,
)

PROTOCOL = 19
"""Version of the answer protocol, which client and server must share; raised whenever its messages change."""

FRAME_TILES_MAX = (SIDE_PX_MAX // TILE_PX) ** 2
"""Limit of a frame's tiles: four times those of 67 million pixels, the default limit of decoded pictures."""

UNSEEN_MAX = 8
"""Limit of the words that are named."""

EndReason = Literal["finished", "interrupted"]
Discontinuity = Literal["resolution", "format", "reconnect"]
"""Reason that a frame without a cut cannot be compared with the one before: another size, other planes or another
colour encoding, or an outage of a live source."""


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """Dtype and shape of one array part."""

    dtype: Literal["uint8", "int32", "float32"]
    shape: Annotated[tuple[Length, ...], Meta(max_length=DIMENSIONS_MAX)]


class PixelPlace(msgspec.Struct, frozen=True):
    """Place of a packet's pixels on a device, outside the message.

    `number` counts the packets. Between processes, `handle` is CUDA's handle of the memory, `gpu` its device's UUID.
    """

    number: Count = 0
    handle: Annotated[bytes, Meta(max_length=64)] = b""
    gpu: Annotated[bytes, Meta(max_length=16)] = b""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all messages; `arrays` describes the parts that follow."""

    arrays: Annotated[tuple[ArraySpec, ...], Meta(max_length=ARRAYS_MAX)] = ()


class Credit(Message, frozen=True, tag="credit"):
    """Receiver to sender: `count` more items may be sent."""

    count: Annotated[int, Meta(ge=1, le=COUNT_MAX)] = 1


class End(Message, frozen=True, tag="end"):
    """No items follow; items in flight are finished first.

    `skipped`: losses after the last frame; `made_pts` and `clamped_pts`: total numbers of repaired PTS; `segments`: the
    last of the video.
    """

    reason: EndReason
    skipped: tuple[SkippedItem, ...] = ()
    segments: tuple[MediaSegment, ...] = ()
    made_pts: Count = 0
    clamped_pts: Count = 0


class Cancel(Message, frozen=True, tag="cancel"):
    """The answer in flight is no longer needed."""


class SourceLost(Message, frozen=True, tag="source_lost"):
    """Capture to texture to allocate: a live source was lost, or (with `lasted_s`) is back. Never replaced."""

    frame_index: Count
    media_ns: int
    reason: str
    lasted_s: float | None = None
    attempts: Count = 0


class FrameCaptured(Message, frozen=True, tag="frame_captured"):
    """Capture to texture: the planes of a frame are in `slot`; `duration_ns` is its duration, None if unknown."""

    slot: Count
    frame_index: Count
    media_ns: int
    capture_ns: int
    discontinuity: str | None = None
    skipped: tuple[SkippedItem, ...] = ()
    segments: tuple[MediaSegment, ...] = ()
    duration_ns: int | None = None


class TextureUpdated(Message, frozen=True, tag="texture_updated"):
    """Texture to allocate: the texture now holds this frame.

    The motion of its tiles since the frame before is in `motion_slot`; None if none moved. `cut_score`: score of a cut,
    None without one; `discontinuity`: why the frame cannot be compared with the one before, which is then no cut;
    `fallback`: why the CPU store took over with this frame.
    """

    stamp: FrameStamp
    texture_ms: float
    dirty_share: float
    cut_score: float | None = None
    discontinuity: Discontinuity | None = None
    fallback: str | None = None
    skipped: tuple[SkippedItem, ...] = ()
    segments: tuple[MediaSegment, ...] = ()
    duration_ns: int | None = None
    motion_slot: Count | None = None


class EarlierFrame(msgspec.Struct, frozen=True, array_like=True):
    """Frame of a group of pictures before the frame of a message: its number of regions, the first `overview` of which
    are an overview, and the number of earlier tokens that it superseded."""

    stamp: FrameStamp
    regions: Count
    overview: Count = 0
    superseded: Count = 0


ExtentSide = Annotated[float, Meta(gt=0, le=LONG_SIDE_PX_MAX)]


class TokenPacketMessage(Message, frozen=True, tag="token_packet"):
    """Client to answer server, for the credit of `turn`: a TokenPacket. Parts: regions, relevance, pixels, and, with a
    `place`, the superseded tokens.

    `pixels_at`: place of the pixels on a device, in which case they are no part. The first `overview` regions are an
    overview of the frame. `place`: of the frame in a group of pictures in the server's memory; `earlier`: frames before
    it in that group which the server lacks, in order, whose regions come first in each part.
    """

    answer: Count
    turn: Count
    question: Question
    stamp: FrameStamp
    grid: TileGrid
    overview: Count = 0
    pixels_at: PixelPlace | None = None
    place: GroupPlace | None = None
    earlier: Annotated[tuple[EarlierFrame, ...], Meta(max_length=EARLIER_MAX)] = ()


class GlancePacketMessage(Message, frozen=True, tag="glance_packet"):
    """Client to answer server, for the credit of `turn`: a TokenPacket with an overview of a frame only.

    The model reads it with the question's text, and reports its attention. Parts and `pixels_at` are as in
    TokenPacketMessage. With a `place` in a group of pictures it is no overview: the model looks at the group with the
    new tokens of this frame, if any, and `earlier` is as in TokenPacketMessage. The turn continues: its packet follows
    the reply.
    """

    glance: Count
    turn: Count
    text: Query
    stamp: FrameStamp
    grid: TileGrid
    pixels_at: PixelPlace | None = None
    place: GroupPlace | None = None
    earlier: Annotated[tuple[EarlierFrame, ...], Meta(max_length=EARLIER_MAX)] = ()


class FramePacketMessage(Message, frozen=True, tag="frame_packet"):
    """Client to answer server, for the credit of `turn`: a FramePacket.

    Parts: regions, relevance, and the image unless it lies in the snapshot.
    """

    answer: Count
    turn: Count
    question: Question
    stamp: FrameStamp
    grid: TileGrid
    in_snapshot: bool


class Connect(Message, frozen=True, tag="connect"):
    """Client to answer server: start of a connection.

    `protocol`: PROTOCOL of the sender; `pixels_at`: possible place of pixels that stay on their device.
    """

    protocol: Count = PROTOCOL
    pixels_at: PixelPlace | None = None


class ServerHello(Message, frozen=True, tag="server_hello"):
    """Answer server to client: the model is ready.

    `encode`: the only encoding of packets that it takes; empty if it takes any. `allocator`: weights of its trained
    allocator, as packed by `arr_coc.layer_weights`; empty without one. `can_glance`: it can look at an overview;
    `attention_readable`: it could, with a suitable `encode`. `provenance`: model and settings on which answers depend,
    as encoded by `stream.recording.identity`.
    `takes_device_pixels`: pixels may stay at the client's place; `pixels_refused`: why they may not, unless because of
    the model's device. `memory_tokens`: limit of a group's visual tokens; 0 without visual memory. `notice`: a message
    about the model for the user. `reads_ahead`: it takes idle packets.
    """

    model_id: Name
    knows_levels: bool
    known_world: Name | None
    encode: Name = ""
    allocator: Weights = b""
    can_glance: bool = False
    provenance: Settings = ""
    knows_wide: bool = False
    attention_readable: bool = True
    takes_device_pixels: bool = False
    pixels_refused: Reason = ""
    memory_tokens: Count = 0
    reads_ahead: bool = False
    notice: Reason = ""


class Embed(Message, frozen=True, tag="embed"):
    """Client to answer server: request for the embedding of a question's `text`, which it asks later.

    `is_check`: it is a yes/no question; `schema`: answers to it have this schema.
    """

    text: Query
    is_check: bool = False
    schema: Annotated[str, Meta(max_length=SCHEMA_BYTES_MAX)] | None = None


class Embedded(Message, frozen=True, tag="embedded"):
    """Answer server to client: the reply to an Embed, with its `text` and `is_check`. Part, unless refused: the text's
    token embeddings, float32 [Lq, D].

    `unseen_words`: first words of a check that a model of a small world has never seen. `error` names the class of the
    exception for which the question cannot be asked, and `reason` is its text.
    """

    text: Query
    is_check: bool
    model_id: Name
    unseen_words: Annotated[tuple[Name, ...], Meta(max_length=UNSEEN_MAX)] = ()
    error: Name | None = None
    reason: Reason = ""


class TurnRequest(Message, frozen=True, tag="turn_request"):
    """Client to answer server: request for a turn, to send a packet."""


class TurnGrant(Message, frozen=True, tag="turn_grant"):
    """Answer server to client: the credit for one packet, to be sent at once. An unused turn expires.

    `kept`: state of this client's group of pictures in the server's memory, as the place of its next frame.
    """

    turn: Count
    kept: GroupPlace | None = None


class IdleRequest(Message, frozen=True, tag="idle_request"):
    """Client to answer server: there is something to read ahead into its group of pictures, when no other client waits.

    `in_lockstep`: its frames wait for the reading, which therefore has no share of the time.
    """

    in_lockstep: bool = False


class IdleGrant(Message, frozen=True, tag="idle_grant"):
    """Answer server to client: the credit for one IdlePacketMessage, or an IdlePass, to be sent at once.

    It expires with the client's next TurnRequest. `kept` as in TurnGrant; `tokens`: about how many may be refined.
    """

    number: Count
    tokens: Count
    kept: GroupPlace | None = None


class IdlePass(Message, frozen=True, tag="idle_pass"):
    """Client to answer server: there is nothing to read any more."""


class IdlePacketMessage(Message, frozen=True, tag="idle_packet"):
    """Client to answer server, for the credit `number`: a TokenPacket of its group of pictures, about which nothing is
    asked. Parts and fields as in TokenPacketMessage."""

    number: Count
    stamp: FrameStamp
    grid: TileGrid
    place: GroupPlace
    pixels_at: PixelPlace | None = None
    earlier: Annotated[tuple[EarlierFrame, ...], Meta(max_length=EARLIER_MAX)] = ()


class IdleReply(Message, frozen=True, tag="idle_reply"):
    """Answer server to client: the reading of an idle packet has ended, with `tokens` tokens in `took_ms`; 0 if it was
    given up. `rebuilt`: it was of a new group. `kept` as in TurnGrant."""

    number: Count
    tokens: Count
    took_ms: DurationMs
    rebuilt: bool = False
    kept: GroupPlace | None = None


class TurnExpired(Message, frozen=True, tag="turn_expired"):
    """Answer server to client: the packet of this turn came too late and was dropped."""

    turn: Count


class Probe(Message, frozen=True, tag="probe"):
    """Any process to answer server: request for its load. The reply is a KeepAlive once the model is loaded."""


class KeepAlive(Message, frozen=True, tag="keep_alive"):
    """Answer server to client: the server is alive, and serves `clients`, of which `slots` at once.

    `place`: number of clients that connected before this one. `draining`: it grants no more turns, and ends.
    """

    clients: Count = 0
    slots: Annotated[int, Meta(ge=1, le=CLIENTS_MAX)] = 1
    place: Count = 0
    draining: bool = False


class Disconnect(Message, frozen=True, tag="disconnect"):
    """Client to answer server: end of the connection."""


class AnswerDelta(Message, frozen=True, tag="answer_delta"):
    """Answer server to client: a piece of the answer in progress."""

    answer: Count
    text: Words


class CheckScore(msgspec.Struct, frozen=True, array_like=True):
    """Result of a check, as probabilities: `yes` and `mass` of `arr_coc.qwen.yes_no.YesNoScore`."""

    yes: Share
    certain: Share


class YesNoReply(Message, frozen=True, tag="yes_no_reply"):
    """Answer server to client: the results of a packet's checks, in their order; the whole reply if no answer was
    requested.

    Parts and other fields are as in AnswerReply, for all checks together; feedback only if no answer was requested.
    """

    answer: Count
    scores: Annotated[tuple[CheckScore, ...], Meta(max_length=WATCHES_MAX)]
    work: Work
    feedback_stamp: FrameStamp | None = None
    notice: Reason = ""


class AnswerReply(Message, frozen=True, tag="answer_reply"):
    """Answer server to client: a whole answer, and its work.

    Parts: regions, attention and similarity of its feedback, if any, and components of the embeddings, for an allocator
    that reads them. `same`: probability of the request's `previous` answer, if that was scored. `extent`: width and
    height of the frame, without padding, in the coordinates of places in the text; None if it can have none. `notice`:
    a message for the user.
    """

    answer: Count
    text: Words
    work: Work
    same: Share | None = None
    extent: tuple[ExtentSide, ExtentSide] | None = None
    feedback_stamp: FrameStamp | None = None
    notice: Reason = ""


class GlanceReply(Message, frozen=True, tag="glance_reply"):
    """Answer server to client: the model's attention to an overview. The client still has its turn.

    Parts: the feedback, as in AnswerReply.
    """

    glance: Count
    work: Work
    feedback_stamp: FrameStamp | None = None


class RequestLost(Message, frozen=True, tag="request_lost"):
    """Answer server to client: this request failed, for `reason`; the next one may succeed."""

    answer: Count
    reason: Reason


class ErrorReply(Message, frozen=True, tag="error_reply"):
    """Answer server to client: the request failed. `error` names the exception's class, `details` is its traceback."""

    error: Name
    message: Reason
    details: Details


AnyMessage: TypeAlias = (
    Credit
    | End
    | Cancel
    | SourceLost
    | FrameCaptured
    | TextureUpdated
    | TokenPacketMessage
    | GlancePacketMessage
    | FramePacketMessage
    | Connect
    | ServerHello
    | Embed
    | Embedded
    | TurnRequest
    | TurnGrant
    | IdleRequest
    | IdleGrant
    | IdlePass
    | IdlePacketMessage
    | IdleReply
    | TurnExpired
    | Probe
    | KeepAlive
    | Disconnect
    | AnswerDelta
    | YesNoReply
    | AnswerReply
    | GlanceReply
    | RequestLost
    | ErrorReply
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Return a message as msgpack."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> AnyMessage:
    """Decode a message. Raises TransportError if it is invalid or exceeds the limits."""
    if len(data) > HEADER_BYTES_MAX + WEIGHTS_BYTES_MAX:
        raise TransportError(f"a message's fields have {len(data)} bytes; at most {HEADER_BYTES_MAX} are read")
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"a message of {len(data)} bytes cannot be read: {error}") from error
    if len(data) > HEADER_BYTES_MAX and not isinstance(message, ServerHello):
        raise TransportError(f"a message's fields have {len(data)} bytes; at most {HEADER_BYTES_MAX} are read")
    check_bounds(message)
    return message


def check_bounds(message: Message) -> None:
    """Raise TransportError for a stamp, a place or a grid beyond the limits, which their types do not enforce."""
    stamp: Any = getattr(message, "stamp", None) or getattr(message, "feedback_stamp", None)
    if stamp is not None:
        _check_stamp(stamp)
    if isinstance(message, (TokenPacketMessage, GlancePacketMessage, IdlePacketMessage)):
        _check_place(message.place, len(message.earlier))
        for frame in message.earlier:
            _check_stamp(frame.stamp)
    elif isinstance(message, (TurnGrant, IdleGrant, IdleReply)):
        _check_place(message.kept)
    if isinstance(message, (TokenPacketMessage, FramePacketMessage)):
        _check_question(message.question)
    if isinstance(message, (YesNoReply, AnswerReply, GlanceReply)):
        _check_work(message.work)
    grid: Any = getattr(message, "grid", None)
    if grid is not None:
        fits = 1 <= grid.height_px <= LONG_SIDE_PX_MAX and 1 <= grid.width_px <= LONG_SIDE_PX_MAX
        if fits:
            expected = TileGrid.of(grid.height_px, grid.width_px)
        else:
            expected = None
        if expected is None or grid != expected or expected.tiles > FRAME_TILES_MAX:
            raise TransportError(f"{grid} is not the tile grid of its picture size")


def _check_work(work: Work) -> None:
    counts = (
        *(work.tokens_used, work.text_tokens, work.frames, work.kept_bytes, work.flops, work.full_flops),
        *(work.prefilled_tokens, work.appended_tokens, work.memory_tokens),
    )
    times_ms = (work.encode_ms, work.prefill_ms, work.decode_ms)
    if not all(0 <= count <= COUNT_MAX for count in counts) or not all(0 <= ms <= MS_MAX for ms in times_ms):
        raise TransportError(f"{work} exceeds the limits of messages")
    if work.oldest_frame_ns is not None and abs(work.oldest_frame_ns) > TIME_NS_MAX:
        raise TransportError(f"{work} has a frame at no time")


def _check_question(question: Question) -> None:
    previous = question.previous
    texts: list[tuple[str, int]] = [
        (question.text, QUERY_LIMIT_CHARS),
        *((check, WATCH_CHARS_MAX) for check in question.checks),
        *((answer.text, HISTORY_CHARS_MAX) for answer in question.history),
        ("" if previous is None else previous.text, ANSWER_CHARS_MAX),
        (question.schema or "", SCHEMA_BYTES_MAX),
        (question.compared or "", ANSWER_CHARS_MAX),
        (question.encode, NAME_CHARS_MAX),
    ]
    fits = (
        len(question.checks) <= WATCHES_MAX
        and len(set(question.checks)) == len(question.checks)
        and len(question.history) <= HISTORY_MAX
        and all(abs(answer.media_ns) <= TIME_NS_MAX for answer in question.history)
        and (previous is None or 0 <= previous.same_above <= 1)
    )
    if not fits or any(len(text) > chars for text, chars in texts):
        raise TransportError("a question exceeds the limits of messages, or has a check twice")


def _check_stamp(stamp: FrameStamp) -> None:
    fits = 0 <= stamp.frame_index <= COUNT_MAX and 0 <= stamp.epoch < 2**63
    if not fits or max(abs(stamp.media_ns), abs(stamp.capture_ns)) > TIME_NS_MAX:
        raise TransportError(f"{stamp} is no frame's")


def _check_place(place: GroupPlace | None, earlier_frames: int = 0) -> None:
    frame = 0 if place is None else place.frame
    if place is not None and not (
        1 <= place.group <= COUNT_MAX and 0 <= frame <= COUNT_MAX and 1 <= place.frames <= COUNT_MAX
    ):
        raise TransportError(f"{place} is in no group of pictures")
    if earlier_frames > frame:
        raise TransportError(
            f"{counted(earlier_frames, 'frame')} cannot come before frame {frame} of a group of pictures"
        )
