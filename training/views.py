"""What a model is shown of a drawn world: regions chosen in many ways, their pixels, and what each of them shows.

The model must serve whatever `allocate` gives it: the real relevance of an untrained allocator for the most part,
maps that know more or less where the things are, even grids, and all tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.allocator import AllocatorOptions, StreamAllocator
from arr_coc.attending import Memory, Request, allocate_frame
from arr_coc.types import TILE_PX, FramePlanes, FrameStamp, TileGrid
from arr_coc.updater import TextureUpdater
from stream.scenes.world import COLOURS, MOVEMENTS, PLACES, SHAPES, Facts
from training.demo_worlds import World

TARGETS: dict[str, int] = {
    "shape": len(SHAPES),
    "colour": len(COLOURS),
    "movement": len(MOVEMENTS),
    "place": len(PLACES),
    "tens": 10,
    "units": 10,
    "order": 3,
}
"""What is asked of every visual token on its own, and how many answers there are."""

UNKNOWN = -1
"""A target that does not apply: on background, or a digit of what is no number."""

_LEAST_COVER = 0.12

Regions = npt.NDArray[np.int64]

How = Literal["allocator", "foveated", "mixed", "grid"]
"""The real allocator, or a strategy of `allocate` on a made-up relevance map."""

HOWS: tuple[How, ...] = ("allocator", "foveated", "mixed", "grid")


@dataclass(frozen=True, slots=True)
class View:
    """One picture as tokens: `regions` int64 [K, 3], `pixels` uint8 [K, 3, 32, 32], `targets` int8 [K, 7]."""

    grid: TileGrid
    regions: Regions
    pixels: npt.NDArray[np.uint8]
    targets: npt.NDArray[np.int8]


class Viewer:
    """Shows worlds of one size, at budgets up to the number of their tiles."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._texture = TextureUpdater()
        self._allocators = [
            StreamAllocator(AllocatorOptions(strategy="foveated", explore=explore, levels=True))
            for explore in (0.0, 0.1)
        ]
        self._frame_index = 0

    def look(self, world: World, budget: int, how: How) -> View:
        """The world at a budget of tokens, or with all of its tiles where the budget allows."""
        self._frame_index += 1
        stamp = FrameStamp(self._frame_index, 0, 0)
        update = self._texture.process(FramePlanes("rgb", (world.image,)), stamp, discontinuity="start")
        with self._texture.lease() as view:
            if budget >= view.grid.tiles:
                regions = _chosen(np.ones(view.grid.shape, np.float32), view.grid.tiles, "topk")
            elif how == "allocator":
                allocator = self._allocators[int(self._rng.integers(2))]
                regions = allocator.allocate(view, update.shift, budget).allocation.regions.numpy()
            else:
                regions = _chosen(self._imagined(world.facts, view.grid), budget, how)
            pixels = view.gather(regions)
            return View(view.grid, regions, pixels, token_targets(world.facts, view.grid, regions))

    def _imagined(self, facts: Facts, grid: TileGrid) -> npt.NDArray[np.float32]:
        """A relevance map that knows the things more or less well, under smooth noise."""
        rng = self._rng
        coarse = rng.random((3, 4), dtype=np.float32)
        relevance = cv2.resize(coarse, grid.shape[::-1], interpolation=cv2.INTER_LINEAR) * float(rng.uniform(0.1, 0.6))
        relevance += rng.random(grid.shape, dtype=np.float32) * float(rng.uniform(0, 0.4))
        for thing in facts.things:
            left, top, right, bottom = (edge / TILE_PX for edge in thing.box_px(streak=True))
            rows = slice(max(0, int(top)), int(bottom) + 1)
            cols = slice(max(0, int(left)), int(right) + 1)
            relevance[rows, cols] += float(rng.uniform(0.1, 1.0))
        return np.clip(relevance, 0, 1).astype(np.float32)


def _chosen(relevance: npt.NDArray[np.float32], tokens: int, strategy: str) -> Regions:
    return allocate_frame(Request(relevance, tokens, 0.25, 0, Memory()), strategy).regions.numpy()


def token_targets(facts: Facts, grid: TileGrid, regions: Regions) -> npt.NDArray[np.int8]:
    """What each region shows: int8 [K, 7] in the order of `TARGETS`, `UNKNOWN` where nothing is to be known.

    A region shows the thing (streak included) that covers most of it, if that is at least an eighth, or if the region
    holds at least a third of the thing. A digit is asked of the regions that show its half of the number.
    """
    best = np.zeros(len(regions))
    targets = np.full((len(regions), len(TARGETS)), UNKNOWN, dtype=np.int8)
    for order, thing in enumerate(facts.things):
        area_px = thing.width_px * thing.size_px
        shared, enough = _shared(regions, thing.box_px(streak=True), area_px)
        shows = (shared > best) & enough
        best = np.where(shows, shared, best)
        targets[shows] = (
            SHAPES.index(thing.shape),
            list(COLOURS).index(thing.colour),
            MOVEMENTS.index(thing.movement),
            PLACES.index(thing.place(facts.width_px, facts.height_px)),
            UNKNOWN,
            UNKNOWN,
            order,
        )
        if thing.number is not None:
            left, top, right, bottom = thing.box_px()
            for digit, name, box in zip(
                divmod(thing.number, 10),
                ("tens", "units"),
                ((left, top, thing.x_px, bottom), (thing.x_px, top, right, bottom)),
                strict=True,
            ):
                _, enough = _shared(regions, box, area_px / 2)
                targets[shows & enough, list(TARGETS).index(name)] = digit
    return targets


def _shared(
    regions: Regions, box_px: tuple[float, float, float, float], area_px: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Pixels that each region shares with a box, and whether they are enough to show what it holds."""
    side_px = (TILE_PX << regions[:, 0]).astype(np.float64)
    top, left = regions[:, 1] * side_px, regions[:, 2] * side_px
    x0, y0, x1, y1 = box_px
    wide = np.minimum(left + side_px, x1) - np.maximum(left, x0)
    high = np.minimum(top + side_px, y1) - np.maximum(top, y0)
    shared = np.clip(wide, 0, None) * np.clip(high, 0, None)
    return shared, (shared >= _LEAST_COVER * side_px * side_px) | (shared * 3 >= area_px)
