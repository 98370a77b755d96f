"""Times of frames on hardware and on the CPU store: from which picture size on hardware is faster, and by how much."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch

from arr_coc.allocation.device_relevance import DeviceRelevance, RelevanceView
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest, choose
from arr_coc.allocation.temporal import TemporalBlend
from arr_coc.backends.registry import open_store
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import TextureArrayCache, device_texture_array
from arr_coc.texture.store.base import Backend, TextureStore, TextureView, gather_pixels
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import FramePlanes, FrameStamp
from stream.extensions.doctor.gpu.checks import CheckResult, Figure

SIZES = ((180, 320), (360, 640), (720, 1280), (1080, 1920), (2160, 3840))
"""Heights and widths of the pictures."""

SIZES_IN_SOFTWARE = SIZES[:3]
EMULATED_SIZES = ((64, 128), (96, 160))
"""If a CPU draws, and if it emulates CUDA."""

TOKENS = 273
WARM_UP = 3
LEASE_MS = 10_000

PARTS = ("update", "choice", "pixels")


class TileChoice(Protocol):
    """The choice of a stream's tiles, frame after frame."""

    def choose(self, view: TextureView) -> torch.Tensor:
        """Return regions [K, 3] of the frame in `view`."""
        ...


class TorchChoice:
    """By torch and the compiled kernels, where the texture is: on the host or on a CUDA device."""

    def __init__(self, tokens: int) -> None:
        torch.manual_seed(0)
        self._tokens = tokens
        self._relevance = CachedRelevance(RelevanceRealiser(), stays=True)
        self._blend = TemporalBlend()
        self._cache = TextureArrayCache()

    @torch.inference_mode()
    def choose(self, view: TextureView) -> torch.Tensor:
        texture = device_texture_array(view, "core13", self._cache)
        realised = self._relevance.compute(texture, None)
        relevance = self._blend.step(realised.relevance, texture.looks, view.stamp.media_ns)
        return choose(AllocationRequest(relevance, self._tokens, 0.0, 0, AllocationHistory()), "topk").regions


class ShaderChoice:
    """By OpenGL's compute shaders."""

    def __init__(self, tokens: int) -> None:
        torch.manual_seed(0)
        self._tokens = tokens
        self._relevance = DeviceRelevance(RelevanceRealiser())

    def choose(self, view: TextureView) -> torch.Tensor:
        self._relevance.step(cast(RelevanceView, view))
        return self._relevance.choose(self._tokens).regions


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Medians in milliseconds of the parts of a frame of one size, by hardware and by the CPU store."""

    size: tuple[int, int]
    hardware_ms: dict[str, float]
    cpu_ms: dict[str, float]

    @property
    def label(self) -> str:
        return f"{self.size[1]}x{self.size[0]}"

    def times_faster(self, *parts: str) -> float:
        """Return how many times as fast the hardware is in these parts."""
        return sum(map(self.cpu_ms.__getitem__, parts)) / sum(map(self.hardware_ms.__getitem__, parts))


def opengl() -> CheckResult:
    """Time frames of all sizes on OpenGL and on the CPU store."""
    from arr_coc.backends.gl.device import open_device

    device = open_device()

    def finish() -> None:
        with device.current():
            device.library.gl.glFinish()

    rows = [
        measure("gl", size, finish, rounds=5 if device.software else 30)
        for size in (SIZES_IN_SOFTWARE if device.software else SIZES)
    ]
    return result_of(rows, {"renderer": device.renderer}, software=device.software)


def cuda() -> CheckResult:
    """Time frames of all sizes on CUDA and on the CPU store."""
    from arr_coc.backends.cuda.device import call, find_device

    device = find_device()
    emulated = device.place.type != "cuda"
    with device.current():
        rows = [
            measure("cuda", size, lambda: call("cuCtxSynchronize"), rounds=2 if emulated else 30)
            for size in (EMULATED_SIZES if emulated else SIZES)
        ]
    return result_of(rows, {}, software=emulated)


def measure(backend: Backend, size: tuple[int, int], finish: Callable[[], object], rounds: int) -> SizeRow:
    """Time frames of which a tenth of the tiles changes, on both stores by turns.

    Args:
        backend: The hardware's.
        size: (height, width) of the frames, in pixels.
        finish: Waits for the hardware.
        rounds: Frames that count.
    """
    frames = changing_frames(size)
    fmt = PlaneFormat.of(frames[0])
    tokens = min(TOKENS, fmt.grid.tiles // 3)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(closing(open_store(fmt, name, lease_timeout_ms=LEASE_MS))) for name in (backend, "cpu")
        ]
        hardware = ShaderChoice(tokens) if backend == "gl" else TorchChoice(tokens)
        sides: list[tuple[TextureStore, TileChoice]] = [(stores[0], hardware), (stores[1], TorchChoice(tokens))]
        times_ms: list[dict[str, list[float]]] = [{part: [] for part in PARTS} for _ in sides]
        for turn in range(WARM_UP + rounds):
            for (store, choice), side_ms in zip(sides, times_ms, strict=True):
                marks_ns = [time.perf_counter_ns()]
                store.update(frames[turn % 2], FrameStamp(turn, turn * 40_000_000, 0))
                finish()
                marks_ns.append(time.perf_counter_ns())
                with store.lease() as view:
                    regions = choice.choose(view)
                    finish()
                    marks_ns.append(time.perf_counter_ns())
                    gather_pixels(view, regions)
                    finish()
                marks_ns.append(time.perf_counter_ns())
                for part, taken_ns in zip(PARTS, np.diff(marks_ns), strict=True):
                    side_ms[part].append(float(taken_ns) / 1e6)
    medians = [{part: statistics.median(values[WARM_UP:]) for part, values in side.items()} for side in times_ms]
    return SizeRow(size, *medians)


def changing_frames(size: tuple[int, int]) -> list[FramePlanes]:
    """Return two frames of noise, 4:2:0, that differ in a block of a tenth of the picture."""
    rng = np.random.default_rng(0)
    height, width = size
    first = tuple(rng.integers(40, 200, (height >> down, width >> down), dtype=np.uint8) for down in (0, 1, 1))
    second = tuple(plane.copy() for plane in first)
    for plane in second:
        plane[: round(plane.shape[0] * 0.1**0.5), : round(plane.shape[1] * 0.1**0.5)] += np.uint8(30)
    return [FramePlanes("yuv", planes) for planes in (first, second)]


def result_of(rows: Sequence[SizeRow], facts: dict[str, Any], *, software: bool) -> CheckResult:
    """Return what the rows say: the verdict, then how many times faster each size and, at the largest, each part is."""
    figures = [Figure(row.label, row.times_faster(*PARTS), "times") for row in rows]
    figures += [Figure(f"{part} {rows[-1].label}", rows[-1].times_faster(part), "times") for part in PARTS]
    milliseconds = {
        row.label: {part: [round(side[part], 4) for side in (row.hardware_ms, row.cpu_ms)] for part in PARTS}
        for row in rows
    }
    finding = "; ".join([verdict(rows), *map(str, figures)])
    return CheckResult(finding, facts | {"hardware_and_cpu_ms": milliseconds}, tuple(figures), software)


def verdict(rows: Sequence[SizeRow]) -> str:
    """Return from which size on the hardware beats the CPU store, given rows from the smallest to the largest."""
    ratios = [row.times_faster(*PARTS) for row in rows]
    first = len(rows)
    while first > 0 and ratios[first - 1] > 1:
        first -= 1
    if first < len(rows):
        largest = f"{ratios[-1]:.2g} times as fast at {rows[-1].label}"
        return f"beats the CPU store from {rows[first].label} on, {largest}"
    best = max(range(len(rows)), key=ratios.__getitem__)
    return f"does not beat the CPU store up to {rows[-1].label}; at best {ratios[best]:.2g} times as fast"
