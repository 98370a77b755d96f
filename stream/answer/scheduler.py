"""Scheduler of answers: when the answer server is asked, about which frame, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arr_coc.types import Feedback, FramePacket, FrameStamp, QueryEmbedding, TokenPacket
from stream.answer.client import AnswerClient
from stream.answer.model_world import doubt_about
from stream.answer.request import ClientOptions
from stream.answer.triggers import AnswerTriggerOptions, AnswerTriggers, StandingQuery, StandingQueryOptions
from stream.clock import Clock
from stream.control import WAIT_MS, RunControl
from stream.errors import ConfigError, ConnectionRefused, StageDied
from stream.events import Event, Notice, QueryChanged, YesNoResult
from stream.protocol.buffers import SnapshotWriter
from stream.protocol.messages import ServerHello
from stream.transport import Link, Tap, Transport
from stream.transport.security import ClientCurve

MS_PER_S = 1000

MODEL_WORLD = (
    "this model only knows {world}; for real video give --model Qwen/Qwen3-VL-2B-Instruct, "
    "or the folder of such a model"
)


CANCEL_OFF = "cancel-off"
"""The code of the notice that no answer can be cancelled by a cut in this run."""

WATCHES_ONLY = "this run only watches for something; give -q beside --until for questions as well"


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """`lockstep`: at an answer point no frame follows before the answer.

    `silence_limit_s`: how long the answer stage may say nothing while an answer is due; `reach_limit_s`: how long it
    may take to be met. `knows_scenes`: the source is what a model of drawn scenes was made for. `watch`: what is
    watched for. `shadow_every`: after so many answers one is checked by another about all of the frame.
    `cancel_on_cut`: a cut cancels the answer that is being spoken; in lockstep none is being spoken then.
    """

    rules: AnswerTriggerOptions
    query: str
    lockstep: bool
    knows_scenes: bool
    silence_limit_s: float
    reach_limit_s: float | None = None
    watch: StandingQueryOptions | None = None
    shadow_every: int | None = None
    cancel_on_cut: bool = False


@dataclass(frozen=True, slots=True)
class AnswerEndpoint:
    """How the answer stage is reached.

    `snapshot` is the memory shared with it, where it is a process of this machine. `supervised`: somebody notices its
    death. `hung` is called where it says nothing for too long and its successor is looked for. `tap` learns all that is
    said on either side.
    """

    endpoint: str
    curve: ClientCurve | None = None
    snapshot: SnapshotWriter | None = None
    supervised: bool = True
    hung: Callable[[], None] = lambda: None
    tap: Tap | None = None

    def connect(self, transport: Transport, control: RunControl) -> Link:
        """A new link; for the thread that calls this."""
        watched = not self.endpoint.startswith("inproc://")
        return transport.link(self.endpoint, check=control.check, curve=self.curve, watched=watched, tap=self.tap)


@dataclass(frozen=True, slots=True)
class Listener:
    """Whom a conversation serves.

    `meet` learns of a model, and of the question's embedding; `learn` of an answer's feedback; `emit` passes an event
    on; `gather` makes the newest frame's packet, or None where there is no such frame any more; `whole` makes it with
    all of its tokens and an image of its own; `asked` says that it is being answered, `looked` that a standing question
    is asked about it.
    """

    meet: Callable[[ServerHello, QueryEmbedding], None]
    learn: Callable[[Feedback], None]
    emit: Callable[[Event], None]
    gather: Callable[[], TokenPacket | FramePacket | None]
    asked: Callable[[], None]
    looked: Callable[[], None] = lambda: None
    whole: Callable[[], FramePacket | None] = lambda: None


def cancel_off() -> Notice:
    """The notice that in lockstep no cut can come while an answer is being spoken."""
    message = (
        "answer.on_cut = cancel changes nothing here: a file that is read frame by frame waits for each answer, so no "
        "cut comes while one is spoken; give --realtime to cancel stale ones"
    )
    return Notice(code=CANCEL_OFF, message=message)


class AnswerScheduler:
    """Belongs to the allocate stage's thread."""

    def __init__(
        self,
        policy: SchedulePolicy,
        reach: AnswerEndpoint,
        manners: ClientOptions,
        listener: Listener,
        control: RunControl,
    ) -> None:
        self._policy = policy
        self._reach = reach
        self._rejoin = manners.rejoin
        self._listener = listener
        self._control = control
        self._triggers = AnswerTriggers(policy.rules)
        self._watch = None if policy.watch is None else StandingQuery(policy.watch)
        self._speaks = policy.watch is None or not policy.watch.alone
        self._lost = self._answers = 0
        self._manners = manners
        self._met = self._finishing = False
        self._asked_text = policy.query
        self._dialogue: AnswerClient | None = None

    @property
    def drops(self) -> dict[str, int]:
        """Answer points that came while another one still waited, answers that were lost or cancelled, and messages of
        the answer stage that it may not send."""
        dialogue = self._dialogue
        dropped = {
            "answer.busy": self._triggers.missed,
            "answer.lost": 0 if dialogue is None else dialogue.given_up,
            "answer.cancelled": 0 if dialogue is None else dialogue.cancelled,
        }
        if dialogue is not None and dialogue.refused:
            dropped["answer.refused"] = dialogue.refused
        return dropped

    @property
    def link(self) -> Link:
        """The way to the answer stage; another one once that was lost."""
        return self._talk.link

    def begin(self, transport: Transport, clock: Clock) -> None:
        """Looks for the answer stage."""
        self._talk = self._dialogue = AnswerClient(
            lambda: self._reach.connect(transport, self._control), clock, self._policy.query, self._manners
        )

    def greet(self) -> None:
        """Waits until the answer stage has its model, or the run ends: then nothing is in flight yet.

        Raises ConnectionRefused where there is none to be met.
        """
        limit_s, waited_ms = self._policy.reach_limit_s, 0
        while not self._talk.ready and not self._control.ending:
            self.hear(WAIT_MS)
            waited_ms += WAIT_MS
            if limit_s is not None and waited_ms > limit_s * MS_PER_S and not self._talk.link.connected:
                raise ConnectionRefused(
                    f"no answer stage at {self._reach.endpoint} within {limit_s:g} s; start one there with "
                    "`serve-answers`, and check address, firewall and keys"
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
        """Shows the next frame, and speaks where that is due; in lockstep, to the end of the answer."""
        self._stamp = stamp
        if (cut or discontinuity) and self._policy.cancel_on_cut:
            self._cancel_stale(stamp, "cut" if cut else "discontinuity")
        if self._speaks:
            self._triggers.observe(time_ns, change=change, cut=cut, discontinuity=discontinuity)
        if self._watch is not None:
            self._watch.triggers.observe(time_ns, change=change_since_look, cut=cut, discontinuity=discontinuity)
        if self._policy.lockstep:
            self._speak_now()
        else:
            self.speak_if_due()

    def speak_if_due(self) -> None:
        """Sends the newest frame's packet where an answer is due and it is this process's turn."""
        if self._due and not self._talk.busy and self._may_speak():
            self._speak()

    def finish(self, *, last_answer: bool) -> None:
        """Gives the last answer, where the run ends with one, and waits for what has been asked."""
        self._finishing = True
        if last_answer:
            self._triggers.finish()
            if self._watch is not None:
                self._watch.triggers.finish()
            self._speak_now()
        self._await(lambda: not self._talk.busy)
        self._talk.leave()

    def cancel(self) -> None:
        """What was asked is not wanted any more."""
        self._talk.cancel()

    def close(self) -> None:
        self._talk.close()

    def hear(self, timeout_ms: int) -> None:
        """Passes on what the answer stage says and teaches. Raises CancelledError once the run is cancelled."""
        self._control.check()
        talk = self._talk
        question = self._control.take_query()
        if question is not None and self._speaks:
            talk.put_question(question)
        elif question is not None:
            self._listener.emit(QueryChanged(query=question, error=WATCHES_ONLY))
        for event in talk.hear(timeout_ms):
            self._pass_on(event)
        if self._watch is not None and talk.given_up > self._lost:
            self._watch.triggers.again()
        self._lost = talk.given_up
        embedding = talk.take_embedding()
        if embedding is not None:
            self._learn_question(embedding)
        feedback = talk.take_feedback()
        if feedback is not None:
            self._listener.learn(feedback)

    def mind_silence(self) -> None:
        """Gives up an answer stage that says nothing for too long. Raises StageDied where it has no successor, and in
        lockstep where nobody sees to it that there is one."""
        limit_s = self._policy.silence_limit_s
        if self._policy.lockstep and not self._manners.supervised and self._talk.away_s > limit_s:
            raise StageDied("answer", f"gone for {limit_s:g} s; start `serve-answers` at {self._reach.endpoint} again")
        if self._talk.silence_s <= limit_s:
            return
        if not self._rejoin:
            raise StageDied("answer", f"silent for {limit_s:g} s; raise pipeline.timeout_s for slow models")
        self._reach.hung()
        self._talk.lose(f"silent for {limit_s:g} s")

    def _pass_on(self, event: Event) -> None:
        """An event, and what follows from it where it is a look."""
        if self._watch is None or not isinstance(event, YesNoResult):
            self._listener.emit(event)
            return
        for told in self._watch.take(event):
            self._listener.emit(told)
            if self._watch.over(told):
                self._control.end_on_match()

    @property
    def _due(self) -> bool:
        """Whether something is to be said, or looked at."""
        looks = self._watch is not None and self._watch.triggers.due is not None
        return looks or self._triggers.due is not None

    def _learn_question(self, embedding: QueryEmbedding) -> None:
        """A question holds from now on, of a model that may be another one: an answer is due at once.

        Not so where every answer is repeated that was lost with a model: then its successor has nothing to catch up on.
        """
        hello = self._talk.hello
        assert hello is not None
        self._doubt(hello)
        self._listener.meet(hello, embedding)
        if self._met:
            if embedding.text != self._asked_text or not self._manners.repeat:
                self._triggers.ask()
        elif hello.known_world is not None and not self._policy.knows_scenes:
            self._listener.emit(Notice(code="model-world", message=MODEL_WORLD.format(world=hello.known_world)))
        self._met, self._asked_text = True, embedding.text

    def _cancel_stale(self, new: FrameStamp, by: str) -> None:
        """Cancels the answer that is being spoken about what came before the frame `new`; a look that came with it is
        due again."""
        event = self._talk.cancel_answer(new, by)
        if event is None:
            return
        self._listener.emit(event)
        if self._watch is not None:
            self._watch.triggers.again()

    def _doubt(self, hello: ServerHello) -> None:
        """Raises ConfigError where a model cannot know what is watched for; a forced watch says so with every look."""
        if self._watch is None:
            return
        doubt = doubt_about(
            hello.model_id, hello.known_world, hello.unseen_words, knows_source=self._policy.knows_scenes
        )
        if doubt is not None and not self._watch.policy.force:
            raise ConfigError(doubt.refusal)
        self._watch.warning = None if doubt is None else doubt.warning

    def _may_speak(self) -> bool:
        self._talk.want()
        return self._talk.wants_packet

    def _speak_now(self) -> None:
        """Where an answer is due: asks for it, and waits until it has been given."""
        if not self._due:
            return
        if self._talk.recall(self._stamp):
            self._triggers.fire()
            self._listener.asked()
        else:
            self._await(self._may_speak)
            if self._talk.wants_packet:
                self._speak()
        self._await(lambda: not self._talk.busy)

    def _speak(self) -> None:
        packet = self._listener.gather()
        if packet is None:
            return
        speak = self._triggers.due is not None
        trigger: str = self._triggers.fire() if speak else ""
        look_trigger: str = ""
        if self._watch is not None:
            look_trigger = self._watch.triggers.fire() or trigger
            self._listener.looked()
        shadow = self._listener.whole() if speak and self._check_due() else None
        self._talk.ask(packet, trigger, wants_answer=speak, look_trigger=look_trigger, shadow=shadow)
        if speak or not self._speaks:
            self._listener.asked()

    @property
    def _leaving(self) -> bool:
        """The source has ended, and answers may be left out."""
        return self._finishing and not self._policy.lockstep

    def _check_due(self) -> bool:
        """Counts answers; whether this one is to be checked."""
        self._answers += 1
        every = self._policy.shadow_every
        return every is not None and self._answers % every == 0

    def _await(self, done: Callable[[], bool]) -> None:
        """Hears the answer stage until `done`; not for longer than the run where it is away, and may stay away: in
        lockstep no answer is left out, so there it is waited for."""
        while not done() and (self._talk.ready or not (self._control.ending or self._leaving)):
            self.hear(WAIT_MS)
            self.mind_silence()
