"""Link to an MQTT broker: a thread connects, reconnects and sends queued messages; the run never waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress

from stream.errors import OutputError
from stream.extensions.mqtt.broker import Broker
from stream.extensions.mqtt.session import BrokerRefuses, BrokerSession
from stream.extensions.mqtt.topics import MqttMessage
from stream.sinks.background import BackgroundSender, Outbox, Unreachable

RETRY_S = (0.5, 30.0)
"""First and longest wait before another attempt; each wait is twice the one before."""

STEADY_S = 10.0
"""Length of a connection after which the waits start anew."""

STOP_LIMIT_S = 2.0
"""Time limit of the last messages."""


class MqttLink(BackgroundSender[MqttMessage]):
    """Sender of messages to a broker, from `connect` to `close`; of each topic only the newest message waits.

    Each new connection sends all retained messages again, because a restarted broker has lost them. `last_will` is the
    message that the broker publishes if this client disappears. `figures` returns messages on connection and every
    `figures_every_s`, `command` is as for BrokerSession; both are called in the thread, and must raise nothing.
    `retry_s`: as RETRY_S.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        last_will: MqttMessage,
        figures: Callable[[], Iterable[MqttMessage]] = tuple,
        command: tuple[str, Callable[[bytes], None]] | None = None,
        retry_s: tuple[float, float] = RETRY_S,
        figures_every_s: float = 10.0,
    ) -> None:
        super().__init__(
            "mqtt",
            Outbox(lambda message: message.topic),
            "no MQTT broker at {address}: {reason}; the run goes on, and it is tried again",
            "the MQTT broker at {address} is there",
            retry_s,
            address=broker.address,
        )
        self._retained: dict[str, MqttMessage] = {}
        self._broker = broker
        self._make_session = lambda: BrokerSession(broker, client_id, last_will, command)
        self._figures = figures
        self._figures_every_s = max(1.0, figures_every_s)
        self._first_attempt = threading.Event()
        self._refusal: OutputError | None = None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)

    def connect(self, limit_s: float) -> None:
        """Start the thread, and wait for the first attempt. An unreachable broker is reported once and retried.

        Raises OutputError if the broker refuses this client, or its certificate is not valid.
        """
        self.start()
        self._first_attempt.wait(limit_s)
        if self._refusal is not None:
            raise self._refusal

    def put(self, item: MqttMessage) -> None:
        """Queue a message for the broker without waiting."""
        if self.ending:
            return
        if item.retain:
            self._retained[item.topic] = item
        super().put(item)
        self._wake()

    def stop(self) -> None:
        super().stop()
        self._wake()

    def close(self) -> None:
        """End the thread once the queued messages are sent, or after `STOP_LIMIT_S`. Idempotent."""
        if not self.ending and self.end(STOP_LIMIT_S):  # else it ends with the program
            os.close(self._woken)
            os.close(self._wakes)

    def serve(self) -> None:
        since_s = time.monotonic()
        try:
            with closing(self._make_session()) as session:
                session.connect()
                self.put_first(list(self._retained.values()))
                self._first_attempt.set()
                self.reached(steady=False)
                next_s = time.monotonic()
                while not self.ending or len(self.outbox) or session.busy:
                    if time.monotonic() >= next_s:
                        next_s = time.monotonic() + self._figures_every_s
                        for figures in self._figures():
                            self.put(figures)
                    if not session.busy:
                        for message in self.take(wait_s=0.0):
                            session.send(message)
                    # The wait is for the broker's messages as well: a pipe in it brings news of the outbox.
                    session.step(self._woken, 1.0 if session.busy or not len(self.outbox) else 0)
                session.leave()
        except BrokerRefuses as error:
            if self._first_attempt.is_set():
                raise Unreachable(str(error)) from error
            self._refusal = OutputError(f"the MQTT broker at {self._broker.address}: {error.problem}", error.remedy)
        finally:
            self._first_attempt.set()
            if time.monotonic() - since_s > STEADY_S:
                self.failures = 0

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # already woken
            os.write(self._wakes, b"1")
