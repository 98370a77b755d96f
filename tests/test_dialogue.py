"""The allocate stage's side of the conversation: what it makes of messages, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from arr_coc.errors import ContextLengthError, ModelNotFound
from arr_coc.types import FramePacket, FrameStamp, TileGrid, TokenPacket
from stream.clock import FakeClock
from stream.dialogue import Dialogue
from stream.errors import StageDied, TransportError
from stream.events import Answer, AnswerText
from stream.messages import Answered, Cancel, Credit, End, Failed, Frame, Message, Text, Tokens, WholeFrame
from stream.packets import frame_packet, specs_of
from stream.transport import Link
from tests.stage_runner import LIMIT_MS, expect_whole, stage_runner

MS = 1_000_000
GRID = TileGrid.of(64, 64)
STAMP = FrameStamp(frame_index=5, media_ns=2_500 * MS, capture_ns=100 * MS, epoch=3)


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    with stage_runner() as runner:
        yield runner.link("inproc://dialogue", bind=True), runner.link("inproc://dialogue")


def tokens() -> TokenPacket:
    return TokenPacket(
        STAMP, GRID, np.zeros((2, 3), np.int32), np.ones(2, np.float32), np.zeros((2, 3, 32, 32), np.uint8)
    )


def answered(number: int, **fields: object) -> Answered:
    values = {"tokens_used": 2, "text_tokens": 3, "encode_ms": 1.0, "prefill_ms": 2.0, "decode_ms": 3.0, **fields}
    return Answered(answer=number, text="all of it", **values)  # type: ignore[arg-type]


def hear(dialogue: Dialogue, peer: Link, message: Message, arrays: list[np.ndarray] = []) -> list[object]:  # noqa: B006
    peer.send(message, arrays)
    return list(dialogue.hear(LIMIT_MS))


def test_a_credit_allows_one_packet(ends: tuple[Link, Link]) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    assert not dialogue.wants_packet
    hear(dialogue, ends[1], Credit())
    assert dialogue.wants_packet
    dialogue.ask(tokens(), "start")
    assert not dialogue.wants_packet
    assert dialogue.busy
    message, _ = expect_whole(ends[1], Tokens)
    assert message.answer == 0


def test_an_answer_becomes_events_with_latencies_from_its_frames_capture(ends: tuple[Link, Link]) -> None:
    clock = FakeClock(150 * MS)
    dialogue = Dialogue(ends[0], clock, "what?", None)
    dialogue.ask(tokens(), "cut")
    clock.advance(50 * MS)
    assert hear(dialogue, ends[1], Text(answer=0, text="all")) == [AnswerText(answer=0, text="all")]
    clock.advance(300 * MS)
    hear(dialogue, ends[1], Text(answer=0, text=" of it"))
    clock.advance(25 * MS)
    (answer,) = hear(dialogue, ends[1], answered(0))
    assert isinstance(answer, Answer)
    assert answer.timing is not None
    assert (answer.timing.ttft_ms, answer.timing.total_ms) == (100.0, 425.0)
    assert (answer.frame_index, answer.pts_s, answer.start_s, answer.end_s) == (5, 2.5, 2.5, 2.5)
    assert (answer.trigger, answer.query, answer.tokens_used, answer.tokens_total) == ("cut", "what?", 2, 4)
    assert not dialogue.busy


def test_an_answer_without_text_has_its_first_token_at_its_end(ends: tuple[Link, Link]) -> None:
    dialogue = Dialogue(ends[0], FakeClock(130 * MS), "what?", None)
    dialogue.ask(tokens(), "start")
    (answer,) = hear(dialogue, ends[1], answered(0))
    assert isinstance(answer, Answer)
    assert answer.timing is not None
    assert answer.timing.ttft_ms == answer.timing.total_ms == 30.0


def test_feedback_is_taken_once_and_the_newest_wins(ends: tuple[Link, Link]) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    for number in range(2):
        arrays = [np.zeros((1, 3), np.int32), np.full(1, number, np.float32), np.zeros(1, np.float32)]
        dialogue.ask(tokens(), "start")
        hear(dialogue, ends[1], answered(number, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays)
    feedback = dialogue.take_feedback()
    assert feedback is not None
    assert feedback.attention[0] == 1
    assert dialogue.take_feedback() is None


def test_without_a_snapshot_a_frame_travels_as_a_copy(ends: tuple[Link, Link]) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    image = np.zeros((64, 64, 3), np.uint8)
    dialogue.ask(FramePacket(STAMP, GRID, np.zeros((1, 3), np.int32), np.ones((2, 2), np.float32), image), "start")
    image[:] = 255
    message, received = expect_whole(ends[1], WholeFrame)
    assert not frame_packet(message, received.parts).image.any()


def test_the_end_and_a_cancel_are_told(ends: tuple[Link, Link]) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    dialogue.end()
    expect_whole(ends[1], End)
    dialogue.cancel()
    expect_whole(ends[1], Cancel)


@pytest.mark.parametrize("message", [Text(answer=1, text="x"), answered(1)])
def test_an_answer_that_was_not_asked_for_is_refused(ends: tuple[Link, Link], message: Message) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    dialogue.ask(tokens(), "start")
    with pytest.raises(TransportError, match="answer 1, which was not asked for"):
        hear(dialogue, ends[1], message)


def test_a_message_of_the_wrong_kind_is_refused(ends: tuple[Link, Link]) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    with pytest.raises(TransportError, match="wrong kind, Frame"):
        hear(dialogue, ends[1], Frame(slot=0, frame_index=0, media_ns=0, capture_ns=0))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ModelNotFound", ModelNotFound),
        ("ContextLengthError", ContextLengthError),
        ("NonFiniteError", StageDied),
        ("ValueError", StageDied),
        ("ArrCocError", StageDied),
        ("annotations", StageDied),
    ],
)
def test_a_failure_is_raised_as_what_it_was_where_the_user_can_put_it_right(
    ends: tuple[Link, Link], error: str, kind: type[Exception]
) -> None:
    dialogue = Dialogue(ends[0], FakeClock(), "what?", None)
    with pytest.raises(kind, match="what happened") as caught:
        hear(dialogue, ends[1], Failed(error=error, message="what happened", details=""))
    assert type(caught.value) is kind
