"""Idle work of an answer server: pieces, shares of time, turns that come first, and readings that come to nothing."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence

import pytest

from arr_coc.types import NS_PER_MS, NS_PER_S, GroupPlace, TokenPacket
from stream.answer.idle_work import (
    GRANT_LIMIT_NS,
    PACKET_NS,
    PIECE_NS,
    SAVED_NS,
    TOKENS_FIRST,
    TOKENS_MAX,
    TOKENS_MIN,
    IdleEnd,
    IdleService,
    IdleWork,
)
from stream.answer.memory import GroupMemory
from stream.answer.server_statistics import ServerStatistics
from stream.control import WAIT_MS
from stream.errors import TransportError
from stream.protocol.codec import idle_message, token_packets
from stream.protocol.messages import IdleGrant, IdlePacketMessage, IdlePass, IdleReply, IdleRequest, Message
from stream.transport import Envelope
from tests.support.answer_client import received
from tests.support.clock import FakeClock
from tests.support.events import make_group_packet

A, B = b"a", b"b"
SHARE = 0.25


class FakeReading:
    """Reading of a packet whose steps take these times; the last one may fail."""

    def __init__(
        self,
        clock: FakeClock,
        steps_ms: Sequence[int] = (10,),
        *,
        tokens: int = 16,
        is_key_frame: bool = False,
        fails: bool = False,
    ) -> None:
        self.tokens, self.is_key_frame, self.fits = tokens, is_key_frame, True
        self.steps_done = 0
        self.is_committed = self.has_ended = self.is_waited_for = False
        self._clock, self._steps_ms, self._fails = clock, steps_ms, fails

    def steps(self) -> Generator[None, None, None]:
        try:
            for step_ms in self._steps_ms:
                self._clock.advance(step_ms * NS_PER_MS)
                self.steps_done += 1
                self.is_waited_for = False
                yield
            if self._fails:
                raise ArithmeticError("the spoon is bent")
        finally:
            self.has_ended = True

    def wait(self) -> None:
        self.is_waited_for = True

    def commit(self) -> None:
        assert not self.is_committed
        self.is_committed = True


class Worker:
    """Idle work by a clock of the test's, some seconds after its begin."""

    def __init__(self, share: float = SHARE) -> None:
        self.clock, self.statistics = FakeClock(), ServerStatistics()
        self.work = IdleWork(share, self.statistics, self.clock)
        self.clock.advance(10 * NS_PER_S)

    def read(self, client: bytes, *steps_ms: int, in_lockstep: bool = False, **fields: bool | int) -> FakeReading:
        """Begin a reading of a client."""
        self.work.request(client, in_lockstep=in_lockstep)
        granted = self.work.next_grant(is_free=True)
        assert granted is not None
        assert granted[0] == client
        assert self.work.takes(*granted)
        reading = FakeReading(self.clock, steps_ms or (10,), **fields)
        self.work.begin(reading)
        assert not self.work.takes(*granted)
        return reading

    def piece(self, *, is_free: bool = True) -> tuple[int, IdleEnd | None]:
        """The time that a piece took, and the reading that ended with it."""
        began_ns = self.clock.now_ns()
        end = self.work.advance(is_free=is_free)
        return self.clock.now_ns() - began_ns, end

    def finish(self) -> IdleEnd:
        """The next end of a reading."""
        for _ in range(1000):
            took_ns, end = self.piece()
            if end is not None:
                return end
            if not took_ns:
                self.clock.advance(NS_PER_MS)
        raise AssertionError("no reading ends")


@pytest.mark.parametrize(
    "steps_ms", [(10,) * 30, (1,) * 200, (49, 49, 49), (51, 60, 1, 1), (1, 2, 4, 8, 16, 32, 64, 5)]
)
def test_a_piece_is_at_most_its_length_and_one_step(steps_ms: tuple[int, ...]) -> None:
    worker = Worker(1.0)
    reading = worker.read(A, *steps_ms)
    steps_done, pieces = 0, 0
    while not reading.is_committed:
        took_ns, end = worker.piece()
        piece_steps = steps_ms[steps_done : reading.steps_done]
        steps_done, pieces = reading.steps_done, pieces + 1
        assert took_ns == sum(piece_steps) * NS_PER_MS <= PIECE_NS + max(piece_steps, default=0) * NS_PER_MS
        assert sum(piece_steps[:-1]) * NS_PER_MS <= PIECE_NS
        assert reading.is_waited_for, "the device has done what was counted"
        assert (end is None) == (not reading.is_committed)
    assert steps_done == len(steps_ms)
    assert pieces <= 2 * sum(steps_ms) * NS_PER_MS / PIECE_NS + 2


def test_pieces_of_equal_steps_keep_to_their_length() -> None:
    worker = Worker(1.0)
    worker.read(A, *[20] * 5)
    assert [worker.piece()[0] // NS_PER_MS for _ in range(3)] == [40, 40, 20]


def test_the_end_of_a_reading_reports_and_counts_it() -> None:
    worker = Worker()
    reading = worker.read(A, 20, 30, tokens=40)
    assert worker.finish() == IdleEnd(A, 1, 40, 50 * NS_PER_MS, is_rebuilt=False)
    assert reading.is_committed
    rebuilt = worker.read(A, 5, tokens=100, is_key_frame=True)
    assert worker.finish() == IdleEnd(A, 2, 100, 5 * NS_PER_MS, is_rebuilt=True)
    assert rebuilt.is_committed
    totals = worker.statistics.figures().totals
    assert (totals.idle_tokens, totals.rebuilt, totals.idle_ns) == (140, 1, 55 * NS_PER_MS)


def test_a_turn_interrupts_what_would_be_appended_and_leaves_nothing_of_it() -> None:
    worker = Worker()
    reading = worker.read(A, *[20] * 9)
    worker.piece()
    worker.work.interrupt(A)
    assert (reading.has_ended, reading.is_committed) == (True, False)
    assert worker.piece() == (0, None)
    assert worker.work.wait_ms(is_free=True) == WAIT_MS
    assert worker.statistics.figures().totals.idle_tokens == 0
    worker.read(A)
    assert worker.finish().tokens == 16


def test_a_turn_pauses_a_new_group_which_goes_on_later() -> None:
    worker = Worker()
    reading = worker.read(A, *[20] * 9, is_key_frame=True)
    worker.piece()
    worker.work.interrupt(A)
    steps_done = reading.steps_done
    for _ in range(5):
        assert worker.piece(is_free=False) == (0, None)
    assert (reading.steps_done, reading.has_ended) == (steps_done, False)
    assert worker.finish() == IdleEnd(A, 1, 16, 180 * NS_PER_MS, is_rebuilt=True)


def test_nothing_is_done_while_a_client_waits_for_an_answer() -> None:
    worker = Worker()
    worker.read(A)
    assert worker.piece(is_free=False) == (0, None)
    assert worker.work.wait_ms(is_free=False) == WAIT_MS
    worker.work.request(B, in_lockstep=False)
    assert worker.work.next_grant(is_free=False) is None
    assert worker.work.next_grant(is_free=True) == (B, 2)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 1.0])
def test_it_takes_its_share_of_the_time(share: float) -> None:
    """Over many pieces, all of the share is taken, and no more but what was saved and the last piece."""
    worker = Worker(share)
    worker.clock.advance(-10 * NS_PER_S + NS_PER_MS)
    began_ns, worked_ns = worker.clock.now_ns(), 0
    worker.read(A, *itertools.repeat(7, 100_000), is_key_frame=True)
    while worker.clock.now_ns() - began_ns < 100 * NS_PER_S:
        took_ns, end = worker.piece()
        assert end is None
        assert took_ns <= PIECE_NS
        worked_ns += took_ns
        wait_ms = worker.work.wait_ms(is_free=True)
        assert wait_ms <= WAIT_MS
        worker.clock.advance(wait_ms * NS_PER_MS or 10_000)
    passed_ns = worker.clock.now_ns() - began_ns
    assert share * passed_ns - PIECE_NS <= worked_ns <= share * passed_ns + PIECE_NS
    assert worker.statistics.figures().totals.idle_ns == worked_ns


def test_little_time_is_saved() -> None:
    worker = Worker()
    worker.read(A, *[10] * 100_000)
    worker.clock.advance(3600 * NS_PER_S)
    worked_ns = sum(worker.piece()[0] for _ in range(100))
    saved_ns = SHARE * SAVED_NS
    assert saved_ns <= worked_ns <= (saved_ns + PIECE_NS) / (1 - SHARE)
    assert worker.work.wait_ms(is_free=True) > 0


def test_lockstep_has_no_share_and_waits_for_no_turn() -> None:
    worker = Worker(0.001)
    worker.read(B, *[10] * 1000)
    while worker.piece()[0]:
        pass
    worker.work.request(A, in_lockstep=True)
    granted = worker.work.next_grant(is_free=False)
    assert granted == (A, 2)
    reading = FakeReading(worker.clock, [10] * 50)
    worker.work.begin(reading)
    assert worker.work.wait_ms(is_free=False) == 0
    for _ in range(10):
        took_ns, end = worker.piece(is_free=False)
        assert took_ns == PIECE_NS
    assert end is None
    assert worker.piece(is_free=False) == (0, IdleEnd(A, 2, 16, 500 * NS_PER_MS, is_rebuilt=False))
    assert worker.piece() == (0, None), "it did not pay for the other client"


def test_clients_take_turns_piece_by_piece() -> None:
    worker = Worker(1.0)
    readings = [worker.read(client, *[50] * 4) for client in (A, B)]
    progress = []
    for _ in range(8):
        worker.piece()
        progress.append(tuple(reading.steps_done for reading in readings))
    assert progress == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4)]
    assert [worker.finish().client for _ in range(2)] == [A, B]


def test_a_packet_that_goes_on_with_a_group_comes_before_a_new_group() -> None:
    worker = Worker(1.0)
    rebuilt = worker.read(A, *[50] * 4, is_key_frame=True)
    worker.piece()
    delta = worker.read(A, *[50] * 3)
    other = worker.read(B, *[50] * 3)
    for _ in range(6):
        worker.piece()
    assert (rebuilt.steps_done, delta.steps_done, other.steps_done) == (1, 3, 3)
    assert [worker.finish().is_rebuilt for _ in range(3)] == [False, False, True]


def test_a_client_has_one_packet_at_a_time_beside_a_new_group() -> None:
    worker = Worker()
    worker.read(A, *[10] * 100, is_key_frame=True)
    worker.read(A, *[10] * 100)
    worker.work.request(A, in_lockstep=False)
    assert worker.work.next_grant(is_free=True) is None
    worker.work.interrupt(A)
    worker.work.request(A, in_lockstep=False)
    assert worker.work.next_grant(is_free=True) == (A, 3)


def test_a_newer_new_group_takes_the_place_of_an_older_one() -> None:
    worker = Worker(1.0)
    older = worker.read(A, *[50] * 4, is_key_frame=True)
    worker.piece()
    newer = worker.read(A, *[50] * 4, is_key_frame=True)
    assert worker.finish().number == 2
    assert (older.has_ended, older.is_committed, newer.is_committed) == (True, False, True)
    assert worker.piece() == (0, None)


def test_a_permission_that_is_not_used_expires() -> None:
    worker = Worker()
    for client in (A, B):
        worker.work.request(client, in_lockstep=False)
    assert worker.work.next_grant(is_free=True) == (A, 1)
    worker.clock.advance(GRANT_LIMIT_NS)
    assert worker.work.next_grant(is_free=True) is None
    assert worker.work.takes(A, 1)
    worker.clock.advance(1)
    assert worker.work.next_grant(is_free=True) == (B, 2)
    assert not worker.work.takes(A, 1)
    assert not worker.work.takes(A, 2)
    assert not worker.work.takes(B, 1)
    assert worker.work.takes(B, 2)


def test_a_permission_in_lockstep_does_not_expire() -> None:
    """What is read must not depend on how fast its client is."""
    worker = Worker()
    worker.work.request(A, in_lockstep=True)
    assert worker.work.next_grant(is_free=True) == (A, 1)
    worker.work.request(B, in_lockstep=False)
    worker.clock.advance(100 * GRANT_LIMIT_NS)
    assert worker.work.next_grant(is_free=True) is None
    assert worker.work.takes(A, 1)


@pytest.mark.parametrize("end", ["pass_on", "interrupt", "drop"])
def test_a_permission_goes_with_its_client(end: str) -> None:
    worker = Worker()
    for client in (A, B):
        worker.work.request(client, in_lockstep=False)
    worker.work.next_grant(is_free=True)
    worker.work.request(A, in_lockstep=False)
    getattr(worker.work, end)(A)
    assert not worker.work.takes(A, 1)
    assert worker.work.next_grant(is_free=True) == (B, 2)
    getattr(worker.work, end)(B)
    assert worker.work.next_grant(is_free=True) is None


def test_readings_of_a_client_that_leaves_are_given_up() -> None:
    worker = Worker()
    readings = [worker.read(A, *[50] * 9, is_key_frame=is_key_frame) for is_key_frame in (True, False)]
    other = worker.read(B)
    worker.work.drop(A)
    assert worker.finish().client == B
    assert worker.piece() == (0, None)
    assert other.is_committed
    assert not any(reading.is_committed for reading in readings)


def test_a_reading_that_fails_ends_and_others_go_on() -> None:
    worker = Worker()
    failing, other = worker.read(A, 20, fails=True), worker.read(B, 20)
    end = worker.finish()
    assert (end.client, end.number, end.tokens) == (A, 1, 0)
    assert isinstance(end.error, ArithmeticError)
    assert (failing.has_ended, failing.is_committed) == (True, False)
    assert worker.finish() == IdleEnd(B, 2, 16, 20 * NS_PER_MS, is_rebuilt=False)
    assert other.is_committed


def test_a_reading_that_no_longer_fits_ends_with_no_tokens() -> None:
    worker = Worker()
    reading = worker.read(A, *[50] * 4, is_key_frame=True)
    worker.piece()
    reading.fits = False
    assert worker.finish() == IdleEnd(A, 1, 0, 50 * NS_PER_MS, is_rebuilt=True)
    assert (reading.has_ended, reading.is_committed, reading.steps_done) == (True, False, 1)
    assert worker.statistics.figures().totals.rebuilt == 0


def test_without_a_share_no_client_is_queued() -> None:
    worker = Worker(0.0)
    for in_lockstep in (False, True):
        worker.work.request(A, in_lockstep=in_lockstep)
    assert worker.work.next_grant(is_free=True) is None
    assert worker.work.wait_ms(is_free=True) == WAIT_MS


@pytest.mark.parametrize(
    ("tokens", "took_ms", "expected"),
    [(40, 100, 40 * PACKET_NS // (100 * NS_PER_MS)), (1, 1000, TOKENS_MIN), (1000, 1, TOKENS_MAX)],
)
def test_packets_are_as_large_as_the_speed_allows(tokens: int, took_ms: int, expected: int) -> None:
    worker = Worker(1.0)
    assert worker.work.packet_tokens == TOKENS_FIRST
    worker.read(A, took_ms, tokens=tokens)
    worker.finish()
    assert worker.work.packet_tokens == expected


class ReadingModel:
    """Reads packets of two tokens in one step, unless it fails, and keeps them."""

    def __init__(self, clock: FakeClock, share: float = SHARE) -> None:
        self.memory: GroupMemory = GroupMemory(100, share)
        self.failure: Exception | None = None
        self._clock = clock

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> FakeReading:
        if self.failure is not None:
            raise self.failure
        place, memory = packets[-1].place, self.memory
        assert place is not None

        class Kept(FakeReading):
            def commit(self) -> None:
                super().commit()
                memory.add(client, packets[-1], packets[:-1])

        return Kept(self._clock, tokens=len(packets[-1].regions), is_key_frame=not place.frame)


class Service:
    """Idle work of a server, and the test as its clients; both hold the key frame of a group."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.model = ReadingModel(self.clock)
        self.messages: list[tuple[bytes, Message]] = []
        self.failures: list[tuple[bytes, Exception]] = []
        self.service = IdleService(self.model, self._packets, self._send, self._fail, ServerStatistics(), self.clock)
        self.clock.advance(NS_PER_S)
        for client in (A, B):
            self.model.memory.add(client, make_group_packet((1, 0)))

    @staticmethod
    def _packets(envelope: Envelope) -> list[TokenPacket]:
        assert isinstance(envelope.message, IdlePacketMessage)
        return token_packets(envelope.message, envelope.parts)

    def _send(self, client: bytes, message: Message) -> bool:
        self.messages.append((client, message))
        return True

    def _fail(self, client: bytes, error: Exception) -> None:
        self.failures.append((client, error))

    def hear(self, client: bytes, message: Message) -> None:
        self.service.receive(client, received(message))

    def send(self, client: bytes, number: int, place: tuple[int, int] = (1, 1)) -> None:
        self.service.receive(client, received(*idle_message(number, make_group_packet(place, second=1))))

    def advance(self) -> list[tuple[bytes, Message]]:
        self.service.advance(is_free=True)
        messages, self.messages = self.messages, []
        return messages


def test_a_packet_is_granted_read_and_reported() -> None:
    service = Service()
    service.hear(A, IdleRequest())
    assert service.advance() == [(A, IdleGrant(number=1, tokens=TOKENS_FIRST, kept=GroupPlace(1, 1)))]
    service.send(A, 1)
    assert service.advance() == [(A, IdleReply(number=1, tokens=2, took_ms=10.0, kept=GroupPlace(1, 2)))]


def test_a_new_group_is_reported_as_such() -> None:
    service = Service()
    service.hear(A, IdleRequest(in_lockstep=True))
    service.advance()
    service.send(A, 1, (2, 0))
    assert service.advance() == [(A, IdleReply(number=1, tokens=2, took_ms=10.0, rebuilt=True, kept=GroupPlace(2, 1)))]


@pytest.mark.parametrize("reason", ["late", "turn", "number"])
def test_a_packet_that_may_not_be_read_any_more_is_given_up(reason: str) -> None:
    service = Service()
    service.hear(A, IdleRequest())
    service.advance()
    if reason == "late":
        service.clock.advance(GRANT_LIMIT_NS + 1)
        service.advance()
    elif reason == "turn":
        service.service.interrupt(A)
    number = 7 if reason == "number" else 1
    service.send(A, number)
    assert service.messages == [(A, IdleReply(number=number, tokens=0, took_ms=0.0, kept=GroupPlace(1, 1)))]


def test_a_client_that_passes_lets_the_next_one_read() -> None:
    service = Service()
    service.hear(A, IdleRequest())
    service.hear(B, IdleRequest())
    service.advance()
    service.hear(A, IdlePass())
    assert service.advance() == [(B, IdleGrant(number=2, tokens=TOKENS_FIRST, kept=GroupPlace(1, 1)))]


def test_a_packet_that_cannot_be_read_fails_for_its_client_alone() -> None:
    service = Service()
    service.model.failure = TransportError("it does not go on with the group")
    service.hear(A, IdleRequest())
    service.hear(B, IdleRequest())
    service.advance()
    service.send(A, 1)
    assert service.failures == [(A, service.model.failure)]
    service.model.failure = None
    assert service.advance() == [(B, IdleGrant(number=2, tokens=TOKENS_FIRST, kept=GroupPlace(1, 1)))]
    service.send(B, 2)
    assert [type(message) for _, message in service.advance()] == [IdleReply]


def test_a_reading_that_fails_on_the_way_fails_for_its_client() -> None:
    service = Service()
    service.hear(A, IdleRequest())
    service.advance()
    service.send(A, 1, (1, 9))
    assert service.advance() == []
    ((client, error),) = service.failures
    assert (client, type(error)) == (A, TransportError)


def test_a_server_without_memory_reads_nothing_ahead() -> None:
    service = Service()
    model = ReadingModel(service.clock)
    model.memory = None  # type: ignore[assignment]
    idle = IdleService(model, service._packets, service._send, service._fail, ServerStatistics(), service.clock)
    idle.receive(A, received(IdleRequest(in_lockstep=True)))
    idle.advance(is_free=True)
    assert service.messages == []
