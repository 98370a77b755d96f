"""Nothing is left behind: no process, no shared memory, no temporary file, however a run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.network import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
MARK = "ARR_COC_TEST_RUN"
SHARED = Path("/dev/shm")

pytestmark = pytest.mark.slow

COMMANDS = {
    "two processes": ["caption", "scene:demo", "--realtime"],
    "supervised": ["watch", "scene:demo", "--realtime", "--set", "pipeline.restart=true"],
}


class Run:
    """The command on a scene that takes its time, with a fake answer model."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.output = folder / "out.jsonl"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._shared = set(os.listdir(SHARED))
        self._mark = uuid.uuid4().hex
        self.command = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.fake_command",
                "-1",
                *arguments,
                "--every",
                "0.3",
                "-o",
                str(self.output),
            ],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(self.temporary), MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def processes(self) -> list[psutil.Process]:
        """Every process that descends from the command, orphans included."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except psutil.Error:
                continue
        return processes

    def children(self) -> list[psutil.Process]:
        return [process for process in self.processes() if process.pid != self.command.pid]

    def spoken(self) -> int:
        return self.output.read_text("utf-8").count('"type":"answer"') if self.output.exists() else 0

    def wait_until(self, ready: Callable[[], bool]) -> None:
        def seen() -> bool:
            assert self.command.poll() is None, f"it ended with {self.command.returncode}"
            return ready()

        until(seen)

    def ends(self) -> None:
        """Waits until no process is left."""
        until(lambda: not self.processes())

    def left(self) -> tuple[set[str], list[str]]:
        """In shared memory, and in the temporary directory."""
        return set(os.listdir(SHARED)) - self._shared, os.listdir(self.temporary)

    def stop(self) -> None:
        for process in self.processes():
            process.kill()
        self.command.wait()


@pytest.fixture(params=COMMANDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path, COMMANDS[request.param])
    try:
        started.wait_until(lambda: started.spoken() >= 2)
        assert started.children()
        yield started
    finally:
        started.stop()


def interrupt(run: Run) -> None:
    run.command.send_signal(signal.SIGINT)


def interrupt_twice(run: Run) -> None:
    run.command.send_signal(signal.SIGINT)
    time.sleep(0.05)
    run.command.send_signal(signal.SIGINT)


def terminate(run: Run) -> None:
    run.command.send_signal(signal.SIGTERM)


def kill(run: Run) -> None:
    run.command.kill()


def kill_all(run: Run) -> None:
    for process in run.processes():
        process.kill()


@pytest.mark.parametrize("end", [interrupt, interrupt_twice, terminate, kill, kill_all])
def test_nothing_is_left_behind(run: Run, end: Callable[[Run], None]) -> None:
    end(run)
    run.ends()
    status = run.command.wait(LIMIT_S)
    assert status == (-signal.SIGKILL if end in (kill, kill_all) else 130)
    shared, temporary = run.left()
    assert shared == set()
    if end is kill_all:
        assert all(name.startswith("arr-coc-") for name in temporary), "which the next run sweeps up"
    else:
        assert temporary == []


def test_nothing_is_left_behind_by_a_run_that_finishes(tmp_path: Path) -> None:
    run = Run(tmp_path, ["caption", "scene:demo", "--max-frames", "20"])
    try:
        assert run.command.wait(LIMIT_S) == 0
        run.ends()
        assert run.left() == (set(), [])
    finally:
        run.stop()


def test_a_run_whose_answer_process_is_killed_ends_and_leaves_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, COMMANDS["two processes"])
    try:
        run.wait_until(lambda: run.spoken() >= 2)
        for child in run.children():
            child.kill()
        assert run.command.wait(LIMIT_S) == 1
        run.ends()
        assert run.left() == (set(), [])
    finally:
        run.stop()


def test_supervised_processes_that_are_killed_come_back_and_leave_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, COMMANDS["supervised"])
    try:
        run.wait_until(lambda: run.spoken() >= 2)
        for child in run.children():
            child.kill()
        before = run.spoken()
        run.wait_until(lambda: run.spoken() >= before + 2)
        assert '"type":"restarted"' in run.output.read_text("utf-8")
        run.command.send_signal(signal.SIGINT)
        assert run.command.wait(LIMIT_S) == 130
        run.ends()
        assert run.left() == (set(), [])
    finally:
        run.stop()
