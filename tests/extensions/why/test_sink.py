"""File of reasons: whole lines, the newest of them in two files within a limit."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from stream.errors import OutputError, OutputFailed
from stream.events import Explanation
from stream.extensions.why.sink import OLDER, ExplanationSink
from tests.support.events import answer
from tests.support.full_disk import room_for

KIB_IN_MIB = 1 / 1024


def reasons(number: int) -> Explanation:
    """Reasons of one frame, of some 200 bytes."""
    return Explanation(frame_index=number, pts_s=0.0, strategy="x" * 100, weights={}, tokens=[])


def frames(path: Path) -> list[int]:
    return [json.loads(line)["frame_index"] for line in path.read_text().splitlines()]


def written(path: Path, count: int, max_mib: float | None = 2 * KIB_IN_MIB) -> None:
    with closing(ExplanationSink(str(path), max_mib)) as sink:
        for number in range(count):
            sink.write(reasons(number))
            sink.write(answer(0.0, "a"))


def test_the_newest_lines_are_kept_in_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, older = tmp_path / "why.jsonl", tmp_path / f"why.jsonl{OLDER}"
    written(path, 100)
    numbers = frames(older) + frames(path)
    assert numbers == list(range(numbers[0], 100))
    assert 1024 < path.stat().st_size + older.stat().st_size <= 2048
    assert capsys.readouterr().err.count("why.max_mib is the limit") == 1


def test_a_new_run_replaces_both_files(tmp_path: Path) -> None:
    path, older = tmp_path / "why.jsonl", tmp_path / f"why.jsonl{OLDER}"
    written(path, 100)
    written(path, 0)
    assert older.exists(), "nothing is lost before the first line"
    written(path, 2)
    assert frames(path) == [0, 1]
    assert not older.exists()


def test_all_lines_are_kept_without_a_limit_and_in_what_is_no_file(tmp_path: Path) -> None:
    written(tmp_path / "why.jsonl", 100, None)
    assert frames(tmp_path / "why.jsonl") == list(range(100))
    written(Path("/dev/null"), 100)
    assert not os.path.exists(f"/dev/null{OLDER}")


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "why.jsonl"
    link.symlink_to(tmp_path / "folder" / "reasons")
    written(link, 100)
    assert link.is_symlink()
    assert frames(link)[-1] == 99
    assert frames(tmp_path / "folder" / f"reasons{OLDER}")


def test_another_file_of_that_name_is_not_replaced(tmp_path: Path) -> None:
    older = tmp_path / f"why.jsonl{OLDER}"
    for make in (lambda: older.write_text("of the user"), older.mkdir):
        make()
        with pytest.raises(OutputError, match=r"why.jsonl.1', for older lines of .* has something else in it"):
            ExplanationSink(str(tmp_path / "why.jsonl"), 1)
        assert older.is_dir() or older.read_text() == "of the user"
        if older.is_file():
            older.unlink()
    assert not (tmp_path / "why.jsonl").exists()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    with closing(ExplanationSink(str(path), 1)) as sink:
        sink.write(reasons(0))
        with room_for(path.stat().st_size + 50), pytest.raises(OutputFailed, match="cannot write"):
            sink.write(reasons(1))
    assert frames(path) == [0]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with closing(ExplanationSink(str(tmp_path / "why.jsonl"), KIB_IN_MIB / 4)) as sink:  # room for one line
        sink.write(reasons(0))
        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(OutputFailed, match=r"cannot write .*why.jsonl': Permission denied"):
            sink.write(reasons(1))
