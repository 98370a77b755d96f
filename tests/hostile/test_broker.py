"""Hostile MQTT broker: packets without an end, messages that nothing asked for, confirmations that it never takes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from stream.extensions.mqtt.broker import Broker
from stream.extensions.mqtt.session import BrokerLost, BrokerSession
from stream.extensions.mqtt.topics import MqttMessage
from tests.support.network import LIMIT_S, until

CONNACK, SUBACK = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01"
TOPIC = b"ask"


def publish(payload: bytes, qos: int = 1, number: int = 1, size: int | None = None) -> bytes:
    """A PUBLISH packet (MQTT 3.1.1, 3.3); `size` is its declared length."""
    content = len(TOPIC).to_bytes(2, "big") + TOPIC + number.to_bytes(2, "big") + payload
    left, length = len(content) if size is None else size, b""
    while True:
        left, digit = left >> 7, left & 127
        length += bytes([digit | (128 if left else 0)])
        if not left:
            return bytes([0x30 | qos << 1]) + length + content


@contextmanager
def hostile(talk: Callable[[socket.socket], None]) -> Iterator[tuple[BrokerSession, list[bytes]]]:
    """A session with a broker that accepts it and then sends; the questions that arrive."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(1024)
            connection.sendall(CONNACK + SUBACK)
            talk(connection)

    questions: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        broker = Broker("127.0.0.1", listener.getsockname()[1], tls=False)
        with closing(BrokerSession(broker, "client", MqttMessage("will", b""), ("ask", questions.append))) as session:
            session.connect()
            yield session, questions
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def listen(session: BrokerSession) -> None:
    while True:
        session.step(None, 1.0)


def test_a_packet_beyond_the_limit_ends_the_connection_before_it_is_read() -> None:
    bytes_sent = 0

    def talk(connection: socket.socket) -> None:
        nonlocal bytes_sent
        connection.sendall(publish(b"a question"))
        connection.sendall(publish(b"", size=(256 << 20) - 1))
        while True:
            bytes_sent += connection.send(bytes(65536))

    with (
        hostile(talk) as (session, questions),
        pytest.raises(BrokerLost, match="at most 131072 are taken"),
    ):
        listen(session)
    assert questions == [b"a question"]
    assert bytes_sent < 64 << 20, "the rest never left the sockets' buffers"


def test_a_message_that_waits_for_a_release_ends_the_connection() -> None:
    def talk(connection: socket.socket) -> None:
        for number in range(1, 1 << 16):
            connection.sendall(publish(bytes(1000), qos=2, number=number))

    with hostile(talk) as (session, questions), pytest.raises(BrokerLost, match="QoS 2, which were not asked for"):
        listen(session)
    assert questions == []


def test_a_broker_that_takes_no_confirmations_is_not_heard() -> None:
    def talk(connection: socket.socket) -> None:
        while True:
            connection.sendall(publish(b"") * 1000)

    with hostile(talk) as (session, questions):
        connection = session._client.socket()
        assert connection is not None
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

        def is_unheard() -> bool:
            count = len(questions)
            for _ in range(50):
                session.step(None, 0.001)
            return session.busy and len(questions) == count

        until(is_unheard)
