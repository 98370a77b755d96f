"""`Link` (DEALER), `ServerLink` (ROUTER), `FrameSubscriber` (SUB/PULL), `PeerMonitor`, `LinkPoller`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import zmq
from zmq.utils.monitor import recv_monitor_message

from stream.errors import ConnectionRefused, OutputError, TransportError
from stream.protocol.messages import AnyMessage, Message, decode, encode
from stream.transport.security import ClientCurve, ServerCurve, bind_endpoint
from stream.untrusted import ARRAYS_MAX, PART_BYTES_MAX, REPLY_PART_BYTES_MAX, WATCHES_MAX

log = logging.getLogger(__name__)

SEND_SLICE_MS = 50
"""Longest single wait for room in a link's queue between two calls of its `check`."""

SEND_LIMIT_MS = 2000
"""Longest wait for room of a link without `check`."""

LINGER_MS = 1000
"""Time for which a closing link still tries to send its queued messages."""

RECONNECT_MS = 20
RECONNECT_MAX_MS = 500
"""First and longest wait between attempts to reach another process."""

KEEPALIVE_IDLE_S = 2
KEEPALIVE_EVERY_S = 1
KEEPALIVE_COUNT = 3
UNACKNOWLEDGED_MS = 5000
"""TCP keep-alive for a silent peer on another host: idle time, interval, number of probes, and limit of
unacknowledged data."""

HEARTBEAT_EVERY_MS = 1000
HEARTBEAT_LIMIT_MS = 2000
"""Interval of a link's heartbeats, and time limit of their replies."""

REFUSALS_MAX = 3
"""Connections closed by a peer before a handshake after which it counts as refusing: a wrong key, or not ZeroMQ."""

REPLIES_MAX = WATCHES_MAX + 16
"""Queue of a server's messages for one client, beside the kernel's: a client that connects is sent one for each of its
watches at once. One whose queue is full counts as gone."""

QUEUE_MESSAGES = 64
"""Bound of each socket's queue; data stay far below it, because they need credits."""

NOBLOCK = int(zmq.NOBLOCK)
SNDMORE = int(zmq.SNDMORE)
POLLIN = int(zmq.POLLIN)
"""Plain integers: a link combines them several times per frame, and enumeration members are slow to combine."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Message with its raw array parts."""

    message: AnyMessage
    parts: tuple[memoryview, ...] = ()


class LinkObserver(Protocol):
    """Observer of a link's messages, called in the link's thread, which it must not block."""

    def observe_sent(self, message: Message, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Observe a message that was sent."""
        ...

    def observe_received(self, envelope: Envelope) -> None:
        """Observe a message that was received."""
        ...


def send_arrays(socket: zmq.Socket[bytes], arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Send the remaining parts of a message whose first part has been sent; large arrays are not copied."""
    for index, array in enumerate(arrays, 1):
        flags = SNDMORE if index < len(arrays) else 0
        socket.send(np.ascontiguousarray(array).data, flags, copy=False)


def rest_of(socket: zmq.Socket[bytes]) -> tuple[memoryview, ...]:
    """Return the remaining parts of a message whose first part has been received; of too many parts, one more than
    allowed."""
    parts: list[memoryview] = []
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv(NOBLOCK, copy=False)
        if len(parts) < ARRAYS_MAX + 2:  # a message's fields, its arrays, and one more to detect too many
            parts.append(part.buffer)
    return tuple(parts)


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Set TCP options that detect the loss of a peer's host within seconds; call before bind or connect."""
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S),
        (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_EVERY_S),
        (zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT),
        (zmq.TCP_MAXRT, UNACKNOWLEDGED_MS),
    ):
        socket.setsockopt(option, value)


def _ask_for_heartbeats(socket: zmq.Socket[bytes]) -> None:
    """Enable ZeroMQ's heartbeats, which the I/O thread of the peer's process answers even while the program is busy.

    The socket's queue is unbounded: a peer that disconnects while its messages wait for room makes libzmq 4.3.5 abort
    the process at the next heartbeat (libzmq issues 3937, 4364 and 4767). So messages must be small, and read soon. The
    handshake has no time limit: the system accepts connections for a stopped process, which must not count as a peer
    that refuses them.
    """
    for option, value in (
        (zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_LIMIT_MS),
        (zmq.HANDSHAKE_IVL, 0),
        (zmq.RCVHWM, 0),
        (zmq.MAXMSGSIZE, 4096),  # bytes of a message to a link with a heartbeat; a KeepAlive has about 60
        (zmq.LINGER, 0),
    ):
        socket.setsockopt(option, value)


class ArrivalPoller:
    """Poller of one socket; belongs to the socket's thread."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._poller = zmq.Poller()
        self._poller.register(socket, POLLIN)

    def wait(self, timeout_ms: int) -> bool:
        """Return True if a message arrives within the time limit."""
        # The option first: a poll releases the interpreter lock and has to acquire it again.
        if int(self._socket.getsockopt(zmq.EVENTS)) & POLLIN:
            return True
        return timeout_ms > 0 and bool(self._poller.poll(timeout_ms))


class Link:
    """One end of a two-way channel between two stages; belongs to the thread that made it.

    `check` is called repeatedly while a message waits for room; it raises to end the wait. With `watched`, the peer is
    another process, and `lost` is True once it is gone. With `heartbeat`, it also counts as gone if its process does
    not answer heartbeats within seconds; only for a peer that sends little. `observers` receive every message sent or
    received.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        bind: bool,
        check: Callable[[], None] | None = None,
        curve: ClientCurve | None = None,
        watched: bool = False,
        heartbeat: bool = False,
        observers: Sequence[LinkObserver] = (),
    ) -> None:
        self._endpoint = endpoint
        self._check = check
        self._observers = observers
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        if watched:
            # queue of messages from another process; a faster sender waits
            self._socket.setsockopt(zmq.RCVHWM, 16)
            self._socket.setsockopt(zmq.MAXMSGSIZE, REPLY_PART_BYTES_MAX)
        if heartbeat:
            _ask_for_heartbeats(self._socket)
        self._arrivals = ArrivalPoller(self._socket)
        self._peer = _PeerMonitor(self._socket) if watched else None
        if curve is not None:
            curve.apply(self._socket)
        try:
            self._socket.bind(endpoint) if bind else self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot {'open' if bind else 'reach'} {endpoint}: {error}") from error

    @property
    def endpoint(self) -> str:
        """Address of the other end."""
        return self._endpoint

    @property
    def is_lost(self) -> bool:
        """True if a peer that was connected is gone; a new link is needed to reach it again.

        Raises ConnectionRefused if the peer rejects this end's key.
        """
        if self._peer is None:
            return False
        self._peer.update()
        if self._peer.is_refused:
            raise ConnectionRefused(
                f"{self._endpoint} turns this end away: give --keys the folder `client` that `keys` made for it, or "
                "none if it has none, and check that it is an answer server"
            )
        return self._peer.is_lost

    @property
    def is_connected(self) -> bool:
        """True if the peer has been reached; always True for a link within the process."""
        if self._peer is None:
            return True
        self._peer.update()
        return self._peer.has_connected

    def send(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Send a message and its arrays, which must not change afterwards: large ones are not copied.

        Waits for room. Raises the errors of `check`; without it, TransportError after SEND_LIMIT_MS.
        """
        waited_ms = 0
        while not self.offer(message, arrays):
            if self._check is not None:
                self._check()
            elif waited_ms >= SEND_LIMIT_MS:
                raise TransportError(f"no peer takes messages from {self._endpoint}")
            self._socket.poll(SEND_SLICE_MS, zmq.POLLOUT)
            waited_ms += SEND_SLICE_MS

    def offer(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        """Send a message if there is room at once; return False if there is none."""
        try:
            self._socket.send(encode(message), NOBLOCK | (SNDMORE if arrays else 0))
        except zmq.Again:
            return False
        send_arrays(self._socket, arrays)
        for observer in self._observers:
            observer.observe_sent(message, arrays)
        return True

    def receive(self, timeout_ms: int = 0) -> Envelope | None:
        """Return the next message; None if none arrived in time. Raises TransportError for an invalid message."""
        if not self._arrivals.wait(timeout_ms):
            return None
        head = self._socket.recv(NOBLOCK)
        parts = rest_of(self._socket)
        envelope = Envelope(decode(head), parts)
        for observer in self._observers:
            observer.observe_received(envelope)
        return envelope

    def close(self) -> None:
        """Close the socket; queued messages have LINGER_MS to be sent, unless the peer is gone."""
        is_gone = False
        if self._peer is not None:
            self._peer.update()
            is_gone = self._peer.is_lost or not self._peer.has_connected
            self._peer.close()
        self._socket.close(linger=0 if is_gone else None)


class _PeerMonitor:
    """Monitor of a socket's connection: `has_connected` if its peer was reached, `is_lost` if it is gone, `is_refused`
    if it rejects this end."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.has_connected = self.is_lost = self.is_refused = False
        self._refusals = 0
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        keep_alive(socket)
        self._socket = socket
        self._events = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
        )

    def update(self) -> None:
        while self._events.poll(0):
            event = recv_monitor_message(self._events, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.has_connected = True
            elif event == zmq.EVENT_DISCONNECTED:
                self.is_lost = self.is_lost or self.has_connected
                self._refusals += not self.has_connected
                self.is_refused = self.is_refused or self._refusals >= REFUSALS_MAX
            else:
                self.is_refused = True

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close(linger=0)


class LinkPoller:
    """Poller of several links and file descriptors; belongs to their thread."""

    def __init__(self, *links: Link, descriptors: Sequence[int] = ()) -> None:
        self._poller = zmq.Poller()
        self._readable: set[Any] = set()
        for link in links:
            self._poller.register(link._socket, zmq.POLLIN)
        for descriptor in descriptors:
            self._poller.register(descriptor, zmq.POLLIN)

    def wait(self, timeout_ms: int) -> bool:
        """Return True if a link has a message, or a descriptor is readable, within the time limit."""
        self._readable = {item for item, _ in self._poller.poll(timeout_ms)}
        return bool(self._readable)

    def has_message(self, link: Link) -> bool:
        """Return True if the last `wait` found a message on this link."""
        return link._socket in self._readable


FRAME_QUEUE_MESSAGES = 4
"""Queue of the socket in frames; short because either only the newest counts, or the sender is to wait."""


class FrameSubscriber:
    """Receiver of frames, or of detections, from another program. Belongs to the thread that made it.

    It subscribes to a PUB socket, and `receive` returns the newest message and the number of older ones. (ZMQ_CONFLATE
    would keep only the last part of a message.) With `pull` it takes every message of a PUSH socket, which then waits.
    A part of more than `part_bytes_max` closes the connection for good.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        pull: bool = False,
        curve: ClientCurve | None = None,
        part_bytes_max: int = PART_BYTES_MAX,
    ) -> None:
        """Connect the socket. Raises TransportError for an address to which no socket can be connected."""
        self._drains = not pull
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PULL if pull else zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, FRAME_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, part_bytes_max)
        self._peer = _PeerMonitor(self._socket)
        if curve is not None:
            curve.apply(self._socket)
        try:
            self._socket.connect(endpoint)
            if self._drains:
                self._socket.subscribe(b"")
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(
                f"cannot connect to {endpoint}: {zmq.strerror(error.errno or 0)}; check the address"
            ) from error

    def receive(self, timeout_ms: int) -> tuple[list[memoryview] | None, int]:
        """Return the parts of the newest message, None if none arrived in time; and the number of older messages."""
        self._peer.update()
        if not self._socket.poll(timeout_ms):
            return None, 0
        newest = None
        older_messages = -1
        # limit of messages per call, so that a flood cannot block the reader
        for _ in range(64 if self._drains else 1):
            try:
                newest = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            older_messages += 1
        return None if newest is None else [part.buffer for part in newest], max(older_messages, 0)

    @property
    def has_connected(self) -> bool:
        """True if a sender has been reached and accepted this end."""
        return self._peer.has_connected

    @property
    def is_lost(self) -> bool:
        """True if the connection to a sender was closed, by either end."""
        return self._peer.is_lost

    @property
    def is_refused(self) -> bool:
        """True if the sender rejected this end's keys, or requires keys."""
        return self._peer.is_refused

    def close(self) -> None:
        """Close the socket at once."""
        self._peer.close()
        self._socket.close(linger=0)
        self._context.term()


Client: TypeAlias = bytes
"""ZeroMQ's routing id of one connected peer."""


class ServerLink:
    """Server's end: it receives from any client and sends to a given one. Belongs to the thread that made it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, curve: ServerCurve | None = None
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, LINGER_MS),
            (zmq.SNDHWM, REPLIES_MAX),
            # received messages per client: a client that keeps to its turns has one packet in flight
            (zmq.RCVHWM, 8),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.MAXMSGSIZE, PART_BYTES_MAX),
            # never wait: a client that does not read would make all others wait with it
            (zmq.SNDTIMEO, 0),
        ):
            self._socket.setsockopt(option, value)
        keep_alive(self._socket)
        if curve is not None:
            curve.apply(self._socket)
        self._logged_peers: set[str] = set()
        try:
            self._path = bind_endpoint(self._socket, endpoint)
        except OutputError as error:
            self._socket.close(linger=0)
            raise TransportError(str(error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int = 0) -> tuple[Client, Envelope | TransportError] | None:
        """Return the next message and its sender; None if none arrived within the time limit.

        An invalid message is replaced by its error, and its sender is logged once.
        """
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            name = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        parts = rest_of(self._socket)
        try:
            return name.bytes, Envelope(decode(parts[0] if parts else b""), parts[1:])
        except TransportError as error:
            try:
                peer = str(name.get("Peer-Address")) or "a process of this machine"
            except zmq.ZMQError:
                peer = "a process of this machine"
            # limit of senders of invalid messages that are logged, once each
            if peer not in self._logged_peers and len(self._logged_peers) < 16:
                self._logged_peers.add(peer)
                log.warning("%s sends invalid messages, which are dropped: %s", peer, error)
            return name.bytes, error

    def send(self, client: Client, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        """Send a message.

        Args:
            client: routing id of the client.
            message: the message.
            arrays: parts that follow it; they must not change afterwards.

        Returns:
            False if the client is gone.
        """
        fields = encode(message)  # first: an encoding error must not leave half a message
        try:
            self._socket.send(client, zmq.SNDMORE)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        self._socket.send(fields, zmq.SNDMORE if arrays else 0)
        send_arrays(self._socket, arrays)
        return True

    def close(self) -> None:
        """Close the socket; queued messages have LINGER_MS to be sent."""
        if self._path is not None:
            self._path.remove()
        self._socket.close()
