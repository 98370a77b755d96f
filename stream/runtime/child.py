"""A child process: how it is started and stopped, its heartbeat, and its supervisor, which starts it again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.errors import StageDied
from stream.events import Restarted
from stream.start import python_command, python_environment

BEAT_S = 0.25
"""Between two beats."""

LOADING, READY = b".", b"!"
"""What one beat says. A process that is still getting ready is not expected to be regular."""


class HeartbeatMonitor:
    """The parent's end. `writer` is what the child must inherit; `close_writer` once it has."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)
        self._last_s = time.monotonic()
        self._ready = False

    def close_writer(self) -> None:
        os.close(self.writer)

    def silence_s(self) -> float:
        """How long the child has given no sign of life; 0 until it is ready for the first time."""
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
    """The child's end: a thread that beats for as long as `lively` says so."""

    def __init__(self, writer: int, lively: Callable[[], bool] = lambda: True) -> None:
        self._writer = writer
        self._lively = lively
        self._beat = LOADING
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def ready(self) -> None:
        """From here on silence means that this process hangs."""
        self._beat = READY

    def _run(self) -> None:
        while True:
            if self._lively():
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self._writer, self._beat)
            time.sleep(BEAT_S)


STOP_LIMIT_S = 2.0
"""How long a child may take to end once its stdin has ended, before it is killed."""

OUTPUT_TAIL_BYTES = 4000
"""How much of what a dead child printed goes to the debug log."""

log = logging.getLogger(__name__)


class ChildProcess:
    """A Python process that runs `module`, as its parent handles it. `name` is the stage that its errors name.

    It inherits the descriptors `inherited`, and the writing end of a heartbeat; `heartbeat_writer` is its number.
    """

    def __init__(
        self, name: str, module: str, inherited: Sequence[int] = (), environment: dict[str, str] | None = None
    ) -> None:
        self._name = name
        self._heartbeat = HeartbeatMonitor()
        self.heartbeat_writer = self._heartbeat.writer
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `stop`)
        self._process = subprocess.Popen(
            python_command(module),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=python_environment(environment),
            pass_fds=(*inherited, self.heartbeat_writer),
            start_new_session=True,
        )
        self._heartbeat.close_writer()
        self._hung_s: float | None = None
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_line(self, line: bytes) -> None:
        """One line on the child's stdin. A child that is gone need not be told."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def silence_s(self) -> float:
        """How long the child, once ready, has given no sign of life."""
        return 0.0 if self._stopped else self._heartbeat.silence_s()

    def kill(self, hung_s: float | None = None) -> None:
        """Ends a child that does not end by itself; `hung_s` is how long it has been silent."""
        self._hung_s = hung_s
        self._process.kill()

    @property
    def died_by_signal(self) -> bool:
        """It ended by a signal, and so without a last word."""
        status = self._process.poll()
        return status is not None and status < 0

    def exit_error(self) -> StageDied | None:
        """How the child ended, with the last line that it printed, or None while it lives."""
        status = self._process.poll()
        if status is None:
            return None
        if self._hung_s is not None:
            return StageDied(self._name, f"its process gave no sign of life for {self._hung_s:.1f} s")
        printed = self._printed()
        log.debug("the %s process printed: %s", self._name, printed)
        cause = f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
        if status == -signal.SIGKILL:
            return StageDied(self._name, f"its process {cause}")
        last_line = next((line for line in reversed(printed.splitlines()) if line.strip()), None)
        return StageDied(self._name, f"its process {cause}" + (f" ({last_line.strip()})" if last_line else ""))

    def stop(self) -> None:
        """Ends the child: by the end of its stdin, else by SIGKILL. May be called twice."""
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
        if self._output.closed:
            return ""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - OUTPUT_TAIL_BYTES))
        return self._output.read().decode(errors="replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


LOOP_WINDOW_NS = 60 * NS_PER_S
"""Deaths within this time make a crash loop."""

LAST_WORDS_NS = NS_PER_S // 2
"""How long a dead child's last message may take to be heard, before the death itself is reported."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`limit` deaths within a minute are a crash loop; a child that is silent for `heartbeat_s` hangs."""

    restart: bool = False
    limit: int = 5
    heartbeat_s: float = 5.0


class ProcessSupervisor:
    """One process under watch. `start` makes it, also after each death; `process` is its name for people."""

    def __init__(self, process: str, start: Callable[[], ChildProcess], policy: RestartPolicy, clock: Clock) -> None:
        self._process = process
        self._start = start
        self._policy = policy
        self._clock = clock
        self._deaths_ns: deque[int] = deque(maxlen=policy.limit)
        self._death_seen_ns: int | None = None
        self._count = 0
        self.child = start()

    def poll(self) -> Restarted | None:
        """To be called often: what has happened to the process, where it has been started again.

        Raises StageDied where it died and may not be started again, or dies again and again.
        """
        self.kill_if_hung()
        now_ns, death = self._clock.now_ns(), self.child.exit_error()
        if death is None:
            return None
        if self._death_seen_ns is None:
            self._death_seen_ns = now_ns
        may_have_spoken = not (self._policy.restart and self.child.died_by_signal)
        if may_have_spoken and now_ns - self._death_seen_ns < LAST_WORDS_NS:
            return None
        if not self._policy.restart:
            raise death
        self._death_seen_ns = None
        self._count += 1
        self._deaths_ns.append(now_ns)
        if len(self._deaths_ns) == self._policy.limit and now_ns - self._deaths_ns[0] < LOOP_WINDOW_NS:
            times = "once" if self._policy.limit == 1 else f"{self._policy.limit} times"
            raise StageDied(
                death.stage,
                f"it died {times} within a minute, the last time because {death.cause}; --debug "
                "shows what it printed, and pipeline.restart_limit allows more",
            )
        self.child.stop()
        self.child = self._start()
        return Restarted(process=self._process, cause=death.cause, count=self._count)

    def kill_if_hung(self) -> None:
        """Kills the process where it hangs."""
        silence_s = self.child.silence_s()
        if silence_s > self._policy.heartbeat_s:
            self.child.kill(hung_s=silence_s)

    def reset_crash_count(self) -> None:
        """What the process dies of now is not its fault, and no part of a crash loop: a camera that is away."""
        self._deaths_ns.clear()

    def stop(self) -> None:
        self.child.stop()
