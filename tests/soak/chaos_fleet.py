"""Cameras and answer servers that die, in virtual time.

Server, pool, client, scheduler of answers and supervisor are the program's own; the links between them are simulated.

A camera shows a secret, and the model's answer lists all secrets that a client has ever shown it: so an answer that
went to another client, or a client in another one's slot, is seen in its text.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.types import (
    NS_PER_MS,
    NS_PER_S,
    Feedback,
    FramePacket,
    FrameStamp,
    GroupPlace,
    QueryEmbedding,
    TileGrid,
    TokenPacket,
    Work,
)
from stream.answer.admission import ServerOptions
from stream.answer.connection import AnswerEndpoint
from stream.answer.idle import IdleFrames
from stream.answer.model import AnswerStats, ClientQuestion, Packet
from stream.answer.request import ClientOptions, GlanceOutcome
from stream.answer.scheduler import AnswerScheduler, SchedulePolicy
from stream.answer.server import AnswerServer
from stream.answer.server_statistics import SERVING, ServerStatistics
from stream.clock import Clock
from stream.config import AnswerConfig, PipelineConfig
from stream.control import RunControl
from stream.errors import ConnectionRefused, StageDied
from stream.events import Answer, Event, Notice, Restarted
from stream.protocol.messages import Message, ServerHello, decode, encode
from stream.runtime.child import ChildProcess, ProcessSupervisor
from stream.transport import Client, Envelope, Link, ServerLink, Transport, links
from stream.transport.pool import Choice, ServerAddress, ServerPool
from tests.soak.virtual_time import VirtualProcess, VirtualTime

FRAME_NS, PROBES_NS = NS_PER_S // 4, NS_PER_S // 4
EVERY_NS, FILM_EVERY_NS = 4 * NS_PER_S, NS_PER_S // 2
HOP_NS = NS_PER_MS // 2
COARSE = 5
"""Factor of a server's waits for messages: its work after an empty wait has limits of a second."""
LOAD_S = (3.0, 10.0)
PIECE_S = (0.02, 0.15)
LONG_PREFILL, LONG_S = 0.01, 12.0
"""Share of answers that begin with a silence of LONG_S; clients must not leave a server that works."""
PIECE_CHARS = 4
STATS = AnswerStats(Work(1, 1, 1.0, 1.0, 1.0))
SILENCE_MAX_S = 45.0
GONE_UNNOTICED = 3
"""Clients that died within the same moment, or while their server stood still, and are not dropped yet."""
GRID = TileGrid.of(32, 32)


class Network:
    """Servers that are there, by endpoint."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.servers: dict[str, SimulatedServerLink] = {}
        self.names = itertools.count(1)


class SimulatedServerLink(ServerLink):
    """Server's end of simulated connections."""

    def __init__(self, network: Network, process: VirtualProcess, endpoint: str) -> None:
        self.endpoint = endpoint
        self.process = process
        self.clients: dict[Client, SimulatedLink] = {}
        self.inbox: deque[tuple[Client, Envelope]] = deque()
        self.wake: Callable[[], None] = lambda: None
        self._network = network
        network.servers[endpoint] = self

    def receive(self, timeout_ms: int = 0) -> tuple[Client, Envelope] | None:
        if not self.inbox and timeout_ms:
            self.wake = self._network.time.waker()
            self._network.time.wait(COARSE * timeout_ms * NS_PER_MS)
        return self.inbox.popleft() if self.inbox else None

    def send(self, client: Client, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        link = self.clients.get(client)
        if link is None or link.process.dead:
            self.clients.pop(client, None)
            return False
        link.deliver(_travelled(message, arrays))
        return True

    def close(self) -> None:
        if self._network.servers.get(self.endpoint) is self:
            del self._network.servers[self.endpoint]


class SimulatedLink(Link):
    """Client's end of a simulated connection: it waits for its server, and notices when that one is gone."""

    def __init__(self, network: Network, process: VirtualProcess, endpoint: str, *, heartbeat: bool) -> None:
        self._endpoint = endpoint
        self.process = process
        self._network = network
        self._heartbeat = heartbeat
        self._name = next(network.names).to_bytes(5, "big")
        self._server: SimulatedServerLink | None = None
        self._outbox: list[Envelope] = []
        self._inbox: deque[Envelope] = deque()
        self._wake: Callable[[], None] = lambda: None

    @property
    def is_connected(self) -> bool:
        self._connect()
        return self._server is not None

    @property
    def is_lost(self) -> bool:
        self._connect()
        server = self._server
        if server is None:
            return False
        stopped_ns = server.process.stopped_ns
        silent_ns = 0 if stopped_ns is None else self._network.time.now_ns() - stopped_ns
        limit_ms = links.HEARTBEAT_EVERY_MS + links.HEARTBEAT_LIMIT_MS
        return server.process.dead or (self._heartbeat and silent_ns >= limit_ms * NS_PER_MS)

    def offer(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        self._outbox.append(_travelled(message, arrays))
        self._connect()
        return True

    def receive(self, timeout_ms: int = 0) -> Envelope | None:
        self._connect()
        if not self._inbox and timeout_ms:
            self._wake = self._network.time.waker()
            self._network.time.wait(timeout_ms * NS_PER_MS)
        return self._inbox.popleft() if self._inbox else None

    def deliver(self, envelope: Envelope) -> None:
        def arrive() -> None:
            self._inbox.append(envelope)
            self._wake()

        self._network.time.at(self._network.time.now_ns() + HOP_NS, arrive)

    def close(self) -> None:
        if self._server is not None:
            self._server.clients.pop(self._name, None)

    def _connect(self) -> None:
        """Reach the server, if it runs and is not stopped, and send the waiting messages."""
        if self._server is None:
            server = self._network.servers.get(self._endpoint)
            if server is None or server.process.dead or server.process.stopped_ns is not None:
                return
            self._server = server
            server.clients[self._name] = self
        outbox, self._outbox = self._outbox, []
        for envelope in outbox:
            self._network.time.at(self._network.time.now_ns() + HOP_NS, self._arrival(self._server, envelope))

    def _arrival(self, server: SimulatedServerLink, envelope: Envelope) -> Callable[[], None]:
        def arrive() -> None:
            if not server.process.dead:
                server.inbox.append((self._name, envelope))
                server.wake()

        return arrive


def _travelled(message: Message, arrays: Sequence[npt.NDArray[Any]]) -> Envelope:
    """Return a message as it arrives."""
    return Envelope(decode(encode(message)), tuple(np.ascontiguousarray(array).data for array in arrays))


class SimulatedTransport(Transport):
    """Makes the links of one process."""

    def __init__(self, network: Network, process: VirtualProcess) -> None:
        self._network = network
        self._process = process

    def link(self, endpoint: str, *, heartbeat: bool = False, **_: Any) -> Link:
        return SimulatedLink(self._network, self._process, endpoint, heartbeat=heartbeat)

    def server_link(self, endpoint: str, curve: object = None) -> ServerLink:
        return SimulatedServerLink(self._network, self._process, endpoint)


class RememberingModel:
    """Model that answers with all secrets that the client has ever shown, piece by piece."""

    model_id = "remembering"
    knows_levels = knows_wide = can_glance = takes_device_pixels = False
    attention_readable = True
    memory = None
    notice = ""
    known_world: str | None = None
    allocator = b""

    def __init__(self, time: VirtualTime, chance: random.Random, slots: int) -> None:
        self.slots = slots
        self._time = time
        self._chance = chance
        self._numbers: dict[bytes, set[int]] = {}
        self._clients: set[bytes] = set()
        self._open: dict[ClientQuestion, str] = {}
        time.wait(_ns(chance.uniform(*LOAD_S)))

    def drop_client(self, client: bytes) -> None:
        self._numbers.pop(client, None)

    def embed_query(self, query: str) -> QueryEmbedding:
        return QueryEmbedding(query, np.zeros((1, 4), np.float32), self.model_id)

    def check_watch(self, query: str) -> tuple[str, ...]:
        return ()

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        raise NotImplementedError

    def text(self, client: bytes, packet: Packet, query: str) -> str:
        """Return the answer to a client that shows a packet."""
        assert isinstance(packet, TokenPacket)
        numbers = self._numbers.setdefault(client, set())
        numbers.add(int(packet.host_pixels[0, 0, 0, 0]))
        return expected_text(query, numbers)

    def prefill(self) -> None:
        """Take the time of a prefill: none, but for a few that are very long."""
        if self._chance.random() < LONG_PREFILL:
            self._time.wait(_ns(LONG_S))

    def decode(self) -> None:
        """Take the time of a piece of text."""
        self._time.wait(_ns(self._chance.uniform(*PIECE_S)))

    def hold(self, client: bytes) -> None:
        assert len(self._clients) < self.slots
        self._clients.add(client)

    def release(self, client: bytes) -> None:
        self._clients.discard(client)
        self._open = {question: text for question, text in self._open.items() if question.client != client}

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        self.prefill()
        for question in questions:
            assert question.client in self._clients
            self._open[question] = self.text(question.client, question.packet, question.part.text)

    def step(self) -> Sequence[ClientQuestion]:
        self.decode()
        stepped = list(self._open)
        for question in stepped:
            text = self._open[question]
            question.piece, self._open[question] = text[:PIECE_CHARS], text[PIECE_CHARS:]
            if not self._open[question]:
                self.finish(question)
        return stepped

    def finish(self, question: ClientQuestion) -> None:
        del self._open[question]
        question.ended, question.stats = True, STATS


def expected_text(query: str, secrets: set[int]) -> str:
    """Return the answer to a query of a client that has shown these secrets."""
    return f"{query} {sorted(secrets)}"


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


class MortalServer:
    """`serve-answers`, which is started again a while after it has died; with slots if it is `batched`."""

    def __init__(self, fleet: ChaosFleet, endpoint: str, *, batched: bool) -> None:
        self.endpoint = endpoint
        self._slots = 3 if batched else 1
        self.starts = 0
        self._fleet = fleet
        self.start()

    def start(self) -> None:
        """Start it, with all that it knows lost."""
        self.starts += 1
        time = self._fleet.time
        self.process = VirtualProcess(time, self.endpoint)
        self.control = RunControl()
        self.statistics = ServerStatistics(time)
        transport = SimulatedTransport(self._fleet.network, self.process)
        options = ServerOptions(self.endpoint, shared=True, statistics=self.statistics)
        server = AnswerServer(
            lambda: RememberingModel(time, self._fleet.chance, self._slots),
            options,
            transport,
            self.control,
            clock=time,
        )
        self.process.start(server.run)

    @property
    def clients(self) -> int:
        """Clients that it knows."""
        return self.statistics.figures().clients

    @property
    def serves(self) -> bool:
        """True if it could answer now."""
        alive = not self.process.dead and self.process.stopped_ns is None
        return alive and self.statistics.state == SERVING and not self.control.ending


@dataclass(frozen=True, slots=True)
class PolledEndpoint(AnswerEndpoint):
    """Endpoint whose pool is probed by a virtual thread."""

    pools: list[ServerPool] = field(default_factory=list)

    def open_pool(self, transport: Transport, clock: Clock) -> ServerPool | None:
        self.pools.append(ServerPool(self.servers, transport, clock, self.choice))
        return self.pools[-1]


class SimulatedChild(ChildProcess):
    """Frame process, as its supervisor handles it."""

    def __init__(self, process: VirtualProcess, time: VirtualTime) -> None:
        self.process = process
        self._time = time
        self._hung: float | None = None

    @property
    def died_by_signal(self) -> bool:
        return self.process.dead

    def silence_s(self) -> float:
        stopped_ns = self.process.stopped_ns
        return 0.0 if stopped_ns is None else (self._time.now_ns() - stopped_ns) / NS_PER_S

    def kill(self, hung_s: float | None = None) -> None:
        self._hung = hung_s
        self.process.kill()

    def exit_error(self) -> StageDied | None:
        return StageDied("frame", "it was killed") if self.process.dead else None

    def stop(self) -> None:
        self.process.kill()


class MortalCamera:
    """Run of one camera: its frame process under a supervisor, and its answers.

    With `lockstep` it reads a film frame by frame, and no answer may be missing.
    """

    def __init__(self, fleet: ChaosFleet, number: int, *, lockstep: bool) -> None:
        self.number = number
        self.lockstep = lockstep
        self.query = f"camera {number}?"
        self.answers = self.restarts = self.crash_loops = 0
        self.notices: Counter[str] = Counter()
        self.faults: list[str] = []
        self.able_ns = self.answered_ns = fleet.time.now_ns()
        self.longest_silence_s = 0.0
        self._fleet = fleet
        self._expected = 0
        self._frame = 0
        self.begin()

    def begin(self) -> None:
        """Begin the run."""
        policy = PipelineConfig(restart=True)
        self._supervisor = ProcessSupervisor("frames", self._start, policy, self._fleet.time)

    @property
    def process(self) -> VirtualProcess:
        """Its frame process."""
        child = self._supervisor.child
        assert isinstance(child, SimulatedChild)
        return child.process

    def poll(self) -> None:
        """Start the frame process again if it has died; after a crash loop a service manager begins anew."""
        try:
            self.restarts += isinstance(self._supervisor.poll(), Restarted)
        except StageDied:
            self.crash_loops += 1
            self.begin()
        if self.process.stopped_ns is not None:
            self.able_ns = self._fleet.time.now_ns()

    def watch_silence(self) -> None:
        """Note for how long it has had no answer, although it could ask and a server could answer."""
        if not any(server.serves for server in self._fleet.servers):
            self.able_ns = self._fleet.time.now_ns()
        silent_ns = self._fleet.time.now_ns() - max(self.able_ns, self.answered_ns)
        self.longest_silence_s = max(self.longest_silence_s, silent_ns / NS_PER_S)

    def _start(self) -> SimulatedChild:
        self.able_ns = self._fleet.time.now_ns()
        process = VirtualProcess(self._fleet.time, f"camera {self.number}")
        stage = CameraStage(self, self._fleet, process)
        process.start(stage.run)
        process.start(stage.probe)
        self._expected = 0
        return SimulatedChild(process, self._fleet.time)

    def take(self, event: Event) -> None:
        """Take an event of its frame process."""
        if isinstance(event, Notice):
            self.notices[event.message.split(":")[0] if "sign of life" not in event.message else "lifeless"] += 1
            if "sign of life" in event.message:
                self._check_lifeless(event.message)
        elif isinstance(event, Answer):
            self.answers += 1
            self.answered_ns = self._fleet.time.now_ns()
            if event.text != expected_text(self.query, {self.number}) or event.query != self.query:
                self.faults.append(f"it heard {event.text!r}")
            if event.answer < self._expected or (self.lockstep and event.answer != self._expected):
                self.faults.append(f"answer {event.answer} came where {self._expected} was expected")
            self._expected = event.answer + 1

    def _check_lifeless(self, message: str) -> None:
        for server in self._fleet.servers:
            gone_on_ns = self._fleet.time.now_ns() - self._fleet.gone_on_ns.get(server.endpoint, 0)
            stands = server.process.stopped_ns is not None or gone_on_ns < 2 * NS_PER_S
            if server.endpoint in message and not (stands or server.process.dead):
                self.faults.append(f"it left {server.endpoint}, which did not stand still")


def _no_texture(_use: object) -> Any:
    raise AssertionError("nothing is read ahead without a frame")


class CameraStage:
    """Stage of one frame process that shows frames to the scheduler of answers, and its observer."""

    def __init__(self, camera: MortalCamera, fleet: ChaosFleet, process: VirtualProcess) -> None:
        self._camera = camera
        self._fleet = fleet
        choice: Choice = "order" if camera.number % 3 == 0 else "spread"
        addresses = tuple(ServerAddress(server.endpoint) for server in fleet.servers)
        self._endpoint = PolledEndpoint("the servers", supervised=False, servers=addresses, choice=choice)
        self._transport = SimulatedTransport(fleet.network, process)
        policy = SchedulePolicy(
            answer=AnswerConfig(every_s=(FILM_EVERY_NS if camera.lockstep else EVERY_NS) / NS_PER_S),
            query=camera.query,
            lockstep=camera.lockstep,
            source_is_drawn=True,
            silence_limit_s=600.0,
        )
        options = ClientOptions(reconnect=True, resend_after_loss=camera.lockstep, persistent=not camera.lockstep)
        self.idle = IdleFrames(_no_texture, lambda: (None, None), fleet.time)
        self._scheduler = AnswerScheduler(policy, self._endpoint, options, self, RunControl(), fleet.time)
        self._stamp: FrameStamp | None = None

    def run(self) -> None:
        """Show frame after frame. Ends as the run would end with an error."""
        scheduler, time = self._scheduler, self._fleet.time
        scheduler.connect(self._transport)
        with closing(scheduler):
            scheduler.wait_until_ready()
            for index in itertools.count():
                due_ns = time.now_ns() + FRAME_NS
                self._stamp = FrameStamp(index, index * FRAME_NS, time.now_ns(), 1)
                try:
                    scheduler.observe(self._stamp, self._stamp.media_ns, change=0.0, cut=False)
                    while (left_ns := due_ns - time.now_ns()) > 0:
                        scheduler.process_replies(max(1, left_ns // NS_PER_MS))
                        scheduler.check_timeout()
                        scheduler.ask_if_due()
                except (StageDied, ConnectionRefused):
                    return

    def probe(self) -> None:
        """Probe the servers."""
        while True:
            self._fleet.time.wait(PROBES_NS)
            for pool in self._endpoint.pools:
                pool.probe()

    def make_packet(self, next_place: GroupPlace | None = None) -> TokenPacket:
        assert self._stamp is not None
        pixels = np.full((1, 3, 32, 32), self._camera.number, np.uint8)
        return TokenPacket(self._stamp, GRID, np.zeros((1, 3), np.int32), np.ones(1, np.float32), pixels)

    def on_event(self, event: Event) -> None:
        self._camera.take(event)

    def is_glance_due(self) -> bool:
        return False

    def make_glance_packet(self, next_place: GroupPlace | None = None) -> None:
        """It does not glance."""

    def make_full_packet(self) -> FramePacket | None:
        return None

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding) -> None:
        """Any will do."""

    def on_feedback(self, feedback: Feedback) -> None:
        """There is none."""

    def on_glance(self, glance: GlanceOutcome) -> None:
        """There is none."""

    def on_asked(self) -> None:
        """It keeps no account."""

    def on_yes_no(self) -> None:
        """Nothing is watched for."""


class ChaosFleet:
    """Cameras, the last of which reads a film in lockstep, and servers; something happens to them again and again."""

    def __init__(self, cameras: int, servers: int, *, every_s: float, seed: int) -> None:
        self.time = VirtualTime()
        self.network = Network(self.time)
        self.chance = random.Random(seed)
        self.deeds: Counter[str] = Counter()
        self.most_clients = 0
        self.gone_on_ns: dict[str, int] = {}
        self._every_s = every_s
        self.servers = [
            MortalServer(self, f"tcp://10.0.0.{number + 1}:5555", batched=number % 2 > 0) for number in range(servers)
        ]
        self.cameras = [MortalCamera(self, number, lockstep=number == cameras - 1) for number in range(cameras)]
        self._next_ns = self.time.now_ns() + _ns(self.chance.expovariate(1 / every_s))
        self._starts: dict[str, int] = {}

    def run(self, seconds: float) -> None:
        """Let `seconds` pass, with deaths."""
        end_ns = self.time.now_ns() + _ns(seconds)
        while self.time.now_ns() < end_ns:
            self.time.advance(NS_PER_S // 10)
            for camera in self.cameras:
                camera.poll()
                camera.watch_silence()
            self._restart_servers()
            self._count_clients()
            if self.time.now_ns() >= self._next_ns:
                self._next_ns += _ns(self.chance.expovariate(1 / self._every_s))
                self._strike()

    def close(self) -> None:
        """End all processes."""
        for camera in self.cameras:
            camera.process.kill()
        for server in self.servers:
            server.process.kill()

    def faults(self) -> list[str]:
        """Return the faults."""
        faults = [f"camera {camera.number}: {fault}" for camera in self.cameras for fault in camera.faults]
        for camera in self.cameras:
            if camera.longest_silence_s > SILENCE_MAX_S:
                faults.append(f"camera {camera.number}: no answer for {camera.longest_silence_s:.0f} s")
        if self.most_clients > len(self.cameras) + GONE_UNNOTICED:
            faults.append(f"a server had {self.most_clients} clients")
        return faults

    def _count_clients(self) -> None:
        """Those that have died are noticed with the next message to all, a second later."""
        for server in self.servers:
            self.most_clients = max(self.most_clients, server.clients)

    def _restart_servers(self) -> None:
        now_ns = self.time.now_ns()
        for server in self.servers:
            if server.process.dead:
                at_ns = self._starts.setdefault(server.endpoint, now_ns + _ns(self.chance.uniform(0, 10)))
                if now_ns >= at_ns:
                    del self._starts[server.endpoint]
                    server.start()

    def _strike(self) -> None:
        """Disturb a process at random; a film's frame process is not started again, and is left alone."""
        chance = self.chance
        victims: list[MortalServer | MortalCamera] = [*self.servers, *(c for c in self.cameras if not c.lockstep)]
        victim = chance.choice(victims)
        deed = chance.choices(["kill", "stop", "end"], [2, 2, 1])[0]
        process = victim.process
        if process.dead:
            return
        if deed == "stop":
            process.stop()
            self.time.at(self.time.now_ns() + _ns(chance.uniform(0.5, 20)), lambda: self._go_on(process))
        elif deed == "end" and isinstance(victim, MortalServer):
            victim.control.end()
        else:
            process.kill()
        self.deeds[f"{deed} {'server' if isinstance(victim, MortalServer) else 'frames'}"] += 1

    def _go_on(self, process: VirtualProcess) -> None:
        if not process.dead:
            self.gone_on_ns[process.name] = self.time.now_ns()
            process.go_on()
