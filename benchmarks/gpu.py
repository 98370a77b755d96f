"""Cost of the texture and of the allocator's work on a CUDA device, against targets for an H200-class GPU.

    python -m benchmarks.gpu [--rounds N] [--size 1920x1080] [--updates N] [--out FILE]

At 1080p, one block of 10 % of the tiles changes. *Device* times are between two CUDA events, with the device held busy
until the host has given it everything, so that nothing but the work itself is measured (`update_tensor` and
`frame_tensor` wait for the device in between, and so count a round trip). *Wall* times are the host's, from the first
call until the device is done.

`upload` is a frame's tiles that are converted already: packing, one copy, one kernel for all levels. `update` takes a
4:2:0 frame from ordinary memory, which the host compares and converts; `update_tensor` an RGB frame that is on the
device. `frame` is what a live frame costs altogether: update, channels, scores, blending and the choice of 273 tokens
by a `StreamAllocator` on the device; `frame_tensor` the same for a frame on the device, `answer` with the packet that
is made of it.

Then one tile is updated 100 000 times, and what the process holds must not grow.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.attending import AllocationHistory, AllocationRequest, choose
from arr_coc.allocation.packets import packet_from
from arr_coc.ops.cuda import device as compiling
from arr_coc.ops.cuda.device import CudaDevice, call, find_device
from arr_coc.ops.cuda.frames import format_of
from arr_coc.ops.cuda.store import CudaStore
from arr_coc.ops.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import FramePlanes, FrameStamp
from benchmarks.support.harness import write_report
from stream.bench.report import machine

RESULTS = Path(__file__).parent / "results" / "gpu.json"
BUDGET = 273
CHANGED_SHARE = 0.10
WARM_UP = 10
TIMING = 0
"""CU_EVENT_DEFAULT of cuda.h: an event with a time stamp."""

HOLD_CYCLES = 4_000_000
"""Two milliseconds of a GPU's clock: longer than the host takes to give one piece of work."""

SETTLING = 1000
"""Updates before the first look at what the process holds."""

LEAK_MIB = 16
"""MiB that may come and go in allocators over a run."""

TARGETS_MS = {
    ("upload", "device"): 0.05,
    ("upload", "wall"): 0.15,
    ("gather", "device"): 0.03,
    ("channels", "device"): 0.2,
    ("scores", "device"): 0.2,
    ("frame", "wall"): 1.0,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """Two frames that differ in one block, as planes and as tensors on the device; `dirty` is the block."""

    planes: tuple[FramePlanes, FramePlanes]
    tensors: tuple[torch.Tensor, torch.Tensor]
    dirty: np.ndarray[Any, np.dtype[np.bool_]]


class Timer:
    """Times a piece of work on the device and on the host."""

    def __init__(self, device: CudaDevice, rounds: int) -> None:
        self._device, self._rounds = device, rounds
        self._start, self._end = (call("cuEventCreate", TIMING) for _ in range(2))

    def measure(self, work: Callable[[int], object]) -> dict[str, dict[str, float]]:
        """Medians and more of `work(turn)`, in milliseconds."""
        for turn in range(WARM_UP):
            work(turn)
        wall, device = [], []
        for turn in range(self._rounds):
            call("cuCtxSynchronize")
            start_ns = time.perf_counter_ns()
            work(2 * turn)
            call("cuCtxSynchronize")
            wall.append((time.perf_counter_ns() - start_ns) / 1e6)
            device.append(self._on_device(work, 2 * turn + 1))
        return {"device": summary(device), "wall": summary(wall)}

    def _on_device(self, work: Callable[[int], object], turn: int) -> float:
        stream = self._device.stream()
        hold(self._device)
        call("cuEventRecord", self._start, stream)
        work(turn)
        call("cuEventRecord", self._end, stream)
        call("cuEventSynchronize", self._end)
        return float(call("cuEventElapsedTime", self._start, self._end))


def hold(device: CudaDevice) -> None:
    """Keep the device busy, so that later work waits."""
    if device.place.type == "cuda":
        torch.cuda._sleep(HOLD_CYCLES)


def summary(times_ms: list[float]) -> dict[str, float]:
    quantiles = {"min": min(times_ms), "p50": statistics.median(times_ms), "p95": float(np.percentile(times_ms, 95))}
    return {name: round(value, 4) for name, value in quantiles.items()}


def make_scene(height: int, width: int, device: CudaDevice) -> Scene:
    rng = np.random.default_rng(0)
    shapes = ((height, width), *[(-(-height // 2), -(-width // 2))] * 2)
    first = tuple(rng.integers(40, 200, shape, dtype=np.uint8) for shape in shapes)
    second = tuple(plane.copy() for plane in first)
    rows, cols = PlaneFormat.of(FramePlanes("yuv", first)).grid.shape
    tall, wide = max(1, round(rows * CHANGED_SHARE**0.5)), max(1, round(cols * CHANGED_SHARE**0.5))
    dirty = np.zeros((rows, cols), bool)
    dirty[:tall, :wide] = True
    for plane, side in zip(second, (32, 16, 16), strict=True):
        plane[: tall * side, : wide * side] += np.uint8(30)
    rgb = [np.stack([plane[0]] * 3, axis=2) for plane in (first, second)]
    tensors = tuple(torch.from_numpy(frame).to(device.place) for frame in rgb)
    return Scene((FramePlanes("yuv", first), FramePlanes("yuv", second)), (tensors[0], tensors[1]), dirty)


def pieces(scene: Scene, device: CudaDevice) -> dict[str, Callable[[int], object]]:
    """Measurements by name; each takes the number of the turn."""
    store = CudaStore(PlaneFormat.of(scene.planes[0]), Thresholds(), 1000)
    on_device = CudaStore(format_of(scene.tensors[0]), Thresholds(), 1000)
    for index in range(2):
        store.update(scene.planes[index], FrameStamp(index, 0, 0))
        on_device.update_tensor(scene.tensors[index], FrameStamp(index, 0, 0))
    tiles = np.argwhere(scene.dirty)
    allocator, tensor_allocator = (
        StreamAllocator(AllocatorOptions(budget=BUDGET, levels=True, on_device=True), measures_change=False)
        for _ in range(2)
    )
    relevance = CachedRelevance(RelevanceRealiser(), stays=True)
    with store.lease() as view:
        channels, entropy = view.texture_array()
        first = allocator.allocate(view)
    regions, tokens = first.selection.choice.regions, first.tokens

    def update(turn: int) -> None:
        store.update(scene.planes[turn % 2], FrameStamp(turn, 0, 0))

    def gather(turn: int) -> None:
        with store.lease() as view:
            view.patches(regions, torch.bfloat16)

    @torch.inference_mode()
    def scores(turn: int) -> None:
        relevance.compute(TextureArray(channels, entropy), None)

    @torch.inference_mode()
    def choice(turn: int) -> None:
        choose(AllocationRequest(first.relevance, tokens, 0.25, 0, AllocationHistory()), "foveated")

    def texture_array(turn: int) -> None:
        with store.lease() as view:
            view.texture_array()

    def frame(turn: int) -> None:
        update(turn)
        with store.lease() as view:
            allocator.allocate(view)

    def answer(turn: int) -> None:
        update(turn)
        with store.lease() as view:
            packet_from(view, allocator.allocate(view))

    def update_tensor(turn: int) -> None:
        on_device.update_tensor(scene.tensors[turn % 2], FrameStamp(turn, 0, 0))

    def frame_tensor(turn: int) -> None:
        update_tensor(turn)
        with on_device.lease() as view:
            tensor_allocator.allocate(view)

    return {
        "upload": lambda turn: store.send(tiles),
        "update": update,
        "update_tensor": update_tensor,
        "gather": gather,
        "channels": texture_array,
        "scores": scores,
        "choice": choice,
        "frame": frame,
        "answer": answer,
        "frame_tensor": frame_tensor,
    }


def held_mib(device: CudaDevice) -> dict[str, float]:
    """Memory of the process, and its number of open files."""
    used = 0
    if device.place.type == "cuda":
        free, total = torch.cuda.mem_get_info(device.place)
        used = total - free
    process = psutil.Process()
    return {"device": used / 2**20, "host": process.memory_info().rss / 2**20, "files": float(process.num_fds())}


def leaks(device: CudaDevice, updates: int) -> dict[str, Any]:
    """Growth of the process after `updates` updates, reads and gathers, and a store opened for every hundredth."""
    rng = np.random.default_rng(0)
    frames = [FramePlanes("gray", (rng.integers(0, 256, (96, 96), dtype=np.uint8),)) for _ in range(2)]
    fmt, one = PlaneFormat.of(frames[0]), np.eye(3, dtype=bool)
    store = CudaStore(fmt, Thresholds(), 1000)
    before: dict[str, float] = {}
    for index in range(SETTLING + updates):
        if index == SETTLING:
            before = held_mib(device)
        store.write(frames[index % 2], Difference(one), FrameStamp(index, 0, 0))
        with store.lease() as view:
            view.read(3)
            view.patches(np.array([[0, 1, 1]]))
        if index % 100 == 0:
            store.close()
            store = CudaStore(fmt, Thresholds(), 1000)
    call("cuCtxSynchronize")
    grown = {name: round(value - before[name], 2) for name, value in held_mib(device).items()}
    return {
        "updates": updates,
        "grown": grown,
        "ok": max(grown["device"], grown["host"]) <= LEAK_MIB and grown["files"] <= 0,
    }


def judged(results: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """Each target, beside the median that was measured."""
    return [
        {"what": what, "time": kind, "target_ms": target, "p50_ms": results[what][kind]["p50"]}
        | {"reached": results[what][kind]["p50"] <= target}
        for (what, kind), target in TARGETS_MS.items()
    ]


def gpu_of(device: CudaDevice) -> dict[str, Any]:
    """Names of GPU and driver, and the origin of the kernels."""
    driver = call("cuDriverGetVersion")
    about: dict[str, Any] = {
        "cuda_driver": f"{driver // 1000}.{driver % 1000 // 10}",
        "torch_cuda": torch.version.cuda,
        "kernels": "compiled by nvcc" if compiling.nvcc() else "shipped PTX",
    }
    if device.place.type == "cuda":
        properties = torch.cuda.get_device_properties(device.place)
        about |= {"gpu": properties.name, "capability": f"{properties.major}.{properties.minor}"}
    return about


def run(size: tuple[int, int], rounds: int, updates: int) -> dict[str, Any]:
    """Everything, as it is written to the file; `size` is (height, width)."""
    device = find_device()
    with device.current():
        scene = make_scene(*size, device)
        timer = Timer(device, rounds)
        results = {name: timer.measure(work) for name, work in pieces(scene, device).items()}
        leak = leaks(device, updates)
    return {
        "benchmark": "gpu",
        "machine": machine() | gpu_of(device),
        "size": f"{size[1]}x{size[0]}",
        "dirty_share": round(float(scene.dirty.mean()), 4),
        "milliseconds": results,
        "targets": judged(results),
        "leaks": leak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="how often each piece is timed")
    parser.add_argument("--size", default="1920x1080", help="WIDTHxHEIGHT of the frames")
    parser.add_argument("--updates", type=int, default=100_000, help="updates after which nothing may have grown")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    report = run((height, width), arguments.rounds, arguments.updates)
    for name, times in report["milliseconds"].items():
        print(f"{name:14} device {times['device']['p50']:8.4f} ms   wall {times['wall']['p50']:8.4f} ms")
    for target in report["targets"]:
        verdict = "reached" if target["reached"] else "MISSED"
        print(f"{target['what']} {target['time']}: {target['p50_ms']} of {target['target_ms']} ms, {verdict}")
    print(f"after {report['leaks']['updates']} updates grown by {report['leaks']['grown']}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
