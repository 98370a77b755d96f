"""Directories for sockets: private while in use, and removed after their owner was killed; nothing else is removed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stream.errors import NoSocketFolder
from stream.transport.context import SocketDirectory, private_directory, remove_after_parent, state_folders

ROOT = Path(__file__).resolve().parents[3]

KILLED = """
import os, signal, socket, sys, tempfile
tempfile.tempdir = sys.argv[1]
from stream.transport.context import private_directory
held = private_directory()
path = os.fspath(held.__enter__())
socket.socket(socket.AF_UNIX).bind(os.path.join(path, "answer"))
print(path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory; the state of runs lies beside it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def killed_run(temporary: Path) -> Path:
    """The directory of a run that was killed, with its socket in it, and the run's record beside it."""
    directory = SocketDirectory.make()
    leave_socket(Path(directory) / "answer")
    folder = Path(state_folders()[0])
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{os.uname().nodename}-1.run").write_bytes(msgspec.json.encode(directory))
    return Path(directory)


def leave_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def test_a_child_of_a_killed_run_removes_its_directory_and_its_record(temporary: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(temporary)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    left = Path(process.stdout.strip())
    assert (left / "answer").is_socket(), process.stderr
    (record,) = (temporary.parent / "arr-coc-stream").glob(f"{os.uname().nodename}-*.run")
    directory = msgspec.json.decode(record.read_bytes(), type=SocketDirectory)
    assert os.fspath(directory) == str(left)
    remove_after_parent(directory)
    assert not left.exists()
    assert not record.exists()


@pytest.mark.parametrize(("name", "problem"), [("a" * 100, "is too long for a Unix socket"), ("none", "can be made")])
def test_a_temporary_folder_that_takes_no_sockets_can_be_put_right(
    name: str, problem: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary / name
    if name != "none":
        folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(NoSocketFolder, match=f"{problem}.*; set TMPDIR to") as raised, private_directory():
        pass
    assert raised.value.user_fixable


def next_run() -> None:
    with private_directory():
        pass


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return modes and contents of all files below a folder."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        regular = path.is_file() and not path.is_symlink()
        entries[str(path.relative_to(folder))] = (path.lstat().st_mode, path.read_bytes() if regular else b"")
    return entries


def test_the_directory_is_private_and_gone_at_the_end(temporary: Path) -> None:
    with private_directory() as directory:
        assert list(temporary.iterdir()) == [Path(directory)]
        assert Path(directory).stat().st_mode & 0o777 == 0o700
        leave_socket(Path(directory) / "answer")
    assert list(temporary.iterdir()) == []
    assert [list(Path(folder).iterdir()) for folder in state_folders()[:1]] == [[]]


def test_files_of_a_killed_run_are_removed_by_the_next(temporary: Path) -> None:
    left = killed_run(temporary)
    next_run()
    assert not left.exists()
    assert list(temporary.iterdir()) == []
    assert list(Path(state_folders()[0]).iterdir()) == []


def test_a_directory_in_use_stays(temporary: Path) -> None:
    with private_directory() as first:
        with private_directory() as second:
            assert {Path(first), Path(second)} == set(temporary.iterdir())
        assert Path(first).exists()


def test_folders_that_only_look_like_it_survive(temporary: Path) -> None:
    genuine = killed_run(temporary)
    marker = next(path for path in genuine.iterdir() if not path.is_socket())
    results = temporary / "arr-coc-results"
    (results / "chapter").mkdir(parents=True)
    (results / "thesis.txt").write_text("years of work")
    (results / "chapter" / "one.txt").write_text("more of it")
    for name in ("empty", "copied-marker", "sockets", "link"):
        (temporary / f"arr-coc-{name}").mkdir(mode=0o700)
    shutil.copy2(marker, temporary / "arr-coc-copied-marker")
    leave_socket(temporary / "arr-coc-sockets" / "answer")
    (temporary / "arr-coc-link" / "to").symlink_to(results)
    (temporary / "arr-coc-file").touch()
    (temporary / "arr-coc-alias").symlink_to(results)
    before = tree(temporary)
    next_run()
    after = tree(temporary)
    removals = set(before) - set(after)
    assert removals == {genuine.name, f"{genuine.name}/answer", f"{genuine.name}/{marker.name}"}
    assert all(after[name] == before[name] for name in after)


def add_file(left: Path) -> None:
    (left / "mine.txt").write_text("mine")


def add_folder(left: Path) -> None:
    (left / "mine").mkdir()


def add_link(left: Path) -> None:
    (left / "mine").symlink_to(left.parent)


def add_pipe(left: Path) -> None:
    os.mkfifo(left / "mine")


def lose_marker(left: Path) -> None:
    next(path for path in left.iterdir() if not path.is_socket()).unlink()


def open_to_others(left: Path) -> None:
    left.chmod(0o755)


def put_another_there(left: Path) -> None:
    aside = left.with_name("aside")
    left.rename(aside)
    shutil.copytree(aside, left, ignore=lambda folder, names: ["answer"])
    left.chmod(0o700)


def put_a_link_there(left: Path) -> None:
    left.rename(left.with_name("aside"))
    left.symlink_to("aside")


@pytest.mark.parametrize(
    "change",
    [add_file, add_folder, add_link, add_pipe, lose_marker, open_to_others, put_another_there, put_a_link_there],
)
def test_a_killed_runs_directory_that_holds_anything_else_is_left_alone(
    temporary: Path, change: Callable[[Path], None]
) -> None:
    change(killed_run(temporary))
    before = tree(temporary)
    next_run()
    assert tree(temporary) == before


def test_a_run_leaves_what_others_put_into_its_directory(temporary: Path) -> None:
    with private_directory() as directory:
        add_file(Path(directory))
    assert (Path(directory) / "mine.txt").read_text() == "mine"


def test_it_may_be_removed_by_several_and_again(temporary: Path) -> None:
    directory = SocketDirectory.make()
    assert directory.remove()
    assert directory.remove()
    emptied = SocketDirectory.make()
    (Path(emptied) / emptied.marker).unlink()  # another process was killed between its two last steps
    assert emptied.remove()


def test_records_in_a_folder_that_others_may_enter_are_neither_made_nor_read(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed_run(temporary)
    for folder in map(Path, state_folders()[:1]):
        folder.chmod(0o770)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    next_run()
    assert left.exists()
    with private_directory() as directory:
        assert len(list(Path(state_folders()[0]).iterdir())) == 1, "the killed run's"
    assert not Path(directory).exists()


def test_files_that_are_no_records_stay(temporary: Path) -> None:
    killed_run(temporary)
    folder = Path(state_folders()[0])
    (record,) = folder.iterdir()
    copy = folder / "notes.txt"
    copy.write_text("mine")
    target = temporary / "target"
    target.write_bytes(record.read_bytes())
    record.unlink()
    record.symlink_to(target)
    before = tree(folder)
    next_run()
    assert tree(folder) == before
    assert len(list(temporary.iterdir())) == 2
