"""Earlier answers: those sent with a question, and the previous one that may be repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arr_coc.types import PastAnswer, PreviousAnswer, Question
from stream.answer.filters import RecalledAnswer
from stream.answer.model import history_text
from stream.events import Answer, AnswerDeltaEvent, AnswerUnchanged, ShadowCheck
from stream.protocol.messages import (
    AnswerDelta,
    FramePacketMessage,
    RequestLost,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from stream.untrusted import HISTORY_CHARS_MAX
from tests.stream.answer.test_client import clock, opened
from tests.support.answer_client import (
    STAMP,
    ClientFixture,
    FakeJournal,
    Opener,
    answer,
    answered,
    checks_of,
    tokens,
    whole_frame,
)
from tests.support.events import make_answer_reply, make_yes_no_reply

__all__ = ["clock", "opened"]

NEXT_SHOT = replace(STAMP, epoch=STAMP.epoch + 1)


def asked(server: ClientFixture, turn: int = 1, epoch: int = STAMP.epoch, **options: Any) -> Question:
    """The question of the next packet."""
    server.grant(turn)
    packet = replace(tokens(), stamp=replace(STAMP, epoch=epoch))
    server.send(packet, "every", **options)
    return server.expect(TokenPacketMessage).question


def answer_text(server: ClientFixture, text: str, turn: int = 1) -> list[object]:
    asked(server, turn)
    assert server.client.requests.request is not None
    return server.hear(make_answer_reply(server.client.requests.request.number, text))


def texts(history: tuple[PastAnswer, ...]) -> list[str]:
    return [entry.text for entry in history]


def test_the_newest_answers_are_sent_with_their_times(opened: Opener) -> None:
    server = opened(history=2)
    assert asked(server).history == ()
    server.hear(make_answer_reply(0, "one\nline  "))
    assert asked(server, 2).history == (PastAnswer(STAMP.media_ns, "one line"),)
    server.hear(make_answer_reply(1, "two"))
    answer_text(server, "x" * 5_000, 3)
    message = asked(server, 4)
    assert [len(text) for text in texts(message.history)] == [3, HISTORY_CHARS_MAX]
    assert message.previous is None


@pytest.mark.parametrize("spans_cuts", [False, True])
def test_another_question_keeps_the_history_and_another_shot_if_it_spans_cuts(opened: Opener, spans_cuts: bool) -> None:
    server = opened(history=3, history_spans_cuts=spans_cuts)
    answer_text(server, "one")
    assert texts(asked(server, 2, text="who?").history) == ["one"]
    server.hear(make_answer_reply(1, "two"))
    assert texts(asked(server, 3, epoch=NEXT_SHOT.epoch).history) == (["one", "two"] if spans_cuts else [])
    server.hear(make_answer_reply(2, "three"))
    assert texts(asked(server, 4, epoch=NEXT_SHOT.epoch).history) == [*(["one", "two"] * spans_cuts), "three"]


def test_an_answer_that_ends_after_a_cut_is_no_history_of_the_next_shot(opened: Opener) -> None:
    server = opened(history=3)
    asked(server)
    server.client.on_cut()
    server.hear(make_answer_reply(0, "one"))
    assert asked(server, 2, epoch=NEXT_SHOT.epoch).history == ()


def test_a_check_in_another_shot_forgets_the_history(opened: Opener) -> None:
    """So that no answer stays if the picture comes back under the number of an earlier epoch."""
    server = opened(history=3, same_above=0.5, watches=("is it there?",))
    answer_text(server, "one")
    asked(server, 2, epoch=NEXT_SHOT.epoch, wants_answer=False, checks=checks_of("is it there?"))
    server.hear(make_yes_no_reply(1))
    message = asked(server, 3)
    assert (message.history, message.previous) == ((), None)


def test_a_check_has_neither_history_nor_a_previous_answer(opened: Opener) -> None:
    server = opened(history=1, same_above=0.5, watches=("is it there?",))
    answer_text(server, "one")
    message = asked(server, 2, wants_answer=False, checks=checks_of("is it there?"))
    assert (message.history, message.previous) == ((), None)


def test_without_the_options_no_earlier_answer_is_sent(opened: Opener) -> None:
    server = opened()
    answer_text(server, "one")
    message = asked(server, 2)
    assert (message.history, message.previous) == ((), None)


def test_after_a_loss_the_request_has_the_same_history(opened: Opener) -> None:
    server = opened(history=2, same_above=0.5, reconnect=True, resend_after_loss=True)
    answer_text(server, "one")
    before = asked(server, 2)
    server.lose()
    server.greet()
    after = server.grant_again(1, TokenPacketMessage).question
    assert (after.history, after.previous) == (before.history, before.previous)
    assert texts(after.history) == ["one"]


def test_the_answer_to_the_same_question_in_the_same_shot_may_be_repeated(opened: Opener) -> None:
    server = opened(same_above=0.25)
    assert asked(server).previous is None
    server.hear(make_answer_reply(0, "one"))
    assert asked(server, 2).previous == PreviousAnswer("one", 0.25)
    server.hear(make_answer_reply(1, "two"))
    assert asked(server, 3, epoch=NEXT_SHOT.epoch).previous is None


def test_an_answer_to_another_question_is_no_previous_one(opened: Opener) -> None:
    server = opened(same_above=0.5)
    answer_text(server, "one")
    assert asked(server, 2, text="who?").previous is None
    server.hear(make_answer_reply(1, "one"))
    assert asked(server, 3, text="who?").previous == PreviousAnswer("one", 0.5)


@pytest.mark.parametrize("probability", [0.75, 0.125, None])
def test_the_same_answer_is_unchanged_and_its_text_is_not_emitted(opened: Opener, probability: float | None) -> None:
    server = opened(same_above=0.5, history=2)
    answer_text(server, "a red bus")
    asked(server, 2)
    assert server.hear(AnswerDelta(answer=1, text="a red"), AnswerDelta(answer=1, text=" bus")) == []
    (event,) = server.hear(make_answer_reply(1, "a red bus", same=probability))
    assert isinstance(event, AnswerUnchanged)
    assert (event.answer, event.text, event.since_s, event.probability) == (1, "a red bus", 2.5, probability)
    message = asked(server, 3)
    assert texts(message.history) == ["a red bus"], "it is one answer still"
    assert message.previous == PreviousAnswer("a red bus", 0.5)


@pytest.mark.parametrize(
    ("pieces", "emitted"),
    [
        (["a red", " car", "!"], ["", "a red car", "!"]),
        (["blue", " bus"], ["blue", " bus"]),
        (["a red"], [""]),
        (["a red bus", " and more"], ["", "a red bus and more"]),
    ],
)
def test_text_is_emitted_once_it_differs_from_the_previous_answer(
    opened: Opener, pieces: list[str], emitted: list[str]
) -> None:
    server = opened(same_above=0.5)
    answer_text(server, "a red bus")
    asked(server, 2)
    for piece, expected in zip(pieces, emitted, strict=True):
        assert [event.text for event in server.events(AnswerDeltaEvent, AnswerDelta(answer=1, text=piece))] == (
            [expected] if expected else []
        )
    *rest, last = server.hear(make_answer_reply(1, "".join(pieces), same=0.1))
    assert isinstance(last, Answer)
    texts_of_rest = [event.text for event in rest if isinstance(event, AnswerDeltaEvent)]
    assert "".join([*emitted, *texts_of_rest]) == last.text == "".join(pieces)


def test_an_answer_that_is_generated_again_is_emitted_from_its_beginning(opened: Opener) -> None:
    server = opened(same_above=0.5, reconnect=True, resend_after_loss=True)
    answer_text(server, "a red bus")
    asked(server, 2)
    assert server.hear(AnswerDelta(answer=1, text="a red car")) != []
    server.hear(RequestLost(answer=1, reason="gone"))
    server.grant_again(3, TokenPacketMessage)
    assert server.hear(AnswerDelta(answer=1, text="a red")) == []
    (event,) = server.events(AnswerDeltaEvent, AnswerDelta(answer=1, text=" car"))
    assert event.text == "a red car"


def test_a_cancelled_answer_reports_the_text_that_was_emitted(opened: Opener) -> None:
    server = opened(same_above=0.5)
    answer_text(server, "a red bus")
    asked(server, 2)
    server.hear(AnswerDelta(answer=1, text="a red"))
    event = server.client.cancel_answer(NEXT_SHOT)
    assert event is not None
    assert event.text == ""


def test_an_unchanged_answer_is_not_verified(opened: Opener) -> None:
    server = opened(same_above=0.5)
    answer_text(server, "one")
    asked(server, 2, full_frame=whole_frame())
    server.hear(make_answer_reply(1, "one", same=0.9))
    assert not server.client.busy


def test_the_answer_that_verifies_another_has_its_history(opened: Opener) -> None:
    server = opened(same_above=0.5, history=1)
    answer_text(server, "one")
    asked(server, 2, full_frame=whole_frame())
    server.hear(make_answer_reply(1, "two", same=0.1))
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=3))
    message = server.expect(FramePacketMessage).question
    assert (texts(message.history), message.previous) == (["one"], None)
    (check,) = server.hear(make_answer_reply(1, "one"))
    assert isinstance(check, ShadowCheck)
    assert texts(asked(server, 4).history) == ["two"]


def test_answers_of_an_earlier_run_are_history_as_well(opened: Opener) -> None:
    first = answer(0)
    fields = {name: getattr(first, name) for name in first.__struct_fields__} | {"answer": 1}
    repeat = AnswerUnchanged(**fields, since_s=2.5, probability=0.75)
    journal = FakeJournal(RecalledAnswer(first, None), RecalledAnswer(repeat, None))
    server = opened(history=4, same_above=0.5, journal=journal)
    now = replace(STAMP, epoch=99)
    assert server.client.requests.recall(now)[-1] == first
    assert server.client.requests.recall(now) == [repeat]
    message = asked(server, epoch=99)
    assert texts(message.history) == ["of old"]
    assert message.previous is None, "that was to another question"
    (event,) = server.hear(answered(2))
    assert [point.answer for point in journal.points] == [2]
    assert isinstance(event, Answer)


def test_an_unchanged_answer_is_kept_for_a_continued_run(opened: Opener) -> None:
    journal = FakeJournal()
    server = opened(same_above=0.5, journal=journal)
    answer_text(server, "one")
    answer_text(server, "one", 2)
    assert [type(point) for point in journal.points] == [Answer, AnswerUnchanged]


def test_history_is_text_with_times() -> None:
    assert history_text(()) == ""
    history = (PastAnswer(0, "a bus"), PastAnswer(61_250_000_000, "no bus"))
    assert history_text(history) == "Earlier answers:\n<0.0 seconds> a bus\n<61.2 seconds> no bus\n"
