"""Child processes: the start of Python, a process as its parent handles it, its heartbeat, and its supervisor."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from arr_coc.resources import CHECKOUT
from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import PipelineConfig
from stream.errors import StageDied
from stream.events import Restarted
from stream.runtime.fork_server import ForkedProcess, ForkServer, can_fork

log = logging.getLogger(__name__)

ROOT = str(CHECKOUT)
"""Folder of this program's packages."""

BOOTSTRAP = (
    "import sys;"
    "root, module = sys.argv[1:3];"
    "del sys.argv[1:3];"
    "sys.path[:] = [root, *(path for path in sys.path if path)];"
    "import runpy;"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
"""Runs a module as `-m` does, but without the working folder, which Python names by the empty path for `-c`. Python
3.11 has `-P` for that; this does the same on 3.10. Up to `runpy` it imports only what is built into the interpreter."""

BEAT_S = 0.25
"""Time between two beats."""

LOADING = b"."
READY = b"!"
"""Contents of a beat. A process that is still loading is not expected to beat regularly."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs `module` as a program in a separate process, with `python_environment`."""
    return [sys.executable, "-c", BOOTSTRAP, ROOT, module, *arguments]


def python_environment(variables: dict[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment with `variables`, and without imports of a child from the working folder."""
    environment = {**os.environ, **(variables or {}), "PYTHONSAFEPATH": "1"}  # for processes that the child starts
    paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def start_fork_server() -> ForkServer | None:
    """Starts a fork server; returns None if processes may not be forked."""
    if not can_fork():
        return None
    command = python_command("stream.runtime.fork_server")
    return ForkServer.started(command, python_environment({"OMP_NUM_THREADS": "1"}))


class HeartbeatMonitor:
    """Parent's end of a heartbeat. The child inherits `writer`; then `close_writer` is called."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)
        self._last_s = time.monotonic()
        self._ready = False

    def close_writer(self) -> None:
        """Closes the parent's copy of the child's end."""
        os.close(self.writer)

    def silence_s(self) -> float:
        """Returns how long the child has given no sign of life; 0 until it is ready for the first time."""
        beats = b""
        with contextlib.suppress(BlockingIOError):
            beats = os.read(self._reader, 65536)
        now_s = time.monotonic()
        if beats:
            self._last_s = now_s
            self._ready = self._ready or READY in beats
        return now_s - self._last_s if self._ready else 0.0

    def close(self) -> None:
        os.close(self._reader)


class Heartbeat:
    """Child's end of a heartbeat: a thread that beats for as long as `is_alive` returns true."""

    def __init__(self, writer: int, is_alive: Callable[[], bool] = lambda: True) -> None:
        self._writer = writer
        self._is_alive = is_alive
        self._beat = LOADING
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def ready(self) -> None:
        """Reports that loading is over: from here on silence means that this process hangs."""
        self._beat = READY

    def _run(self) -> None:
        while True:
            if self._is_alive():
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self._writer, self._beat)
            time.sleep(BEAT_S)


STOP_LIMIT_S = 2.0
"""Time that a child may take to end once its stdin has ended, before it is killed."""

OUTPUT_TAIL_BYTES = 4000
"""Size of the last output of a dead child that goes to the debug log."""


class ChildProcess:
    """Python process that runs `module`, as its parent handles it. `name` is the stage that its errors name.

    The child inherits the descriptors `inherited` and the writing end of a heartbeat, whose number is
    `heartbeat_writer`. It takes the end of its stdin as the end of its parent. It runs in a separate session, so that
    Ctrl-C reaches only the parent, which decides how to end.

    `forks`, if given and able to, forks the process, and `preload` imports the module there for the next one.
    `output` receives the child's output, instead of a temporary file that the errors quote; it is closed by `stop`.
    """

    def __init__(
        self,
        name: str,
        module: str,
        inherited: Sequence[int] = (),
        environment: dict[str, str] | None = None,
        *,
        forks: ForkServer | None = None,
        preload: bool = False,
        output: IO[bytes] | None = None,
    ) -> None:
        self._name = name
        self._heartbeat = HeartbeatMonitor()
        self.heartbeat_writer = self._heartbeat.writer
        self._output = output or tempfile.TemporaryFile()  # noqa: SIM115  (closed by `stop`)
        descriptors = (*inherited, self.heartbeat_writer)
        forked = None
        if forks is not None:
            forked = forks.fork(module, self._output.fileno(), descriptors, environment, preload=preload)
        self._process: ForkedProcess | subprocess.Popen[bytes] = forked or subprocess.Popen(
            python_command(module),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=python_environment(environment),
            pass_fds=descriptors,
            start_new_session=True,
        )
        self._heartbeat.close_writer()
        self._hung_s: float | None = None
        self._stopped = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send_line(self, line: bytes) -> None:
        """Writes a line to the child's stdin; to a child that is gone, nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def silence_s(self) -> float:
        """Returns how long the child, once ready, has given no sign of life."""
        if self._stopped:
            return 0.0
        return self._heartbeat.silence_s()

    def kill(self, hung_s: float | None = None) -> None:
        """Kills the child; `hung_s` is the time since its last heartbeat, if that is the reason."""
        self._hung_s = hung_s
        self._process.kill()

    @property
    def died_by_signal(self) -> bool:
        """True if it ended by a signal, and so without a last report."""
        status = self._process.poll()
        return status is not None and status < 0

    def exit_error(self) -> StageDied | None:
        """Returns how the child ended, with the last line that it printed; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        if self._hung_s is not None:
            return StageDied(self._name, f"its process sent no heartbeat for {self._hung_s:.1f} s")
        output = self._printed()
        log.debug("the %s process printed: %s", self._name, output)
        if status < 0:
            cause = f"was killed by {_signal_name(-status)}"
        else:
            cause = f"exited with status {status}"
        if status == -signal.SIGKILL:
            return StageDied(self._name, f"its process {cause}")
        last_line = next((line for line in reversed(output.splitlines()) if line.strip()), None)
        return StageDied(self._name, f"its process {cause}" + (f" ({last_line.strip()})" if last_line else ""))

    def stop(self) -> None:
        """Stops the child: by the end of its stdin, else by SIGKILL. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if not self._ends_within(STOP_LIMIT_S):
            log.debug("the %s process did not end within %s s and is killed", self._name, STOP_LIMIT_S)
            self._process.kill()
            self._process.wait()
        self._heartbeat.close()
        self._output.close()

    def _ends_within(self, limit_s: float) -> bool:
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _printed(self) -> str:
        if self._output.closed or not self._output.readable():
            return ""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - OUTPUT_TAIL_BYTES))
        return self._output.read().decode(errors="replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


CRASH_LOOP_NS = 60 * NS_PER_S
"""Period of a crash loop: `pipeline.restart_limit` crashes within it end the run."""

LAST_REPORT_NS = NS_PER_S // 2
"""Time that a dead child's last report may take to arrive, before the crash itself is reported."""

CHECK_EVERY_NS = NS_PER_S // 10
"""Period of checks of a child that is well, however often it is polled: each one takes two system calls."""


class ProcessSupervisor:
    """Supervisor of one child process, `child`.

    `start` makes the process, again after each crash, if `options.restart` is true; `process` is its name in events.
    `restart_limit` crashes within a minute are a crash loop; a child that is silent for `heartbeat_s` hangs.
    """

    def __init__(self, process: str, start: Callable[[], ChildProcess], options: PipelineConfig, clock: Clock) -> None:
        self._process = process
        self._start = start
        self._options = options
        self._clock = clock
        self._crashes_ns: deque[int] = deque(maxlen=options.restart_limit)
        self._crash_seen_ns: int | None = None
        self._check_due_ns = 0
        self._count = 0
        self.child = start()

    def poll(self) -> Restarted | None:
        """Checks the process and starts it again if it crashed or hangs; returns the event that reports this.

        To be called often. Raises StageDied if it may not be started again, or in a crash loop.
        """
        now_ns = self._clock.now_ns()
        if now_ns < self._check_due_ns:
            return None
        self.kill_if_hung()
        error = self.child.exit_error()
        self._check_due_ns = now_ns + CHECK_EVERY_NS if error is None else 0
        if error is None:
            return None
        if self._crash_seen_ns is None:
            self._crash_seen_ns = now_ns
        may_have_reported = not (self._options.restart and self.child.died_by_signal)
        if may_have_reported and now_ns - self._crash_seen_ns < LAST_REPORT_NS:
            return None
        if not self._options.restart:
            raise error
        self._crash_seen_ns = None
        self._count += 1
        self._crashes_ns.append(now_ns)
        if len(self._crashes_ns) == self._options.restart_limit and now_ns - self._crashes_ns[0] < CRASH_LOOP_NS:
            if self._options.restart_limit == 1:
                times = "once"
            else:
                times = f"{self._options.restart_limit} times"
            raise StageDied(
                error.stage,
                f"it died {times} within a minute, the last time because {error.cause}; --debug "
                "shows its output, and pipeline.restart_limit allows more",
            )
        self.child.stop()
        self.child = self._start()
        return Restarted(process=self._process, cause=error.cause, count=self._count)

    def kill_if_hung(self) -> None:
        """Kills the process if it hangs."""
        silence_s = self.child.silence_s()
        if silence_s > self._options.heartbeat_s:
            self.child.kill(hung_s=silence_s)

    def reset_crash_count(self) -> None:
        """Forgets the crashes so far: the next one is not the process's fault, such as a camera that is away."""
        self._crashes_ns.clear()
