"""Scheduler of answers: when to ask the answer server, about which frame, and how long to wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp, GroupPlace, Question, TokenPacket
from stream.answer.client import AnswerClient, may_read_ahead
from stream.answer.connection import AnswerEndpoint, ServerConnection
from stream.answer.embeddings import EmbeddedQuestion, RefusedQuestion
from stream.answer.idle import IdleFrames, IdleOutcome, IdleReader, begins_group
from stream.answer.questions import Asker, QuestionObserver, RunQuestions
from stream.answer.request import ClientOptions, GlanceOutcome, Outcome, ServerReady
from stream.answer.triggers import BESIDE, SIDE, AnswerTriggers, WatchList, WatchStates
from stream.clock import Clock
from stream.config import AnswerConfig, WatchConfig
from stream.control import FOUND, WAIT_MS, RunControl
from stream.errors import ConnectionRefused, StageDied
from stream.events import Answer, AnswerCancelled, AnswerDeltaEvent, Event, Notice, YesNoResult
from stream.protocol.messages import ServerHello
from stream.transport import Link, Transport
from stream.transport.pool import SetServers
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

NO_MEMORY = (
    "no visual memory: the answer server keeps none, so each answer is about one frame; start `serve-answers` with "
    "--memory, or give --no-memory here"
)

CANCEL_OFF = "cancel-off"
"""Code of the notice that no answer can be cancelled by a cut in this run."""

OF_ANSWERS = (AnswerDeltaEvent, Answer, AnswerCancelled)
"""Events about an answer that is being generated."""

BEFORE_FRAMES = FrameStamp(-1, 0, 0, 0)
"""Stands for the newest frame until there is one."""


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """Policy of when to ask, and how long to wait."""

    answer: AnswerConfig
    """Its triggers make answers due, and a cut may cancel an answer; without effect in lockstep."""
    query: str
    lockstep: bool
    """No frame follows an answer point before its answer."""
    source_is_drawn: bool
    """The source shows the world of a model of drawn scenes."""
    silence_limit_s: float
    """Longest silence of the answer server while an answer is due."""
    connect_limit_s: float | None = None
    """Longest time to connect to it."""
    watches: tuple[WatchConfig, ...] = ()
    """Standing questions."""
    states: WatchStates | None = None
    """Their states in the process before."""
    watches_only: bool = False
    """Nothing else is asked."""
    wall_s: Callable[[], float] | None = None
    """Return the Unix time that schedules count; None if they do not."""
    glances: bool = False
    """A model without a trained allocator glances, if it can."""
    memory: bool = False
    """Packets build on earlier ones that the model keeps, if it keeps any."""
    memory_required: bool = False
    """Report a model that keeps none."""
    idle_share: float = 0.0
    """0 if nothing is read ahead between answers; in lockstep the share of media time that pays for it."""
    askers: Callable[[RunQuestions], Iterable[Asker]] = lambda questions: ()
    """Return the parts of the run's features in its questions, in order."""

    @property
    def follows_change(self) -> bool:
        """True if the amount of change makes an answer or a check due."""
        shares = [self.answer.on_change, *(watch.on_change for watch in self.watches)]
        return any(share is not None for share in shares)


class AnswerObserver(QuestionObserver, Protocol):
    """Stage that a scheduler serves: it makes the packets, and receives events, feedback and glances.

    `idle`: what its newest frame has to read ahead.
    """

    idle: IdleFrames

    def on_feedback(self, feedback: Feedback) -> None:
        """An answer brought feedback."""
        ...

    def on_glance(self, glance: GlanceOutcome) -> None:
        """The model read an overview, of the newest frame or an earlier one."""
        ...

    def is_glance_due(self) -> bool:
        """Return whether a glance at the newest frame is due before its answer."""
        ...

    def make_glance_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | None:
        """Return the overview of the newest frame to send; None if that frame is no longer available.

        `next_place` as in `make_packet`: if the group of pictures continues, the overview is a packet in it, which may
        be empty.
        """
        ...

    def on_asked(self) -> None:
        """An answer about the newest frame was requested."""
        ...

    def on_yes_no(self) -> None:
        """Watches are evaluated with the newest frame."""
        ...

    def make_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | FramePacket | None:
        """Return the newest frame's packet; None if that frame is no longer available.

        `next_place`: frames of this run's group of pictures that the model keeps, as the place of the next frame; a
        packet in that place continues the group, any other begins a new one.
        """
        ...

    def make_full_packet(self) -> FramePacket | None:
        """Return the newest frame with all of its tokens and a separate image."""
        ...


def cancel_off() -> Notice:
    """Return the notice that in lockstep no cut can come while an answer is being generated."""
    message = (
        "answer.on_cut = cancel has no effect: a file that is read frame by frame waits for each answer, so no "
        "cut comes during an answer; give --realtime to cancel stale ones"
    )
    return Notice(code=CANCEL_OFF, message=message)


def model_notices(hello: ServerHello, policy: SchedulePolicy) -> list[Notice]:
    """Return the notices about a model that is new to a run, and what it cannot do."""
    notices = []
    if hello.notice:
        notices.append(Notice(code="model-files", message=f"{hello.model_id}: {hello.notice}"))
    if hello.known_world is not None and not policy.source_is_drawn:
        notices.append(Notice(code="model-world", message=MODEL_WORLD.format(world=hello.known_world)))
    if policy.glances and hello.knows_levels and not hello.allocator and not hello.attention_readable:
        notices.append(Notice(code="glances-off", message=NO_GLANCE.format(model=hello.model_id)))
    if policy.memory_required and not hello.memory_tokens:
        notices.append(Notice(code="memory-off", message=NO_MEMORY))
    return notices


class AnswerScheduler:
    """Scheduler of one run's answers; belongs to the allocate stage's thread.

    `client` holds the state of the answer protocol, `connection` the link to the server from `connect` on.
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
        self._observer = observer
        self._control = control
        self._triggers = AnswerTriggers(policy.answer)
        self._watches = WatchList(policy.watches, policy.wall_s, policy.states)
        self._lost_answers = 0
        self._glances = self._stale_glances = 0
        self._had_server = False
        self._clock = clock
        self._stamp = BEFORE_FRAMES
        self.client = AnswerClient(policy.query, options)
        self._idle = IdleReader(policy.idle_share, self.client.requests, observer.idle, clock)
        self._questions = RunQuestions(
            policy.query,
            self.client,
            observer,
            self._triggers,
            self._watches,
            policy.askers,
            watches_only=policy.watches_only,
            knows_source=policy.source_is_drawn,
        )

    @property
    def drops(self) -> dict[str, int]:
        """Counts of answer points that came while another one waited, of lost and cancelled answers, of glances that
        were lost or made stale by a cut or another query, and of invalid messages of the answer server."""
        client = self.client
        counts = {
            "answer.busy": self._triggers.missed_count,
            "answer.lost": client.requests.lost_answers,
            "answer.cancelled": client.requests.cancelled_answers,
        }
        seldom = {
            "answer.refused": client.refused_messages,
            "glance.lost": client.requests.lost_glances,
            "glance.stale": self._stale_glances,
        }
        return counts | {queue: count for queue, count in seldom.items() if count}

    def connect(self, transport: Transport) -> None:
        """Begin to connect to the answer server."""
        self.connection = ServerConnection(self.client, self._endpoint, self.client.options, transport, self._clock)

    @property
    def link(self) -> Link:
        """Link to the answer server; replaced after a loss."""
        return self.connection.link

    def cancel(self) -> None:
        """Cancel the open answer, and leave the server. A server that is gone need not receive this."""
        self.client.leave(cancel=True)
        self.connection.flush()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def wait_until_ready(self) -> None:
        """Wait until the answer server has loaded its model, or the run ends; no request is in flight yet.

        Raises ConnectionRefused if no server is reached within `connect_limit_s`.
        """
        limit_s = self._policy.connect_limit_s
        waited_ms = 0
        while not self.client.ready and not self._control.ending:
            self.process_replies(WAIT_MS)
            waited_ms += WAIT_MS
            if limit_s is not None and waited_ms > limit_s * MS_PER_S and not self.connection.has_server:
                if self.connection.problems:
                    problems = f" ({self.connection.problems})"
                else:
                    problems = ""
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
        """Process the next frame, and ask if an answer is due; in lockstep, wait for the end of the answer.

        Args:
            stamp: stamp of the frame.
            time_ns: time of the triggers in nanoseconds: media time of a file, capture time of a live source.
            change: relevance-weighted change since the last answer, 0 to 1.
            cut: whether a shot begins with this frame.
            discontinuity: whether the frame cannot be compared with the one before.
            change_since_look: relevance-weighted change since the last evaluation of the watches, 0 to 1.
        """
        self._stamp = stamp
        if cut or discontinuity:
            self.client.on_cut()
        if (cut or discontinuity) and self._policy.answer.on_cut == "cancel":
            self._cancel_stale_answer(stamp, "cut" if cut else "discontinuity")
        if not self._policy.watches_only:
            self._triggers.observe(time_ns, change=change, cut=cut, discontinuity=discontinuity)
        if self._watches:
            at = stamp.frame_index, stamp.media_ns / NS_PER_S
            matches = self._watches.observe(time_ns, at, change=change_since_look, cut=cut, discontinuity=discontinuity)
            self._emit(matches)
        if self._policy.lockstep:
            self._finish_asides()
            if not self._due:
                self._read_ahead_in_lockstep(time_ns)
            self._ask_and_wait()
        else:
            self.ask_if_due()

    def ask_if_due(self) -> None:
        """Send the newest frame's packet if an answer is due and a turn granted, or request a turn.

        While no answer is due, let the model read what changed, or what it has not been shown in detail.
        """
        client = self.client
        idle = self.client.requests.idle
        if self._due:
            if client.busy or not self._has_turn():
                return
            if self._may_glance():
                self._send_glance()
            else:
                self._send_packet()
        elif self._policy.lockstep:
            return  # it reads ahead between frames, by media time
        elif idle.is_granted:
            packet = self._idle.make_packet()
            client.send_idle(packet, is_beside=begins_group(packet))
            self.connection.flush()
        elif may_read_ahead(client) and self._idle.is_due():
            client.outbox.append((idle.request(), []))
            self.connection.flush()

    def _read_ahead_in_lockstep(self, time_ns: int) -> None:
        """Let the model read as many tokens as the frames since the last time pay for, and wait for that."""
        client = self.client
        idle = self.client.requests.idle
        tokens = self._idle.lockstep_tokens(time_ns)
        if not tokens:
            return
        self._wait_for(lambda: not client.busy)
        if client.requests.recalls_next:
            # nothing was read ahead by a model that does not, so no packet was chosen either
            if client.hello is not None and client.hello.reads_ahead:
                self._idle.recall(tokens)
        elif may_read_ahead(client):
            client.outbox.append((idle.request(in_lockstep=True), []))
            self._wait_for(lambda: idle.is_granted or not idle.is_open)
            if idle.is_granted:
                client.send_idle(self._idle.make_packet(tokens))
                self._wait_for(lambda: not idle.is_open)

    def finish(self, *, last_answer: bool) -> None:
        """Request the last answer, if the run ends with one, and wait for open requests."""
        self._questions.finish()
        self._finish_asides()
        if last_answer:
            self._triggers.finish()
            self._watches.finish()
            self._ask_and_wait()
        self._wait_for(lambda: not self.client.busy)
        self.client.leave()
        self.connection.flush()

    def process_replies(self, timeout_ms: int) -> None:
        """Pass on the events and feedback of the answer server. Raises CancelledError once the run is cancelled."""
        self._control.check()
        client = self.client
        for command in self._control.take_commands():
            if isinstance(command, SetServers):
                self.connection.set_servers(command.servers)
            else:
                self._questions.follow(command)
        for outcome in self.connection.exchange(timeout_ms):
            self._take(outcome)
        if client.requests.lost_answers > self._lost_answers:
            self._watches.retry()
            if (asker := self._questions.asking) is not None and asker.is_sent:
                asker.on_lost()
        self._lost_answers = client.requests.lost_answers
        if not client.ready or client.busy:
            return
        questions = self._questions
        if any(asker.waiting for asker in questions.askers) or questions.text != questions.query:
            questions.go_on(has_frame=self._stamp is not BEFORE_FRAMES)
            self.connection.flush()

    def check_timeout(self) -> None:
        """Give up an answer server that is silent for too long. Raises StageDied if it has no successor, and in
        lockstep if no supervisor provides one."""
        limit_s = self._policy.silence_limit_s
        connection = self.connection
        if self._policy.lockstep and not self._endpoint.supervised and connection.absence.elapsed_s > limit_s:
            address = self._endpoint.endpoint
            raise StageDied("answer", f"gone for {limit_s:g} s; restart `serve-answers` at {address}")
        if connection.silence.elapsed_s <= limit_s:
            return
        if not self.client.options.reconnect:
            raise StageDied("answer", f"silent for {limit_s:g} s; raise pipeline.timeout_s for slow models")
        self._endpoint.on_timeout()
        connection.give_up(f"silent for {limit_s:g} s")

    def _take(self, outcome: Outcome) -> None:
        """Pass on an outcome of the server's messages, and act on it."""
        if isinstance(outcome, ServerReady):
            self._questions.on_ready()
            self._on_ready()
        elif isinstance(outcome, (EmbeddedQuestion, RefusedQuestion)):
            self._questions.on_outcome(outcome)
        elif isinstance(outcome, Feedback):
            self._observer.on_feedback(outcome)
        elif isinstance(outcome, GlanceOutcome):
            self._on_glance(outcome)
        elif isinstance(outcome, IdleOutcome):
            self._observer.idle.on_end(outcome.place, rebuilt=outcome.rebuilt)
        elif isinstance(outcome, YesNoResult):
            self._emit(self._watches.update(outcome))
        elif (asker := self._questions.asking) is not None and asker.is_sent and isinstance(outcome, OF_ANSWERS):
            asker.on_event(outcome)
        else:
            self._emit([outcome])

    def _emit(self, events: Sequence[Event]) -> None:
        """Emit events; a match of a watch may end the run."""
        for event in events:
            self._observer.on_event(event)
            if self._watches.ends_run(event):
                self._control.end(FOUND)

    @property
    def _due_asker(self) -> Asker | None:
        """The feature whose question is to be asked now in the place of the run's own; None without one."""
        asker = self._questions.asking
        if asker is None or asker.is_sent or asker.question != self._questions.text:
            return None
        return asker

    @property
    def _due(self) -> bool:
        """True if an answer or a check of a watch is due."""
        if self._questions.asking is not None:
            return self._due_asker is not None
        return self._watches.due or self._triggers.due is not None

    def _on_ready(self) -> None:
        """Report the model of the first server; after a loss an answer is due at once, unless open requests are sent
        again."""
        client = self.client
        assert client.hello is not None
        if not self._had_server:
            self._emit(model_notices(client.hello, self._policy))
        elif not (client.options.resend_after_loss or client.has_moved):
            self._triggers.ask()
        self._had_server = True

    def _on_glance(self, glance: GlanceOutcome) -> None:
        """Pass on a glance, unless it was at another shot, or for another query."""
        if glance.stamp.epoch != self._stamp.epoch or glance.event.query != self._questions.text:
            self._stale_glances += 1
        else:
            self._observer.on_glance(glance)

    def _cancel_stale_answer(self, new: FrameStamp, by: str) -> None:
        """Cancel the answer about frames before `new`; watches that were evaluated with it are due again."""
        event = self.client.cancel_answer(new, by)
        if event is None:
            return
        self.connection.flush()
        self._take(event)
        self._watches.retry()

    def _has_turn(self) -> bool:
        self.client.request_turn(self._clock.now_ns())
        self.connection.flush()
        return self.client.may_send

    def _ask_and_wait(self) -> None:
        """If an answer is due: glance if that is due, ask, and wait for the answer."""
        if not self._due:
            return
        self._glance_and_wait()
        if outcomes := self.client.requests.recall(self._stamp):
            self._triggers.fire()
            if self._policy.memory:  # the group of pictures continues as it did
                self.client.requests.group.add(self._observer.make_packet(self.client.requests.group.next_place))
            self._observer.on_asked()
            for outcome in outcomes:
                self._take(outcome)
        else:
            self._wait_for(self._has_turn)
            if self.client.may_send:
                self._send_packet()
        self._wait_for(lambda: not self.client.busy)

    def _finish_asides(self) -> None:
        """Wait for the answers to the questions of features that take the place of the run's own."""
        questions = self._questions
        while questions.asking is not None:
            self._wait_for(lambda: self._due_asker is not None or questions.asking is None)
            if self._due_asker is None:
                return
            self._ask_and_wait()
            if self._due_asker is not None:  # its frame is gone
                return

    def _glance_and_wait(self) -> None:
        """Glance if that is due, or recall the glance from the journal, and wait for the result."""
        self._wait_for(lambda: not self.client.busy)
        while self._may_glance():
            outcomes = self.client.requests.recall_glance(self._stamp)
            if outcomes is not None:
                self.client.requests.group.add(self._observer.make_glance_packet(self.client.requests.group.next_place))
                for outcome in outcomes:
                    self._take(outcome)
                return
            self._wait_for(self._has_turn)
            if not self.client.may_send or not self._send_glance():
                return
            self._wait_for(lambda: not self.client.busy)

    def _may_glance(self) -> bool:
        """Return whether a glance is due; False after GLANCES_A_TURN_MAX glances without a packet."""
        return self._glances < GLANCES_A_TURN_MAX and self._observer.is_glance_due()

    def _send_glance(self) -> bool:
        """Send an overview of the newest frame; return whether that frame was still available."""
        packet = self._observer.make_glance_packet(self.client.requests.group.next_place)
        if packet is None:
            return False
        self._glances += 1
        self.client.send_glance(packet, self._questions.text, self._clock.now_ns())
        self.connection.flush()
        return True

    def _send_packet(self) -> None:
        packet = self._observer.make_packet(self.client.requests.group.next_place)
        if packet is None:
            return
        self._glances = 0
        asker = self._due_asker
        is_aside = asker is not None
        wants_answer = is_aside or self._triggers.due is not None
        if is_aside:
            trigger: str = SIDE
        elif wants_answer:
            trigger = self._triggers.fire()
        else:
            trigger = ""
        checks = self._watches.fire(trigger or BESIDE)
        if checks:
            self._observer.on_yes_no()
        full_frame = None
        if wants_answer and not is_aside and self.client.requests.wants_full_frame():
            full_frame = self._observer.make_full_packet()
        questions = tuple(dict.fromkeys(check.question for check in checks))
        question = Question(self._questions.text, wants_answer=wants_answer, checks=questions)
        now_ns = self._clock.now_ns()
        self.client.send_request(
            packet, question, trigger, now_ns, checks=checks, full_frame=full_frame, is_aside=is_aside
        )
        self.connection.flush()  # before the observer's work, which may take milliseconds
        if asker is not None:
            asker.is_sent = True
        elif wants_answer or self._policy.watches_only:
            self._observer.on_asked()

    def _wait_for(self, is_done: Callable[[], bool]) -> None:
        """Process replies until `is_done`.

        If the server is not ready, the wait ends with the run, and except in lockstep as soon as the source has ended:
        in lockstep no answer is dropped.
        """
        leaving = self._questions.finishing and not self._policy.lockstep
        while not is_done() and (self.client.ready or not (self._control.ending or leaving)):
            self.process_replies(WAIT_MS)
            self.check_timeout()
