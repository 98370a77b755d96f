"""The driver library that tests load in the place of NVIDIA's, built from `driver.cpp` with g++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.backends.cuda import device
from arr_coc.backends.cuda.device import LEGACY_STREAM, KernelSet, call
from arr_coc.resources import kernel_folder

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
QUIET = ("-Wno-unknown-pragmas", "-Wno-clobbered")

OUT_OF_MEMORY, LAUNCH_FAILED = 2, 719


def compiler() -> str:
    """Return the path of g++. Skips the test if it is missing."""
    path = shutil.which("g++")
    if path is None:
        pytest.skip("no g++ here to run kernels on the CPU: apt install g++")
    return path


def build(folder: Path) -> Path:
    """Compiles the library."""
    target = folder / "libcuda.so.1"
    includes = ("-I", str(kernel_folder()), "-I", str(HERE))
    command = [compiler(), *FLAGS, *QUIET, *includes, "-Wl,-soname,libcuda.so.1", "-o", str(target)]
    subprocess.run([*command, str(HERE / "driver.cpp"), "-ldl"], check=True)
    return target


class CpuMachine:
    """A GPU in the CPU's place: its library, what it counts, and the faults to inject.

    `stream` is the calling thread's current stream, any number but 0.
    """

    def __init__(self, library: Path) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._library.on_cpu_calls.restype = ctypes.c_char_p
        self._library.on_cpu_gl_texels.restype = ctypes.c_void_p
        self._local = threading.local()
        context = call("cuDevicePrimaryCtxRetain", 0)
        kernels = KernelSet((7, 5))
        self.device = device.CudaDevice(0, torch.device("cpu"), context, kernels, lambda: self.stream)

    @property
    def stream(self) -> int:
        return getattr(self._local, "stream", LEGACY_STREAM)

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        self._local.stream = stream
        try:
            yield
        finally:
            self._local.stream = LEGACY_STREAM

    @contextmanager
    def late(self) -> Iterator[None]:
        """Streams do nothing until a caller waits for them."""
        self._library.on_cpu_late(1)
        try:
            yield
        finally:
            with self.device.current():
                call("cuCtxSynchronize")
            self._library.on_cpu_late(0)

    @contextmanager
    def descending(self) -> Iterator[None]:
        """A block's threads run in the other order."""
        self._library.on_cpu_descending(1)
        try:
            yield
        finally:
            self._library.on_cpu_descending(0)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Another thread captures a graph meanwhile: waiting for the context is an error, and spoils the capture."""
        self._library.on_cpu_capture(1)
        try:
            yield
            assert not self._library.on_cpu_capture_broken(), "the capture was invalidated"
        finally:
            self._library.on_cpu_capture(0)

    @contextmanager
    def two_processes(self) -> Iterator[None]:
        """This process stands for two: it may open the IPC handles that it made."""
        self._library.on_cpu_two_processes(1)
        try:
            yield
        finally:
            self._library.on_cpu_two_processes(0)

    @contextmanager
    def largest_side(self, texels: int) -> Iterator[None]:
        """Textures have at most this width and height."""
        self._library.on_cpu_largest_side(texels)
        try:
            yield
        finally:
            self._library.on_cpu_largest_side(32768)

    @contextmanager
    def opengl_on(self, device: int) -> Iterator[None]:
        """OpenGL draws on the CUDA device of this number."""
        self._library.on_cpu_gl_device(device)
        try:
            yield
        finally:
            self._library.on_cpu_gl_device(0)

    def fail(self, name: str, status: int, after: int = 0) -> None:
        """The call of this name fails, after `after` calls that do not."""
        self._library.on_cpu_fail(name.encode(), status, after)

    def recover(self) -> None:
        self._library.on_cpu_recover()

    def set_driver_version(self, version: int) -> None:
        self._library.on_cpu_driver_version(version)

    def live(self) -> dict[str, int]:
        """How many of each kind are there and not freed."""
        kinds = ("array", "surface", "texture", "pinned", "event", "registered", "mapped", "memory", "opened")
        return {kind: self._library.on_cpu_live(kind.encode()) for kind in kinds}

    @contextmanager
    def calls(self) -> Iterator[list[str]]:
        """The names of the driver's functions that are called meanwhile; kernels with theirs."""
        calls: list[str] = []
        self._library.on_cpu_forget_calls()
        yield calls
        calls += self._library.on_cpu_calls().decode().splitlines()

    def parameter_sizes(self, kernel: str) -> list[int]:
        """Bytes of each of a kernel's parameters, as its source has them."""
        sizes = (ctypes.c_size_t * 32)()
        count = self._library.on_cpu_parameters(kernel.encode(), sizes)
        return list(sizes)[:count]

    def add_gl_texture(self, name: int, width: int, height: int, levels: int) -> None:
        self._library.on_cpu_gl_texture(name, width, height, levels)

    def gl_texels(self, name: int, level: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """A GL texture's level: uint8 [height, width, 4]."""
        address = self._library.on_cpu_gl_texels(name, level)
        return np.ctypeslib.as_array((ctypes.c_uint8 * (width * height * 4)).from_address(address)).reshape(
            height, width, 4
        )


def install(machine: CpuMachine, set_attribute: Callable[[object, str, object], None]) -> None:
    """Make torch and the product take the machine for a CUDA device, by `set_attribute`."""
    set_attribute(torch.version, "cuda", "on the CPU")
    set_attribute(torch.cuda, "is_available", lambda: True)
    set_attribute(torch.cuda, "current_device", lambda: 0)
    set_attribute(device, "_opened", lambda index: machine.device)
    set_attribute(device, "nvcc", lambda: None)


_machine: CpuMachine | None = None


def machine(folder: Path) -> CpuMachine:
    """The one of this process, because a driver library is loaded once."""
    global _machine
    if _machine is None:
        _machine = CpuMachine(build(folder))
    return _machine
