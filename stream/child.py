"""A process that this one has started: told by lines on its stdin, watched, and ended.

The child takes the end of its stdin as the end of its parent. It runs in a session of its own, so that Ctrl-C reaches
only the parent, which decides what to say.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from stream.errors import StageDied
from stream.interpreter import python_command, python_environment
from stream.pulse import PulseReader

STOP_LIMIT_S = 2.0
"""How long a child may take to end once its stdin has ended, before it is killed."""

OUTPUT_TAIL_BYTES = 4000
"""How much of what a dead child printed goes to the debug log."""

log = logging.getLogger(__name__)


class Child:
    """The parent's hold on a Python process that runs `module`. `name` is the stage that its death is reported of.

    It inherits the descriptors `inherited`, and the writing end of a pulse, whose number `pulse_writer` tells it.
    """

    def __init__(
        self, name: str, module: str, inherited: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._pulse = PulseReader()
        self.pulse_writer = self._pulse.writer
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `stop`)
        self._process = subprocess.Popen(
            python_command(module),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=python_environment(environment),
            pass_fds=(*inherited, self.pulse_writer),
            start_new_session=True,
        )
        self._pulse.close_writer()
        self._hung_s: float | None = None
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: bytes) -> None:
        """One line on the child's stdin. A child that is gone need not be told."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def silence_s(self) -> float:
        """How long the child, once ready, has given no sign of life."""
        return 0.0 if self._stopped else self._pulse.silence_s()

    def kill(self, hung_s: float | None = None) -> None:
        """Ends a child that does not end by itself; `hung_s` is how long it has been silent."""
        self._hung_s = hung_s
        self._process.kill()

    @property
    def killed(self) -> bool:
        """It ended by a signal, and so without a last word."""
        status = self._process.poll()
        return status is not None and status < 0

    def death(self) -> StageDied | None:
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
        self._pulse.close()
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
