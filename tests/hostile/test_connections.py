"""A thousand connections that never finish their greeting, at every port: an honest client beside them is served."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from contextlib import ExitStack, closing

import pytest
import zmq

from stream.extensions.metrics.server import HttpServer, Page
from stream.extensions.zeromq.services import Publisher, RequestServer, request
from stream.protocol.messages import Connect, ServerHello
from tests.faults.test_messages import answered
from tests.faults.test_messages import until as until_message
from tests.hostile.crowd import half_open, room_for_a_crowd
from tests.support.network import LIMIT_S, free_port, listening
from tests.support.served_answers import ServedAnswers

ANYWHERE = "tcp://127.0.0.1:*"
GROWTH_MAX_BYTES = 200 << 20
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03"
"""The first half of a ZeroMQ peer's greeting."""

pytestmark = [
    pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES),
    pytest.mark.skipif(not room_for_a_crowd(), reason="this process may not have some 2500 open files"),
]


@pytest.mark.parametrize("first", [b"", ZMTP_GREETING, b"\x00" * 64])
def test_the_answer_port_serves_clients_beside_a_half_open_connection(first: bytes) -> None:
    with ExitStack() as stack:
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        served = ServedAnswers(stack, endpoint)
        early = served.client()
        early.send(Connect())
        until_message(early, ServerHello)  # the port is open
        stack.enter_context(half_open(endpoint, first))
        good = served.client()
        good.send(Connect())
        until_message(good, ServerHello)
        assert [answered(good, number) for number in range(3)] == ["frame 7 sum 0"] * 3
        assert served.control.failure is None


@pytest.mark.parametrize("first", [b"", ZMTP_GREETING])
def test_the_control_port_serves_clients_beside_a_half_open_connection(first: bytes) -> None:
    with closing(RequestServer(ANYWHERE, None, lambda body: body[::-1])) as server, half_open(server.endpoint, first):
        assert request(server.endpoint, None, b"abc", LIMIT_S) == b"cba"


@pytest.mark.parametrize("first", [b"", ZMTP_GREETING])
def test_the_published_run_reaches_its_subscribers_beside_a_half_open_connection(first: bytes) -> None:
    with (
        closing(Publisher(ANYWHERE, None, retained_topics=("state",))) as publisher,
        half_open(publisher.endpoint, first),
    ):
        publisher.publish("state", b"\x01")
        with listening(publisher.endpoint, "state") as listener:
            assert listener.next("state") == 1


@pytest.mark.parametrize("first", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
def test_the_metrics_reach_clients_beside_a_half_open_connection(first: bytes) -> None:
    with closing(HttpServer("127.0.0.1", 0, lambda path: Page(200, "text/plain", b"well"))) as server:
        host, port = server.address
        with half_open(f"http://{host}:{port}", first):
            with closing(http.client.HTTPConnection(host, port, timeout=LIMIT_S)) as honest:
                honest.request("GET", "/metrics")
                assert honest.getresponse().read() == b"well"
            assert sum("process_request_thread" in thread.name for thread in threading.enumerate()) < 50


@pytest.mark.parametrize(
    "bomb",
    [b"X: " + b"y" * 60_000 + b"\r\n", b"X: y\r\n" * 5_000, b"GET /" + b"a" * 1_000_000],
    ids=["line", "lines", "path"],
)
def test_a_bomb_of_headers_gets_an_error_and_other_clients_do_not(bomb: bytes) -> None:
    with closing(HttpServer("127.0.0.1", 0, lambda path: Page(200, "text/plain", b"well"))) as server:
        host, port = server.address
        with (
            half_open(f"http://{host}:{port}", b"GET / HTTP/1.1\r\n" + bomb, count=4),
            closing(http.client.HTTPConnection(host, port, timeout=LIMIT_S)) as honest,
        ):
            honest.request("GET", "/metrics")
            assert honest.getresponse().read() == b"well"


FLOOD = """
import sys, zmq
with zmq.Context() as context, context.socket(zmq.XSUB) as flood:
    flood.setsockopt(zmq.SNDHWM, 0)
    flood.setsockopt(zmq.LINGER, 10_000)
    flood.connect(sys.argv[1])
    for number in range(int(sys.argv[2])):
        flood.send(b"\\x01" + f"{number}".encode() * 100)
"""
"""A subscriber to as many topics, in a separate process, because its socket remembers all of them itself."""


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_subscriber_cannot_make_the_publisher_remember_all_it_says(count: int) -> None:
    """It may subscribe to anything; topics without publications are forgotten."""
    topics = ("state", "frame")
    with ExitStack() as stack:
        publisher = stack.enter_context(closing(Publisher(ANYWHERE, None, retained_topics=("state",), topics=topics)))
        publisher.publish("state", b"\x01")
        subprocess.run([sys.executable, "-c", FLOOD, publisher.endpoint, str(count)], check=True, timeout=4 * LIMIT_S)
        with listening(publisher.endpoint, "sta") as listener:
            assert listener.next("state") == 1


class _Context:
    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def close(self) -> None:
        self.context.term()


@pytest.mark.parametrize("parts", [1, 3, 500])
def test_a_request_of_many_parts_gets_one_reply(parts: int) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(closing(RequestServer(ANYWHERE, None, lambda body: body[::-1])))
        context = stack.enter_context(closing(_Context())).context
        asking = context.socket(zmq.DEALER)
        stack.callback(asking.close, 0)
        asking.connect(server.endpoint)
        asking.send_multipart([b"ab"] * parts)
        assert asking.poll(int(LIMIT_S * 1000))
        assert asking.recv_multipart() == [b"ba"]
