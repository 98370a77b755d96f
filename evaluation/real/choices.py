"""Ways to spend a budget on a frame without a model: this project's as any Qwen-VL gets them, and baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.qwen.preprocess import Rgb
from arr_coc.texture.regions import ABSENT
from arr_coc.types import LEVELS, REGION_SHAPES, FramePlanes
from arr_coc.video.texture_updater import TextureUpdater
from evaluation.errors import ChoiceError
from evaluation.real.frames import ShownFrame
from evaluation.real.saliency import Map, frequency_tuned, spectral_residual
from evaluation.strategies.base import Budget

OWN = ("topk", "mixed", "foveated", "grid")
"""Strategies of the allocator; `auto` means `topk`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Shares of each tile that are seen at full resolution, at half of it or better, and at all: float64 [rows, cols]
    in [0, 1]. `tokens` were spent."""

    full: npt.NDArray[np.float64]
    half: npt.NDArray[np.float64]
    any: npt.NDArray[np.float64]
    tokens: int


def seen_levels(levels: npt.NDArray[np.int8], tokens: int) -> Seen:
    """Return what is seen of tiles that regions of these shapes show, int8 [rows, cols], `ABSENT` for none."""
    halvings = np.array([max(shape) for shape in REGION_SHAPES])
    level = np.where(levels == ABSENT, LEVELS, halvings[levels])
    full, half, shown = ((level <= coarsest).astype(np.float64) for coarsest in (0, 1, LEVELS - 1))
    return Seen(full, half, shown, tokens)


def allocated(frame: ShownFrame, ways: Sequence[tuple[str, Budget]]) -> dict[tuple[str, Budget], Seen]:
    """Return what the allocator shows, by strategy and budget, without weights, question and answers.

    The frames before are observed, so that movement counts; no share of the budget explores, and no glance is made.
    Raises as StreamAllocator.
    """
    allocators = {
        way: StreamAllocator(AllocatorOptions(way[0], way[1].of(frame.grid.tiles), explore=0.0, wide=False))
        for way in ways
    }
    texture = TextureUpdater()
    try:
        for image, stamp in zip(frame.images, frame.stamps, strict=True):
            update = texture.process(FramePlanes("rgb", (image,)), stamp)
            with texture.lease() as view:
                frames = {way: allocator.observe(view, update.motion) for way, allocator in allocators.items()}
        return {way: seen_levels(allocation.levels, allocation.tokens) for way, allocation in frames.items()}
    finally:
        texture.close()


def best(worth: Map, tokens: int) -> Seen:
    """Return the tiles of highest worth [rows, cols]; of equals, the first."""
    levels = np.full(worth.size, ABSENT, np.int8)
    levels[np.argsort(-worth.ravel(), kind="stable")[:tokens]] = 0
    return seen_levels(levels.reshape(worth.shape), tokens)


def _chance(frame: ShownFrame, tokens: int) -> Seen:
    share = np.full(frame.grid.shape, tokens / frame.grid.tiles)
    return Seen(share, share, share, tokens)


def _centre(frame: ShownFrame, tokens: int) -> Seen:
    rows, cols = frame.grid.shape
    down = (np.arange(rows) + 0.5) / rows - 0.5
    across = (np.arange(cols) + 0.5) / cols - 0.5
    return best(-np.hypot(down[:, None], across).astype(np.float32), tokens)


def _smaller(frame: ShownFrame, tokens: int) -> Seen:
    scale = math.sqrt(tokens / frame.grid.tiles)
    full, half, shown = (np.full(frame.grid.shape, float(scale >= least)) for least in (1.0, 0.5, 0.0))
    return Seen(full, half, shown, tokens)


def _salient(saliency: Callable[[Rgb, tuple[int, int]], Map]) -> Callable[[ShownFrame, int], Seen]:
    return lambda frame, tokens: best(saliency(frame.image, frame.grid.shape), tokens)


def _ceiling(frame: ShownFrame, tokens: int) -> Seen:
    return best(np.sum([frame.coverage(box) for box in frame.label.boxes], axis=0).astype(np.float32), tokens)


BASELINES: dict[str, Callable[[ShownFrame, int], Seen]] = {
    "chance": _chance,
    "centre": _centre,
    "smaller": _smaller,
    "spectral-residual": _salient(spectral_residual),
    "frequency-tuned": _salient(frequency_tuned),
    "ceiling": _ceiling,
}
"""By name: `chance` is the expected value of tiles drawn evenly, `centre` the tiles nearest to the middle, `smaller`
the whole picture scaled down to the budget. `ceiling` knows the boxes: no choice of tiles has a higher mean share of
them at full resolution."""

STRATEGIES = (*OWN, *BASELINES)


def named_strategies(text: str) -> list[str]:
    """Return the strategies of a list with commas. Raises ChoiceError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in STRATEGIES:
            raise ChoiceError(f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return names


def seen(frame: ShownFrame, strategies: Sequence[str], budgets: Sequence[Budget]) -> dict[tuple[str, Budget], Seen]:
    """Return what is seen of a frame, by strategy and budget."""
    ways = [(strategy, budget) for strategy in strategies for budget in budgets]
    result = allocated(frame, [way for way in ways if way[0] in OWN])
    for strategy, budget in ways:
        if strategy in BASELINES:
            result[strategy, budget] = BASELINES[strategy](frame, budget.of(frame.grid.tiles))
    return {way: result[way] for way in ways}
