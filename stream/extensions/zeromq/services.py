"""Sockets with separate threads: `Publisher` (XPUB), `RequestServer` (ROUTER); and `request` (REQ).

The request server is a ROUTER, so that a client that dies between request and reply blocks no other client. The
publisher has a thread so that a new subscriber gets the last state even while the run has no events.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from contextlib import closing, suppress

import zmq

from stream.errors import OutputError, TransportError
from stream.transport.context import Transport
from stream.transport.security import BoundPath, ClientCurve, ServerCurve, bind_endpoint

log = logging.getLogger(__name__)

LINGER_MS = 500
"""Time limit for a closing socket to send its queued messages."""

START_LIMIT_S = 5.0
RELEASE_POLL_S = 0.01
STOP_LIMIT_S = 5.0


class SocketThread(ABC):
    """Bound socket with a separate thread. A caller of `start` must call `finish`, even if `start` fails."""

    def __init__(self, name: str, kind: int, endpoint: str, curve: ServerCurve | None) -> None:
        self._kind = kind
        self._asked_endpoint = endpoint
        self._curve = curve
        self._path: BoundPath | None = None
        self._bound: Future[str] = Future()
        self._transport = Transport()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> str:
        """Start the thread and return the bound endpoint, with the actual port number.

        Raises OutputError if the endpoint cannot be bound.
        """
        if self._curve is not None:
            self._transport.require_curve(self._curve)
        self._thread.start()
        try:
            return self._bound.result(START_LIMIT_S)
        except WaitedTooLong as error:
            self._bound.cancel()
            raise OutputError(f"cannot open {self._asked_endpoint}: nothing happens") from error

    def finish(self) -> None:
        """Wait for the thread, which has been asked to end, and end the context."""
        self._thread.join(STOP_LIMIT_S)
        self._transport.close()

    @property
    @abstractmethod
    def options(self) -> Mapping[int, int]:
        """Options of the socket."""

    @abstractmethod
    def serve(self, public: zmq.Socket[bytes]) -> None:
        """Serve in the thread until the end is requested."""

    def _run(self) -> None:
        with suppress(zmq.ContextTerminated):
            try:
                self._public = self._open_socket(self._asked_endpoint)
            except Exception as error:
                if self._bound.set_running_or_notify_cancel():
                    self._bound.set_exception(error)
                return
            try:
                if self._bound.set_running_or_notify_cancel():
                    self._bound.set_result(self._public.getsockopt_string(zmq.LAST_ENDPOINT))
                    self.serve(self._public)
            finally:
                if self._path is not None:
                    self._path.remove()
                self._public.close(linger=LINGER_MS)

    def reopen(self) -> zmq.Socket[bytes]:
        """Close the socket with all its connections, and return a new one at the same address, to which peers reconnect
        by themselves. Raises OutputError if the address cannot be bound again within START_LIMIT_S.
        """
        endpoint = self._public.getsockopt_string(zmq.LAST_ENDPOINT)
        self._public.close(linger=0)
        limit_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._public = self._open_socket(endpoint)
                return self._public
            except OutputError:
                if time.monotonic() > limit_s:
                    raise
                time.sleep(RELEASE_POLL_S)  # ZeroMQ closes the old socket in another thread

    def _open_socket(self, endpoint: str) -> zmq.Socket[bytes]:
        public = self._transport.context.socket(self._kind)
        try:
            for option, value in self.options.items():
                public.setsockopt(option, value)
            if self._curve is not None:
                self._curve.apply(public)
            self._path = bind_endpoint(public, endpoint)
        except BaseException:
            public.close(linger=0)
            raise
        return public


REQUEST_BYTES_MAX = 64 * 1024
"""Size limit of a request; a larger one closes its sender's connection."""

WAITING_MAX = 64
"""Queue of requests, and of replies per client."""


class RequestServer(SocketThread):
    """Server that answers each request at `endpoint` with the result of `reply`, in a separate thread.

    `reply` must return soon and raise nothing. Raises OutputError if the endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, curve: ServerCurve | None, reply: Callable[[bytes], bytes]) -> None:
        super().__init__("control", zmq.ROUTER, endpoint, curve)
        self._reply = reply
        self._stop = threading.Event()
        self._closed = False
        try:
            self.endpoint = self.start()
        except BaseException:
            self.finish()
            raise

    @property
    def options(self) -> Mapping[int, int]:
        return {zmq.MAXMSGSIZE: REQUEST_BYTES_MAX, zmq.RCVHWM: WAITING_MAX, zmq.SNDHWM: WAITING_MAX}

    def serve(self, public: zmq.Socket[bytes]) -> None:
        while not self._stop.is_set():
            if public.poll(100):
                parts = public.recv_multipart()
                # the client's routing id, then for REQ an empty part; the reply begins with the same parts
                if len(parts) > 2 and not parts[1]:
                    envelope = parts[:2]
                else:
                    envelope = parts[:1]
                public.send_multipart([*envelope, self._reply(parts[-1])])

    def close(self) -> None:
        """End the thread. Idempotent."""
        if not self._closed:
            self._closed = True
            self._stop.set()
            self.finish()


def request(endpoint: str, curve: ClientCurve | None, body: bytes, limit_s: float = 3.0) -> bytes:
    """Return the reply of a run to a request.

    Args:
        endpoint: address of the run's control socket.
        curve: keys of the client; None without encryption.
        body: the request, encoded.
        limit_s: longest wait for the reply, in seconds.

    Raises:
        TransportError: the address is invalid, or no reply arrived in time.
    """
    transport = Transport()
    try:
        with closing(transport.context.socket(zmq.REQ)) as client:
            client.setsockopt(zmq.LINGER, 0)
            client.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
            if curve is not None:
                curve.apply(client)
            try:
                client.connect(endpoint)
            except zmq.ZMQError as error:
                raise TransportError(f"{endpoint!r} is not a socket address: {error.strerror}") from error
            client.send(body)
            if not client.poll(round(limit_s * 1000)):
                if curve is None:
                    keys = ""
                else:
                    keys = ", and that it was started with matching keys"
                raise TransportError(
                    f"no reply from {endpoint} within {limit_s:g} s; check that a run with --control {endpoint} is "
                    f"in progress{keys}"
                )
            return client.recv()
    finally:
        transport.close()


TopicMessage = tuple[str, bytes]

SUBSCRIBER_BUFFER_BYTES = 128 * 1024
"""Size of the system's send buffer per TCP connection, which would otherwise grow to megabytes of old frames."""

SUBSCRIPTIONS_REMEMBERED_MAX = 20_000
"""Limit of subscriptions to unknown topics, of which libzmq keeps 3 KB each while the connection lasts. Beyond it the
socket is reopened; subscribers to known topics reconnect by themselves."""

QUEUE_MESSAGES = 256
"""Queue of messages to the publisher's thread."""

TICK_S = 1.0
SUBSCRIPTIONS_AT_ONCE = 64

INSIDE = "inproc://publish"
STOP = b""


class Publisher:
    """Publisher of topics at `endpoint`; `publish` and `close` are for the thread that made it.

    The last message of a topic in `retained_topics` is sent again on each new subscription to it, to all of its
    subscribers. `topics` are all topics that will be published; None allows any. `tick` is called once a second, in the
    publisher's thread, and returns further messages. Raises OutputError if the endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        curve: ServerCurve | None,
        retained_topics: Iterable[str] = (),
        tick: Callable[[], Iterable[TopicMessage]] = tuple,
        topics: Iterable[str] | None = None,
    ) -> None:
        self._socket = _PublicSocket(endpoint, curve, retained_topics, tick, topics)
        self._push = self._socket.push_socket()
        self._closed = False
        self.dropped = 0
        try:
            self.endpoint = self._socket.start()
        except BaseException:
            self._push.close(linger=0)
            self._socket.finish()
            raise

    def publish(self, topic: str, body: bytes) -> None:
        """Queue a message without waiting; `dropped` counts messages for which there was no room."""
        try:
            self._push.send_multipart((topic.encode(), body), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1

    def close(self) -> None:
        """Send the queued messages, within `LINGER_MS`, and end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with suppress(zmq.Again):
            self._push.send(STOP)
        self._push.close()
        self._socket.finish()


class _PublicSocket(SocketThread):
    """Thread of the publisher: it sends the queued messages, and the last state to new subscribers."""

    def __init__(
        self,
        endpoint: str,
        curve: ServerCurve | None,
        retained_topics: Iterable[str],
        tick: Callable[[], Iterable[TopicMessage]],
        topics: Iterable[str] | None,
    ) -> None:
        super().__init__("publisher", zmq.XPUB, endpoint, curve)
        if topics is None:
            self._topics = None
        else:
            self._topics = [topic.encode() for topic in topics]
        self._tick = tick
        self._unknown = 0
        self._last: dict[bytes, bytes | None] = {topic.encode(): None for topic in retained_topics}

    def push_socket(self) -> zmq.Socket[bytes]:
        """Return the socket that takes messages; it belongs to the calling thread."""
        push_socket = self._transport.context.socket(zmq.PUSH)
        push_socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        push_socket.setsockopt(zmq.LINGER, LINGER_MS)
        push_socket.setsockopt(zmq.SNDTIMEO, LINGER_MS)
        push_socket.bind(INSIDE)
        return push_socket

    @property
    def options(self) -> Mapping[int, int]:
        return {
            zmq.XPUB_MANUAL: 1,
            zmq.RCVHWM: 64,  # queue of requests per subscriber
            # high-water mark per subscriber: a slow subscriber drops messages; others are not affected
            zmq.SNDHWM: 32,
            zmq.SNDBUF: SUBSCRIBER_BUFFER_BYTES,
            zmq.MAXMSGSIZE: 1024,  # subscribers send only the names of topics
        }

    def serve(self, public: zmq.Socket[bytes]) -> None:
        with closing(self._transport.context.socket(zmq.PULL)) as handed_over:
            handed_over.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
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
                        public = self.reopen()
                        self._unknown = 0
                        poller.register(public, zmq.POLLIN)
                if time.monotonic() >= next_tick_s:
                    next_tick_s = time.monotonic() + TICK_S
                    for topic, body in self._tick_messages():
                        self._send(public, topic.encode(), body)

    def _tick_messages(self) -> Iterable[TopicMessage]:
        try:
            return tuple(self._tick())
        except Exception:
            log.warning("the statistics of this second could not be published", exc_info=True)
            return ()

    def _pass_on(self, handed_over: zmq.Socket[bytes], public: zmq.Socket[bytes]) -> bool:
        """Publish the queued messages; return False at the end."""
        for _ in range(QUEUE_MESSAGES):
            try:
                parts = handed_over.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if len(parts) < 2:
                return False
            self._send(public, parts[0], parts[1])
        return True

    def _greet(self, public: zmq.Socket[bytes]) -> None:
        """Send the last state of topics with new subscriptions."""
        topics: dict[bytes, None] = {}
        for _ in range(SUBSCRIPTIONS_AT_ONCE):
            try:
                subscription = public.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            # no topic has a longer name
            if len(subscription) - 1 > 64 or not self._is_known(subscription[1:]):
                self._unknown += 1
                continue
            # XPUB_MANUAL: these options apply to the subscriber whose request was just received
            if subscription[:1] == b"\x00":
                public.setsockopt(zmq.UNSUBSCRIBE, subscription[1:])
            if subscription[:1] == b"\x01":
                public.setsockopt(zmq.SUBSCRIBE, subscription[1:])
                topics |= dict.fromkeys(topic for topic in self._last if topic.startswith(subscription[1:]))
        for topic in topics:
            body = self._last[topic]
            if body is not None:
                public.send_multipart((topic, body))

    def _is_known(self, prefix: bytes) -> bool:
        """Return True if a known topic begins with `prefix`, so that the socket stores no other subscriptions."""
        return self._topics is None or any(topic.startswith(prefix) for topic in self._topics)

    def _send(self, public: zmq.Socket[bytes], topic: bytes, body: bytes) -> None:
        if topic in self._last:
            self._last[topic] = body
        public.send_multipart((topic, body))
