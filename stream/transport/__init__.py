"""ZeroMQ sockets: links between stages over inproc and ipc, and the bus that carries events to the main thread.

One thread makes, uses and closes each socket; every wait has a time limit.
Backpressure is not left to ZeroMQ: senders hold a `Mailbox` and wait for credits.
"""

from __future__ import annotations

from stream.transport.context import (
    EventReceiver,
    EventSender,
    SocketDirectory,
    Transport,
    ipc_endpoint,
    private_directory,
    remove_after_parent,
    sweep_directories,
)
from stream.transport.links import Client, Envelope, Link, LinkObserver, LinkPoller, ServerLink
from stream.transport.pictures import PictureReceiver, PictureSender

__all__ = [
    "Client",
    "Envelope",
    "EventReceiver",
    "EventSender",
    "Link",
    "LinkObserver",
    "LinkPoller",
    "PictureReceiver",
    "PictureSender",
    "ServerLink",
    "SocketDirectory",
    "Transport",
    "ipc_endpoint",
    "private_directory",
    "remove_after_parent",
    "sweep_directories",
]
