"""Directories for sockets: private while they are used, and swept up when their owner was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream.transport.directory import private_directory

LONG_AGO_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def age(path: Path) -> None:
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))


def test_what_a_killed_run_left_is_swept_up_by_the_next(tmp_path: Path) -> None:
    killed = (
        "import os, signal, tempfile, sys; tempfile.tempdir = sys.argv[1];"
        "from stream.transport.directory import private_directory;"
        "held = private_directory(); path = held.__enter__(); (path / 'answer').touch(); print(path, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], capture_output=True, text=True, timeout=60)
    left = Path(done.stdout.strip())
    assert (left / "answer").exists()
    age(left)
    with private_directory() as own:
        assert list(tmp_path.iterdir()) == [own]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_stays_however_old(tmp_path: Path) -> None:
    with private_directory() as first:
        age(first)
        with private_directory() as second:
            assert {first, second} == set(tmp_path.iterdir())
        assert first.exists()


def test_what_is_young_or_something_else_stays(tmp_path: Path) -> None:
    (tmp_path / "arr-coc-young").mkdir()
    for name in ("other", "arr-coc"):
        (tmp_path / name).mkdir()
        age(tmp_path / name)
    (tmp_path / "arr-coc-file").touch()
    age(tmp_path / "arr-coc-file")
    (tmp_path / "arr-coc-link").symlink_to(tmp_path / "other")
    os.utime(tmp_path / "arr-coc-link", ns=(LONG_AGO_NS, LONG_AGO_NS), follow_symlinks=False)
    before = set(tmp_path.iterdir())
    with private_directory():
        pass
    assert set(tmp_path.iterdir()) == before
