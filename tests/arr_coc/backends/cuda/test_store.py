"""The CUDA store on this machine's device, or else on the CPU with the kernels' own sources."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.backends.cuda.device import find_device
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.registry import open_store
from arr_coc.errors import DeviceLost, StoreError
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import FramePlanes
from tests.arr_coc.texture.store import test_base as contract
from tests.cuda_on_cpu.machine import LAUNCH_FAILED, OUT_OF_MEMORY, CpuMachine
from tests.support.video import random_planes, stamp, with_tiles_of

NOTHING = dict.fromkeys(["array", "surface", "texture", "pinned", "event", "registered", "mapped", "pushed"], 0)


def opened(planes: FramePlanes, timeout_ms: int = 20) -> TextureStore:
    return open_store(PlaneFormat.of(planes), "cuda", lease_timeout_ms=timeout_ms)


def assert_equal_to_cpu(store: TextureStore, planes: FramePlanes) -> None:
    reference = open_store(PlaneFormat.of(planes), "cpu")
    reference.update(planes, stamp(0))
    contract.assert_same(contract.levels_of(store), contract.levels_of(reference))


def test_more_tiles_than_travel_at_once(cuda: None) -> None:
    """Slots are used again while the device still works on the others."""
    rng = np.random.default_rng(0)
    first, second = random_planes(rng, 32 * 27, 32 * 70), random_planes(rng, 32 * 27, 32 * 70)
    store = opened(first)
    store.update(first, stamp(0))
    change = store.write(second, Difference(rng.random(store.grid.shape) < 0.3), stamp(1))
    assert_equal_to_cpu(store, with_tiles_of(first, second, change.dirty))


def test_pinned_memory_rests_until_the_device_has_read_it(cuda_on_cpu: CpuMachine) -> None:
    """The device does nothing until it must, and still every tile is the one that was packed for it."""
    rng = np.random.default_rng(2)
    planes = random_planes(rng, 100, 200)
    store = opened(planes)
    with cuda_on_cpu.late():
        for index in range(9):
            other = random_planes(rng, 100, 200)
            dirty = np.zeros(store.grid.shape, bool)
            dirty.flat[index] = True
            planes = other if index == 0 else with_tiles_of(planes, other, dirty)
            store.write(planes, Difference(dirty), stamp(index))
        assert_equal_to_cpu(store, planes)


@pytest.mark.parametrize(("writing", "reading"), [(1, 2), (3, 2)])
def test_readers_and_writer_on_streams_of_their_own(cuda_on_cpu: CpuMachine, writing: int, reading: int) -> None:
    """A read that the device has not begun shows the frame of its lease, whatever is written afterwards.

    Streams run in the order of their numbers, if nothing orders them otherwise.
    """
    rng = np.random.default_rng(3)
    first, second = random_planes(rng, 64, 64), random_planes(rng, 64, 64)
    store, regions = opened(first), np.array([[0, 0, 0], [0, 1, 1], [1, 0, 0], [5, 0, 0]])
    region_tensor = torch.from_numpy(regions)
    with cuda_on_cpu.late():
        with cuda_on_cpu.on_stream(writing):
            store.update(first, stamp(0))
        with cuda_on_cpu.on_stream(reading), store.lease() as view:
            before = view.patches(region_tensor)
        with cuda_on_cpu.on_stream(writing):
            store.write(second, Difference.everywhere(store.grid), stamp(1))
        with cuda_on_cpu.on_stream(reading), store.lease() as view:
            after = view.patches(region_tensor)
    for planes, patches in ((first, before), (second, after)):
        reference = open_store(PlaneFormat.of(planes), "cpu")
        reference.update(planes, stamp(0))
        with reference.lease() as view:
            np.testing.assert_array_equal(patches.numpy(), view.gather(regions))


def test_only_what_changed_is_brought_to_the_host(cuda_on_cpu: CpuMachine) -> None:
    rng = np.random.default_rng(4)
    first = random_planes(rng, 64, 96)
    store = opened(first)
    store.update(first, stamp(0))
    with store.lease() as view, cuda_on_cpu.calls() as calls:
        for level in range(6):
            view.read(level)
    assert calls.count("cuLaunchKernel fetch_coarse") == 1
    assert "cuLaunchKernel fetch_fine" not in calls
    with store.lease() as view, cuda_on_cpu.calls() as calls:
        view.read(3)
    assert calls == []


def test_one_copy_and_one_kernel_an_update(cuda_on_cpu: CpuMachine) -> None:
    first = random_planes(np.random.default_rng(5), 64, 96)
    store = opened(first)
    with cuda_on_cpu.calls() as calls:
        store.update(first, stamp(0))
    assert [name for name in calls if "Memcpy" in name or "Launch" in name] == [
        "cuMemcpyHtoDAsync",
        "cuLaunchKernel upload_tiles",
    ]


def test_closing_frees_everything_once_the_last_reader_is_gone(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(6), 64, 64)
    before = cuda_on_cpu.live()
    store = opened(planes)
    store.update(planes, stamp(0))
    assert cuda_on_cpu.live()["surface"] == before["surface"] + 6
    with store.lease() as view:
        store.close()
        assert view.read(1).shape == (32, 32, 3)
        assert len(view.gather(np.array([[0, 0, 0]]))) == 1
    assert cuda_on_cpu.live() == before
    store.close()


def test_a_closed_store_takes_nothing_more(cuda: None) -> None:
    array = np.zeros((64, 64, 3), np.uint8)
    planes, tensor = FramePlanes("rgb", (array,)), torch.from_numpy(array).to(find_device().place)
    store = CudaStore(PlaneFormat.of(planes), Thresholds(), 20)
    store.update_tensor(tensor, stamp(0))
    store.close()
    assert store.compare(planes).dirty_share == 0
    for use in (
        lambda: store.write(planes, Difference.everywhere(store.grid), stamp(1)),
        lambda: store.update_tensor(tensor, stamp(1)),
        lambda: store.compare_tensor(tensor),
    ):
        with pytest.raises(StoreError, match="the texture store is closed"):
            use()


def test_an_unreferenced_store_frees_everything(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(7), 64, 64)
    before = cuda_on_cpu.live()
    store = opened(planes)
    store.update(planes, stamp(0))
    del store
    assert cuda_on_cpu.live() == before


@pytest.mark.parametrize("making", ["MipmappedArrayCreate", "SurfObjectCreate", "TexObjectCreate", "MemHostAlloc"])
def test_a_device_without_memory_gives_back_what_it_gave(cuda_on_cpu: CpuMachine, making: str) -> None:
    planes, name = random_planes(np.random.default_rng(8), 64, 64), f"cu{making}"
    before = cuda_on_cpu.live()
    cuda_on_cpu.fail(name, OUT_OF_MEMORY)
    with pytest.raises(DeviceLost, match=rf"out of memory.*texture.backend = cpu \({name}\)") as caught:
        opened(planes)
    assert cuda_on_cpu.live() == before, f"while the caller holds {caught.value}"
    opened(planes).update(planes, stamp(0))


def test_a_write_that_fails_halfway_is_never_shown(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(9), 64, 64)
    store = opened(planes)
    store.update(planes, stamp(0))
    cuda_on_cpu.fail("cuLaunchKernel upload_tiles", LAUNCH_FAILED)
    with pytest.raises(DeviceLost, match="failed in cuLaunchKernel"):
        store.write(planes, Difference.everywhere(store.grid), stamp(1))
    with pytest.raises(DeviceLost), store.lease():
        pass
    assert store.held_planes.planes[0].shape == planes.planes[0].shape


def test_a_device_that_fails_while_it_works_is_noticed_by_the_reader(cuda_on_cpu: CpuMachine) -> None:
    planes = random_planes(np.random.default_rng(10), 64, 64)
    store = opened(planes)
    store.update(planes, stamp(0))
    cuda_on_cpu.fail("cuEventSynchronize", LAUNCH_FAILED)
    with pytest.raises(DeviceLost, match="CUDA_ERROR_LAUNCH_FAILED"), store.lease() as view:
        view.read(5)
