"""Kernels, presets and the bundled model are found in a checkout and in an installation."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from arr_coc import resources as shipped
from arr_coc.resources import INSTALLED, bundled_folder, kernel_folder, preset_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {"kernels": kernel_folder, "configs": preset_folder, "models/scenes-tiny": bundled_folder}

every_folder = pytest.mark.parametrize(("name", "folder"), FOLDERS.items(), ids=list(FOLDERS))


@every_folder
def test_a_checkout_has_its_own(name: str, folder: Callable[[], Path]) -> None:
    assert folder() == ROOT / name


@every_folder
def test_an_installation_is_not_misled_by_a_package_of_that_name(
    name: str, folder: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(shipped, "CHECKOUT", tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda kind: {"data": "/environment"}[kind])
    assert folder() == Path("/environment") / INSTALLED / name


def test_a_wheel_takes_every_file_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel_files = {
        (folder.removeprefix(f"{INSTALLED}/"), path.name)
        for folder, patterns in project["tool"]["setuptools"]["data-files"].items()
        for pattern in patterns
        for path in ROOT.glob(pattern)
    }
    repository_files = {
        (str(path.parent.relative_to(ROOT)), path.name)
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file()
    }
    assert wheel_files == repository_files


def test_a_wheel_says_that_the_packages_are_typed(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for package in ("arr_coc", "stream"):
        (tmp_path / package).mkdir()
        for name in ("__init__.py", "py.typed"):
            shutil.copy(ROOT / package / name, tmp_path / package / name)
    subprocess.run(
        [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('.')"],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert {"arr_coc/py.typed", "stream/py.typed"} <= set(zipfile.ZipFile(wheel).namelist())
