"""Client of the answer protocol: what follows from messages and losses, and what is refused. No socket, no wait."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from arr_coc.errors import DeviceLost
from arr_coc.types import Feedback, FrameStamp, QueryEmbedding, TokenPacket
from stream.answer.client import MODEL_NOTICE, PIXELS_COPIED, UNREADABLE_MAX, Failure, Served
from stream.answer.request import REPEATS_MAX, ClientOptions
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, Answer, AnswerDeltaEvent, Notice, QueryChanged, YesNoResult
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_packet, specs_of, token_packet
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    AnswerDelta,
    Cancel,
    Connect,
    Disconnect,
    FrameCaptured,
    FramePacketMessage,
    GlancePacketMessage,
    Message,
    PixelPlace,
    QueryAccepted,
    RequestLost,
    ServerHello,
    SetQuery,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.recording.journal import JournalEntry
from stream.untrusted import ANSWER_CHARS_MAX
from tests.support.answer_client import (
    FEEDBACK,
    FEEDBACK_ARRAYS,
    HELLO,
    MS,
    STAMP,
    ClientFixture,
    FakeJournal,
    Opener,
    answer,
    answered,
    misdeeds,
    tokens,
    whole_frame,
)
from tests.support.clock import FakeClock
from tests.support.events import make_yes_no_reply


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(150 * MS)


@pytest.fixture
def opened(clock: FakeClock) -> Opener:
    """Opens one client with the given options, which the server has admitted."""

    def opening(*, greeted: bool = True, **options: Any) -> ClientFixture:
        server = ClientFixture(clock, ClientOptions(**options))
        if greeted:
            assert server.greet() == []
        return server

    return opening


def test_a_look_alone_ends_its_turn_and_has_no_number(opened: Opener, clock: FakeClock) -> None:
    server = opened(standing_query="is it there?")
    server.grant()
    server.send(tokens(), "", wants_answer=False, yes_no_trigger="change")
    message = server.expect(TokenPacketMessage)
    assert (message.answer, message.wants_answer) == (0, False)
    clock.advance(50 * MS)
    (event,) = server.hear(make_yes_no_reply(0))
    assert isinstance(event, YesNoResult)
    assert event.timing is not None
    assert (event.frame_index, event.pts_s, event.trigger, event.question) == (5, 2.5, "change", "is it there?")
    assert (event.yes, event.certain, event.holds) == (0.75, 0.5, None)
    assert (event.tokens_used, event.tokens_total, event.timing.total_ms) == (2, 4, 100.0)
    assert not server.client.busy
    assert server.ask(turn=2) == 0


def test_a_look_beside_an_answer_leaves_it_open(opened: Opener) -> None:
    server = opened(standing_query="is it there?")
    assert server.ask() == 0
    assert len(server.hear(make_yes_no_reply(0))) == 1
    assert server.client.busy
    assert len(server.hear(answered(0))) == 1
    assert not server.client.busy


def test_a_look_that_is_repeated_with_its_question_is_reported_once(opened: Opener) -> None:
    server = opened(standing_query="is it there?", reconnect=True, resend_after_loss=True)
    server.ask()
    assert len(server.hear(make_yes_no_reply(0))) == 1
    server.lose()
    server.greet()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=1))
    assert server.expect(TokenPacketMessage).wants_answer
    assert server.hear(make_yes_no_reply(0)) == []
    assert len(server.hear(answered(0))) == 1


def test_a_look_teaches_where_it_has_something_to_teach(opened: Opener) -> None:
    server = opened(standing_query="is it there?")
    server.ask()
    server.hear(make_yes_no_reply(0, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)), arrays=FEEDBACK_ARRAYS)
    (feedback,) = server.of(Feedback)
    assert feedback.stamp == STAMP


@pytest.mark.parametrize(("standing_query", "number"), [(None, 0), ("is it there?", 1)])
def test_a_look_that_nobody_asked_for_is_dropped(opened: Opener, standing_query: str | None, number: int) -> None:
    server = opened(standing_query=standing_query)
    server.ask()
    assert misdeeds(server.hear(make_yes_no_reply(number))) == 1
    assert server.client.busy


def test_it_joins_with_its_standing_question(opened: Opener) -> None:
    server = opened(greeted=False, standing_query="is it there?")
    assert server.expect(Connect).standing_query == "is it there?"


def test_it_joins_once_with_its_question_and_is_ready_when_that_is_known(opened: Opener) -> None:
    server = opened(greeted=False, encode="prune")
    assert server.expect(Connect) == Connect(query="what?", encode="prune")
    server.hear(HELLO)
    assert not server.client.ready
    server.asking(value=0.5)
    assert server.client.ready
    assert server.client.hello == HELLO
    (embedding,) = server.of(QueryEmbedding)
    assert (embedding.text, embedding.model_id, embedding.tokens[0, 0]) == ("what?", "m", 0.5)
    server.expect_nothing()


def test_a_turn_is_wanted_once_and_only_when_the_answer_stage_is_ready(opened: Opener) -> None:
    server = opened(greeted=False)
    server.request_turn()
    server.greet()
    server.request_turn()
    server.request_turn()
    server.expect(TurnRequest)
    server.expect_nothing()
    assert not server.client.may_send
    server.hear(TurnGrant(turn=4))
    assert server.client.may_send
    server.request_turn()
    server.expect_nothing()


def test_a_turn_allows_one_packet(opened: Opener) -> None:
    server = opened()
    server.grant(4)
    server.send(tokens(), "start")
    assert not server.client.may_send
    assert server.client.busy
    message, received = server.expect_whole(TokenPacketMessage)
    assert (message.answer, message.turn) == (0, 4)
    assert token_packet(message, received.parts).stamp == STAMP


def test_answers_are_numbered(opened: Opener) -> None:
    server = opened()
    for number in range(3):
        assert server.ask(turn=number) == number
        server.hear(answered(number))


def test_an_answer_becomes_events_with_latencies_from_its_frames_capture(opened: Opener, clock: FakeClock) -> None:
    server = opened()
    server.ask(trigger="cut")
    clock.advance(50 * MS)
    assert server.hear(AnswerDelta(answer=0, text="all")) == [AnswerDeltaEvent(answer=0, text="all", pts_s=2.5)]
    clock.advance(300 * MS)
    server.hear(AnswerDelta(answer=0, text=" of it"))
    clock.advance(25 * MS)
    (event,) = server.hear(answered(0))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert (event.timing.ttft_ms, event.timing.total_ms) == (100.0, 425.0)
    assert (event.frame_index, event.pts_s, event.start_s, event.end_s) == (5, 2.5, 2.5, 2.5)
    assert (event.trigger, event.query, event.tokens_used, event.tokens_total) == ("cut", "what?", 2, 4)
    assert (event.frames, event.kept_bytes) == (1, 0)
    assert not server.client.busy


@pytest.mark.parametrize(("since_ns", "start_s"), [(500 * MS, 0.5), (9000 * MS, 2.5), (None, 2.5)])
def test_an_answer_about_a_window_begins_with_its_oldest_frame(
    opened: Opener, since_ns: int | None, start_s: float
) -> None:
    """A source that went back in time has no frame that is older than the last one."""
    server = opened()
    server.ask()
    (event,) = server.hear(answered(0, frames=3, oldest_frame_ns=since_ns, kept_bytes=77))
    assert isinstance(event, Answer)
    assert (event.start_s, event.end_s, event.frames, event.kept_bytes) == (start_s, 2.5, 3, 77)


def test_an_answer_without_text_has_its_first_token_at_its_end(opened: Opener) -> None:
    server = opened()
    server.ask()
    (event,) = server.hear(answered(0))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 50.0


def test_feedback_follows_its_answer(opened: Opener) -> None:
    server = opened()
    server.ask()
    server.hear(answered(0, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)), arrays=FEEDBACK_ARRAYS)
    assert [type(action) for action in server.actions] == [Served, Answer, Feedback]


def test_without_a_snapshot_a_frame_travels_as_a_copy(opened: Opener) -> None:
    server = opened()
    server.grant()
    packet = whole_frame()
    server.send(packet, "start")
    packet.image[:] = 255
    message, received = server.expect_whole(FramePacketMessage)
    assert (frame_packet(message, received.parts).image == 7).all()


def test_a_frame_lies_in_the_snapshot_where_there_is_one(opened: Opener) -> None:
    writer = SharedFrameWriter()
    try:
        server = opened(snapshot=writer)
        server.grant()
        server.send(whole_frame(), "start")
        message, received = server.expect_whole(FramePacketMessage)
        image = SharedFrameReader(writer.descriptor).read(64, 64)
        assert (frame_packet(message, received.parts, image).image == 7).all()
        assert len(received.parts) == 2
    finally:
        writer.close()


def test_leaving_and_cancelling_are_reported(opened: Opener) -> None:
    server = opened()
    server.client.leave()
    server.expect(Disconnect)
    server.client.leave(cancel=True)
    server.expect(Cancel)
    server.expect(Disconnect)


def test_what_is_still_said_of_a_cancelled_answer_is_ignored(opened: Opener) -> None:
    server = opened()
    assert server.client.cancel_answer(STAMP) is None, "nothing is asked yet"
    server.ask()
    server.hear(AnswerDelta(answer=0, text="half"))
    cut = replace(STAMP, frame_index=9, media_ns=4_000 * MS)
    event = server.client.cancel_answer(cut)
    assert event is not None
    assert (event.answer, event.text, event.by, event.by_frame_index, event.by_pts_s) == (0, "half", "cut", 9, 4.0)
    server.expect(Cancel)
    assert not server.client.busy
    assert server.hear(AnswerDelta(answer=0, text=" more"), answered(0)) == []
    assert server.ask(2) == 1
    assert server.hear(AnswerDelta(answer=1, text="new")) == [AnswerDeltaEvent(answer=1, text="new", pts_s=2.5)]
    assert (server.client.requests.cancelled_answers, server.client.requests.lost_answers) == (1, 0)


@pytest.mark.parametrize("message", [AnswerDelta(answer=1, text="x"), answered(1)])
def test_an_answer_that_was_not_asked_for_is_dropped_and_reported_once(opened: Opener, message: Message) -> None:
    server = opened()
    (reported,) = server.hear(message)
    assert isinstance(reported, Notice)
    assert reported.code == PEER_MISBEHAVES
    assert "the server sent invalid messages, which are dropped" in reported.message
    assert "answer 1, which was not asked for" in reported.message
    assert server.ask() == 0
    assert server.hear(message) == []
    assert server.client.refused_messages == 2
    assert [event.text for event in server.hear(answered(0)) if isinstance(event, Answer)] == ["all of it"]


def test_a_message_of_the_wrong_kind_is_dropped(opened: Opener) -> None:
    (reported,) = opened().hear(FrameCaptured(slot=0, frame_index=0, media_ns=0, capture_ns=0))
    assert isinstance(reported, Notice)
    assert "wrong kind, Frame" in reported.message


@pytest.mark.parametrize("repeat", [True, False])
def test_what_cannot_be_read_spoils_the_open_answer_and_at_last_is_a_failure(opened: Opener, repeat: bool) -> None:
    server = opened(resend_after_loss=repeat)
    for turn in range(1, UNREADABLE_MAX):
        server.ask(turn) if turn == 1 or not repeat else server.expect(TokenPacketMessage)
        server.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))
        assert server.client.busy is repeat
        if repeat:
            server.expect(TurnRequest)
            server.hear(TurnGrant(turn=turn + 1))
    server.ask(UNREADABLE_MAX) if not repeat else server.expect(TokenPacketMessage)
    server.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))
    assert re.search("cannot be read: Expected `str` of length <= 65536", server.of(Failure)[0].reason)


def test_an_answer_has_an_end(opened: Opener) -> None:
    server = opened()
    number, half = server.ask(), "x" * (ANSWER_CHARS_MAX // 2)
    assert len(server.hear(*[AnswerDelta(answer=number, text=half)] * 2)) == 2
    assert misdeeds(server.hear(*[AnswerDelta(answer=number, text="y")] * 10)) == 1
    assert server.client.refused_messages == 10
    assert isinstance(server.hear(answered(number))[0], Answer)


def test_what_teaches_nonsense_is_an_answer_that_teaches_nothing(opened: Opener) -> None:
    server = opened()
    lies = [
        ([[14, 0, 0]], [1.0], STAMP),
        ([[0, -1, 0]], [1.0], STAMP),
        ([[0, 2, 0]], [1.0], STAMP),
        ([[0, 0, 0]], [np.nan], STAMP),
        ([[0, 0, 0]], [1.0], dataclasses.replace(STAMP, frame_index=99)),
    ]
    for turn, (regions, attention, stamp) in enumerate(lies, 1):
        number = server.ask(turn)
        arrays = [np.array(regions, np.int32), np.array(attention, np.float32), np.zeros(1, np.float32)]
        reported = server.hear(answered(number, feedback_stamp=stamp, arrays=specs_of(*arrays)), arrays=arrays)
        assert [event.text for event in reported if isinstance(event, Answer)] == ["all of it"]
        assert server.of(Feedback) == []
    assert server.client.refused_messages == len(lies)


def test_somebody_who_sends_nothing_else_has_failed(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.answer.client.MISDEEDS_MAX", 3)
    server = opened()
    server.hear(AnswerDelta(answer=7, text="x"), AnswerDelta(answer=8, text="x"))
    server.hear(AnswerDelta(answer=9, text="x"))
    assert re.search(r"3 messages in a row were invalid; the last: .* answer 9", server.of(Failure)[0].reason)


@pytest.mark.parametrize("query", ["who are you?", ""])
def test_a_question_that_nobody_put_is_not_taken(opened: Opener, query: str) -> None:
    server = opened()
    assert misdeeds(server.asking(query)) == 1
    assert misdeeds(server.hear(ServerHello(model_id="other", knows_levels=False, known_world=None))) == 0
    assert server.client.refused_messages == 2
    assert server.client.hello is not None
    assert server.client.hello.model_id == "m"


def test_an_answer_to_another_question_spoils_it(opened: Opener) -> None:
    server = opened(resend_after_loss=True)
    number = server.ask()
    assert misdeeds(server.hear(answered(number, query="somebody else's"))) == 1
    assert server.client.busy
    server.expect(TurnRequest)


def test_an_answer_that_is_asked_for_again_is_counted_from_its_beginning(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.answer.request.ANSWER_CHARS_MAX", 4)
    server = opened(reconnect=True, resend_after_loss=True)
    number = server.ask()
    assert [event.text for event in server.hear(AnswerDelta(answer=number, text="abc"))] == ["abc"]  # type: ignore[attr-defined]
    server.lose()
    server.greet()
    server.grant_again(1, TokenPacketMessage)
    assert [event.text for event in server.hear(AnswerDelta(answer=number, text="abc"))] == ["abc"]  # type: ignore[attr-defined]


def test_after_a_loss_the_same_is_asked_again_where_answers_are_waited_for(opened: Opener, clock: FakeClock) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.hear(answered(server.ask()))
    server.ask(2)
    server.hear(AnswerDelta(answer=1, text="half"))
    clock.advance(1_000 * MS)
    server.lose()
    assert server.client.busy
    assert not server.client.ready
    server.greet()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=9))
    message, received = server.expect_whole(TokenPacketMessage)
    assert (message.answer, message.turn) == (1, 9)
    assert token_packet(message, received.parts).stamp == STAMP
    clock.advance(100 * MS)
    (event,) = server.hear(answered(1))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 1_150.0
    assert server.client.requests.lost_answers == 0


def test_after_a_loss_the_open_answer_is_given_up_where_it_would_be_late(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.ask()
    server.lose()
    assert not server.client.busy
    assert server.client.requests.lost_answers == 1
    server.greet()
    server.expect_nothing()
    assert server.ask() == 1


def test_a_loss_while_nothing_is_open_costs_nothing(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.grant()
    server.lose()
    assert server.client.requests.lost_answers == 0
    assert not server.client.may_send
    server.greet()
    assert server.ask() == 0


def test_a_question_that_was_changed_is_the_one_that_is_joined_with_again(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.set_query("who?")
    server.expect(SetQuery)
    server.asking("who?")
    server.lose()
    server.greet("who?")


def test_a_question_that_was_on_its_way_when_the_answer_stage_was_lost_is_put_again(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.set_query("who?")
    server.lose()
    server.greet("what?")
    assert server.expect(SetQuery).query == "who?"
    assert server.asking("who?") == [QueryChanged(query="who?")]


@pytest.mark.parametrize("repeat", [True, False])
def test_a_packet_that_came_too_late_is_sent_again_or_given_up(opened: Opener, repeat: bool) -> None:
    server = opened(resend_after_loss=repeat)
    server.ask(1)
    server.hear(TurnExpired(turn=1))
    assert server.client.requests.lost_answers == (not repeat)
    assert server.client.busy == repeat
    if repeat:
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=2))
        message = server.expect(TokenPacketMessage)
        assert (message.answer, message.turn) == (0, 2)
        (event,) = server.hear(answered(0))
        assert isinstance(event, Answer)
    else:
        server.expect_nothing()
        assert server.ask(2) == 1


def test_another_question_is_put_and_reported_once_it_holds(opened: Opener) -> None:
    server = opened()
    server.client.set_query("who?")
    assert server.expect(SetQuery).query == "who?"
    assert server.asking("who?", value=0.25) == [QueryChanged(query="who?")]
    (embedding,) = server.of(QueryEmbedding)
    assert (embedding.text, embedding.tokens[0, 0]) == ("who?", 0.25)
    server.ask()
    (event,) = server.hear(answered(0, query="who?"))
    assert isinstance(event, Answer)
    assert event.query == "who?"


def test_a_question_before_it_is_ready_is_put_when_it_is(opened: Opener) -> None:
    server = opened(greeted=False)
    server.client.set_query("first?")
    server.client.set_query("who?")
    server.greet()
    assert server.expect(SetQuery).query == "who?"
    server.expect_nothing()
    assert server.asking("who?") == [QueryChanged(query="who?")]


def test_the_question_that_is_asked_already_may_be_put_again(opened: Opener) -> None:
    server = opened()
    server.client.set_query("what?")
    server.expect(SetQuery)
    assert server.asking() == [QueryChanged(query="what?")]


def test_a_question_that_is_refused_is_reported_and_changes_nothing(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.set_query("who?")
    refused = QueryAccepted(query="who?", model_id="m", error="too long")
    assert server.hear(refused) == [QueryChanged(query="who?", error="too long")]
    assert server.of(QueryEmbedding) == []
    server.lose()
    server.greet("what?")


def test_an_answer_is_reported_with_the_question_that_it_answers(opened: Opener) -> None:
    """A packet that was sent behind a question is answered before that question is known to hold."""
    server = opened()
    server.grant()
    server.client.set_query("who?")
    server.send(tokens(), "start")
    (event,) = server.hear(answered(0, query="who?"))
    assert isinstance(event, Answer)
    assert event.query == "who?"


def test_answers_are_kept_with_what_they_taught(opened: Opener) -> None:
    journal = FakeJournal()
    server = opened(journal=journal)
    server.ask(1)
    events = server.hear(answered(0, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)), arrays=FEEDBACK_ARRAYS)
    server.ask(2)
    events += server.hear(answered(1))
    assert [kept for kept, _ in journal.appended] == events
    first, second = (feedback for _, feedback in journal.appended)
    assert first is not None
    np.testing.assert_array_equal(first.attention, FEEDBACK.attention)
    assert second is None


def test_an_answer_of_an_earlier_run_is_reported_and_learnt_from_without_asking(opened: Opener) -> None:
    old = answer(0)
    journal = FakeJournal(JournalEntry(old, FEEDBACK))
    server = opened(journal=journal)
    now = FrameStamp(5, 2_500 * MS, 100 * MS, epoch=99)
    *events, feedback = server.client.requests.recall(now)
    assert events == [AnswerDeltaEvent(answer=0, text="of old", pts_s=2.5), old]
    assert isinstance(feedback, Feedback)
    assert feedback.stamp == now
    server.expect_nothing()
    assert server.client.requests.recall(now) == []
    assert server.ask() == 1
    server.hear(answered(1))
    assert [kept.answer for kept, _ in journal.appended] == [1]


def test_an_answer_may_have_taught_nothing(opened: Opener) -> None:
    server = opened(journal=FakeJournal(JournalEntry(answer(0), None)))
    assert [type(event) for event in server.client.requests.recall(STAMP)] == [AnswerDeltaEvent, Answer]


def test_without_a_journal_nothing_is_recalled(opened: Opener) -> None:
    assert opened().client.requests.recall(STAMP) == []


def test_a_reply_to_the_question_before_a_greeting_is_a_failure(opened: Opener) -> None:
    server = opened(greeted=False)
    server.asking()
    assert re.search("accepted a question before it named its model", server.of(Failure)[0].reason)


def test_a_refused_reply_to_the_first_question_is_not_awaited(opened: Opener) -> None:
    server = opened(greeted=False)
    server.hear(HELLO)
    server.asking(value=np.nan)
    (failure,) = server.of(Failure)
    assert re.search(r"its reply to the question cannot be used: .*number", failure.reason)
    assert "\n" not in failure.reason


def test_first_messages_that_cannot_be_read_are_a_failure(opened: Opener) -> None:
    server = opened(greeted=False)
    server.hear(ServerHello(model_id="m" * 2000, knows_levels=False, known_world=None))
    assert re.search("its first messages cannot be used: ", server.of(Failure)[0].reason)


def test_a_refused_reply_to_another_question_leaves_the_one_in_force(opened: Opener) -> None:
    server = opened()
    server.client.set_query("who?")
    events = server.asking("who?", np.nan)
    assert misdeeds(events) == 1
    (change,) = [event for event in events if isinstance(event, QueryChanged)]
    assert change.query == "who?"
    assert change.error is not None
    assert "cannot be used" in change.error
    assert server.client.ready
    server.client.set_query("when?")
    assert [event.error for event in server.asking("when?") if isinstance(event, QueryChanged)] == [None]


def test_an_answer_is_known_after_many_questions_that_were_put_meanwhile(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    later = [f"and {index}?" for index in range(20)]
    for query in later:
        server.client.set_query(query)
    assert misdeeds(server.asking(later[0])) == 0
    events = server.hear(answered(number))
    assert [type(event) for event in events] == [Answer]
    assert server.client.refused_messages == 0


def on_device() -> TokenPacket:
    """A packet whose pixels are a tensor."""
    packet = tokens()
    return replace(packet, pixels=torch.from_numpy(packet.host_pixels.copy()))


@pytest.mark.parametrize("takes", [True, False])
def test_pixels_on_a_device_go_beside_the_message_where_the_server_takes_them(opened: Opener, takes: bool) -> None:
    shared, packet = LocalPixels(), on_device()
    server = opened(greeted=False, pixels=shared)
    assert server.expect(Connect).pixels_at == PixelPlace()
    server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None, takes_device_pixels=takes))
    server.asking()
    server.grant()
    server.client.send_glance(packet, server.clock.now_ns())
    message, received = server.expect_whole(GlancePacketMessage)
    assert (message.pixels_at is not None, len(received.parts)) == (takes, 2 if takes else 3)
    arrived = token_packet(message, received.parts, shared.take)
    assert isinstance(arrived.pixels, torch.Tensor) is takes
    np.testing.assert_array_equal(arrived.host_pixels, packet.host_pixels)


def test_why_pixels_are_copied_is_said_once(opened: Opener) -> None:
    hello = ServerHello(model_id="m", knows_levels=False, known_world=None, pixels_refused="another GPU")
    server = opened(greeted=False, pixels=LocalPixels(), reconnect=True)
    notices = []
    for _ in range(2):
        server.hear()
        server.expect(Connect)
        notices += server.hear(hello)
        server.asking()
        server.lose()
    assert [event.code for event in notices if isinstance(event, Notice)] == [PIXELS_COPIED]
    assert "by way of host memory: another GPU; --single-process" in str(notices[0])


def test_pixels_in_host_memory_go_in_the_message(opened: Opener) -> None:
    server = opened(greeted=False, pixels=LocalPixels())
    server.expect(Connect)
    server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None, takes_device_pixels=True))
    server.asking()
    server.grant()
    server.send(tokens(), "start")
    assert server.expect(TokenPacketMessage).pixels_at is None


class UnsharedPixels(LocalPixels):
    """Of a driver that shares no memory."""

    def offer(self) -> PixelPlace:
        raise DeviceLost("the GPU failed in cuIpcGetMemHandle")


def test_a_device_that_shares_no_memory_is_said_once(opened: Opener) -> None:
    server = opened(greeted=False, pixels=UnsharedPixels(), reconnect=True)
    notices = []
    for _ in range(2):
        notices += server.hear()
        assert server.expect(Connect).pixels_at is None
        notices += server.hear(HELLO)
        notices += server.lose()
    assert [event.code for event in notices if isinstance(event, Notice)].count(PIXELS_COPIED) == 1


def test_an_answer_that_the_server_lost_is_told_and_the_next_one_asked_for(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    (told,) = server.hear(RequestLost(answer=number, reason="no reply within 10 s"))
    assert isinstance(told, Notice)
    assert told.code == ANSWERS_LOST
    assert told.message == "an answer was lost: no reply within 10 s; going on with the newest frame"
    assert not server.client.busy
    assert server.client.requests.lost_answers == 1
    server.hear(answered(server.ask(turn=2)))
    assert server.client.requests.lost_answers == 1


def test_where_no_answer_is_left_out_a_lost_one_is_asked_for_again_a_few_times(opened: Opener) -> None:
    server = opened(resend_after_loss=True)
    number = server.ask()
    for turn in range(2, REPEATS_MAX + 2):
        (told,) = server.hear(RequestLost(answer=number, reason="gone"))
        assert isinstance(told, Notice)
        assert told.message.endswith("asking again")
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=turn))
        assert server.expect(TokenPacketMessage).answer == number
    (told,) = server.hear(RequestLost(answer=number, reason="gone"))
    assert isinstance(told, Notice)
    assert told.message.endswith("going on with the newest frame")
    assert not server.client.busy
    assert server.client.requests.lost_answers == 1


def test_a_cancelled_answer_that_is_lost_is_not_told(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    server.client.cancel_answer(replace(STAMP, frame_index=9))
    assert server.hear(RequestLost(answer=number, reason="gone")) == []
    assert server.client.requests.lost_answers == 0


def test_a_loss_of_what_was_not_asked_for_is_refused(opened: Opener) -> None:
    server = opened()
    assert misdeeds(server.hear(RequestLost(answer=3, reason="gone"))) == 1


def test_what_a_model_says_of_itself_is_passed_on(opened: Opener) -> None:
    server = opened()
    reply = msgspec.structs.replace(answered(server.ask()), notice="it counts 300 tokens")
    assert server.hear(reply)[1:] == [Notice(code=MODEL_NOTICE, message="it counts 300 tokens")]
