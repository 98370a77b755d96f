"""A port and its links: who is there, who is gone, who is turned away, and what does not disturb anybody."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
import zmq

from stream.config import NetworkConfig
from stream.errors import ConnectionRefused, TransportError
from stream.messages import AnswerDelta, AnyMessage, Connect, KeepAlive, TurnRequest, encode
from stream.transport import Client, Link, Port, Transport, Waiter, ipc_endpoint, private_directory
from stream.transport import link as link_module
from stream.transport import port as port_module
from stream.transport.curve import ClientCurve, client_curve, make_keys, server_curve
from tests.waiting import LIMIT_MS

STEP_MS = 5
LOOPBACK = "tcp://127.0.0.1:*"


class Places:
    """Makes ports and links, and closes them."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self.transport = Transport()
        stack.callback(self.transport.close)
        self.ipc = ipc_endpoint(directory)

    def port(self, endpoint: str, keys: Path | None = None) -> Port:
        curve = None if keys is None else server_curve(NetworkConfig(keys=str(keys)), endpoint)
        return self._stack.enter_context(closing(self.transport.port(endpoint, curve)))

    def link(self, endpoint: str, curve: ClientCurve | None = None, *, watched: bool = True) -> Link:
        return self._stack.enter_context(closing(self.transport.link(endpoint, curve=curve, watched=watched)))

    def raw(self, endpoint: str) -> zmq.Socket[bytes]:
        made = self.transport.context.socket(zmq.DEALER)
        self._stack.callback(made.close, linger=0)
        made.connect(endpoint)
        return made


@pytest.fixture
def places() -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(stack, stack.enter_context(private_directory()))


def until(done: Callable[[], bool], link: Link) -> None:
    """Waits for what becomes of a link that nothing comes over."""
    for _ in range(LIMIT_MS // STEP_MS):
        if done():
            return
        assert link.receive(STEP_MS) is None
    raise AssertionError("it never came to that")


def heard(port: Port) -> tuple[Client, AnyMessage]:
    received = port.receive(LIMIT_MS)
    assert received is not None
    return received[0], received[1].message


def met(port: Port, link: Link) -> Client:
    """What the port calls this link."""
    link.send(TurnRequest())
    return heard(port)[0]


@pytest.mark.parametrize("scheme", ["inproc", "ipc", "tcp"])
def test_every_client_is_told_apart_and_answered_alone(places: Places, scheme: str) -> None:
    port = places.port({"inproc": "inproc://answers", "ipc": places.ipc, "tcp": LOOPBACK}[scheme])
    links = [places.link(port.endpoint, watched=scheme != "inproc") for _ in range(2)]
    clients = [met(port, link) for link in links]
    assert clients[0] != clients[1]
    array = np.arange(5, dtype=np.uint8)
    for number, client in enumerate(clients):
        assert port.send(client, AnswerDelta(answer=number, text="x"), [array])
    for number, link in enumerate(links):
        received = link.receive(LIMIT_MS)
        assert received is not None
        assert received.message == AnswerDelta(answer=number, text="x")
        assert bytes(received.parts[0]) == array.tobytes()
        assert link.receive() is None
    assert port.receive() is None


def test_a_port_that_was_left_open_is_a_number_once_it_is_bound(places: Places) -> None:
    assert int(places.port(LOOPBACK).endpoint.rpartition(":")[2]) > 0


def test_what_cannot_be_read_is_counted_and_the_next_message_comes(places: Places) -> None:
    port = places.port(places.ipc)
    bad = places.raw(places.ipc)
    for parts in ([b"nonsense"], [b""], [b"\xc1", b"more"], [encode(TurnRequest())[:-1]]):
        bad.send_multipart(parts)
        assert port.receive(LIMIT_MS) is None
    bad.send(encode(TurnRequest()))
    assert heard(port)[1] == TurnRequest()
    assert port.unreadable == 4


@pytest.mark.parametrize("scheme", ["inproc", "ipc"])
def test_whoever_is_gone_gets_nothing(places: Places, scheme: str) -> None:
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
    received = other.receive(LIMIT_MS)
    assert received is not None
    assert received.message == AnswerDelta(answer=1, text="y")


def test_whoever_never_reads_counts_as_gone(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "SEND_WAIT_MS", 1)
    port = places.port("inproc://answers")
    idle = places.link("inproc://answers", watched=False)
    client = met(port, idle)
    sent = 0
    while port.send(client, AnswerDelta(answer=sent, text="x")):
        sent += 1
        assert sent <= 2 * link_module.QUEUE_MESSAGES
    texts = [idle.receive() for _ in range(sent)]
    assert [text is not None and text.message for text in texts] == [
        AnswerDelta(answer=n, text="x") for n in range(sent)
    ]


def test_a_message_that_is_too_large_closes_its_senders_connection_only(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "PART_BYTES_MAX", 1000)
    port = places.port(places.ipc)
    large, small = places.link(places.ipc), places.link(places.ipc)
    client = met(port, small)
    large.send(TurnRequest(), [np.zeros(1001, np.uint8)])
    until(lambda: large.lost, large)
    small.send(Connect(query="x" * 900))
    assert heard(port) == (client, Connect(query="x" * 900))
    assert not small.lost


@pytest.mark.parametrize("endpoint", ["inproc://answers", LOOPBACK])
def test_an_address_that_is_taken_is_refused(places: Places, endpoint: str) -> None:
    taken = places.port(endpoint).endpoint
    with pytest.raises(TransportError, match=f"cannot open {taken}: another program uses it"):
        places.transport.port(taken)


def test_a_socket_of_another_program_is_not_taken_from_it(places: Places) -> None:
    port = places.port(places.ipc)
    with pytest.raises(TransportError, match="another program uses it"):
        places.transport.port(places.ipc)
    met(port, places.link(places.ipc))


def test_a_file_that_lies_at_the_address_is_left_there(places: Places, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine", encoding="utf-8")
    with pytest.raises(TransportError, match="there is something else at that path"):
        places.transport.port(f"ipc://{tmp_path / 'notes'}")
    assert (tmp_path / "notes").read_text(encoding="utf-8") == "mine"


def test_the_socket_of_a_process_that_died_is_taken_over(places: Places) -> None:
    path = places.ipc.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert os.path.exists(path)
    port = places.port(places.ipc)
    met(port, places.link(places.ipc))


@pytest.mark.parametrize("endpoint", ["tcp://203.0.113.7:5555", "ipc:///nowhere/at/all", "tcp://127.0.0.1:99999"])
def test_an_address_that_cannot_be_is_refused(places: Places, endpoint: str) -> None:
    with pytest.raises(TransportError, match=f"cannot open {endpoint}: "):
        places.transport.port(endpoint)


def test_errors_that_do_not_say_that_a_client_is_gone_are_not_hidden(places: Places) -> None:
    port = places.transport.port("inproc://answers")
    port.close()
    with pytest.raises(zmq.ZMQError):
        port.send(b"x", KeepAlive())


def test_a_link_is_connected_once_it_has_met_its_peer_which_may_come_later(places: Places) -> None:
    link = places.link(places.ipc)
    assert link.receive(1) is None
    assert not link.connected
    port = places.port(places.ipc)
    until(lambda: link.connected, link)
    met(port, link)
    assert link.connected
    assert not link.lost


def test_a_link_is_lost_when_its_peer_closes_and_stays_so(places: Places) -> None:
    port = places.transport.port(places.ipc)
    link = places.link(places.ipc)
    met(port, link)
    until(lambda: link.connected, link)
    port.close()
    until(lambda: link.lost, link)
    again = places.port(places.ipc)
    met(again, places.link(places.ipc))
    assert link.lost


def test_a_link_within_the_process_is_connected_and_never_lost(places: Places) -> None:
    port = places.transport.port("inproc://answers")
    link = places.link("inproc://answers", watched=False)
    port.close()
    assert link.connected
    assert not link.lost


def test_a_peer_that_leaves_its_messages_waiting_takes_nobody_with_it() -> None:
    """With ZeroMQ's heartbeats libzmq 4.3.5 aborts the process here."""
    code = """
import time, zmq
from stream.transport import Transport, ipc_endpoint, private_directory
with private_directory() as directory:
    transport = Transport()
    port = transport.port(ipc_endpoint(directory, "answers"))
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


def test_a_host_that_is_gone_is_noticed(places: Places) -> None:
    port, link = places.transport.port(places.ipc), places.link(places.ipc)
    for end in (port._socket, link._socket):
        assert end.getsockopt(zmq.TCP_KEEPALIVE) == 1
        assert end.getsockopt(zmq.TCP_MAXRT) == 5000
    port.close()


def test_what_is_no_answer_stage_turns_a_link_away(places: Places) -> None:
    """A listener that closes every connection, as a web server does that is spoken to in another language."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_each() -> None:
            for _ in range(link_module.TURNED_AWAY_MAX):
                listener.accept()[0].close()

        thread = threading.Thread(target=close_each)
        thread.start()
        link = places.link(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ConnectionRefused, match="turns this end away: give --keys the folder"):
            until(lambda: link.lost, link)
        thread.join(LIMIT_MS / 1000)
    with pytest.raises(ConnectionRefused, match="check that it is an answer stage"):
        link.lost  # noqa: B018
    assert not link.connected


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    make_keys(folder)
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    make_keys(folder)
    return folder


def key(folder: Path, endpoint: str) -> ClientCurve:
    made = client_curve(NetworkConfig(keys=str(folder)), endpoint)
    assert made is not None
    return made


def test_whoever_holds_a_key_is_heard(places: Places, ours: Path) -> None:
    port = places.port(LOOPBACK, ours)
    link = places.link(port.endpoint, key(ours, port.endpoint))
    client = met(port, link)
    assert port.send(client, KeepAlive())
    received = link.receive(LIMIT_MS)
    assert received is not None
    assert received.message == KeepAlive()
    assert link.connected
    assert not link.lost


@pytest.mark.parametrize("who", ["without", "another server", "unknown client"])
def test_whoever_holds_no_key_is_not_heard_and_hears_nothing(
    places: Places, ours: Path, theirs: Path, who: str
) -> None:
    port = places.port(LOOPBACK, ours)
    good = places.link(port.endpoint, key(ours, port.endpoint))
    client = met(port, good)
    stranger = key(theirs, port.endpoint)
    curve = {
        "without": None,
        "another server": stranger,
        "unknown client": ClientCurve(stranger.secret, stranger.public, key(ours, port.endpoint).server),
    }[who]
    link = places.link(port.endpoint, curve)
    link.offer(Connect(query="may I?"))
    with pytest.raises(ConnectionRefused, match="turns this end away"):
        until(lambda: link.lost, link)
    assert not link.connected
    assert port.receive(30) is None
    assert port.send(client, KeepAlive())
    assert good.receive(LIMIT_MS) is not None
    assert not good.lost


def test_a_key_is_of_no_use_where_none_is_asked_for(places: Places, ours: Path) -> None:
    port = places.port(LOOPBACK)
    link = places.link(port.endpoint, key(ours, port.endpoint))
    with pytest.raises(ConnectionRefused, match="or none where it has none"):
        until(lambda: link.lost, link)
    assert port.receive() is None


def test_a_waiter_wakes_for_descriptors_too(places: Places) -> None:
    port = places.port("inproc://answers")
    link = places.link("inproc://answers", watched=False)
    reader, writer = os.pipe()
    try:
        waiter = Waiter(link, descriptors=(reader,))
        assert not waiter.wait(1)
        os.write(writer, b"x")
        assert waiter.wait(LIMIT_MS)
        os.read(reader, 1)
        assert port.send(met(port, link), KeepAlive())
        assert waiter.wait(LIMIT_MS)
    finally:
        os.close(reader)
        os.close(writer)
