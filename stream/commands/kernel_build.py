"""Build of a checkout's compiled kernels, once, before the first run that needs them.

An installed package is built by pip. A checkout that was only copied or cloned has no kernels, and a run without them
works at a quarter of the speed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arr_coc.resources import CHECKOUT
from arr_coc.texture.kernels import SETTING, is_checkout
from stream.commands.outcome import report_note

KERNELS = (
    "texture/store/tiles",
    "relevance/scores",
    "video/motion_kernel",
    "qwen/small_weights/linear",
    "qwen/attention_kernel",
)
"""Kernels below the folder of `arr_coc`, without their suffix, as setup.py names them."""

LIMIT_S = 600.0
"""Time limit of a build, which takes half a minute on two idle cores."""

BUILD_FOLDER = "build"
LOCK = "kernels.lock"
FAILURE = "kernels.failed"
"""Files in the build folder: held by the start that builds, and what the last failed build was made from."""


def build_kernels(root: Path = CHECKOUT) -> None:
    """Build the kernels that a checkout lacks, if a C++ compiler is there; another start that does so is waited for.

    A kernel appears whole or not at all. A failed build is reported in a note, at each start, and not tried again until
    the sources or the compiler change; the run goes on without kernels.
    """
    compiler = _compiler()
    if os.environ.get(SETTING) == "reference" or compiler is None or not is_checkout(root) or not _missing(root):
        return
    build_inputs = "\n".join([compiler, *(f"{path.name} {path.stat().st_mtime_ns}" for path in _sources(root))])
    try:
        with _lock(root / BUILD_FOLDER):
            if _missing(root):
                problem = _build_once(root, build_inputs)
            else:
                problem = None
    except OSError as error:
        problem = f"{error.filename or root}: {error.strerror}"
    if problem is not None:
        report_note(f"the compiled kernels could not be built: {problem}")


def _build_once(root: Path, build_inputs: str) -> str | None:
    """Build, unless that failed before with the same sources and compiler; returns the error."""
    failure = root / BUILD_FOLDER / FAILURE
    if failure.is_file():
        problem, _, failed_inputs = failure.read_text("utf-8").partition("\n")
        if failed_inputs == build_inputs:
            return f"{problem}; remove {failure} to try again"
    report_note("building the compiled kernels of this checkout, once; this may take a minute")
    error = _build(root)
    if error is not None:
        failure.write_text(f"{error}\n{build_inputs}", "utf-8")
    return error


def _build(root: Path) -> str | None:
    """Build into a temporary folder, and move the result into place; returns the error."""
    from stream.runtime.child import python_command, python_environment  # sockets, which a check does not need

    with tempfile.TemporaryDirectory(dir=root / BUILD_FOLDER) as folder:
        library = Path(folder, "lib")
        places = ("--build-lib", str(library), "--build-temp", str(Path(folder, "temp")))
        try:
            run = subprocess.run(
                python_command("setup", "build_ext", *places, "--parallel", str(len(KERNELS))),
                cwd=root,
                env=python_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took longer than {LIMIT_S:.0f} s"
        for shared_object in library.rglob("*.so"):
            os.replace(shared_object, root / shared_object.relative_to(library))
    if not _missing(root):
        return None
    lines = [line.strip() for line in run.stderr.decode(errors="replace").splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no reason is given")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a checkout's builds; the system takes it back if the process dies. Raises OSError."""
    folder.mkdir(exist_ok=True)
    with (folder / LOCK).open("w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report_note("another start is building the compiled kernels; waiting for it")
            fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


def _compiler() -> str | None:
    """Return the path of the C++ compiler that setup.py finds; None without one."""
    command = os.environ.get("CXX", "").split()
    return next(filter(None, map(shutil.which, [*command[:1], "g++", "c++", "clang++"])), None)


def _missing(root: Path) -> bool:
    return not all((root / "arr_coc" / f"{kernel}.abi3.so").is_file() for kernel in KERNELS)


def _sources(root: Path) -> list[Path]:
    return [root / "setup.py", *sorted((root / "kernels").glob("*.cpp")), *sorted((root / "kernels").glob("*.h"))]
