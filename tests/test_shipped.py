"""Kernels, presets and the bundled model are found in a checkout and in an installation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from arr_coc import shipped
from arr_coc.shipped import INSTALLED, bundled_folder, kernel_folder, preset_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

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
    taken = {
        (folder.removeprefix(f"{INSTALLED}/"), path.name)
        for folder, patterns in project["tool"]["setuptools"]["data-files"].items()
        for pattern in patterns
        for path in ROOT.glob(pattern)
    }
    kept = {
        (str(path.parent.relative_to(ROOT)), path.name)
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file()
    }
    assert taken == kept
