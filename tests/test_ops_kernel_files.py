"""Kernels are found in a checkout and in an installation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from arr_coc.ops import kernel_files
from arr_coc.ops.kernel_files import INSTALLED, kernel_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def test_a_checkout_has_its_own() -> None:
    assert kernel_folder() == ROOT / "kernels"


def test_an_installation_is_not_misled_by_a_package_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_files, "CHECKOUT", tmp_path)
    monkeypatch.setattr("sysconfig.get_path", lambda name: {"data": "/environment"}[name])
    assert kernel_folder() == Path("/environment") / INSTALLED


def test_a_wheel_takes_them_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["setuptools"]["data-files"] == {INSTALLED: ["kernels/*"]}
