"""Every check of the GPU on one that is emulated on the CPU: what is right works, what is wrong is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.backends.cuda import device
from arr_coc.backends.cuda.device import SIGNATURES, CudaDevice, KernelSet
from arr_coc.qwen.batching import captured
from stream.extensions.doctor.gpu import kernels, timing
from stream.extensions.doctor.gpu.checks import CHECKS, CheckReport, GpuCheck
from stream.extensions.doctor.gpu.child import perform
from stream.extensions.doctor.gpu.runner import CheckSettings
from tests.cuda_on_cpu import doctor as emulated
from tests.cuda_on_cpu.gl_sharing import share_textures
from tests.cuda_on_cpu.machine import LAUNCH_FAILED, OUT_OF_MEMORY, CpuMachine
from tests.support.stores import require

BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def machine(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> CpuMachine:
    """The emulated device, in this process and in those that checks start."""
    monkeypatch.setattr(captured, "cuda_graph", emulated.run_first)
    monkeypatch.setattr(timing, "WARM_UP", 1)
    monkeypatch.setattr(CheckSettings, "module", "tests.cuda_on_cpu.doctor")
    monkeypatch.setattr(CheckSettings, "patience", emulated.PATIENCE)
    monkeypatch.setenv(emulated.LIBRARY, str(cuda_on_cpu.path))
    return cuda_on_cpu


def run(check: GpuCheck) -> CheckReport:
    return perform(check.function, check.argument)


TAKING_LONGER = ("time allocate", "time hops", "time model")
ELSEWHERE = (
    "driver",
    "opengl",
    "shaders",
    "store gl",
    "layers gl",
    "choice gl",
    "store glcuda",
    "time gl",
    "gl against cpu",
    "time interop",
    *TAKING_LONGER,
)
IN_SECONDS = [name for name in BY_NAME if name not in ELSEWHERE]


@pytest.mark.parametrize("name", [*IN_SECONDS, *(pytest.param(name, marks=pytest.mark.slow) for name in TAKING_LONGER)])
def test_a_device_that_works_passes(machine: CpuMachine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "interop":
        require("gl")
        share_textures(machine, monkeypatch.setattr)
    before = machine.live()
    report = run(BY_NAME[name])
    assert (report.state, report.traceback) == ("works", None), report.finding
    assert report.finding
    after = machine.live()
    assert {kind: after[kind] for kind in ("opened", "mapped")} == {kind: before[kind] for kind in ("opened", "mapped")}


def test_a_texture_that_opengl_draws_from_passes(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    require("gl")
    share_textures(machine, monkeypatch.setattr)
    for name in ("store glcuda", "time interop"):
        report = run(BY_NAME[name])
        assert report.state == "works", report.finding
        assert report.software


def test_opengl_in_software_is_marked() -> None:
    require("gl")
    for name in ("opengl", "shaders", "store gl", "layers gl", "choice gl", "time gl", "gl against cpu"):
        report = run(BY_NAME[name])
        assert report.state == "works", report.finding
        assert report.software


def test_opengl_on_another_gpu_is_absent(machine: CpuMachine) -> None:
    require("gl")
    report = run(BY_NAME["interop"])
    assert report.state == "absent"
    assert "not CUDA device 0" in report.finding


KERNEL_CHECKS = {
    "upload_tiles": "upload",
    "upload_frame": "difference",
    "gather_bytes": "gather",
    "gather_halves": "gather",
    "fetch_fine": "fetch",
    "fetch_coarse": "fetch",
    "compare_frame": "difference",
    "tile_channels": "channels",
    "cluster_distance": "channels",
    "sample_points": "sample",
    "sample_footprints": "sample",
}


def test_every_kernel_has_a_check() -> None:
    assert KERNEL_CHECKS.keys() == SIGNATURES.keys()
    assert {check.argument for check in CHECKS if check.name.startswith("kernel ")} == {
        signature.file for signature in SIGNATURES.values()
    }


@pytest.mark.parametrize("name", KERNEL_CHECKS)
def test_a_kernel_that_does_nothing_is_found(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its results are what the memory held before."""

    def launch(self: KernelSet, kernel: str, *arguments: Any) -> None:
        if kernel != name:
            launched(self, kernel, *arguments)

    launched = KernelSet.launch
    monkeypatch.setattr(KernelSet, "launch", launch)
    monkeypatch.setattr(CudaDevice, "empty", lambda self, shape, dtype: torch.full(shape, 77, dtype=dtype))
    report = run(BY_NAME[f"kernel {KERNEL_CHECKS[name]}"])
    assert report.state == "broken"
    assert report.finding.startswith("ptx: "), report.finding
    assert "values differ" in report.finding
    assert "in compare_" in (report.traceback or "")


@pytest.mark.parametrize("name", KERNEL_CHECKS)
def test_a_kernel_that_fails_is_one_line(machine: CpuMachine, name: str) -> None:
    machine.fail(f"cuLaunchKernel {name}", LAUNCH_FAILED)
    report = run(BY_NAME[f"kernel {KERNEL_CHECKS[name]}"])
    assert report.state == "broken"
    assert "the GPU failed in cuLaunchKernel (CUDA_ERROR_LAUNCH_FAILED)" in report.finding


def test_code_of_each_origin_is_compared(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compile_source", lambda file, capability: device.shipped_ptx(file))
    monkeypatch.setattr(kernels, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(kernels, "compile_kernel", lambda file, capability: b"neither ELF nor PTX")
    report = run(BY_NAME["kernel fetch"])
    assert report.state == "broken"
    assert "the CUDA driver rejects the kernels" in report.finding
    monkeypatch.setattr(kernels, "compile_kernel", lambda file, capability: None)
    report = run(BY_NAME["kernel fetch"])
    assert report.finding == "ptx, nvrtc: equal at 9 sizes"
    assert report.facts == {"origins": ["ptx", "nvrtc"], "nvrtc": "13.0"}


def test_a_device_without_memory_is_one_line(machine: CpuMachine) -> None:
    machine.fail("cuMemHostAlloc", OUT_OF_MEMORY)
    report = run(BY_NAME["pinned"])
    assert report.state == "broken"
    assert "out of memory" in report.finding


def test_memory_that_another_process_cannot_open_is_absent(
    machine: CpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arr_coc.backends.cuda.ipc import SharedMemory

    monkeypatch.setattr(SharedMemory, "handle", property(lambda _: bytes(64)))
    report = run(BY_NAME["ipc"])
    assert report.state == "absent"
    assert "the driver does not share memory between processes" in report.finding


def test_other_pixels_in_the_other_process_are_found(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    from arr_coc.backends.cuda.ipc import SharedMemory

    write: Callable[[Any, torch.Tensor], None] = SharedMemory.write
    monkeypatch.setattr(SharedMemory, "write", lambda self, pixels: write(self, pixels.flip(3)))
    report = run(BY_NAME["ipc"])
    assert report.state == "broken"
    assert report.finding.startswith("pixels that another process read: 5 of 5 values differ")


def test_growth_is_a_failure(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    from stream.extensions.doctor.gpu import stores

    before, after = {"device": 0.0, "host": 100.0, "files": 9.0}, {"device": 0.0, "host": 150.0, "files": 9.0}
    readings = iter([before, after, after, after])
    monkeypatch.setattr(stores, "held_mib", lambda device: next(readings))
    assert run(BY_NAME["leaks"]).state == "works", "it grew once"
    readings = iter([before, after] * 2)
    report = run(BY_NAME["leaks"])
    assert report.finding == "after 100 updates grown by {'device': 0.0, 'host': 50.0, 'files': 0.0}"


def test_a_step_that_cannot_be_captured_is_a_failure(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured, "cuda_graph", refuse)
    report = run(BY_NAME["graphs"])
    assert report.state == "broken"
    assert report.finding == "a step cannot be captured: operation not permitted when stream is capturing"


def test_a_visual_token_that_is_wrong_is_a_failure(machine: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    from stream.extensions.doctor.gpu import model

    monkeypatch.setattr(model, "EMBEDDING_ERRORS", {"bfloat16": 1e-4})
    report = run(BY_NAME["model bfloat16"])
    assert report.state == "broken"
    assert "0.0001 is allowed" in report.finding


@pytest.mark.parametrize(
    ("setup", "shared", "copied", "frames"), [(10, 1, 3, 5.0), (9, 1, 3, 5.0), (-2, 1, 3, 0.0), (10, 3, 3, None)]
)
def test_the_frames_after_which_sharing_pays(setup: float, shared: float, copied: float, frames: float | None) -> None:
    assert timing.break_even_frames(setup, shared, copied) == frames


@pytest.mark.slow
def test_the_whole_command_on_an_emulated_device(tmp_path: Path) -> None:
    """Each check in its own process, with the process's own emulated device."""
    import json
    import subprocess
    import sys

    require("gl")
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "tests.cuda_on_cpu.doctor", "--out", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    report = json.loads(path.read_text())
    assert [row for row in report["rows"] if row["state"] == "broken"] == []
    assert (process.returncode, report["ended"]) == (0, "finished")
    assert "CUDA on the CPU" in process.stdout
    assert all(len(line) <= 80 for line in process.stdout.splitlines()[:-1])
