"""Runs of checks: each in its own process, with limits of time, memory and output; all of them in order."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psutil

from arr_coc.types import NS_PER_S
from stream.clock import Clock, MonotonicClock
from stream.extensions.doctor.gpu.checks import CHECKS, CheckReport, GpuCheck, GpuState
from stream.runtime.child import python_command, python_environment

POLL_S = 0.1
MEMORY_NS = NS_PER_S // 4
"""Time between two looks at a check's memory, which reads the list of all processes."""

ABORT_S = 2.0
"""Time for a check that is out of time to print its tracebacks, before it is killed."""

OUTPUT_BYTES = 16_000
"""End of a check's output that is kept."""

REPORT_BYTES = 1 << 20
"""Largest report of a check."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """Outcome of a check, as the report has it. `needed`: the check without which this one was left out."""

    name: str
    state: GpuState
    finding: str
    remedy: str | None = None
    seconds: float = 0.0
    software: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    traceback: str | None = None
    output: str | None = None
    needed: str | None = None


class CheckSettings:
    """Module that runs a check in a child process, and factor of all limits of time; tests emulate a slow device."""

    module = "stream.extensions.doctor.gpu.child"
    patience = 1.0


def check_command(*arguments: str) -> list[str]:
    """Return the command of a child process: `function argument descriptor`."""
    return python_command(CheckSettings.module, *arguments)


def run_check(check: GpuCheck) -> GpuRow:
    """Run a check and return its row, however its process ends. It is killed if the caller is interrupted."""
    clock = MonotonicClock()
    began_ns = clock.now_ns()
    end_ns = began_ns + int(check.limit_s * CheckSettings.patience * NS_PER_S)
    with _started(check) as (process, output, report):
        cause = _watch(process, (output, report), check, clock, end_ns)
        seconds = (clock.now_ns() - began_ns) / NS_PER_S
        return _row(check, process.returncode, cause, output, report, round(seconds, 2))


class _Stream:
    """Bytes from a pipe: the first `most` or, if `tail`, the last ones."""

    def __init__(self, descriptor: int, most: int, *, tail: bool) -> None:
        self.descriptor = descriptor
        self._most = most
        self._tail = tail
        self._data = bytearray()
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Take what is there, and return False at the end."""
        with suppress(BlockingIOError):
            if not (data := os.read(self.descriptor, 65536)):
                return False
            self._data += data
            if len(self._data) > self._most:
                del self._data[slice(-self._most) if self._tail else slice(self._most, None)]
        return True

    @property
    def data(self) -> bytes:
        return bytes(self._data)


@contextmanager
def _started(check: GpuCheck) -> Iterator[tuple[subprocess.Popen[bytes], _Stream, _Stream]]:
    """Start the check's process in its own session, so that Ctrl-C reaches only this one; kill what is left of it."""
    read_fd, write_fd = os.pipe()
    try:
        process = subprocess.Popen(
            check_command(check.function, check.argument, str(write_fd)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_fd,),
            env=python_environment({"PYTHONUNBUFFERED": "1"}),
            start_new_session=True,
        )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        output = _Stream(process.stdout.fileno(), OUTPUT_BYTES, tail=True)
        yield process, output, _Stream(read_fd, REPORT_BYTES, tail=False)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()
        os.close(read_fd)


def _watch(
    process: subprocess.Popen[bytes], streams: tuple[_Stream, ...], check: GpuCheck, clock: Clock, end_ns: int
) -> str | None:
    """Read the child's pipes until it ends. Return the limit for which it was killed, None if it ended by itself."""
    cause: str | None = None
    look_ns = clock.now_ns()
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        while process.poll() is None:
            if selector.get_map():
                for key, _ in selector.select(POLL_S):
                    if not key.data.read():
                        selector.unregister(key.fd)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
            now_ns = clock.now_ns()
            if now_ns >= end_ns:
                if cause is not None:
                    break
                cause = f"did not end within {check.limit_s:g} s"
                end_ns = now_ns + int(ABORT_S * NS_PER_S)
                _signal(process, signal.SIGABRT)  # its fault handler prints the tracebacks of all threads
            elif cause is None and now_ns >= look_ns:
                look_ns = now_ns + MEMORY_NS
                if _resident_mb(process.pid) > check.memory_mb:
                    cause = f"took more than {check.memory_mb} MB of host memory"
                    break
        if cause is not None:
            _signal(process, signal.SIGKILL)
            process.wait()
        for _ in range(64):  # what a process printed last; one that it left behind may print on
            if not any(key.data.read() for key, _ in selector.select(0)):
                break
    return cause


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the process and those that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _resident_mb(pid: int) -> float:
    """Return the memory of a process and its children, 0 if it is gone."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return sum(member.memory_info().rss for member in (process, *process.children(recursive=True))) / 1e6
    return 0.0


def _row(check: GpuCheck, status: int, cause: str | None, output: _Stream, report: _Stream, seconds: float) -> GpuRow:
    text = output.data.decode(errors="replace").strip() or None
    result: CheckReport | None = None
    if report.data:
        with suppress(msgspec.DecodeError):
            result = msgspec.json.decode(report.data, type=CheckReport)
        if result is None and cause is None:
            cause = "gave an unreadable report"
    if cause is None and (result is None or status != 0):
        cause = _ending(status) + (" without a report" if result is None else "")
    if result is None:
        return GpuRow(check.name, "broken", cause or "", check.remedy, seconds, traceback=text)
    if cause is not None:
        finding = f"{cause}, after it reported: {result.finding}"
        return GpuRow(
            check.name, "broken", finding, check.remedy, seconds, traceback=result.traceback or text, output=text
        )
    remedy = result.remedy or (check.remedy if result.state in ("broken", "slow") else None)
    return GpuRow(
        check.name,
        result.state,
        result.finding,
        remedy,
        seconds,
        result.software,
        result.facts,
        result.figures,
        result.traceback,
        text if result.state == "broken" else None,
    )


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"crashed: {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed: signal {-status}"


TOTAL_S = 300.0
"""Time after which no further check begins."""


def examine_gpu(
    checks: Sequence[GpuCheck] = CHECKS,
    begin: Callable[[str], None] | None = None,
    clock: Clock | None = None,
    run: Callable[[GpuCheck], GpuRow] = run_check,
) -> Iterator[GpuRow]:
    """Yield the row of each check as soon as it has ended.

    A check is left out if one that it needs does not work, or after `TOTAL_S`.

    Args:
        checks: Checks to run, each after those that it needs.
        begin: Receives the name of the check that runs next.
        clock: Clock of the limit; the monotonic one if None.
        run: Runs a check, and returns its row.
    """
    clock = clock or MonotonicClock()
    end_ns = clock.now_ns() + int(TOTAL_S * CheckSettings.patience * NS_PER_S)
    states: dict[str, GpuRow] = {}
    for check in checks:
        missing = next((states[need] for need in check.needs if states[need].state not in ("works", "slow")), None)
        if missing is not None:
            if missing.needed is None:
                root = missing
            else:
                root = states[missing.needed]
            row = GpuRow(check.name, "absent", f"needs {root.name}, which is {root.state}", needed=root.name)
        elif clock.now_ns() >= end_ns:
            row = GpuRow(check.name, "absent", f"{TOTAL_S / 60:g} minutes are over", needed="")
        else:
            if begin is not None:
                begin(check.name)
            row = run(check)
        states[check.name] = row
        yield row
