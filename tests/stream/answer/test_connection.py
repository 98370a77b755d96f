"""Connection to the answer server: losses, silence, failures, and changes of server; no socket, no wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from arr_coc.errors import ContextLengthError, ModelNotFound
from arr_coc.types import NS_PER_S
from stream.answer.client import Action
from stream.answer.connection import (
    ANSWER_SERVER,
    FAILURE_PAUSE_MAX_NS,
    FAILURE_PAUSE_NS,
    FAILURES_MAX,
    REFUSED_PAUSE_NS,
    ServerConnection,
    SilenceTimer,
)
from stream.answer.embeddings import QuestionKey
from stream.answer.request import ClientOptions
from stream.errors import ConnectionRefused, StageDied, TransportError
from stream.events import ANSWERS_LOST, Answer, Notice
from stream.protocol.messages import (
    AnswerDelta,
    Connect,
    Disconnect,
    Embed,
    ErrorReply,
    GlancePacketMessage,
    KeepAlive,
    Message,
    RequestLost,
    TokenPacketMessage,
    TurnExpired,
    TurnRequest,
)
from stream.transport import Transport
from stream.transport.pool import ServerAddress
from stream.untrusted import HEARD_AT_ONCE
from tests.support.answer_client import (
    GRID,
    HELLO,
    MS,
    STAMP,
    ClientFixture,
    FakeEndpoint,
    FakeLink,
    answered,
    client_options,
    received,
)
from tests.support.clock import FakeClock
from tests.support.events import make_glance_reply, make_overview

BENT = ErrorReply(error="ArithmeticError", message="bent", details="")


class ScriptedPool:
    """Pool of servers that is scripted by a test, and records its notifications."""

    hopeful, problems = True, ""

    def __init__(self) -> None:
        self.notes: list[tuple[str, ...]] = []
        self.fitter = False
        self.reason: str | None = None
        self.refusals: list[str] = []
        self.refusal: Exception | None = None
        self.move_requests: list[tuple[KeepAlive, bool]] = []
        self.closed = self.lifeless = False
        self.members = {"tcp://server-1", "tcp://server-2"}

    def __contains__(self, endpoint: str) -> bool:
        return endpoint in self.members

    def set_servers(self, servers: Sequence[ServerAddress]) -> None:
        self.members = {server.address for server in servers}

    def is_lifeless(self, endpoint: str) -> bool:
        return self.lifeless

    def has_fitter(self, endpoint: str) -> bool:
        fitter, self.fitter = self.fitter, False
        return fitter

    def reason_to_move(self, endpoint: str, load: KeepAlive, *, keeps_group: bool = False) -> str | None:
        self.move_requests.append((load, keeps_group))
        reason, self.reason = self.reason, None
        return reason

    def take_refusals(self) -> list[str]:
        refusals, self.refusals = self.refusals, []
        return refusals

    def refusal_of_all(self) -> Exception | None:
        return self.refusal

    def label(self, endpoint: str) -> str:
        return endpoint.removeprefix("tcp://")

    def note_lost(self, endpoint: str) -> None:
        self.notes.append(("lost", self.label(endpoint)))

    def note_failed(self, endpoint: str, problem: Exception | None = None) -> None:
        self.notes.append(("failed", self.label(endpoint), str(problem)))
        if problem is not None:
            self.refusals.append(f"{self.label(endpoint)}: {problem}")

    def note_answered(self, endpoint: str) -> None:
        self.notes.append(("answered", self.label(endpoint)))

    def close(self) -> None:
        self.closed = True


class ConnectedFixture(ClientFixture):
    """Client with a connection; the test acts as its server."""

    def __init__(self, clock: FakeClock, endpoint: FakeEndpoint, options: ClientOptions) -> None:
        self._endpoint, self._options = endpoint, options
        super().__init__(clock, options)

    def start(self) -> None:
        transport = cast(Transport, None)
        self.connection = ServerConnection(self.client, self._endpoint, self._options, transport, self.clock)

    @property
    def links(self) -> list[FakeLink]:
        return self._endpoint.links

    @property
    def link(self) -> FakeLink:
        return self._endpoint.links[-1]

    def exchange(self, *messages: tuple[Message, Sequence[np.ndarray]]) -> list[Action]:
        self.link.inbox += [received(*message) for message in messages]
        return list(self.connection.exchange(0))

    def take_sent(self) -> tuple[Message, Sequence[np.ndarray]] | None:
        self.connection.flush()
        return self.link.outbox.popleft() if self.link.outbox else None

    def lose(self) -> list[object]:
        self.link.peer_lost = True
        return self.hear()


Opener = Callable[..., ConnectedFixture]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(150 * MS)


@pytest.fixture
def opened(clock: FakeClock) -> Opener:
    """Factory of one client with the given options, admitted by the server."""

    def opening(
        *, greeted: bool = True, pool: ScriptedPool | None = None, supervised: bool = True, **options: Any
    ) -> ConnectedFixture:
        endpoint = FakeEndpoint("tcp://servers", supervised=supervised, pool=pool)
        server = ConnectedFixture(clock, endpoint, client_options(**options))
        if greeted:
            server.greet()
        return server

    return opening


@pytest.fixture
def pool() -> ScriptedPool:
    return ScriptedPool()


def messages_of(events: list[object], code: str) -> list[str]:
    """Messages of the notices with this code."""
    return [event.message for event in events if isinstance(event, Notice) and event.code == code]


def test_messages_are_received_in_batches_and_only_the_first_is_awaited(opened: Opener) -> None:
    server = opened()
    server.link.inbox += [received(AnswerDelta(answer=server.ask(), text="x"))] * 2 * HEARD_AT_ONCE
    server.link.timeouts_ms.clear()
    assert len(list(server.connection.exchange(50))) == HEARD_AT_ONCE
    assert server.link.timeouts_ms == [50] + [0] * (HEARD_AT_ONCE - 1)


def test_messages_wait_in_order_while_a_link_has_no_room(opened: Opener) -> None:
    server = opened()
    server.link.full = True
    server.request_turn()
    server.client.embed(QuestionKey("who?"))
    server.hear()
    server.expect_nothing()
    server.link.full = False
    server.expect(TurnRequest)
    server.expect(Embed)


def test_messages_to_a_lost_server_are_not_sent_to_the_next_one(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.link.full = True
    server.request_turn()
    server.lose()
    server.expect(Connect)
    server.expect(Embed)
    server.expect_nothing()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ModelNotFound", ModelNotFound),
        ("ContextLengthError", ContextLengthError),
        ("NonFiniteError", StageDied),
        ("TransportError", StageDied),
        ("ValueError", StageDied),
        ("ArrCocError", StageDied),
        ("annotations", StageDied),
    ],
)
def test_a_servers_error_is_raised_as_its_own_class_if_the_user_can_fix_it(
    opened: Opener, error: str, kind: type[Exception]
) -> None:
    reply = ErrorReply(error=error, message="what happened", details="")
    with pytest.raises(kind, match="what happened") as caught:
        opened().hear(reply)
    assert type(caught.value) is kind
    server = opened(reconnect=True)
    if kind is StageDied:
        server.ask()
        server.hear(reply)
        assert (len(server.links), server.client.requests.lost_answers) == (2, 1)
        assert server.links[0].closed
        server.greet()
        assert server.ask() == 1
    else:
        with pytest.raises(kind):
            server.hear(reply)


def test_too_many_failures_in_a_row_end_the_run(opened: Opener) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.ask()
    for _ in range(FAILURES_MAX):
        server.hear(BENT)
    with pytest.raises(StageDied, match="bent"):
        server.hear(BENT)
    assert len(server.links) == FAILURES_MAX + 1


def test_a_connection_that_is_lost_in_every_answer_ends_the_run(opened: Opener) -> None:
    server = opened(reconnect=True, resend_after_loss=True, supervised=False)
    server.ask()
    for _ in range(FAILURES_MAX):
        server.lose()
        server.greet()
        server.grant_again(1, TokenPacketMessage)
    with pytest.raises(StageDied, match="the connection was lost"):
        server.lose()


@pytest.mark.parametrize("reply", ["answer", "lost answer", "glance"])
def test_a_server_that_works_clears_the_failures_before_it(opened: Opener, reply: str) -> None:
    server = opened(reconnect=True)
    for turn in range(FAILURES_MAX + 2):
        server.hear(BENT)
        server.greet()
        if reply == "glance":
            server.grant(turn)
            server.client.send_glance(make_overview(STAMP, GRID), "what?", server.clock.now_ns())
            server.hear(make_glance_reply(server.expect(GlancePacketMessage).glance))
        else:
            number = server.ask(turn)
            server.hear(answered(number) if reply == "answer" else RequestLost(answer=number, reason="timeout"))


def test_a_persistent_run_survives_any_number_of_failures_and_pauses_between_them(
    opened: Opener, clock: FakeClock
) -> None:
    server = opened(reconnect=True, persistent=True)
    pauses_ns = []
    for _ in range(2 * FAILURES_MAX):
        server.ask()
        server.hear(BENT)
        start_ns = clock.now_ns()
        while (message := server.take_sent()) is None:
            clock.advance(FAILURE_PAUSE_NS // 4)
        assert isinstance(message[0], Connect)
        pauses_ns.append(clock.now_ns() - start_ns)
        server.hear(HELLO)
        server.embed()
    assert pauses_ns[:4] == [0, FAILURE_PAUSE_NS, 2 * FAILURE_PAUSE_NS, 4 * FAILURE_PAUSE_NS]
    assert set(pauses_ns[4:]) == {FAILURE_PAUSE_MAX_NS}
    server.hear(answered(server.ask()))
    server.ask()
    server.hear(BENT)
    server.greet()


def test_a_loss_is_left_to_a_supervisor(opened: Opener) -> None:
    server = opened()
    assert server.lose() == []
    assert len(server.links) == 1
    assert opened(reconnect=True).lose() == []


def test_without_a_supervisor_a_loss_ends_the_run(opened: Opener) -> None:
    with pytest.raises(StageDied, match="the connection to it was lost; is `serve-answers` still running there"):
        opened(supervised=False).lose()


def test_without_a_supervisor_a_loss_is_reported_once_until_the_next_answer(opened: Opener) -> None:
    server = opened(supervised=False, reconnect=True)
    message = "no answers: the connection was lost; reconnecting to the answer server"
    assert server.lose() == [Notice(code=ANSWERS_LOST, message=message)]
    server.greet()
    assert server.lose() == []
    server.greet()
    server.hear(answered(server.ask()))
    assert messages_of(server.hear(BENT), ANSWERS_LOST) == [message.replace("the connection was lost", "bent")]


def test_the_last_messages_are_received_before_the_loss(opened: Opener) -> None:
    server = opened(supervised=False)
    server.link.peer_lost = True
    with pytest.raises(ModelNotFound):
        server.hear(ErrorReply(error="ModelNotFound", message="nowhere", details=""))


def test_a_refused_key_ends_the_run_unless_a_server_was_lost_before(opened: Opener, clock: FakeClock) -> None:
    """A container's proxy accepts connections, and ends them while the server behind it restarts."""
    server = opened(reconnect=True)
    server.link.refused = True
    with pytest.raises(ConnectionRefused):
        server.hear()
    server = opened(reconnect=True)
    server.lose()
    server.link.refused = True
    server.hear()
    assert len(server.links) == 3
    server.hear()
    server.expect_nothing()
    clock.advance(REFUSED_PAUSE_NS)
    server.greet()


def test_silence_counts_while_a_message_is_awaited(opened: Opener, clock: FakeClock) -> None:
    server = opened()

    def silent_s(seconds: float) -> float:
        for _ in range(round(4 * seconds)):
            clock.advance(250 * MS)
            server.hear()
        return server.connection.silence.elapsed_s

    assert silent_s(9) == 0
    server.ask()
    assert silent_s(2) == 2
    server.hear(KeepAlive())
    assert server.connection.silence.elapsed_s == 0
    assert silent_s(1.5) == 1.5
    server.link.inbox.append(TransportError("unreadable"))
    server.hear()
    assert not server.client.busy
    server.hear(KeepAlive())
    assert silent_s(1.5) == 0
    server.request_turn()
    assert silent_s(2) == 2


def test_absence_counts_and_silence_does_not_after_a_loss(opened: Opener, clock: FakeClock) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.ask()
    server.lose()
    server.hear()
    for _ in range(100):
        clock.advance(600 * MS)
        server.hear()
    assert (server.connection.silence.elapsed_s, server.connection.absence.elapsed_s) == (0, 60)
    server.greet()
    server.hear()
    assert server.connection.absence.elapsed_s == 0


def test_a_timer_counts_while_a_message_is_awaited_and_none_comes(clock: FakeClock) -> None:
    timer = SilenceTimer(clock)
    for _ in range(4):
        clock.advance(NS_PER_S // 2)
        timer.update(waiting=True)
    assert timer.elapsed_s == 2
    timer.update(waiting=True, received=True)
    assert timer.elapsed_s == 0
    clock.advance(NS_PER_S // 2)
    timer.update(waiting=True)
    assert timer.elapsed_s == 0.5
    timer.update(waiting=False)
    assert timer.elapsed_s == 0


def test_an_hour_of_suspension_does_not_count_as_waiting(clock: FakeClock) -> None:
    timer = SilenceTimer(clock)
    clock.advance(3600 * NS_PER_S)
    timer.update(waiting=True)
    assert timer.elapsed_s <= 1


def test_of_several_servers_the_one_that_answers_is_reported(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True, supervised=False)
    assert messages_of(server.greet(), ANSWER_SERVER) == ["answers come from server-1"]
    server.hear(answered(server.ask()))
    assert pool.notes == [("answered", "server-1")]
    notice = "no answers: the connection was lost; looking for another server"
    assert server.lose() == [Notice(code=ANSWERS_LOST, message=notice)]
    assert pool.notes[1:] == [("lost", "server-1")]
    assert messages_of(server.greet(), ANSWER_SERVER) == ["answers come from server-2"]


def test_a_server_that_is_no_longer_assigned_is_left_at_once(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True, supervised=False)
    server.ask()
    server.connection.set_servers((ServerAddress("tcp://server-1"), ServerAddress("tcp://server-3")))
    assert len(server.links) == 1
    server.connection.set_servers((ServerAddress("tcp://server-3"),))
    assert len(server.links) == 2
    notice = "no answers: server-1 is gone; looking for another server"
    assert server.hear() == [Notice(code=ANSWERS_LOST, message=notice)]
    pool.members = {"tcp://server-3"}
    server.connection.set_servers(())
    assert len(server.links) == 2, "it was not connected to any of them"


def test_while_connecting_a_server_that_is_ready_is_preferred(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    pool.fitter = True
    server.hear()
    assert len(server.links) == 2
    assert messages_of(server.greet(), ANSWER_SERVER) == ["answers come from server-2"]
    pool.fitter = True
    server.hear()
    assert len(server.links) == 2, "it has a server"


def test_between_two_answers_the_client_may_move_to_another_server(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    load = KeepAlive(clients=7, place=6)
    server.hear(load)
    number = server.ask()
    pool.move_requests.clear()
    pool.reason = "it is draining"
    server.hear()
    assert pool.move_requests == [], "an answer is under way"
    assert isinstance(server.hear(answered(number))[0], Answer)
    assert pool.move_requests == [(load, False)]
    assert server.links[0].outbox.pop() == (Disconnect(), [])
    assert len(server.links) == 2
    assert messages_of(server.greet(), ANSWER_SERVER) == ["answers come from server-2 now (server-1: it is draining)"]
    assert server.client.has_moved
    assert server.client.requests.lost_answers == 0
    server.hear(answered(server.ask(2)))
    server.lose()
    server.greet()
    assert not server.client.has_moved, "a loss is no move"


@pytest.mark.parametrize("resends", [True, False])
def test_a_request_for_a_turn_does_not_prevent_a_move(opened: Opener, pool: ScriptedPool, resends: bool) -> None:
    server = opened(pool=pool, reconnect=True, resend_after_loss=resends)
    if resends:
        server.ask(1)
        server.hear(TurnExpired(turn=1))
    else:
        server.request_turn()
    server.expect(TurnRequest)
    pool.reason = "others have fewer clients"
    server.hear()
    assert len(server.links) == 2
    server.greet()
    if resends:
        assert server.grant_again(4, TokenPacketMessage).answer == 0
    else:
        server.expect_nothing()


def test_frames_that_the_server_keeps_count_until_the_next_cut(opened: Opener, pool: ScriptedPool) -> None:
    """A single up-to-date picture costs only a key frame on another server, so it does not count."""
    server = opened(pool=pool, reconnect=True)
    server.hear(answered(server.ask(0), memory_tokens=70))
    assert not pool.move_requests[-1][1]
    server.hear(answered(server.ask(1), frames=3))
    assert pool.move_requests[-1][1]
    server.client.on_cut()
    server.hear()
    assert not pool.move_requests[-1][1]


def test_a_server_that_refuses_this_run_is_left_for_another_one(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    server.expect(Connect)
    events = server.hear(ErrorReply(error="OptionError", message="it encodes full, not sparse", details=""))
    assert messages_of(events, ANSWER_SERVER) == ["server-1: it encodes full, not sparse"]
    server.link.refused = True
    assert server.hear() == []
    assert messages_of(server.hear(), ANSWER_SERVER) == ["server-2: turned away"]
    assert messages_of(server.greet(), ANSWER_SERVER) == ["answers come from server-3"]


def test_if_all_servers_refuse_the_first_error_is_raised_unless_one_was_ready(
    opened: Opener, pool: ScriptedPool
) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    pool.refusal = ConnectionRefused("turned away")
    with pytest.raises(ConnectionRefused):
        server.hear()
    pool.refusal = None
    server.greet()
    pool.refusal = ConnectionRefused("turned away")
    server.hear()


def test_a_server_that_fails_an_answer_is_avoided(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    server.ask()
    server.hear(BENT)
    assert pool.notes == [("failed", "server-1", "None"), ("lost", "server-1")]


def test_a_lifeless_server_is_left_unless_it_sends_messages(
    opened: Opener, pool: ScriptedPool, clock: FakeClock
) -> None:
    server = opened(pool=pool, reconnect=True, supervised=False)
    server.ask()
    pool.lifeless = True
    server.hear()
    clock.advance(NS_PER_S - MS)
    server.hear(KeepAlive())
    clock.advance(NS_PER_S - MS)
    server.hear()
    pool.lifeless = False
    server.hear()
    pool.lifeless = True
    clock.advance(NS_PER_S - MS)
    server.hear()
    assert len(server.links) == 1
    clock.advance(MS)
    message = "no answers: server-1 gives no sign of life; looking for another server"
    assert server.hear() == [Notice(code=ANSWERS_LOST, message=message)]
    assert len(server.links) == 2
    assert pool.notes == [("failed", "server-1", "None"), ("lost", "server-1")]
    assert server.client.requests.lost_answers == 1


def test_the_pool_is_closed_with_the_connection(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool)
    server.connection.close()
    assert (pool.closed, server.link.closed) == (True, True)
