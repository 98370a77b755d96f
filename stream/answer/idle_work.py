"""Scheduler of idle work in an answer server: packets that the model reads ahead while no client waits.

Work is done in pieces of at most PIECE_NS and one step, between which a turn of any client comes first. It takes at
most a share of the time; a client in lockstep, whose frames wait for it, is exempt. Clients take turns piece by piece.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from arr_coc.types import NS_PER_MS, NS_PER_S, TokenPacket
from stream.answer.memory import GroupMemory, Reading, kept_place
from stream.answer.server_statistics import ServerStatistics
from stream.clock import Clock
from stream.control import WAIT_MS
from stream.protocol.messages import IdleGrant, IdlePacketMessage, IdleReply, IdleRequest, Message
from stream.transport import Envelope

PIECE_NS = 50 * NS_PER_MS
"""Length of a piece of idle work, which is the longest that a turn waits for it."""

SAVED_NS = NS_PER_S
"""Most idle time that may be saved up: after a pause, that much is done at once."""

PACKET_NS = 8 * PIECE_NS
"""Time in which one packet should be read: if a turn comes meanwhile, what was read of it is lost."""

GRANT_LIMIT_NS = NS_PER_S
"""Time after which a permission expires if the client has not sent its packet."""

TOKENS_MIN = 16
TOKENS_FIRST = 32
TOKENS_MAX = 1024
"""Least, first and most tokens of an idle packet; in between by the measured speed."""


class ReadingModel(Protocol):
    """Part of an answer model that reads ahead."""

    memory: GroupMemory | None

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> Reading:
        """As in `AnswerModel`."""
        ...


@dataclass(slots=True)
class _Work:
    """Reading under way."""

    client: bytes
    number: int
    reading: Reading
    steps: Generator[None, None, None]
    in_lockstep: bool
    worked_ns: int = 0

    @property
    def key(self) -> tuple[bytes, bool]:
        """Its client, and whether it begins a new group: a client may have one of each kind."""
        return self.client, self.reading.is_key_frame

    def end(self, tokens: int, error: Exception | None = None) -> IdleEnd:
        """Return its end, with as many tokens read."""
        return IdleEnd(self.client, self.number, tokens, self.worked_ns, self.reading.is_key_frame, error)


@dataclass(frozen=True, slots=True)
class _Granted:
    """Permission that a client has not used yet."""

    client: bytes
    number: int
    in_lockstep: bool
    at_ns: int

    def expires_by(self, now_ns: int) -> bool:
        """Return whether it has expired. One in lockstep does not: what is read must not depend on the clock."""
        return not self.in_lockstep and now_ns - self.at_ns > GRANT_LIMIT_NS


@dataclass(frozen=True, slots=True)
class IdleEnd:
    """End of a client's reading: the number of its permission, the tokens that were read, 0 if it was given up, and
    the time that it took; `error` if it failed."""

    client: bytes
    number: int
    tokens: int
    took_ns: int
    is_rebuilt: bool
    error: Exception | None = None


class IdleWork:
    """Queue of the clients that have something to read ahead, and their readings; for the server's thread.

    `share`: largest part of the time.
    """

    def __init__(self, share: float, statistics: ServerStatistics, clock: Clock) -> None:
        self._share = share
        self._statistics = statistics
        self._clock = clock
        self._waiting: OrderedDict[bytes, bool] = OrderedDict()
        self._works: OrderedDict[tuple[bytes, bool], _Work] = OrderedDict()
        self._granted: _Granted | None = None
        self._number = 0
        self._saved_ns = 0
        self._counted_ns = clock.now_ns()
        self._tokens_per_s = TOKENS_FIRST * NS_PER_S / PACKET_NS

    @property
    def packet_tokens(self) -> int:
        """Number of tokens that are read in about PACKET_NS."""
        return max(TOKENS_MIN, min(TOKENS_MAX, int(self._tokens_per_s * PACKET_NS / NS_PER_S)))

    def request(self, client: bytes, *, in_lockstep: bool) -> None:
        """Queue a client that has something to read."""
        if self._share > 0:
            self._waiting.setdefault(client, in_lockstep)

    def next_grant(self, *, is_free: bool) -> tuple[bytes, int] | None:
        """Return the next client that may send an idle packet, and the number of its permission; None if it is not the
        time.

        `is_free`: no client waits for an answer.
        """
        now_ns = self._count_time()
        if self._granted is not None and not self._granted.expires_by(now_ns):
            return None
        self._granted = None
        for client, in_lockstep in self._waiting.items():
            if (client, False) not in self._works and (in_lockstep or (is_free and self._saved_ns > 0)):
                del self._waiting[client]
                self._number += 1
                self._granted = _Granted(client, self._number, in_lockstep, now_ns)
                return client, self._number
        return None

    def takes(self, client: bytes, number: int) -> bool:
        """Return whether a client may send the packet of this number now."""
        granted = self._granted
        return granted is not None and (granted.client, granted.number) == (client, number)

    def begin(self, reading: Reading) -> None:
        """Begin the reading of the packet that was permitted last."""
        granted = self._granted
        assert granted is not None
        self._granted = None
        work = _Work(granted.client, granted.number, reading, reading.steps(), granted.in_lockstep)
        if (older := self._works.get(work.key)) is not None:
            self._give_up(older)
        self._works[work.key] = work

    def pass_on(self, client: bytes) -> None:
        """Take a client's permission back, which it does not use, and its place in the queue."""
        self._waiting.pop(client, None)
        if self._granted is not None and self._granted.client == client:
            self._granted = None

    def interrupt(self, client: bytes) -> None:
        """Give way to a client's own turn: its reading is given up, but for one of a new group, which goes on later."""
        self.pass_on(client)
        if (work := self._works.get((client, False))) is not None:
            self._give_up(work)

    def drop(self, client: bytes) -> None:
        """Forget a client that has left."""
        self.pass_on(client)
        for work in [work for work in self._works.values() if work.client == client]:
            self._give_up(work)

    def wait_ms(self, *, is_free: bool) -> int:
        """Return how long the server may wait for messages: not at all while there is work and time for it."""
        if any(work.in_lockstep for work in self._works.values()):
            return 0
        if not is_free or not (self._works or self._waiting):
            return WAIT_MS
        self._count_time()
        missing_ns = max(0, -self._saved_ns) / max(self._share, 1e-9)
        return min(WAIT_MS, int(missing_ns / NS_PER_MS))

    def advance(self, *, is_free: bool) -> IdleEnd | None:
        """Do one piece of work; return the reading that ended with it, if one did. `is_free` as in `next_grant`.

        What goes on with a group comes before a group that is written anew.
        """
        self._count_time()
        may_work = is_free and self._saved_ns > 0
        ready = [work for work in self._works.values() if may_work or work.in_lockstep]
        if not ready:
            return None
        work = min(ready, key=lambda work: work.reading.is_key_frame)
        self._works.move_to_end(work.key)
        if not work.reading.fits:
            self._give_up(work)
            return work.end(0)
        began_ns = self._clock.now_ns()
        try:
            is_done = self._run_piece(work, began_ns)
        except Exception as error:
            self._give_up(work)
            return work.end(0, error)
        took_ns = self._clock.now_ns() - began_ns
        work.worked_ns += took_ns
        if not work.in_lockstep:
            self._saved_ns -= took_ns
        self._statistics.count_idle_time(took_ns)
        if not is_done:
            return None
        tokens = work.reading.tokens
        del self._works[work.key]
        self._tokens_per_s = max(1.0, tokens * NS_PER_S / max(1, work.worked_ns))
        self._statistics.count_idle_reading(tokens, rebuilt=work.reading.is_key_frame)
        return work.end(tokens)

    def _run_piece(self, work: _Work, began_ns: int) -> bool:
        """Run steps for one piece; at the end of the reading, commit it and return True."""
        longest_ns = 0
        before_ns = began_ns
        try:
            while True:
                next(work.steps)
                now_ns = self._clock.now_ns()
                longest_ns = max(longest_ns, now_ns - before_ns)
                before_ns = now_ns
                if now_ns + longest_ns - began_ns > PIECE_NS:
                    work.reading.wait()
                    return False
        except StopIteration:
            work.reading.commit()
            work.reading.wait()
            return True

    def _give_up(self, work: _Work) -> None:
        del self._works[work.key]
        work.steps.close()

    def _count_time(self) -> int:
        """Save up idle time, and return the current time."""
        now_ns = self._clock.now_ns()
        earned_ns = int(self._share * (now_ns - self._counted_ns))
        self._saved_ns = min(int(self._share * SAVED_NS), self._saved_ns + earned_ns)
        self._counted_ns = now_ns
        return now_ns


class IdleService:
    """Idle work of an answer server: its messages, and the work.

    `read_packets` reads the packets of a message; `send` sends a message to a client; `fail` refuses a client for an
    error.
    """

    def __init__(
        self,
        model: ReadingModel,
        read_packets: Callable[[Envelope], list[TokenPacket]],
        send: Callable[[bytes, Message], bool],
        fail: Callable[[bytes, Exception], None],
        statistics: ServerStatistics,
        clock: Clock,
    ) -> None:
        self._model = model
        self._read_packets = read_packets
        self._send = send
        self._fail = fail
        self._statistics = statistics
        if model.memory is None:
            share = 0.0
        else:
            share = model.memory.idle_share
        self._work = IdleWork(share, statistics, clock)

    def receive(self, client: bytes, envelope: Envelope) -> None:
        """Process a message of a client about idle work."""
        message = envelope.message
        if isinstance(message, IdleRequest):
            self._work.request(client, in_lockstep=message.in_lockstep)
        elif isinstance(message, IdlePacketMessage) and self._work.takes(client, message.number):
            self._begin(client, envelope)
        elif isinstance(message, IdlePacketMessage):  # it came too late, or its client's turn came first
            self._report(IdleEnd(client, message.number, 0, 0, is_rebuilt=False))
        else:
            self._work.pass_on(client)

    def interrupt(self, client: bytes) -> None:
        """Give way to a client's own turn."""
        self._work.interrupt(client)

    def drop(self, client: bytes) -> None:
        """Forget a client that has left."""
        self._work.drop(client)

    def wait_ms(self, *, is_free: bool) -> int:
        """Return how long the server may wait for messages; `is_free` as in `IdleWork`."""
        return self._work.wait_ms(is_free=is_free)

    def advance(self, *, is_free: bool) -> None:
        """Do a piece of work if it is the time, and let a client send its next packet; `is_free` as in `IdleWork`."""
        end = self._work.advance(is_free=is_free)
        if end is not None:
            self._report(end)
        grant = self._work.next_grant(is_free=is_free)
        if grant is not None:
            client, number = grant
            place = kept_place(self._model.memory, client)
            self._send(client, IdleGrant(number=number, tokens=self._work.packet_tokens, kept=place))

    def _begin(self, client: bytes, envelope: Envelope) -> None:
        try:
            reading = self._model.read_ahead(client, self._read_packets(envelope))
        except Exception as error:
            self._work.pass_on(client)
            self._fail(client, error)
            return
        self._work.begin(reading)

    def _report(self, end: IdleEnd) -> None:
        """Report the end of a reading to its client, or its failure."""
        if end.error is not None:
            self._fail(end.client, end.error)
            return
        memory = self._model.memory
        if memory is not None:
            self._statistics.memory_is(memory.groups, memory.visual_tokens, memory.evictions)
        reply = IdleReply(
            number=end.number,
            tokens=end.tokens,
            took_ms=end.took_ns / NS_PER_MS,
            rebuilt=end.is_rebuilt,
            kept=kept_place(memory, end.client),
        )
        self._send(end.client, reply)
