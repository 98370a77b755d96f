"""Kills while a process writes: the file stays valid, and every committed row is in it."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.network import LIMIT_S

WRITE = """
import os, sqlite3, sys, time
from stream.extensions.past.retention import Limits
from stream.extensions.past.store import PastStore
from tests.support.past import YARD, moment
from dataclasses import replace

path, key, kept_mib = sys.argv[1:]
run = replace(YARD, key=key, camera=key)

def again(call):
    # another process that writes without a pause may keep the lock for longer than SQLite waits
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise

store = again(lambda: PastStore(path, Limits(max_mib=float(kept_mib))))
number = 0
while True:
    now_ms = time.time_ns() // 1_000_000
    batch = [moment(number + at, run=run, unix_ms=now_ms, jpeg=os.urandom(3000)) for at in range(1, 6)]
    again(lambda: store.write(batch))
    number += 5
    os.write(1, b"%d\\n" % number)
    again(lambda: store.retain(0, 5))
"""
"""Write batches of five moments, and the number of the last one to stdout once it is committed."""

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def writing(path: Path, key: str, kept_mib: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITE, str(path), key, str(kept_mib)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def committed(process: subprocess.Popen[str], batches: int) -> int:
    """Kill a writer after so many batches; return the number of the last moment that it committed."""
    assert process.stdout is not None
    last = 0
    for _ in range(batches):
        last = int(process.stdout.readline())
    process.kill()
    rest = process.stdout.read().split()
    process.wait(LIMIT_S)
    return int(rest[-1]) if rest else last


def kill_again_and_again(folder: Path, kills: int, *, kept_mib: float, writers: int = 1) -> None:
    path, chance = folder / "past.sqlite", random.Random(kills)
    for number in range(kills):
        names = [f"{number}-{writer}" for writer in range(writers)]
        with closing(WriterGroup(path, names, kept_mib)) as group:
            last = group.kill(chance)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
            connection.rollback()
            for name, newest in last.items():
                ((first, most, rows),) = connection.execute(
                    "SELECT min(number), max(number), count(*) FROM moment JOIN run ON run.id = run WHERE camera = ?",
                    (name,),
                )
                assert most >= newest, "a committed row is lost"
                assert rows == most - first + 1, "there is a gap"
                assert most % 5 == 0, "half a batch is there"
                assert first == 1 or kept_mib < 1000, "a row is lost that no limit allows to delete"
            ((pictures, bytes_of_all),) = connection.execute(
                "SELECT count(*), (SELECT picture_bytes FROM total) FROM picture"
            )
            assert bytes_of_all == 3000 * pictures


class WriterGroup:
    """Processes that write one file."""

    def __init__(self, path: Path, names: list[str], kept_mib: float) -> None:
        self._open = [(name, writing(path, name, kept_mib)) for name in names]
        self.processes = {name: process.__enter__() for name, process in self._open}

    def kill(self, chance: random.Random) -> dict[str, int]:
        """Kill each after some batches; return the last moment that each committed."""
        return {name: committed(process, chance.randint(1, 12)) for name, process in self.processes.items()}

    def close(self) -> None:
        for _, process in self._open:
            process.__exit__(None, None, None)


def test_a_killed_writer_loses_no_committed_row(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 4, kept_mib=1e6)


def test_two_killed_writers_of_one_file_lose_no_committed_row(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 2, kept_mib=1e6, writers=2)


@pytest.mark.slow
def test_a_hundred_kills_lose_no_committed_row(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 100, kept_mib=1e6)


@pytest.mark.slow
def test_a_hundred_kills_while_old_rows_are_deleted_leave_a_valid_file(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 100, kept_mib=0.5, writers=2)
