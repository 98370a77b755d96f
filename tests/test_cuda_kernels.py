"""The kernels as launched: what each takes, and that no result hangs on the order in which threads run."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.errors import DeviceLost
from arr_coc.ops.cuda import compiling
from arr_coc.ops.cuda.frames import format_of
from arr_coc.ops.cuda.kernels import SIGNATURES
from arr_coc.ops.cuda.store import CudaStore
from arr_coc.ops.difference import Thresholds
from arr_coc.types import FramePlanes
from tests.cuda_on_cpu.machine import CpuMachine
from tests.plane_maker import stamp

PTX_BYTES = {"u64": 8, "u32": 4, "f32": 4}


def in_ptx(kernel: str, file: str) -> list[int]:
    """Bytes of each parameter in the shipped PTX."""
    text = compiling.shipped(file).decode()
    entry = re.search(rf"\.entry {kernel}\((.*?)\)", text, re.DOTALL)
    assert entry, f"{kernel} is not in {file}.ptx"
    return [PTX_BYTES[kind] for kind in re.findall(r"\.param \.(?:align \d+ \.)?(\w+)", entry[1])]


@pytest.mark.parametrize("kernel", SIGNATURES)
def test_arguments_are_those_of_source_and_ptx(cuda_on_cpu: CpuMachine, kernel: str) -> None:
    """A wrong argument would be found on a device alone, and there as nonsense."""
    signature = SIGNATURES[kernel]
    ours = [ctypes.sizeof(argument) for argument in signature.arguments]
    assert ours == cuda_on_cpu.parameter_sizes(kernel)
    assert ours == in_ptx(kernel, signature.file)


def test_blocks_are_as_large_as_the_kernels_are_compiled_for() -> None:
    for kernel, signature in SIGNATURES.items():
        text = compiling.shipped(signature.file).decode()
        found = re.search(rf"\.entry {kernel}\(.*?\)\s*\.maxntid (\d+)", text, re.DOTALL)
        assert found, kernel
        assert int(found[1]) == signature.threads


def everything(frames: list[npt.NDArray[np.uint8]]) -> list[npt.NDArray]:
    """What all kernels make of two frames."""
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
    """A barrier that is missing shows where the last thread goes first."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (80, 110, 3), dtype=np.uint8)
    second = first.copy()
    second[40:] = rng.integers(0, 256, second[40:].shape)
    ascending = everything([first, second])
    with cuda_on_cpu.descending():
        descending = everything([first, second])
    for one, other in zip(ascending, descending, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_write_outside_the_texture_is_caught(cuda_on_cpu: CpuMachine) -> None:
    """So that other tests would see one: the device on the CPU ends a launch as a real one does."""
    frame = np.zeros((64, 64, 3), np.uint8)
    store = CudaStore(format_of(torch.from_numpy(frame)), Thresholds(), 20)
    store.update(FramePlanes("rgb", (frame,)), stamp(0))
    tile, place = np.zeros((1, 32, 32, 3), np.uint8), np.array([[2, 0]], np.int32)
    launch = cuda_on_cpu.device.kernels.launch
    with cuda_on_cpu.device.current(), pytest.raises(DeviceLost, match="CUDA_ERROR_LAUNCH_FAILED"):
        launch("upload_tiles", (1, 1), 0, tile.ctypes.data, place.ctypes.data, *store._texture.surfaces)
    cuda_on_cpu.recover()
    store.close()
