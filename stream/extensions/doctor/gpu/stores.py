"""Whole texture stores against the store of the CPU; streams, pinned memory, and leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch

from arr_coc.backends.cuda.device import CudaDevice, call, find_device
from arr_coc.backends.cuda.memory import StagingBuffer
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.errors import counted
from arr_coc.texture.store.base import CpuStore
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import FramePlanes, Layout
from stream.extensions.doctor.gpu.checks import CheckFailed, CheckResult
from stream.extensions.doctor.gpu.kernels import EXACT, LARGE_SIZES, WAIT_MS, both_stores
from stream.extensions.doctor.gpu.reference import (
    SUBSAMPLINGS,
    random_planes,
    regions_of,
    require_equal,
    require_same_texture,
    stamp,
    with_tiles_of,
)

FORMATS: tuple[tuple[Layout, str], ...] = (*(("yuv", name) for name in SUBSAMPLINGS), ("gray", "444"), ("rgb", "444"))

FRAMES = 6

LEAK_MIB = 16
"""MiB that may come and go in allocators over a run."""

SETTLING = 1000
"""Updates before the first look at what the process holds."""


def cuda_store() -> CheckResult:
    """Follow streams of every format with the CUDA store."""
    device = find_device()
    large = device.place.type == "cuda"
    count = _follow("cuda", large=large)
    return CheckResult(f"{counted(count, 'frame')} of {len(FORMATS)} formats: the bytes of the CPU store")


def gl_store() -> CheckResult:
    """Follow streams of every format with the OpenGL store."""
    from arr_coc.backends.gl.device import open_device

    device = open_device()
    count = _follow("gl", large=False, frames=3 if device.software else FRAMES)
    finding = f"{counted(count, 'frame')} of {len(FORMATS)} formats: the bytes of the CPU store"
    return CheckResult(finding, {"renderer": device.renderer}, software=device.software)


def gl_layers() -> CheckResult:
    """Follow the streams of three cameras with the layers of one array of OpenGL, written together."""
    from arr_coc.backends.gl.layers import GlLayers

    rng = np.random.default_rng(0)
    frames = [random_planes(rng, 150, 330) for _ in range(3)]
    fmt = PlaneFormat.of(frames[0])
    rounds = 4
    with ExitStack() as stack:
        layers = stack.enter_context(closing(GlLayers(fmt, len(frames), EXACT, WAIT_MS)))
        references = [stack.enter_context(closing(CpuStore(fmt, EXACT, WAIT_MS))) for _ in frames]
        for index in range(rounds):
            layers.update(frames, [stamp(index)] * len(frames))
            for store, reference, planes in zip(layers.stores, references, frames, strict=True):
                reference.update(planes, stamp(index))
                require_same_texture(store, reference)
            noise = random_planes(rng, 150, 330)
            frames = [with_tiles_of(planes, noise, rng.random(fmt.grid.shape) < 0.2) for planes in frames]
        device = layers.stores[0].device
    finding = f"{counted(rounds, 'frame')} of {len(frames)} cameras in one array: the bytes of the CPU store"
    return CheckResult(finding, {"renderer": device.renderer}, software=device.software)


def _follow(backend: str, *, large: bool, frames: int = FRAMES) -> int:
    rng = np.random.default_rng(0)
    count = 0
    for number, (layout, sampling) in enumerate(FORMATS):
        sizes = [(int(rng.integers(1, 200)), int(rng.integers(1, 300)))]
        sizes += [LARGE_SIZES[number % len(LARGE_SIZES)]] if large else []
        for size in sizes:
            planes = random_planes(rng, *size, layout=layout, sampling=sampling)
            with both_stores(planes, backend) as stores:
                for index in range(frames):
                    # some tiles are new, and now and then the epoch
                    noise = random_planes(rng, *size, layout=layout, sampling=sampling)
                    changed = rng.random(stores[0].grid.shape) < rng.choice([0, 0.05, 0.3, 1])
                    planes = with_tiles_of(planes, noise, changed)
                    dirty, expected = (store.update(planes, stamp(index, epoch=index // 2)).dirty for store in stores)
                    require_equal(dirty, expected, "changed tiles")
                    regions = regions_of(stores[0].grid, rng, 20)
                    with stores[0].lease() as view, stores[1].lease() as reference_view:
                        require_equal(view.gather(regions), reference_view.gather(regions), "regions")
                    require_same_texture(*stores)
                    count += 1
    return count


HOLD_CYCLES = 40_000_000
"""Twenty milliseconds of a GPU's clock: longer than the host takes to give all work of a frame."""


def streams() -> CheckResult:
    """Write on one stream and read on another, each held back by turns: a read shows the frame of its lease."""
    device = find_device()
    rng = np.random.default_rng(3)
    rounds = 8
    layout = PlaneFormat.of(random_planes(rng, 200, 300))
    with closing(CudaStore(layout, Thresholds(), WAIT_MS)) as store:
        for index in range(rounds):
            planes = random_planes(rng, 200, 300)
            regions = regions_of(store.grid, rng, 30)
            frames = [planes, random_planes(rng, 200, 300)]
            writing, reading = _streams(device)
            batches = []
            for number, frame in enumerate(frames):
                with writing():
                    hold(device, HOLD_CYCLES if index % 2 else 0)
                    store.write(frame, Difference.everywhere(store.grid), stamp(2 * index + number))
                with reading():
                    hold(device, 0 if index % 2 else HOLD_CYCLES)
                    with store.lease() as view:
                        batches.append(view.patches(regions))
            with device.current():
                call("cuCtxSynchronize")
            for frame, patches in zip(frames, batches, strict=True):
                with both_stores(frame, "cpu") as (reference, _):
                    reference.update(frame, stamp(0))
                    with reference.lease() as reference_view:
                        require_equal(patches.cpu(), reference_view.gather(regions), "regions read on another stream")
    return CheckResult(f"{2 * rounds} frames written on one stream, read on another")


def _streams(device: CudaDevice) -> list[Callable[[], AbstractContextManager[Any]]]:
    """Return functions that make the first and the second of two streams the current one."""
    if device.place.type != "cuda":
        return [nullcontext, nullcontext]
    return [partial(torch.cuda.stream, torch.cuda.Stream(device.place)) for _ in range(2)]


def hold(device: CudaDevice, cycles: int) -> None:
    """Keep the current stream busy, so that later work waits."""
    if device.place.type == "cuda" and cycles:
        torch.cuda._sleep(cycles)


def pinned_memory() -> CheckResult:
    """Copy pinned memory to the device and back, asynchronously: the driver's and torch's."""
    device = find_device()
    rng = np.random.default_rng(0)
    sizes = (1, 255, 4097, 1 << 20, *((64 << 20,) if device.place.type == "cuda" else ()))
    for nbytes in sizes:
        data = rng.integers(0, 256, nbytes, dtype=np.uint8)
        with device.current() as stream, ExitStack() as resources:
            slot = StagingBuffer(device, nbytes, resources)
            slot.host[:] = data
            slot.upload(nbytes, stream)
            slot.mark(stream)
            slot.wait()
            slot.host[:] = 0
            slot.download(0, nbytes, stream)
            slot.mark(stream)
            slot.wait()
            require_equal(slot.host, data, f"{nbytes} bytes in the driver's pinned memory")
        host_bytes = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.place.type == "cuda")
        host_bytes.copy_(torch.from_numpy(data))
        device_bytes = host_bytes.to(device.place, non_blocking=True)
        roundtrip_bytes = torch.empty_like(host_bytes, pin_memory=device.place.type == "cuda").copy_(
            device_bytes, non_blocking=True
        )
        with device.current():
            call("cuCtxSynchronize")
        require_equal(roundtrip_bytes, data, f"{nbytes} bytes in torch's pinned memory")
    return CheckResult(f"{len(sizes)} sizes up to {sizes[-1] >> 20} MB came back as they went")


def leaks() -> CheckResult:
    """Update a texture often, and open a store now and then: nothing may grow."""
    device = find_device()
    real = device.place.type == "cuda"
    updates, settling = (5000, SETTLING) if real else (100, 20)
    with device.current():
        growth = measure_leaks(device, updates, settling)
        if not growth["ok"]:  # another program may have taken memory of the device meanwhile
            growth = measure_leaks(device, updates, settling)
    if not growth["ok"]:
        raise CheckFailed(f"after {growth['updates']} updates grown by {growth['grown']}")
    growth_text = ", ".join(f"{name} {value:+g}" for name, value in growth["grown"].items())
    return CheckResult(f"{growth['updates']} updates: {growth_text} (MiB, MiB, count)", growth)


def measure_leaks(device: CudaDevice, updates: int, settling: int = SETTLING) -> dict[str, Any]:
    """Growth of the process after `updates` updates, reads and gathers, and a store opened for every hundredth."""
    rng = np.random.default_rng(0)
    frames = [FramePlanes("gray", (rng.integers(0, 256, (96, 96), dtype=np.uint8),)) for _ in range(2)]
    fmt = PlaneFormat.of(frames[0])
    dirty = np.eye(3, dtype=bool)
    store = CudaStore(fmt, Thresholds(), 1000)
    before: dict[str, float] = {}
    for index in range(settling + updates):
        if index == settling:
            gc.collect()
            before = held_mib(device)
        store.write(frames[index % 2], Difference(dirty), stamp(index))
        with store.lease() as view:
            view.read(3)
            view.patches(np.array([[0, 1, 1]]))
        if index % 100 == 0:
            store.close()
            store = CudaStore(fmt, Thresholds(), 1000)
    call("cuCtxSynchronize")
    gc.collect()
    growth = {name: round(value - before[name], 2) for name, value in held_mib(device).items()}
    return {
        "updates": updates,
        "grown": growth,
        "ok": max(growth["device"], growth["host"]) <= LEAK_MIB and growth["files"] <= 0,
    }


def held_mib(device: CudaDevice) -> dict[str, float]:
    """Memory of the process, and its number of open files."""
    device_bytes = 0
    if device.place.type == "cuda":
        free, total = torch.cuda.mem_get_info(device.place)
        device_bytes = total - free
    process = psutil.Process()
    return {
        "device": device_bytes / 2**20,
        "host": process.memory_info().rss / 2**20,
        "files": float(process.num_fds()),
    }
