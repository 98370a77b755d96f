"""CUDA's compiler in a library (NVRTC), which comes with torch for CUDA: kernels for one device, without a toolkit."""

from __future__ import annotations

from typing import Any

from arr_coc.errors import BackendMissing, StoreError
from arr_coc.resources import kernel_folder

OPTIONS = ("--std=c++17", "--fmad=false")
"""As `FLAGS` of nvcc: without contracted multiply-adds results are those of the CPU, bit for bit."""


def nvrtc_version() -> str:
    """Return the version of the library. Raises BackendMissing without one."""
    major, minor = _call(_library(), "nvrtcVersion")
    return f"{major}.{minor}"


def compile_source(file: str, capability: tuple[int, int]) -> bytes:
    """Return machine code of `kernels/<file>.cu` for one compute capability.

    Raises BackendMissing without the library, or if it is older than the device; StoreError, with the compiler's first
    complaint, if it rejects the source.
    """
    library = _library()
    architecture = capability[0] * 10 + capability[1]
    if architecture not in _call(library, "nvrtcGetSupportedArchs"):
        raise BackendMissing(f"NVRTC {nvrtc_version()} does not know sm_{architecture}", "install a newer torch")
    folder = kernel_folder()
    headers = sorted(folder.glob("*.cuh"))
    source = (folder / f"{file}.cu").read_bytes()
    name = f"{file}.cu".encode()
    texts = [path.read_bytes() for path in headers]
    names = [path.name.encode() for path in headers]
    program = _call(library, "nvrtcCreateProgram", source, name, len(headers), texts, names)
    try:
        options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture=sm_{architecture}")]
        (status,) = library.nvrtcCompileProgram(program, len(options), options)
        if status:
            log = _text(library, program, "ProgramLog").decode(errors="replace").strip("\0\n ")
            first = (log.splitlines() or [status.name])[0]
            raise StoreError(f"NVRTC does not compile {file}.cu for sm_{architecture}: {first}")
        return _text(library, program, "CUBIN")
    finally:
        _call(library, "nvrtcDestroyProgram", program)


def _library() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendMissing("there is no NVRTC (libnvrtc.so)", "it comes with torch for CUDA") from error
    return nvrtc


def _call(library: Any, name: str, *arguments: Any) -> Any:
    status, *results = getattr(library, name)(*arguments)
    if status:
        raise StoreError(f"{name} failed ({status.name})")
    if len(results) == 1:
        return results[0]
    return tuple(results) or None


def _text(library: Any, program: Any, kind: str) -> bytes:
    """Return what the library has made of a program: its log or its code."""
    room = b" " * _call(library, f"nvrtcGet{kind}Size", program)
    _call(library, f"nvrtcGet{kind}", program, room)
    return room
