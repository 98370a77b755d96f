"""The MCP server over HTTP: its token, and sessions that make room for others, with requests as clients send them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx2
import pytest
from mcp import Client

from stream.extensions.mcp.page import CameraPage
from stream.extensions.mcp.server import make_server
from stream.extensions.mcp.serving import BODY_BYTES_MAX, LEAVE_LIMIT_S, PATH, TokenGate, http_application
from stream.http.server import GuardedServer, open_listener
from tests.support.guards import TimeUp
from tests.support.network import LIMIT_S, until

SESSIONS = 3
TOKEN = "a long secret"
HEADERS = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "authorization": f"Bearer {TOKEN}",
}
SESSION = "mcp-session-id"
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a test", "version": "1"},
    },
}
LISTING = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


class ServedTools:
    """The tools of a page that is not there, with room for few sessions."""

    def __init__(self) -> None:
        server = make_server(CameraPage("http://127.0.0.1:9"))
        application = http_application(server, "127.0.0.1", TOKEN, ("127.0.0.1:*",), SESSIONS)
        self._listener = open_listener("MCP", "127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.time_up = TimeUp(connections=100)
        options: dict[str, Any] = {"lifespan": "on", "ws": "none", "timeout_graceful_shutdown": LEAVE_LIMIT_S}
        self.requests = 0

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            self.requests += scope["type"] == "http"
            await application(scope, receive, send)

        self.server = GuardedServer(counted, self._listener, self.time_up.guard, **options)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()))
        self._thread.start()
        self.http = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            trust_env=False,
            headers=HEADERS,
            limits=httpx2.Limits(max_keepalive_connections=0),  # an idle one is closed when the test lets time go
        )

    def open(self) -> str:
        """Return the identity of a new session."""
        reply = self.http.post(PATH, json=OPENING)
        assert reply.status_code == 200, reply.text
        return reply.headers[SESSION]

    def is_open(self, session_id: str) -> bool:
        """Use a session, and return whether it is there."""
        return self.http.post(PATH, json=LISTING, headers={SESSION: session_id}).status_code == 200

    def close(self) -> None:
        self.http.close()
        self.server.stop()
        self._thread.join(LIMIT_S)
        self._listener.close()


@pytest.fixture
def tools() -> Iterator[ServedTools]:
    with closing(ServedTools()) as served:
        yield served


def test_a_client_of_the_library_gets_the_tools(tools: ServedTools) -> None:
    async def listed() -> list[str]:
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(trust_env=False, headers=HEADERS) as http:
            address = f"http://127.0.0.1:{tools.port}{PATH}"
            async with Client(streamable_http_client(address, http_client=http)) as client:
                return [tool.name for tool in (await client.list_tools()).tools]

    assert "recent_answers" in asyncio.run(listed())


def test_abandoned_sessions_make_room_for_new_ones(tools: ServedTools) -> None:
    sessions = [tools.open() for _ in range(3 * SESSIONS)]
    assert [tools.is_open(session) for session in sessions] == [False] * 2 * SESSIONS + [True] * SESSIONS


def test_a_session_in_use_outlives_idle_ones(tools: ServedTools) -> None:
    session = tools.open()
    for _ in range(3 * SESSIONS):
        tools.open()
        assert tools.is_open(session)


def test_a_session_with_an_open_stream_outlives_others(tools: ServedTools) -> None:
    session = tools.open()
    with tools.http.stream("GET", PATH, headers={SESSION: session}) as stream:
        assert stream.status_code == 200
        for _ in range(3 * SESSIONS):
            tools.open()
    assert tools.is_open(session)


def test_requests_that_open_no_session_end_none(tools: ServedTools) -> None:
    sessions = [tools.open() for _ in range(SESSIONS)]
    for body in (b"{}", b"[" * 1000, b"nonsense", b"x" * (BODY_BYTES_MAX + 1)):
        assert tools.http.post(PATH, content=body).status_code >= 400
    assert tools.http.post(PATH, json=LISTING, headers={SESSION: "unknown"}).status_code == 404
    assert all(tools.is_open(session) for session in sessions)


def test_a_session_that_its_client_ended_leaves_its_place(tools: ServedTools) -> None:
    first, *others = [tools.open() for _ in range(SESSIONS)]
    assert tools.http.delete(PATH, headers={SESSION: first}).status_code == 200
    tools.open()
    assert all(tools.is_open(session) for session in others)


@pytest.mark.parametrize("authorization", ["", f"Authorization: Bearer {TOKEN}\r\n"])
def test_a_crowd_that_sends_no_body_is_closed_and_ends_no_session(tools: ServedTools, authorization: str) -> None:
    session, before = tools.open(), tools.requests
    with ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(("127.0.0.1", tools.port))) for _ in range(20)]
        for connection in crowd:
            header = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Content-Length: 500\r\n\r\n"
            connection.sendall(header.encode())
        assert tools.is_open(session)
        before += 1
        until(lambda: tools.requests >= before + len(crowd))
        for connection in crowd:
            reply = tools.time_up.received(connection)
            assert (b"401 Unauthorized" in reply) == (not authorization)
    assert tools.is_open(session)


@pytest.mark.parametrize(
    ("token", "header", "passes"),
    [
        (None, None, True),
        ("a-secret", "Bearer a-secret", True),
        ("a-secret", "Bearer another", False),
        ("a-secret", None, False),
    ],
)
def test_requests_without_the_token_do_not_pass(token: str | None, header: str | None, passes: bool) -> None:
    scopes: list[Any] = []
    messages: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [] if header is None else [(b"authorization", header.encode())]
    asyncio.run(TokenGate(application, token)({"type": "http", "headers": headers}, None, send))  # type: ignore[arg-type]
    assert bool(scopes) is passes
    assert [message["status"] for message in messages if "status" in message] == ([] if passes else [401])
