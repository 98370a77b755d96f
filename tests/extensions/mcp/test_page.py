"""Client of a page: addresses, tokens, and replies that are no page's."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stream.errors import ConfigError
from stream.extensions.mcp import page as page_module
from stream.extensions.mcp.page import CameraPage, PageError
from tests.support.web import served


@pytest.mark.parametrize("address", ["", "127.0.0.1:8090", "ftp://host", "http://", "http://[", "http://host:0"])
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a page"):
        CameraPage(address)


@pytest.mark.parametrize(("query", "token"), [("/?token=secret-token", None), ("", "secret-token")])
def test_the_token_stands_in_the_address_or_beside_it(query: str, token: str | None) -> None:
    with served(web__token="secret-token") as page:
        cameras = asyncio.run(_cameras(page.url.rstrip("/") + query, token))
    assert [camera["name"] for camera in cameras] == ["camera"]


def test_without_its_token_the_page_refuses() -> None:
    with served(web__token="secret-token") as page, pytest.raises(PageError, match="give it in ARR_COC_WEB_TOKEN"):
        asyncio.run(_cameras(page.url))


async def _cameras(address: str, token: str | None = None) -> list[dict[str, Any]]:
    async with CameraPage(address, token) as page:
        return await page.cameras()


@contextmanager
def replying(body: bytes, status: int = 200) -> Iterator[str]:
    """Yield the address of a server that is no page."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"<html>", 200, "sent what is no JSON"),
        (b"[" * 100_000, 200, "sent what is no JSON"),
        (b"[]", 200, "sent another kind of JSON"),
        (b'{"cameras": 3}', 200, "the page sent no cameras"),
        (b'{"cameras": [3]}', 200, "the page sent no cameras"),
        (b"oops", 500, "replied 500"),
        (b'{"error": {"message": "a\\u001b[31m line"}}', 503, r"a\\x1b\[31m line|a.*line"),
    ],
)
def test_replies_that_are_no_page_s_are_one_line(body: bytes, status: int, words: str) -> None:
    with replying(body, status) as address, pytest.raises(PageError, match=words) as caught:
        asyncio.run(_cameras(address))
    assert "\x1b" not in str(caught.value)


def test_an_endless_reply_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "REPLY_BYTES_MAX", 10)
    with replying(b"x" * 100_000) as address, pytest.raises(PageError, match="sent more than"):
        asyncio.run(_cameras(address))


def test_the_problem_of_a_page_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def problem(address: str) -> str | None:
        async with CameraPage(address) as page:
            return await page.problem()

    with served() as page:
        assert asyncio.run(problem(page.url)) is None
    assert "cannot be reached" in (asyncio.run(problem(page.url)) or "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(page_module, "CONNECT_LIMIT_S", 0.05)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "does not answer within" in (asyncio.run(problem(address)) or "")
