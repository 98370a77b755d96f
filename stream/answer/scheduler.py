"""Scheduler of answers: when the answer server is asked, about which frame, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from arr_coc.types import Feedback, FramePacket, FrameStamp, QueryEmbedding, TokenPacket
from stream.answer.client import AnswerClient
from stream.answer.glance import GlanceOutcome
from stream.answer.model import doubt_about
from stream.answer.request import ClientOptions
from stream.answer.triggers import AnswerTriggerOptions, AnswerTriggers, StandingQuery, StandingQueryOptions
from stream.clock import Clock
from stream.control import FOUND, WAIT_MS, RunControl
from stream.errors import ConfigError, ConnectionRefused, StageDied
from stream.events import Event, Notice, QueryChanged, YesNoResult
from stream.protocol.buffers import SharedFrameWriter
from stream.protocol.device_pixels import PixelSender
from stream.protocol.messages import ServerHello
from stream.transport import Link, LinkObserver, Transport
from stream.transport.pool import Choice, ServerAddress, ServerPool
from stream.transport.security import ClientCurve
from stream.untrusted import GLANCES_A_TURN_MAX

MS_PER_S = 1000

MODEL_WORLD = (
    "this model only knows {world}; for real video give --model Qwen/Qwen3-VL-2B-Instruct, "
    "or the folder of such a model"
)

NO_GLANCE = (
    "no glances: the attention of {model} cannot be read, so what is shown does not depend on the question; "
    "name another model with -m, or give --no-glance"
)

NOWHERE = "inproc://no-answer-server"
"""Endpoint of a link while no server's name is resolved: nobody is there."""

CANCEL_OFF = "cancel-off"
"""Code of the notice that no answer can be cancelled by a cut in this run."""

WATCHES_ONLY = "this run has only a standing query; give -q beside --until to ask other questions"


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """Policy of when to ask, and how long to wait.

    `lockstep`: at an answer point no frame follows before the answer. `silence_limit_s`: how long the answer server may
    be silent while an answer is due; `connect_limit_s`: how long connecting to it may take. `source_is_drawn`: the
    source is what a model of drawn scenes was made for. `shadow_every`: after so many answers one is verified by
    another about all of the frame. `cancel_on_cut`: a cut cancels the answer that is being generated; in lockstep none
    is being generated then. `glances`: a model without an allocator of its own glances, if it can.
    """

    triggers: AnswerTriggerOptions
    query: str
    lockstep: bool
    source_is_drawn: bool
    silence_limit_s: float
    connect_limit_s: float | None = None
    standing_query: StandingQueryOptions | None = None
    shadow_every: int | None = None
    cancel_on_cut: bool = False
    glances: bool = False

    @property
    def follows_change(self) -> bool:
        """True if how much has changed makes an answer or a check due."""
        standing = self.standing_query
        return self.triggers.on_change is not None or (standing is not None and standing.triggers.on_change is not None)


@dataclass(frozen=True, slots=True)
class AnswerEndpoint:
    """Address of the answer server, and what this end shares with it.

    `snapshot` is the memory shared with it, where it is a process of this machine; `pixels` device memory.
    `supervised`: somebody notices its death. `on_timeout` is called where it is silent for too long and its successor
    is looked for. `observer` learns all that is sent on either side. `servers`: several servers, or one by its name; by
    `choice` one of them is connected to, and `endpoint` is what people are told.
    """

    endpoint: str
    curve: ClientCurve | None = None
    snapshot: SharedFrameWriter | None = None
    pixels: PixelSender | None = None
    supervised: bool = True
    on_timeout: Callable[[], None] = lambda: None
    observer: LinkObserver | None = None
    servers: tuple[ServerAddress, ...] = ()
    choice: Choice = "spread"

    def open_pool(self, transport: Transport, clock: Clock) -> ServerPool | None:
        """Return a pool of several servers, which has been started; None for one at an address that stays."""
        if not self.servers:
            return None
        pool = ServerPool(self.servers, transport, clock, self.choice)
        pool.start()
        return pool

    def connect(self, transport: Transport, control: RunControl, pool: ServerPool | None = None) -> Link:
        """Return a new link; for the thread that calls this."""
        endpoint, curve, watched = self.endpoint, self.curve, not self.endpoint.startswith("inproc://")
        if pool is not None:
            member = pool.choose()
            endpoint, curve = (NOWHERE, None) if member is None else (member.endpoint, member.server.curve)
        return transport.link(endpoint, check=control.check, curve=curve, watched=watched, observer=self.observer)


class AnswerObserver(Protocol):
    """Stage that a scheduler serves: it makes the packets, and takes what the answers bring."""

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding) -> None:
        """A query is in force, of a model that may be another one than before."""
        ...

    def on_feedback(self, feedback: Feedback) -> None:
        """An answer brought feedback."""
        ...

    def on_glance(self, glance: GlanceOutcome) -> None:
        """The model looked at an overview; of the newest frame, or of one that is past by now."""
        ...

    def is_glance_due(self) -> bool:
        """Return whether the model is to look at an overview of the newest frame before it is asked about it."""
        ...

    def make_glance_packet(self) -> TokenPacket | None:
        """Return the newest frame's overview, which is sent; None where that frame is not there any more."""
        ...

    def on_event(self, event: Event) -> None:
        """Something is to be emitted."""
        ...

    def on_asked(self) -> None:
        """The newest frame is being answered about."""
        ...

    def on_yes_no(self) -> None:
        """The standing query is evaluated with the newest frame."""
        ...

    def make_packet(self) -> TokenPacket | FramePacket | None:
        """Return the newest frame's packet; None where that frame is not there any more."""
        ...

    def make_full_packet(self) -> FramePacket | None:
        """Return the newest frame with all of its tokens and an image of its own."""
        ...


def cancel_off() -> Notice:
    """Return the notice that in lockstep no cut can come while an answer is being generated."""
    message = (
        "answer.on_cut = cancel has no effect: a file that is read frame by frame waits for each answer, so no "
        "cut comes while one is spoken; give --realtime to cancel stale ones"
    )
    return Notice(code=CANCEL_OFF, message=message)


class AnswerScheduler:
    """Scheduler of one run's answers; belongs to the allocate stage's thread.

    `client` is the connection to the answer server; `client.link` is another one once that was lost.
    """

    def __init__(
        self,
        policy: SchedulePolicy,
        endpoint: AnswerEndpoint,
        options: ClientOptions,
        observer: AnswerObserver,
        control: RunControl,
        clock: Clock,
    ) -> None:
        self._policy = policy
        self._endpoint = endpoint
        self._options = options
        self._observer = observer
        self._control = control
        self._triggers = AnswerTriggers(policy.triggers)
        self._standing = None if policy.standing_query is None else StandingQuery(policy.standing_query)
        self._answers_queries = policy.standing_query is None or not policy.standing_query.only_query
        self._lost_answers = self._answers = 0
        self._glances = self._stale_glances = 0
        self._model_known = self._finishing = False
        self._query = policy.query
        self._clock = clock
        self.client = AnswerClient(policy.query, options, clock)

    @property
    def drops(self) -> dict[str, int]:
        """Answer points that came while another one still waited, answers that were lost or cancelled, glances that
        were lost or came to nothing because of a cut or another query, and messages of the answer server that it may
        not send."""
        client = self.client
        dropped = {
            "answer.busy": self._triggers.missed,
            "answer.lost": client.requests.lost_answers,
            "answer.cancelled": client.requests.cancelled_answers,
        }
        seldom = {
            "answer.refused": client.refused_messages,
            "glance.lost": client.requests.glances.lost,
            "glance.stale": self._stale_glances,
        }
        return dropped | {queue: count for queue, count in seldom.items() if count}

    def connect(self, transport: Transport) -> None:
        """Begin to connect to the answer server."""
        pool = self._endpoint.open_pool(transport, self._clock)
        self.client.open(lambda: self._endpoint.connect(transport, self._control, pool), pool)

    def wait_until_ready(self) -> None:
        """Wait until the answer server has its model, or the run ends: then nothing is in flight yet.

        Raises ConnectionRefused where there is none.
        """
        limit_s, waited_ms = self._policy.connect_limit_s, 0
        while not self.client.ready and not self._control.ending:
            self.process_replies(WAIT_MS)
            waited_ms += WAIT_MS
            if limit_s is not None and waited_ms > limit_s * MS_PER_S and not self.client.reached:
                problems = f" ({self.client.problems})" if self.client.problems else ""
                raise ConnectionRefused(
                    f"no answer server at {self._endpoint.endpoint} within {limit_s:g} s{problems}; start one there "
                    "with `serve-answers`, and check address, firewall and keys"
                )

    def observe(
        self,
        stamp: FrameStamp,
        time_ns: int,
        *,
        change: float,
        cut: bool,
        discontinuity: bool = False,
        change_since_look: float = 1.0,
    ) -> None:
        """Take the next frame, and ask where that is due; in lockstep, wait for the end of the answer."""
        self._stamp = stamp
        if cut or discontinuity:
            self.client.on_cut()
        if (cut or discontinuity) and self._policy.cancel_on_cut:
            self._cancel_stale_answer(stamp, "cut" if cut else "discontinuity")
        if self._answers_queries:
            self._triggers.observe(time_ns, change=change, cut=cut, discontinuity=discontinuity)
        if self._standing is not None:
            self._standing.triggers.observe(time_ns, change=change_since_look, cut=cut, discontinuity=discontinuity)
        if self._policy.lockstep:
            self._ask_and_wait()
        else:
            self.ask_if_due()

    def ask_if_due(self) -> None:
        """Send the newest frame's packet where an answer is due and a turn granted, or request a turn."""
        if self._due and not self.client.busy and self._has_turn():
            self._ask()

    def finish(self, *, last_answer: bool) -> None:
        """Give the last answer, where the run ends with one, and wait for what has been asked."""
        self._finishing = True
        if last_answer:
            self._triggers.finish()
            if self._standing is not None:
                self._standing.triggers.finish()
            self._ask_and_wait()
        self._wait_for(lambda: not self.client.busy)
        self.client.disconnect()

    def process_replies(self, timeout_ms: int) -> None:
        """Pass on the events and feedback of the answer server. Raises CancelledError once the run is cancelled."""
        self._control.check()
        client = self.client
        query = self._control.take_query()
        if query is not None and self._answers_queries:
            client.set_query(query)
        elif query is not None:
            self._observer.on_event(QueryChanged(query=query, error=WATCHES_ONLY))
        for event in client.receive_events(timeout_ms):
            self._emit(event)
        if self._standing is not None and client.requests.lost_answers > self._lost_answers:
            self._standing.triggers.retry()
        self._lost_answers = client.requests.lost_answers
        embedding = client.take_embedding()
        if embedding is not None:
            self._on_query(embedding)
        feedback = client.requests.take_feedback()
        if feedback is not None:
            self._observer.on_feedback(feedback)
        glance = client.requests.glances.take_outcome()
        if glance is not None:
            self._on_glance(glance)

    def check_timeout(self) -> None:
        """Give up an answer server that is silent for too long. Raises StageDied where it has no successor, and in
        lockstep where nobody sees to it that there is one."""
        limit_s = self._policy.silence_limit_s
        client = self.client
        if self._policy.lockstep and not self._options.supervised and client.absence.elapsed_s > limit_s:
            address = self._endpoint.endpoint
            raise StageDied("answer", f"gone for {limit_s:g} s; restart `serve-answers` at {address}")
        if client.silence.elapsed_s <= limit_s:
            return
        if not self._options.reconnect:
            raise StageDied("answer", f"silent for {limit_s:g} s; raise pipeline.timeout_s for slow models")
        self._endpoint.on_timeout()
        client.reconnect(f"silent for {limit_s:g} s")

    def _emit(self, event: Event) -> None:
        """Pass an event on, and what follows from it where it is a result of the standing query."""
        if self._standing is None or not isinstance(event, YesNoResult):
            self._observer.on_event(event)
            return
        for made in self._standing.update(event):
            self._observer.on_event(made)
            if self._standing.is_finished(made):
                self._control.end(FOUND)

    @property
    def _due(self) -> bool:
        """Whether an answer or an evaluation of the standing query is due."""
        standing = self._standing is not None and self._standing.triggers.due is not None
        return standing or self._triggers.due is not None

    def _on_query(self, embedding: QueryEmbedding) -> None:
        """A query is in force from now on, of a model that may be another one: an answer is due at once.

        Not so where none was lost with a server, or it is sent again: its successor has nothing to catch up on.
        """
        hello = self.client.hello
        assert hello is not None
        self._check_standing_query(hello)
        self._observer.on_model(hello, embedding)
        if self._model_known:
            if embedding.text != self._query or not (self._options.resend_after_loss or self.client.moved):
                self._triggers.ask()
        else:
            self._tell_about(hello)
        self._model_known, self._query = True, embedding.text

    def _tell_about(self, hello: ServerHello) -> None:
        """Report what is special about a model that is new to this run, and what it cannot do."""
        if hello.notice:
            self._observer.on_event(Notice(code="model-files", message=f"{hello.model_id}: {hello.notice}"))
        if hello.known_world is not None and not self._policy.source_is_drawn:
            self._observer.on_event(Notice(code="model-world", message=MODEL_WORLD.format(world=hello.known_world)))
        if self._policy.glances and not hello.allocator and not hello.attention_readable:
            self._observer.on_event(Notice(code="glances-off", message=NO_GLANCE.format(model=hello.model_id)))

    def _on_glance(self, glance: GlanceOutcome) -> None:
        """Pass on where the model looked, unless it looked at another shot, or for another query."""
        if glance.stamp.epoch != self._stamp.epoch or glance.event.query != self._query:
            self._stale_glances += 1
        else:
            self._observer.on_glance(glance)

    def _cancel_stale_answer(self, new: FrameStamp, by: str) -> None:
        """Cancel the answer about what came before the frame `new`; a standing query that was evaluated with it is due
        again."""
        event = self.client.cancel_answer(new, by)
        if event is None:
            return
        self._observer.on_event(event)
        if self._standing is not None:
            self._standing.triggers.retry()

    def _check_standing_query(self, hello: ServerHello) -> None:
        """Raises ConfigError where a model cannot know what is asked for; if forced, all results get a warning."""
        if self._standing is None:
            return
        doubt = doubt_about(
            hello.model_id, hello.known_world, hello.unseen_words, knows_source=self._policy.source_is_drawn
        )
        if doubt is not None and not self._standing.options.force:
            raise ConfigError(doubt.refusal)
        self._standing.warning = None if doubt is None else doubt.warning

    def _has_turn(self) -> bool:
        self.client.request_turn()
        return self.client.may_send

    def _ask_and_wait(self) -> None:
        """Where an answer is due: glance where that is due, ask, and wait for the answer."""
        if not self._due:
            return
        self._glance_and_wait()
        if self.client.recall(self._stamp):
            self._triggers.fire()
            self._observer.on_asked()
        else:
            self._wait_for(self._has_turn)
            if self.client.may_send:
                self._send_packet()
        self._wait_for(lambda: not self.client.busy)

    def _glance_and_wait(self) -> None:
        """Have the model look where that is due, or take from the journal where it looked, and wait for that."""
        self._wait_for(lambda: not self.client.busy)
        while self._may_glance():
            if self.client.recall_glance(self._stamp):
                self._observer.make_glance_packet()
                self.process_replies(0)
                return
            self._wait_for(self._has_turn)
            if not self.client.may_send or not self._send_glance():
                return
            self._wait_for(lambda: not self.client.busy)

    def _ask(self) -> None:
        """Send what is due next for the turn that was granted: a glance, or the packet."""
        if self._may_glance():
            self._send_glance()
        else:
            self._send_packet()

    def _may_glance(self) -> bool:
        """Return whether a glance is due; not so where one after the other comes to nothing."""
        return self._glances < GLANCES_A_TURN_MAX and self._observer.is_glance_due()

    def _send_glance(self) -> bool:
        """Send an overview of the newest frame; returns whether that frame was still there."""
        packet = self._observer.make_glance_packet()
        if packet is None:
            return False
        self._glances += 1
        self.client.send_glance(packet)
        return True

    def _send_packet(self) -> None:
        packet = self._observer.make_packet()
        if packet is None:
            return
        self._glances = 0
        wants_answer = self._triggers.due is not None
        trigger: str = self._triggers.fire() if wants_answer else ""
        yes_no_trigger: str = ""
        if self._standing is not None:
            yes_no_trigger = self._standing.triggers.fire() or trigger
            self._observer.on_yes_no()
        shadow = self._observer.make_full_packet() if wants_answer and self._shadow_due() else None
        self.client.send_request(
            packet, trigger, wants_answer=wants_answer, yes_no_trigger=yes_no_trigger, shadow=shadow
        )
        if wants_answer or not self._answers_queries:
            self._observer.on_asked()

    def _shadow_due(self) -> bool:
        """Count answers; return whether this one is to be verified."""
        self._answers += 1
        every = self._policy.shadow_every
        return every is not None and self._answers % every == 0

    def _wait_for(self, done: Callable[[], bool]) -> None:
        """Process replies until `done`; not for longer than the run where the server is away, and may stay away: in
        lockstep no answer is left out, so there it is waited for."""
        leaving = self._finishing and not self._policy.lockstep
        while not done() and (self.client.ready or not (self._control.ending or leaving)):
            self.process_replies(WAIT_MS)
            self.check_timeout()
