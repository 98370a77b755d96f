"""Client of the answer protocol: actions on messages and losses, and refused messages. No socket, no wait."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ContextLengthError, DeviceLost, OptionError
from arr_coc.types import Feedback, FrameStamp
from stream.answer.client import MODEL_NOTICE, PIXELS_COPIED, UNREADABLE_MAX, Failure, Progress
from stream.answer.embeddings import KEPT, EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.filters import RecalledAnswer
from stream.answer.request import REPEATS_MAX, ServerReady
from stream.errors import StageDied
from stream.events import (
    ANSWERS_LOST,
    PEER_MISBEHAVES,
    Answer,
    AnswerDeltaEvent,
    AnswerUnchanged,
    Detection,
    Detections,
    Notice,
    YesNoResult,
)
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_packet, specs_of, token_packet
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    AnswerDelta,
    Cancel,
    Connect,
    Disconnect,
    Embed,
    Embedded,
    FrameCaptured,
    FramePacketMessage,
    GlancePacketMessage,
    Message,
    PixelPlace,
    RequestLost,
    ServerHello,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.untrusted import ANSWER_CHARS_MAX
from tests.support.answer_client import (
    FEEDBACK,
    FEEDBACK_ARRAYS,
    GRID,
    HELLO,
    MS,
    STAMP,
    ClientFixture,
    FakeJournal,
    Opener,
    answer,
    answered,
    checks_of,
    client_options,
    misdeeds,
    tokens,
    whole_frame,
)
from tests.support.clock import FakeClock
from tests.support.events import make_answer_reply, make_yes_no_reply


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(150 * MS)


@pytest.fixture
def opened(clock: FakeClock) -> Opener:
    """Factory of one client with the given options, admitted by the server."""

    def opening(*, greeted: bool = True, **options: Any) -> ClientFixture:
        server = ClientFixture(clock, client_options(**options))
        if greeted:
            assert server.greet() == []
        return server

    return opening


def test_a_check_alone_ends_its_turn_and_has_no_number(opened: Opener, clock: FakeClock) -> None:
    server = opened(watches=("is it there?",))
    server.grant()
    server.send(tokens(), "", wants_answer=False, checks=checks_of("is it there?"))
    message = server.expect(TokenPacketMessage)
    question = message.question
    assert (message.answer, question.wants_answer, question.checks) == (0, False, ("is it there?",))
    clock.advance(50 * MS)
    (event,) = server.events(YesNoResult, make_yes_no_reply(0))
    assert event.timing is not None
    assert (event.frame_index, event.pts_s, event.trigger, event.question) == (5, 2.5, "change", "is it there?")
    assert (event.yes, event.certain, event.holds) == (0.75, 0.5, None)
    assert (event.tokens_used, event.tokens_total, event.timing.total_ms) == (2, 4, 100.0)
    assert not server.client.busy
    assert server.ask(turn=2) == 0


def test_a_check_beside_an_answer_leaves_it_open(opened: Opener) -> None:
    server = opened(watches=("is it there?",))
    assert server.ask() == 0
    assert len(server.hear(make_yes_no_reply(0))) == 1
    assert server.client.busy
    assert len(server.hear(answered(0))) == 1
    assert not server.client.busy


def test_a_check_that_is_repeated_with_its_request_is_reported_once(opened: Opener) -> None:
    server = opened(watches=("is it there?",), reconnect=True, resend_after_loss=True)
    server.ask()
    assert len(server.hear(make_yes_no_reply(0))) == 1
    server.lose()
    server.greet()
    assert server.grant_again(1, TokenPacketMessage).question.wants_answer
    assert server.hear(make_yes_no_reply(0)) == []
    assert len(server.hear(answered(0))) == 1


def test_a_check_may_have_feedback(opened: Opener) -> None:
    server = opened(watches=("is it there?",))
    server.ask()
    server.hear(make_yes_no_reply(0, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)), arrays=FEEDBACK_ARRAYS)
    (feedback,) = server.of(Feedback)
    assert feedback.stamp == STAMP


@pytest.mark.parametrize(("watches", "number"), [((), 0), (("is it there?",), 1), (("is it?", "was it?"), 0)])
def test_a_check_that_was_not_asked_for_is_refused(opened: Opener, watches: tuple[str, ...], number: int) -> None:
    server = opened(watches=watches)
    server.ask()
    assert misdeeds(server.hear(make_yes_no_reply(number))) == 1
    assert server.client.busy


def key(text: str, *, is_check: bool = False) -> QuestionKey:
    return QuestionKey(text, is_check)


def test_it_is_ready_when_the_required_questions_are_embedded(opened: Opener) -> None:
    server = opened(
        greeted=False, watches=("is it there?", "is it gone?"), schema=AnswerSchema.parse('{"n": "integer"}')
    )
    assert server.expect(Connect) == Connect()
    server.hear(HELLO)
    schemas = [message.schema is None for message, _ in server.client.outbox if isinstance(message, Embed)]
    assert schemas == [False, True, True]
    server.embed(0.5)
    server.embed(unseen_words=("there",))
    assert not server.client.ready
    server.embed()
    assert server.of(ServerReady) == [ServerReady()]
    assert (server.client.ready, server.client.hello) == (True, HELLO)
    embedding = server.client.embeddings[key("what?")].embedding
    assert (embedding.text, embedding.model_id, embedding.tokens[0, 0]) == ("what?", "m", 0.5)
    assert server.client.embeddings[key("is it there?", is_check=True)].unseen_words == ("there",)
    server.expect_nothing()


def test_an_embedding_is_asked_for_once(opened: Opener) -> None:
    server = opened()
    assert server.client.embed(key("who?")) is None
    assert server.client.embed(key("who?")) is None
    server.embed(0.5)
    (embedded,) = server.of(EmbeddedQuestion)
    assert (embedded.key, embedded.embedding.tokens[0, 0]) == (key("who?"), 0.5)
    assert server.client.embed(key("who?")) == embedded
    server.expect_nothing()
    assert server.client.embed(key("who?", is_check=True)) is None, "a check has other words that are unseen"
    assert server.expect(Embed).is_check


def test_a_question_that_is_refused_is_reported_and_asked_for_again(opened: Opener) -> None:
    server = opened()
    server.client.embed(key("who?"))
    server.embed(error="ContextLengthError", reason="too long")
    assert server.of(RefusedQuestion) == [RefusedQuestion(key("who?"), "too long")]
    server.client.embed(key("who?"))
    assert server.expect(Embed).text == "who?"


@pytest.mark.parametrize(
    ("error", "kind"), [("ContextLengthError", ContextLengthError), ("ArithmeticError", StageDied)]
)
def test_a_required_question_that_is_refused_is_a_failure(opened: Opener, error: str, kind: type[Exception]) -> None:
    server = opened(greeted=False)
    server.expect(Connect)
    server.hear(HELLO)
    server.embed(error=error, reason="too long")
    (failure,) = server.of(Failure)
    assert failure.reason == "too long"
    assert isinstance(failure.error, kind)


def test_a_server_of_another_encoding_is_a_failure(opened: Opener) -> None:
    server = opened(greeted=False)
    server.hear(msgspec.structs.replace(HELLO, encode="prune"))
    (failure,) = server.of(Failure)
    assert failure.reason == (
        "the answer server encodes prune, not sparse; give --encode prune here, or start it with --encode sparse"
    )
    assert isinstance(failure.error, OptionError)


def test_embeddings_that_are_no_longer_required_are_forgotten_one_day(opened: Opener) -> None:
    server = opened()
    for number in range(KEPT + 1):
        server.client.embed(key(f"{number}?"))
        server.embed()
    embeddings = server.client.embeddings
    assert [embeddings.get(key(text)) is None for text in ("0?", "1?", "what?")] == [True, False, False]


def test_a_turn_is_requested_once_and_only_of_a_server_that_is_ready(opened: Opener) -> None:
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


def test_latencies_of_an_answer_count_from_its_frames_capture(opened: Opener, clock: FakeClock) -> None:
    server = opened()
    server.ask(trigger="cut")
    clock.advance(50 * MS)
    assert server.hear(AnswerDelta(answer=0, text="all")) == [AnswerDeltaEvent(answer=0, text="all", pts_s=2.5)]
    clock.advance(300 * MS)
    server.hear(AnswerDelta(answer=0, text=" of it"))
    clock.advance(25 * MS)
    (event,) = server.events(Answer, answered(0))
    assert event.timing is not None
    assert (event.timing.ttft_ms, event.timing.total_ms) == (100.0, 425.0)
    assert (event.frame_index, event.pts_s, event.start_s, event.end_s) == (5, 2.5, 2.5, 2.5)
    assert (event.trigger, event.query, event.tokens_used, event.tokens_total) == ("cut", "what?", 2, 4)
    assert (event.frames, event.kept_bytes) == (1, 0)
    assert not server.client.busy


@pytest.mark.parametrize(("since_ns", "start_s"), [(500 * MS, 0.5), (9000 * MS, 2.5), (None, 2.5)])
def test_an_answer_about_several_frames_begins_with_its_oldest(
    opened: Opener, since_ns: int | None, start_s: float
) -> None:
    """After a source went back in time, no frame is older than the last one."""
    server = opened()
    (event,) = server.events(Answer, answered(server.ask(), frames=3, oldest_frame_ns=since_ns, kept_bytes=77))
    assert (event.start_s, event.end_s, event.frames, event.kept_bytes) == (start_s, 2.5, 3, 77)


def test_an_answer_without_text_has_its_first_token_at_its_end(opened: Opener) -> None:
    server = opened()
    (event,) = server.events(Answer, answered(server.ask()))
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 50.0


def test_feedback_follows_its_answer(opened: Opener) -> None:
    server = opened()
    server.hear(answered(server.ask(), feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)), arrays=FEEDBACK_ARRAYS)
    assert [type(action) for action in server.actions] == [Progress, Answer, Feedback]


def test_without_a_snapshot_a_frame_is_sent_as_a_copy(opened: Opener) -> None:
    server = opened()
    server.grant()
    packet = whole_frame()
    server.send(packet, "start")
    packet.image[:] = 255
    message, received = server.expect_whole(FramePacketMessage)
    assert (frame_packet(message, received.parts).image == 7).all()


def test_a_frame_is_written_to_the_snapshot_if_there_is_one(opened: Opener) -> None:
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


def test_late_replies_of_a_cancelled_answer_are_ignored(opened: Opener) -> None:
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


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (AnswerDelta(answer=1, text="x"), "answer 1, which was not asked for"),
        (answered(1), "answer 1, which was not asked for"),
        (RequestLost(answer=1, reason="gone"), "answer 1, which was not asked for"),
        (FrameCaptured(slot=0, frame_index=0, media_ns=0, capture_ns=0), "wrong kind, FrameCaptured"),
    ],
)
def test_a_message_that_a_server_may_not_send_is_dropped_and_the_first_one_reported(
    opened: Opener, message: Message, reason: str
) -> None:
    server = opened()
    (notice,) = server.events(Notice, message)
    assert notice.code == PEER_MISBEHAVES
    assert "the server sent invalid messages, which are dropped" in notice.message
    assert reason in notice.message
    assert server.ask() == 0
    assert server.hear(message) == []
    assert server.client.refused_messages == 2
    assert [event.text for event in server.events(Answer, answered(0))] == ["all of it"]


@pytest.mark.parametrize("resends", [True, False])
def test_an_unreadable_message_spoils_the_open_answer_and_several_are_a_failure(opened: Opener, resends: bool) -> None:
    server = opened(resend_after_loss=resends)
    server.ask()
    for turn in range(2, UNREADABLE_MAX + 1):
        server.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))
        assert server.client.busy is resends
        server.grant_again(turn, TokenPacketMessage) if resends else server.ask(turn)
    server.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))
    assert "cannot be read: Expected `str` of length <= 65536" in server.of(Failure)[0].reason


def test_the_length_of_an_answer_is_limited(opened: Opener) -> None:
    server = opened()
    number, half = server.ask(), "x" * (ANSWER_CHARS_MAX // 2)
    assert len(server.hear(*[AnswerDelta(answer=number, text=half)] * 2)) == 2
    assert misdeeds(server.hear(*[AnswerDelta(answer=number, text="y")] * 10)) == 1
    assert server.client.refused_messages == 10
    assert isinstance(server.hear(answered(number))[0], Answer)


def test_unusable_feedback_is_dropped_and_its_answer_is_not(opened: Opener) -> None:
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


def test_a_server_that_sends_only_invalid_messages_has_failed(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.answer.client.MISDEEDS_MAX", 3)
    server = opened()
    server.hear(*(AnswerDelta(answer=number, text="x") for number in (7, 8, 9)))
    assert re.search(r"3 messages in a row were invalid; the last: .* answer 9", server.of(Failure)[0].reason)


def test_an_embedding_that_was_not_asked_for_and_a_second_hello_are_refused(opened: Opener) -> None:
    server = opened()
    assert misdeeds(server.hear(Embedded(text="who?", is_check=False, model_id="m"))) == 1
    assert misdeeds(server.hear(ServerHello(model_id="other", knows_levels=False, known_world=None))) == 0
    assert server.client.refused_messages == 2
    assert server.client.hello == HELLO


def test_the_length_of_an_answer_that_is_sent_again_counts_from_its_beginning(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.answer.request.ANSWER_CHARS_MAX", 4)
    server = opened(reconnect=True, resend_after_loss=True)
    delta = AnswerDelta(answer=server.ask(), text="abc")
    assert [event.text for event in server.events(AnswerDeltaEvent, delta)] == ["abc"]
    server.lose()
    server.greet()
    server.grant_again(1, TokenPacketMessage)
    assert [event.text for event in server.events(AnswerDeltaEvent, delta)] == ["abc"]


def test_after_a_loss_the_same_packet_is_sent_again_with_resend_after_loss(opened: Opener, clock: FakeClock) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.hear(answered(server.ask()))
    server.ask(2)
    server.hear(AnswerDelta(answer=1, text="half"))
    clock.advance(1_000 * MS)
    server.lose()
    assert server.client.busy
    assert not server.client.ready
    server.greet()
    message = server.grant_again(9, TokenPacketMessage)
    assert (message.answer, message.turn, message.stamp) == (1, 9, STAMP)
    clock.advance(100 * MS)
    (event,) = server.events(Answer, answered(1))
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 1_150.0
    assert server.client.requests.lost_answers == 0


def test_after_a_loss_the_open_answer_is_dropped_if_it_would_be_late(opened: Opener) -> None:
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


def test_after_a_loss_the_required_and_the_awaited_questions_are_asked_for(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.embed(key("who?"))
    server.client.embeddings.require("where?", ())
    server.lose()
    server.greet("where?")
    assert server.client.embeddings.is_any_awaited
    server.embed()
    (embedded,) = server.of(EmbeddedQuestion)
    assert embedded.key == key("who?")


@pytest.mark.parametrize("resends", [True, False])
def test_a_packet_that_came_too_late_is_sent_again_or_dropped(opened: Opener, resends: bool) -> None:
    server = opened(resend_after_loss=resends)
    server.ask(1)
    server.hear(TurnExpired(turn=1))
    assert server.client.requests.lost_answers == (not resends)
    assert server.client.busy == resends
    if resends:
        message = server.grant_again(2, TokenPacketMessage)
        assert (message.answer, message.turn) == (0, 2)
        assert len(server.events(Answer, answered(0))) == 1
    else:
        server.expect_nothing()
        assert server.ask(2) == 1


def test_an_answer_is_reported_with_its_question(opened: Opener) -> None:
    server = opened()
    server.grant()
    server.send(tokens(), text="who?")
    assert server.expect(TokenPacketMessage).question.text == "who?"
    (event,) = server.events(Answer, answered(0))
    assert event.query == "who?"


def test_answers_are_kept_with_their_feedback(opened: Opener) -> None:
    journal = FakeJournal()
    server = opened(journal=journal)
    server.ask(1)
    events = server.hear(answered(0, feedback_stamp=STAMP, arrays=specs_of(*FEEDBACK_ARRAYS)), arrays=FEEDBACK_ARRAYS)
    server.ask(2)
    events += server.hear(answered(1))
    assert journal.points == events
    first, second = (kept.feedback for kept in journal.kept)
    assert first is not None
    np.testing.assert_array_equal(first.attention, FEEDBACK.attention)
    assert second is None


def test_an_answer_of_an_earlier_run_is_recalled_without_asking(opened: Opener) -> None:
    old = [answer(0), answer(1)]
    journal = FakeJournal(RecalledAnswer(old[0], FEEDBACK), RecalledAnswer(old[1], None))
    server = opened(journal=journal)
    now = FrameStamp(5, 2_500 * MS, 100 * MS, epoch=99)
    *events, feedback = server.client.requests.recall(now)
    assert events == [AnswerDeltaEvent(answer=0, text="of old", pts_s=2.5), old[0]]
    assert isinstance(feedback, Feedback)
    assert feedback.stamp == now
    assert server.client.requests.recall(now)[1:] == [old[1]]
    server.expect_nothing()
    assert server.client.requests.recall(now) == []
    server.hear(answered(server.ask()))
    assert [point.answer for point in journal.points] == [2]
    assert opened().client.requests.recall(now) == []


def test_an_answer_with_boxes_is_followed_by_detections_which_are_kept_and_recalled(opened: Opener) -> None:
    journal = FakeJournal()
    server = opened(journal=journal)
    text = '[{"bbox_2d": [250, 500, 500, 1000], "label": "cat"}]'
    reply, detections = server.hear(make_answer_reply(server.ask(), text, extent=(1000.0, 1000.0)))[-2:]
    assert isinstance(reply, Answer)
    assert isinstance(detections, Detections)
    assert (detections.answer, detections.frame_index, detections.pts_s) == (
        reply.answer,
        reply.frame_index,
        reply.pts_s,
    )
    assert (detections.width_px, detections.height_px) == (GRID.width_px, GRID.height_px)
    assert detections.objects == [Detection(label="cat", box=[16.0, 32.0, 32.0, 64.0])]
    assert [kept.events for kept in journal.kept] == [[detections]]
    next_run = opened(journal=FakeJournal(RecalledAnswer(reply, None, events=(detections,))))
    assert next_run.client.requests.recall(STAMP)[1:] == [reply, detections]


def test_the_same_boxes_again_are_no_news(opened: Opener) -> None:
    server = opened(same_above=0.5)
    text = '[{"bbox_2d": [250, 500, 500, 1000], "label": "cat"}]'
    for turn, kinds in ((1, [Answer, Detections]), (2, [AnswerUnchanged])):
        number = server.ask(turn, "every")
        events = server.hear(make_answer_reply(number, text, extent=(1000.0, 1000.0), same=0.9))
        assert [type(event) for event in events if not isinstance(event, AnswerDeltaEvent)] == kinds


def test_an_extent_that_is_no_size_is_refused(opened: Opener) -> None:
    server = opened()
    events = server.hear(make_answer_reply(server.ask(), "[]", extent=(0.0, 1000.0)))
    assert misdeeds(events) == 1


def test_first_messages_that_cannot_be_used_are_a_failure(opened: Opener) -> None:
    server = opened(greeted=False)
    server.expect(Connect)
    server.embed()
    assert "embedded a question before it named its model" in server.of(Failure)[0].reason
    server = opened(greeted=False)
    server.hear(msgspec.structs.replace(HELLO, model_id="m" * 2000))
    assert server.of(Failure)[0].reason.startswith("its first messages cannot be used: ")
    server = opened(greeted=False)
    server.expect(Connect)
    server.hear(HELLO)
    server.embed(np.nan)
    (failure,) = server.of(Failure)
    assert re.fullmatch(r"its reply to the question cannot be used: .*(number|NaN).*", failure.reason)


def test_an_unusable_reply_to_another_question_refuses_that(opened: Opener) -> None:
    server = opened()
    server.client.embed(key("who?"))
    assert misdeeds(server.embed(np.nan)) == 1
    (refused,) = server.of(RefusedQuestion)
    assert "cannot be used" in refused.error
    assert server.client.ready


@pytest.mark.parametrize(("takes", "on_device"), [(True, True), (False, True), (True, False)])
def test_pixels_on_a_device_go_beside_the_message_if_the_server_takes_them(
    opened: Opener, takes: bool, on_device: bool
) -> None:
    shared, packet = LocalPixels(), tokens()
    if on_device:
        packet = replace(packet, pixels=torch.from_numpy(packet.host_pixels.copy()))
    server = opened(greeted=False, pixels=shared)
    assert server.expect(Connect).pixels_at == PixelPlace()
    server.hear(msgspec.structs.replace(HELLO, takes_device_pixels=takes))
    server.embed()
    server.grant()
    server.client.send_glance(packet, "what?", server.clock.now_ns())
    message, received = server.expect_whole(GlancePacketMessage)
    beside = takes and on_device
    assert (message.pixels_at is not None, len(received.parts)) == (beside, 2 if beside else 3)
    arrived = token_packet(message, received.parts, shared.take)
    assert isinstance(arrived.pixels, torch.Tensor) is beside
    np.testing.assert_array_equal(arrived.host_pixels, packet.host_pixels)


class UnsharedPixels(LocalPixels):
    """Pixel sender of a driver that cannot share memory."""

    def offer(self) -> PixelPlace:
        raise DeviceLost("another GPU")


@pytest.mark.parametrize(
    ("pixels", "hello"),
    [(LocalPixels(), msgspec.structs.replace(HELLO, pixels_refused="another GPU")), (UnsharedPixels(), HELLO)],
)
def test_the_reason_that_pixels_are_copied_is_reported_once(
    opened: Opener, pixels: LocalPixels, hello: ServerHello
) -> None:
    server = opened(greeted=False, pixels=pixels, reconnect=True)
    (notice,) = server.greet(hello=hello)
    assert isinstance(notice, Notice)
    assert notice.code == PIXELS_COPIED
    assert "by way of host memory: another GPU; --single-process" in notice.message
    server.lose()
    assert server.greet(hello=hello) == []


def test_an_answer_that_the_server_lost_is_reported_and_requested_again_a_few_times(
    opened: Opener,
) -> None:
    for resends in (False, True):
        server = opened(resend_after_loss=resends)
        number = server.ask()
        message = RequestLost(answer=number, reason="no reply within 10 s")
        for turn in range(REPEATS_MAX if resends else 0):
            (notice,) = server.events(Notice, message)
            assert notice.message.endswith("asking again")
            assert server.grant_again(turn + 2, TokenPacketMessage).answer == number
        (notice,) = server.events(Notice, message)
        assert notice.code == ANSWERS_LOST
        assert notice.message == "an answer was lost: no reply within 10 s; going on with the newest frame"
        assert not server.client.busy
        assert server.client.requests.lost_answers == 1
        server.hear(answered(server.ask(turn=9)))
        assert server.client.requests.lost_answers == 1


def test_a_cancelled_answer_that_is_lost_is_not_reported(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    server.client.cancel_answer(replace(STAMP, frame_index=9))
    assert server.hear(RequestLost(answer=number, reason="gone")) == []
    assert server.client.requests.lost_answers == 0


def test_the_notice_of_a_model_is_passed_on(opened: Opener) -> None:
    server = opened()
    reply = msgspec.structs.replace(answered(server.ask()), notice="it counts 300 tokens")
    assert server.hear(reply)[1:] == [Notice(code=MODEL_NOTICE, message="it counts 300 tokens")]
