"""Server of a shared texture: gives connected programs its memory, and says what is new. It never waits for them."""

from __future__ import annotations

import itertools
import json
import logging
import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stream.extensions.shared_texture.layout import VERSION
from stream.extensions.shared_texture.socket_file import bound
from stream.extensions.shared_texture.writer import TextureWriter
from stream.transport.security import BoundPath

MOST_CLIENTS = 16
"""Programs that may be connected at once; others are refused."""

CLOSE_LIMIT_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """The newest line of one topic, as it is sent, and its number; with a descriptor if it brings memory."""

    number: int
    text: bytes
    descriptor: int | None = None


@dataclass(eq=False, slots=True)
class Client:
    """A program that is connected, the rest of a line that it has not taken, and the newest lines that it has."""

    connection: socket.socket
    rest: bytes = b""
    sent: dict[str, int] = field(default_factory=dict)

    def send(self, lines: dict[str, Line]) -> bool:
        """Send what the program has not got, as far as it takes it; return whether it has all.

        Of each topic it gets the newest line only. Raises OSError if the program is gone.
        """
        try:
            for topic, line in lines.items():
                while self.rest:
                    self.rest = self.rest[self.connection.send(self.rest) :]
                if self.sent.get(topic) == line.number:
                    continue
                descriptors = () if line.descriptor is None else (line.descriptor,)
                count = socket.send_fds(self.connection, [line.text], descriptors)
                self.sent[topic] = line.number
                self.rest = line.text[count:]
        except BlockingIOError:
            return False
        return not self.rest


class TextureServer:
    """Listener at a Unix socket and its clients, served by a thread. Raises OutputError if it cannot be bound.

    Lines are JSON objects with one key, the topic: `memory`, with the descriptor, then `frame` and `answer`.
    """

    def __init__(self, path: str, source: str) -> None:
        self._source = source
        self._listener = bound(path)
        self._file = BoundPath.at(path)
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._lock = threading.Lock()  # held while lines are sent, which does not wait
        self._lines: dict[str, Line] = {}
        self._numbers = itertools.count(1)
        self._writer: TextureWriter | None = None
        self._clients: set[Client] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="shared-texture", daemon=True)
        self._thread.start()

    @property
    def has_clients(self) -> bool:
        """True while a program is connected."""
        return bool(self._clients)

    def share(self, writer: TextureWriter, number: int) -> None:
        """Say which picture of a writer is the newest; its memory is sent before that to those who lack it.

        The writer is closed here, once another one takes its place.
        """
        grid = writer.memory.grid
        facts = {"rows": grid.rows, "cols": grid.cols, "width_px": grid.width_px, "height_px": grid.height_px}
        with self._lock:
            if not self._clients:
                return
            before = self._writer
            self._writer = writer
            if before is not writer or "memory" not in self._lines:
                self._put("memory", {"v": VERSION, "source": self._source, **facts}, writer.descriptor)
            self._put("frame", number)
            if before is not None and before is not writer:
                before.close()
        self._rouse()

    def share_answer(self, answer: dict[str, Any]) -> None:
        """Send the newest answer."""
        with self._lock:
            self._put("answer", answer)
        self._rouse()

    def close(self) -> None:
        """Disconnect all programs, and remove the socket. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._rouse()
        self._thread.join(CLOSE_LIMIT_S)
        if self._writer is not None:
            self._writer.close()
        self._wake.close()

    def _put(self, topic: str, value: Any, descriptor: int | None = None) -> None:
        text = json.dumps({topic: value}, separators=(",", ":")).encode() + b"\n"
        self._lines[topic] = Line(next(self._numbers), text, descriptor)

    def _rouse(self) -> None:
        with suppress(OSError):  # it wakes up anyway, or has ended
            self._wake.send(b"\0")

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener, self._woken:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fileobj is self._woken:
                        with suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        self._receive(selector, key.data)
                for client in tuple(self._clients):
                    self._send(selector, client)
            for client in tuple(self._clients):
                self._drop(selector, client)
            if self._file is not None:
                self._file.remove()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            log.debug("a viewer was not accepted: %s", error)
            return
        if len(self._clients) >= MOST_CLIENTS:
            log.warning("a viewer was refused: %d are connected", MOST_CLIENTS)
            connection.close()
            return
        connection.setblocking(False)
        client = Client(connection)
        selector.register(connection, selectors.EVENT_READ, client)
        with self._lock:
            self._clients.add(client)

    def _receive(self, selector: selectors.BaseSelector, client: Client) -> None:
        """Read what a program sends, which means nothing but that it is still there."""
        try:
            if not client.connection.recv(4096):
                self._drop(selector, client)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(selector, client)

    def _send(self, selector: selectors.BaseSelector, client: Client) -> None:
        try:
            with self._lock:
                has_all = client.send(self._lines)
        except OSError:
            self._drop(selector, client)
            return
        waits = 0 if has_all else selectors.EVENT_WRITE
        selector.modify(client.connection, selectors.EVENT_READ | waits, client)

    def _drop(self, selector: selectors.BaseSelector, client: Client) -> None:
        selector.unregister(client.connection)
        client.connection.close()
        with self._lock:
            self._clients.discard(client)
            if not self._clients:  # the memory is not written any more: the next program waits for a new frame
                self._lines.pop("memory", None)
                self._lines.pop("frame", None)
