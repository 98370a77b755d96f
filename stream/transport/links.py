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
from stream.untrusted import ARRAYS_MAX, PART_BYTES_MAX, REPLY_PART_BYTES_MAX

log = logging.getLogger(__name__)

SEND_SLICE_MS = 50
"""Longest single wait for room in a link's queue, before its owner is asked whether to go on."""

SEND_LIMIT_MS = 2000
"""Longest wait for room where the link has no owner to ask."""

LINGER_MS = 1000
"""How long a closing link still tries to hand over what it was given to send."""

RECONNECT_MS, RECONNECT_MAX_MS = 20, 500
"""First and longest wait between attempts to reach another process."""

KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT, UNACKNOWLEDGED_MS = 2, 1, 3, 5000
"""When TCP asks a quiet peer on another host for a sign of life, how often, and how long it waits for one."""

HEARTBEAT_EVERY_MS, HEARTBEAT_LIMIT_MS = 1000, 2000
"""How often a link with a heartbeat asks for a sign of life, and how long it waits for one."""

TURNED_AWAY_MAX = 3
"""A peer that has closed so many connections before it was met will not be met: a wrong key, or no ZeroMQ there."""

QUEUE_MESSAGES = 64
"""Bound of each socket's own queue; data stay far below it, because they need credits."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and the raw array parts that came with it."""

    message: AnyMessage
    parts: tuple[memoryview, ...] = ()


class LinkObserver(Protocol):
    """Observer of a link's messages, called in the thread of the link, which it must not hold up."""

    def sent(self, message: Message, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """A message was sent."""
        ...

    def received(self, envelope: Envelope) -> None:
        """A message was received."""
        ...


def send_arrays(socket: zmq.Socket[bytes], arrays: Sequence[npt.NDArray[Any]]) -> None:
    """The rest of a message whose first part has been sent: large arrays are not copied."""
    for index, array in enumerate(arrays, 1):
        more = zmq.SNDMORE if index < len(arrays) else 0
        socket.send(np.ascontiguousarray(array).data, more, copy=False)


def rest_of(socket: zmq.Socket[bytes]) -> tuple[memoryview, ...]:
    """The parts of a message whose first part has been received; of too many no more than show that they are."""
    parts: list[memoryview] = []
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv(zmq.NOBLOCK, copy=False)
        if len(parts) < ARRAYS_MAX + 2:  # a message's fields, its arrays, and one more, by which it has too many
            parts.append(part.buffer)
    return tuple(parts)


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Has TCP notice within seconds that a peer's host is gone; before the socket is bound or connected."""
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S),
        (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_EVERY_S),
        (zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT),
        (zmq.TCP_MAXRT, UNACKNOWLEDGED_MS),
    ):
        socket.setsockopt(option, value)


def _ask_for_heartbeats(socket: zmq.Socket[bytes]) -> None:
    """Has ZeroMQ ask the peer's process for signs of life, which its own thread gives whatever the program computes.

    No number of messages is too many for such a socket: a peer that leaves while its messages wait for room makes
    libzmq 4.3.5 abort the process at the next heartbeat (libzmq issues 3937, 4364 and 4767). So they must be small, and
    taken out soon. Its handshake has no limit: the system takes connections for a process that stands still, and that
    one is no stranger that turns them away.
    """
    for option, value in (
        (zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_LIMIT_MS),
        (zmq.HANDSHAKE_IVL, 0),
        (zmq.RCVHWM, 0),
        (zmq.MAXMSGSIZE, 4096),  # of a message to a link with a heartbeat; a KeepAlive has some sixty
        (zmq.LINGER, 0),
    ):
        socket.setsockopt(option, value)


class Link:
    """One end of a two-way channel between two stages; belongs to the thread that made it.

    `check` is called again and again while a message waits for room; it raises to end the wait. A link with `watched`
    reaches another process, and `lost` tells when that one is gone. With `heartbeat` it counts as gone, too, where its
    process gives no sign of life within seconds; for a peer that sends little. `observer` learns of every message that
    was sent or received.
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
        observer: LinkObserver | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._check = check
        self._observer = observer
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        if watched:
            # messages from another process that may wait in the socket; whoever sends more waits
            self._socket.setsockopt(zmq.RCVHWM, 16)
            self._socket.setsockopt(zmq.MAXMSGSIZE, REPLY_PART_BYTES_MAX)
        if heartbeat:
            _ask_for_heartbeats(self._socket)
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
    def lost(self) -> bool:
        """True where a peer that was connected is gone; make a new link to reach it again.

        Raises ConnectionRefused where the peer does not accept this end's key.
        """
        if self._peer is None:
            return False
        self._peer.update()
        if self._peer.refused:
            raise ConnectionRefused(
                f"{self._endpoint} turns this end away: give --keys the folder `client` that `keys` made for it, or "
                "none where it has none, and check that it is an answer server"
            )
        return self._peer.lost

    @property
    def connected(self) -> bool:
        """True where the peer has been reached; always so for a link within the process."""
        if self._peer is None:
            return True
        self._peer.update()
        return self._peer.met

    def send(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Hand over a message and its arrays, which must not change afterwards: large ones are not copied.

        Waits for room. Raises what `check` raises; without one, TransportError after SEND_LIMIT_MS.
        """
        waited_ms = 0
        while not self.offer(message, arrays):
            if self._check is not None:
                self._check()
            elif waited_ms >= SEND_LIMIT_MS:
                raise TransportError(f"nobody takes messages from {self._endpoint}")
            self._socket.poll(SEND_SLICE_MS, zmq.POLLOUT)
            waited_ms += SEND_SLICE_MS

    def offer(self, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        """Send where there is room at once; returns whether there was."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK | (zmq.SNDMORE if arrays else 0))
        except zmq.Again:
            return False
        send_arrays(self._socket, arrays)
        if self._observer is not None:
            self._observer.sent(message, arrays)
        return True

    def receive(self, timeout_ms: int = 0) -> Envelope | None:
        """Return the next message, or None within the time limit. Raises TransportError for one that cannot be read."""
        if timeout_ms:
            self._socket.poll(timeout_ms)
        # Asking is three times as fast as an exception where nothing has come, which is the rule.
        if not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        head = self._socket.recv(zmq.NOBLOCK)
        parts = rest_of(self._socket)
        received = Envelope(decode(head), parts)
        if self._observer is not None:
            self._observer.received(received)
        return received

    def close(self) -> None:
        """Close the socket; what is still on its way gets LINGER_MS, unless the peer is gone."""
        gone = False
        if self._peer is not None:
            self._peer.update()
            gone = self._peer.lost or not self._peer.met
            self._peer.close()
        self._socket.close(linger=0 if gone else None)


class _PeerMonitor:
    """Monitor of a socket's connection: whether its peer was reached, is gone, or refused it."""

    def __init__(self, watched: zmq.Socket[bytes]) -> None:
        self.met = self.lost = self.refused = False
        self._turned_away = 0
        watched.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        watched.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        keep_alive(watched)
        self._watched = watched
        self._events = watched.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
        )

    def update(self) -> None:
        while self._events.poll(0):
            event = recv_monitor_message(self._events, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.met = True
            elif event == zmq.EVENT_DISCONNECTED:
                self.lost = self.lost or self.met
                self._turned_away += not self.met
                self.refused = self.refused or self._turned_away >= TURNED_AWAY_MAX
            else:
                self.refused = True

    def close(self) -> None:
        self._watched.disable_monitor()
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
        """Return True if a message has come on some link, or a descriptor is readable, within the time limit."""
        self._readable = {item for item, _ in self._poller.poll(timeout_ms)}
        return bool(self._readable)

    def has_message(self, link: Link) -> bool:
        """Return True if the last `wait` found a message on this link."""
        return link._socket in self._readable


FRAME_QUEUE_MESSAGES = 4
"""Frames that may wait in the socket; only the newest is wanted, or the sender shall wait."""


class FrameSubscriber:
    """The end that connects to a sender of frames. Belongs to the thread that made it.

    It subscribes to a PUB socket, and `receive` gives the newest message: what came before it is counted. (ZMQ_CONFLATE
    would keep the last part of a message only.) With `pull` it takes every message of a PUSH socket, which then waits.
    """

    def __init__(self, endpoint: str, *, pull: bool = False, curve: ClientCurve | None = None) -> None:
        """Raises TransportError for an address to which no socket can be connected."""
        self._drains = not pull
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PULL if pull else zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, FRAME_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_MAX)
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
        """The parts of the newest message, None without one within the time limit; and how many came before it."""
        self._peer.update()
        if not self._socket.poll(timeout_ms):
            return None, 0
        newest, passed = None, -1
        # messages taken out at once at most, so that a flood cannot hold the reader
        for _ in range(64 if self._drains else 1):
            try:
                newest = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            passed += 1
        return None if newest is None else [part.buffer for part in newest], max(passed, 0)

    @property
    def met(self) -> bool:
        """A sender has been reached, and it accepted this end."""
        return self._peer.met

    @property
    def refused(self) -> bool:
        """The sender did not accept this end's keys, or wants some."""
        return self._peer.refused

    def close(self) -> None:
        """Closes the socket at once."""
        self._peer.close()
        self._socket.close(linger=0)
        self._context.term()


Client: TypeAlias = bytes
"""What ZeroMQ calls one connected peer."""


class ServerLink:
    """Server's end: takes messages from any client, and sends to one of them. Belongs to the thread that made it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, curve: ServerCurve | None = None
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, LINGER_MS),
            (zmq.SNDHWM, 64),  # messages to one client that may wait
            # messages of one client that may wait in the socket: whoever keeps to its turns has one packet on its way
            (zmq.RCVHWM, 8),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.MAXMSGSIZE, PART_BYTES_MAX),
            (zmq.SNDTIMEO, SEND_LIMIT_MS),
        ):
            self._socket.setsockopt(option, value)
        keep_alive(self._socket)
        if curve is not None:
            curve.apply(self._socket)
        self._named: set[str] = set()
        try:
            self._path = bind_endpoint(self._socket, endpoint)
        except OutputError as error:
            self._socket.close(linger=0)
            raise TransportError(str(error)) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, timeout_ms: int = 0) -> tuple[Client, Envelope | TransportError] | None:
        """Return the next message and its sender, or None within the time limit.

        For one that cannot be read, the error stands in its place; its sender is named once in the log.
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
            # senders of what cannot be read that are named in the log, once each
            if peer not in self._named and len(self._named) < 16:
                self._named.add(peer)
                log.warning("%s sends invalid messages, which are dropped: %s", peer, error)
            return name.bytes, error

    def send(self, client: Client, message: Message, arrays: Sequence[npt.NDArray[Any]] = ()) -> bool:
        """Send a message; return False if the client is gone. Arrays must not change afterwards."""
        fields = encode(message)  # first: what cannot be encoded must not leave half a message behind
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
        """Close the socket; what is still on its way gets LINGER_MS."""
        if self._path is not None:
            self._path.remove()
        self._socket.close()
