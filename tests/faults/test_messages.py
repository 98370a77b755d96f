"""Damaged messages on every decoder and every socket: refused or read, never a crash, a hang or a huge allocation."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from arr_coc.types import Feedback, FramePacket, FrameStamp, TileGrid, TokenPacket, Work
from stream.answer.filters import PriorGlance, RecalledAnswer
from stream.errors import RecordingError, ResumeError, TransportError
from stream.events import Cut, FrameMap, Notice, Outage, QueryChanged, Restarted, Skipped, pack_event, unpack_event
from stream.extensions.journal.journal import Journal
from stream.extensions.record.format import (
    MAGIC,
    EventRecord,
    ReceivedMessage,
    Recording,
    SentMessage,
    SessionStarted,
    compress_arrays,
    decompress_arrays,
)
from stream.media import SkippedItem
from stream.protocol.codec import (
    embedding_of,
    feedback_arrays,
    feedback_of,
    frame_message,
    frame_packet,
    glance_message,
    specs_of,
    token_message,
    token_packet,
)
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Connect,
    Disconnect,
    Embed,
    Embedded,
    End,
    FrameCaptured,
    FramePacketMessage,
    GlancePacketMessage,
    GlanceReply,
    Message,
    ServerHello,
    SourceLost,
    TextureUpdated,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
    decode,
    encode,
)
from stream.recording.log import frame_record
from stream.transport import Link, Transport, ipc_endpoint, private_directory
from tests.support.events import QUESTION, answer, frame, glance, summary
from tests.support.faults import many
from tests.support.network import LIMIT_S
from tests.support.served_answers import ServedAnswers

COUNTS = [1000, pytest.param(100_000, marks=pytest.mark.slow)]
GROWTH_MAX_BYTES = 64 << 20
"""Limit of memory that decoding garbage may add: far above noise, far below what garbage announces."""

pytestmark = pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES)

GRID = TileGrid.of(96, 64)
STAMP = FrameStamp(7, 280_000_000, 123, (5 << 32) | 1)
REGIONS = np.array([[0, 0, 0], [0, 1, 1]], np.int32)
SCORES = np.array([0.5, 0.25], np.float32)
PACKET = TokenPacket(STAMP, GRID, REGIONS, SCORES, np.zeros((2, 3, 32, 32), np.uint8))
WHOLE = FramePacket(STAMP, GRID, REGIONS, np.zeros(GRID.shape, np.float32), np.zeros((96, 64, 3), np.uint8))
FEEDBACK = Feedback(STAMP, REGIONS, SCORES, SCORES)

ANSWERED = AnswerReply(
    answer=1,
    text="a red circle",
    work=Work(2, 4, 1.0, 2.0, 3.0),
    feedback_stamp=STAMP,
    arrays=specs_of(*feedback_arrays(FEEDBACK)),
)
GLANCED = GlanceReply(
    glance=1,
    work=Work(2, encode_ms=1.0, prefill_ms=2.0),
    feedback_stamp=STAMP,
    arrays=specs_of(*feedback_arrays(FEEDBACK)),
)
ASKING = Embedded(text="What?", is_check=False, model_id="fake", arrays=specs_of(np.zeros((2, 8), np.float32)))
PLAIN: list[Message] = [
    FrameCaptured(slot=4, frame_index=7, media_ns=-5, capture_ns=9, discontinuity="resolution"),
    TextureUpdated(stamp=STAMP, texture_ms=0.25, dirty_share=0.125, cut_score=0.75),
    End(reason="finished", skipped=(SkippedItem("packet 9", "Invalid data", None, 2),)),
    SourceLost(frame_index=3, media_ns=5, reason="gone"),
    ServerHello(model_id="m", knows_levels=True, known_world=None),
    Connect(),
    Embed(text="Who?"),
    TurnGrant(turn=3),
    AnswerDelta(answer=2, text="a red circle ▲"),
]
EVENTS = [
    answer(1 / 3, "a\nb"),
    frame(3, 0.1, map=FrameMap(rows=1, cols=2, relevance=b"ab", regions=b"abcdef")),
    summary(),
    Notice(code="x", message="hello"),
    Cut(frame_index=3, pts_s=0.1, score=0.9),
    Skipped(frame_index=4, pts_s=0.2, what="packet 5", reason="broken"),
    Outage(frame_index=1, pts_s=2.0, reason="gone"),
    Restarted(process="answer", cause="killed", count=2),
    QueryChanged(query="Who?"),
]


def sent(message: Message, arrays: list[np.ndarray]) -> list[bytes]:
    return [encode(message), *(array.tobytes() for array in arrays)]


WITH_PARTS: list[list[bytes]] = [
    sent(*token_message(2, 1, PACKET, QUESTION)),
    sent(*glance_message(2, 1, PACKET, "what?")),
    sent(*frame_message(2, 1, WHOLE, QUESTION, in_snapshot=False)),
    sent(ANSWERED, feedback_arrays(FEEDBACK)),
    sent(GLANCED, feedback_arrays(FEEDBACK)),
    sent(ASKING, [np.zeros((2, 8), np.float32)]),
]


@pytest.mark.parametrize("count", COUNTS)
def test_messages_are_read_or_refused(count: int) -> None:
    seeds = [encode(message) for message in PLAIN] + [parts[0] for parts in WITH_PARTS]
    decoded_count = 0
    for data in many(seeds, count):
        with suppress(TransportError):
            decode(data)
            decoded_count += 1
    assert 0 < decoded_count < count


@pytest.mark.parametrize("count", COUNTS)
def test_events_are_read_or_refused(count: int) -> None:
    decoded_count = 0
    for data in many([pack_event(event) for event in EVENTS], count):
        with suppress(msgspec.DecodeError):
            unpack_event(data)
            decoded_count += 1
    assert 0 < decoded_count < count


def unpack(message: Message, parts: list[bytes]) -> None:
    if isinstance(message, (TokenPacketMessage, GlancePacketMessage)):
        token_packet(message, parts)
    elif isinstance(message, FramePacketMessage):
        frame_packet(message, parts)
    elif isinstance(message, (AnswerReply, GlanceReply)):
        feedback_of(message, parts)
    elif isinstance(message, Embedded):
        embedding_of(message, parts)


@pytest.mark.parametrize("count", COUNTS)
def test_arrays_match_their_header_or_are_refused(count: int) -> None:
    rng = random.Random(1)
    decoded_count = 0
    for number, data in enumerate(many([part for parts in WITH_PARTS for part in parts], count)):
        parts = list(WITH_PARTS[number % len(WITH_PARTS)])
        parts[rng.randrange(len(parts))] = data
        if rng.random() < 0.1:
            parts = parts[: rng.randrange(1, len(parts) + 1)] + parts[:1] * rng.randrange(2)
        with suppress(TransportError):
            unpack(decode(parts[0]), parts[1:])
            decoded_count += 1
    assert decoded_count < count


@pytest.mark.parametrize("length", [10**12, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("seed", WITH_PARTS, ids=["tokens", "overview", "frame", "answered", "glanced", "asking"])
def test_a_header_that_announces_too_much_allocates_nothing(seed: list[bytes], length: int) -> None:
    fields = msgspec.msgpack.decode(seed[0])
    for spec in fields["arrays"]:
        spec[1] = [length] * len(spec[1])
    with pytest.raises(TransportError):
        unpack(decode(msgspec.msgpack.encode(fields)), seed[1:])
    for name in ("height_px", "width_px", "rows", "cols"):
        fields = msgspec.msgpack.decode(seed[0])
        if "grid" in fields:
            fields["grid"][name] = length
            with pytest.raises(TransportError):
                unpack(decode(msgspec.msgpack.encode(fields)), seed[1:])


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_journal_gives_answers_or_nothing(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.resume"
    journal = Journal(path, {"source": "x"})
    journal.open()
    for number in range(4):
        glance_record = PriorGlance(glance(number), FEEDBACK if number % 2 else None)
        point = msgspec.structs.replace(answer(number, "a red circle"), answer=number)
        journal.append(RecalledAnswer(point, FEEDBACK, glance_record))
    journal.close(is_finished=False)
    original = path.read_bytes()
    for data in many([original], count // 10):
        path.write_bytes(data)
        with suppress(ResumeError):
            assert Journal.continued(path, {"source": "x"}).earlier_answers <= 4


def _packed(pair: tuple[Message, list[np.ndarray]]) -> tuple[Message, tuple[bytes, ...]]:
    return pair[0], compress_arrays(pair[1])


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_recording_gives_packets_or_an_error(tmp_path: Path, count: int) -> None:
    """Damage below the checksums is reported and left out; damage behind them, written by a program, is refused."""
    encoder = msgspec.msgpack.Encoder()
    message, arrays = token_message(2, 1, PACKET, QUESTION)
    frame_part, image = frame_message(2, 1, WHOLE, QUESTION, in_snapshot=False)
    records = [
        SessionStarted("0.1.0", "x", "now"),
        SentMessage(message, compress_arrays(arrays)),
        SentMessage(frame_part, compress_arrays(image)),
        SentMessage(*_packed(glance_message(2, 1, PACKET, "what?"))),
        ReceivedMessage(ANSWERED),
        ReceivedMessage(GLANCED, compress_arrays(feedback_arrays(FEEDBACK))),
    ]
    payloads = [encoder.encode(record) for record in [*records, EventRecord(EVENTS[0])]]
    path, decoded_count = tmp_path / "0001.rec", 0
    for number, data in enumerate(many(payloads, count // 10)):
        framed_well = MAGIC + b"".join(map(frame_record, [*payloads[:2], data, *payloads[2:]]))
        path.write_bytes(framed_well if number % 2 else MAGIC + frame_record(payloads[0]) + data)
        recording = Recording(tmp_path)
        with suppress(RecordingError):
            for record in recording.records():
                if isinstance(record, (SentMessage, ReceivedMessage)):
                    with suppress(TransportError):
                        parts = decompress_arrays(record)
                        unpack(record.message, parts)
                        decoded_count += 1
    assert decoded_count


@pytest.fixture(params=["inproc", "ipc"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    with private_directory() as directory:
        yield "inproc://fuzzed" if request.param == "inproc" else ipc_endpoint(directory)


@pytest.mark.parametrize("count", COUNTS)
def test_a_link_survives_whatever_it_is_sent(endpoint: str, count: int) -> None:
    seeds = [part for parts in WITH_PARTS for part in parts]
    rng = random.Random(2)
    with ExitStack() as stack:
        transport = Transport()
        stack.callback(transport.close)
        link = stack.enter_context(closing(transport.link(endpoint, bind=True)))
        raw = transport.context.socket(zmq.DEALER)
        stack.callback(raw.close, linger=0)
        raw.connect(endpoint)
        for data in many(seeds, count):
            raw.send_multipart([data, *rng.choices(seeds, k=rng.randrange(4))])
            with suppress(TransportError):
                assert link.receive(int(LIMIT_S * 1000)) is not None
        raw.send_multipart([encode(AnswerDelta(answer=1, text="well")), b"part"])
        received = link.receive(int(LIMIT_S * 1000))
        assert received is not None
        assert received.message == AnswerDelta(answer=1, text="well")


def until(link: Link, kind: type[Message], on_poll: Callable[[], None] = lambda: None) -> Message:
    """The next message of this kind."""
    waited_ms = 0
    while waited_ms < LIMIT_S * 1000:
        on_poll()
        received = link.receive(50)
        if received is None:
            waited_ms += 50
        elif isinstance(received.message, kind):
            return received.message
    raise AssertionError(f"no {kind.__name__} came")


def answered(link: Link, number: int) -> str:
    """One answer, as a client that does everything right gets it."""
    link.send(TurnRequest())
    turn = until(link, TurnGrant)
    assert isinstance(turn, TurnGrant)
    link.send(*token_message(number, turn.turn, PACKET, QUESTION))
    reply = until(link, AnswerReply)
    assert isinstance(reply, AnswerReply)
    assert reply.answer == number
    return reply.text


@pytest.mark.parametrize("count", COUNTS)
def test_a_garbage_client_does_not_disturb_a_good_one(endpoint: str, count: int) -> None:
    with ExitStack() as stack:
        served = ServedAnswers(stack, endpoint)
        good = served.client()
        good.send(Connect())
        until(good, ServerHello)
        bad = served.raw()
        seeds = [encode(message) for message in PLAIN] + [part for parts in WITH_PARTS for part in parts]
        rng = random.Random(3)
        answers = 0
        for number, data in enumerate(many(seeds, count)):
            parts = [data, *rng.choices(seeds, k=rng.randrange(4))]
            if rng.random() < 0.3:
                parts = rng.choice(WITH_PARTS)
            bad.send_multipart(parts)
            while bad.poll(0):
                bad.recv_multipart()
            if number % (count // 20) == 0:
                assert answered(good, answers) == "frame 7 sum 0"
                answers += 1
        assert served.control.failure is None
        assert answers == 20


def test_a_client_that_talks_without_end_does_not_keep_the_others_waiting() -> None:
    with ExitStack() as stack:
        endpoint = ipc_endpoint(stack.enter_context(private_directory()))
        served = ServedAnswers(stack, endpoint)
        good = served.client()
        good.send(Connect())
        until(good, ServerHello)
        stop = threading.Event()

        def talk() -> None:
            with closing(served.transport.context.socket(zmq.DEALER)) as socket:
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.SNDTIMEO, 100)
                socket.connect(endpoint)
                data = encode(Disconnect())
                while not stop.is_set():
                    with suppress(zmq.Again):
                        socket.send(data)

        talkers = [threading.Thread(target=talk) for _ in range(2)]
        for talker in talkers:
            talker.start()
        try:
            for number in range(5):
                assert answered(good, number) == "frame 7 sum 0"
        finally:
            stop.set()
            for talker in talkers:
                talker.join(LIMIT_S)
