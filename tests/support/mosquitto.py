"""A real MQTT broker, that can be killed and started again, and a client that listens there."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.network import LIMIT_S, free_port, until

PROGRAM = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """A broker at a port of this machine; `settings` are lines of its configuration. It forgets all when it ends."""

    def __init__(self, folder: Path, *settings: str, listener: str = "") -> None:
        if PROGRAM is None:
            message = "no mosquitto: apt-get install --no-install-recommends mosquitto"
            pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
        self.port = free_port()
        self._file = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", listener, *(settings or ["allow_anonymous true"])]
        if os.geteuid() == 0:
            lines.insert(0, "user root")  # or it could not read the files of the test
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "-c", self._file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(self._listens)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "mosquitto ended at once"
        try:
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S).close()
        except ConnectionRefusedError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, unless it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)
            self._process = None


@contextmanager
def broker(folder: Path, *settings: str, listener: str = "") -> Iterator[Mosquitto]:
    """A broker that runs."""
    mosquitto = Mosquitto(folder, *settings, listener=listener)
    try:
        mosquitto.start()
        yield mosquitto
    finally:
        mosquitto.kill()


class Subscriber:
    """Client that receives messages at a broker."""

    def __init__(self, port: int, *topics: str, user: str | None = None, password: str | None = None) -> None:
        self._messages: queue.Queue[MQTTMessage] = queue.Queue()
        self._ready = queue.Queue[bool]()
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.username_pw_set(user, password)
        self._client.on_message = lambda client, data, message: self._messages.put(message)
        self._client.on_subscribe = lambda *_: self._ready.put(True)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for topic in topics or ("#",):
            self._client.subscribe(topic, qos=1)
            self._ready.get(timeout=LIMIT_S)

    def next(self, topic: str) -> MQTTMessage:
        """The next message of a topic."""
        while True:
            message = self.take()
            if message.topic == topic:
                return message

    def take(self) -> MQTTMessage:
        """The next message of any topic."""
        return self._messages.get(timeout=LIMIT_S)

    def publish(self, topic: str, payload: Any, *, retain: bool = False) -> None:
        """Publish there, and wait until the broker has it."""
        self._client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(LIMIT_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def subscribed(port: int, *topics: str, user: str | None = None, password: str | None = None) -> Iterator[Subscriber]:
    """A subscriber to the topics, or to all of them."""
    subscriber = Subscriber(port, *topics, user=user, password=password)
    try:
        yield subscriber
    finally:
        subscriber.close()
