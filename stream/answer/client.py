"""Client side of the answer protocol: connection, greeting, turns, silence, and the reconnection after a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp, QueryEmbedding, TokenPacket
from stream.answer.request import AnswerRequest, ClientOptions, RequestTracker
from stream.clock import Clock
from stream.control import remote_error
from stream.errors import ConnectionRefused, StageDied, TransportError
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, AnswerCancelled, Event, Notice, QueryChanged
from stream.protocol.codec import embedding_of, frame_message, token_message
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    KeepAlive,
    QueryAccepted,
    ServerHello,
    SetQuery,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.transport import Link, Received
from stream.untrusted import HEARD_AT_ONCE, MISDEEDS_MAX, REASON_CHARS_MAX, cut_to

LEAP_NS = 1 * NS_PER_S
"""The most that counts between two looks: a run that was suspended has not been kept waiting."""


class SilenceTimer:
    """Counts silence from look to look. Belongs to the thread that waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_ns = clock.now_ns()
        self._silent_ns = 0

    @property
    def silence_s(self) -> float:
        return self._silent_ns / NS_PER_S

    def look(self, *, waiting: bool, heard: bool) -> None:
        """Tells how things stand: whether anything is awaited, and whether anything has come since the last look."""
        now_ns = self._clock.now_ns()
        if heard or not waiting:
            self._silent_ns = 0
        else:
            self._silent_ns += min(now_ns - self._looked_ns, LEAP_NS)
        self._looked_ns = now_ns


class Visit:
    """A guest's side of its stay with one answer stage. Its successor gets a visit of its own, which begins afresh.

    `hello` is the greeting, None before it; `ready`: the answer stage has its model and knows the question too.
    """

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link = link
        self.hello: ServerHello | None = None
        self.ready = False
        self._joined = False
        self._wanting = False
        self._turn: int | None = None
        self._patience = SilenceTimer(clock)

    @property
    def has_turn(self) -> bool:
        """A turn was granted, and nothing has been sent for it."""
        return self._turn is not None

    @property
    def silence_s(self) -> float:
        """How long nothing has been heard while a turn or an answer is awaited; 0 where none is."""
        return self._patience.silence_s

    def join(self, message: Connect) -> None:
        """Tells who is there, once; as soon as there is somebody to tell."""
        if not self._joined:
            self._joined = self.link.offer(message)

    def want(self) -> None:
        """Asks for a turn, once; as soon as the answer stage is ready."""
        if self.ready and not self._wanting and self._turn is None:
            self._wanting = self.link.offer(TurnRequest())

    def take_turn(self, turn: int) -> None:
        """A turn has come."""
        self._turn, self._wanting = turn, False

    def lapse(self) -> None:
        """The turn that was taken came to nothing; another one may be wanted."""
        self._wanting = False

    def send(self, question: AnswerRequest, *, in_snapshot: bool) -> None:
        """Sends a question's packet for the turn that was granted; a whole frame's image may lie in the snapshot."""
        assert self._turn is not None
        number, turn, packet = question.number, self._turn, question.packet
        self._turn = None
        if isinstance(packet, TokenPacket):
            message, arrays = token_message(number, turn, packet, wants_answer=question.wants_answer)
            self.link.send(message, arrays)
        else:
            whole, arrays = frame_message(
                number, turn, packet, in_snapshot=in_snapshot, wants_answer=question.wants_answer
            )
            self.link.send(whole, arrays)

    def receive(self, timeout_ms: int, *, answer_due: bool) -> Received | None:
        """The next message, None where none comes in time; notes how long that has been so."""
        received = self.link.receive(timeout_ms)
        awaited = self.ready and (answer_due or self._wanting)
        self._patience.look(waiting=awaited, heard=received is not None)
        return received


FAILURES_MAX = 5
"""Answers that may fail one after the other before the conversation is given up."""

SPOILT_MAX = 3
"""Times that an answer may come to nothing because what was sent meanwhile cannot be read, before that is a failure."""

QUERIES_KNOWN = 1_024
"""Of the questions that were put, so many of the last are known again when they are answered: more than anybody puts
while a slow model gives one answer."""


class AnswerClient:
    """What has been asked, what has been heard, and whether it is this process's turn.

    `connect` makes the link, again after a loss. `hear` yields the events that waiting messages make, and keeps what
    its reader takes: `hello`, `take_embedding`, `take_feedback`. A message that an answer stage may not send is dropped
    and told once; `refused` counts them.
    """

    def __init__(self, connect: Callable[[], Link], clock: Clock, query: str, manners: ClientOptions) -> None:
        self._connect = connect
        self._clock = clock
        self._query = query
        self._next_query: str | None = None
        self._manners = manners
        self._failures = 0
        self._recalled: list[Event] = []
        self._news: list[Event] = []
        self._without_answers = False
        self._queries: deque[str] = deque([query], maxlen=QUERIES_KNOWN)
        self._askings_due = 1
        self._misdeeds = self._spoilt = 0
        self._misdeed_told = False
        self.refused = 0
        self._embedding: QueryEmbedding | None = None
        self._awaited = RequestTracker(manners, clock)
        self._visit = Visit(connect(), clock)
        self._lost_once = False
        self._away = SilenceTimer(clock)

    @property
    def link(self) -> Link:
        """The way to the answer stage; another one once that was lost."""
        return self._visit.link

    @property
    def hello(self) -> ServerHello | None:
        """The answer stage's greeting, None before it."""
        return self._visit.hello

    @property
    def ready(self) -> bool:
        """The answer stage has its model and knows the question."""
        return self._visit.ready

    @property
    def wants_packet(self) -> bool:
        """It is this process's turn."""
        return self._visit.has_turn and self._awaited.question is None

    @property
    def busy(self) -> bool:
        """An answer is awaited."""
        return self._awaited.question is not None or bool(self._recalled)

    @property
    def silence_s(self) -> float:
        """How long nothing has been heard while a turn or an answer is awaited; 0 where none is."""
        return self._visit.silence_s

    @property
    def away_s(self) -> float:
        """How long no answer stage has been ready since one was lost; 0 where none was."""
        return self._away.silence_s

    @property
    def given_up(self) -> int:
        """Answers that were lost with an answer stage."""
        return self._awaited.given_up

    @property
    def cancelled(self) -> int:
        """Answers that a cut made stale."""
        return self._awaited.cancelled

    def want(self) -> None:
        """Asks for a turn, once; as soon as the answer stage is ready."""
        self._visit.want()

    def recall(self, stamp: FrameStamp) -> bool:
        """Whether the journal holds the answer about this frame; if so, it comes with the next `hear`."""
        found = self._awaited.recall(stamp)
        self._recalled += found
        return bool(found)

    def ask(
        self,
        packet: TokenPacket | FramePacket,
        trigger: str,
        *,
        wants_answer: bool = True,
        look_trigger: str = "",
        shadow: FramePacket | None = None,
    ) -> None:
        """Sends a packet for the turn that was granted. A FramePacket's image may change once this has returned.

        Without `wants_answer` only the standing question is looked at. `shadow`: the same frame whole, with an image of
        its own, which is asked about in a turn of its own after the answer, to compare.
        """
        number, now_ns = self._awaited.number, self._clock.now_ns()
        question = AnswerRequest(
            number, packet, trigger, now_ns, wants_answer=wants_answer, look_trigger=look_trigger, shadow=shadow
        )
        self._awaited.open(question)
        self._send(question)

    def cancel_answer(self, new: FrameStamp, by: str = "cut") -> AnswerCancelled | None:
        """Drops the answer that is being spoken: `by` says what made it stale, `new` is the first frame after that.

        Returns the event that tells of it; None where no answer was being spoken. A turn may be wanted at once.
        """
        event = self._awaited.cancel(new, by)
        if event is not None:
            self.link.offer(Cancel())
        return event

    def put_question(self, query: str) -> None:
        """The question from the next packet on; an `Asked` event tells whether it was taken."""
        self._next_query = query
        self._queries.append(query)
        if self.ready:
            self._askings_due += 1
            self.link.send(SetQuery(query=query))

    def take_embedding(self) -> QueryEmbedding | None:
        """The embedding of a question that has come to hold since the last call."""
        embedding, self._embedding = self._embedding, None
        return embedding

    def take_feedback(self) -> Feedback | None:
        """What the answers have taught since the last call; the newest one where there were several."""
        return self._awaited.take_feedback()

    def leave(self) -> None:
        """Nothing more will be asked. A peer that is gone need not be told."""
        self.link.offer(Disconnect())

    def cancel(self) -> None:
        """What was asked is not wanted any more. A peer that is gone need not be told."""
        self.link.offer(Cancel())
        self.link.offer(Disconnect())

    def close(self) -> None:
        self.link.close()

    def hear(self, timeout_ms: int) -> Iterator[Event]:
        """The events of the messages that are there; waits at most `timeout_ms` for the first one.

        Leaves some for the next call where somebody talks without end.

        Raises StageDied, or the error that the user can put right, where the answer stage says that it failed or is
        gone for good; ConnectionRefused where it does not accept this end's key.
        """
        recalled, self._recalled = self._recalled, []
        yield from recalled
        yield from self._take_news()
        self._away.look(waiting=self._lost_once and not self.ready, heard=False)
        self._visit.join(
            Connect(query=self._query, encode=self._manners.encode, standing_query=self._manners.standing_query)
        )
        for number in range(HEARD_AT_ONCE):
            heard, event = self._hear_one(0 if recalled or number else timeout_ms)
            if event is not None:
                yield event
            if not heard:
                break
        if self.link.lost:
            if self._manners.rejoin and self._awaited.question is not None and not self._manners.supervised:
                self._fail("the connection was lost")
            elif self._manners.rejoin:
                self.lose("the connection was lost")
            elif not self._manners.supervised:
                raise StageDied("answer", "the connection to it was lost; is `serve-answers` still running there?")
        yield from self._take_news()

    def lose(self, reason: str) -> None:
        """Gives up this answer stage, and looks for its successor.

        `reason` is told by `hear` where nobody else tells of a death, once until there is an answer again.
        """
        self.link.close()
        self._awaited.give_up()
        self._lost_once = True
        self._embedding = None  # of a greeting that may have come in the same breath
        if not self._manners.supervised and not self._without_answers:
            self._without_answers = True
            self._news.append(Notice(code=ANSWERS_LOST, message=f"no answers: {reason}; trying the answer stage again"))
        self._visit = Visit(self._connect(), self._clock)
        self._askings_due = 1

    def _hear_one(self, timeout_ms: int) -> tuple[bool, Event | None]:
        """Whether there was a message, and its event."""
        answer_due = self._awaited.question is not None
        try:
            received = self._visit.receive(timeout_ms, answer_due=answer_due)
        except TransportError as error:
            told = self._misdeed(error)
            if answer_due:
                self._spoil(error)
            return True, told
        if received is None:
            return False, None
        try:
            event = self._event(received)
        except ConnectionRefused:
            raise
        except TransportError as error:
            return True, self._misdeed(error)
        if (fault := self._awaited.take_fault()) is not None and (told := self._misdeed(fault)) is not None:
            self._news.append(told)
        return True, event

    def _misdeed(self, error: TransportError) -> Notice | None:
        """A message that may not be sent: tells the first one, and gives up who sends nothing else."""
        self.refused += 1
        self._misdeeds += 1
        if self._misdeeds >= MISDEEDS_MAX:
            self._misdeeds = 0
            self._fail(f"{MISDEEDS_MAX} messages one after the other could not be used; the last: {error}")
        if self._misdeed_told:
            return None
        self._misdeed_told = True
        message = f"{self.link.endpoint} sent what an answer stage may not; such messages are dropped: {error}"
        return Notice(code=PEER_MISBEHAVES, message=cut_to(message, REASON_CHARS_MAX))

    def _spoil(self, error: TransportError) -> None:
        """What could not be read may have been the end of the answer: it is asked for again, or given up."""
        self._spoilt += 1
        if self._spoilt >= SPOILT_MAX:
            self._spoilt = 0
            self._fail(str(error))
        else:
            self._lapsed()

    def _take_news(self) -> list[Event]:
        news, self._news = self._news, []
        return news

    def _send(self, question: AnswerRequest) -> None:
        question.asked_ns, question.first_text_ns = self._clock.now_ns(), None
        question.pieces, question.spoken = 0, ""
        self._visit.send(question, in_snapshot=self._manners.snapshot is not None)

    def _event(self, received: Received) -> Event | None:
        """Raises TransportError for a message that may not be sent."""
        message, heard_ns = received.message, self._clock.now_ns()
        if isinstance(message, TurnGrant):
            self._take_turn(message.turn)
        elif isinstance(message, AnswerDelta):
            return self._awaited.text(message, heard_ns)
        elif isinstance(message, YesNoReply):
            event = self._awaited.looked(message, received, heard_ns)
            self._goes_well()
            return event
        elif isinstance(message, AnswerReply):
            if message.query not in self._queries:
                error = TransportError("it answers a question that was not asked")
                if self._awaited.is_open(message.answer):
                    self._spoil(error)
                raise error
            answer = self._awaited.answered(message, received, heard_ns)
            self._goes_well()
            self._again()  # where the answer is to be checked
            return answer
        elif isinstance(message, QueryAccepted):
            return self._asking(message, received)
        elif isinstance(message, ServerHello):
            if self._visit.hello is not None:
                raise TransportError("it greets twice")
            self._visit.hello = message
        elif isinstance(message, TurnExpired):
            self._lapsed()
        elif isinstance(message, ErrorReply):
            self._failed(message)
        elif not isinstance(message, KeepAlive):
            raise TransportError(f"the answer stage sent a message of the wrong kind, {type(message).__name__}")
        return None

    def _take_turn(self, turn: int) -> None:
        self._visit.take_turn(turn)
        if self._awaited.question is not None:
            self._send(self._awaited.question)

    def _lapsed(self) -> None:
        self._visit.lapse()
        self._awaited.give_up()
        self._again()

    def _again(self) -> None:
        """Asks for a turn for the question that is still open."""
        if self._awaited.question is not None:
            self.want()

    def _goes_well(self) -> None:
        """The answer stage has done what it was asked for."""
        self._failures = self._misdeeds = self._spoilt = 0
        self._without_answers = False

    def _asking(self, message: QueryAccepted, received: Received) -> Event | None:
        """The question that holds now: the first one, or one that was put meanwhile."""
        if not self._askings_due or message.query not in self._queries:
            raise TransportError("it speaks of a question that was not asked")
        self._askings_due -= 1
        changed = self._next_query is not None and message.query == self._next_query
        if changed:
            self._next_query = None
        if message.error is not None:
            return QueryChanged(query=message.query, error=message.error)
        if self.hello is None:
            raise TransportError("the answer stage speaks of a question and has not said which model it has")
        self._embedding = embedding_of(message, received.parts)
        self._query = message.query
        if not self.ready:
            self._visit.ready = True
            self._again()
            if self._next_query is not None:
                self.put_question(self._next_query)
        return QueryChanged(query=message.query) if changed else None

    def _failed(self, message: ErrorReply) -> None:
        """Raises what the answer stage met, unless another one may do better."""
        error = remote_error(message.error, message.message)
        if error is not None and error.user_fixable:
            raise error
        self._fail(message.message)

    def _fail(self, reason: str) -> None:
        """Raises StageDied, unless another answer stage may do better."""
        self._failures += 1
        if not self._manners.rejoin or self._failures > FAILURES_MAX:
            raise StageDied("answer", reason)
        self.lose(reason)
