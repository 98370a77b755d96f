"""CUDA device: driver calls, and kernels that are compiled, loaded and launched."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from arr_coc.errors import BackendMissing, DeviceLost, ShapeError, StoreError
from arr_coc.resources import kernel_folder

_log = logging.getLogger(__name__)

FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-Werror", "all-warnings")
"""Without contracted multiply-adds results are those of the CPU, bit for bit. scripts/build_kernels.sh has the same."""


def source_hash() -> str:
    """SHA-256 of all sources, headers first. Raises BackendMissing if none is installed."""
    folder = kernel_folder()
    files = [*sorted(folder.glob("*.cuh")), *sorted(folder.glob("*.cu"))]
    if not files:
        raise BackendMissing(
            f"texture.backend = cuda needs the kernels in {folder}, which are not here",
            "run from a checkout, or install the package anew",
        )
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def shipped_ptx(file: str) -> bytes:
    """Return the PTX of `kernels/<file>.cu`, for every device of compute capability 7.5 or newer.

    Raises BackendMissing if it is not installed.
    """
    path = kernel_folder() / f"{file}.ptx"
    try:
        return path.read_bytes()
    except OSError as error:
        raise BackendMissing(
            f"texture.backend = cuda needs {path}", "run scripts/build_kernels.sh, or install nvcc"
        ) from error


def nvcc() -> str | None:
    """Return the path of the CUDA compiler, on PATH or in $CUDA_HOME; None if there is none.

    $ARR_COC_NVCC names another one, and with "no" none.
    """
    override = os.environ.get("ARR_COC_NVCC")
    if override is not None:
        return shutil.which(override)
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/arr-coc-stream/kernels, or the same below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "arr-coc-stream" / "kernels"


def compile_kernel(file: str, capability: tuple[int, int]) -> bytes | None:
    """Machine code of `kernels/<file>.cu` for one compute capability, from the cache or from nvcc.

    None if nvcc is missing or fails, which is logged: the shipped PTX serves then.
    """
    compiler = nvcc()
    if compiler is None:
        return None
    architecture = f"sm_{capability[0]}{capability[1]}"
    made_from = hashlib.sha256(" ".join((source_hash(), *FLAGS)).encode()).hexdigest()
    cubin = cache_folder() / f"{file}-{made_from[:16]}-{architecture}.cubin"
    try:
        if not cubin.is_file():
            _compile(compiler, kernel_folder() / f"{file}.cu", architecture, cubin)
        return cubin.read_bytes()
    except (OSError, subprocess.SubprocessError) as error:
        message = getattr(error, "stderr", None) or str(error)
        _log.warning(
            "nvcc did not compile %s.cu for %s, so the shipped PTX is used: %s", file, architecture, message.strip()
        )
        return None


def _compile(compiler: str, source: Path, architecture: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        command = [compiler, *FLAGS, "-cubin", f"-arch={architecture}", "-o", str(output), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        os.replace(output, target)


OLDEST_DRIVER = 525
"""The first NVIDIA driver that reads the shipped PTX (ISA 8.0, CUDA 12.0)."""

_NO_DEVICE = (
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_INVALID_DEVICE",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "CUDA_ERROR_SYSTEM_NOT_READY",  # no fabric manager yet, on servers with NVSwitch
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",  # another process has it for itself
    "CUDA_ERROR_DEVICE_NOT_LICENSED",
    "CUDA_ERROR_STUB_LIBRARY",  # the toolkit's, for linking only
)
_WRONG_CODE = (
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_JIT_COMPILATION_DISABLED",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
)
_BROKEN_CONTEXT = (
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK",
)
"""Errors after which the primary context, which torch uses too, takes no call any more (CUDA Driver API, CUresult)."""

OUT_OF_MEMORY = "the GPU is out of memory; close other programs on it, or choose texture.backend = cpu"


@lru_cache(maxsize=1)
def bindings() -> Any:
    """cuda-bindings' driver module, with the driver loaded. Raises BackendMissing if either is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendMissing("texture.backend = cuda needs cuda-bindings", "pip install cuda-bindings") from error
    try:
        status = driver.cuInit(0)[0]
    except (RuntimeError, OSError) as error:
        raise BackendMissing(
            "texture.backend = cuda finds no CUDA driver",
            f"install NVIDIA's, {OLDEST_DRIVER} or newer, or choose texture.backend = cpu",
        ) from error
    if status:
        raise failure("cuInit", status.name)
    started_in()
    return driver


@lru_cache(maxsize=1)
def started_in() -> int:
    """Return the process that loaded the driver."""
    return os.getpid()


def call(name: str, *arguments: Any) -> Any:
    """Call one function of the driver and return its results beside its status: None, one value or a tuple.

    Raises BackendMissing if the driver or the device is not fit for it, and in a process that was forked from the one
    that loaded the driver; DeviceLost if the device failed.
    """
    driver = bindings()
    if started_in() != os.getpid():
        raise BackendMissing(
            "CUDA was started before this process was forked, and does not work here",
            "start processes by spawn or forkserver, or use CUDA in one of them only",
        )
    try:
        status, *results = getattr(driver, name)(*arguments)
    except (KeyError, ValueError) as error:
        raise DeviceLost(f"the GPU failed in {name}, with a code that cuda-bindings does not know: {error}") from error
    except RuntimeError as error:
        if isinstance(error, StoreError):
            raise
        raise BackendMissing(f"the CUDA driver has no {name}", f"update it to {OLDEST_DRIVER} or newer") from error
    if status:
        raise failure(name, status.name)
    if len(results) == 1:
        return results[0]
    return tuple(results) or None


def failure(name: str, reason: str) -> StoreError:
    """Return the error for a call that failed; `reason` is the driver's name for it."""
    if reason == "CUDA_ERROR_OUT_OF_MEMORY":
        return DeviceLost(f"{OUT_OF_MEMORY} ({name})")
    if reason in _NO_DEVICE:
        return BackendMissing(
            f"texture.backend = cuda finds no device that works ({reason})", "check it with nvidia-smi"
        )
    if reason in _WRONG_CODE:
        return BackendMissing(
            f"the CUDA driver rejects the kernels ({reason})", f"update it to {OLDEST_DRIVER} or newer"
        )
    if reason in _BROKEN_CONTEXT:
        return DeviceLost(
            f"the GPU failed in {name} ({reason}), and this process cannot use it any more; start it again, or choose "
            "texture.backend = cpu"
        )
    return DeviceLost(f"the GPU failed in {name} ({reason}); open a new store, or choose texture.backend = cpu")


@contextmanager
def torch_failures(activity: str) -> Iterator[None]:
    """Convert the errors of torch's work on the device into DeviceLost."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceLost(f"{OUT_OF_MEMORY} ({activity})") from error
    except torch.AcceleratorError as error:
        raise DeviceLost(f"the GPU failed while {activity} ({str(error).splitlines()[0]})") from error


POINTER = ctypes.c_void_p
HANDLE = ctypes.c_ulonglong
INT = ctypes.c_int
LONG = ctypes.c_longlong
FLOAT = ctypes.c_float

_FRAME = (POINTER, LONG, LONG, LONG, INT, INT)
_SURFACES = (HANDLE,) * 6


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """The file that a kernel lies in, the types of its arguments, and the threads of its blocks."""

    file: str
    arguments: tuple[Any, ...]
    threads: int = 256


SIGNATURES = {
    "upload_tiles": KernelSignature("upload", (POINTER, POINTER, *_SURFACES)),
    "upload_frame": KernelSignature("upload", (*_FRAME, POINTER, *_SURFACES)),
    "gather_bytes": KernelSignature("gather", (HANDLE, POINTER, POINTER, INT, INT, INT, POINTER)),
    "gather_halves": KernelSignature("gather", (HANDLE, POINTER, POINTER, INT, INT, INT, POINTER, POINTER)),
    "fetch_fine": KernelSignature("fetch", (HANDLE, POINTER, INT, INT, POINTER)),
    "fetch_coarse": KernelSignature("fetch", (HANDLE, POINTER, INT, INT, POINTER)),
    "compare_frame": KernelSignature("difference", (*_FRAME, HANDLE, FLOAT, FLOAT, POINTER)),
    "tile_channels": KernelSignature("channels", (HANDLE, POINTER, POINTER, POINTER, POINTER)),
    "cluster_distance": KernelSignature("channels", (HANDLE, INT, INT, POINTER)),
    "sample_points": KernelSignature("sample", (HANDLE, POINTER, INT, INT, INT, POINTER)),
    "sample_footprints": KernelSignature("sample", (HANDLE, POINTER, POINTER, FLOAT, INT, INT, INT, POINTER)),
}


class KernelSet:
    """The kernels of one device, loaded when they are first wanted, for all stores; `capability` is the device's."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self._cubins: dict[str, bytes | None] = {}
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        self._load_lock = threading.Lock()

    def load(self) -> None:
        """Load all of them, in the current context; sources that need nvcc are compiled at the same time.

        Raises BackendMissing if one cannot be loaded.
        """
        with self._load_lock:
            files = sorted({signature.file for signature in SIGNATURES.values()} - self._cubins.keys())
            with ThreadPoolExecutor(len(SIGNATURES)) as compilers:
                self._cubins.update(zip(files, compilers.map(self._compile, files), strict=True))
        for name, signature in SIGNATURES.items():
            if name not in self._functions:
                self._function(name, signature.file)

    def use(self, file: str, image: bytes) -> None:
        """Run the kernels of `kernels/<file>.cu` from this code from here on. In the current context.

        Raises BackendMissing if the driver rejects it.
        """
        module = _loaded(image)
        names = [name for name, signature in SIGNATURES.items() if signature.file == file]
        with self._load_lock:
            self._modules[file] = module
            self._functions.update({name: call("cuModuleGetFunction", module, name.encode()) for name in names})

    def launch(self, name: str, grid: tuple[int, int], stream: int, *values: float) -> None:
        """Run a kernel in the current context.

        Args:
            name: The kernel's name in its source.
            grid: (columns, rows) of blocks.
            stream: Handle of the stream in whose order it runs.
            *values: Pointers, handles and numbers, as the kernel takes them.

        Raises:
            BackendMissing: The kernel cannot be loaded.
            DeviceLost: The device failed.
        """
        signature = SIGNATURES[name]
        assert len(values) == len(signature.arguments), f"{name} takes {len(signature.arguments)} arguments"
        function = self._functions.get(name) or self._function(name, signature.file)
        arguments = (values, signature.arguments)
        call("cuLaunchKernel", function, *grid, 1, signature.threads, 1, 1, 0, stream, arguments, 0)

    def _function(self, name: str, file: str) -> Any:
        with self._load_lock:
            if file not in self._modules:
                self._modules[file] = self._module(file)
            self._functions[name] = call("cuModuleGetFunction", self._modules[file], name.encode())
            return self._functions[name]

    def _module(self, file: str) -> Any:
        """Return the code that nvcc made for this device, else the shipped PTX, which the driver compiles."""
        if file not in self._cubins:
            self._cubins[file] = self._compile(file)
        if (cubin := self._cubins[file]) is not None:
            try:
                return _loaded(cubin)
            except BackendMissing as error:
                _log.warning("nvcc is newer than the driver, so the shipped PTX is used: %s", error)
        return _loaded(shipped_ptx(file))

    def _compile(self, file: str) -> bytes | None:
        return compile_kernel(file, self.capability)


def _loaded(image: bytes) -> Any:
    memory = ctypes.create_string_buffer(image)
    return call("cuModuleLoadData", ctypes.addressof(memory))


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU: torch's device for tensors, the context that both share, and the kernels for it.

    `stream` gives the calling thread's current stream, as the driver's handle, which is never 0.
    """

    index: int
    place: torch.device
    context: Any
    kernels: KernelSet
    stream: Callable[[], int]

    @property
    def uuid(self) -> bytes:
        """The device's UUID, 16 bytes: the same in every process."""
        return _uuid(self.index)

    @contextmanager
    def current(self) -> Iterator[int]:
        """Make the context the thread's current one meanwhile; yields the thread's current stream."""
        call("cuCtxPushCurrent", self.context)
        try:
            yield self.stream()
        finally:
            call("cuCtxPopCurrent")

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor on the device, not filled. Raises DeviceLost if memory is short or the device failed."""
        with torch_failures(f"making a tensor {list(shape)}"):
            return torch.empty(shape, dtype=dtype, device=self.place)

    def check_size(self, width_px: int, height_px: int) -> None:
        """Raise BackendMissing if the device has no mipmapped textures of this size, with surfaces to write them."""
        most = bindings().CUdevice_attribute
        for kind in ("TEXTURE2D_MIPMAPPED", "SURFACE2D"):
            names = (f"CU_DEVICE_ATTRIBUTE_MAXIMUM_{kind}_{side}" for side in ("WIDTH", "HEIGHT"))
            width, height = (int(call("cuDeviceGetAttribute", getattr(most, name), self.index)) for name in names)
            if width_px > width or height_px > height:
                raise BackendMissing(
                    f"CUDA device {self.index} takes textures of up to {width}x{height} texels, got "
                    f"{width_px}x{height_px}",
                    "choose a smaller picture or texture.backend = cpu",
                )

    def check(self, tensor: torch.Tensor, name: str) -> None:
        """Raise ShapeError if a tensor lies elsewhere."""
        if tensor.device != self.place:
            raise ShapeError(
                f"{name} lies on {tensor.device} and the texture on {self.place}; move it with .to({str(self.place)!r})"
            )


def find_device() -> CudaDevice:
    """Return the device that is torch's current one in this thread.

    Raises BackendMissing if torch was built without CUDA, or there is no device or driver.
    """
    if torch.version.cuda is None:
        raise BackendMissing(
            f"texture.backend = cuda needs torch with CUDA, and this one ({torch.__version__}) was built without",
            "install a CUDA build, or choose texture.backend = cpu",
        )
    if not torch.cuda.is_available():
        raise BackendMissing(
            "texture.backend = cuda: torch finds no CUDA device here",
            "check the driver with nvidia-smi, or choose texture.backend = cpu",
        )
    try:
        index = torch.cuda.current_device()
    except RuntimeError as error:  # as in a process that was forked after torch had started CUDA
        reason = str(error).splitlines()[0]
        raise BackendMissing(
            f"texture.backend = cuda: torch cannot start CUDA here ({reason})", "choose texture.backend = cpu"
        ) from error
    return _opened(index)


def device_at(index: int) -> CudaDevice:
    """Return the device of this number. Raises BackendMissing as `find_device`, and if no device has this number."""
    find_device()
    count = call("cuDeviceGetCount")
    if not 0 <= index < count:
        raise BackendMissing(f"there is no CUDA device {index}: {count} found", "check them with nvidia-smi")
    return _opened(index)


def device_by_uuid(uuid: bytes) -> CudaDevice | None:
    """Return the device of a UUID among those that this process sees; None if it is absent.

    Raises BackendMissing if there is no device or driver at all.
    """
    find_device()
    for index in range(call("cuDeviceGetCount")):
        if _uuid(index) == uuid:
            return _opened(index)
    return None


def _uuid(index: int) -> bytes:
    # Of two parts of a GPU (MIG), the first version gives the GPU's; since CUDA 13 the name is the second version's.
    second = "cuDeviceGetUuid_v2"
    if hasattr(bindings(), second):
        name = second
    else:
        name = "cuDeviceGetUuid"
    return bytes(call(name, call("cuDeviceGet", index)).bytes)


LEGACY_STREAM = 1
"""CU_STREAM_LEGACY of cuda.h: torch's default stream. Stream 0 is another one if cuda-bindings has default streams per
thread (CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM)."""


@cache
def _opened(index: int) -> CudaDevice:
    """One for all stores; its context lasts as long as the process, as torch's does."""
    torch.cuda.init()
    place = torch.device("cuda", index)
    context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", index))
    kernels = KernelSet(torch.cuda.get_device_capability(index))
    return CudaDevice(
        index, place, context, kernels, lambda: torch.cuda.current_stream(place).cuda_stream or LEGACY_STREAM
    )
