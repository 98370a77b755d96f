"""Device memory shared by two processes: both run the driver that stands in for NVIDIA's."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

from arr_coc.backends.cuda import ipc
from arr_coc.backends.cuda.device import call
from arr_coc.backends.cuda.ipc import FIRST_REGIONS, OpenedMemory, SharedMemory
from arr_coc.errors import BackendMissing, DeviceLost, ShapeError
from tests.cuda_on_cpu.machine import CpuMachine

READER = """
import sys
from pathlib import Path
from tests.cuda_on_cpu.machine import CpuMachine
from arr_coc.backends.cuda import ipc
machine = CpuMachine(Path(sys.argv[1]))
ipc.device_by_uuid = lambda uuid: machine.device if uuid == machine.device.uuid else None
memory = ipc.OpenedMemory(bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3]))
print(int(memory.read(int(sys.argv[4])).sum()))
memory.close()
assert not any(machine.live().values())
"""


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


@pytest.fixture(autouse=True)
def nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is left of other tests."""
    monkeypatch.setattr(ipc, "_spare", [])


def test_another_process_reads_what_one_wrote(cuda_on_cpu: CpuMachine) -> None:
    memory = SharedMemory()
    for count in (5, 700):
        memory.write(pixels(count))
        arguments = (str(cuda_on_cpu.path), memory.handle.hex(), memory.gpu.hex(), str(count))
        process = subprocess.run(
            [sys.executable, "-c", READER, *arguments], capture_output=True, text=True, timeout=300
        )
        assert process.returncode == 0, process.stderr
        assert int(process.stdout) == int(pixels(count).sum())
    memory.close()


def test_nothing_comes_to_the_host_and_nothing_leaks(cuda_on_cpu: CpuMachine) -> None:
    SharedMemory().close()
    before = cuda_on_cpu.live()
    with cuda_on_cpu.calls() as calls, cuda_on_cpu.two_processes():
        memory = SharedMemory()
        opened = OpenedMemory(memory.handle, memory.gpu)
        for seed in range(3):
            memory.write(pixels(9, seed).permute(0, 1, 3, 2))
            assert torch.equal(opened.read(9), pixels(9, seed).permute(0, 1, 3, 2))
        memory.write(pixels(0))
        assert len(opened.read(0)) == 0
        opened.close()
        memory.close()
        memory.close()
    assert "cuMemcpyDtoHAsync" not in calls
    assert cuda_on_cpu.live() == before


def test_more_room_has_another_handle(cuda_on_cpu: CpuMachine) -> None:
    memory = SharedMemory()
    first = memory.handle
    memory.write(pixels(FIRST_REGIONS))
    assert memory.handle == first
    memory.write(pixels(FIRST_REGIONS + 1))
    assert memory.handle != first
    with cuda_on_cpu.two_processes():
        opened = OpenedMemory(memory.handle, memory.gpu)
    assert torch.equal(opened.read(FIRST_REGIONS + 1), pixels(FIRST_REGIONS + 1))
    opened.close()
    memory.close()


def test_memory_that_another_process_may_have_open_is_reused_and_never_freed(cuda_on_cpu: CpuMachine) -> None:
    """Freeing it has no defined result: the device on the CPU refuses to."""
    memory = SharedMemory()
    memory.write(pixels(5))
    with cuda_on_cpu.two_processes():
        opened = OpenedMemory(memory.handle, memory.gpu)
    with cuda_on_cpu.device.current(), pytest.raises(DeviceLost, match="cuMemFree"):
        call("cuMemFree", memory._open_export.address)
    small = memory.handle
    memory.write(pixels(FIRST_REGIONS + 1))
    assert torch.equal(opened.read(5), pixels(5))
    large, before = memory.handle, cuda_on_cpu.live()
    memory.close()
    first, second = SharedMemory(), SharedMemory()
    assert (first.handle, second.handle) == (small, large), "the smallest that fits first"
    assert cuda_on_cpu.live() == before
    for shared in (first, second):
        shared.close()
    opened.close()


def test_memory_is_made_on_the_device_of_the_texture(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    second = dataclasses.replace(cuda_on_cpu.device, place=torch.device("meta"))
    monkeypatch.setattr(ipc, "device_at", lambda index: {1: second}[index])
    memory = SharedMemory(1)
    with pytest.raises(ShapeError, match="lies on cpu and the texture on meta"):
        memory.write(pixels(2))
    memory.close()


def test_a_process_does_not_open_its_own_memory(cuda_on_cpu: CpuMachine) -> None:
    memory = SharedMemory()
    with pytest.raises(BackendMissing, match="CUDA_ERROR_INVALID_CONTEXT"):
        OpenedMemory(memory.handle, memory.gpu)
    memory.close()


def test_memory_of_unknown_size_is_closed_again(cuda_on_cpu: CpuMachine) -> None:
    memory, before = SharedMemory(), cuda_on_cpu.live()
    cuda_on_cpu.fail("cuMemGetAddressRange", 1)
    with cuda_on_cpu.two_processes(), pytest.raises(BackendMissing, match="cuMemGetAddressRange"):
        OpenedMemory(memory.handle, memory.gpu)
    assert cuda_on_cpu.live() == before
    memory.close()


def test_memory_that_cannot_be_shared_is_reported(cuda_on_cpu: CpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory()
    before = cuda_on_cpu.live()
    for wrong in (pixels(2).float(), pixels(2)[:, :, :16], pixels(2).to("meta")):
        with pytest.raises(ShapeError, match=r"pixels are uint8|lies on meta"):
            memory.write(wrong)
    with pytest.raises(BackendMissing, match="a GPU that the model's process does not see"):
        OpenedMemory(memory.handle, bytes(16))
    with pytest.raises(BackendMissing, match="the driver does not share memory between processes"):
        OpenedMemory(b"x" * 64, memory.gpu)
    cuda_on_cpu.fail("cuIpcGetMemHandle", 801)
    with pytest.raises(DeviceLost, match="cuIpcGetMemHandle"):
        SharedMemory()
    memory.close()
    assert cuda_on_cpu.live() == before
    assert ipc.HANDLE_BYTES == 64
