"""Link to an MQTT broker: a thread connects, reconnects and sends queued messages; the run never waits for it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import closing, suppress

from stream import logs
from stream.errors import OutputError
from stream.extensions.mqtt.broker import Broker
from stream.extensions.mqtt.session import BrokerLost, BrokerRefuses, BrokerSession
from stream.extensions.mqtt.topics import MqttMessage


class Outbox:
    """Outbox with at most one waiting message per topic: a newer one replaces it. Thread-safe; no method blocks.

    `dropped` counts replaced messages. Retained messages are kept, because a restarted broker has lost them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, MqttMessage] = {}
        self._retained: dict[str, MqttMessage] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: MqttMessage) -> None:
        """Add a message, in place of an older one of its topic."""
        with self._lock:
            if message.retain:
                self._retained[message.topic] = message
            if self._waiting.pop(message.topic, None) is not None:
                self.dropped += 1
            self._waiting[message.topic] = message

    def take(self) -> MqttMessage | None:
        """Remove and return the oldest message; None if there is none."""
        with self._lock:
            if not self._waiting:
                return None
            return self._waiting.pop(next(iter(self._waiting)))

    def renew(self) -> None:
        """Queue all retained messages again for a new connection, before others, in the order of their topics."""
        with self._lock:
            self._waiting = {**self._retained, **{k: m for k, m in self._waiting.items() if not m.retain}}


RETRY_S = (0.5, 30.0)
"""First and longest wait before another attempt; each wait is twice the one before."""

STOP_LIMIT_S = 2.0
"""Time limit of the last messages."""

log = logging.getLogger(__name__)


class MqttLink:
    """Sender of messages to a broker, from `start` to `close`.

    Each new connection sends all retained messages again. `last_will` is the message that the broker publishes if this
    client disappears. `figures` returns messages on connection and every `figures_every_s`, `command` is as for
    BrokerSession; both are called in the thread, and must raise nothing. `retry_s`: as RETRY_S.
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
        self.outbox = Outbox()
        self._broker = broker
        self._make_session = lambda: BrokerSession(broker, client_id, last_will, command)
        self._figures = figures
        self._figures_every_s = max(1.0, figures_every_s)
        self._retry_s = retry_s
        self._first_attempt: Future[None] = Future()
        self._ending = threading.Event()
        self._reported_lost = False
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)

    def start(self, limit_s: float) -> None:
        """Start the thread, and wait for the first attempt. An unreachable broker is reported once and retried.

        Raises OutputError if the broker refuses this client, or its certificate is not valid.
        """
        self._thread.start()
        wait([self._first_attempt], limit_s)
        if self._first_attempt.done():
            self._first_attempt.result()

    def put(self, message: MqttMessage) -> None:
        """Queue a message for the broker without waiting."""
        if not self._ending.is_set():
            self.outbox.put(message)
            self._wake()

    def close(self) -> None:
        """End the thread once the queued messages are sent, or after `STOP_LIMIT_S`. Idempotent."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._wake()
        self._thread.join(STOP_LIMIT_S)
        if not self._thread.is_alive():  # else it ends with the program
            os.close(self._woken)
            os.close(self._wakes)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # already woken
            os.write(self._wakes, b"1")

    def _run(self) -> None:
        wait_s = self._retry_s[0]
        while not self._ending.is_set():
            since_s = time.monotonic()
            try:
                with closing(self._make_session()) as session:
                    session.connect()
                    self.outbox.renew()
                    if not self._first_attempt.done():
                        self._first_attempt.set_result(None)
                    if self._reported_lost:
                        self._reported_lost = False
                        logs.say(
                            f"the MQTT broker at {self._broker.address} is there",
                            event="mqtt",
                            address=self._broker.address,
                        )
                    self._serve(session)
            except BrokerRefuses as error:
                if not self._first_attempt.done():
                    problem = f"the MQTT broker at {self._broker.address}: {error.problem}"
                    self._first_attempt.set_exception(OutputError(problem, error.remedy))
                    return
                self._note_lost(str(error))
            except BrokerLost as error:
                self._note_lost(str(error))
            except Exception as error:
                log.debug("the connection to the MQTT broker failed", exc_info=True)
                self._note_lost(f"unexpected {type(error).__name__}")
            # a connection of this length resets the waits
            if time.monotonic() - since_s > 10.0:
                wait_s = self._retry_s[0]
            self._ending.wait(wait_s)
            wait_s = min(self._retry_s[1], 2 * wait_s)

    def _serve(self, session: BrokerSession) -> None:
        """Send messages until the link is closed and all are sent. Raises BrokerLost."""
        next_s = time.monotonic()
        while not (self._ending.is_set() and not len(self.outbox) and not session.busy):
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + self._figures_every_s
                for figures in self._figures():
                    self.outbox.put(figures)
            if not session.busy and (message := self.outbox.take()) is not None:
                session.send(message)
            session.step(self._woken, 1.0 if session.busy or not len(self.outbox) else 0)
        session.leave()

    def _note_lost(self, reason: str) -> None:
        """Report that the broker is lost, once until it is reached again."""
        if not self._first_attempt.done():
            self._first_attempt.set_result(None)
        if self._reported_lost or self._ending.is_set():
            return
        self._reported_lost = True
        address = self._broker.address
        text = f"note: no MQTT broker at {address}: {reason}; the run goes on, and it is tried again"
        logs.say(text, "warning", event="mqtt", address=address, reason=reason)
