"""A client of the answer protocol, and the test in its server's place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import Feedback, FramePacket, FrameStamp, GroupPlace, Question, TileGrid, TokenPacket
from stream.answer.client import Action, AnswerClient, Failure, Progress
from stream.answer.connection import AnswerEndpoint
from stream.answer.detections import DetectionReader
from stream.answer.embeddings import EmbeddedQuestion, RefusedQuestion
from stream.answer.filters import Continuation, FinishedAnswer, RecalledAnswer
from stream.answer.news import NewsFilter
from stream.answer.request import ClientOptions, GlanceOutcome, ServerReady
from stream.answer.structured import StructuredAnswers
from stream.answer.triggers import Check
from stream.clock import Clock
from stream.errors import ConnectionRefused, TransportError
from stream.events import PEER_MISBEHAVES, Answer, AnswerDeltaEvent, AnswerPoint, Notice
from stream.extensions.history.filter import AnswerHistory
from stream.extensions.history.section import HistorySection
from stream.extensions.shadow.checks import ShadowChecks
from stream.extensions.shadow.section import ShadowSection
from stream.protocol.codec import specs_of
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Connect,
    Embed,
    Embedded,
    KeepAlive,
    Message,
    ServerHello,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
    decode,
    encode,
)
from stream.transport import Envelope, Link, Transport
from stream.transport.pool import ServerPool
from tests.support.clock import FakeClock
from tests.support.events import answer as made_answer
from tests.support.events import make_answer_reply, make_frame_packet, make_token_packet
from tests.support.scripts import Expected, Script, check, check_all, check_fields, containing, like

MS = 1_000_000
GRID = TileGrid.of(64, 64)
STAMP = FrameStamp(frame_index=5, media_ns=2_500 * MS, capture_ns=100 * MS, epoch=3)
FEEDBACK = Feedback(STAMP, np.zeros((1, 3), np.int32), np.ones(1, np.float32), np.zeros(1, np.float32))
FEEDBACK_ARRAYS = [FEEDBACK.regions, FEEDBACK.attention, FEEDBACK.similarity]
HELLO = ServerHello(model_id="m", knows_levels=False, known_world=None)

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Action)


def received(message: Message, arrays: Sequence[np.ndarray] = ()) -> Envelope:
    """The envelope of a message as it arrives. Raises TransportError if it cannot be read."""
    return Envelope(decode(encode(message)), tuple(np.ascontiguousarray(array).data for array in arrays))


class FakeLink:
    """A link in memory, whose peer may be gone, turn it away, or take no messages."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.inbox: deque[Envelope | TransportError] = deque()
        self.outbox: deque[tuple[Message, Sequence[np.ndarray]]] = deque()
        self.timeouts_ms: list[int] = []
        self.peer_lost = self.refused = self.full = self.closed = False
        self.is_connected = True

    @property
    def is_lost(self) -> bool:
        if self.refused:
            raise ConnectionRefused("turned away")
        return self.peer_lost

    def offer(self, message: Message, arrays: Sequence[np.ndarray] = ()) -> bool:
        if not self.full:
            self.outbox.append((message, arrays))
        return not self.full

    def receive(self, timeout_ms: int = 0) -> Envelope | None:
        self.timeouts_ms.append(timeout_ms)
        message = self.inbox.popleft() if self.inbox else None
        if isinstance(message, TransportError):
            raise message
        return message

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True)
class FakeEndpoint(AnswerEndpoint):
    """Endpoint with a link in memory for each connection."""

    pool: object = None
    links: list[FakeLink] = field(default_factory=list)

    def open_pool(self, transport: Transport, clock: Clock) -> ServerPool | None:
        return cast(ServerPool | None, self.pool)

    def connect(self, transport: Transport, pool: ServerPool | None = None) -> Link:
        self.links.append(FakeLink(f"tcp://server-{len(self.links) + 1}"))
        return cast(Link, self.links[-1])


class ClientFixture:
    """A client without a connection: the test takes messages out of its outbox, and passes replies in."""

    def __init__(self, clock: FakeClock, options: ClientOptions) -> None:
        self.clock = clock
        self.watches = options.watches
        self.client = AnswerClient("what?", options)
        self.actions: list[Action] = []
        self.embedded: list[str] = []
        self.start()

    def start(self) -> None:
        self.client.connect("the server")

    def exchange(self, *messages: tuple[Message, Sequence[np.ndarray]]) -> list[Action]:
        """The actions of these messages of the server."""
        actions: list[Action] = []
        for message in messages:
            try:
                envelope: Envelope | TransportError = received(*message)
            except TransportError as error:
                envelope = error
            actions += self.client.receive(envelope, self.clock.now_ns())
        return actions

    def take_sent(self) -> tuple[Message, Sequence[np.ndarray]] | None:
        """The next message of the client; None if there is none."""
        return self.client.outbox.popleft() if self.client.outbox else None

    def hear(self, *messages: Message, arrays: Sequence[np.ndarray] = ()) -> list[object]:
        """The events of these messages; `arrays` come with the last one. All actions are in `actions`."""
        last = len(messages) - 1
        self.actions = self.exchange(*((m, arrays if i == last else ()) for i, m in enumerate(messages)))
        others = (Progress, Failure, KeepAlive, ServerReady, EmbeddedQuestion, RefusedQuestion, Feedback, GlanceOutcome)
        return [action for action in self.actions if not isinstance(action, others)]

    def events(self, kind: type[A], *messages: Message) -> list[A]:
        """The events of these messages, which must be of this kind."""
        events = self.hear(*messages)
        assert all(isinstance(event, kind) for event in events), f"{events} came"
        return cast(list[A], events)

    def of(self, kind: type[A]) -> list[A]:
        """The actions of this kind among those of the last messages."""
        return [action for action in self.actions if isinstance(action, kind)]

    def embed(self, value: float = 0.25, **fields: Any) -> list[object]:
        """Replies to the client's next Embed, with an embedding of this value unless there is an error."""
        embed = self.expect(Embed)
        self.embedded.append(embed.text)
        arrays = [] if "error" in fields else [np.full((1, 8), value, np.float32)]
        reply = Embedded(text=embed.text, is_check=embed.is_check, model_id="m", arrays=specs_of(*arrays), **fields)
        return self.hear(reply, arrays=arrays)

    def greet(self, query: str = "what?", hello: ServerHello = HELLO) -> list[object]:
        """Admits it, and returns the events."""
        self.hear()
        self.expect(Connect)
        events = self.hear(hello)
        first = len(self.embedded)
        while not self.client.ready:
            events += self.embed()
        assert self.embedded[first] == query
        return events

    def request_turn(self) -> None:
        self.client.request_turn(self.clock.now_ns())

    def send(
        self,
        packet: TokenPacket | FramePacket,
        trigger: str = "start",
        *,
        text: str = "what?",
        wants_answer: bool = True,
        checks: tuple[Check, ...] = (),
        full_frame: FramePacket | None = None,
        is_aside: bool = False,
    ) -> None:
        questions = tuple(check.question for check in checks)
        question = Question(text, wants_answer=wants_answer, checks=questions)
        now_ns = self.clock.now_ns()
        if full_frame is not None:
            assert self.client.requests.wants_full_frame()
        self.client.send_request(
            packet, question, trigger, now_ns, checks=checks, full_frame=full_frame, is_aside=is_aside
        )

    def grant(self, turn: int = 1) -> None:
        self.request_turn()
        self.expect(TurnRequest)
        self.hear(TurnGrant(turn=turn))

    def grant_again(self, turn: int, kind: type[M]) -> M:
        """Grants the turn of an open request or glance; the message in which it is sent again."""
        self.expect(TurnRequest)
        self.hear(TurnGrant(turn=turn))
        return self.expect(kind)

    def ask(self, turn: int = 1, trigger: str = "start") -> int:
        """Sends a packet, with the checks of its watches; the number of its answer."""
        self.grant(turn)
        self.send(tokens(), trigger, checks=checks_of(*self.watches, trigger=trigger))
        message = self.expect(TokenPacketMessage)
        assert message.turn == turn
        return message.answer

    def lose(self) -> list[object]:
        """Replaces the server by another one."""
        self.client.connect("another server", "loss")
        return []

    def expect(self, kind: type[M]) -> M:
        return self.expect_whole(kind)[0]

    def expect_whole(self, kind: type[M]) -> tuple[M, Envelope]:
        """The client's next message, which must be of this kind, and its parts."""
        parts = self.take_sent()
        assert parts is not None, f"no {kind.__name__} was sent"
        envelope = received(*parts)
        assert isinstance(envelope.message, kind), f"{envelope.message} was sent"
        return envelope.message, envelope

    def expect_nothing(self) -> None:
        assert self.take_sent() is None


Opener = Callable[..., ClientFixture]


class FakeJournal(Continuation):
    """Answers of an earlier run by number, and kept answers."""

    fixes_questions = True

    def __init__(self, *recalled: RecalledAnswer) -> None:
        self._recalled = {each.event.answer: each for each in recalled}
        self.kept: list[FinishedAnswer] = []

    @property
    def points(self) -> list[AnswerPoint]:
        """The events of the kept answers."""
        return [answer.event for answer in self.kept]

    def recalls(self, number: int) -> bool:
        return number in self._recalled

    def recall(self, number: int, stamp: FrameStamp) -> RecalledAnswer | None:
        recalled = self._recalled.get(number)
        assert recalled is None or recalled.event.frame_index == stamp.frame_index
        return recalled

    def on_end(self, answer: FinishedAnswer) -> None:
        self.kept.append(answer)


def client_options(
    *,
    history: int = 0,
    same_above: float | None = None,
    history_spans_cuts: bool = False,
    schema: AnswerSchema | None = None,
    shadow: ShadowSection | None = None,
    journal: Continuation | None = None,
    **options: Any,
) -> ClientOptions:
    """Options with the filters of a run: of those, a whole frame beside an answer is what shadow checks wait for."""
    filters = (
        *([] if schema is None else [StructuredAnswers(schema)]),
        *([] if same_above is None else [NewsFilter(same_above, schema)]),
        DetectionReader(None),
        AnswerHistory(HistorySection(answers=history, spans_cuts=history_spans_cuts), schema),
        ShadowChecks((shadow or ShadowSection(agree=1.0)).model_copy(update={"every": 1}), schema),
        *([] if journal is None else [journal]),
    )
    return ClientOptions(schema=None if schema is None else schema.text, filters=filters, **options)


def misdeeds(events: list[object]) -> int:
    """How often it is reported that the peer sends invalid messages."""
    return sum(isinstance(event, Notice) and event.code == PEER_MISBEHAVES for event in events)


def checks_of(*questions: str, trigger: str = "change") -> tuple[Check, ...]:
    """Checks of watches that are named after their questions."""
    return tuple(Check(question.replace(" ", "_"), question, trigger) for question in questions)


def tokens() -> TokenPacket:
    return make_token_packet(STAMP, GRID, tokens=2)


def whole_frame() -> FramePacket:
    return make_frame_packet(STAMP, GRID, 7)


def answered(number: int, **fields: Any) -> AnswerReply:
    return make_answer_reply(number, "all of it", **fields)


def answer(number: int, frame_index: int = 5) -> Answer:
    return msgspec.structs.replace(made_answer(2.5, "of old", frame_index=frame_index), answer=number)


ClientStep = Callable[[ClientFixture], object]
"""What the server of a client sends, or what the client does or sends."""


def hear(messages: Message | list[Message], *events: Expected, arrays: Sequence[np.ndarray] = ()) -> ClientStep:
    """The server sends messages, of which these events come; `arrays` come with the last message."""
    sent = messages if isinstance(messages, list) else [messages]
    return lambda server: check_all(server.hear(*sent, arrays=arrays), events)


def acted(*actions: Expected) -> ClientStep:
    """All actions of the last messages."""
    return lambda server: check_all(server.actions, actions)


def failed(reason: str, kind: type | None = None) -> ClientStep:
    """Of the last messages came a failure whose reason contains this text, and whose error is of this kind."""

    def compare(server: ClientFixture) -> None:
        (failure,) = server.of(Failure)
        check(failure, like(Failure, reason=containing(reason)))
        assert kind is None or isinstance(failure.error, kind)

    return compare


def sent(*messages: Expected) -> ClientStep:
    """The client sends these messages next."""

    def compare(server: ClientFixture) -> None:
        for message in messages:
            check(server.expect(Message), message)

    return compare


def has(**fields: object) -> ClientStep:
    """Compare fields of the client."""
    return lambda server: check_fields(server.client, fields)


def does(action: Callable[[AnswerClient], object]) -> ClientStep:
    """Do something with the client."""
    return lambda server: action(server.client)


def asks(number: int, turn: int = 1, trigger: str = "start") -> ClientStep:
    """The client requests a turn, and sends a packet with the checks of its watches, about which it awaits an answer
    of this number."""

    def ask(server: ClientFixture) -> None:
        assert server.ask(turn, trigger) == number

    return ask


def asks_again(turn: int, **fields: object) -> ClientStep:
    """The client requests a turn, and sends the same packet in it."""
    return lambda server: check(server.grant_again(turn, Message), like(TokenPacketMessage, turn=turn, **fields))


def embeds(value: float = 0.25, **fields: Any) -> ClientStep:
    """The server replies to the next question, as in `ClientFixture.embed`."""
    return lambda server: server.embed(value, **fields)


def gets_turn(turn: int, kept: tuple[int, int] | None = None) -> ClientStep:
    """The client requests a turn, and the server grants it."""

    def get(server: ClientFixture) -> None:
        server.request_turn()
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=turn, kept=None if kept is None else GroupPlace(*kept)))

    return get


def goes_on_at(place: tuple[int, int] | None) -> ClientStep:
    """Compare the place of the next packet in its group of pictures."""
    return has(requests={"group": {"next_place": None if place is None else GroupPlace(*place)}})


def after(ms: int) -> ClientStep:
    return lambda server: server.clock.advance(ms * MS)


def delta(number: int, text: str) -> AnswerDelta:
    return AnswerDelta(answer=number, text=text)


SILENT: ClientStep = ClientFixture.expect_nothing
"""The client sends nothing."""
REQUESTS_TURN: ClientStep = ClientFixture.request_turn
GREETED: ClientStep = ClientFixture.greet
"""The server admits the client."""
LOSES_SERVER: ClientStep = ClientFixture.lose
"""The server is replaced by another one."""
MISBEHAVES = like(Notice, code=PEER_MISBEHAVES)
PIECE = AnswerDeltaEvent
RESENDS = {"reconnect": True, "resend_after_loss": True}


def play(script: Script, server: ClientFixture) -> None:
    """Do the steps of a script."""
    for step in script.steps:
        step(server)
