"""Pool of answer servers: it resolves their names, probes their load, and chooses the one to connect to."""

from __future__ import annotations

import ipaddress
import logging
import math
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.control import Command
from stream.errors import TransportError
from stream.protocol.messages import KeepAlive, Probe
from stream.transport.context import Transport
from stream.transport.links import Link, LinkPoller
from stream.transport.security import ClientCurve
from stream.untrusted import CLIENTS_MAX

log = logging.getLogger(__name__)

POLL_MS = 100
"""Longest wait for a message between two checks of the connections."""

REFUSES = 5
"""Standing of a server that has recently refused this run."""

STALE_NS = 5 * NS_PER_S
"""Silence after which a server is chosen only if no other one replies: it may hang, or be encoding."""

SETTLE_NS = 10 * NS_PER_S
"""Least time that a run stays with a server, unless the server goes away."""

AVOID_NS = 2 * NS_PER_S
AVOID_MAX_NS = 60 * NS_PER_S
"""Time for which a server that refused or failed is avoided: doubled each time, up to the second value."""

RESOLVE_S = 5.0
RESOLVE_MISSING_S = 1.0
"""Interval of name resolution; the shorter one while a name is unknown or one of its servers is not ready."""

Choice = Literal["spread", "order"]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server as given by the user, with the keys to connect."""

    address: str
    curve: ClientCurve | None = None

    @property
    def name(self) -> tuple[str, str] | None:
        """Host name and port if the address has to be resolved; None if it is numeric, local or a path."""
        scheme, _, place = self.address.partition("://")
        host, _, port = place.rpartition(":")
        if scheme != "tcp" or host == "localhost":
            return None
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return host, port
        return None


class SetServers(Command, frozen=True, tag="set-servers"):
    """Connect to one of these answer servers from now on; for a run with `ASSIGNED_SERVERS`."""

    newest_counts: ClassVar[bool] = True
    servers: tuple[ServerAddress, ...]


def needs_pool(servers: Sequence[ServerAddress]) -> bool:
    """Return True if there may be more than one server, or an address that changes."""
    return len(servers) > 1 or any(server.name is not None for server in servers)


def resolve(host: str, port: str) -> list[str]:
    """Return the endpoints of a name, in the order of the system's resolver. Raises OSError for an unknown name."""
    results = socket.getaddrinfo(host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM)
    return list(dict.fromkeys("tcp://{}:{}".format(*address) for *_, address in results))


@dataclass(slots=True)
class PoolMember:
    """Server of the pool: its endpoint, its newest load, and its failures.

    `group`: position of its address in the list. `load` is None until it reports that it is ready; `problem`: the error
    with which it refused this run, if any.
    """

    endpoint: str
    server: ServerAddress
    group: int
    load: KeepAlive | None = None
    heard_ns: int = 0
    connected: bool = False
    failures: int = 0
    avoided_until_ns: int = 0
    problem: Exception | None = None

    def standing(self, now_ns: int) -> int:
        """Return the rank of the server for a connection: 0 is ready, higher numbers are worse."""
        if self.problem is not None and now_ns < self.avoided_until_ns:
            return REFUSES
        if not self.connected:
            return 4
        if self.load is None or self.load.draining:
            return 3
        if now_ns < self.avoided_until_ns or self.load.clients >= CLIENTS_MAX:
            return 2
        return 1 if now_ns - self.heard_ns > STALE_NS else 0

    @property
    def clients_a_slot(self) -> float:
        """Number of clients per turn that can be served at once."""
        if self.load is None:
            return 0.0
        return self.load.clients / self.load.slots

    @property
    def label(self) -> str:
        """Address for messages: as given, with the endpoint that a name was resolved to."""
        address = self.server.address
        if address == self.endpoint:
            return address
        return f"{address} ({self.endpoint.partition('://')[2]})"

    @property
    def refusal(self) -> str:
        """Message of its refusal, which names it once."""
        problem = str(self.problem)
        names_endpoint = problem.startswith(self.endpoint)
        if names_endpoint:
            return self.label + problem.removeprefix(self.endpoint)
        return f"{self.label} refuses this run: {problem}"


class ServerPool:
    """Pool of the answer servers of one run.

    `choice`: "spread" takes the server with the fewest clients per slot, "order" the first ready one of the list;
    servers of one name share its place, and are spread. A thread probes all servers from `start` to `close`; the other
    methods are for the thread of the run's client. Servers are identified by the endpoints of their links. Probes have
    separate connections with a heartbeat, which continues while a server is busy with an answer, and stops if its
    process ends or is suspended.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        transport: Transport,
        clock: Clock,
        choice: Choice = "spread",
        resolver: Callable[[str, str], list[str]] = resolve,
    ) -> None:
        self._servers: tuple[ServerAddress, ...] = ()
        self._transport = transport
        self._clock = clock
        self._choice = choice
        self._resolver = resolver
        self._lock = threading.Lock()
        self._members: dict[str, PoolMember] = {}
        self._unresolved: dict[ServerAddress, str] = {}
        self._new_refusals: list[str] = []
        self._refused: set[str] = set()
        self._chosen_ns = 0
        self._probes: dict[str, ServerProbe] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.set_servers(servers)

    def set_servers(self, servers: Sequence[ServerAddress]) -> None:
        """Replace the list of servers, which may be empty for a while. Servers that stay keep their state."""
        with self._lock:
            previous = self._servers
            self._servers = tuple(servers)
            for endpoint, member in list(self._members.items()):
                if member.server in servers:
                    member.group = self._servers.index(member.server)
                else:
                    del self._members[endpoint]
            self._unresolved = {server: reason for server, reason in self._unresolved.items() if server in servers}
            new_servers = [server for server in servers if server not in previous]
            self._unresolved |= {
                server: f"{server.name[0]} is not resolved yet" for server in new_servers if server.name
            }
        for server in new_servers:
            if server.name is None:
                self._set_members(server, [server.address])
            elif self._threads:
                self._start_thread("resolve", self._resolve_again, server, *server.name)

    def start(self) -> None:
        """Start resolving names and probing servers."""
        for server in self._servers:
            if server.name is not None:
                self._start_thread("resolve", self._resolve_again, server, *server.name)
        self._start_thread("probe", self._probe_again)

    def close(self) -> None:
        """End the threads, without joining one that waits for a name server."""
        self._stopping.set()
        for thread in self._threads:
            if thread.name.startswith("probe"):
                thread.join(2.0)

    def __contains__(self, endpoint: str) -> bool:
        """Return True if a server is currently in the pool."""
        with self._lock:
            return endpoint in self._members

    @property
    def hopeful(self) -> bool:
        """True while some server is connected, and so is or may become ready."""
        now_ns = self._clock.now_ns()
        with self._lock:
            return any(member.standing(now_ns) < 4 for member in self._members.values())

    @property
    def problems(self) -> str:
        """Message with the reasons that servers cannot be used; empty if none is known."""
        with self._lock:
            refusals = [member.refusal for member in self._members.values() if member.problem is not None]
            return "; ".join([*self._unresolved.values(), *refusals])

    def choose(self) -> PoolMember | None:
        """Return the server to connect to: the best one, ready or not; None while no name is resolved."""
        now_ns = self._clock.now_ns()
        with self._lock:
            self._chosen_ns = now_ns
            return min(self._members.values(), key=lambda member: self._order(member, now_ns), default=None)

    def has_fitter(self, endpoint: str) -> bool:
        """Return True if another server is a better choice, such as a ready one if this one is not."""
        now_ns = self._clock.now_ns()
        with self._lock:
            current = self._members.get(endpoint)
            standings = [member.standing(now_ns) for member in self._members.values()]
            return bool(standings) and (current is None or min(standings) < current.standing(now_ns))

    def is_lifeless(self, endpoint: str) -> bool:
        """Return True if a server's process does not answer heartbeats, while another server is usable."""
        now_ns = self._clock.now_ns()
        with self._lock:
            current = self._members.get(endpoint)
            if current is None or current.connected:
                return False
            return any(member.standing(now_ns) <= 1 for member in self._members.values() if member is not current)

    def reason_to_move(self, endpoint: str, load: KeepAlive, *, keeps_group: bool = False) -> str | None:
        """Return why a run between two answers of the server at `endpoint` should change to another ready server; None
        if it should stay.

        `load` is the server's newest load in this run. With `keeps_group` the change would lose the frames that the
        server keeps, so a run leaves only a server that goes away.
        """
        now_ns = self._clock.now_ns()
        with self._lock:
            current = self._members.get(endpoint)
            if current is not None and load.draining:
                current.load = load
            ready = [m for m in self._members.values() if m is not current and m.standing(now_ns) == 0]
            if not ready:
                return None
            if load.draining:
                return "it is draining"
            if keeps_group or now_ns - self._chosen_ns < SETTLE_NS:
                return None
            if current is None:
                return "its name leads elsewhere now"
            if self._choice == "order" and any(m.group < current.group for m in ready):
                return "one before it in the list is ready"
            beside = [m for m in ready if self._choice == "spread" or m.group == current.group]
            if _has_room_for(load, beside):
                return "others have fewer clients"
            return None

    def label(self, endpoint: str) -> str:
        """Return a server's address for messages."""
        with self._lock:
            member = self._members.get(endpoint)
            return endpoint if member is None else member.label

    def note_lost(self, endpoint: str) -> None:
        """Record the loss of the connection to a server, which is not ready until it reports so again."""
        with self._lock:
            if (member := self._members.get(endpoint)) is not None:
                member.connected = False
                member.load = None

    def note_failed(self, endpoint: str, problem: Exception | None = None) -> None:
        """Record that a server failed a request, or, with `problem`, that it refused this run.

        It is avoided for a while, each time for longer, until it gives an answer.
        """
        with self._lock:
            if (member := self._members.get(endpoint)) is not None:
                pause_ns = min(AVOID_MAX_NS, AVOID_NS << min(member.failures, 10))
                member.avoided_until_ns = self._clock.now_ns() + pause_ns
                member.failures += 1
                member.problem = problem
                if problem is not None and endpoint not in self._refused:
                    self._refused.add(endpoint)
                    self._new_refusals.append(member.refusal)

    def note_answered(self, endpoint: str) -> None:
        """Record an answer of a server, which resets its failures."""
        with self._lock:
            if (member := self._members.get(endpoint)) is not None:
                member.failures = 0
                member.avoided_until_ns = 0
                member.problem = None

    def take_refusals(self) -> list[str]:
        """Return the messages of servers that have refused this run since the last call, once per server."""
        with self._lock:
            refusals = self._new_refusals
            self._new_refusals = []
            return refusals

    def refusal_of_all(self) -> Exception | None:
        """Return the error of the first server if every server has refused this run; None if one may accept it."""
        with self._lock:
            problems = [member.problem for member in self._members.values()]
            if self._unresolved or None in problems:
                return None
            return next(iter(problems), None)

    def _order(self, member: PoolMember, now_ns: int) -> tuple[float, ...]:
        group = member.group if self._choice == "order" else 0
        return member.standing(now_ns), group, member.clients_a_slot, member.group

    def _set_members(self, server: ServerAddress, endpoints: list[str]) -> None:
        """Set the servers of an address; servers that stay keep their state."""
        with self._lock:
            if server not in self._servers:
                return
            self._unresolved.pop(server, None)
            removed_endpoints = [
                e for e, member in self._members.items() if member.server == server and e not in endpoints
            ]
            for endpoint in removed_endpoints:
                del self._members[endpoint]
            for endpoint in endpoints:
                if endpoint not in self._members:
                    self._members[endpoint] = PoolMember(endpoint, server, self._servers.index(server))

    def _all_ready(self, server: ServerAddress) -> bool:
        now_ns = self._clock.now_ns()
        with self._lock:
            members = [member for member in self._members.values() if member.server == server]
            return bool(members) and all(member.standing(now_ns) < 3 for member in members)

    def _start_thread(self, name: str, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name=f"{name}-servers", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _resolve_again(self, server: ServerAddress, host: str, port: str) -> None:
        """Resolve a name repeatedly, in a separate thread: a name server may take seconds to reply."""
        while not self._stopping.is_set() and server in self._servers:
            try:
                self._set_members(server, self._resolver(host, port))
            except OSError as error:
                reason = error.strerror or str(error)
                log.debug("cannot resolve %s: %s", host, reason)
                with self._lock:
                    if all(member.server != server for member in self._members.values()) and server in self._servers:
                        self._unresolved[server] = f"{host} cannot be resolved: {reason}"
            self._stopping.wait(RESOLVE_S if self._all_ready(server) else RESOLVE_MISSING_S)

    def _probe_again(self) -> None:
        """Probe the servers repeatedly, in a separate thread."""
        try:
            while not self._stopping.is_set():
                self.probe()
                if self._probes:
                    LinkPoller(*(probe.link for probe in self._probes.values())).wait(POLL_MS)
                else:
                    self._stopping.wait(POLL_MS / 1000)
        finally:
            for probe in self._probes.values():
                probe.link.close()

    def probe(self) -> None:
        """Keep a connection to every server, read their messages, and request their load when due.

        Called every POLL_MS in one thread, which `start` starts.
        """
        self._follow_members()
        for endpoint, probe in list(self._probes.items()):
            if not self._update(endpoint, probe):
                self._probes.pop(endpoint).link.close()

    def _follow_members(self) -> None:
        """Open connections to new servers, and close those to servers that have left the pool."""
        now_ns = self._clock.now_ns()
        with self._lock:
            members = {
                endpoint: member.server.curve
                for endpoint, member in self._members.items()
                if member.standing(now_ns) != REFUSES
            }
        for endpoint in self._probes.keys() - members.keys():
            self._probes.pop(endpoint).link.close()
        for endpoint in members.keys() - self._probes.keys():
            link = self._transport.link(endpoint, curve=members[endpoint], watched=True, heartbeat=True)
            self._probes[endpoint] = ServerProbe(link, self._clock)

    def _update(self, endpoint: str, probe: ServerProbe) -> bool:
        """Read a server's messages; return False if a new connection is needed."""
        try:
            load = probe.update()
            is_lost = probe.link.is_lost
        except TransportError as error:  # it rejects the key, or is no answer server
            load = None
            is_lost = True
            self.note_failed(endpoint, error)
        with self._lock:
            if (member := self._members.get(endpoint)) is not None:
                member.connected = probe.link.is_connected if not is_lost else False
                if is_lost:
                    member.load = None
                elif load is not None:
                    member.load = load
                    member.heard_ns = self._clock.now_ns()
        return not is_lost


class ServerProbe:
    """Connection that requests the load of one server; belongs to the thread that made it."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link = link
        self._clock = clock
        self._asked_ns: int | None = None
        self._due = True

    def update(self) -> KeepAlive | None:
        """Return the newest load, if any arrived, and request the next one when due; one request at a time.

        Raises TransportError for a message that no server sends, or that was not requested.
        """
        load = None
        while (envelope := self.link.receive()) is not None:
            if not isinstance(envelope.message, KeepAlive):
                raise TransportError(f"{type(envelope.message).__name__} in reply to a probe")
            if self._due:
                raise TransportError("it reports its load unasked")
            load = envelope.message
            self._due = True
        now_ns = self._clock.now_ns()
        # interval of the requests for a server's load
        if (
            self._due
            and (self._asked_ns is None or now_ns - self._asked_ns >= 1 * NS_PER_S)
            and self.link.offer(Probe())
        ):
            self._asked_ns = now_ns
            self._due = False
        return load


def _has_room_for(load: KeepAlive, others: Sequence[PoolMember]) -> bool:
    """Return True if a client, by its place, exceeds the share of its server with this load, and another server has
    fewer clients than its share."""
    loads = [member.load for member in others if member.load is not None]
    clients = load.clients + sum(other.clients for other in loads)
    slots = load.slots + sum(other.slots for other in loads)

    def share(of: KeepAlive) -> int:
        return math.ceil(clients * of.slots / slots)

    return load.place >= share(load) and any(other.clients < share(other) for other in loads)
