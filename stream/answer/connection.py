"""Connection of a client to its answer server: link, pool, loss and reconnection, failover, and the failure budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from arr_coc.types import NS_PER_S
from stream.answer.client import AnswerClient, ClientPhase, Failure, Progress
from stream.answer.request import ClientOptions, Outcome
from stream.clock import Clock
from stream.errors import ConnectionRefused, StageDied, TransportError
from stream.events import ANSWERS_LOST, Notice
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import KeepAlive
from stream.transport import Envelope, Link, LinkObserver, Transport
from stream.transport.pool import Choice, ServerAddress, ServerPool
from stream.transport.security import ClientCurve
from stream.untrusted import HEARD_AT_ONCE, REASON_CHARS_MAX, cut_to

FAILURES_MAX = 5
"""Consecutive failures that a run survives."""

FAILURE_PAUSE_NS = NS_PER_S // 4
FAILURE_PAUSE_MAX_NS = 2 * NS_PER_S
"""Pause after the second consecutive failure, which doubles with each further one, and the longest pause."""

REFUSED_PAUSE_NS = NS_PER_S // 2
"""Pause before the next connection to a lost server, if something else refuses connections at its address."""

ANSWER_SERVER = "answer-server"
"""Code of the notice that names which of several servers answers, or one that refuses this run."""

LIFELESS_S = 1.0
"""Fail over after this much silence if the server's heartbeat has stopped and another server is ready."""

STEP_NS_MAX = 1 * NS_PER_S
"""Cap on the time added per update, so that a suspended process is not counted as waiting."""

NO_SERVER = "inproc://no-answer-server"
"""Endpoint of a link while no server's name is resolved: nothing listens there."""


class SilenceTimer:
    """Timer of a peer's silence, counted from update to update. Belongs to the thread that waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._updated_ns = clock.now_ns()
        self._silent_ns = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds of silence while a message is awaited; 0 if none is."""
        return self._silent_ns / NS_PER_S

    def update(self, *, waiting: bool, received: bool = False) -> None:
        """Note whether a message is awaited, and whether one was received since the last update."""
        now_ns = self._clock.now_ns()
        if received or not waiting:
            self._silent_ns = 0
        else:
            self._silent_ns += min(now_ns - self._updated_ns, STEP_NS_MAX)
        self._updated_ns = now_ns


@dataclass(frozen=True, slots=True)
class AnswerEndpoint:
    """Address of the answer server, and the resources shared with it.

    `snapshot`: memory shared with a server process on this machine; `pixels`: device memory. `supervised`: a supervisor
    notices the server's death. `on_timeout` is called after too long a silence, before the client looks for another
    server. `observers` are notified of every message sent or received. `servers`: several servers, one server by name,
    or an empty tuple until servers are assigned; `choice` selects one of them, and `endpoint` names them in messages.
    None: one server at a fixed address.
    """

    endpoint: str
    curve: ClientCurve | None = None
    snapshot: SharedFrameWriter | None = None
    pixels: PixelSender | None = None
    supervised: bool = True
    on_timeout: Callable[[], None] = lambda: None
    observers: tuple[LinkObserver, ...] = ()
    servers: tuple[ServerAddress, ...] | None = None
    choice: Choice = "spread"

    def open_pool(self, transport: Transport, clock: Clock) -> ServerPool | None:
        """Return the started pool of several servers; None for one server at a fixed address."""
        if self.servers is None:
            return None
        pool = ServerPool(self.servers, transport, clock, self.choice)
        pool.start()
        return pool

    def connect(self, transport: Transport, pool: ServerPool | None = None) -> Link:
        """Return a new link, which belongs to the calling thread."""
        endpoint = self.endpoint
        curve = self.curve
        watched = not self.endpoint.startswith("inproc://")
        if pool is not None:
            member = pool.choose()
            endpoint, curve = (NO_SERVER, None) if member is None else (member.endpoint, member.server.curve)
        return transport.link(endpoint, curve=curve, watched=watched, observers=self.observers)


class ServerConnection:
    """Connection of a client to one answer server at a time; belongs to one thread.

    `exchange` receives messages and yields their outcomes; `flush` sends the client's outbox, in which a message stays
    while the link has no room for it. After a loss the client reconnects, or connects to another server of the pool;
    between two answers it may move to a better server.
    """

    def __init__(
        self,
        client: AnswerClient,
        endpoint: AnswerEndpoint,
        options: ClientOptions,
        transport: Transport,
        clock: Clock,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._options = options
        self._transport = transport
        self._clock = clock
        self._notices: list[Notice] = []
        self._failures = 0
        self._loss_reported = self._was_lost = self._was_ready = False
        self._flush_after_ns = 0
        self._reported_server = ""
        self._move_reason = ""
        self._pool = endpoint.open_pool(transport, clock)
        self.absence = SilenceTimer(clock)
        """Time without a ready server since the last loss."""
        self._open_link()

    def _open_link(self, after: Literal["loss", "move"] | None = None) -> None:
        self.link = self._endpoint.connect(self._transport, self._pool)
        self._client.connect(self.link.endpoint, after)
        self.silence = SilenceTimer(self._clock)
        """Time without a message while a turn or an answer is awaited."""
        self._lifeless = SilenceTimer(self._clock)
        self._load = KeepAlive()

    def _reopen_link(self, after: Literal["loss", "move"] | None = None) -> None:
        self.link.close()
        self._open_link(after)

    @property
    def has_server(self) -> bool:
        """True if a server was reached that is ready or may become ready."""
        if self._pool is None:
            return self.link.is_connected
        return self._pool.hopeful

    @property
    def problems(self) -> str:
        """Known reasons that no server can be used, as text for users."""
        return "" if self._pool is None else self._pool.problems

    def close(self) -> None:
        """Close the link, and the pool."""
        self.link.close()
        if self._pool is not None:
            self._pool.close()

    def set_servers(self, servers: tuple[ServerAddress, ...]) -> None:
        """Set the servers of the pool; leave the current server at once if it is not among them."""
        assert self._pool is not None
        endpoint = self.link.endpoint
        member = endpoint in self._pool
        label = self._pool.label(endpoint)
        self._pool.set_servers(servers)
        if member and endpoint not in self._pool:
            self._on_lost(f"{label} is gone")

    def flush(self) -> None:
        """Send the client's outbox, as far as the link has room."""
        if self._clock.now_ns() < self._flush_after_ns:
            return
        outbox = self._client.outbox
        while outbox and self.link.offer(*outbox[0]):
            outbox.popleft()

    def exchange(self, timeout_ms: int) -> Iterator[Outcome]:
        """Send the outbox, and yield the outcomes of received messages; wait at most `timeout_ms` for the first one.

        One call receives at most HEARD_AT_ONCE messages. Raises StageDied, or the error that the user can fix, if the
        server reports a failure or is gone for good; ConnectionRefused if it does not accept the client's key.
        """
        yield from self._take_notices()
        self.absence.update(waiting=self._was_lost and not self._client.ready)
        self.flush()
        has_message = False
        for number in range(HEARD_AT_ONCE):
            arrival: Envelope | TransportError | None
            try:
                arrival = self.link.receive(0 if number else timeout_ms)
            except TransportError as error:
                arrival = error
            if arrival is None:
                break
            has_message = has_message or isinstance(arrival, Envelope)
            yield from self._take(arrival)
        self.silence.update(waiting=self._client.awaits_server, received=has_message)
        if self._pool is not None:
            self._follow_pool(self._pool)  # first: a server that drains may be gone by now, and nothing is lost
        self._check_link(has_message=has_message)
        self.flush()
        yield from self._take_notices()

    def give_up(self, reason: str) -> None:
        """Leave this server, and look for another one.

        `reason` is reported if no supervisor reports a death, once until the next answer.
        """
        if self._pool is not None:
            self._pool.note_lost(self.link.endpoint)
        self._was_lost = True
        if not self._endpoint.supervised and not self._loss_reported:
            self._loss_reported = True
            if self._pool is None:
                next_step = "reconnecting to the answer server"
            else:
                next_step = "looking for another server"
            self._notices.append(Notice(code=ANSWERS_LOST, message=f"no answers: {reason}; {next_step}"))
        self._reopen_link("loss")

    def _take(self, arrival: Envelope | TransportError) -> Iterator[Outcome]:
        """Pass a message to the client; yield its outcomes, and handle the actions for the connection."""
        was_ready = self._client.ready
        actions = self._client.receive(arrival, self._clock.now_ns())
        if self._client.ready and not was_ready:
            self._on_ready()
            yield from self._take_notices()
        for action in actions:
            if isinstance(action, Failure):
                self._on_failure(action)
                break  # the rest was about a server that has been left
            if isinstance(action, Progress):
                self._on_progress(action)
            elif isinstance(action, KeepAlive):
                self._load = action
            else:
                yield action

    def _take_notices(self) -> list[Notice]:
        notices = self._notices
        self._notices = []
        return notices

    def _on_ready(self) -> None:
        """Report the pool's server that answers from now on, if it has changed."""
        self._was_ready = True
        if self._pool is None:
            return
        label = self._pool.label(self.link.endpoint)
        reason = self._move_reason
        if label != self._reported_server:
            message = f"answers come from {label}" + (f" now ({reason})" if reason else "")
            self._notices.append(Notice(code=ANSWER_SERVER, message=message))
        self._reported_server = label
        self._move_reason = ""

    def _on_progress(self, progress: Progress) -> None:
        self._failures = 0
        if progress.answered:
            self._loss_reported = False
            if self._pool is not None:
                self._pool.note_answered(self.link.endpoint)

    def _on_failure(self, failure: Failure) -> None:
        """Raise the server's error, unless another server may succeed."""
        if self._pool is not None and failure.error is not None and not self._client.ready:
            self._pool.note_failed(self.link.endpoint, failure.error)
            self._reopen_link()
        elif failure.error is not None and failure.error.user_fixable:
            raise failure.error
        else:
            self._fail(failure.reason)

    def _fail(self, reason: str) -> None:
        """Count a failure, and look for another server. Raises StageDied after too many failures or without
        `reconnect`."""
        self._failures += 1
        if not self._options.reconnect or (self._failures > FAILURES_MAX and not self._options.persistent):
            raise StageDied("answer", reason)
        if self._pool is not None:
            self._pool.note_failed(self.link.endpoint)
        if self._options.persistent and self._failures > 1:
            self._pause(min(FAILURE_PAUSE_MAX_NS, FAILURE_PAUSE_NS << min(self._failures - 2, 10)))
        self.give_up(reason)

    def _pause(self, pause_ns: int) -> None:
        """Send nothing for this long."""
        self._flush_after_ns = self._clock.now_ns() + pause_ns

    def _follow_pool(self, pool: ServerPool) -> None:
        """Move from a server that is not ready to one that is, and between two answers to a better one. Raises the
        first server's error if all refuse this run and none ever admitted it."""
        refusal = None if self._was_ready else pool.refusal_of_all()
        if refusal is not None:
            raise refusal
        for message in pool.take_refusals():
            self._notices.append(Notice(code=ANSWER_SERVER, message=cut_to(message, REASON_CHARS_MAX)))
        endpoint = self.link.endpoint
        phase = self._client.phase
        if phase is ClientPhase.CONNECTING:
            if pool.has_fitter(endpoint):
                self._reopen_link()
        elif phase in (ClientPhase.READY, ClientPhase.TURN_REQUESTED):
            # Nothing is lost by a move: an open request has not been sent yet, or is sent again.
            reason = pool.reason_to_move(endpoint, self._load, keeps_group=self._client.keeps_group)
            if reason is not None:
                self._move_reason = f"{pool.label(endpoint)}: {reason}"
                self._client.leave()
                self.flush()
                self._reopen_link("move")

    def _check_link(self, *, has_message: bool) -> None:
        """Leave a server that is gone or seems to hang. Raises ConnectionRefused if it refuses the client's key, unless
        another server may accept it, or a loss came before: then another process may listen at the address."""
        try:
            is_lost = self.link.is_lost
        except ConnectionRefused as error:
            if self._pool is not None:
                self._pool.note_failed(self.link.endpoint, error)
            elif self._was_lost and self._options.reconnect:
                self._pause(REFUSED_PAUSE_NS)
            else:
                raise
            self._reopen_link()
            return
        if is_lost:
            self._on_lost("the connection was lost")
        elif self._pool is not None:
            # A server that works on an answer may be silent for long, but its process still replies to heartbeats.
            hangs = self._client.ready and self._options.reconnect and self._pool.is_lifeless(self.link.endpoint)
            self._lifeless.update(waiting=hangs, received=has_message)
            if self._lifeless.elapsed_s >= LIFELESS_S:
                self._on_lost(f"{self._pool.label(self.link.endpoint)} gives no sign of life")

    def _on_lost(self, reason: str) -> None:
        if self._options.reconnect and self._client.busy and not self._endpoint.supervised:
            self._fail(reason)
        elif self._options.reconnect:
            self.give_up(reason)
        elif not self._endpoint.supervised:
            raise StageDied("answer", "the connection to it was lost; is `serve-answers` still running there?")
