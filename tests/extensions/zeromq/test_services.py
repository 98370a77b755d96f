"""A control socket answers every client, even if another one dies; a client reports a missing reply."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from stream.errors import OutputError, TransportError
from stream.extensions.zeromq import services
from stream.extensions.zeromq.services import REQUEST_BYTES_MAX, Publisher, RequestServer, request
from stream.transport.security import client_curve, server_curve
from tests.support.network import LIMIT_MS, keyed, listening

ANYWHERE = "tcp://127.0.0.1:*"


def shouting(body: bytes) -> bytes:
    return body.upper()


@pytest.fixture
def server() -> Iterator[RequestServer]:
    with closing(RequestServer(ANYWHERE, None, shouting)) as request_server:
        yield request_server


@contextmanager
def client(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close(linger=0)
        context.term()


def test_requests_are_answered_one_after_the_other(server: RequestServer) -> None:
    assert request(server.endpoint, None, b"one") == b"ONE"
    assert request(server.endpoint, None, b"two") == b"TWO"


def test_a_client_without_an_envelope_is_answered_too(server: RequestServer) -> None:
    with client(zmq.DEALER, server.endpoint) as dealer:
        dealer.send(b"bare")
        assert dealer.poll(LIMIT_MS)
        assert dealer.recv_multipart() == [b"BARE"]


def test_a_client_that_dies_in_the_middle_blocks_no_other(server: RequestServer) -> None:
    with client(zmq.REQ, server.endpoint) as dying:
        dying.send(b"never mind")
    assert request(server.endpoint, None, b"next") == b"NEXT"


def test_a_request_that_is_too_large_closes_only_its_senders_connection(server: RequestServer) -> None:
    with pytest.raises(TransportError, match="no reply from"):
        request(server.endpoint, None, bytes(REQUEST_BYTES_MAX + 1), limit_s=0.2)
    assert request(server.endpoint, None, b"next") == b"NEXT"


def test_closing_twice_is_once(server: RequestServer) -> None:
    server.close()
    server.close()
    with pytest.raises(TransportError, match=r"no reply from .* within 0.1 s; check that a run with --control"):
        request(server.endpoint, None, b"too late", limit_s=0.1)


def test_an_address_that_is_none() -> None:
    with pytest.raises(TransportError, match="not a socket address"):
        request("nonsense", None, b"x")


def test_only_who_has_the_key_is_answered(tmp_path: Path) -> None:
    network = keyed(tmp_path)
    with closing(RequestServer(ANYWHERE, server_curve(network, ANYWHERE), shouting)) as guarded:
        assert request(guarded.endpoint, client_curve(network, guarded.endpoint), b"friend") == b"FRIEND"
        with pytest.raises(TransportError, match="no reply from"):
            request(guarded.endpoint, None, b"stranger", limit_s=0.2)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with closing(Publisher(ANYWHERE, None, retained_topics=("state", "frame"))) as state_publisher:
        yield state_publisher


def body(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def test_a_late_subscriber_gets_the_last_state_of_its_topics_only(publisher: Publisher) -> None:
    for number in range(3):
        publisher.publish("state", body(number))
        publisher.publish("frame", body(number + 10))
        publisher.publish("word", body(number + 20))
    with listening(publisher.endpoint, "state") as listener:
        assert listener.next() == 2
        with listening(publisher.endpoint) as all_topics:
            assert sorted([all_topics.next(), all_topics.next()]) == [2, 12]
            publisher.publish("word", body("now"))
            assert all_topics.next() == "now"
        assert listener.next_or_none("word", 0.05) is None


def test_a_new_subscriber_to_a_topic_that_has_no_state_gets_nothing(publisher: Publisher) -> None:
    with listening(publisher.endpoint, "word", "fra") as listener:
        assert listener.next_or_none(limit_s=0.1) is None
        publisher.publish("frame", body(1))
        assert listener.next() == 1


def test_ticks_come_although_nothing_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "TICK_S", 0.02)
    ticks = iter(range(1000))

    def tick() -> list[tuple[str, bytes]]:
        number = next(ticks)
        if number == 1:
            raise KeyError("a figure that fails")
        return [("stats", body(number))]

    with closing(Publisher(ANYWHERE, None, ("stats",), tick)) as publisher, listening(publisher.endpoint) as listener:
        first, after = listener.next(), listener.next()
        assert after > first
        while after < 3:
            after = listener.next()


def test_the_last_message_reaches_a_live_subscriber(publisher: Publisher) -> None:
    with listening(publisher.endpoint) as listener:
        publisher.publish("state", body("begin"))
        assert listener.next() == "begin"
        for number in range(20):
            publisher.publish("word", body(number))
        publisher.close()
        publisher.close()
        received = iter(listener.next, 19)
        assert [word for word in received if word != "begin"] == list(range(19)), "the state may be sent once more"


def test_a_subscriber_that_stalls_costs_nothing() -> None:
    """It never reads; the other subscriber gets every message, and memory does not grow."""
    payload = body(bytes(8000))

    def stall(socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.RCVBUF, 16384)

    with (
        closing(Publisher(ANYWHERE, None, retained_topics=("frame",))) as publisher,
        listening(publisher.endpoint, prepare=stall),
        listening(publisher.endpoint) as live,
    ):
        publisher.publish("frame", payload)
        live.next()
        memory = psutil.Process().memory_info().rss
        for _ in range(2000):
            publisher.publish("frame", payload)
            live.next()
        assert publisher.dropped == 0
        assert psutil.Process().memory_info().rss - memory < 8 * 2**20
        publisher.close()


@pytest.mark.parametrize(
    "make", [lambda endpoint: Publisher(endpoint, None), lambda endpoint: RequestServer(endpoint, None, shouting)]
)
def test_a_port_in_use_is_reported_in_one_line(publisher: Publisher, make: Callable[[str], object]) -> None:
    with pytest.raises(OutputError, match=r"cannot open tcp://127.0.0.1:\d+: another program uses it; stop that one"):
        make(publisher.endpoint)


def test_an_address_that_is_none_here(tmp_path: Path) -> None:
    for endpoint, reason in [
        ("tcp://203.0.113.9:5556", "this machine has no such address"),
        (f"ipc://{tmp_path}/no/socket", "there is no such folder"),
        (f"ipc://{tmp_path}/{'x' * 200}", "too long"),
        ("tcp://127.0.0.1:99999", "ports end at 65535"),
        ("tcp://nonsense!:5556", "this machine has no such address"),
    ]:
        with pytest.raises(OutputError, match=reason):
            Publisher(endpoint, None)


def test_a_thread_that_does_not_start_in_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(self: services.SocketThread, endpoint: str) -> zmq.Socket[bytes]:
        time.sleep(0.2)
        return self._transport.context.socket(self._kind)

    monkeypatch.setattr(services.SocketThread, "_open_socket", slowly)
    monkeypatch.setattr(services, "START_LIMIT_S", 0.01)
    with pytest.raises(OutputError, match="nothing happens"):
        Publisher(ANYWHERE, None)


def test_an_ipc_path_of_another_program_is_never_taken(tmp_path: Path) -> None:
    precious, endpoint = tmp_path / "notes.txt", f"ipc://{tmp_path}/socket"
    precious.write_text("precious", encoding="utf-8")
    with pytest.raises(OutputError, match="something else at that path"):
        Publisher(f"ipc://{precious}", None)
    assert precious.read_text(encoding="utf-8") == "precious"
    with closing(Publisher(endpoint, None, retained_topics=("state",))) as first:
        with pytest.raises(OutputError, match="another program uses it"):
            Publisher(endpoint, None)
        first.publish("state", body(1))
        with listening(endpoint) as listener:
            assert listener.next() == 1
        precious.replace(tmp_path / "socket")
    assert (tmp_path / "socket").read_text(encoding="utf-8") == "precious", "a file that took its place stays"


def test_the_file_of_an_ipc_socket_is_removed_and_that_of_a_killed_run_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    for make in (lambda: Publisher(f"ipc://{path}", None), lambda: RequestServer(f"ipc://{path}", None, bytes)):
        with closing(make()):
            assert path.is_socket()
        assert not path.exists()


def test_only_who_has_the_key_hears_anything(tmp_path: Path) -> None:
    network, other_network = keyed(tmp_path, "ours"), keyed(tmp_path, "theirs")
    friend, stranger = client_curve(network, "tcp://127.0.0.1:1"), client_curve(other_network, "tcp://127.0.0.1:1")
    assert stranger is not None
    assert friend is not None
    with closing(Publisher(ANYWHERE, server_curve(network, ANYWHERE), retained_topics=("state",))) as publisher:
        publisher.publish("state", body(1))
        with (
            listening(publisher.endpoint, prepare=friend.apply) as invited,
            listening(publisher.endpoint, prepare=stranger.apply) as wrong_key,
            listening(publisher.endpoint) as no_key,
        ):
            assert invited.next() == 1
            publisher.publish("state", body(2))
            assert invited.next() == 2
            assert wrong_key.next_or_none(limit_s=0.1) is None
            assert no_key.next_or_none(limit_s=0.1) is None
