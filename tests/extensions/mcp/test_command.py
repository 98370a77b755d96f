"""`mcp` in a separate process, on standard streams and over HTTP, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from stream.cli import main
from stream.http.address import TOKEN
from tests.support.network import LIMIT_S, free_port, until
from tests.support.web import served

ROOT = Path(__file__).parents[3]
PROGRAM = [str(ROOT / "run_stream.py"), "mcp"]
SECRET = "a-secret-of-the-page"


async def ask(server: Any) -> str:
    async with Client(server) as client:
        result = await client.call_tool("ask", {"question": "What is it?"})
        return str(json.loads(result.content[0].text)["answer"])  # type: ignore[union-attr]


async def ask_over_http(address: str) -> str:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {SECRET}"}, trust_env=False) as with_token:
        return await ask(streamable_http_client(address, http_client=with_token))


def test_an_agent_starts_it_and_asks_on_standard_streams() -> None:
    with served(web__token=SECRET) as page:
        environment = {**os.environ, TOKEN: SECRET}
        server = StdioServerParameters(command=sys.executable, args=[*PROGRAM, page.url], env=environment)
        assert asyncio.run(ask(server)) == "a red car"


def test_without_a_page_it_says_so_in_one_line_and_serves() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [sys.executable, *PROGRAM, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stderr.readline().decode()
        assert line.startswith(f"the page at {address} cannot be reached")
        assert line.endswith("start a run with --web. Tools work once it answers\n")
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        assert process.stderr.read() == b""


@contextmanager
def listening(page: str, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *PROGRAM, page, "--listen", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, TOKEN: SECRET}) as process:
        assert process.stderr is not None
        assert "MCP server at" in process.stderr.readline()

        def answers() -> bool:
            with socket.socket() as attempt:
                return attempt.connect_ex(("127.0.0.1", port)) == 0

        until(answers)
        try:
            yield process
        finally:
            process.kill()


def test_over_http_it_needs_the_token_and_ends_with_ctrl_c() -> None:
    port = free_port()
    with served(web__token=SECRET) as page, listening(page.url, port) as process:
        address = f"http://127.0.0.1:{port}/mcp"
        assert httpx2.post(address, json={}, trust_env=False).status_code == 401
        wrong = httpx2.post(address, json={}, headers={"authorization": "Bearer wrong"}, trust_env=False)
        assert wrong.status_code == 401
        rebound = {"authorization": f"Bearer {SECRET}", "host": "other.test"}
        assert httpx2.post(address, json={}, headers=rebound, trust_env=False).status_code in (403, 421)
        assert asyncio.run(ask_over_http(address)) == "a red car"
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) in (0, 130)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "is not the address of a page"),
        (["--listen", "0.0.0.0:8091"], "put a secret of 8 characters or more into ARR_COC_WEB_TOKEN"),
        (["--listen", "x:y"], "--listen needs a port or HOST:PORT, such as 8091"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert main(["mcp", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["mcp", "--listen", str(other.getsockname()[1])]) != 0
    assert "the port is in use" in capsys.readouterr().err.splitlines()[-1]
