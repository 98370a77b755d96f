"""The sockets: links between stages over inproc and ipc, and the bus that brings events to the main thread.

The only package that imports zmq. Every socket is made, used and closed by one thread; every wait has a time limit.
Backpressure is not left to ZeroMQ: senders hold a `Mailbox` and wait for credits.
"""

from __future__ import annotations

from stream.transport.bus import EventSink, EventSource
from stream.transport.context import Transport
from stream.transport.directory import SocketDirectory, ipc_endpoint, private_directory
from stream.transport.link import Link, Received, Tap, Waiter
from stream.transport.port import Client, Port

__all__ = [
    "Client",
    "EventSink",
    "EventSource",
    "Link",
    "Port",
    "Received",
    "SocketDirectory",
    "Tap",
    "Transport",
    "Waiter",
    "ipc_endpoint",
    "private_directory",
]
