"""Messages between stages, and rejection of other data."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.schema_reader import SCHEMA_BYTES_MAX
from arr_coc.types import FrameStamp, GroupPlace, PastAnswer, PreviousAnswer, Question, TileGrid, Work
from stream.errors import TransportError
from stream.media import SkippedItem
from stream.protocol.messages import (
    PROTOCOL,
    AnswerDelta,
    AnswerReply,
    AnyMessage,
    ArraySpec,
    Cancel,
    CheckScore,
    Connect,
    Credit,
    Disconnect,
    Embed,
    Embedded,
    End,
    FrameCaptured,
    FramePacketMessage,
    GlancePacketMessage,
    GlanceReply,
    IdleGrant,
    IdlePacketMessage,
    IdlePass,
    IdleReply,
    IdleRequest,
    KeepAlive,
    Message,
    ServerHello,
    SourceLost,
    TextureUpdated,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
    decode,
    encode,
)
from stream.untrusted import (
    ANSWER_CHARS_MAX,
    HEADER_BYTES_MAX,
    HISTORY_CHARS_MAX,
    HISTORY_MAX,
    QUERY_LIMIT_CHARS,
    WATCH_CHARS_MAX,
    WATCHES_MAX,
    WEIGHTS_BYTES_MAX,
)
from tests.support.events import QUESTION

STAMP = FrameStamp(7, 280_000_000, 123_456_789, (5 << 32) | 1)
ALL = Question(
    "What?",
    wants_answer=False,
    checks=("is it there?", "is it gone?"),
    history=(PastAnswer(-5, "a cat"),),
    previous=PreviousAnswer("a dog", 0.5),
    schema="{}",
    compared="a bird",
    encode="prune",
)
MESSAGES: list[Message] = [
    Credit(count=3),
    Cancel(),
    End(reason="finished", skipped=(SkippedItem("packet 9", "Invalid data", None, 2),)),
    FrameCaptured(slot=4, frame_index=7, media_ns=-5, capture_ns=9, discontinuity="resolution"),
    TextureUpdated(stamp=STAMP, texture_ms=0.25, dirty_share=0.125, cut_score=0.75),
    TextureUpdated(stamp=STAMP, texture_ms=0.25, dirty_share=1.0, discontinuity="resolution"),
    SourceLost(frame_index=7, media_ns=5, reason="the cable", lasted_s=1.5, attempts=3),
    TokenPacketMessage(
        answer=2,
        turn=9,
        question=QUESTION,
        stamp=STAMP,
        grid=TileGrid.of(100, 60),
        arrays=(ArraySpec("int32", (3, 3)),),
    ),
    FramePacketMessage(answer=2, turn=9, question=ALL, stamp=STAMP, grid=TileGrid.of(100, 60), in_snapshot=True),
    TokenPacketMessage(answer=2, turn=9, question=QUESTION, stamp=STAMP, grid=TileGrid.of(2_000, 33_000)),
    TokenPacketMessage(answer=2, turn=9, question=QUESTION, stamp=STAMP, grid=TileGrid.of(100, 60), overview=2),
    GlancePacketMessage(glance=4, turn=9, text="What?", stamp=STAMP, grid=TileGrid.of(100, 60)),
    GlanceReply(glance=4, work=Work(6, encode_ms=1.5, prefill_ms=2.5, flops=9), feedback_stamp=STAMP),
    Connect(),
    Embed(text="What?", schema="{}"),
    Embedded(text="Is it there?", is_check=True, model_id="m", error="ContextLengthError", reason="too long"),
    YesNoReply(answer=2, scores=(CheckScore(0.75, 0.5),), work=Work(9)),
    ServerHello(model_id="m", knows_levels=True, known_world="drawn scenes"),
    TurnRequest(),
    TurnGrant(turn=9),
    TurnGrant(turn=9, kept=GroupPlace(2, 3)),
    TurnExpired(turn=9),
    IdleRequest(),
    IdleRequest(in_lockstep=True),
    IdleGrant(number=4, tokens=32),
    IdleGrant(number=4, tokens=32, kept=GroupPlace(2, 3)),
    IdlePass(),
    IdlePacketMessage(number=4, stamp=STAMP, grid=TileGrid.of(100, 60), place=GroupPlace(2, 3)),
    IdleReply(number=4, tokens=0, took_ms=0.0),
    IdleReply(number=4, tokens=9, took_ms=1.5, rebuilt=True, kept=GroupPlace(2, 1)),
    KeepAlive(),
    Disconnect(),
    AnswerDelta(answer=2, text="a red circle ▲"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_way(message: Message) -> None:
    assert decode(encode(message)) == message


def test_a_client_reports_its_protocol_version() -> None:
    assert Connect().protocol == PROTOCOL
    assert msgspec.msgpack.decode(encode(Connect()))["protocol"] == PROTOCOL


def test_every_kind_has_a_distinct_name() -> None:
    kinds = typing.get_args(AnyMessage)
    names = {kind.__struct_config__.tag for kind in kinds}
    assert len(names) == len(kinds) == len(Message.__subclasses__())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode(Cancel())[:-1],
        encode(Cancel()) + b"\x00",
        msgspec.msgpack.encode({"kind": "nonsense"}),
        msgspec.msgpack.encode({"kind": "credit", "count": "three"}),
        msgspec.msgpack.encode({"kind": "credit", "count": 0}),
        msgspec.msgpack.encode({"kind": "frame", "slot": -1, "frame_index": 0, "media_ns": 0, "capture_ns": 0}),
        msgspec.msgpack.encode({"kind": "end", "reason": "because"}),
        msgspec.msgpack.encode({"kind": "text", "answer": 1}),
        msgspec.msgpack.encode({"kind": "turn", "turn": -1}),
        msgspec.msgpack.encode({"kind": "embed"}),
        encode(YesNoReply(answer=0, scores=(CheckScore(1.5, 0.5),), work=Work(0))),
        msgspec.msgpack.encode({"kind": "embed", "text": b"\xff"}),
        b"\x81\xa4kind\xa1\xff",
        b"\x91" * 100_000,
        msgspec.msgpack.encode(["credit", 1]),
        msgspec.msgpack.encode({"kind": "cancel", "arrays": [["float64", [1]]]}),
        msgspec.msgpack.encode({"kind": "cancel", "arrays": [["uint8", [-1]]]}),
    ],
)
def test_an_invalid_message_is_refused(data: bytes) -> None:
    with pytest.raises(TransportError, match="cannot be read"):
        decode(data)


@given(st.binary(max_size=64))
def test_noise_is_refused_or_read_but_never_breaks(data: bytes) -> None:
    try:
        message = decode(data)
    except TransportError:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize("side_px", [(2**20, 2**20), (1, 2**20 + 1), (20_000, 20_000)])
def test_a_frame_of_impossible_size_is_refused(side_px: tuple[int, int]) -> None:
    message = TokenPacketMessage(answer=2, turn=9, question=QUESTION, stamp=STAMP, grid=TileGrid.of(*side_px))
    with pytest.raises(TransportError, match="is not the tile grid"):
        decode(encode(message))


@pytest.mark.parametrize(
    "question",
    [
        Question("x" * (QUERY_LIMIT_CHARS + 1)),
        Question("", checks=("is it?", "is it?")),
        Question("", checks=tuple(map(str, range(WATCHES_MAX + 1)))),
        Question("", checks=("x" * (WATCH_CHARS_MAX + 1),)),
        Question("", history=(PastAnswer(0, ""),) * (HISTORY_MAX + 1)),
        Question("", history=(PastAnswer(2**63 - 1, ""),)),
        Question("", history=(PastAnswer(0, "x" * (HISTORY_CHARS_MAX + 1)),)),
        Question("", previous=PreviousAnswer("", 1.5)),
        Question("", previous=PreviousAnswer("", float("nan"))),
        Question("", previous=PreviousAnswer("x" * (ANSWER_CHARS_MAX + 1), 0.5)),
        Question("", schema="x" * (SCHEMA_BYTES_MAX + 1)),
        Question("", compared="x" * (ANSWER_CHARS_MAX + 1)),
        Question("", encode="x" * 2_000),
    ],
)
def test_a_question_beyond_the_limits_is_refused(question: Question) -> None:
    message = TokenPacketMessage(answer=2, turn=9, question=question, stamp=STAMP, grid=TileGrid.of(100, 60))
    with pytest.raises(TransportError, match="a question exceeds the limits"):
        decode(encode(message))


@pytest.mark.parametrize(
    "work", [Work(-1), Work(0, frames=2**60), Work(0, decode_ms=-1.0), Work(0, encode_ms=float("nan"))]
)
def test_work_beyond_the_limits_is_refused(work: Work) -> None:
    with pytest.raises(TransportError, match="exceeds the limits"):
        decode(encode(AnswerReply(answer=2, text="", work=work)))


def test_work_about_a_frame_at_no_time_is_refused() -> None:
    with pytest.raises(TransportError, match="at no time"):
        decode(encode(AnswerReply(answer=2, text="", work=Work(0, oldest_frame_ns=2**63 - 1))))


@pytest.mark.parametrize("place", [GroupPlace(0, 1), GroupPlace(1, -1), GroupPlace(2**60, 0)])
def test_a_turn_names_a_group_that_can_be(place: GroupPlace) -> None:
    with pytest.raises(TransportError, match="is in no group of pictures"):
        decode(encode(TurnGrant(turn=1, kept=place)))


def test_a_message_beyond_any_length_is_not_even_decoded() -> None:
    with pytest.raises(TransportError, match=r"a message's fields have \d+ bytes; at most"):
        decode(bytes(HEADER_BYTES_MAX + WEIGHTS_BYTES_MAX + 1))
