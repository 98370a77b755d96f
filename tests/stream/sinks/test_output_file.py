"""Files that are claimed early, emptied late, and never left incomplete."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from stream.errors import OutputError, OutputFailed
from stream.sinks.output_file import OutputFile


def test_an_existing_file_stays_until_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("yesterday's, and longer", encoding="utf-8")
    OutputFile(str(path)).close()
    assert path.read_text(encoding="utf-8") == "yesterday's, and longer"
    file = OutputFile(str(path))
    file.append("new")
    file.close()
    assert path.read_text(encoding="utf-8") == "new"


def test_a_file_that_was_never_written_is_not_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    OutputFile(str(path)).close()
    assert not path.exists()
    file = OutputFile(str(path))
    file.keep()
    file.close()
    file.close()
    assert path.exists()


@pytest.mark.parametrize("rename", [False, True])
def test_a_file_that_another_program_wrote_meanwhile_is_not_removed(tmp_path: Path, rename: bool) -> None:
    path, other = tmp_path / "a.txt", tmp_path / "other.txt"
    file = OutputFile(str(path))
    (other if rename else path).write_text("mine")
    if rename:
        other.rename(path)
    file.close()
    assert path.read_text() == "mine"


def test_a_file_that_is_removed_meanwhile_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    file = OutputFile(str(path))
    file.append("first\n")
    path.unlink()
    message = r"a\.jsonl' is lost: the file or its folder was removed during the run"
    with pytest.raises(OutputFailed, match=message):
        file.append("second\n")
    with pytest.raises(OutputFailed, match=message):
        file.close()
    file.close()


def test_a_file_that_is_moved_meanwhile_takes_all(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    file = OutputFile(str(path))
    file.append("first\n")
    new_path = path.rename(tmp_path / "b.jsonl")
    file.append("second\n")
    file.close()
    assert new_path.read_text() == "first\nsecond\n"


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = OutputFile(str(path))
    with pytest.raises(OutputError, match=r"another run is writing '.*a.jsonl'; wait until it has ended, or name"):
        OutputFile(str(path))
    first.append("first\n")
    first.close()
    assert path.read_text() == "first\n"
    OutputFile(str(path)).close()


def test_the_tail_is_replaced_by_something_shorter(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    file = OutputFile(str(path))
    file.append("héad")
    file.append("long tail")
    file.replace_tail(5, "end")
    file.close()
    assert path.read_text(encoding="utf-8") == "héadend"


def test_paths_that_cannot_be_written_say_why(tmp_path: Path) -> None:
    for path, message in [
        (tmp_path / "no" / "a.txt", "there is no folder .*make it first"),
        (tmp_path, "it is a folder"),
        (tmp_path / ("x" * 300), "name too long"),
    ]:
        with pytest.raises(OutputError, match=f"(?i){message}"):
            OutputFile(str(path))


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OutputFile(str(tmp_path / "a.txt"))

    monkeypatch.setattr(os, "write", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    for write in (lambda: file.append("x"), lambda: file.replace_tail(0, "x")):
        with pytest.raises(OutputError, match=r"cannot write .*No space left"):
            write()
    file.close()


def test_a_write_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    file = OutputFile(str(tmp_path / "a.txt"))
    file.append("ten bytes!")
    file.close()
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "ten bytes!"


def test_a_closed_file_takes_nothing_more(tmp_path: Path) -> None:
    file = OutputFile(str(tmp_path / "a.txt"))
    file.close()
    with pytest.raises(OutputError, match="closed already"):
        file.append("x")


def test_a_pipe_takes_lines(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    file = OutputFile(str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file.append("line\n")
    assert os.read(reader, 100) == b"line\n"
    os.close(reader)
    file.close()


def continued(tmp_path: Path, content: str) -> tuple[Path, OutputFile]:
    path = tmp_path / "a.txt"
    path.write_text(content, encoding="utf-8")
    return path, OutputFile(str(path), resume=True)


def test_a_continued_file_stays_until_more_has_been_written_again(tmp_path: Path) -> None:
    path, file = continued(tmp_path, "one\ntwo\nthr")
    for text in ("one\n", "two\n"):
        file.append(text)
        assert path.read_text(encoding="utf-8") == "one\ntwo\nthr"
    file.append("three\n")
    assert path.read_text(encoding="utf-8") == "one\ntwo\nthree\n"
    file.append("four\n")
    file.replace_tail(4, "2\n")
    file.close()
    assert path.read_text(encoding="utf-8") == "one\n2\n"


def test_a_continued_file_that_never_catches_up_is_as_it_was(tmp_path: Path) -> None:
    path, file = continued(tmp_path, "one\ntwo\n")
    file.append("1\n")
    file.replace_tail(0, "une\n")
    file.close()
    assert path.read_text(encoding="utf-8") == "one\ntwo\n"


def test_a_continued_file_keeps_an_end_that_is_as_long_as_the_new_one(tmp_path: Path) -> None:
    path, file = continued(tmp_path, "one until 1.6\n")
    file.append("one until 1.1\n")
    assert path.read_text(encoding="utf-8") == "one until 1.6\n"
    file.append("two\n")
    assert path.read_text(encoding="utf-8") == "one until 1.1\ntwo\n"
    file.close()


def test_a_continued_file_may_end_up_shorter_once_all_is_written(tmp_path: Path) -> None:
    path, file = continued(tmp_path, "one, and an end that is not so any more")
    file.append("one.")
    file.catch_up()
    file.catch_up()
    file.close()
    assert path.read_text(encoding="utf-8") == "one."


def test_a_continued_file_that_was_not_there_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    file = OutputFile(str(path), resume=True)
    file.append("new")
    assert path.read_text(encoding="utf-8") == "new"
    file.close()


def test_a_pipe_cannot_be_continued(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match=r"cannot continue .*not a regular file"):
        OutputFile(str(tmp_path / "pipe"), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_write_without_room_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    path, os_write = tmp_path / "a.txt", os.write
    file = OutputFile(str(path))
    file.append("one\ntwo\n")
    if resume:
        file.close()
        file = OutputFile(str(path), resume=True)

    def little_room(fd: int, data: memoryview) -> int:
        room = max(0, 12 - os.lseek(fd, 0, os.SEEK_CUR))
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os_write(fd, data[:room])

    monkeypatch.setattr(os, "write", little_room)
    for write in (lambda: file.append("one\ntwo\nthree, long\n"), lambda: file.replace_tail(4, "2 and much more")):
        with pytest.raises(OutputFailed, match="No space left"):
            write()
        assert path.read_text(encoding="utf-8") == "one\ntwo\n"
    file.close()
