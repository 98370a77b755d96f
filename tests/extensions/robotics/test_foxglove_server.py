"""Live connection for Foxglove, from a client of its protocol."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from websockets.sync.client import ClientConnection, connect

from stream.config import Config, NetworkConfig
from stream.errors import OutputError
from stream.events import encode_event
from stream.extensions.robotics import foxglove_server
from stream.extensions.robotics.event_schemas import LOGGED
from stream.extensions.robotics.foxglove_server import FoxgloveSink
from stream.extensions.robotics.section import RoboticsSection
from stream.sinks.factory import MonitorSink
from tests.support.events import answer
from tests.support.network import LIMIT_S, until
from tests.support.recordings import picture
from tests.support.sections import opened_sinks

TOPICS = {"/picture", "/relevance", "/heatmap", "/regions", "/caption", "/log"}


def config(address: str = "0", **network: Any) -> Config:
    return Config(robotics=RoboticsSection(foxglove=address), network=NetworkConfig(**network))


@contextmanager
def served() -> Iterator[FoxgloveSink]:
    with closing(FoxgloveSink(config())) as sink:
        yield sink


@contextmanager
def viewer(address: str) -> Iterator[ClientConnection]:
    with connect(address, subprotocols=["foxglove.sdk.v1"], open_timeout=LIMIT_S) as client:  # type: ignore[list-item]
        yield client


def channels(client: ClientConnection) -> dict[str, dict[str, Any]]:
    """Return the channels that the server offers, by topic."""
    channels: dict[str, dict[str, Any]] = {}
    while len(channels) < len(TOPICS) + len(LOGGED):
        message = json.loads(client.recv(LIMIT_S))
        channels.update({channel["topic"]: channel for channel in message.get("channels", ())})
    return channels


def test_a_viewer_receives_answers_and_pictures() -> None:
    event, picture_event = answer(1.5, "a cat"), picture(3, 1.5)
    with served() as sink, viewer(sink.address) as client:
        offered = channels(client)
        assert offered.keys() >= {*TOPICS, "/answer", "/frame"}
        assert offered["/regions"]["schemaName"] == "foxglove.ImageAnnotations"
        topics = {offered[topic]["id"]: topic for topic in ("/answer", "/picture")}
        subscriptions = [{"id": number, "channelId": number} for number in topics]
        client.send(json.dumps({"op": "subscribe", "subscriptions": subscriptions}))
        channels_of = sink._topics._events[type(event)], sink._topics._picture
        until(lambda: all(channel.has_sinks() for channel in channels_of))
        sink.write(picture_event)
        sink.write(event)
        payloads = {}
        while len(payloads) < 2:
            message = client.recv(LIMIT_S)
            if isinstance(message, bytes):
                opcode, number, time_ns = struct.unpack_from("<BIQ", message)
                assert (opcode, time_ns) == (1, 1_500_000_000)
                payloads[topics[number]] = message[13:]
        assert payloads["/answer"].decode() == encode_event(event)
        assert picture_event.jpeg in payloads["/picture"]


def test_a_run_opens_the_server_on_request() -> None:
    sinks = opened_sinks(config())
    assert [type(sink) for sink in sinks] == [MonitorSink, FoxgloveSink]
    for sink in sinks:
        sink.close()


def test_a_run_needs_no_viewer() -> None:
    with served() as sink:
        for number in range(300):
            sink.write(picture(number, float(number)))


def test_a_port_that_is_taken_is_one_line() -> None:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OutputError) as refused:
            FoxgloveSink(config(str(port)))
    assert str(refused.value) == (
        f"Foxglove cannot be served at 127.0.0.1:{port}; another program uses that port; name another with --foxglove"
    )


def test_an_address_that_this_machine_does_not_have_is_one_line() -> None:
    with pytest.raises(OutputError, match="this machine does not have that address; give --foxglove PORT"):
        FoxgloveSink(config("203.0.113.7:8765", plain_tcp=True))


def test_other_errors_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        foxglove_server.foxglove, "start_server", Mock(side_effect=RuntimeError("FoxgloveError: something new"))
    )
    with pytest.raises(OutputError, match=r"cannot be served at 127\.0\.0\.1:0; FoxgloveError: something new"):
        FoxgloveSink(config())


def test_a_sink_that_is_closed_releases_its_port() -> None:
    sink = FoxgloveSink(config())
    port = int(sink.address.rpartition(":")[2])
    sink.close()
    sink.close()

    def serves_again() -> bool:
        try:
            sink = FoxgloveSink(config(str(port)))
        except OutputError:  # the SDK ends its server in a separate thread
            return False
        sink.close()
        return sink.address == f"ws://127.0.0.1:{port}"

    until(serves_again)
