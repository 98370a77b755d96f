"""Guard of an HTTP server's connections: it closes those that keep the server waiting, and the slowest to make room.

A policy without I/O. A server may wait for three things: the rest of a request's header, the rest of its body, and that
a reply is read. For each the guard counts how many seconds a peer is behind: every second adds one, and every
`least_bytes_s` bytes that the peer sent or read take one away. Silence and a byte a second are so nearly the same, and
a slow link is never behind; one that moves in bursts has a reserve. A peer that has read all it was sent is not behind
either, so an open stream may last for hours.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from arr_coc.types import NS_PER_S
from stream.clock import Clock, MonotonicClock

REORDER_S = 0.1
"""Least time between two orderings of all connections, unless the first made room for half as many: a flood of new ones
is to cost little time."""

RESERVE_S = 5.0
"""How far ahead a peer may get: TCP confirms a slow reader's bytes only every few seconds."""

LATE_S = 1.0
"""Connections that are as far behind make room before others, of any peer."""

log = logging.getLogger(__name__)


class Awaited(Enum):
    """The part of an exchange that a server waits for."""

    REQUEST = "the header of a request"
    BODY = "the body of a request"
    READING = "that a reply is read"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ConnectionProgress:
    """State of a connection at one time."""

    awaited: Awaited
    exchange: object = None
    """Identity of the request; time counts anew with each."""
    moved_bytes: int | None = 0
    """What the peer has sent, or read, since it connected; None if the kernel does not count."""
    unread_bytes: int = 0
    """What it was sent and has not read."""


class GuardedConnection(Protocol):
    """A connection as the guard sees it."""

    @property
    def peer(self) -> str:
        """The peer, as `peer_of` names it."""
        ...

    def progress(self) -> ConnectionProgress | None:
        """Return the present state; None once the connection is closed."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits of a server's connections."""

    connections: int
    """Connections open at a time; for one more, the slowest is closed."""
    of_a_peer: int
    """Connections of one address; for one more, the slowest of that address is closed."""
    request_s: float = 10.0
    """Time for a request's header, from the connection or the end of the request before."""
    body_s: float = 10.0
    """How far behind a peer may be that sends a body."""
    reading_s: float = 10.0
    """How far behind a peer may be that reads a reply."""
    least_bytes_s: float = 1024.0
    """Bytes a second with which a peer is not behind: a twenty-fifth of 200 kbit/s."""
    check_s: float = 1.0
    """Time between two looks at all connections."""

    def behind_max_s(self, awaited: Awaited) -> float:
        """Return how far behind a peer may be."""
        match awaited:
            case Awaited.REQUEST:
                return self.request_s
            case Awaited.BODY:
                return self.body_s
            case Awaited.READING:
                return self.reading_s
        return float("inf")


class ConnectionGuard:
    """Guard of the connections of a server called `name`. Every method belongs to the thread that accepts."""

    def __init__(self, name: str, limits: GuardLimits, clock: Clock | None = None) -> None:
        self.limits = limits
        self.closed: Counter[str] = Counter()
        """Connections that the guard closed, by reason."""
        self.name = name
        self._clock = clock or MonotonicClock()
        self._accounts: list[_Account] = []
        self._slowest_first: list[_Account] = []
        self._ordered_s = float("-inf")
        self._evicted = 0

    @property
    def connections(self) -> list[GuardedConnection]:
        """Connections that are open, as far as the guard knows."""
        return [account.connection for account in self._accounts]

    def admit(self, connection: GuardedConnection) -> bool:
        """Return whether a new connection may stay. For one too many the slowest is closed; without one that keeps the
        server waiting, the new one is refused."""
        now_s = self._now_s()
        limits = self.limits
        peer = connection.peer
        if len(self._accounts) >= min(limits.connections, limits.of_a_peer):
            self._accounts = [account for account in self._accounts if account.connection.progress() is not None]
            of_peer = sum(account.connection.peer == peer for account in self._accounts)
            crowded = of_peer >= limits.of_a_peer
            if crowded or len(self._accounts) >= limits.connections:
                if 2 * self._evicted >= len(self._accounts) or now_s - self._ordered_s >= REORDER_S:
                    self._order(now_s)
                slowest = self._next_slowest(peer if crowded else None, now_s)
                if slowest is None:
                    self._count("refused", connection)
                    return False
                self._close("evicted", slowest)
                self._evicted += 1
        account = _Account(connection, now_s, self.limits.least_bytes_s)
        self._accounts.append(account)
        self._slowest_first.append(account)  # the newest is the last to make room, until all are ordered anew
        return True

    def close_overdue(self) -> None:
        """Close the connections that are too far behind; to be called every `check_s` seconds."""
        self._order(self._now_s())
        for account in list(self._slowest_first):
            if account.behind_s >= self.limits.behind_max_s(account.awaited):
                self._close(f"late with {account.awaited.value}", account)

    def _next_slowest(self, peer: str | None, now_s: float) -> _Account | None:
        for account in self._slowest_first:
            if peer is None or account.connection.peer == peer:
                # it may have caught up since it was ordered
                account.update(now_s)
                if account.is_open and account.awaited is not Awaited.NOTHING:
                    return account
        return None

    def _order(self, now_s: float) -> None:
        """Look at every connection, and forget those that are closed."""
        for account in self._accounts:
            account.update(now_s)
        self._accounts = [account for account in self._accounts if account.is_open]
        crowds = Counter(account.connection.peer for account in self._accounts)
        waiting = [account for account in self._accounts if account.awaited is not Awaited.NOTHING]
        waiting.sort(key=lambda account: account.slowness(crowds[account.connection.peer]), reverse=True)
        self._slowest_first = waiting
        self._ordered_s = now_s
        self._evicted = 0

    def _close(self, reason: str, account: _Account) -> None:
        self._count(reason, account.connection)
        if account in self._slowest_first:
            self._slowest_first.remove(account)
        self._accounts.remove(account)
        account.connection.abort()

    def _count(self, reason: str, connection: GuardedConnection) -> None:
        self.closed[reason] += 1
        log.debug("%s closes a connection of %s: %s", self.name, connection.peer, reason)

    def _now_s(self) -> float:
        return self._clock.now_ns() / NS_PER_S


class _Account:
    """A connection, and how many seconds its peer is behind."""

    def __init__(self, connection: GuardedConnection, now_s: float, least_bytes_s: float) -> None:
        self.connection = connection
        self.behind_s = 0.0
        self.is_open = True
        self._least_bytes_s = least_bytes_s
        self._progress = ConnectionProgress(Awaited.REQUEST)
        self._at_s = now_s
        self._began_s = now_s
        self._began_bytes = 0

    @property
    def awaited(self) -> Awaited:
        return self._progress.awaited

    def update(self, now_s: float) -> None:
        """Look at the connection at this time."""
        progress = self.connection.progress()
        if progress is None:
            self.is_open = False
            return
        before = self._progress
        elapsed_s = now_s - self._at_s
        self._progress = progress
        self._at_s = now_s
        if progress.awaited is not before.awaited or progress.exchange is not before.exchange:
            self.behind_s = 0.0
            self._began_s = now_s
            self._began_bytes = progress.moved_bytes or 0
        elif progress.awaited is Awaited.REQUEST:
            self.behind_s += elapsed_s
        elif progress.moved_bytes is None or before.moved_bytes is None or progress.awaited is Awaited.NOTHING:
            self.behind_s = 0.0
        else:
            moved_bytes = progress.moved_bytes - before.moved_bytes
            has_read_all = progress.awaited is Awaited.READING and moved_bytes >= before.unread_bytes
            behind_s = self.behind_s + elapsed_s - moved_bytes / self._least_bytes_s
            if has_read_all:
                self.behind_s = -RESERVE_S
            else:
                self.behind_s = max(-RESERVE_S, behind_s)

    def slowness(self, of_peer: int) -> tuple[bool, int, float, float]:
        """Return the key of the order: the late ones first, then those of the peer with most connections, then by how
        far each is behind, then by its rate."""
        elapsed_s = self._at_s - self._began_s
        moved_bytes = (self._progress.moved_bytes or 0) - self._began_bytes
        if elapsed_s >= LATE_S:
            rate_bytes_s = moved_bytes / elapsed_s
        else:
            rate_bytes_s = float("inf")
        return self.behind_s >= LATE_S, of_peer, self.behind_s, -rate_bytes_s


def peer_of(host: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the /64 network of an IPv6 address, which one host has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
