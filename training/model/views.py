"""Regions shown and token targets.

The model must serve whatever `allocate` gives it: the real relevance of an untrained allocator, maps that know more or
less about the places of things, even grids, a random choice, and all tiles. Any of them may come after an overview.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.attending import allocate_frame
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest
from arr_coc.allocation.text_lines import LEAST_RUN, Levels, line_strength, line_tiles
from arr_coc.texture.regions import first_tiles, overview_regions, region_sides
from arr_coc.types import TILE_PX, FramePlanes, FrameStamp, TileGrid
from arr_coc.video.texture_updater import TextureUpdater
from stream.scenes.drawing import MOVEMENTS, SHAPE_NAMES
from training.clips.cast import COLOUR_NAMES
from training.clips.scenes import PATTERNS
from training.clips.truth import Box, Image, Seen
from training.questions.stories import middle

THING_KINDS = (*SHAPE_NAMES, "number", "word", *PATTERNS)
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLACES_A_SIDE = 24
SLOTS = ("left", "middle", "right")
SPELLED = ("first", "second", "third", "fourth", "fifth")

TARGETS: dict[str, int] = {
    "what": len(THING_KINDS),
    "colour": len(COLOUR_NAMES),
    "movement": len(MOVEMENTS),
    "across": PLACES_A_SIDE,
    "down": PLACES_A_SIDE,
    "order": 6,
    "holds": 2,
    **{slot: len(CHARACTERS) for slot in (*SLOTS, *SPELLED)},
}
"""Targets of every single visual token, with their numbers of classes.

`across`, `down`: the middle of its thing, in 24ths of the picture. `order`: which thing it is, from left to
right. `holds`: whether the thing's middle is in this token, so that every thing can be counted once. `left`, `middle`,
`right`: the character in that third of the token. `first` to `fifth`: the characters of the whole text that it shows a
part of.
"""

_HOLDS = list(TARGETS).index("holds")
_SLOT_COLUMNS = [list(TARGETS).index(slot) for slot in SLOTS]
_FIRST_SPELLED = list(TARGETS).index(SPELLED[0])

UNKNOWN = -1
"""A target that does not apply: on background, or for a character that does not exist."""

_LEAST_COVER = 0.12

_FOUND_SHARE = 0.3
"""Of the pictures with wide regions: those whose lines of text are found as an allocator finds them, not made up."""

_KNOWN_SHARE = 0.8
_UPRIGHT_SHARE = 0.15
_STRAY_RUNS = 1.0
"""Of made-up lines: how many texts have one, how many stand upright, and how many lie beside texts."""

Regions = npt.NDArray[np.int64]
Lines = npt.NDArray[np.bool_]

ShowingStrategy = Literal["allocator", "foveated", "mixed", "topk", "grid", "random"]
"""The real allocator, or a strategy of `allocate` on a made-up relevance map."""

STRATEGIES: tuple[ShowingStrategy, ...] = ("allocator", "foveated", "mixed", "topk", "grid", "random")


@dataclass(frozen=True, slots=True)
class TokenView:
    """One frame as tokens: `regions` int64 [K, 3], `pixels` uint8 [K, 3, 32, 32], `targets` int8 [K, 15].

    The first `overview` of them are an overview of the whole frame; it and the rest are encoded apart.
    """

    grid: TileGrid
    regions: Regions
    pixels: npt.NDArray[np.uint8]
    targets: npt.NDArray[np.int8]
    overview: int = 0

    def kept(self, rows: npt.NDArray[np.int64]) -> TokenView:
        """Only the tokens `rows`, ascending; the overview must be among them."""
        return replace(self, regions=self.regions[rows], pixels=self.pixels[rows], targets=self.targets[rows])


@dataclass(frozen=True, slots=True)
class Showing:
    """View of a frame: at most `budget` tokens, chosen in one way.

    `overview`: of these, at most this many show the whole frame first, with regions of one size; nothing else is shown
    if that is all. `wide`: wide and tall regions show lines of text.
    """

    budget: int
    strategy: ShowingStrategy
    overview: int = 0
    wide: bool = False


class Viewer:
    """Views of frames of any size, at budgets up to the number of their tiles."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._texture = TextureUpdater()
        self._allocators = [
            [
                StreamAllocator(AllocatorOptions(strategy="foveated", explore=explore, wide=wide))
                for explore in (0.0, 0.1)
            ]
            for wide in (False, True)
        ]
        self._frame_index = 0

    def look(self, image: Image, things: Sequence[Seen], showing: Showing, about: Sequence[Box] = ()) -> TokenView:
        """Return a frame at a budget of tokens, or with all of its tiles if the budget allows.

        Args:
            image: The frame uint8 [H, W, 3].
            things: Things in the frame.
            showing: Budget and strategy.
            about: Boxes of the things asked about, which a made-up map makes more of.
        """
        self._frame_index += 1
        stamp = FrameStamp(self._frame_index, 0, 0)
        update = self._texture.process(FramePlanes("rgb", (image,)), stamp, discontinuity="start")
        with self._texture.lease() as view:
            first = overview_regions(view.grid.shape, showing.overview)
            tokens = showing.budget - len(first)
            lines = self._lines(view, things) if showing.wide else None
            if tokens == 0:
                selection = first[:0]
            elif tokens >= view.grid.tiles:
                selection = _chosen(np.ones(view.grid.shape, np.float32), view.grid.tiles, "topk")
            elif showing.strategy == "allocator":
                allocator = self._allocators[showing.wide][int(self._rng.integers(2))]
                selection = allocator.allocate(view, update.motion, tokens).allocation.regions.numpy()
            elif showing.strategy == "random":
                selection = _chosen(self._rng.random(view.grid.shape, dtype=np.float32), tokens, "topk")
            else:
                selection = _chosen(self._imagined(things, about, view.grid), tokens, showing.strategy, lines)
            regions = np.concatenate([first, selection])
            targets = token_targets(things, image.shape[:2], regions)
            return TokenView(view.grid, regions, view.gather(regions), targets, len(first))

    def _imagined(self, things: Sequence[Seen], about: Sequence[Box], grid: TileGrid) -> npt.NDArray[np.float32]:
        """A relevance map that knows the things more or less well, under smooth noise."""
        rng = self._rng
        coarse = rng.random((3, 4), dtype=np.float32)
        relevance = cv2.resize(coarse, grid.shape[::-1], interpolation=cv2.INTER_LINEAR) * float(rng.uniform(0.1, 0.5))
        relevance += rng.random(grid.shape, dtype=np.float32) * float(rng.uniform(0, 0.3))
        least, most = (0.05, 0.4) if about else (0.1, 1.0)
        for thing in things:
            relevance[_tiles_of(thing.box_px)] += float(rng.uniform(least, most))
        for box in about:
            relevance[_tiles_of(box)] += float(rng.uniform(0.4, 1.2))
        return relevance / max(1.0, float(relevance.max()))

    def _lines(self, view: Levels, things: Sequence[Seen]) -> Lines:
        """Tiles of lines, bool [2, gh, gw]: as an allocator finds them, or about those of the texts."""
        rng = self._rng
        image_lines = line_tiles(line_strength(view), None)
        if rng.random() < _FOUND_SHARE:
            return image_lines
        lines = np.zeros_like(image_lines)
        for thing in things:
            if thing.text and rng.random() < _KNOWN_SHARE:
                lines[int(rng.random() < _UPRIGHT_SHARE)][_tiles_of(thing.box_px)] = True
        for _ in range(int(rng.poisson(_STRAY_RUNS))):
            row, col = (int(rng.integers(side)) for side in image_lines.shape[1:])
            if rng.random() < _UPRIGHT_SHARE:
                lines[1, row : row + LEAST_RUN, col] = True
            else:
                lines[0, row, col : col + LEAST_RUN] = True
        lines[1] &= ~lines[0]
        return lines


def _tiles_of(box_px: Box) -> tuple[slice, slice]:
    left, top, right, bottom = (edge / TILE_PX for edge in box_px)
    return slice(max(0, int(top)), int(bottom) + 1), slice(max(0, int(left)), int(right) + 1)


def _chosen(relevance: npt.NDArray[np.float32], tokens: int, strategy: str, lines: Lines | None = None) -> Regions:
    request = AllocationRequest(torch.from_numpy(relevance), tokens, 0.25, 0, AllocationHistory(), lines=lines)
    return allocate_frame(request, strategy).regions.numpy()


def token_targets(things: Sequence[Seen], size_px: tuple[int, int], regions: Regions) -> npt.NDArray[np.int8]:
    """Return the content of each region.

    A region shows the thing that covers most of it, if that is at least an eighth, or if the region holds at least a
    third of the thing.

    Args:
        things: Things in the frame.
        size_px: (height, width) of the frame.
        regions: Regions int [K, 3] of level, row and column.

    Returns:
        int8 [K, 15] in the order of `TARGETS`, `UNKNOWN` if nothing is to be known.
    """
    best = np.zeros(len(regions))
    targets = np.full((len(regions), len(TARGETS)), UNKNOWN, dtype=np.int8)
    in_order = sorted(things, key=lambda thing: thing.box_px[0] + thing.box_px[2])
    for order, thing in enumerate(in_order):
        shared, qualifies = _shared(regions, thing.box_px)
        shows = (shared > best) & qualifies
        best = np.where(shows, shared, best)
        targets[shows] = (
            THING_KINDS.index(thing.kind),
            COLOUR_NAMES.index(thing.colour) if thing.colour in COLOUR_NAMES else UNKNOWN,
            MOVEMENTS.index(thing.movement),
            *place_on_grid(thing.box_px, size_px),
            order if order < TARGETS["order"] else UNKNOWN,
            0,
            *(UNKNOWN for _ in (*SLOTS, *SPELLED)),
        )
        targets[shows & _middle_in(regions, thing.box_px)[1], _HOLDS] = 1
        for place, character in enumerate(thing.text[: len(SPELLED)], _FIRST_SPELLED):
            targets[shows, place] = CHARACTERS.index(character)
        for character, box in zip(thing.text, thing.letters, strict=False):
            _set_character(targets, shows, regions, character, box)
    return targets


def place_on_grid(box_px: Box, size_px: tuple[int, int]) -> tuple[int, int]:
    """The middle of a box, across and down, in 24ths of a picture of (height, width) pixels: each 0 to 23."""
    x, y = middle(box_px)
    shares = x / size_px[1], y / size_px[0]
    across, down = (min(PLACES_A_SIDE - 1, max(0, int(PLACES_A_SIDE * share))) for share in shares)
    return across, down


def _set_character(
    targets: npt.NDArray[np.int8], shows: npt.NDArray[np.bool_], regions: Regions, character: str, box_px: Box
) -> None:
    """Set a character as the target of the regions that hold its middle, in its third of the token."""
    across, holds_middle = _middle_in(regions, box_px)
    for slot, column in enumerate(_SLOT_COLUMNS):
        free = targets[:, column] == UNKNOWN
        in_slot = np.floor(across * len(SLOTS)) == slot
        targets[shows & holds_middle & in_slot & free, column] = CHARACTERS.index(character)


def _middle_in(regions: Regions, box_px: Box) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Place across each region of the middle of a box, in the region's sides, and the regions that hold it."""
    x, y = middle(box_px)
    high_px, wide_px = (region_sides(regions) * TILE_PX).T
    across, down = x / wide_px - regions[:, 2], y / high_px - regions[:, 1]
    return across, np.asarray((across >= 0) & (across < 1) & (down >= 0) & (down < 1))


def _shared(regions: Regions, box_px: Box) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Pixels that each region shares with a box, and whether they are enough to show what it holds."""
    high_px, wide_px = (region_sides(regions) * TILE_PX).T
    top, left = (first_tiles(regions) * TILE_PX).T
    x0, y0, x1, y1 = box_px
    wide = np.minimum(left + wide_px, x1) - np.maximum(left, x0)
    high = np.minimum(top + high_px, y1) - np.maximum(top, y0)
    shared = np.clip(wide, 0, None) * np.clip(high, 0, None)
    area_px = (x1 - x0) * (y1 - y0)
    return shared, (shared >= _LEAST_COVER * high_px * wide_px) | (shared * 3 >= area_px)
