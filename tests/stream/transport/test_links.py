"""Links between threads: whole messages in order, waits with limits, nothing that hangs."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq
import zmq.auth

from arr_coc.types import FrameStamp, Question, TileGrid, TokenPacket
from stream.config import NetworkConfig
from stream.errors import ConnectionRefused, TransportError
from stream.protocol.codec import token_message, token_packet
from stream.protocol.messages import (
    AnswerDelta,
    AnyMessage,
    Cancel,
    Connect,
    Credit,
    Embed,
    End,
    KeepAlive,
    Message,
    TokenPacketMessage,
    TurnRequest,
    encode,
)
from stream.transport import Client, Envelope, Link, LinkPoller, ServerLink, Transport, ipc_endpoint, private_directory
from stream.transport import context as bus_module
from stream.transport import links as link_module
from stream.transport.links import FRAME_QUEUE_MESSAGES, FrameSubscriber
from stream.transport.security import ClientCurve, client_curve, server_curve
from stream.untrusted import WATCHES_MAX
from tests.support.network import LIMIT_MS, keyed
from tests.support.runs import expect, expect_whole


@contextmanager
def linked(endpoint: str = "inproc://test") -> Iterator[tuple[Link, Link]]:
    transport = Transport()
    ends = transport.link(endpoint, bind=True), transport.link(endpoint)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
        transport.close()


@pytest.fixture(params=["inproc", "ipc"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    with private_directory() as directory:
        endpoint = "inproc://test" if request.param == "inproc" else ipc_endpoint(directory)
        with linked(endpoint) as pair:
            yield pair


def test_messages_go_both_ways_in_order(ends: tuple[Link, Link]) -> None:
    bound, connected = ends
    for number in range(3):
        connected.send(AnswerDelta(answer=number, text="x"))
    for number in range(3):
        assert expect(bound, AnswerDelta) == AnswerDelta(answer=number, text="x")
    bound.send(Cancel())
    assert bound.offer(Credit(count=2))
    expect(connected, Cancel)
    assert expect(connected, Credit) == Credit(count=2)


class Notes:
    """Observer that records kinds of messages and the sizes of their arrays."""

    def __init__(self) -> None:
        self.messages_sent: list[tuple[object, list[int]]] = []
        self.messages_received: list[tuple[object, list[int]]] = []

    def observe_sent(self, message: Message, arrays: Sequence[np.ndarray]) -> None:
        self.messages_sent.append((message, [array.nbytes for array in arrays]))

    def observe_received(self, envelope: Envelope) -> None:
        self.messages_received.append((envelope.message, [part.nbytes for part in envelope.parts]))


def test_an_observer_learns_what_was_sent_and_received_and_nothing_else() -> None:
    transport, notes = Transport(), Notes()
    lonely = transport.link("inproc://test", bind=True, observers=[notes])
    assert not lonely.offer(Cancel()), "no peer takes it"
    other = transport.link("inproc://test")
    lonely.send(Credit(), [np.zeros(3, np.float32)])
    other.send(AnswerDelta(answer=0, text="x"), [np.zeros(5, np.uint8)])
    other.send(Cancel())
    assert lonely.receive(LIMIT_MS) is not None
    lonely.close()
    other.close()
    transport.close()
    assert notes.messages_sent == [(Credit(), [12])]
    assert notes.messages_received == [(AnswerDelta(answer=0, text="x"), [5])]


def test_a_packet_arrives_whole(ends: tuple[Link, Link]) -> None:
    bound, connected = ends
    rng = np.random.default_rng(0)
    packet = TokenPacket(
        FrameStamp(1, 2, 3, 4),
        TileGrid.of(1080, 1920),
        rng.integers(0, (6, 2, 2), (273, 3), dtype=np.int32),
        rng.random(273, dtype=np.float32),
        rng.integers(0, 256, (273, 3, 32, 32), dtype=np.uint8),
    )
    message, arrays = token_message(0, 0, packet, Question("what?"))
    connected.send(message, arrays)
    arrival, received = expect_whole(bound, TokenPacketMessage)
    np.testing.assert_array_equal(token_packet(arrival, received.parts).pixels, packet.pixels)


def test_arrays_that_are_not_contiguous_arrive_as_they_look(ends: tuple[Link, Link]) -> None:
    bound, connected = ends
    backwards = np.arange(12, dtype=np.float32)[::-2]
    connected.send(Cancel(), [backwards])
    _, received = expect_whole(bound, Cancel)
    np.testing.assert_array_equal(np.frombuffer(received.parts[0], np.float32), backwards)


def test_receiving_waits_no_longer_than_its_limit() -> None:
    with linked() as (bound, _):
        assert bound.receive() is None
        assert bound.receive(1) is None


def test_waiting_for_any_of_several_links() -> None:
    with linked("inproc://one") as (first, _), linked("inproc://two") as (second, sender):
        waiter = LinkPoller(first, second)
        assert not waiter.wait(1)
        sender.send(Cancel())
        assert waiter.wait(LIMIT_MS)
        assert waiter.has_message(second)
        assert not waiter.has_message(first)
        assert first.receive() is None
        assert second.receive() is not None


def test_messages_sent_before_closing_arrive() -> None:
    transport = Transport()
    bound = transport.link("inproc://test", bind=True)

    def send_and_leave() -> None:
        link = transport.link("inproc://test")
        for _ in range(10):
            link.send(Credit())
        link.send(End(reason="finished"))
        link.close()

    thread = threading.Thread(target=send_and_leave)
    thread.start()
    thread.join(LIMIT_MS / 1000)
    kinds = [type(received.message) for _ in range(11) if (received := bound.receive(LIMIT_MS)) is not None]
    bound.close()
    transport.close()
    assert kinds == [Credit] * 10 + [End]


def test_a_peer_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SEND_LIMIT_MS", 1)
    monkeypatch.setattr(link_module, "SEND_SLICE_MS", 1)
    transport = Transport()
    lonely = transport.link("inproc://unused", bind=True)
    with pytest.raises(TransportError, match="no peer takes messages from inproc://unused"):
        lonely.send(Cancel())
    with pytest.raises(TransportError, match="no peer takes messages"):
        lonely.send(Cancel(), [np.zeros(1, np.uint8)])
    assert not lonely.offer(Credit())
    lonely.close()
    transport.close()


def test_a_sender_waits_for_room_until_its_owner_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SEND_SLICE_MS", 1)
    monkeypatch.setattr(link_module, "SEND_LIMIT_MS", 1)
    checks = iter([None, None, None])

    def check() -> None:
        if next(checks, "over") == "over":
            raise InterruptedError

    transport = Transport()
    lonely = transport.link("inproc://unused", bind=True, check=check)
    with pytest.raises(InterruptedError):
        lonely.send(Cancel())
    lonely.close()
    transport.close()


def test_invalid_messages_are_refused_whole() -> None:
    with linked() as (bound, connected):
        connected._socket.send_multipart([b"nonsense", b"and more"])
        connected.send(Cancel())
        with pytest.raises(TransportError, match="cannot be read"):
            bound.receive(LIMIT_MS)
        expect(bound, Cancel)


def test_an_address_that_is_taken_is_refused() -> None:
    with linked() as _:
        transport = Transport()
        first = transport.link("inproc://same", bind=True)
        with pytest.raises(TransportError, match="cannot open inproc://same"):
            transport.link("inproc://same", bind=True)
        with pytest.raises(TransportError, match="cannot reach nonsense"):
            transport.link("nonsense")
        first.close()
        transport.close()


def test_events_arrive_in_order_and_the_sender_waits_for_room() -> None:
    transport = Transport()
    source, sink = transport.event_receiver("inproc://events"), transport.event_sender("inproc://events")
    count = 0
    while sink.send(str(count).encode(), 1):
        count += 1
        assert count <= bus_module.EVENT_QUEUE + 2
    assert count >= bus_module.EVENT_QUEUE - 2
    assert [source.receive(LIMIT_MS) for _ in range(count)] == [str(number).encode() for number in range(count)]
    assert source.receive(1) is None
    sink.close()
    source.close()
    transport.close()


def test_the_directory_of_sockets_is_private_and_goes() -> None:
    with private_directory() as directory:
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert os.stat(directory).st_uid == os.getuid()
    assert not os.path.exists(directory)


def test_a_temporary_directory_with_too_long_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(TransportError, match="set TMPDIR to a shorter path"), private_directory():
        pass
    assert not list(long.iterdir())


@contextmanager
def bound(kind: int) -> Iterator[tuple[zmq.Socket[bytes], str]]:
    context = zmq.Context()
    socket = context.socket(kind)
    try:
        socket.bind("tcp://127.0.0.1:*")
        yield socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        socket.close(linger=0)
        context.term()


@contextmanager
def frame_socket(endpoint: str, *, pull: bool = False, curve: ClientCurve | None = None) -> Iterator[FrameSubscriber]:
    socket = FrameSubscriber(endpoint, pull=pull, curve=curve)
    try:
        yield socket
    finally:
        socket.close()


def await_subscriber(publisher: zmq.Socket[bytes], subscriber: FrameSubscriber) -> None:
    for _ in range(500):
        publisher.send(b"hello")
        if subscriber.receive(10)[0] is not None:
            return
    pytest.fail("the subscriber never heard anything")


def received(socket: FrameSubscriber) -> tuple[list[bytes], int]:
    for _ in range(100):
        parts, older_messages = socket.receive(50)
        if parts is not None:
            return [bytes(part) for part in parts], older_messages
    pytest.fail("nothing came")


def test_of_several_the_newest_is_given_whole() -> None:
    with bound(zmq.XPUB) as (publisher, endpoint), frame_socket(endpoint) as socket:
        await_subscriber(publisher, socket)
        while socket.receive(20)[0] is not None:
            pass
        for number in range(FRAME_QUEUE_MESSAGES - 1):
            publisher.send_multipart([b"head %d" % number, b"body %d" % number])
        publisher.send_multipart([b"last head", b"last body"])
        count = 0
        parts: list[bytes] = []
        while not parts or parts[0] != b"last head":
            parts, older_messages = received(socket)
            count += 1 + older_messages
        assert parts == [b"last head", b"last body"]
        assert count == FRAME_QUEUE_MESSAGES
        assert socket.receive(0) == (None, 0)
        assert socket.has_connected
        assert not socket.is_refused


def test_messages_are_pulled_one_by_one() -> None:
    with bound(zmq.PUSH) as (sender, endpoint), frame_socket(endpoint, pull=True) as socket:
        for number in range(4):
            assert sender.poll(2000, zmq.POLLOUT)
            sender.send_multipart([b"%d" % number, b"x"])
        assert [received(socket) for _ in range(4)] == [([b"%d" % number, b"x"], 0) for number in range(4)]


def test_a_missing_sender_is_no_error_yet() -> None:
    with frame_socket("tcp://127.0.0.1:9") as socket:
        assert socket.receive(20) == (None, 0)
        assert not socket.has_connected


def test_an_invalid_address_is_an_error() -> None:
    with pytest.raises(TransportError, match=r"cannot connect to tcp://no host:5: Invalid argument; check the address"):
        FrameSubscriber("tcp://no host:5")


def test_keys_that_the_sender_has_no_use_for_are_a_refusal(tmp_path: Path) -> None:
    pairs = [zmq.auth.load_certificate(zmq.auth.create_certificates(tmp_path, name)[1]) for name in ("a", "b")]
    (public, secret), (server, _) = pairs
    assert secret is not None
    with bound(zmq.PUB) as (_, endpoint), frame_socket(endpoint, curve=ClientCurve(secret, public, server)) as socket:
        limit = time.monotonic() + 10
        while not socket.is_refused and time.monotonic() < limit:
            assert socket.receive(20) == (None, 0)
        assert socket.is_refused
        assert not socket.has_connected


STEP_MS = 5
LOOPBACK = "tcp://127.0.0.1:*"


class Places:
    """Factory of ports and links, which it closes."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self.transport = Transport()
        stack.callback(self.transport.close)
        self.ipc = ipc_endpoint(directory)

    def port(self, endpoint: str, network: NetworkConfig | None = None) -> ServerLink:
        curve = None if network is None else server_curve(network, endpoint)
        return self._stack.enter_context(closing(self.transport.server_link(endpoint, curve)))

    def link(self, endpoint: str, curve: ClientCurve | None = None, *, watched: bool = True) -> Link:
        return self._stack.enter_context(closing(self.transport.link(endpoint, curve=curve, watched=watched)))

    def raw(self, endpoint: str) -> zmq.Socket[bytes]:
        dealer = self.transport.context.socket(zmq.DEALER)
        self._stack.callback(dealer.close, linger=0)
        dealer.connect(endpoint)
        return dealer


@pytest.fixture
def places() -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(stack, stack.enter_context(private_directory()))


def until(is_done: Callable[[], bool], link: Link) -> None:
    """Wait for a condition of a link that receives no messages."""
    for _ in range(LIMIT_MS // STEP_MS):
        if is_done():
            return
        assert link.receive(STEP_MS) is None
    raise AssertionError("it never came to that")


def next_message(port: ServerLink) -> tuple[Client, AnyMessage]:
    received = port.receive(LIMIT_MS)
    assert received is not None
    return received[0], received[1].message


def met(port: ServerLink, link: Link) -> Client:
    """Return the server's id of this link."""
    link.send(TurnRequest())
    return next_message(port)[0]


@pytest.mark.parametrize("scheme", ["inproc", "ipc", "tcp"])
def test_every_client_is_distinguished_and_answered_alone(places: Places, scheme: str) -> None:
    port = places.port({"inproc": "inproc://answers", "ipc": places.ipc, "tcp": LOOPBACK}[scheme])
    links = [places.link(port.endpoint, watched=scheme != "inproc") for _ in range(2)]
    clients = [met(port, link) for link in links]
    assert clients[0] != clients[1]
    array = np.arange(5, dtype=np.uint8)
    for number, client in enumerate(clients):
        assert port.send(client, AnswerDelta(answer=number, text="x"), [array])
    for number, link in enumerate(links):
        message, received = expect_whole(link, AnswerDelta)
        assert (message.answer, bytes(received.parts[0])) == (number, array.tobytes())
        assert link.receive() is None
    assert port.receive() is None


def test_an_unreadable_message_is_an_error_of_its_sender_and_the_next_one_comes(places: Places) -> None:
    port = places.port(places.ipc)
    bad = places.raw(places.ipc)
    for parts in ([b"nonsense"], [b""], [b"\xc1", b"more"], [encode(TurnRequest())[:-1]]):
        bad.send_multipart(parts)
        received = port.receive(LIMIT_MS)
        assert received is not None
        assert isinstance(received[1], TransportError)
    bad.send(encode(TurnRequest()))
    assert next_message(port) == (received[0], TurnRequest())


@pytest.mark.parametrize("scheme", ["inproc", "ipc"])
def test_a_client_that_is_gone_gets_nothing(places: Places, scheme: str) -> None:
    port = places.port("inproc://answers" if scheme == "inproc" else places.ipc)
    link = places.link(port.endpoint, watched=False)
    client, other = met(port, link), places.link(port.endpoint, watched=False)
    stays = met(port, other)
    link.close()
    for _ in range(LIMIT_MS // STEP_MS):
        if not port.send(client, KeepAlive()):
            break
        assert port.receive(STEP_MS) is None
    assert not port.send(client, KeepAlive())
    assert not port.send(client, AnswerDelta(answer=0, text="x"), [np.zeros(3, np.uint8)])
    assert not port.send(b"never seen", KeepAlive())
    assert port.send(stays, AnswerDelta(answer=1, text="y"))
    assert expect(other, AnswerDelta).answer == 1


def test_a_client_that_never_reads_counts_as_gone_at_once(places: Places) -> None:
    """It must not make others wait: each of its messages would cost them the limit of a wait."""
    port = places.port("inproc://answers")
    idle = places.link("inproc://answers", watched=False)
    client = met(port, idle)
    count = 0
    while port.send(client, AnswerDelta(answer=count, text="x")):
        count += 1
        assert count <= 2 * link_module.REPLIES_MAX
    assert count >= WATCHES_MAX + 2, "the reply to a client with all watches fits"
    assert port._socket.getsockopt(zmq.SNDTIMEO) == 0
    texts = [idle.receive() for _ in range(count)]
    assert [text is not None and text.message for text in texts] == [
        AnswerDelta(answer=n, text="x") for n in range(count)
    ]


def test_a_message_that_is_too_large_closes_its_senders_connection_only(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PART_BYTES_MAX", 1000)
    port = places.port(places.ipc)
    large, small = places.link(places.ipc), places.link(places.ipc)
    client = met(port, small)
    large.send(TurnRequest(), [np.zeros(1001, np.uint8)])
    until(lambda: large.is_lost, large)
    small.send(Embed(text="x" * 900))
    assert next_message(port) == (client, Embed(text="x" * 900))
    assert not small.is_lost


@pytest.mark.parametrize("endpoint", ["inproc://answers", LOOPBACK])
def test_a_server_address_that_is_taken_is_refused(places: Places, endpoint: str) -> None:
    address = places.port(endpoint).endpoint
    with pytest.raises(TransportError, match=f"cannot open {address}: another program uses it"):
        places.transport.server_link(address)


def test_a_socket_of_another_program_is_not_taken_from_it(places: Places) -> None:
    port = places.port(places.ipc)
    with pytest.raises(TransportError, match="another program uses it"):
        places.transport.server_link(places.ipc)
    met(port, places.link(places.ipc))


def test_a_file_that_lies_at_the_address_is_left_there(places: Places, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine", encoding="utf-8")
    with pytest.raises(TransportError, match="there is something else at that path"):
        places.transport.server_link(f"ipc://{tmp_path / 'notes'}")
    assert (tmp_path / "notes").read_text(encoding="utf-8") == "mine"


def test_the_socket_of_a_process_that_died_is_taken_over(places: Places) -> None:
    path = Path(places.ipc.removeprefix("ipc://"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with closing(places.transport.server_link(places.ipc)) as port:
        met(port, places.link(places.ipc))
    assert not path.exists(), "the server removes its file"


@pytest.mark.parametrize("endpoint", ["tcp://203.0.113.7:5555", "ipc:///nowhere/at/all", "tcp://127.0.0.1:99999"])
def test_an_address_that_cannot_be_is_refused(places: Places, endpoint: str) -> None:
    with pytest.raises(TransportError, match=f"cannot open {endpoint}: "):
        places.transport.server_link(endpoint)


def test_errors_that_do_not_say_that_a_client_is_gone_are_not_hidden(places: Places) -> None:
    port = places.transport.server_link("inproc://answers")
    port.close()
    with pytest.raises(zmq.ZMQError):
        port.send(b"x", KeepAlive())


def test_a_link_is_connected_once_it_has_met_its_peer_which_may_come_later(places: Places) -> None:
    link = places.link(places.ipc)
    assert link.receive(1) is None
    assert not link.is_connected
    port = places.port(places.ipc)
    until(lambda: link.is_connected, link)
    met(port, link)
    assert link.is_connected
    assert not link.is_lost


def test_a_link_is_lost_when_its_peer_closes_and_stays_so(places: Places) -> None:
    port = places.transport.server_link(places.ipc)
    link = places.link(places.ipc)
    met(port, link)
    until(lambda: link.is_connected, link)
    port.close()
    until(lambda: link.is_lost, link)
    next_port = places.port(places.ipc)
    met(next_port, places.link(places.ipc))
    assert link.is_lost


def test_a_link_within_the_process_is_connected_and_never_lost(places: Places) -> None:
    port = places.transport.server_link("inproc://answers")
    link = places.link("inproc://answers", watched=False)
    port.close()
    assert link.is_connected
    assert not link.is_lost


def test_a_peer_that_leaves_its_messages_waiting_ends_no_other_process() -> None:
    """With ZeroMQ's heartbeats libzmq 4.3.5 aborts the process here."""
    code = """
import time, zmq
from stream.transport import Transport, ipc_endpoint, private_directory
with private_directory() as directory:
    transport = Transport()
    port = transport.server_link(ipc_endpoint(directory, "answers"))
    with transport.context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.SNDTIMEO, 200)
        peer.connect(port.endpoint)
        try:
            while True:
                peer.send(bytes(1000))
        except zmq.Again:
            pass
    time.sleep(1.5)
    port.close()
    transport.close()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT_MS / 1000 + 20).returncode == 0


def test_with_a_heartbeat_a_peer_that_floods_and_leaves_ends_no_other_process() -> None:
    """With a bound on messages that wait, libzmq 4.3.5 aborts the process here."""
    code = """
import time
from stream.protocol.messages import KeepAlive, Probe
from stream.transport import Transport, ipc_endpoint, links, private_directory
from tests.support.events import QUESTION
links.HEARTBEAT_EVERY_MS, links.HEARTBEAT_LIMIT_MS = 5, 10_000
with private_directory() as directory:
    transport = Transport()
    port = transport.server_link(ipc_endpoint(directory, "answers"))
    link = transport.link(port.endpoint, watched=True, heartbeat=True)
    link.send(Probe())
    client, _ = port.receive(60_000)
    for _ in range(1000):
        port.send(client, KeepAlive())
    port.close()
    while not link.is_lost:
        time.sleep(0.01)
    time.sleep(0.1)
    link.close()
    transport.close()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT_MS / 1000 + 20).returncode == 0


def test_a_host_that_is_gone_is_noticed(places: Places) -> None:
    port, link = places.transport.server_link(places.ipc), places.link(places.ipc)
    for end in (port._socket, link._socket):
        assert end.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert end.getsockopt(zmq.TCP_MAXRT) == 5000
    port.close()


def test_a_peer_that_is_no_answer_stage_refuses_a_link(places: Places) -> None:
    """A listener that closes every connection, like a web server that receives another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_each() -> None:
            for _ in range(link_module.REFUSALS_MAX):
                listener.accept()[0].close()

        thread = threading.Thread(target=close_each)
        thread.start()
        link = places.link(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ConnectionRefused, match="turns this end away: give --keys the folder"):
            until(lambda: link.is_lost, link)
        thread.join(LIMIT_MS / 1000)
    with pytest.raises(ConnectionRefused, match="check that it is an answer server"):
        link.is_lost  # noqa: B018
    assert not link.is_connected


@pytest.fixture
def network(tmp_path: Path) -> NetworkConfig:
    return keyed(tmp_path, "ours")


def key(network: NetworkConfig, endpoint: str) -> ClientCurve:
    curve = client_curve(network, endpoint)
    assert curve is not None
    return curve


@pytest.mark.parametrize("who", ["without", "another server", "unknown client"])
def test_only_clients_with_a_key_send_and_receive(
    places: Places, network: NetworkConfig, tmp_path: Path, who: str
) -> None:
    port = places.port(LOOPBACK, network)
    good = places.link(port.endpoint, key(network, port.endpoint))
    client = met(port, good)
    stranger = key(keyed(tmp_path, "theirs"), port.endpoint)
    curve = {
        "without": None,
        "another server": stranger,
        "unknown client": ClientCurve(stranger.secret, stranger.public, key(network, port.endpoint).server),
    }[who]
    link = places.link(port.endpoint, curve)
    link.offer(Connect())
    with pytest.raises(ConnectionRefused, match="turns this end away"):
        until(lambda: link.is_lost, link)
    assert not link.is_connected
    assert port.receive(30) is None
    assert port.send(client, KeepAlive())
    expect(good, KeepAlive)
    assert good.is_connected
    assert not good.is_lost


def test_a_key_is_refused_if_none_is_required(places: Places, network: NetworkConfig) -> None:
    port = places.port(LOOPBACK)
    link = places.link(port.endpoint, key(network, port.endpoint))
    with pytest.raises(ConnectionRefused, match="or none if it has none"):
        until(lambda: link.is_lost, link)
    assert port.receive() is None


def test_a_waiter_wakes_for_descriptors_too(places: Places) -> None:
    port = places.port("inproc://answers")
    link = places.link("inproc://answers", watched=False)
    reader, writer = os.pipe()
    try:
        waiter = LinkPoller(link, descriptors=(reader,))
        assert not waiter.wait(1)
        os.write(writer, b"x")
        assert waiter.wait(LIMIT_MS)
        os.read(reader, 1)
        assert port.send(met(port, link), KeepAlive())
        assert waiter.wait(LIMIT_MS)
    finally:
        os.close(reader)
        os.close(writer)
