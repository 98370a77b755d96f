"""Rules of CUDA that a device on the CPU would forgive: `tests/cuda_on_cpu` enforces them.

The first tests show that it does, the others that the stores keep the rules.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arr_coc.backends.cuda import device
from arr_coc.backends.cuda.device import LEGACY_STREAM, call, failure, find_device
from arr_coc.backends.cuda.memory import MipTexture, StagingBuffer
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.registry import open_store
from arr_coc.errors import BackendMissing, DeviceLost, StoreError, StoreReplaced
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import TileGrid
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from tests.arr_coc.backends.cuda.test_device import OPENED
from tests.cuda_on_cpu.machine import OUT_OF_MEMORY, CpuMachine
from tests.support.video import random_planes, stamp

ROOT = Path(__file__).resolve().parents[4]
GRID = TileGrid.of(64, 64)


def upload(machine: CpuMachine, texture: MipTexture, slot: StagingBuffer) -> None:
    """Give the device the work of writing one tile from a slot's memory."""
    places, texels = slot.device, slot.device + 256
    slot.upload(256 + 32 * 32 * 3, machine.stream)
    with texture.mapped() as handles:
        machine.device.kernels.launch("upload_tiles", (1, 1), machine.stream, texels, places, *handles.surfaces)


def synchronize() -> None:
    call("cuStreamSynchronize", LEGACY_STREAM)


# what the device on the CPU rejects


@pytest.mark.parametrize("freed", ["texture", "pinned memory"])
def test_work_on_what_was_freed_meanwhile_fails(cuda_on_cpu: CpuMachine, freed: str) -> None:
    textures, slots = ExitStack(), ExitStack()
    with cuda_on_cpu.device.current():
        texture = MipTexture(GRID, textures)
        slot = StagingBuffer(cuda_on_cpu.device, 4096, slots)
        slot.host[:] = 0
        slot._memory.zero_()
        with cuda_on_cpu.late():
            upload(cuda_on_cpu, texture, slot)
            (textures if freed == "texture" else slots).close()
            with pytest.raises(DeviceLost, match=r"ILLEGAL_ADDRESS.*this process cannot use it any more"):
                synchronize()
            cuda_on_cpu.recover()
        (slots if freed == "texture" else textures).close()


def test_work_that_was_done_before_may_be_freed_after(cuda_on_cpu: CpuMachine) -> None:
    with cuda_on_cpu.device.current(), ExitStack() as owned:
        texture = MipTexture(GRID, owned)
        slot = StagingBuffer(cuda_on_cpu.device, 4096, owned)
        slot.host[:] = 0
        slot._memory.zero_()
        with cuda_on_cpu.late():
            upload(cuda_on_cpu, texture, slot)
            synchronize()


def launch_unaligned(machine: CpuMachine) -> None:
    table = torch.zeros(3 * 256 * 2 + 1, dtype=torch.uint8)
    values = (0, 0, 1, 64, 64, table.data_ptr() + 1, 0)
    with MipTextureOf(machine) as handle:
        machine.device.kernels.launch("gather_halves", (1, 1), LEGACY_STREAM, handle, *values)


class MipTextureOf:
    """A texture of the machine, its handle inside the block."""

    def __init__(self, machine: CpuMachine) -> None:
        self._stack = ExitStack()
        self._texture = MipTexture(GRID, self._stack)

    def __enter__(self) -> int:
        with self._texture.mapped() as handles:
            return handles.handle

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def launch_over_too_many_rows(machine: CpuMachine) -> None:
    with MipTextureOf(machine) as handle:
        machine.device.kernels.launch("sample_points", (1, 1 << 16), LEGACY_STREAM, handle, 0, 0, 64, 64, 0)


def launch_on_stream_0(machine: CpuMachine) -> None:
    with MipTextureOf(machine) as handle:
        machine.device.kernels.launch("sample_points", (1, 1), 0, handle, 0, 0, 64, 64, 0)


def launch_without_a_texture(machine: CpuMachine) -> None:
    machine.device.kernels.launch("sample_points", (1, 1), LEGACY_STREAM, 12345, 0, 0, 64, 64, 0)


def copy_beyond_pinned_memory(machine: CpuMachine) -> None:
    with ExitStack() as owned:
        slot = StagingBuffer(machine.device, 64, owned)
        slot.upload(65, LEGACY_STREAM)


def wait_for_the_context_during_a_capture(machine: CpuMachine) -> None:
    with (
        pytest.raises(AssertionError, match="the capture was invalidated"),
        machine.capturing(),
        pytest.raises(DeviceLost) as caught,
    ):
        call("cuCtxSynchronize")
    raise caught.value


@pytest.mark.parametrize(
    ("breach", "reason"),
    [
        (launch_unaligned, "MISALIGNED_ADDRESS"),
        (launch_over_too_many_rows, "INVALID_VALUE"),
        (launch_on_stream_0, "INVALID_HANDLE"),
        (launch_without_a_texture, "INVALID_HANDLE"),
        (copy_beyond_pinned_memory, "INVALID_VALUE"),
        (wait_for_the_context_during_a_capture, "STREAM_CAPTURE_UNSUPPORTED"),
    ],
)
def test_a_breach_is_rejected(cuda_on_cpu: CpuMachine, breach: Callable[[CpuMachine], None], reason: str) -> None:
    with cuda_on_cpu.device.current():
        with pytest.raises(DeviceLost, match=reason):
            breach(cuda_on_cpu)
        cuda_on_cpu.recover()


def test_a_context_that_was_not_retained_is_none(cuda_on_cpu: CpuMachine) -> None:
    with pytest.raises(DeviceLost, match="INVALID_CONTEXT"):
        call("cuCtxPushCurrent", 77)


# streams


def test_torchs_default_stream_has_a_name(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cuda-bindings take stream 0 for."""
    handles = iter([0, 4711])
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: SimpleNamespace(cuda_stream=next(handles)))
    opened = OPENED.__wrapped__(0)
    assert [opened.stream(), opened.stream()] == [LEGACY_STREAM, 4711]


def test_a_store_begins_after_the_work_of_the_stream_that_opened_it(cuda_on_cpu: CpuMachine) -> None:
    """Torch hands out memory that earlier work of its stream may still use."""
    planes = random_planes(np.random.default_rng(0), 64, 64)
    before, ones = np.zeros(16, np.uint8), np.ones(16, np.uint8)
    with cuda_on_cpu.late():
        with cuda_on_cpu.on_stream(3), cuda_on_cpu.device.current() as stream:
            call("cuMemcpyHtoDAsync", before.ctypes.data, ones.ctypes.data, 16, stream)
            store = open_store(PlaneFormat.of(planes), "cuda")
        with cuda_on_cpu.on_stream(2), cuda_on_cpu.device.current() as stream:
            store.update(planes, stamp(0))
            assert not before.any(), "the host does not wait"
            call("cuStreamSynchronize", stream)
        assert before.all()
        store.close()


# the end of a store


def test_closing_waits_for_the_stores_own_work_and_no_other(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(1), 64, 64)
    of_others, ones = np.zeros(16, np.uint8), np.ones(16, np.uint8)
    regions = torch.tensor([[0, 0, 0]])
    before = cuda_on_cpu.live()
    store = open_store(PlaneFormat.of(planes), "cuda")
    with cuda_on_cpu.late():
        with cuda_on_cpu.on_stream(4), cuda_on_cpu.device.current() as stream:
            call("cuMemcpyHtoDAsync", of_others.ctypes.data, ones.ctypes.data, 16, stream)
        with cuda_on_cpu.on_stream(2):
            store.update(planes, stamp(0))
        with cuda_on_cpu.on_stream(3), store.lease() as view:
            patches = view.patches(regions)  # type: ignore[attr-defined]
        store.close()
        assert cuda_on_cpu.live() == before
        assert not of_others.any()
    np.testing.assert_array_equal(patches[0].permute(1, 2, 0).numpy(), reference_of(planes)[:32, :32])


def reference_of(planes: object) -> np.ndarray:
    """Level 0 of a frame as the CPU store has it."""
    store = open_store(PlaneFormat.of(planes), "cpu")  # type: ignore[arg-type]
    store.update(planes, stamp(0))  # type: ignore[arg-type]
    with store.lease() as view:
        return view.read(0).copy()


def test_a_store_may_be_closed_while_the_model_captures_a_graph(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(2), 64, 64)
    before = cuda_on_cpu.live()
    with cuda_on_cpu.capturing():
        store = open_store(PlaneFormat.of(planes), "cuda")
        store.update(planes, stamp(0))
        with store.lease() as view:
            view.read(3)
        store.close()
    assert cuda_on_cpu.live() == before


def test_work_of_a_failed_write_is_waited_for(cuda_on_cpu: CpuMachine) -> None:
    """The first of two parts is on its way when the second fails."""
    planes = random_planes(np.random.default_rng(3), 32 * 20, 32 * 30)
    store, before = open_store(PlaneFormat.of(planes), "cuda"), cuda_on_cpu.live()
    with cuda_on_cpu.late():
        cuda_on_cpu.fail("cuLaunchKernel upload_tiles", OUT_OF_MEMORY, after=1)
        with pytest.raises(DeviceLost, match="out of memory"):
            store.write(planes, Difference.everywhere(store.grid), stamp(0))
        store.close()
        assert cuda_on_cpu.live()["texture"] == before["texture"] - 2
        with cuda_on_cpu.device.current():
            synchronize()


# errors


@pytest.mark.parametrize("reason", ["SYSTEM_NOT_READY", "DEVICE_UNAVAILABLE", "STUB_LIBRARY"])
def test_a_device_that_is_not_ready_is_missing_and_not_lost(reason: str) -> None:
    assert isinstance(failure("cuInit", f"CUDA_ERROR_{reason}"), BackendMissing)


@pytest.mark.parametrize("reason", ["INVALID_SOURCE", "JIT_COMPILATION_DISABLED"])
def test_code_that_the_driver_does_not_take_is_missing(reason: str) -> None:
    assert "rejects the kernels" in str(failure("cuModuleLoadData", f"CUDA_ERROR_{reason}"))


def test_an_error_that_breaks_the_context_asks_for_another_process() -> None:
    assert "start it again" in str(failure("cuStreamSynchronize", "CUDA_ERROR_ECC_UNCORRECTABLE"))
    assert "open a new store" in str(failure("cuMemAlloc", "CUDA_ERROR_UNKNOWN"))


def test_a_code_of_a_newer_driver_is_a_lost_device(cuda_on_cpu: CpuMachine) -> None:
    cuda_on_cpu.fail("cuEventCreate", 98765)
    with cuda_on_cpu.device.current(), pytest.raises(DeviceLost, match=r"cuEventCreate.*98765"):
        call("cuEventCreate", 0)


@pytest.mark.parametrize("kind", [torch.AcceleratorError, torch.OutOfMemoryError])
def test_torchs_errors_on_the_device_are_the_stores(cuda_on_cpu: CpuMachine, kind: type[Exception]) -> None:
    planes = random_planes(np.random.default_rng(4), 64, 64)
    store = open_store(PlaneFormat.of(planes), "cuda")
    store.update(planes, stamp(0))
    with pytest.raises(DeviceLost), store.lease():
        raise kind("CUDA error: an illegal memory access\nmore")
    store.close()


def test_the_cpu_store_takes_over_when_torch_fails_on_the_device(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(5), 64, 64)
    updater = TextureUpdater(TextureOptions(backend="auto", cuts=False))
    updater.process(planes, stamp(0))
    with pytest.raises(StoreReplaced, match="illegal memory access"), updater.lease():
        raise torch.AcceleratorError("CUDA error: an illegal memory access")
    with updater.lease() as view:
        np.testing.assert_array_equal(view.read(0), reference_of(planes))
    assert updater.fallbacks == 1
    updater.close()


def test_torch_that_cannot_start_cuda_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forked() -> int:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.\nUse spawn")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", forked)
    with pytest.raises(BackendMissing, match=r"Cannot re-initialize CUDA in forked subprocess\.\); choose"):
        find_device()


FORKED = """
import os, sys
from pathlib import Path
from tests.cuda_on_cpu.machine import CpuMachine
from arr_coc.errors import BackendMissing
from arr_coc.backends.cuda.device import call
machine = CpuMachine(Path(sys.argv[1]))
assert call("cuDeviceGetCount") == 1
child = os.fork()
if child == 0:
    try:
        call("cuDeviceGetCount")
    except BackendMissing as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert call("cuDeviceGetCount") == 1
"""


def test_a_forked_process_is_refused_with_the_reason(cuda_on_cpu: CpuMachine) -> None:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(cuda_on_cpu.path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=True,
    )
    assert "CUDA was started before this process was forked" in process.stdout
    assert process.stderr == "", "the driver was not asked"


# sizes and devices


def test_a_picture_that_no_texture_holds_goes_to_the_cpu(
    cuda_on_cpu: CpuMachine, caplog: pytest.LogCaptureFixture
) -> None:
    planes = random_planes(np.random.default_rng(6), 64, 96)
    with cuda_on_cpu.largest_side(64):
        with pytest.raises(BackendMissing, match="takes textures of up to 64x64 texels, got 96x64; choose a smaller"):
            CudaStore(PlaneFormat.of(planes), Thresholds(), 20)
        assert open_store(PlaneFormat.of(planes), "auto").backend == "cpu"
    assert "got 96x64" in caplog.text
    with cuda_on_cpu.largest_side(96):
        open_store(PlaneFormat.of(planes), "cuda").close()


def test_parts_of_a_gpu_have_uuids_of_their_own(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bindings of CUDA 12 give them by the second version of the function; those of CUDA 13 have no other."""
    assert find_device().uuid == bytes(15) + b"\1"
    driver = device.bindings()
    second = SimpleNamespace(
        cuDeviceGet=driver.cuDeviceGet,
        cuDeviceGetUuid_v2=lambda ordinal: (driver.CUresult.CUDA_SUCCESS, SimpleNamespace(bytes=b"part of a GPU 01")),
    )
    monkeypatch.setattr(device, "bindings", lambda: second)
    assert find_device().uuid == b"part of a GPU 01"


def test_a_closed_store_gives_no_handle(cuda_on_cpu: CpuMachine) -> None:
    from arr_coc.backends.cuda.ipc import SharedMemory

    memory = SharedMemory()
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        _ = memory.handle
