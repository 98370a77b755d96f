"""Connection of one viewer, on the live page or the compare page: its limits, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from stream.clock import RateLimit

SEND_LIMIT_S = 10.0
"""A viewer that takes nothing for this long is disconnected."""

CLOSE_LIMIT_S = 1.0
"""Time that a viewer may take to receive the close frame."""

REFUSED = 1008
CROWDED = 4001
GOING_AWAY = 1001
CAMERA_IN_USE = 4002
"""Close codes: the message or its sender is not allowed; too many viewers already; the program ends; another camera."""


async def converse(
    socket: WebSocket,
    sending: Coroutine[None, None, None],
    receiving: Coroutine[None, None, None],
    leave: Callable[[], None],
) -> None:
    """Send to and receive from a viewer until either ends; then close the connection.

    Args:
        socket: Accepted connection of the viewer.
        sending: Coroutine that sends messages to it.
        receiving: Coroutine that receives its messages.
        leave: Called at the end, before the connection is closed.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in (sending, receiving)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leave()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(Exception):  # it may be closed already, in either of two libraries' ways
            await asyncio.wait_for(socket.close(GOING_AWAY), CLOSE_LIMIT_S)


async def send(socket: WebSocket, message: bytes | str) -> bool:
    """Send a message; return False if the viewer has left, or accepts no more."""
    try:
        if isinstance(message, bytes):
            coroutine = socket.send_bytes(message)
        else:
            coroutine = socket.send_text(message)
        await asyncio.wait_for(coroutine, SEND_LIMIT_S)
    except (asyncio.TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
        return False
    return True


async def messages(socket: WebSocket, limit: RateLimit) -> AsyncIterator[bytes | str]:
    """Yield the messages of a viewer until it leaves or sends more than the limit."""
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        if not limit.take(asyncio.get_running_loop().time()):
            await socket.close(REFUSED, "too many messages")
            return
        yield message.get("text") or message.get("bytes") or b""
