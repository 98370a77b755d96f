"""Kernels compiled by nvcc, kept in the user's cache folder; and the PTX that is shipped for machines without nvcc."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from arr_coc.errors import BackendMissing
from arr_coc.shipped import kernel_folder

_log = logging.getLogger(__name__)

FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-Werror", "all-warnings")
"""Without contracted multiply-adds results are those of the CPU, bit for bit. scripts/build_kernels.sh has the same."""

TIMEOUT_S = 120


def source_hash() -> str:
    """SHA-256 of all sources, headers first. Raises BackendMissing where there are none."""
    folder = kernel_folder()
    files = [*sorted(folder.glob("*.cuh")), *sorted(folder.glob("*.cu"))]
    if not files:
        raise BackendMissing(
            f"texture.backend = cuda needs the kernels in {folder}, which are not here",
            "run from a checkout, or install the package anew",
        )
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def shipped(file: str) -> bytes:
    """The PTX of `kernels/<file>.cu`, for every device of compute capability 7.5 or newer.

    Raises BackendMissing where it is not here.
    """
    path = kernel_folder() / f"{file}.ptx"
    try:
        return path.read_bytes()
    except OSError as error:
        raise BackendMissing(
            f"texture.backend = cuda needs {path}", "run scripts/build_kernels.sh, or install nvcc"
        ) from error


def nvcc() -> str | None:
    """Where the CUDA compiler is: on PATH, or in $CUDA_HOME; None where it is not.

    $ARR_COC_NVCC names another one, and with "no" none.
    """
    named = os.environ.get("ARR_COC_NVCC")
    if named is not None:
        return shutil.which(named)
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/arr-coc-stream/kernels, or the same below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "arr-coc-stream" / "kernels"


def compiled(file: str, capability: tuple[int, int]) -> bytes | None:
    """Machine code of `kernels/<file>.cu` for one compute capability, from the cache or from nvcc.

    None where there is no nvcc, or it fails, which is logged: the shipped PTX serves then.
    """
    compiler = nvcc()
    if compiler is None:
        return None
    architecture = f"sm_{capability[0]}{capability[1]}"
    made_from = hashlib.sha256(" ".join((source_hash(), *FLAGS)).encode()).hexdigest()
    kept = cache_folder() / f"{file}-{made_from[:16]}-{architecture}.cubin"
    try:
        if not kept.is_file():
            _compile(compiler, kernel_folder() / f"{file}.cu", architecture, kept)
        return kept.read_bytes()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        _log.warning(
            "nvcc did not compile %s.cu for %s, so the shipped PTX serves: %s", file, architecture, said.strip()
        )
        return None


def _compile(compiler: str, source: Path, architecture: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *FLAGS, "-cubin", f"-arch={architecture}", "-o", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        os.replace(made, target)
