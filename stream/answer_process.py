"""The answer stage as a process of its own: how it is started, watched and stopped, and what it does itself.

The child reads its orders as one line of JSON on stdin and takes the end of stdin as the end of its parent. It runs
in a session of its own, so that Ctrl-C reaches only the parent, which decides what to say.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import IO

import msgspec
import torch

from stream.config import Config
from stream.errors import StageDied
from stream.snapshot import SnapshotReader
from stream.stages.answer import AnswerStage
from stream.stages.base import CancelledError, Control
from stream.transport import Transport

GRACE_S = 0.5
"""How long the child may take to end by itself, once told, before its stdin is closed."""

STOP_LIMIT_S = 2.0
"""How long it may take then, before it is killed."""

OUTPUT_TAIL_BYTES = 4000
"""How much of what a dead child printed goes to the debug log."""

log = logging.getLogger(__name__)


class Orders(msgspec.Struct, frozen=True):
    """What the child must know."""

    endpoint: str
    directory: str
    snapshot: int
    threads: int
    speaker: str
    config: str


class AnswerProcess:
    """The parent's hold on the child."""

    def __init__(self, config: Config, speaker: str, endpoint: str, directory: Path, snapshot: int) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) - 1) if hasattr(os, "sched_getaffinity") else 1
        orders = Orders(endpoint, str(directory), snapshot, threads, speaker, config.model_dump_json())
        root = str(Path(__file__).resolve().parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `stop`)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "stream.answer_process"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)},
            pass_fds=(snapshot,),
            start_new_session=True,
        )
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(msgspec.json.encode(orders) + b"\n")
            self._child.stdin.flush()

    @property
    def pid(self) -> int:
        return self._child.pid

    def death(self) -> StageDied | None:
        """How the child ended, with the last line that it printed, or None while it lives."""
        status = self._child.poll()
        if status is None:
            return None
        printed = self._printed()
        log.debug("the answer process printed: %s", printed)
        cause = f"killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
        last_line = next((line for line in reversed(printed.splitlines()) if line.strip()), None)
        return StageDied("answer", f"its process {cause}" + (f" ({last_line.strip()})" if last_line else ""))

    def stop(self) -> None:
        """Ends the child: by itself where it has been told to, else by the end of its stdin, else by SIGKILL."""
        assert self._child.stdin is not None
        if not self._ends_within(GRACE_S):
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            if not self._ends_within(STOP_LIMIT_S):
                log.debug("the answer process did not end within %s s and is killed", STOP_LIMIT_S)
                self._child.kill()
                self._child.wait()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._output.close()

    def _ends_within(self, limit_s: float) -> bool:
        try:
            self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _printed(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - OUTPUT_TAIL_BYTES))
        return self._output.read().decode(errors="replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> int:
    """The child: runs the answer stage until it is told to stop, or its parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    orders = msgspec.json.decode(line, type=Orders)
    threading.Thread(target=_follow_parent, args=(orders.directory,), name="lifeline", daemon=True).start()

    torch.set_num_threads(orders.threads)
    transport = Transport()
    stage = AnswerStage(
        Config.model_validate_json(orders.config),
        orders.speaker,
        orders.endpoint,
        transport,
        Control(),
        SnapshotReader(orders.snapshot),
    )
    try:
        stage.run()
    except CancelledError:
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        transport.close()
    return 0


def _follow_parent(directory: str) -> None:
    """Ends this process when stdin ends: the parent is gone or wants no more, and may not be able to tidy up."""
    sys.stdin.buffer.read()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips taking the model apart, which the parent would wait for
