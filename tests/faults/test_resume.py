"""`kill -9` of a whole run at random moments, with the bundled model: it continues, and ends with the same bytes."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stream.extensions.journal.journal import journal_path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
ARGUMENTS = ["--every", "0.5", "--budget", "48", "--max-frames", "120", "--no-timing"]
SUFFIXES = ("vtt", "srt", "jsonl")

pytestmark = pytest.mark.slow


class Runs:
    def __init__(self, folder: Path, source: str) -> None:
        self._folder = folder
        self._source = source

    def path(self, name: str, suffix: str) -> Path:
        return self._folder / f"{name}.{suffix}"

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        outputs = [part for suffix in SUFFIXES for part in ("-o", str(self.path(name, suffix)))]
        command = [sys.executable, "run_stream.py", "caption", self._source, *outputs, *ARGUMENTS, *options]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def finish(self, name: str, *options: str) -> dict[str, bytes]:
        assert self.start(name, *options).wait(LIMIT_S) == 0
        assert not journal_path(str(self.path(name, SUFFIXES[0]))).exists()
        return {suffix: self.path(name, suffix).read_bytes() for suffix in SUFFIXES}

    def answers(self, name: str) -> int:
        path = self.path(name, "jsonl")
        return path.read_bytes().count(b'"type":"answer"') if path.exists() else 0

    def kill(self, name: str, answers: int, later_s: float, *options: str) -> None:
        """Ends a run and its children by SIGKILL after this many answers, or a moment later."""
        run = self.start(name, *options)
        until = time.monotonic() + LIMIT_S
        while self.answers(name) < answers:
            assert run.poll() is None
            assert time.monotonic() < until
            time.sleep(0.002)
        time.sleep(later_s)
        for process in [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]:
            process.kill()
        run.wait()


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    runs = Runs(tmp_path, "scene:demo")
    expected = runs.finish("whole")
    last = runs.answers("whole")
    first = rng.randrange(1, last // 2)
    second = rng.randrange(first + 1, last)
    runs.kill("broken", first, rng.random() / 10)
    runs.kill("broken", second, rng.random() / 10, "--resume")
    assert runs.answers("broken") < last
    assert runs.finish("broken", "--resume") == expected
