"""Kernels of a checkout are built once, whole or not at all, and a failure is reported."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from arr_coc.qwen import compiled_attention
from arr_coc.qwen.small_weights import kernel as linear_kernel
from arr_coc.relevance import kernel as scores
from arr_coc.resources import CHECKOUT
from arr_coc.texture import kernels
from arr_coc.texture.kernels import SETTING
from arr_coc.texture.store import native
from arr_coc.video import compiled_motion
from stream.commands import kernel_build
from stream.commands.kernel_build import BUILD_FOLDER, FAILURE, KERNELS, LOCK, build_kernels
from stream.runtime import child

SETUP = """
import sys
from pathlib import Path
with open("builds.txt", "a") as builds:
    builds.write("built\\n")
if Path("kernels/tiles.cpp").read_text() == "broken":
    sys.exit("kernels/tiles.cpp:1: error: it is broken")
library = Path(sys.argv[sys.argv.index("--build-lib") + 1])
for kernel in {kernels!r}:
    path = library / "arr_coc" / f"{{kernel}}.abi3.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"kernel")
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose setup.py writes kernels without compiling anything."""
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(kernel_build.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(child, "ROOT", str(tmp_path / "checkout"))
    root = tmp_path / "checkout"
    for kernel in KERNELS:
        (root / "arr_coc" / kernel).parent.mkdir(parents=True, exist_ok=True)
    (root / "kernels").mkdir()
    (root / "kernels" / "tiles.cpp").write_text("fine")
    (root / "setup.py").write_text(SETUP.format(kernels=KERNELS))
    return root


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reported: list[str] = []
    monkeypatch.setattr(kernel_build, "report_note", reported.append)
    return reported


def builds(root: Path) -> int:
    record = root / "builds.txt"
    return len(record.read_text().splitlines()) if record.exists() else 0


def test_the_kernels_are_those_that_are_loaded() -> None:
    loaded = [native.kernel_path(), scores.kernel_path(), compiled_motion.kernel_path()]
    loaded += [linear_kernel.kernel_path(), compiled_attention.kernel_path()]
    assert [CHECKOUT / "arr_coc" / f"{kernel}.abi3.so" for kernel in KERNELS] == loaded


def test_missing_kernels_are_built_once(checkout: Path, notes: list[str]) -> None:
    build_kernels(checkout)
    assert all((checkout / "arr_coc" / f"{kernel}.abi3.so").read_bytes() == b"kernel" for kernel in KERNELS)
    assert [path.name for path in (checkout / BUILD_FOLDER).iterdir()] == [LOCK]
    build_kernels(checkout)
    assert (builds(checkout), notes) == (
        1,
        ["building the compiled kernels of this checkout, once; this may take a minute"],
    )


def test_a_failed_build_is_reported_and_not_repeated_until_something_changes(checkout: Path, notes: list[str]) -> None:
    (checkout / "kernels" / "tiles.cpp").write_text("broken")
    for _ in range(2):
        build_kernels(checkout)
    failed = "the compiled kernels could not be built: kernels/tiles.cpp:1: error: it is broken"
    assert notes[1:] == [failed, f"{failed}; remove {checkout / BUILD_FOLDER / FAILURE} to try again"]
    assert builds(checkout) == 1
    (checkout / "kernels" / "tiles.cpp").write_text("fine")
    (checkout / "kernels" / "tiles.h").write_text("another source")
    build_kernels(checkout)
    assert (builds(checkout), len(notes)) == (2, 4)


def test_a_build_without_an_end_is_given_up(checkout: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("setup.py", timeout)

    monkeypatch.setattr(kernel_build.subprocess, "run", endless)
    build_kernels(checkout)
    assert notes[1:] == ["the compiled kernels could not be built: it took longer than 600 s"]


def test_a_start_waits_for_another_one_that_builds(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / BUILD_FOLDER).mkdir()
    with (checkout / BUILD_FOLDER / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def other_finishes(note: str) -> None:
            assert note == "another start is building the compiled kernels; waiting for it"
            for kernel in KERNELS:
                (checkout / "arr_coc" / f"{kernel}.abi3.so").write_bytes(b"its kernel")
            fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr(kernel_build, "report_note", other_finishes)
        build_kernels(checkout)
    assert builds(checkout) == 0


def test_a_checkout_that_cannot_be_written_to_is_reported(checkout: Path, notes: list[str]) -> None:
    (checkout / BUILD_FOLDER).write_text("a file in its place")
    build_kernels(checkout)
    assert notes == [f"the compiled kernels could not be built: {checkout / BUILD_FOLDER}: File exists"]


def test_nothing_is_built_without_a_compiler_or_a_checkout_or_for_the_reference(
    checkout: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(kernel_build.shutil, "which", lambda name: None)
        build_kernels(checkout)
    with monkeypatch.context() as context:
        context.setenv(SETTING, "reference")
        build_kernels(checkout)
    (checkout / "setup.py").unlink()
    build_kernels(checkout)
    assert (builds(checkout), notes, (checkout / BUILD_FOLDER).exists()) == (0, [], False)


def test_the_remedy_fits_a_checkout_and_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"setup.py build_ext --inplace (in {CHECKOUT})" in kernels.REMEDY
    monkeypatch.setattr(kernels, "is_checkout", lambda: False)
    assert "then: pip install --force-reinstall --no-deps" in kernels._remedy()
