"""Forwarder of TCP connections: fixed addresses of this node for answer servers that move between nodes.

A run keeps the addresses of its answer servers, but a server that Ray starts again on another node has another one.
So a run connects to its own node, and the bytes are passed on to where the server is now. They stay encrypted: CURVE
is between the run and the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence

HOST = "127.0.0.1"

CONNECT_S = 2.0
"""Time for a connection to a server."""

RETRY_S = 0.1
"""Time between two looks for a server that is not there."""

CHUNK_BYTES = 1 << 18

JOIN_LIMIT_S = 2.0


class Forwarder:
    """Forwards connections to `addresses`, one for each place of a server, from its making to `close`.

    A connection waits while its server is not there.

    Raises OSError where no port can be had. For any thread.
    """

    def __init__(self, places: int) -> None:
        self._targets: list[tuple[str, int] | None] = [None] * places
        self._open: list[set[asyncio.Task[None]]] = [set() for _ in range(places)]
        self._waiting: list[set[asyncio.Task[None]]] = [set() for _ in range(places)]
        self._sockets = [socket.create_server((HOST, 0)) for _ in range(places)]
        self.addresses = [f"tcp://{HOST}:{bound.getsockname()[1]}" for bound in self._sockets]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="forwarder", daemon=True)
        self._thread.start()

    def route(self, endpoints: Sequence[str | None]) -> None:
        """Forward to these servers from now on, as tcp://HOST:PORT, None where there is none; connections to others
        are closed."""
        targets = [None if endpoint is None else _address(endpoint) for endpoint in endpoints]
        targets += [None] * (len(self._targets) - len(targets))
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._loop.call_soon_threadsafe(self._set_targets, targets)

    def close(self) -> None:
        """Close all connections; may be called twice."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_LIMIT_S)

    def _set_targets(self, targets: list[tuple[str, int] | None]) -> None:
        for place, target in enumerate(targets):
            if self._targets[place] != target:
                self._targets[place] = target
                for task in self._open[place] - self._waiting[place]:
                    task.cancel()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        for place, bound in enumerate(self._sockets):
            self._loop.run_until_complete(asyncio.start_server(self._handler(place), sock=bound))
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for bound in self._sockets:
                bound.close()
            self._loop.close()

    def _handler(self, place: int):  # type: ignore[no-untyped-def]
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._open[place].add(task)
            try:
                await self._forward(place, reader, writer)
            except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
                pass  # whoever connected hears of it by the connection's end
            finally:
                self._open[place].discard(task)
                writer.close()

        return forward

    async def _forward(self, place: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self._connect(place, writer)
        pumps = [asyncio.ensure_future(_pump(reader, back)), asyncio.ensure_future(_pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            back.close()

    async def _connect(
        self, place: int, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the server, as soon as it is there. Raises OSError once whoever waits is gone.

        Ending the connection that waits would look as if the server refused its key.
        """
        task = asyncio.current_task()
        assert task is not None
        self._waiting[place].add(task)
        try:
            while not writer.transport.is_closing():
                target = self._targets[place]
                if target is not None:
                    with contextlib.suppress(OSError, asyncio.TimeoutError):
                        there, back = await asyncio.wait_for(asyncio.open_connection(*target), CONNECT_S)
                        if self._targets[place] == target:
                            return there, back
                        back.close()  # the server moved meanwhile
                        continue
                await asyncio.sleep(RETRY_S)
        finally:
            self._waiting[place].discard(task)
        raise ConnectionError("whoever connected is gone")


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)
