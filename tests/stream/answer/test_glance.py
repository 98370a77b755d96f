"""Glances: sending one in a turn, scheduling, and the effects of a loss, a cut or a new query."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stream.answer.client import ClientPhase
from stream.answer.filters import PriorGlance, RecalledAnswer
from stream.answer.request import GlanceOutcome
from stream.control import Ask
from stream.events import Answer, YesNoResult
from stream.protocol.codec import specs_of
from stream.protocol.messages import (
    GlancePacketMessage,
    Message,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.untrusted import GLANCES_A_TURN_MAX
from tests.stream.answer.test_client import clock, opened
from tests.stream.answer.test_scheduler import ONLY, S, ScheduledRun
from tests.stream.answer.test_scheduler import Opener as RunOpener
from tests.stream.answer.test_scheduler import opened as scheduled
from tests.support.answer_client import (
    FEEDBACK,
    FEEDBACK_ARRAYS,
    GRID,
    MS,
    STAMP,
    ClientFixture,
    FakeJournal,
    Opener,
    answer,
    answered,
    misdeeds,
    tokens,
)
from tests.support.clock import FakeClock
from tests.support.events import glance, make_glance_reply, make_overview

__all__ = ["clock", "opened", "scheduled"]

OVERVIEW = make_overview(STAMP, GRID)
GLANCE = glance(2.5, frame_index=5, query="what?")


def look(server: ClientFixture, turn: int = 1) -> int:
    """Send an overview; return the number of the glance."""
    server.grant(turn)
    server.client.send_glance(OVERVIEW, "what?", server.clock.now_ns())
    message = server.expect(GlancePacketMessage)
    assert message.turn == turn
    return message.glance


def taken(server: ClientFixture) -> GlanceOutcome:
    (outcome,) = server.of(GlanceOutcome)
    return outcome


def test_a_glance_keeps_the_turn_for_the_packet(opened: Opener, clock: FakeClock) -> None:
    server = opened()
    number = look(server)
    assert server.client.phase is ClientPhase.GLANCING
    assert server.client.busy
    clock.advance(7 * MS)
    server.hear(
        make_glance_reply(number, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)),
        arrays=FEEDBACK_ARRAYS,
    )
    assert server.client.may_send
    assert not server.client.busy
    outcome = taken(server)
    assert outcome.stamp == STAMP
    assert (outcome.event.query, outcome.event.tokens_used, outcome.event.tokens_total) == ("what?", 1, GRID.tiles)
    assert outcome.event.timing is not None
    assert outcome.event.timing.total_ms == 7
    assert outcome.feedback is not None
    np.testing.assert_array_equal(outcome.feedback.attention, FEEDBACK.attention)
    server.send(tokens())
    message = server.expect(TokenPacketMessage)
    assert (message.turn, message.answer) == (1, 0)


def test_an_answer_reports_the_costs_of_its_glances(opened: Opener, clock: FakeClock) -> None:
    server = opened()
    number = look(server)
    clock.advance(4 * MS)
    server.hear(make_glance_reply(number))
    server.send(tokens())
    server.expect(TokenPacketMessage)
    (event,) = server.hear(answered(0, flops=100))
    assert isinstance(event, Answer)
    assert (event.glances, event.glance_tokens, event.flops) == (1, 1, 105)
    assert event.timing is not None
    assert event.timing.glance_ms == 4
    server.ask(2)
    (event,) = server.hear(answered(1, flops=100))
    assert isinstance(event, Answer)
    assert (event.glances, event.glance_tokens, event.flops) == (0, 0, 100)


def test_unusable_feedback_ends_the_glance(opened: Opener) -> None:
    server = opened()
    number = look(server)
    arrays = [np.array([[0, 9, 9]], np.int32), *FEEDBACK_ARRAYS[1:]]
    reply = make_glance_reply(number, feedback_stamp=STAMP, arrays=specs_of(*arrays))
    assert misdeeds(server.hear(reply, arrays=arrays)) == 1
    assert taken(server).feedback is None
    assert server.client.may_send


@pytest.mark.parametrize("resends", [True, False])
def test_a_glance_lost_with_its_server_is_sent_again_or_counted(opened: Opener, resends: bool) -> None:
    server = opened(reconnect=True, resend_after_loss=resends)
    number = look(server)
    server.lose()
    assert server.client.requests.lost_glances == (not resends)
    server.greet()
    server.hear()
    if resends:
        packet = server.grant_again(4, GlancePacketMessage)
        assert (packet.glance, packet.turn) == (number, 4)
        server.hear(make_glance_reply(number))
        assert server.client.may_send
    else:
        assert not server.client.busy
        server.expect_nothing()
        assert look(server, 2) == number + 1


@pytest.mark.parametrize("resends", [True, False])
def test_a_turn_that_expired_ends_its_glance(opened: Opener, resends: bool) -> None:
    server = opened(resend_after_loss=resends)
    look(server)
    server.hear(TurnExpired(turn=1))
    assert server.client.requests.lost_glances == (not resends)
    assert server.client.busy == resends
    if resends:
        assert server.grant_again(2, GlancePacketMessage).turn == 2


def test_a_reply_to_no_glance_is_refused(opened: Opener) -> None:
    server = opened()
    assert misdeeds(server.hear(make_glance_reply(0))) == 1
    number = look(server)
    server.hear(make_glance_reply(number + 1), TurnGrant(turn=9))
    assert server.client.refused_messages == 3
    assert server.client.phase is ClientPhase.GLANCING
    server.hear(make_glance_reply(number))
    server.hear(make_glance_reply(number))
    assert server.client.refused_messages == 4
    assert server.client.may_send


def test_the_journal_keeps_a_glance_with_its_answer(opened: Opener) -> None:
    journal = FakeJournal()
    server = opened(journal=journal)
    number = look(server)
    server.hear(
        make_glance_reply(number, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)),
        arrays=FEEDBACK_ARRAYS,
    )
    outcome = taken(server)
    server.send(tokens())
    server.expect(TokenPacketMessage)
    server.hear(answered(0))
    server.ask(2)
    server.hear(answered(1))
    first, second = (kept.glance for kept in journal.kept)
    assert first is not None
    assert (first.event, first.feedback) == (outcome.event, outcome.feedback)
    assert second is None


def test_a_glance_of_an_earlier_run_is_not_taken_again(opened: Opener) -> None:
    journal_glance = PriorGlance(GLANCE, FEEDBACK)
    server = opened(
        journal=FakeJournal(RecalledAnswer(answer(0), None, journal_glance), RecalledAnswer(answer(1), None))
    )
    requests, stamp = server.client.requests, replace(STAMP, epoch=99)
    recalled = requests.recall_glance(stamp)
    assert recalled is not None
    (outcome,) = recalled
    assert isinstance(outcome, GlanceOutcome)
    assert outcome.event == journal_glance.event
    assert outcome.feedback is not None
    assert outcome.feedback.stamp == stamp
    assert requests.recall(stamp)
    assert requests.recall_glance(stamp) == []
    assert requests.recall(stamp)
    assert requests.recall_glance(stamp) is None
    server.expect_nothing()


def test_in_lockstep_a_glance_comes_before_the_answer_and_about_the_same_frame(scheduled: RunOpener) -> None:
    run = scheduled().greet()
    run.glance_due = True
    for index in range(3):
        run.show(index)
    assert run.peer.overviews() == [0]
    assert run.peer.packets() == [0, 2]
    assert [glance.event.frame_index for glance in run.glances] == [0]
    assert [event.glances for event in run.events if isinstance(event, Answer)] == [1, 0]
    kinds = [type(message) for message in run.peer.received]
    assert kinds.count(TurnRequest) == 2, "one turn for a glance and its answer"


def test_without_lockstep_frames_go_on_during_a_glance_and_the_newest_is_answered_about(scheduled: RunOpener) -> None:
    run = scheduled(lockstep=False).greet()
    run.glance_due, run.peer.glances = True, False
    for index in range(3):
        run.show(index)
        run.go_on()
    assert run.peer.overviews() == [0]
    assert run.peer.packets() == []
    run.peer.send(make_glance_reply(0))
    run.go_on()
    assert run.peer.packets() == [2]
    assert len(run.glances) == 1
    assert run.scheduler.drops["answer.busy"] == 1


def test_a_cut_during_a_glance_makes_it_stale_and_another_one_follows(scheduled: RunOpener) -> None:
    run = scheduled(lockstep=False).greet()
    run.glance_due, run.peer.glances = True, False
    run.show(0)
    run.go_on()
    run.show(1, cut=True)
    run.peer.send(make_glance_reply(0))
    run.peer.glances = True
    run.go_on(3)
    assert run.peer.overviews() == [0, 1]
    assert [glance.stamp.epoch for glance in run.glances] == [1]
    assert run.peer.packets() == [1]
    assert run.scheduler.drops["glance.stale"] == 1
    assert run.peer.turn == 1


def test_endless_cuts_do_not_prevent_the_answer(scheduled: RunOpener) -> None:
    run = scheduled(lockstep=False).greet()
    run.glance_due, run.peer.glances = True, False
    for index in range(GLANCES_A_TURN_MAX + 1):
        run.show(index, cut=index > 0)
        run.go_on()
        if index < GLANCES_A_TURN_MAX:
            run.show(index, cut=True)
            run.peer.send(make_glance_reply(index))
    run.go_on(2)
    assert len(run.peer.overviews()) == GLANCES_A_TURN_MAX
    assert run.peer.packets() == [GLANCES_A_TURN_MAX]
    assert run.scheduler.drops["glance.stale"] == GLANCES_A_TURN_MAX


def test_a_glance_for_another_question_is_stale(scheduled: RunOpener) -> None:
    run = scheduled(lockstep=False).greet()
    run.glance_due, run.peer.glances = True, False
    run.show(0)
    run.go_on()
    run.control.send(Ask("who?"))
    run.go_on()
    assert run.peer.embeds() == ["what?", "who?"]
    run.peer.send(make_glance_reply(0))
    run.peer.glances = True
    run.go_on(4)
    assert run.scheduler.drops["glance.stale"] == 1
    assert [glance.event.query for glance in run.glances] == ["who?"]
    assert [event.query for event in run.events if isinstance(event, Answer)] == ["who?"]


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_server_that_is_silent_during_a_glance_is_given_up_for_its_successor(
    scheduled: RunOpener, lockstep: bool
) -> None:
    run = scheduled(silence_limit_s=0.1, reconnect=True, lockstep=lockstep).greet()
    run.glance_due, run.peer.glances = True, False
    react = run.peer.react

    def recover(message: Message) -> None:
        run.peer.glances = run.hung > 0
        react(message)

    run.peer.react = recover  # type: ignore[method-assign]
    run.show(0)
    for _ in range(0 if lockstep else 8):
        run.clock.advance(S)
        run.go_on(1)
    assert run.hung == 1
    assert run.peer.overviews() == [0, 0]
    assert [event.glances for event in run.events if isinstance(event, Answer)] == [1]
    assert run.scheduler.drops.get("glance.lost", 0) == (not lockstep)


@pytest.mark.parametrize("last_answer", [True, False])
def test_at_the_end_a_glance_in_flight_is_followed_by_the_last_answer_or_by_none(
    scheduled: RunOpener, last_answer: bool
) -> None:
    run = scheduled(lockstep=False).greet()
    run.glance_due, run.peer.glances = True, False
    run.show(0)
    run.go_on()
    run.peer.send(make_glance_reply(0))
    run.scheduler.finish(last_answer=last_answer)
    assert run.triggers() == ["start"] * last_answer
    assert len(run.glances) == 1


def test_a_frame_that_is_no_longer_available_gets_no_glance(scheduled: RunOpener) -> None:
    run = scheduled(lockstep=False).greet()
    run.glance_due, run.has_frame = True, False
    run.show(0)
    run.go_on(3)
    assert run.peer.overviews() == []
    run.has_frame = True
    run.show(1)
    run.go_on(3)
    assert (run.peer.overviews(), run.peer.packets()) == ([1], [1])


def test_a_watch_alone_has_a_glance_before_its_check(scheduled: RunOpener) -> None:
    run = scheduled(**ONLY).greet()
    run.glance_due = True
    run.show(0)
    run.show(1, since_look=1.0)
    assert run.peer.overviews() == [0]
    assert [event.frame_index for event in run.events if isinstance(event, YesNoResult)] == [0, 1]


def test_a_recalled_glance_needs_no_server(scheduled: RunOpener) -> None:
    journal = FakeJournal(RecalledAnswer(answer(0), None, PriorGlance(GLANCE, FEEDBACK)))
    run: ScheduledRun = scheduled(journal=journal).greet()
    run.glance_due = True
    run.show(5)
    assert run.peer.overviews() == run.peer.packets() == []
    assert [glance.stamp for glance in run.glances] == [run.stamp]
    assert [event.answer for event in run.events if isinstance(event, Answer)] == [0]
