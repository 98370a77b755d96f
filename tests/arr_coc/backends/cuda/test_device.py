"""Origins of kernels: nvcc, the cache, the shipped PTX; and the errors without CUDA."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.backends.cuda import device
from arr_coc.backends.cuda import device as compiling
from arr_coc.backends.cuda import device as driver
from arr_coc.backends.cuda.device import LEGACY_STREAM, SIGNATURES, KernelSet
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.registry import open_store
from arr_coc.errors import BackendMissing, DeviceLost
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.tensors import format_of
from arr_coc.types import FramePlanes
from tests.cuda_on_cpu.machine import CpuMachine
from tests.support.video import random_planes, stamp

ROOT = Path(__file__).resolve().parents[4]
FILES = sorted({signature.file for signature in SIGNATURES.values()})

OPENED = device._opened
"""As it is before a fixture puts the CPU in its place."""

needs_nvcc = pytest.mark.skipif(compiling.nvcc() is None, reason="no nvcc here: install the CUDA toolkit")


@pytest.mark.parametrize("file", FILES)
def test_the_shipped_ptx_is_that_of_the_sources(file: str) -> None:
    first, text = compiling.shipped_ptx(file).decode().split("\n", 1)
    assert first.endswith(compiling.source_hash()), "run scripts/build_kernels.sh after a change of kernels/*.cu*"
    assert "\n.version 8.0\n.target sm_75\n" in text


def test_every_source_is_shipped_and_every_shipped_file_is_used() -> None:
    assert [path.stem for path in sorted(compiling.kernel_folder().glob("*.cu"))] == FILES
    assert [path.stem for path in sorted(compiling.kernel_folder().glob("*.ptx"))] == FILES


@needs_nvcc
@pytest.mark.slow
def test_the_script_builds_for_every_architecture(tmp_path: Path) -> None:
    """Warnings are errors; it also checks that the shipped PTX assembles for all of them."""
    subprocess.run(["sh", "scripts/build_kernels.sh", str(tmp_path)], cwd=ROOT, check=True, timeout=300)
    for file in FILES:
        built_ptx, shipped_ptx = (tmp_path / f"{file}.ptx").read_text(), compiling.shipped_ptx(file).decode()
        assert built_ptx.split("\n", 1)[0] == shipped_ptx.split("\n", 1)[0]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return compiling.cache_folder()


def test_a_compiler_may_be_named_or_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "nvcc-of-mine"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("ARR_COC_NVCC", str(compiler))
    assert compiling.nvcc() == str(compiler)
    monkeypatch.setenv("ARR_COC_NVCC", "no")
    assert compiling.nvcc() is None


def test_the_check_of_a_gpu_says_what_is_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    environment = os.environ | {"PYTHON": sys.executable}
    process = subprocess.run(
        ["sh", "scripts/gpu_check.sh", "nowhere.json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 1
    assert "texture.backend = cuda" in process.stderr
    assert process.stderr.endswith("gpu_check: no CUDA store here, see above\n")


@needs_nvcc
def test_nvcc_compiles_once_for_a_device(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compiling.compile_kernel("fetch", (9, 0))
    assert code is not None
    assert code[:4] == b"\x7fELF"
    (cubin,) = cache.iterdir()
    assert re.fullmatch(r"fetch-[0-9a-f]{16}-sm_90\.cubin", cubin.name)

    def unexpected(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(subprocess, "run", unexpected)
    assert compiling.compile_kernel("fetch", (9, 0)) == code
    for name, other in (("source_hash", lambda: "of other sources"), ("FLAGS", ("-O0",))):
        with monkeypatch.context() as patched:
            patched.setattr(compiling, name, other)
            with pytest.raises(AssertionError, match="compiled again"):
                compiling.compile_kernel("fetch", (9, 0))


def test_the_shipped_ptx_serves_if_nvcc_fails(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho 'unsupported architecture' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(compiling, "nvcc", lambda: str(broken))
    assert compiling.compile_kernel("fetch", (99, 0)) is None
    assert "fetch.cu for sm_990, so the shipped PTX is used: unsupported architecture" in caplog.text
    assert list(cache.iterdir()) == []


def test_without_nvcc_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARR_COC_NVCC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    assert compiling.nvcc() is None
    assert compiling.compile_kernel("fetch", (9, 0)) is None


def test_every_file_is_compiled_once(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[str] = []

    def compiled(file: str, capability: tuple[int, int]) -> None:
        files.append(file)

    monkeypatch.setattr(compiling, "compile_kernel", compiled)
    kernels = KernelSet((7, 5))
    with cuda_on_cpu.device.current():
        kernels.load()
        kernels.load()
    assert sorted(files) == FILES


def test_the_shipped_ptx_serves_if_the_driver_refuses_the_module(
    cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "compile_kernel", lambda file, capability: b"machine code of tomorrow")
    with cuda_on_cpu.device.current():
        KernelSet((7, 5)).load()
    assert "nvcc is newer than the driver" in caplog.text


def test_an_old_driver_is_reported_with_the_one_needed(cuda_on_cpu: CpuMachine) -> None:
    cuda_on_cpu.set_driver_version(11080)
    try:
        with (
            cuda_on_cpu.device.current(),
            pytest.raises(BackendMissing, match=r"UNSUPPORTED_PTX_VERSION.*update it to 525 or newer"),
        ):
            KernelSet((7, 5)).load()
    finally:
        cuda_on_cpu.set_driver_version(13000)


def test_kernels_that_are_not_here_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "kernel_folder", lambda: tmp_path)
    with pytest.raises(BackendMissing, match="run from a checkout"):
        compiling.source_hash()
    with pytest.raises(BackendMissing, match=r"fetch\.ptx; run scripts/build_kernels\.sh"):
        compiling.shipped_ptx("fetch")


def test_torch_without_cuda_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    planes = random_planes(np.random.default_rng(0), 32, 32)
    with pytest.raises(BackendMissing, match="was built without; install a CUDA build"):
        open_store(PlaneFormat.of(planes), "cuda")


def test_the_device_is_torchs_with_its_own_context(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    opened = OPENED.__wrapped__(2)
    assert opened.place == torch.device("cuda", 2)
    assert int(opened.context) == 3


def test_no_device_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendMissing, match="finds no CUDA device here; check the driver with nvidia-smi"):
        device.find_device()


def test_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendMissing, match="pip install cuda-bindings"):
        driver.bindings.__wrapped__()


def test_a_missing_driver_is_reported() -> None:
    """In a separate process, because a driver library is loaded once."""
    code = (
        "from arr_coc.errors import BackendMissing\n"
        "from arr_coc.backends.cuda import device\n"
        "try:\n    device.bindings()\nexcept BackendMissing as error:\n    print(error)\nelse:\n    print('a driver')\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, timeout=300
    )
    if process.stdout == "a driver\n":
        pytest.skip("this machine has a CUDA driver")
    assert "finds no CUDA driver; install NVIDIA's, 525 or newer" in process.stdout


@pytest.mark.parametrize("reason", ["NO_DEVICE", "SYSTEM_DRIVER_MISMATCH"])
def test_a_device_that_does_not_work_is_missing(reason: str) -> None:
    error = driver.failure("cuInit", f"CUDA_ERROR_{reason}")
    assert isinstance(error, BackendMissing)
    assert "check it with nvidia-smi" in str(error)


def test_a_function_that_the_driver_lacks_is_named(cuda_on_cpu: CpuMachine) -> None:
    with pytest.raises(BackendMissing, match="has no cuCtxGetId; update it to 525 or newer"):
        driver.call("cuCtxGetId", 0)


PTX_BYTES = {"u64": 8, "u32": 4, "f32": 4}


def in_ptx(kernel: str, file: str) -> list[int]:
    """Bytes of each parameter in the shipped PTX."""
    text = compiling.shipped_ptx(file).decode()
    entry = re.search(rf"\.entry {kernel}\((.*?)\)", text, re.DOTALL)
    assert entry, f"{kernel} is not in {file}.ptx"
    return [PTX_BYTES[kind] for kind in re.findall(r"\.param \.(?:align \d+ \.)?(\w+)", entry[1])]


@pytest.mark.parametrize("kernel", SIGNATURES)
def test_arguments_are_those_of_source_and_ptx(cuda_on_cpu: CpuMachine, kernel: str) -> None:
    """A wrong argument would be found on a device alone, and there as nonsense."""
    signature = SIGNATURES[kernel]
    sizes = [ctypes.sizeof(argument) for argument in signature.arguments]
    assert sizes == cuda_on_cpu.parameter_sizes(kernel)
    assert sizes == in_ptx(kernel, signature.file)


def test_blocks_are_as_large_as_the_kernels_are_compiled_for() -> None:
    for kernel, signature in SIGNATURES.items():
        text = compiling.shipped_ptx(signature.file).decode()
        match = re.search(rf"\.entry {kernel}\(.*?\)\s*\.maxntid (\d+)", text, re.DOTALL)
        assert match, kernel
        assert int(match[1]) == signature.threads


def everything(frames: list[npt.NDArray[np.uint8]]) -> list[npt.NDArray]:
    """Results of all kernels for two frames."""
    store = CudaStore(format_of(torch.from_numpy(frames[0])), Thresholds(), 20)
    store.update(FramePlanes("rgb", (frames[0],)), stamp(0))
    dirty = store.update_tensor(torch.from_numpy(frames[1]), stamp(1)).dirty
    with store.lease() as view:
        levels = [view.read(level).copy() for level in range(6)]
        regions = np.array([[0, 0, 0], [1, 0, 1], [2, 0, 0], [5, 0, 0]])
        patches = [view.patches(regions, dtype).view(torch.uint8).numpy() for dtype in (torch.uint8, torch.float16)]
        channels, entropy = view.texture_array()
    store.close()
    return [dirty, *levels, *patches, channels.numpy(), entropy.numpy()]


def test_results_do_not_hang_on_the_order_of_threads(cuda_on_cpu: CpuMachine) -> None:
    """A missing barrier shows if the last thread goes first."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (80, 110, 3), dtype=np.uint8)
    second = first.copy()
    second[40:] = rng.integers(0, 256, second[40:].shape)
    ascending = everything([first, second])
    with cuda_on_cpu.descending():
        descending = everything([first, second])
    for result, expected in zip(ascending, descending, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_write_outside_the_texture_is_caught(cuda_on_cpu: CpuMachine) -> None:
    """So that other tests would see one: the device on the CPU ends a launch as a real one does."""
    frame = np.zeros((64, 64, 3), np.uint8)
    store = CudaStore(format_of(torch.from_numpy(frame)), Thresholds(), 20)
    store.update(FramePlanes("rgb", (frame,)), stamp(0))
    tile, place = np.zeros((1, 32, 32, 3), np.uint8), np.array([[2, 0]], np.int32)
    launch = cuda_on_cpu.device.kernels.launch
    with (
        cuda_on_cpu.device.current(),
        store._texture.mapped() as texture,
        pytest.raises(DeviceLost, match="LAUNCH_FAILED"),
    ):
        launch("upload_tiles", (1, 1), LEGACY_STREAM, tile.ctypes.data, place.ctypes.data, *texture.surfaces)
    cuda_on_cpu.recover()
    store.close()
