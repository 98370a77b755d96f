"""Messages that wait for a broker: the newest of each topic, and what every new connection is told again."""

from __future__ import annotations

import threading

from stream.mqtt.topics import MqttMessage


class Outbox:
    """At most one message waits for each topic: a newer one takes its place. For any thread; nothing waits here.

    `dropped` counts messages whose place a newer one took. Retained messages are remembered, because a broker that was
    started again has forgotten them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, MqttMessage] = {}
        self._retained: dict[str, MqttMessage] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: MqttMessage) -> None:
        """Leave a message, in place of an older one of its topic."""
        with self._lock:
            if message.retain:
                self._retained[message.topic] = message
            if self._waiting.pop(message.topic, None) is not None:
                self.dropped += 1
            self._waiting[message.topic] = message

    def take(self) -> MqttMessage | None:
        """Return the message that waits longest, None without one."""
        with self._lock:
            if not self._waiting:
                return None
            return self._waiting.pop(next(iter(self._waiting)))

    def renew(self) -> None:
        """A new connection: retained messages go first and again, in the order in which their topics began."""
        with self._lock:
            self._waiting = {**self._retained, **{k: m for k, m in self._waiting.items() if not m.retain}}
