"""Files of packages: what is kept of them, and errors in one line."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluation.errors import PicturesError
from evaluation.real import __main__ as command
from evaluation.real.fetch import fetch
from evaluation.real.labels import Folders, Source

CONTENT = b"a picture"


def source(kind: str, path: str = "data/a.png") -> Source:
    return Source("a.png", path, hashlib.sha256(CONTENT).hexdigest(), "CC0-1.0", True, False, "package", kind)


class Commands:
    """Stand-in for the programs that download and unpack."""

    def __init__(self, *, error: Exception | None = None, archives: tuple[str, ...] = ("package.whl",)) -> None:
        self.error = error
        self.archives = archives
        self.ran: list[list[str]] = []

    def __call__(self, arguments: list[str], cwd: Path, **_: Any) -> None:
        self.ran.append(arguments)
        if self.error is not None:
            raise self.error
        if arguments[0] == "dpkg-deb":
            (cwd / "data").mkdir()
            (cwd / "data" / "a.png").write_bytes(CONTENT)
            return
        for name in self.archives:
            _write_archive(cwd / name)


def _write_archive(path: Path) -> None:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data/a.png", CONTENT)
    elif path.suffix == ".gz":
        with tarfile.open(path, "w:gz") as archive:
            entry = tarfile.TarInfo("package-1.0/data/a.png")
            entry.size = len(CONTENT)
            archive.addfile(entry, io.BytesIO(CONTENT))
    else:
        path.write_bytes(b"an archive")


@pytest.fixture
def empty(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "clips", tmp_path / "pictures")


@pytest.mark.parametrize(
    ("kind", "archive", "program"),
    [("wheel", "p.whl", "--only-binary"), ("sdist", "p.tar.gz", "--no-binary"), ("debian", "p.deb", "apt-get")],
)
def test_labelled_files_are_kept(
    kind: str, archive: str, program: str, empty: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(archives=(archive,))
    monkeypatch.setattr(subprocess, "run", commands)
    wanted = source(kind)
    assert fetch([wanted], empty) == {}
    assert program in commands.ran[0]
    assert wanted.file(empty).read_bytes() == CONTENT
    runs = len(commands.ran)
    assert fetch([wanted], empty) == {}
    assert len(commands.ran) == runs  # it is there already


def test_what_a_package_does_not_hold_is_reported(empty: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Commands())
    assert fetch([source("wheel", "data/b.png")], empty) == {"a.png": "absent"}


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (Commands(error=FileNotFoundError()), r"package needs apt-get, which is not here; check the network"),
        (Commands(error=subprocess.TimeoutExpired("apt-get", 600)), r"package took more than 600 s"),
        (Commands(error=subprocess.CalledProcessError(100, "apt-get", stderr="E: no network\n")), r"\(E: no network\)"),
        (Commands(error=subprocess.CalledProcessError(100, "apt-get", stderr="")), r"\(status 100\)"),
        (Commands(archives=()), r"apt-get left 0 archives of package, not one"),
        (Commands(archives=("broken.tgz",)), r"cannot unpack broken.tgz"),
    ],
)
def test_errors_say_what_to_do(
    commands: Commands, message: str, empty: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", commands)
    with pytest.raises(PicturesError, match=message):
        fetch([source("debian")], empty)


def test_the_command_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Commands(error=FileNotFoundError()))
    run = CliRunner().invoke(command.app, ["fetch", str(tmp_path / "pictures")])
    assert run.exit_code == 2
    assert len(run.output.splitlines()) == 1
    assert run.output.startswith("error: opencv-doc needs apt-get")


def test_the_command_counts_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Commands())
    run = CliRunner().invoke(command.app, ["fetch", str(tmp_path / "pictures")])
    assert run.exit_code == 0, run.output
    assert run.stdout.splitlines()[-1].startswith("0 files in ")
    assert run.stdout.splitlines()[-1].endswith(", 51 missing")
