"""Client of the answer protocol: actions on messages and losses, and refused messages. No socket, no wait."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ContextLengthError, DeviceLost, OptionError
from arr_coc.types import Feedback, FrameStamp
from stream.answer.client import MODEL_NOTICE, PIXELS_COPIED, AnswerClient, ClientPhase, Progress
from stream.answer.embeddings import KEPT, EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.filters import RecalledAnswer
from stream.answer.request import REPEATS_MAX, ServerReady
from stream.errors import StageDied
from stream.events import (
    ANSWERS_LOST,
    PEER_MISBEHAVES,
    Answer,
    AnswerCancelled,
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
from stream.untrusted import ANSWER_CHARS_MAX, MISDEEDS_MAX
from tests.support.answer_client import (
    FEEDBACK,
    FEEDBACK_ARRAYS,
    GREETED,
    GRID,
    HELLO,
    LOSES_SERVER,
    MISBEHAVES,
    MS,
    PIECE,
    REQUESTS_TURN,
    RESENDS,
    SILENT,
    STAMP,
    ClientFixture,
    ClientStep,
    FakeJournal,
    Opener,
    acted,
    after,
    answer,
    answered,
    asks,
    asks_again,
    checks_of,
    client_options,
    delta,
    does,
    embeds,
    failed,
    has,
    hear,
    play,
    sent,
    tokens,
    whole_frame,
)
from tests.support.clock import FakeClock
from tests.support.events import make_answer_reply, make_glance_reply, make_overview, make_yes_no_reply
from tests.support.scripts import Like, Script, case, cases, check, like


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


OTHER_ENCODING = (
    "the answer server encodes prune, not sparse; give --encode prune here, or start it with --encode sparse"
)
CUT = replace(STAMP, frame_index=9, media_ns=4_000 * MS)
CANCELLED = {"answer": 0, "text": "half", "by": "cut", "by_frame_index": 9, "by_pts_s": 4.0}


def cancels(expected: object) -> ClientStep:
    """A new shot cancels the answer, of which this event comes."""
    return lambda server: check(server.client.cancel_answer(CUT), expected)


def feedback_at(column: int, row: int, level: int, attention: float = 1.0) -> list[np.ndarray]:
    """Arrays of a feedback about one region."""
    region = np.array([[column, row, level]], np.int32)
    return [region, np.array([attention], np.float32), np.zeros(1, np.float32)]


WATCHES = ("is it there?",)
CHECKS = checks_of(*WATCHES)
YES_NO = make_yes_no_reply(0)
CHECKED = {"trigger": "change", "question": "is it there?", "yes": 0.75, "certain": 0.5, "holds": None}
SPOILT = delta(0, "x" * (ANSWER_CHARS_MAX + 1))
"""A piece of an answer that is too long to be read."""
HALF = delta(0, "x" * (ANSWER_CHARS_MAX // 2))
OF_FRAME = {"frame_index": 5, "pts_s": 2.5, "tokens_used": 2, "tokens_total": 4}
WITH_FEEDBACK = {"feedback_stamp": STAMP, "arrays": specs_of(*FEEDBACK_ARRAYS)}
BOXES = '[{"bbox_2d": [250, 500, 500, 1000], "label": "cat"}]'
SAME = {"extent": (1000.0, 1000.0), "same": 0.9}
LOST_ANSWER = RequestLost(answer=0, reason="no reply within 10 s")


def lost(count: int) -> ClientStep:
    """Compare how many answers were lost."""
    return has(requests={"lost_answers": count})


def is_lost(next_step: str) -> Like:
    return like(Notice, code=ANSWERS_LOST, message=f"an answer was lost: no reply within 10 s; {next_step}")


def timed(ttft_ms: float, total_ms: float, **fields: object) -> Like:
    """An answer with these latencies."""
    return like(Answer, timing={"ttft_ms": ttft_ms, "total_ms": total_ms}, **fields)


@cases(
    case(
        "a turn is requested once, of a server that is ready, and allows one packet",
        [REQUESTS_TURN, GREETED, REQUESTS_TURN, REQUESTS_TURN, sent(TurnRequest), SILENT, has(may_send=False)],
        [hear(TurnGrant(turn=4)), has(may_send=True), REQUESTS_TURN, SILENT, lambda server: server.send(tokens())],
        [has(may_send=False, busy=True), sent(like(TokenPacketMessage, answer=0, turn=4, stamp=STAMP))],
        greeted=False,
    ),
    case(
        "answers are numbered",
        *([asks(number, turn=number), hear(answered(number), Answer)] for number in range(3)),
    ),
    case(
        "latencies of an answer count from the capture of its frame",
        [asks(0, trigger="cut"), after(50), hear(delta(0, "all"), PIECE(answer=0, text="all", pts_s=2.5))],
        [after(300), hear(delta(0, " of it"), PIECE), after(25)],
        [hear(answered(0), timed(100.0, 425.0, trigger="cut", frame_index=5, pts_s=2.5, start_s=2.5, end_s=2.5))],
        [has(busy=False)],
    ),
    case(
        "the wait for a turn is reported",
        [REQUESTS_TURN, sent(TurnRequest), after(20), hear(TurnGrant(turn=1)), lambda server: server.send(tokens())],
        [sent(TokenPacketMessage), hear(answered(0), like(Answer, timing={"turn_ms": 20.0}))],
    ),
    case(
        "an answer names its question and its costs",
        [asks(0), hear(answered(0), like(Answer, query="what?", frames=1, kept_bytes=0, **OF_FRAME))],
        [lambda server: server.grant(2), lambda server: server.send(tokens(), text="who?")],
        [sent(like(TokenPacketMessage, question={"text": "who?"})), hear(answered(1), like(Answer, query="who?"))],
    ),
    *(
        case(
            f"an answer about several frames begins with its oldest, which is no newer than the last: {since_ns}",
            [asks(0), hear(answered(0, frames=3, oldest_frame_ns=since_ns, kept_bytes=77), event)],
        )
        for since_ns, event in (
            (500 * MS, like(Answer, start_s=0.5, end_s=2.5, frames=3, kept_bytes=77)),
            (9000 * MS, like(Answer, start_s=2.5, end_s=2.5)),
            (None, like(Answer, start_s=2.5, end_s=2.5)),
        )
    ),
    case(
        "an answer that was ended in a loop",
        [asks(0), hear(answered(0), like(Answer, looped=False))],
        [asks(1, turn=2), hear(answered(1, looped=True), like(Answer, looped=True))],
    ),
    case("an answer of a larger model", [asks(0), hear(answered(0, escalated=True), like(Answer, escalated=True))]),
    case("an answer without text has its first token at its end", [asks(0), hear(answered(0), timed(50.0, 50.0))]),
    case(
        "feedback follows its answer",
        [asks(0), hear(answered(0, **WITH_FEEDBACK), Answer, arrays=FEEDBACK_ARRAYS)],
        [acted(Progress, Answer, Feedback)],
    ),
    case(
        "a check beside an answer leaves it open and may have feedback",
        [asks(0), hear(make_yes_no_reply(0, **WITH_FEEDBACK), YesNoResult, arrays=FEEDBACK_ARRAYS)],
        [acted(Progress, YesNoResult, like(Feedback, stamp=STAMP)), has(busy=True)],
        [hear(answered(0), Answer), has(busy=False)],
        watches=WATCHES,
    ),
    case(
        "a check alone ends its turn and has no number",
        [lambda server: server.grant(), lambda server: server.send(tokens(), wants_answer=False, checks=CHECKS)],
        [sent(like(TokenPacketMessage, answer=0, question={"wants_answer": False, "checks": WATCHES})), after(50)],
        [
            hear(YES_NO, like(YesNoResult, **OF_FRAME, **CHECKED, timing={"total_ms": 100.0})),
            has(busy=False),
            asks(0, turn=2),
        ],
        watches=WATCHES,
    ),
    case(
        "the notice of a model is passed on",
        [asks(0), hear(answered(0, notice="300 tokens"), Answer, Notice(code=MODEL_NOTICE, message="300 tokens"))],
    ),
    case(
        "the same boxes again are no news",
        [asks(0, turn=1, trigger="every"), hear(make_answer_reply(0, BOXES, **SAME), Answer, Detections)],
        [asks(1, turn=2, trigger="every"), hear(make_answer_reply(1, BOXES, **SAME), AnswerUnchanged)],
        same_above=0.5,
    ),
    case(
        "leaving and cancelling are reported",
        [does(AnswerClient.leave), sent(Disconnect), does(lambda client: client.leave(cancel=True))],
        [sent(Cancel, Disconnect)],
    ),
)
def test_answers(opened: Opener, script: Script) -> None:
    play(script, opened(**script.options))


@cases(
    case(
        "late replies of a cancelled answer are ignored",
        [cancels(None), asks(0), hear(delta(0, "half"), PIECE), cancels(like(AnswerCancelled, **CANCELLED))],
        [sent(Cancel), has(busy=False), hear([delta(0, " more"), answered(0)])],
        [asks(1, turn=2), hear(delta(1, "new"), PIECE(answer=1, text="new", pts_s=2.5))],
        [has(requests={"cancelled_answers": 1, "lost_answers": 0})],
    ),
    case(
        "a cancelled answer that is lost is not reported",
        [asks(0), cancels(AnswerCancelled), hear(LOST_ANSWER), lost(0)],
    ),
    case(
        "after a loss the same packet is sent again and its answer counts from its capture",
        [asks(0), hear(answered(0), Answer), asks(1, turn=2), hear(delta(1, "half"), PIECE), after(1_000)],
        [LOSES_SERVER, has(busy=True, ready=False), GREETED, asks_again(9, answer=1, stamp=STAMP)],
        [after(100), hear(answered(1), timed(1_150.0, 1_150.0)), lost(0)],
        **RESENDS,
    ),
    case(
        "after a loss the open answer is dropped if it would be late",
        [asks(0), LOSES_SERVER, has(busy=False), lost(1), GREETED, SILENT, asks(1)],
        reconnect=True,
    ),
    case(
        "a loss while nothing is open costs nothing",
        [lambda server: server.grant(), LOSES_SERVER, lost(0), has(may_send=False), GREETED, asks(0)],
        reconnect=True,
    ),
    case(
        "a check that is repeated with its request is reported once",
        [asks(0), hear(YES_NO, YesNoResult), LOSES_SERVER, GREETED, asks_again(1, question={"wants_answer": True})],
        [hear(YES_NO), hear(answered(0), Answer)],
        watches=WATCHES,
        **RESENDS,
    ),
    case(
        "the length of an answer that is sent again counts from its beginning",
        [asks(0), hear([HALF, HALF], PIECE, PIECE), LOSES_SERVER, GREETED],
        [asks_again(1), hear([HALF, HALF], PIECE, PIECE)],
        **RESENDS,
    ),
    case(
        "a packet that came too late is sent again",
        [asks(0), hear(TurnExpired(turn=1)), lost(0), has(busy=True)],
        [asks_again(2, answer=0), hear(answered(0), Answer)],
        resend_after_loss=True,
    ),
    case(
        "a packet that came too late is dropped",
        [asks(0), hear(TurnExpired(turn=1)), lost(1), has(busy=False), SILENT, asks(1, turn=2)],
    ),
    case(
        "the end of an earlier turn says nothing about the open request",
        [asks(0), hear(answered(0), Answer), asks(1, turn=2), hear(TurnExpired(turn=1)), has(busy=True), lost(0)],
    ),
    case(
        "an answer that the server lost is requested again a few times",
        [asks(0)],
        *([hear(LOST_ANSWER, is_lost("asking again")), asks_again(2 + n, answer=0)] for n in range(REPEATS_MAX)),
        [hear(LOST_ANSWER, is_lost("going on with the newest frame")), has(busy=False), lost(1)],
        [asks(1, turn=9), hear(answered(1), Answer), lost(1)],
        resend_after_loss=True,
    ),
    case(
        "an answer that the server lost is dropped",
        [asks(0), hear(LOST_ANSWER, is_lost("going on with the newest frame")), has(busy=False), lost(1)],
        [asks(1, turn=9), hear(answered(1), Answer), lost(1)],
    ),
)
def test_losses(opened: Opener, script: Script) -> None:
    play(script, opened(**script.options))


@cases(
    *(
        case(
            f"a message that a server may not send is dropped and the first one reported: {type(message).__name__}",
            [hear(message, like(Notice, code=PEER_MISBEHAVES, message=re.compile(f"which are dropped: .*{reason}")))],
            [asks(0), hear(message), has(refused_messages=2), hear(answered(0), like(Answer, text="all of it"))],
        )
        for message, reason in (
            (delta(1, "x"), "answer 1, which was not asked for"),
            (answered(1), "answer 1, which was not asked for"),
            (RequestLost(answer=1, reason="gone"), "answer 1, which was not asked for"),
            (FrameCaptured(slot=0, frame_index=0, media_ns=0, capture_ns=0), "wrong kind, FrameCaptured"),
        )
    ),
    *(
        case(
            f"a check that was not asked for is refused: {number} of {watches}",
            [asks(0), hear(make_yes_no_reply(number), MISBEHAVES), has(busy=True)],
            watches=watches,
        )
        for watches, number in (((), 0), (WATCHES, 1), (("is it?", "was it?"), 0))
    ),
    *(
        case(
            f"feedback is dropped and its answer is not: {problem}",
            [asks(0)],
            [hear(answered(0, feedback_stamp=stamp, arrays=specs_of(*arrays)), Answer, MISBEHAVES, arrays=arrays)],
            [acted(Progress, like(Answer, text="all of it"), MISBEHAVES)],
        )
        for problem, stamp, arrays in (
            ("a column outside", STAMP, feedback_at(14, 0, 0)),
            ("a negative row", STAMP, feedback_at(0, -1, 0)),
            ("a row outside", STAMP, feedback_at(0, 2, 0)),
            ("not a number", STAMP, feedback_at(0, 0, 0, np.nan)),
            ("another frame", replace(STAMP, frame_index=99), feedback_at(0, 0, 0)),
        )
    ),
    case(
        "an unreadable message drops the open answer and several are a failure",
        [asks(0), hear(SPOILT, MISBEHAVES), has(busy=False), asks(1, turn=2), hear(SPOILT), has(busy=False)],
        [asks(2, turn=3), hear(SPOILT), failed("cannot be read: Expected `str` of length <= 65536")],
    ),
    case(
        "an unreadable message has the open answer asked for again and several are a failure",
        [asks(0), hear(SPOILT, MISBEHAVES), has(busy=True), asks_again(2), hear(SPOILT), has(busy=True), asks_again(3)],
        [hear(SPOILT), failed("cannot be read: Expected `str` of length <= 65536")],
        resend_after_loss=True,
    ),
    case(
        "unreadable messages with an answer between them are no failure",
        [asks(0), hear(SPOILT, MISBEHAVES), asks(1, turn=2), hear(SPOILT), asks(2, turn=3), hear(answered(2), Answer)],
        [asks(3, turn=4), hear(SPOILT), acted()],
    ),
    case(
        "the length of an answer is limited",
        [asks(0), hear([HALF, HALF], PIECE, PIECE), hear([delta(0, "y")] * 10, MISBEHAVES), has(refused_messages=10)],
        [hear(answered(0), Answer)],
    ),
    case(
        "a server that sends only invalid messages has failed",
        [hear([delta(7, "x")] * (MISDEEDS_MAX - 1) + [delta(9, "x")], MISBEHAVES)],
        [failed(f"{MISDEEDS_MAX} messages in a row were invalid; the last: the answer server refers to answer 9")],
    ),
    case(
        "an embedding that was not asked for and a second hello are refused",
        [hear(Embedded(text="who?", is_check=False, model_id="m"), MISBEHAVES)],
        [hear(structs.replace(HELLO, model_id="other")), has(refused_messages=2, hello=HELLO)],
    ),
    case(
        "an extent that is no size is refused",
        [asks(0), hear(make_answer_reply(0, "[]", extent=(0.0, 1000.0)), MISBEHAVES)],
    ),
    case(
        "a question embedded before the hello is a failure",
        [sent(Connect), embeds(), failed("embedded a question before it named its model")],
        greeted=False,
    ),
    case(
        "an unreadable hello is a failure",
        [hear(structs.replace(HELLO, model_id="m" * 2000), MISBEHAVES), failed("its first messages cannot be used: ")],
        greeted=False,
    ),
    case(
        "an unusable embedding of a required question is a failure",
        [sent(Connect), hear(HELLO), embeds(np.nan), failed("its reply to the question cannot be used: ")],
        greeted=False,
    ),
    *(
        case(
            f"a required question that is refused is a failure: {error}",
            [sent(Connect), hear(HELLO), embeds(error=error, reason="too long"), failed("too long", kind)],
            greeted=False,
        )
        for error, kind in (("ContextLengthError", ContextLengthError), ("ArithmeticError", StageDied))
    ),
    case(
        "a server of another encoding is a failure",
        [hear(structs.replace(HELLO, encode="prune")), failed(OTHER_ENCODING, OptionError)],
        greeted=False,
    ),
)
def test_refused_messages_and_failures(opened: Opener, script: Script) -> None:
    play(script, opened(**script.options))


TRANSITIONS = """
                ServerHello     TurnGrant       TurnExpired     GlanceReply     AnswerReply
CONNECTING      CONNECTING      refused         CONNECTING      refused         refused
READY           refused         TURN_GRANTED    READY           refused         refused
TURN_REQUESTED  refused         TURN_GRANTED    TURN_REQUESTED  refused         refused
TURN_GRANTED    refused         TURN_GRANTED    TURN_GRANTED    refused         refused
GLANCING        refused         refused         READY           TURN_GRANTED    refused
IN_FLIGHT       refused         refused         READY           refused         READY
"""
"""Of each phase and message, the phase after it."""
MESSAGES = [HELLO, TurnGrant(turn=1), TurnExpired(turn=1), make_glance_reply(0), answered(0)]


@pytest.mark.parametrize("row", [line.split() for line in TRANSITIONS.splitlines()[2:]], ids=lambda row: row[0])
@pytest.mark.parametrize("message", MESSAGES, ids=TRANSITIONS.split()[: len(MESSAGES)])
def test_transitions(opened: Opener, row: list[str], message: Message) -> None:
    phase = ClientPhase[row[0]]
    server = opened(greeted=phase is not ClientPhase.CONNECTING)
    if phase not in (ClientPhase.CONNECTING, ClientPhase.READY):
        server.request_turn()
    if phase in (ClientPhase.TURN_GRANTED, ClientPhase.GLANCING, ClientPhase.IN_FLIGHT):
        server.hear(TurnGrant(turn=1))
    if phase is ClientPhase.GLANCING:
        server.client.send_glance(make_overview(STAMP, GRID), "what?", server.clock.now_ns())
    if phase is ClientPhase.IN_FLIGHT:
        server.send(tokens())
    assert server.client.phase is phase
    outcome = row[1 + MESSAGES.index(message)]
    server.hear(message)
    assert server.client.refused_messages == (outcome == "refused")
    assert server.client.phase is (phase if outcome == "refused" else ClientPhase[outcome])


def key(text: str, *, is_check: bool = False) -> QuestionKey:
    return QuestionKey(text, is_check)


def is_embedded(question: QuestionKey, expected: object) -> ClientStep:
    """What the client knows of a question, whose embedding it asks for unless it has it."""
    return lambda server: check(server.client.embed(question), expected)


WHO, WHO_CHECK = key("who?"), key("who?", is_check=True)
EMBEDDED = like(EmbeddedQuestion, key=WHO, embedding={"text": "who?", "model_id": "m"})


@cases(
    case(
        "an embedding is asked for once, and again for a check, which has other words that are unseen",
        [is_embedded(WHO, None), is_embedded(WHO, None), embeds(), acted(EMBEDDED), is_embedded(WHO, EMBEDDED), SILENT],
        [is_embedded(WHO_CHECK, None), sent(like(Embed, is_check=True))],
    ),
    case(
        "a question that is refused is reported and asked for again",
        [is_embedded(WHO, None), embeds(error="ContextLengthError", reason="too long")],
        [acted(RefusedQuestion(WHO, "too long")), is_embedded(WHO, None), sent(like(Embed, text="who?"))],
    ),
    case(
        "an unusable reply to another question refuses that",
        [is_embedded(WHO, None), embeds(np.nan), has(ready=True)],
        [acted(MISBEHAVES, like(RefusedQuestion, key=WHO, error=re.compile("cannot be used")))],
    ),
    case(
        "after a loss the required and the awaited questions are asked for",
        [is_embedded(WHO, None), does(lambda client: client.embeddings.require("where?", ())), LOSES_SERVER],
        [lambda server: server.greet("where?"), has(embeddings={"is_any_awaited": True}), embeds(), acted(EMBEDDED)],
        reconnect=True,
    ),
)
def test_embeddings(opened: Opener, script: Script) -> None:
    play(script, opened(**script.options))


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


def test_embeddings_that_are_no_longer_required_are_forgotten_one_day(opened: Opener) -> None:
    server = opened()
    for number in range(KEPT + 1):
        server.client.embed(key(f"{number}?"))
        server.embed()
    embeddings = server.client.embeddings
    assert [embeddings.get(key(text)) is None for text in ("0?", "1?", "what?")] == [True, False, False]


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


@pytest.mark.parametrize(("takes", "on_device"), [(True, True), (False, True), (True, False)])
def test_pixels_on_a_device_go_beside_the_message_if_the_server_takes_them(
    opened: Opener, takes: bool, on_device: bool
) -> None:
    shared, packet = LocalPixels(), tokens()
    if on_device:
        packet = replace(packet, pixels=torch.from_numpy(packet.host_pixels.copy()))
    server = opened(greeted=False, pixels=shared)
    assert server.expect(Connect).pixels_at == PixelPlace()
    server.hear(structs.replace(HELLO, takes_device_pixels=takes))
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
    [(LocalPixels(), structs.replace(HELLO, pixels_refused="another GPU")), (UnsharedPixels(), HELLO)],
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
