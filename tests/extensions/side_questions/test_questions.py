"""Side questions: each is answered once between the run's own answers, which go on as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream.answer.questions import RunQuestions
from stream.control import SIDE_QUESTIONS_MAX, Ask, AskAside
from stream.events import Answer, AnswerDeltaEvent, Event, QueryChanged, SideAnswer, SideRefused, SideText
from stream.extensions.side_questions.questions import CROWDED, LOST, RUN_OVER, SideQuestions
from stream.protocol.messages import AnswerDelta, RequestLost, TokenPacketMessage
from tests.stream.answer.test_scheduler import CANCELLING, ScheduledRun
from tests.support.answer_client import FakeJournal

RunOf = Callable[..., ScheduledRun]


def side_questions(questions: RunQuestions) -> list[SideQuestions]:
    return [SideQuestions(questions)]


@pytest.fixture
def run_of() -> RunOf:
    return lambda **policy: ScheduledRun(
        **{"lockstep": False, "askers": lambda questions: (SideQuestions(questions),), **policy}
    ).greet()


def ask(run: ScheduledRun, number: int = 1, query: str = "and now?") -> None:
    run.control.send(AskAside(number, query))


def answering(run: ScheduledRun) -> ScheduledRun:
    """The run, which has answered about its first frame."""
    run.show(0)
    run.go_on(4)
    return run


def ask_in_vain(run: ScheduledRun) -> None:
    """Send a side question to a server that answers nothing from here on."""
    run.peer.answers = False
    ask(run)
    run.go_on(4)


def sides(run: ScheduledRun) -> list[Event]:
    return [event for event in run.events if isinstance(event, (SideAnswer, SideText, SideRefused))]


def queries(run: ScheduledRun) -> list[str]:
    """Questions for which tokens were chosen, one after another, after that of the run."""
    return [embedding.text for _, embedding in run.models[1:]]


def test_a_side_question_is_answered_about_the_newest_frame_and_makes_no_answer_of_the_run(run_of: RunOf) -> None:
    run = answering(run_of())
    ask(run)
    run.go_on(8)
    (answer,) = sides(run)
    assert isinstance(answer, SideAnswer)
    assert (answer.question, answer.query, answer.text, answer.frame_index) == (1, "and now?", "t", 0)
    assert run.triggers() == ["start"]
    assert queries(run) == ["and now?", "what?"]
    assert not [event for event in run.events if isinstance(event, QueryChanged)]


def test_the_run_s_own_answers_go_on_with_their_own_question(run_of: RunOf) -> None:
    run = answering(run_of())
    ask(run)
    run.go_on(8)
    run.show(1)
    run.go_on(4)
    assert run.triggers() == ["start"], "the return to its question asks for nothing"
    run.show(2)
    run.go_on(4)
    queries = [event.query for event in run.events if isinstance(event, Answer)]
    assert queries == ["what?", "what?"]


def test_an_answer_of_the_run_that_is_due_meanwhile_comes_after_it(run_of: RunOf) -> None:
    run = answering(run_of())
    ask_in_vain(run)
    for index in range(1, 4):
        run.show(index)
        run.go_on()
    run.peer.answers = True
    run.peer.answer(run.scheduler.client.requests.next_number - 1)
    run.go_on(8)
    kinds = [type(event) for event in run.events if isinstance(event, (Answer, SideAnswer))]
    assert kinds == [Answer, SideAnswer, Answer]
    assert run.triggers() == ["start", "every"]


def test_its_text_comes_in_pieces_that_are_no_caption(run_of: RunOf) -> None:
    run = answering(run_of())
    ask_in_vain(run)
    run.peer.send(AnswerDelta(answer=run.scheduler.client.requests.next_number - 1, text="a c"))
    run.go_on()
    assert sides(run) == [SideText(question=1, text="a c")]
    assert not [event for event in run.events if isinstance(event, AnswerDeltaEvent)]


def test_several_are_asked_one_after_another_and_the_own_question_returns_once(run_of: RunOf) -> None:
    run = answering(run_of())
    for number in range(3):
        ask(run, number, f"q{number}")
    run.go_on(20)
    assert [event.question for event in sides(run) if isinstance(event, SideAnswer)] == [0, 1, 2]
    assert queries(run) == ["q0", "q1", "q2", "what?"]


def test_too_many_that_wait_are_refused(run_of: RunOf) -> None:
    run = answering(run_of())
    run.peer.answers = False
    for number in range(SIDE_QUESTIONS_MAX + 2):
        ask(run, number)
    run.go_on()
    refused = [(event.question, event.error) for event in sides(run) if isinstance(event, SideRefused)]
    assert refused == [(number, CROWDED) for number in (SIDE_QUESTIONS_MAX, SIDE_QUESTIONS_MAX + 1)]


def test_a_question_that_the_server_refuses_is_refused_and_the_own_one_stays(run_of: RunOf) -> None:
    run = answering(run_of())
    run.peer.refusals["and now?"] = "too long"
    ask(run)
    run.go_on(6)
    assert sides(run) == [SideRefused(question=1, error="too long")]
    run.show(2)
    run.go_on(4)
    assert run.triggers() == ["start", "every"]


def test_a_lost_answer_is_refused_and_the_run_goes_on(run_of: RunOf) -> None:
    run = answering(run_of())
    ask_in_vain(run)
    run.peer.send(RequestLost(answer=run.scheduler.client.requests.next_number - 1, reason="out of memory"))
    run.peer.answers = True
    run.go_on(4)
    assert sides(run) == [SideRefused(question=1, error=LOST)]
    run.show(2)
    run.go_on(4)
    assert run.triggers() == ["start", "every"]


def test_a_cut_that_cancels_answers_has_it_asked_again_about_the_new_shot(run_of: RunOf) -> None:
    run = answering(run_of(answer=CANCELLING))
    ask_in_vain(run)
    run.peer.answers = True
    run.show(1, cut=True)
    run.go_on(8)
    (answer,) = sides(run)
    assert isinstance(answer, SideAnswer)
    assert answer.frame_index == 1
    assert run.triggers() == ["start", "cut"]


def test_a_new_question_of_the_run_meanwhile_is_in_force_after_it(run_of: RunOf) -> None:
    run = answering(run_of())
    ask_in_vain(run)
    run.control.send(Ask("who?"))
    run.peer.answers = True
    run.peer.answer(run.scheduler.client.requests.next_number - 1)
    run.go_on(8)
    assert [event.query for event in run.events if isinstance(event, QueryChanged)] == ["who?"]
    queries = [event.query for event in run.events if isinstance(event, Answer)]
    assert queries == ["what?", "who?"]


def test_if_the_run_s_new_question_is_refused_after_it_the_one_before_is_in_force_again(run_of: RunOf) -> None:
    run = answering(run_of())
    run.peer.refusals["who?"] = "too long"
    ask_in_vain(run)
    run.control.send(Ask("who?"))
    run.peer.answers = True
    run.peer.answer(run.scheduler.client.requests.next_number - 1)
    run.go_on(8)
    assert [event for event in run.events if isinstance(event, QueryChanged)] == [
        QueryChanged(query="who?", error="too long")
    ]
    run.show(2)
    run.go_on(4)
    queries = [event.query for event in run.events if isinstance(event, Answer)]
    assert queries == ["what?", "what?"]


def test_a_new_question_of_the_run_just_before_it_stays_in_force(run_of: RunOf) -> None:
    run = answering(run_of())
    run.control.send(Ask("who?"))
    ask(run)
    run.go_on(16)
    assert [event.query for event in run.events if isinstance(event, QueryChanged)] == ["who?"]
    assert [type(event) for event in sides(run)] == [SideAnswer]
    queries = [event.query for event in run.events if isinstance(event, Answer)]
    assert queries == ["what?", "who?"]


def test_before_the_first_frame_it_waits(run_of: RunOf) -> None:
    run = run_of()
    ask(run)
    run.go_on(6)
    assert run.places == [], "no packet is made"
    assert queries(run) == []
    run.show(0)
    run.go_on(8)
    assert [type(event) for event in sides(run)] == [SideAnswer]


def test_after_pieces_that_a_cut_made_stale_the_answer_comes_whole(run_of: RunOf) -> None:
    run = answering(run_of(answer=CANCELLING))
    ask_in_vain(run)
    run.peer.send(AnswerDelta(answer=run.scheduler.client.requests.next_number - 1, text="a c"))
    run.go_on()
    run.show(1, cut=True)
    run.go_on(4)
    run.peer.send(AnswerDelta(answer=run.scheduler.client.requests.next_number - 1, text="t"))
    run.peer.answer(run.scheduler.client.requests.next_number - 1)
    run.go_on()
    assert [event.text for event in sides(run) if not isinstance(event, SideRefused)] == ["a c", "t"]
    assert isinstance(sides(run)[-1], SideAnswer)


def test_a_side_question_equal_to_the_own_one_is_answered_too(run_of: RunOf) -> None:
    run = answering(run_of())
    ask(run, query="what?")
    run.go_on(8)
    assert [type(event) for event in sides(run)] == [SideAnswer]


def test_in_lockstep_it_is_answered_before_the_next_frame_s_own_answer(run_of: RunOf) -> None:
    run = run_of(lockstep=True)
    run.show(0)
    ask(run)
    run.go_on()
    run.show(2)
    kinds = [type(event) for event in run.events if isinstance(event, (Answer, SideAnswer))]
    assert kinds == [Answer, SideAnswer, Answer]


def test_questions_that_wait_as_the_run_ends_are_refused_and_its_last_answer_comes(run_of: RunOf) -> None:
    run = run_of(lockstep=True)
    run.show(0)
    run.show(1)
    ask(run, 1)
    ask(run, 2)
    run.scheduler.process_replies(0)
    run.scheduler.finish(last_answer=True)
    assert sides(run) == [SideRefused(question=1, error=RUN_OVER), SideRefused(question=2, error=RUN_OVER)]
    assert run.triggers() == ["start", "end"]
    assert [message.stamp.frame_index for message in run.peer.received if isinstance(message, TokenPacketMessage)] == [
        *(0, 1),
    ]


def test_a_turn_for_a_side_question_that_the_run_s_end_refuses_is_for_its_own(run_of: RunOf) -> None:
    run = run_of()
    run.show(0)
    run.go_on()
    run.peer.answer(0)
    run.go_on()
    run.show(1)
    ask(run, query="who?")
    while run.scheduler._questions.text != "who?" or not run.scheduler.client.may_send:
        run.scheduler.process_replies(0)
        if not run.scheduler.client.may_send:
            run.scheduler._has_turn()
    run.scheduler.finish(last_answer=True)
    assert [type(event) for event in sides(run)] == [SideRefused]
    questions = [message.question.text for message in run.peer.received if isinstance(message, TokenPacketMessage)]
    assert questions == ["what?", "what?"]


def test_a_run_that_is_to_be_continued_takes_none(run_of: RunOf) -> None:
    run = ScheduledRun(journal=FakeJournal(), askers=side_questions).greet()
    run.show(0)
    ask(run)
    run.scheduler.process_replies(0)
    (refused,) = sides(run)
    assert isinstance(refused, SideRefused)
    assert "leave --resume out" in refused.error
