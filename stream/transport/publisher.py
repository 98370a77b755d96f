"""A socket for everybody who wants to listen: it never waits for them, and tells newcomers the last state.

ZeroMQ's XPUB with a thread of its own, so that somebody who subscribes is answered although nothing happens in the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress

import zmq

from stream.transport.curve import ServerCurve
from stream.transport.served import LINGER_MS, ServedSocket

TopicMessage = tuple[str, bytes]

SUBSCRIBER_MESSAGES = 32
"""Messages that may wait for one subscriber; whoever is slower loses those that follow, and nobody else does."""

SUBSCRIBER_BUFFER_BYTES = 128 * 1024
"""Of the system's own send buffer for one TCP connection, which would otherwise grow to megabytes of old frames."""

SUBSCRIPTION_BYTES_MAX = 1024
"""Subscribers send nothing but the names of topics."""

SUBSCRIPTIONS_REMEMBERED_MAX = 20_000
"""libzmq remembers every subscription while its connection lasts, also those to topics that do not exist: 3 KB each.
After so many the socket is opened anew; whoever subscribes to what exists comes back by itself."""

SUBSCRIPTIONS_WAITING = 64
"""Requests of one subscriber that may wait."""

TOPIC_BYTES_MAX = 64
"""No topic has a longer name; whoever subscribes to one is not served."""

HANDED_OVER = 256
"""Messages that may wait for the publisher's thread."""

TICK_S = 1.0
NEWCOMERS_AT_ONCE = 64

INSIDE = "inproc://publish"
STOP = b""

log = logging.getLogger(__name__)


class Publisher:
    """Publishes topics at `endpoint`; `publish` and `close` are for the thread that made it.

    The last message of every topic in `kept` is sent again where somebody subscribes to it; others who listen to that
    topic get it again too. `topics` are all that will ever be published, any where that is None. `tick` is called once
    a second, in the publisher's thread, and gives messages of its own.
    Raises OutputError where the endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        curve: ServerCurve | None,
        kept: Iterable[str] = (),
        tick: Callable[[], Iterable[TopicMessage]] = tuple,
        topics: Iterable[str] | None = None,
    ) -> None:
        self._socket = _PublicSocket(endpoint, curve, kept, tick, topics)
        self._way_in = self._socket.way_in()
        self._closed = False
        self.dropped = 0
        try:
            self.endpoint = self._socket.start()
        except BaseException:
            self._way_in.close(linger=0)
            self._socket.finish()
            raise

    def publish(self, topic: str, body: bytes) -> None:
        """Hands a message over and returns at once; `dropped` counts those for which there was no room."""
        try:
            self._way_in.send_multipart((topic.encode(), body), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1

    def close(self) -> None:
        """Sends what was published, as far as somebody takes it within `LINGER_MS`. May be called twice."""
        if self._closed:
            return
        self._closed = True
        with suppress(zmq.Again):
            self._way_in.send(STOP)
        self._way_in.close()
        self._socket.finish()


class _PublicSocket(ServedSocket):
    """The publisher's thread: what is handed over goes out, and newcomers are told the last state."""

    def __init__(
        self,
        endpoint: str,
        curve: ServerCurve | None,
        kept: Iterable[str],
        tick: Callable[[], Iterable[TopicMessage]],
        topics: Iterable[str] | None,
    ) -> None:
        super().__init__("publisher", zmq.XPUB, endpoint, curve)
        self._topics = None if topics is None else [topic.encode() for topic in topics]
        self._tick = tick
        self._unknown = 0
        self._last: dict[bytes, bytes | None] = {topic.encode(): None for topic in kept}

    def way_in(self) -> zmq.Socket[bytes]:
        """Where messages are handed over; belongs to the thread that asks for it."""
        way_in = self._transport.context.socket(zmq.PUSH)
        way_in.setsockopt(zmq.SNDHWM, HANDED_OVER)
        way_in.setsockopt(zmq.LINGER, LINGER_MS)
        way_in.setsockopt(zmq.SNDTIMEO, LINGER_MS)
        way_in.bind(INSIDE)
        return way_in

    @property
    def options(self) -> Mapping[int, int]:
        return {
            zmq.XPUB_MANUAL: 1,
            zmq.RCVHWM: SUBSCRIPTIONS_WAITING,
            zmq.SNDHWM: SUBSCRIBER_MESSAGES,
            zmq.SNDBUF: SUBSCRIBER_BUFFER_BYTES,
            zmq.MAXMSGSIZE: SUBSCRIPTION_BYTES_MAX,
        }

    def serve(self, public: zmq.Socket[bytes]) -> None:
        with closing(self._transport.context.socket(zmq.PULL)) as handed_over:
            handed_over.setsockopt(zmq.RCVHWM, HANDED_OVER)
            handed_over.connect(INSIDE)
            poller = zmq.Poller()
            poller.register(handed_over, zmq.POLLIN)
            poller.register(public, zmq.POLLIN)
            next_tick_s = time.monotonic() + TICK_S
            while True:
                wait_s = max(0.0, next_tick_s - time.monotonic())
                ready = dict(poller.poll(int(wait_s * 1000) + 1))
                if handed_over in ready and not self._pass_on(handed_over, public):
                    return
                if public in ready:
                    self._greet(public)
                    if self._unknown > SUBSCRIPTIONS_REMEMBERED_MAX:
                        poller.unregister(public)
                        public, self._unknown = self.renewed(), 0
                        poller.register(public, zmq.POLLIN)
                if time.monotonic() >= next_tick_s:
                    next_tick_s = time.monotonic() + TICK_S
                    for topic, body in self._ticked():
                        self._send(public, topic.encode(), body)

    def _ticked(self) -> Iterable[TopicMessage]:
        try:
            return tuple(self._tick())
        except Exception:
            log.warning("the figures of this second could not be made", exc_info=True)
            return ()

    def _pass_on(self, handed_over: zmq.Socket[bytes], public: zmq.Socket[bytes]) -> bool:
        """Publishes everything that was handed over; whether there may be more."""
        for _ in range(HANDED_OVER):
            try:
                parts = handed_over.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if len(parts) < 2:
                return False
            self._send(public, parts[0], parts[1])
        return True

    def _greet(self, public: zmq.Socket[bytes]) -> None:
        """Sends the last state of the topics that somebody has just subscribed to."""
        wanted: dict[bytes, None] = {}
        for _ in range(NEWCOMERS_AT_ONCE):
            try:
                said = public.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(said) - 1 > TOPIC_BYTES_MAX or not self._is_known(said[1:]):
                self._unknown += 1
                continue
            # XPUB_MANUAL: the socket remembers what it is told to, for whoever has just been heard.
            if said[:1] == b"\x00":
                public.setsockopt(zmq.UNSUBSCRIBE, said[1:])
            if said[:1] == b"\x01":
                public.setsockopt(zmq.SUBSCRIBE, said[1:])
                wanted |= dict.fromkeys(topic for topic in self._last if topic.startswith(said[1:]))
        for topic in wanted:
            body = self._last[topic]
            if body is not None:
                public.send_multipart((topic, body))

    def _is_known(self, prefix: bytes) -> bool:
        """Whether anything may be published that begins so: a subscriber cannot make the socket remember all else."""
        return self._topics is None or any(topic.startswith(prefix) for topic in self._topics)

    def _send(self, public: zmq.Socket[bytes], topic: bytes, body: bytes) -> None:
        if topic in self._last:
            self._last[topic] = body
        public.send_multipart((topic, body))
