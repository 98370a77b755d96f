"""Fork server: shared memory, the ends of its processes, and runs without it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from stream.clock import MonotonicClock
from stream.config import PipelineConfig
from stream.events import Restarted
from stream.runtime import fork_server
from stream.runtime.child import ChildProcess, ProcessSupervisor, start_fork_server
from stream.runtime.fork_server import ForkedProcess, ForkServer, can_fork
from tests.support.network import until

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are not forked here")


@contextlib.contextmanager
def started() -> Iterator[ForkServer]:
    server = start_fork_server()
    assert server is not None
    with server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with started() as server:
        yield server


@pytest.fixture
def mortal() -> Iterator[ForkServer]:
    """A server that ends in the test."""
    with started() as server:
        yield server


class Children:
    """Children of one server, and the file that they print to."""

    def __init__(self, server: ForkServer, output: IO[bytes]) -> None:
        self.output = output
        self._server = server
        self._processes: list[ForkedProcess] = []

    def fork(self, order: str, inherited: tuple[int, ...] = ()) -> ForkedProcess:
        process = self._server.fork("tests.support.child", self.output.fileno(), inherited)
        assert process is not None
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(f"{order}\n".encode())
        process.stdin.flush()
        return process

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait(60)


@pytest.fixture
def children(server: ForkServer, tmp_path: Path) -> Iterator[Children]:
    with (tmp_path / "output").open("w+b") as file, contextlib.closing(Children(server, file)) as forked_children:
        yield forked_children


def ended(process: ForkedProcess) -> int:
    until(lambda: process.poll() is not None)
    assert process.returncode is not None
    return process.returncode


def polled(supervisor: ProcessSupervisor) -> Restarted:
    """Return the next restart."""
    events: list[Restarted] = []

    def is_restarted() -> bool:
        event = supervisor.poll()
        events.extend([] if event is None else [event])
        return bool(events)

    until(is_restarted)
    return events[0]


def test_imported_modules_are_there_at_once_and_a_child_leaves_nothing(server: ForkServer, children: Children) -> None:
    first, second = children.fork("modules"), children.fork("exit 7 done")
    assert ended(second) == 7
    assert first.poll() is None
    assert first.stdin is not None
    first.stdin.close()
    assert ended(first) == 0
    children.output.seek(0)
    words = children.output.read().decode().split()
    assert {"torch", "arr_coc.layer", "done"} <= set(words)
    assert "stream.runtime.frame_stages" not in words
    assert psutil.Process(server.pid).children() == []


def test_a_child_holds_its_own_descriptors_and_no_others(server: ForkServer, children: Children) -> None:
    read_end, write_end = os.pipe()
    other = children.fork("wait")
    process = children.fork("wait", (write_end,))
    until(lambda: str(write_end) in os.listdir(f"/proc/{process.pid}/fd"))
    low = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")} & set(range(100))
    assert low == {0, 1, 2, write_end}
    os.close(write_end)
    assert other.stdin is not None
    other.stdin.close()
    assert ended(other) == 0, "another child holds its stdin"
    process.kill()
    assert ended(process) == -signal.SIGKILL
    assert os.read(read_end, 1) == b"", "another process holds what only the child was given"
    os.close(read_end)


def test_waiting_has_a_limit(server: ForkServer, children: Children) -> None:
    process = children.fork("wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.kill()


def test_children_outlive_a_server_that_dies(mortal: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as file, contextlib.closing(Children(mortal, file)) as children:
        process = children.fork("wait")
        os.kill(mortal.pid, signal.SIGKILL)
        assert mortal.fork("tests.support.child", file.fileno()) is None
        assert process.poll() is None
        assert psutil.Process(process.pid).is_running()
        assert process.stdin is not None
        process.stdin.close()
        assert ended(process) == -signal.SIGKILL, "no process knows how it ended"
    child = ChildProcess("answer", "tests.support.child", forks=mortal)
    assert psutil.Process(child.pid).ppid() == os.getpid(), "it was started afresh"
    child.stop()


def test_a_server_that_dies_stays_no_zombie(mortal: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as file, contextlib.closing(Children(mortal, file)) as children:
        process = children.fork("wait")
        os.kill(mortal.pid, signal.SIGKILL)
        until(lambda: process.poll() is None and not psutil.pid_exists(mortal.pid))
        mortal.reap()


def test_a_live_child_is_restarted_after_its_server_died(mortal: ForkServer) -> None:
    def start() -> ChildProcess:
        return ChildProcess("answer", "tests.support.child", forks=mortal)

    supervisor = ProcessSupervisor("answers", start, PipelineConfig(restart=True), MonotonicClock())
    try:
        first = supervisor.child.pid
        os.kill(mortal.pid, signal.SIGKILL)
        until(lambda: supervisor.poll() is None and not psutil.pid_exists(mortal.pid))
        assert supervisor.child.pid == first
        for count in (1, 2):
            os.kill(supervisor.child.pid, signal.SIGKILL)
            assert polled(supervisor) == Restarted(
                process="answers", cause="its process was killed by SIGKILL", count=count
            )
            assert psutil.Process(supervisor.child.pid).ppid() == os.getpid(), "it was started afresh"
    finally:
        supervisor.child.stop()


def test_a_server_goes_with_its_client(mortal: ForkServer) -> None:
    process = psutil.Process(mortal.pid)
    mortal._connection.close()
    process.wait(60)


def test_a_descriptor_that_the_server_needs_is_not_taken(server: ForkServer, children: Children) -> None:
    number = int(max(os.listdir(f"/proc/{server.pid}/fd"), key=int)) if children.fork("exit 0") else 0
    descriptor = os.dup2(children.output.fileno(), number)
    assert server.fork("tests.support.child", children.output.fileno(), (descriptor,)) is None
    os.close(descriptor)
    assert ended(children.fork("exit 4")) == 4, "the next one is forked"


def test_nothing_is_split_off_once_torch_has_been_imported() -> None:
    importlib.import_module("torch")
    assert ForkServer.split_off() is None


def test_nothing_is_forked_beside_a_gpu_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "GPU_DRIVERS", (str(tmp_path),))
    assert not can_fork()
    assert start_fork_server() is None


SPLIT = """
import logging, os, sys
from stream.runtime.fork_server import ForkServer
logging.basicConfig()
kept = open(sys.argv[1], "w+b")
with ForkServer.split_off() as server:
    assert "torch" in sys.modules
    assert ForkServer.split_off() is None
    process = server.fork("tests.support.child", kept.fileno())
    process.stdin.write(b"exit 5 done\\n")
    process.stdin.flush()
    assert process.wait(60) == 5
    for name in os.listdir(f"/proc/{server.pid}/fd"):
        assert os.readlink(f"/proc/{server.pid}/fd/{name}") != sys.argv[1]
    process.stdin.close()
    assert os.getsid(server.pid) != os.getsid(0)
kept.seek(0)
assert kept.read() == b"done\\n"
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child is left")
"""


def test_a_server_is_split_off_the_process_itself(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SPLIT, str(tmp_path / "kept")], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert (process.stdout, process.returncode) == ("no child is left\n", 0), process.stderr[-2000:]


SPLIT_KILLED = """
import os, signal, sys
from stream.runtime.fork_server import ForkServer
kept = open(sys.argv[1], "w+b")
with ForkServer.split_off() as server:
    process = server.fork("tests.support.child", kept.fileno())
    os.kill(server.pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{server.pid}"):
        assert process.poll() is None
    process.stdin.close()
    assert process.wait(60) == -signal.SIGKILL
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child is left")
"""


def test_a_server_that_was_split_off_and_dies_stays_no_zombie(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SPLIT_KILLED, str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert (process.stdout, process.returncode) == ("no child is left\n", 0), process.stderr[-2000:]
