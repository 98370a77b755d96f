"""`mcp` on standard streams with an agent that sends anything: the next message is answered, and memory stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.network import LIMIT_S
from tests.support.web import served

PROGRAM = [sys.executable, str(Path(__file__).parents[2] / "run_stream.py"), "mcp"]
LONG_BYTES = 64 << 20
GROWTH_MAX_BYTES = 32 << 20

DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
CALL = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"ask","arguments":{"question":%s}}}'

NONSENSE = {
    "binary": bytes(range(256)) * 100,
    "zeros": bytes(1000),
    "no JSON": b"{nonsense",
    "empty lines": b"\n" * 1000,
    "not UTF-8": b'{"jsonrpc":"2.0","id":"\xff\xfe","method":"ping"}',
    "half a character": CALL % b'"\\ud800"',
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep arguments": CALL % DEEP,
    "a batch": b"[" + b",".join([b'{"jsonrpc":"2.0","id":9,"method":"ping"}'] * 1000) + b"]",
    "other types": b'{"jsonrpc":2,"id":{},"method":[]}\nnull\n1\n"x"\n[]\n{}',
    "a huge number": b'{"jsonrpc":"2.0","id":' + b"9" * 100_000 + b',"method":"ping"}',
    "an infinite number": b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}',
    "a tool that is not there": b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"\\u001b[31m"}}',
    "a reply to nothing": b'{"jsonrpc":"2.0","id":5,"result":{}}',
    "many calls": b"\n".join([CALL % b'""'] * 100),
    "many lines": b"{x\n" * 5000,
}


class Agent:
    """The other end of the standard streams of `mcp`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._writing, self._reading = process.stdin, process.stdout
        self.process = process
        self._number = 1000

    def send(self, data: bytes) -> None:
        self._writing.write(data)
        self._writing.flush()

    def answered(self) -> bool:
        """Send a message, and return whether its reply comes."""
        self._number += 1
        self.send(json.dumps({"jsonrpc": "2.0", "id": self._number, "method": "ping"}).encode() + b"\n")
        return any(json.loads(line).get("id") == self._number for line in self._reading)


@contextmanager
def agent() -> Iterator[Agent]:
    with (
        served() as page,
        subprocess.Popen(
            [*PROGRAM, page.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        try:
            yield Agent(process)
        finally:
            process.kill()


def test_the_next_message_is_answered_whatever_came_before() -> None:
    with agent() as peer:
        assert peer.answered()
        for name, data in NONSENSE.items():
            peer.send(data + b"\n")
            assert peer.answered(), name
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.process.wait(LIMIT_S) == 0
        assert peer.process.stderr is not None
        assert peer.process.stderr.read() == b""


def test_a_line_without_end_takes_no_memory() -> None:
    with agent() as peer:
        assert peer.answered()
        process = psutil.Process(peer.process.pid)
        before_bytes = process.memory_info().rss
        for _ in range(LONG_BYTES >> 20):
            peer.send(b"x" * (1 << 20))
        peer.send(b"\n")
        assert peer.answered()
        assert process.memory_info().rss - before_bytes < GROWTH_MAX_BYTES


@pytest.mark.parametrize("last", [b"", b'{"jsonrpc":"2.0","id":5,"meth', bytes(range(256))])
def test_an_end_in_the_middle_of_a_message_ends_it_quietly(last: bytes) -> None:
    with agent() as peer:
        assert peer.answered()
        assert peer.process.communicate(last, timeout=LIMIT_S)[1] == b""
        assert peer.process.returncode == 0
