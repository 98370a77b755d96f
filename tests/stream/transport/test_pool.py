"""Pool of answer servers: names, load, and the choice of a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from arr_coc.types import NS_PER_S
from stream.clock import MonotonicClock
from stream.errors import TransportError
from stream.protocol.messages import KeepAlive, Probe
from stream.transport import ServerLink, Transport, links
from stream.transport.pool import (
    AVOID_NS,
    SETTLE_NS,
    STALE_NS,
    Choice,
    PoolMember,
    ServerAddress,
    ServerPool,
    needs_pool,
    resolve,
)
from stream.transport.security import client_curve, server_curve
from stream.untrusted import CLIENTS_MAX
from tests.support.clock import FakeClock
from tests.support.network import Relay, free_port, keyed, until

A, B, C = (f"tcp://10.0.0.{number}:5555" for number in (1, 2, 3))
LONG_AGO_NS = 1000 * NS_PER_S


@pytest.fixture
def transport() -> Iterator[Transport]:
    with closing(Transport()) as zmq_transport:
        yield zmq_transport


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(LONG_AGO_NS)


Maker = Callable[..., ServerPool]


@pytest.fixture
def pool_of(transport: Transport, clock: FakeClock) -> Maker:
    """Pool without probes: a test sets the state of its servers."""

    def made(*servers: str, choice: Choice = "spread") -> ServerPool:
        pool = ServerPool([ServerAddress(server) for server in servers], transport, clock, choice)
        for server in servers:
            pool._set_members(ServerAddress(server), [server])
        return pool

    return made


def says(pool: ServerPool, endpoint: str, clock: FakeClock, **load: object) -> PoolMember:
    """Mark a server as ready, with this load."""
    member = pool._members[endpoint]
    member.connected, member.load, member.heard_ns = True, KeepAlive(**load), clock.now_ns()  # type: ignore[arg-type]
    return member


def chosen(pool: ServerPool) -> str:
    member = pool.choose()
    assert member is not None
    return member.endpoint


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("tcp://gpu.lan:5555", ("gpu.lan", "5555")),
        ("tcp://10.0.0.2:5555", None),
        ("tcp://[::1]:5555", None),
        ("tcp://localhost:5555", None),
        ("ipc:///tmp/answers", None),
    ],
)
def test_only_names_are_resolved(address: str, name: tuple[str, str] | None) -> None:
    server = ServerAddress(address)
    assert server.name == name
    assert needs_pool([server]) == (name is not None)
    assert needs_pool([server, ServerAddress(A)])


def test_a_name_is_resolved_by_the_system() -> None:
    assert resolve("localhost", "5555") == ["tcp://127.0.0.1:5555"]


def test_the_ready_one_is_chosen_before_one_that_loads_and_that_before_one_that_is_away(
    pool_of: Maker, clock: FakeClock
) -> None:
    pool = pool_of(A, B, C)
    assert chosen(pool) == A, "nothing is known"
    pool._members[B].connected = True
    assert chosen(pool) == B
    assert pool.hopeful
    says(pool, C, clock)
    assert chosen(pool) == C
    assert pool.has_fitter(A)
    assert pool.has_fitter(B)
    assert not pool.has_fitter(C)
    assert pool.has_fitter("tcp://10.9.9.9:1"), "one that is not of the pool"


def test_the_fewest_clients_a_slot_are_chosen_or_the_first_of_the_list(pool_of: Maker, clock: FakeClock) -> None:
    for choice, expected in (("spread", B), ("order", A)):
        pool = pool_of(A, B, C, choice=choice)
        says(pool, A, clock, clients=2)
        says(pool, B, clock, clients=8, slots=8)
        says(pool, C, clock, clients=2)
        assert chosen(pool) == expected


def test_servers_of_one_name_share_its_place_in_the_list(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A, C, choice="order")
    pool._set_members(pool._servers[0], [A, B])
    for server, clients in ((A, 3), (B, 2), (C, 0)):
        says(pool, server, clock, clients=clients)
    assert chosen(pool) == B


def test_servers_that_stay_in_the_list_keep_what_is_known_of_them(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(choice="order")
    assert pool.choose() is None
    assert pool.refusal_of_all() is None
    pool.set_servers([ServerAddress(A), ServerAddress(B)])
    for server in (A, B):
        says(pool, server, clock)
    assert chosen(pool) == A
    pool.set_servers([ServerAddress(C), ServerAddress(B), ServerAddress(A)])
    assert chosen(pool) == B, "C is not ready, and A is the last now"
    pool.set_servers([ServerAddress(A)])
    assert chosen(pool) == A
    assert pool.reason_to_move(B, KeepAlive()) is None
    assert A in pool
    assert B not in pool


def test_a_name_that_joins_the_list_is_resolved(transport: Transport) -> None:
    pool = ServerPool([], transport, MonotonicClock(), resolver=lambda host, port: [A])
    with closing(pool):
        pool.start()
        pool.set_servers([ServerAddress("tcp://gpu.lan:5555")])
        until(lambda: A in pool)
        pool.set_servers([])
        pool._set_members(ServerAddress("tcp://gpu.lan:5555"), [B])
        assert pool.choose() is None, "its name was resolved too late"


@pytest.mark.parametrize("load", [{"draining": True}, {"clients": CLIENTS_MAX}])
def test_one_that_drains_or_is_full_is_left_out(pool_of: Maker, clock: FakeClock, load: dict[str, object]) -> None:
    pool = pool_of(A, B)
    says(pool, A, clock, **load)
    says(pool, B, clock, clients=60)
    assert chosen(pool) == B


def test_one_that_does_not_reply_is_chosen_only_if_no_other_replies(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A, B)
    says(pool, A, clock)
    clock.advance(STALE_NS + 1)
    assert chosen(pool) == A
    says(pool, B, clock, clients=9)
    assert chosen(pool) == B
    assert pool.has_fitter(A)


def test_one_that_fails_is_avoided_for_longer_each_time_and_one_that_was_lost_until_it_says_so(
    pool_of: Maker, clock: FakeClock
) -> None:
    def ready() -> None:
        for server, clients in ((A, 0), (B, 9)):
            says(pool, server, clock, clients=clients)

    pool = pool_of(A, B)
    for pause_ns in (AVOID_NS, 2 * AVOID_NS, 4 * AVOID_NS):
        pool.note_failed(A)
        clock.advance(pause_ns - 1)
        ready()
        assert chosen(pool) == B
        clock.advance(1)
        ready()
        assert chosen(pool) == A
    pool.note_failed(A)
    pool.note_answered(A)
    assert chosen(pool) == A
    pool.note_lost(A)
    assert chosen(pool) == B
    says(pool, A, clock)
    assert chosen(pool) == A


def test_one_without_a_heartbeat_is_given_up_if_another_one_has_it(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A, B)
    says(pool, A, clock)
    says(pool, B, clock).load = None
    assert not pool.is_lifeless(A)
    pool._members[A].connected = False
    assert not pool.is_lifeless(A), "the other one loads its model"
    says(pool, B, clock)
    clock.advance(STALE_NS + 1)
    assert pool.is_lifeless(A), "the other one may be busy, and its process is there"
    assert not pool.is_lifeless(C)


def test_refusals_are_reported_once_and_are_the_end_if_all_refuse(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A, B)
    first, other = TransportError("it is full"), TransportError(f"{B} turns this end away")
    says(pool, A, clock)
    pool.note_failed(A, first)
    pool.note_failed(A, first)
    assert pool.take_refusals() == [f"{A} refuses this run: it is full"]
    assert pool.take_refusals() == []
    assert chosen(pool) == B
    assert pool.refusal_of_all() is None
    pool.note_failed(B, other)
    assert pool.refusal_of_all() is first
    assert not pool.hopeful
    assert pool.problems == f"{A} refuses this run: it is full; {B} turns this end away"
    pool.note_answered(B)
    assert pool.refusal_of_all() is None


def test_a_run_leaves_a_server_that_drains_at_once(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A, B)
    says(pool, A, clock)
    chosen(pool)
    draining = KeepAlive(clients=1, draining=True)
    assert pool.reason_to_move(A, draining) is None, "there is no other one"
    says(pool, B, clock, clients=60)
    assert pool.reason_to_move(A, draining, keeps_group=True) == "it is draining"
    assert chosen(pool) == B, "even if the probe does not know it"


def test_a_run_returns_to_the_first_of_the_list_once_it_has_settled(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A, B, choice="order")
    says(pool, B, clock)
    assert chosen(pool) == B
    says(pool, A, clock, clients=9)
    load = KeepAlive(clients=1)
    assert pool.reason_to_move(B, load) is None
    clock.advance(SETTLE_NS)
    says(pool, A, clock, clients=9)
    assert pool.reason_to_move(B, load, keeps_group=True) is None
    assert pool.reason_to_move(B, load) == "one before it in the list is ready"
    assert chosen(pool) == A
    assert pool.reason_to_move(A, KeepAlive(clients=10, place=9)) is None


def test_a_run_leaves_a_server_that_its_name_does_not_lead_to_any_more(pool_of: Maker, clock: FakeClock) -> None:
    pool = pool_of(A)
    assert chosen(pool) == A
    pool._set_members(pool._servers[0], [B])
    clock.advance(SETTLE_NS)
    assert pool.reason_to_move(A, KeepAlive()) is None
    says(pool, B, clock)
    assert pool.reason_to_move(A, KeepAlive()) == "its name leads elsewhere now"


@pytest.mark.parametrize(
    ("counts", "slots"),
    [((10, 0), (1, 1)), ((10, 0, 0), (1, 1, 1)), ((7, 6, 2), (1, 1, 1)), ((12, 0), (1, 3)), ((1, 0), (1, 1))],
)
def test_clients_spread_and_then_stay(
    pool_of: Maker, clock: FakeClock, counts: tuple[int, ...], slots: tuple[int, ...]
) -> None:
    """All clients decide at the same moment, by the same figures."""
    servers = (A, B, C)[: len(counts)]
    clients = {number: servers[index] for number, index in enumerate(i for i, n in enumerate(counts) for _ in range(n))}
    pools = {number: pool_of(*servers) for number in clients}
    moves = []
    for _ in range(6):
        clock.advance(SETTLE_NS)
        at = {server: [number for number, place in clients.items() if place == server] for server in servers}
        relocations = {}
        for number, pool in pools.items():
            for server, room in zip(servers, slots, strict=True):
                says(pool, server, clock, clients=len(at[server]), slots=room)
            current = clients[number]
            place, room = at[current].index(number), slots[servers.index(current)]
            load = KeepAlive(clients=len(at[current]), slots=room, place=place)
            if pool.reason_to_move(current, load) is not None:
                relocations[number] = chosen(pool)
        moves.append(len(relocations))
        clients |= relocations
    assert moves[-2:] == [0, 0], "they stay"
    shares = [math.ceil(sum(counts) * room / sum(slots)) for room in slots]
    assert all(list(clients.values()).count(server) <= share for server, share in zip(servers, shares, strict=True))


def test_names_are_resolved_again_and_again(transport: Transport) -> None:
    endpoints: list[str] = []

    def resolver(host: str, port: str) -> list[str]:
        assert (host, port) == ("gpu.lan", "5555")
        if not endpoints:
            raise OSError(-2, "Name or service not known")
        return list(endpoints)

    pool = ServerPool([ServerAddress("tcp://gpu.lan:5555")], transport, MonotonicClock(), resolver=resolver)
    pool._stopping.wait = lambda limit_s=None: False  # type: ignore[method-assign]
    with closing(pool):
        pool.start()
        until(lambda: "gpu.lan cannot be resolved: Name or service not known" in pool.problems)
        assert pool.choose() is None
        assert pool.refusal_of_all() is None
        address = f"tcp://127.0.0.1:{free_port()}"
        endpoints.append(address)
        until(lambda: pool.choose() is not None)
        assert chosen(pool) == address
        assert pool.label(address) == f"tcp://gpu.lan:5555 ({address.removeprefix('tcp://')})"
        assert pool.problems == ""
        endpoints[:] = ["tcp://127.0.0.1:1"]
        until(lambda: chosen(pool) == "tcp://127.0.0.1:1")


def reply(port: ServerLink, load: KeepAlive) -> bool:
    """Reply to a probe; return True if one came."""
    received = port.receive(10)
    if received is None:
        return False
    client, envelope = received
    assert not isinstance(envelope, TransportError)
    return isinstance(envelope.message, Probe) and port.send(client, load)


def test_servers_are_probed_as_they_come_and_go(transport: Transport) -> None:
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        pool = ServerPool([ServerAddress(address) for address in addresses], transport, MonotonicClock())
        stack.enter_context(closing(pool))
        pool.start()
        other = stack.enter_context(closing(transport.server_link(addresses[1])))
        until(lambda: pool.hopeful)
        assert chosen(pool) == addresses[1], "one that loads its model is there, and the other is not"
        until(lambda: reply(other, KeepAlive(clients=3)))
        until(lambda: pool._members[addresses[1]].load == KeepAlive(clients=3))
        for _ in range(2):
            with closing(transport.server_link(addresses[0])) as port:
                until(lambda port=port: reply(port, KeepAlive()))  # type: ignore[misc]
                until(lambda: chosen(pool) == addresses[0])
            until(lambda: chosen(pool) == addresses[1])


def test_a_server_that_stands_still_is_away_until_it_goes_on(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HEARTBEAT_EVERY_MS", 20)
    monkeypatch.setattr(links, "HEARTBEAT_LIMIT_MS", 40)
    address = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        port = stack.enter_context(closing(transport.server_link(address)))
        relay = stack.enter_context(Relay(address))
        pool = ServerPool([ServerAddress(relay.address)], transport, MonotonicClock())
        stack.enter_context(closing(pool))
        pool.start()
        until(lambda: reply(port, KeepAlive(clients=2)))
        member = pool._members[relay.address]
        for _ in range(2):
            until(lambda: member.load is not None)
            relay.hold()
            until(lambda: not member.connected)
            assert member.load is None
            relay.go_on()
            until(lambda: reply(port, KeepAlive()))
        assert pool.take_refusals() == []


@pytest.mark.parametrize(
    ("replies", "problem"),
    [([KeepAlive(), KeepAlive()], "it reports its load unasked"), ([Probe()], "Probe in reply to a probe")],
)
def test_a_server_that_replies_otherwise_is_left_alone(
    transport: Transport, replies: list[KeepAlive | Probe], problem: str
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        port = stack.enter_context(closing(transport.server_link(address)))
        pool = stack.enter_context(closing(ServerPool([ServerAddress(address)], transport, MonotonicClock())))
        pool.start()

        def replied() -> bool:
            received = port.receive(10)
            return received is not None and all([port.send(received[0], message) for message in replies])

        until(replied)
        until(lambda: problem in pool.problems)


def test_a_server_with_another_key_refuses_and_the_others_do_not(tmp_path: Path, transport: Transport) -> None:
    network, other_network = keyed(tmp_path, "ours"), keyed(tmp_path, "others")
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        stack.enter_context(closing(transport.server_link(addresses[0], server_curve(other_network, addresses[0]))))
        good_transport = stack.enter_context(closing(Transport()))
        good = stack.enter_context(
            closing(good_transport.server_link(addresses[1], server_curve(network, addresses[1])))
        )
        servers = [ServerAddress(address, client_curve(network, address)) for address in addresses]
        pool = stack.enter_context(closing(ServerPool(servers, transport, MonotonicClock())))
        pool.start()
        until(lambda: reply(good, KeepAlive()))
        refusals: list[str] = []
        until(lambda: refusals.extend(pool.take_refusals()) or refusals)
        assert len(refusals) == 1
        assert refusals[0].startswith(f"{addresses[0]} turns this end away: give --keys")
        until(lambda: chosen(pool) == addresses[1])
