"""Guard of connections, by a clock that the test moves: who is closed, who makes room, and who may stay."""

from __future__ import annotations

import pytest

from arr_coc.types import NS_PER_S
from stream.http.guard import Awaited, ConnectionGuard, ConnectionProgress, GuardLimits, peer_of
from tests.support.clock import FakeClock

KIB = 1024
PHONE_BYTES_S = 25_000
"""200 kbit/s."""


class FakeConnection:
    """A connection whose state the test sets."""

    def __init__(self, peer: str = "10.0.0.1") -> None:
        self.peer = peer
        self.state: ConnectionProgress | None = ConnectionProgress(Awaited.REQUEST)
        self.aborted = False

    def progress(self) -> ConnectionProgress | None:
        return self.state

    def abort(self) -> None:
        self.state = None
        self.aborted = True


class Room:
    """A guard and its clock."""

    def __init__(self, connections: int = 4, of_a_peer: int | None = None) -> None:
        self.clock = FakeClock()
        self.guard = ConnectionGuard("the server", GuardLimits(connections, of_a_peer or connections), self.clock)

    def enter(self, peer: str = "10.0.0.1", awaited: Awaited = Awaited.REQUEST) -> FakeConnection:
        connection = FakeConnection(peer)
        assert self.guard.admit(connection)
        connection.state = ConnectionProgress(awaited)
        return connection

    def wait(self, seconds: int, connection: FakeConnection | None = None, *states: ConnectionProgress) -> None:
        """Let seconds go, at each of which the guard looks and `connection` has the next state."""
        for second in range(seconds):
            self.clock.advance(NS_PER_S)
            if connection is not None and connection.state is not None and second < len(states):
                connection.state = states[second]
            self.guard.close_overdue()


def moving(
    awaited: Awaited, rate_bytes_s: float, seconds: int, unread_bytes: int = 1 << 30
) -> list[ConnectionProgress]:
    return [ConnectionProgress(awaited, None, int(rate_bytes_s * second), unread_bytes) for second in range(seconds)]


@pytest.mark.parametrize("awaited", [Awaited.REQUEST, Awaited.BODY, Awaited.READING])
def test_a_peer_that_keeps_the_server_waiting_is_closed_after_ten_seconds(awaited: Awaited) -> None:
    room = Room()
    connection = room.enter(awaited=awaited)
    connection.state = ConnectionProgress(awaited, unread_bytes=1)
    room.wait(10)
    assert connection.aborted is (awaited is Awaited.REQUEST)  # the others began at the first look
    room.wait(1)
    assert connection.aborted
    assert room.guard.connections == []
    assert room.guard.closed == {f"late with {awaited.value}": 1}


def test_a_peer_that_waits_for_the_server_may_wait_for_hours() -> None:
    room = Room()
    connection = room.enter(awaited=Awaited.NOTHING)
    room.wait(3 * 3600)
    assert not connection.aborted


@pytest.mark.parametrize("awaited", [Awaited.BODY, Awaited.READING])
@pytest.mark.parametrize(("rate_bytes_s", "stays"), [(1, False), (KIB // 2, False), (KIB, True), (PHONE_BYTES_S, True)])
def test_a_slow_link_stays_and_a_trickle_does_not(awaited: Awaited, rate_bytes_s: float, stays: bool) -> None:
    room = Room()
    connection = room.enter()
    room.wait(60, connection, *moving(awaited, rate_bytes_s, 60))
    assert connection.aborted is not stays


def test_bytes_of_a_header_count_for_nothing() -> None:
    room = Room()
    connection = room.enter()
    room.wait(10, connection, *moving(Awaited.REQUEST, PHONE_BYTES_S, 10))
    assert connection.aborted


def test_one_who_was_quick_is_closed_soon_after_it_stops() -> None:
    room = Room()
    connection = room.enter()
    room.wait(60, connection, *moving(Awaited.READING, 1e6, 60))
    room.wait(14)
    assert not connection.aborted
    room.wait(1)
    assert connection.aborted


def test_a_stream_of_few_bytes_that_are_read_stays() -> None:
    """At every look something is on its way, as a token a second is over a satellite."""
    room = Room()
    connection = room.enter()
    room.wait(60, connection, *(ConnectionProgress(Awaited.READING, None, 50 * second, 50) for second in range(60)))
    assert not connection.aborted


def test_time_counts_anew_with_each_request() -> None:
    room = Room()
    connection = room.enter()
    for _ in range(10):
        connection.state = ConnectionProgress(Awaited.REQUEST, object())
        room.wait(9)
    assert not connection.aborted


def test_a_kernel_that_does_not_count_closes_no_peer_for_a_rate() -> None:
    room = Room()
    connection = room.enter()
    connection.state = ConnectionProgress(Awaited.READING, None, None, 1)
    room.wait(60)
    assert not connection.aborted


def test_the_slowest_makes_room() -> None:
    room = Room()
    reader, early, late, served = (room.enter() for _ in range(4))
    served.state = ConnectionProgress(Awaited.NOTHING)
    room.wait(3, reader, *moving(Awaited.READING, PHONE_BYTES_S, 3))
    early.state = ConnectionProgress(Awaited.REQUEST, object())  # it asked, got its reply, and may ask again
    room.wait(2, reader, *moving(Awaited.READING, PHONE_BYTES_S, 5)[3:])
    room.enter()
    assert [connection.aborted for connection in (reader, early, late, served)] == [False, False, True, False]
    room.enter()
    assert [connection.aborted for connection in (reader, early, late, served)] == [False, True, True, False]
    assert room.guard.closed == {"evicted": 2}


def test_of_those_that_are_no_more_late_the_slower_reader_makes_room() -> None:
    room = Room(connections=2)
    trickle, phone = room.enter(), room.enter()
    for second in range(20):
        trickle.state = ConnectionProgress(Awaited.READING, None, 2 * KIB * second, 1 << 30)
        phone.state = ConnectionProgress(Awaited.READING, None, PHONE_BYTES_S * second, 1 << 30)
        room.wait(1)
    room.enter()
    assert (trickle.aborted, phone.aborted) == (True, False)


def test_one_that_caught_up_since_it_was_judged_stays() -> None:
    room = Room(connections=2)
    first, second = room.enter(), room.enter()
    room.wait(3)
    first.state = ConnectionProgress(Awaited.NOTHING)
    room.enter()
    assert (first.aborted, second.aborted) == (False, True)


def test_if_the_server_waits_for_no_peer_a_new_one_is_refused() -> None:
    room = Room(connections=2)
    served = [room.enter(awaited=Awaited.NOTHING) for _ in range(2)]
    room.wait(1)
    assert not room.guard.admit(FakeConnection())
    assert [connection.aborted for connection in served] == [False, False]
    assert room.guard.closed == {"refused": 1}
    served[0].state = None  # it leaves
    room.enter()


def test_a_flood_closes_itself_and_no_viewer() -> None:
    room = Room(connections=8)
    viewers = [room.enter(awaited=Awaited.NOTHING) for _ in range(4)]
    flood = [room.enter() for _ in range(10_000)]
    assert not any(viewer.aborted for viewer in viewers)
    assert [connection.aborted for connection in flood] == [True] * 9996 + [False] * 4


def test_connections_that_came_since_the_last_look_make_room() -> None:
    room = Room(connections=8)
    room.enter()
    room.guard.close_overdue()
    for _ in range(20):  # no time goes
        room.enter()
    assert room.guard.closed == {"evicted": 13}


def test_one_address_leaves_places_for_others() -> None:
    room = Room(connections=4, of_a_peer=3)
    other = room.enter("10.0.0.2")
    flood = [room.enter() for _ in range(100)]
    room.wait(2)
    last = room.enter()
    assert not other.aborted
    assert sum(not connection.aborted for connection in (*flood, last)) == 3


def test_of_new_connections_those_of_the_largest_crowd_make_room() -> None:
    room = Room(connections=4, of_a_peer=3)
    other = room.enter("10.0.0.2")
    crowd = [room.enter() for _ in range(3)]
    room.enter("10.0.0.3")
    assert not other.aborted
    assert sum(connection.aborted for connection in crowd) == 1


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_host_is_one_peer_whatever_its_address(host: str, peer: str) -> None:
    assert peer_of(host) == peer
