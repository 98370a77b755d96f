"""The kernels of `kernels/*.cu`: what each takes, and how it is loaded and launched."""

from __future__ import annotations

import ctypes
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from arr_coc.errors import BackendMissing
from arr_coc.ops.cuda import compiling
from arr_coc.ops.cuda.driver import call

_log = logging.getLogger(__name__)

POINTER, HANDLE, INT, LONG, FLOAT = (
    ctypes.c_void_p,
    ctypes.c_ulonglong,
    ctypes.c_int,
    ctypes.c_longlong,
    ctypes.c_float,
)

_FRAME = (POINTER, LONG, LONG, LONG, INT, INT)
_SURFACES = (HANDLE,) * 6


@dataclass(frozen=True, slots=True)
class Signature:
    """The file that a kernel lies in, the types of its arguments, and the threads of its blocks."""

    file: str
    arguments: tuple[Any, ...]
    threads: int = 256


SIGNATURES = {
    "upload_tiles": Signature("upload", (POINTER, POINTER, *_SURFACES)),
    "upload_frame": Signature("upload", (*_FRAME, POINTER, *_SURFACES)),
    "gather_bytes": Signature("gather", (HANDLE, POINTER, INT, INT, POINTER)),
    "gather_halves": Signature("gather", (HANDLE, POINTER, INT, INT, POINTER, POINTER)),
    "fetch_fine": Signature("fetch", (HANDLE, POINTER, INT, INT, POINTER)),
    "fetch_coarse": Signature("fetch", (HANDLE, POINTER, INT, INT, POINTER)),
    "compare_frame": Signature("difference", (*_FRAME, HANDLE, FLOAT, FLOAT, POINTER)),
    "tile_channels": Signature("channels", (HANDLE, POINTER, POINTER, POINTER, POINTER)),
    "cluster_distance": Signature("channels", (HANDLE, INT, INT, POINTER)),
    "sample_points": Signature("sample", (HANDLE, POINTER, INT, INT, INT, POINTER)),
    "sample_footprints": Signature("sample", (HANDLE, POINTER, POINTER, FLOAT, INT, INT, INT, POINTER)),
}


class Kernels:
    """The kernels of one device, loaded when they are first wanted, for all stores."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability
        self._compiled: dict[str, bytes | None] = {}
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        self._loading = threading.Lock()

    def load(self) -> None:
        """Loads all of them, in the current context; what nvcc has to compile it compiles at the same time.

        Raises BackendMissing where one cannot be had.
        """
        with self._loading:
            files = sorted({signature.file for signature in SIGNATURES.values()} - self._compiled.keys())
            with ThreadPoolExecutor(len(SIGNATURES)) as compilers:
                self._compiled.update(zip(files, compilers.map(self._compile, files), strict=True))
        for name, signature in SIGNATURES.items():
            if name not in self._functions:
                self._function(name, signature.file)

    def launch(self, name: str, grid: tuple[int, int], stream: int, *values: float) -> None:
        """Runs a kernel over (columns, rows) of blocks, in the current context in the order of `stream`.

        `values` are pointers, handles and numbers, as the kernel takes them. Raises BackendMissing where it cannot be
        loaded, DeviceLost where the device gave up.
        """
        signature = SIGNATURES[name]
        assert len(values) == len(signature.arguments), f"{name} takes {len(signature.arguments)} arguments"
        function = self._functions.get(name) or self._function(name, signature.file)
        arguments = (values, signature.arguments)
        call("cuLaunchKernel", function, *grid, 1, signature.threads, 1, 1, 0, stream, arguments, 0)

    def _function(self, name: str, file: str) -> Any:
        with self._loading:
            if file not in self._modules:
                self._modules[file] = self._module(file)
            self._functions[name] = call("cuModuleGetFunction", self._modules[file], name.encode())
            return self._functions[name]

    def _module(self, file: str) -> Any:
        """What nvcc made for this very device, or else the shipped PTX, which the driver compiles."""
        if file not in self._compiled:
            self._compiled[file] = self._compile(file)
        if (compiled := self._compiled[file]) is not None:
            try:
                return _loaded(compiled)
            except BackendMissing as error:
                _log.warning("nvcc is newer than the driver, so the shipped PTX serves: %s", error)
        return _loaded(compiling.shipped(file))

    def _compile(self, file: str) -> bytes | None:
        return compiling.compiled(file, self._capability)


def _loaded(image: bytes) -> Any:
    memory = ctypes.create_string_buffer(image)
    return call("cuModuleLoadData", ctypes.addressof(memory))
