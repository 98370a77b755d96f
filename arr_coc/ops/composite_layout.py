"""Layouts of one smaller picture: the whole view and the parts that matter most; and drawing them. Without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.texture.store.planes import Plane
from arr_coc.types import TILE_PX, TileGrid

Box = tuple[int, int, int, int]
"""(top, left, bottom, right), half-open, in pixels."""

BORDER_PX = 2
"""Width of the frame around a part: thin, and still there after a model's own resizing."""

MOST_STRETCH = 1.12
"""Largest error of the whole view's aspect for whole tiles: as in Qwen's own processor."""

WHOLE_SHARE = (1 / 3, 2 / 3)
"""Part of the tokens that the whole view may take, if parts are shown beside it."""

MOST_PARTS = 4
LEAST_SIDE_TILES = 3
MOST_ASPECT = 2.0
"""A few parts that are not narrow show things whole; many small ones would show more relevant tiles, and only pieces of
things."""

PART_COST = 0.02
"""Octaves of the whole picture that one part more must gain: things that fit into few parts are not torn into many."""

NEAR = 0.02
"""Windows whose worth differs by less are equal, so that what matters stands in the middle of a part."""

COARSEST_PART = 3
"""Parts may be shown smaller by up to 2 to this power."""


@dataclass(frozen=True, slots=True)
class CompositePlacement:
    """A part of the picture, `source`, and its place in the composite, `target`: boxes in pixels of either."""

    source: Box
    target: Box

    @property
    def scale(self) -> float:
        """Composite pixels for each pixel of the picture, along a row."""
        return (self.target[3] - self.target[1]) / (self.source[3] - self.source[1])


@dataclass(frozen=True, slots=True)
class CompositeLayout:
    """`size` (height, width) of the composite; the whole view comes first in `placements`."""

    size: tuple[int, int]
    placements: tuple[CompositePlacement, ...]


def best_layout(size: tuple[int, int], relevance: npt.NDArray[np.float32], tokens: int) -> CompositeLayout:
    """Return the layout that shows relevant tiles largest, for a picture at least as wide as high.

    Layouts are the whole view alone, or above one to four equal parts; parts are cut at full size or halved up to
    three times, and are placed to show most. Each octave of scale counts the same on every tile, times relevance³, as
    in `CoverTree.split_worth`.

    Args:
        size: (height, width) of the picture in pixels.
        relevance: float32 [gh, gw].
        tokens: Number of tiles of the composite.
    """
    worth = np.maximum(relevance, 0).astype(np.float64) ** 3
    best = _whole_alone(size, tokens)
    most = worth.sum() * math.log2(best.placements[0].scale)
    for rows, cols, high in _whole_views(size, tokens):
        height, width = size
        full_view = CompositePlacement((0, 0, height, width), (0, 0, high * TILE_PX, cols * TILE_PX))
        for cells in _shelves(high, rows, cols):
            for level in range(COARSEST_PART + 1):
                parts, part_worth = _parts(size, worth, cells, level)
                value = worth.sum() * (math.log2(full_view.scale) - PART_COST * len(cells))
                value += part_worth * (-level - math.log2(full_view.scale))
                if len(parts) == len(cells) and value > most:
                    most = value
                    best = CompositeLayout((rows * TILE_PX, cols * TILE_PX), (full_view, *parts))
    return best


def layout_of(size: tuple[int, int], relevance: npt.NDArray[np.float32], tokens: int) -> CompositeLayout:
    """Return the layout for a picture of any size. A picture that needs no reduction stays as it is.

    Args:
        size: (height, width) of the picture in pixels.
        relevance: float32 [ceil(height/32), ceil(width/32)].
        tokens: Number of tiles of the composite.
    """
    height, width = size
    if tokens >= TileGrid.of(height, width).tiles:
        box = (0, 0, height, width)
        return CompositeLayout(size, (CompositePlacement(box, box),))
    if width >= height:
        return best_layout(size, relevance, tokens)
    wide_layout = best_layout((width, height), relevance.T, tokens)
    placements = (
        CompositePlacement(_turned(placement.source), _turned(placement.target)) for placement in wide_layout.placements
    )
    return CompositeLayout((wide_layout.size[1], wide_layout.size[0]), tuple(placements))


def whole_layout(size: tuple[int, int], tokens: int) -> CompositeLayout:
    """Return the whole view of a picture of `size` (height, width) as large as `tokens` tiles allow, its aspect
    kept."""
    height, width = size
    if tokens >= TileGrid.of(height, width).tiles:
        box = (0, 0, height, width)
        return CompositeLayout(size, (CompositePlacement(box, box),))
    return _whole_alone(size, tokens)


def _whole_alone(size: tuple[int, int], tokens: int) -> CompositeLayout:
    """Return the whole view as large as the tokens allow, its aspect kept."""
    height, width = size
    sizes = []
    for cols in range(1, tokens + 1):
        scale = min(cols * TILE_PX / width, tokens // cols * TILE_PX / height, 1.0)
        sizes.append((scale, -cols))
    scale = max(sizes)[0]
    target = max(1, math.floor(height * scale)), max(1, math.floor(width * scale))
    return CompositeLayout(target, (CompositePlacement((0, 0, height, width), (0, 0, *target)),))


def _whole_views(size: tuple[int, int], tokens: int) -> Iterator[tuple[int, int, int]]:
    """Rows and columns of composites in tiles, and how many of the rows the whole view takes."""
    height, width = size
    for cols in range(LEAST_SIDE_TILES, min(tokens, width // TILE_PX) + 1):
        exact = cols * height / width
        high = max(1, round(exact))
        rows = tokens // cols
        stretch = max(high / exact, exact / high)
        share = high * cols / tokens
        if stretch <= MOST_STRETCH and WHOLE_SHARE[0] <= share <= WHOLE_SHARE[1] and rows - high >= LEAST_SIDE_TILES:
            yield rows, cols, high


def _shelves(top: int, bottom: int, cols: int) -> Iterator[list[Box]]:
    """Ways to divide the tiles below the whole view into equal parts, as boxes in pixels with their frames."""
    for down in range(1, MOST_PARTS + 1):
        for across in range(1, MOST_PARTS // down + 1):
            edges_y = [top + (bottom - top) * at // down for at in range(down + 1)]
            edges_x = [cols * at // across for at in range(across + 1)]
            heights, widths = ([end - begin for begin, end in pairwise(edges)] for edges in (edges_y, edges_x))
            if min(heights + widths) < LEAST_SIDE_TILES:
                continue
            if max(max(widths) / min(heights), max(heights) / min(widths)) <= MOST_ASPECT:
                yield [
                    (y0 * TILE_PX, x0 * TILE_PX, y1 * TILE_PX, x1 * TILE_PX)
                    for y0, y1 in pairwise(edges_y)
                    for x0, x1 in pairwise(edges_x)
                ]


def _parts(
    size: tuple[int, int], worth: npt.NDArray[np.float64], cells: list[Box], level: int
) -> tuple[list[CompositePlacement], float]:
    """Return the parts that each cell shows, each at the most worth that is left, and their worth in all.

    Fewer than cells if a cell is larger than the picture.
    """
    remaining_worth = worth.copy()
    part_worth = 0.0
    parts = []
    for top, leftmost, bottom, right in cells:
        target = (top + BORDER_PX, leftmost + BORDER_PX, bottom - BORDER_PX, right - BORDER_PX)
        window = (target[2] - target[0]) << level, (target[3] - target[1]) << level
        if window[0] > size[0] or window[1] > size[1]:
            break
        tiles = [
            max(1, min(round(side / TILE_PX), count)) for side, count in zip(window, remaining_worth.shape, strict=True)
        ]
        row, col, value = _richest(worth, remaining_worth, tiles[0], tiles[1])
        remaining_worth[row : row + tiles[0], col : col + tiles[1]] = 0
        part_worth += max(value, 0.0)
        start = [
            min(max(round((first + count / 2) * TILE_PX - side / 2), 0), length - side)
            for first, count, side, length in zip((row, col), tiles, window, size, strict=True)
        ]
        parts.append(CompositePlacement((start[0], start[1], start[0] + window[0], start[1] + window[1]), target))
    return parts, part_worth


def _richest(
    worth: npt.NDArray[np.float64], remaining_worth: npt.NDArray[np.float64], rows: int, cols: int
) -> tuple[int, int, float]:
    """Return the window of rows × cols tiles that shows most: its first row and column, and its value.

    The value is the `remaining_worth` in it, less a share of the worth around it, one tile wide: what an edge cuts
    off is torn. Of neighbouring windows that are equal it is the middle one.
    """
    around = _sums(np.pad(worth, 1), rows + 2, cols + 2) - _sums(worth, rows, cols)
    # what the worth just outside a part takes from its value: a thing in one piece and smaller beats its pieces
    values = _sums(remaining_worth, rows, cols) - 0.5 * around
    equals = np.argwhere(values >= values.max() - NEAR * abs(values.max()))
    neighbours = equals[(np.abs(equals - equals[0]) < (rows, cols)).all(axis=1)]
    row, col = neighbours[np.abs(neighbours - neighbours.mean(axis=0)).sum(axis=1).argmin()]
    return int(row), int(col), float(values[row, col])


def _sums(worth: npt.NDArray[np.float64], rows: int, cols: int) -> npt.NDArray[np.float64]:
    """Return the sum of every window of rows × cols."""
    total = np.pad(worth.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    return np.asarray(total[rows:, cols:] - total[:-rows, cols:] - total[rows:, :-cols] + total[:-rows, :-cols])


FRAMES = ((230, 25, 75), (0, 130, 200), (255, 225, 25), (60, 180, 75))
"""RGB of the parts' frames, one after the other: red, blue, yellow, green."""


def draw(picture: Plane, layout: CompositeLayout) -> Plane:
    """Return the composite of a picture uint8 [H, W, 3], in separate memory; its parts have coloured frames, here and
    in the whole view."""
    image = np.empty((*layout.size, 3), np.uint8)
    full_view, *parts = layout.placements
    _show(picture, full_view, image)
    for part, colour in zip(parts, FRAMES, strict=False):
        _frame(image, _inside(full_view, part.source), colour)
        top, left, bottom, right = part.target
        _frame(image, (top - BORDER_PX, left - BORDER_PX, bottom + BORDER_PX, right + BORDER_PX), colour)
        _show(picture, part, image)
    return image


def cut_out(picture: Plane, placement: CompositePlacement) -> Plane:
    """Return the part of a picture that a placement shows, as large as it shows it: uint8 [h, w, 3]."""
    (top, left, bottom, right), (y0, x0, y1, x1) = placement.source, placement.target
    source = picture[top:bottom, left:right]
    return np.asarray(cv2.resize(source, (x1 - x0, y1 - y0), interpolation=cv2.INTER_AREA))


def _show(picture: Plane, placement: CompositePlacement, image: Plane) -> None:
    y0, x0, y1, x1 = placement.target
    image[y0:y1, x0:x1] = cut_out(picture, placement)


def _frame(image: Plane, box: Box, colour: tuple[int, int, int]) -> None:
    """Draw a frame inside the edges of a box."""
    top, left, bottom, right = box
    area = image[top:bottom, left:right]
    for edge in (area[:BORDER_PX], area[-BORDER_PX:], area[:, :BORDER_PX], area[:, -BORDER_PX:]):
        edge[:] = colour


def _inside(full_view: CompositePlacement, source: Box) -> Box:
    """Return the place in the whole view that shows a part of the picture."""
    (_, _, height, width), (_, _, bottom, right) = full_view.source, full_view.target
    top, left, source_bottom, source_right = source
    return (
        top * bottom // height,
        left * right // width,
        -(-source_bottom * bottom // height),
        -(-source_right * right // width),
    )


def _turned(box: Sequence[int]) -> Box:
    """Return the box in a picture whose rows and columns have changed places."""
    return box[1], box[0], box[3], box[2]
