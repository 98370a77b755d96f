"""Streamable HTTP for the MCP server: the token, the sessions, and the guard of its connections."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings

from stream.clock import MonotonicClock
from stream.http.guard import ConnectionGuard
from stream.http.server import GuardedServer, default_limits

PATH = "/mcp"

BODY_BYTES_MAX = 64 * 1024

SESSIONS_MAX = 64
"""Sessions at a time; for one more, the one that is idle longest is ended."""

SESSION_IDLE_S = 600.0

LEAVE_LIMIT_S = 1
"""Time that requests under way may take at the end."""

SESSION = MCP_SESSION_ID_HEADER.encode()

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]
Receive = Callable[[], Awaitable[Scope]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def serve_http(
    server: MCPServer,
    listener: socket.socket,
    host: str,
    token: str | None,
    *,
    allowed_hosts: tuple[str, ...],
) -> None:
    """Serve at http://HOST:PORT/mcp until a signal ends it.

    Args:
        server: the MCP server.
        listener: listening socket of HOST and PORT; the caller closes it.
        host: address to which it is bound.
        token: bearer token that clients must send; None admits all clients.
        allowed_hosts: accepted values of the Host header; empty turns the check off.
    """
    guarded = GuardedServer(
        http_application(server, host, token, allowed_hosts),
        listener,
        ConnectionGuard("the MCP server", default_limits()),
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=LEAVE_LIMIT_S,
    )
    asyncio.run(guarded.serve())


def http_application(
    server: MCPServer,
    host: str,
    token: str | None,
    allowed_hosts: tuple[str, ...],
    sessions_max: int = SESSIONS_MAX,
) -> Application:
    """Return the ASGI application of an MCP server.

    Args:
        server: the MCP server.
        host: address to which it is bound.
        token: bearer token that clients must send; None admits all clients.
        allowed_hosts: accepted values of the Host header; empty turns the check off.
        sessions_max: sessions at a time.
    """
    application = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES_MAX,
        max_sessions=sessions_max,
        session_idle_timeout=SESSION_IDLE_S,
        host=host,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=bool(allowed_hosts), allowed_hosts=list(allowed_hosts)
        ),
    )
    sessions = SessionGate(application, sessions_max)
    # a body that never comes costs no session: the gate gets whole requests
    return TokenGate(RequestBodyLimitMiddleware(sessions, BODY_BYTES_MAX), token)


class TokenGate:
    """Middleware that refuses requests without the token."""

    def __init__(self, application: Application, token: str | None) -> None:
        self._application = application
        if token is None:
            self._expected = None
        else:
            self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and self._expected is not None:
            authorization = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(authorization, self._expected):
                headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b"send the token as a bearer token\n"})
                return
        await self._application(scope, receive, send)


@dataclass(slots=True)
class _Session:
    """Use of a session: requests under way, its open stream among them, and when the last one began or ended."""

    requests: int
    used_ns: int


class SessionGate:
    """Middleware that ends the session that is idle longest, if a request wants to open one more than `sessions_max`.

    An agent that is killed leaves its session behind, and the library would refuse new ones until old ones expire. The
    client of a session that was ended gets 404, and opens another one, as the protocol says.
    """

    def __init__(self, application: Application, sessions_max: int) -> None:
        self._application = application
        self._sessions_max = sessions_max
        self._clock = MonotonicClock()
        self._sessions: dict[bytes, _Session] = {}
        self._opening = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        session_id = dict(scope["headers"]).get(SESSION)
        if session_id is None and scope["method"] == "POST":
            await self._open(scope, receive, send)
            return
        session = self._sessions.get(session_id or b"")
        if session is None:
            await self._application(scope, receive, send)
            return
        session.requests += 1
        session.used_ns = self._clock.now_ns()
        try:
            await self._application(scope, receive, send)
        finally:
            session.requests -= 1
            session.used_ns = self._clock.now_ns()
            if scope["method"] == "DELETE":
                self._sessions.pop(session_id or b"", None)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that may open a session, after making room for it."""
        first = await receive()
        messages = [first]
        is_opening = b'"initialize"' in first.get("body", b"")

        async def replay() -> Scope:
            return messages.pop() if messages else await receive()

        async def note(message: Scope) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                session_id = dict(message["headers"]).get(SESSION)
                if session_id is not None:
                    self._sessions[session_id] = _Session(0, self._clock.now_ns())
            await send(message)

        if is_opening:
            # those with requests under way are ended only if there are no others
            while self._sessions and len(self._sessions) + self._opening >= self._sessions_max:
                idlest = min(self._sessions, key=self._idleness)
                del self._sessions[idlest]
                await self._end(idlest, scope)
        self._opening += is_opening
        try:
            await self._application(scope, replay, note)
        finally:
            self._opening -= is_opening

    def _idleness(self, session_id: bytes) -> tuple[int, int]:
        session = self._sessions[session_id]
        return session.requests, session.used_ns

    async def _end(self, session_id: bytes, scope: Scope) -> None:
        """End a session as its client would, with the host that `scope` names."""
        hosts = [(name, value) for name, value in scope["headers"] if name == b"host"]

        async def nothing() -> Scope:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def ignore(message: Scope) -> None:
            """Leave the reply: a session that had expired is gone too."""

        await self._application(
            {**scope, "method": "DELETE", "headers": [*hosts, (SESSION, session_id)]}, nothing, ignore
        )
