"""`foveate`: one smaller picture of a picture and its best parts, and its layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.ops.pictures import Picture, check_tokens, to_rgb
from arr_coc.ops.store.planes import Plane
from arr_coc.types import TILE_PX, TileGrid

Box = tuple[int, int, int, int]
"""(top, left, bottom, right), half-open, in pixels."""

BORDER_PX = 2
"""Width of the frame around a part: thin, and still there after a model's own resizing."""

MOST_STRETCH = 1.12
"""How far the whole view's aspect may be off so that it fills whole tiles: as much as Qwen's own processor does."""

WHOLE_SHARE = (1 / 3, 2 / 3)
"""Part of the tokens that the whole view may take, where parts are shown beside it."""

MOST_PARTS = 4
LEAST_SIDE_TILES = 3
MOST_ASPECT = 2.0
"""A few parts that are not narrow show things whole; many small ones would show more relevant tiles, and only pieces of
things."""

PART_COST = 0.02
"""Octaves of the whole picture that one part more must gain: things that fit into few parts are not torn into many."""

NEAR = 0.02
"""Windows whose worth differs by less are equal, so that what matters stands in the middle of a part."""

TORN = 0.5
"""What the worth just outside a part takes from its value: a thing in one piece and smaller beats its pieces."""

COARSEST_PART = 3
"""Parts may be shown smaller by up to 2 to this power."""


@dataclass(frozen=True, slots=True)
class CompositePlacement:
    """A part of the picture, `source`, and where the composite shows it, `target`: boxes in pixels of either."""

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
    """The layout in `tokens` tiles that shows relevant tiles largest, for a picture at least as wide as high.

    `size` (height, width) in pixels, `relevance` [gh, gw]. Layouts are the whole view alone, or above one to
    four equal parts; parts are cut at full size or halved up to three times, and lie where they show most. Each octave
    of scale counts the same on every tile, times relevance³, as in `split_worth`.
    """
    worth = np.maximum(relevance, 0).astype(np.float64) ** 3
    best = _whole_alone(size, tokens)
    most = worth.sum() * math.log2(best.placements[0].scale)
    for rows, cols, high in _whole_views(size, tokens):
        height, width = size
        whole = CompositePlacement((0, 0, height, width), (0, 0, high * TILE_PX, cols * TILE_PX))
        for cells in _shelves(high, rows, cols):
            for level in range(COARSEST_PART + 1):
                parts, shown = _parts(size, worth, cells, level)
                value = worth.sum() * (math.log2(whole.scale) - PART_COST * len(cells))
                value += shown * (-level - math.log2(whole.scale))
                if len(parts) == len(cells) and value > most:
                    most, best = value, CompositeLayout((rows * TILE_PX, cols * TILE_PX), (whole, *parts))
    return best


def _whole_alone(size: tuple[int, int], tokens: int) -> CompositeLayout:
    """The whole view as large as the tokens allow, its aspect kept."""
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
        stretched = max(high / exact, exact / high)
        share = high * cols / tokens
        if stretched <= MOST_STRETCH and WHOLE_SHARE[0] <= share <= WHOLE_SHARE[1] and rows - high >= LEAST_SIDE_TILES:
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
    """The parts that each cell shows, one after another where most worth is left, and what they are worth in all.

    Fewer than cells where a cell is larger than the picture.
    """
    left, shown = worth.copy(), 0.0
    parts = []
    for top, leftmost, bottom, right in cells:
        target = (top + BORDER_PX, leftmost + BORDER_PX, bottom - BORDER_PX, right - BORDER_PX)
        window = (target[2] - target[0]) << level, (target[3] - target[1]) << level
        if window[0] > size[0] or window[1] > size[1]:
            break
        tiles = [max(1, min(round(side / TILE_PX), count)) for side, count in zip(window, left.shape, strict=True)]
        row, col, value = _richest(worth, left, tiles[0], tiles[1])
        left[row : row + tiles[0], col : col + tiles[1]] = 0
        shown += max(value, 0.0)
        start = [
            min(max(round((first + count / 2) * TILE_PX - side / 2), 0), whole - side)
            for first, count, side, whole in zip((row, col), tiles, window, size, strict=True)
        ]
        parts.append(CompositePlacement((start[0], start[1], start[0] + window[0], start[1] + window[1]), target))
    return parts, shown


def _richest(
    worth: npt.NDArray[np.float64], left: npt.NDArray[np.float64], rows: int, cols: int
) -> tuple[int, int, float]:
    """The window of rows × cols tiles that shows most: its first row and column, and its value.

    That is the worth that is `left` in it, less a share of the worth around it, one tile wide: what an edge cuts off
    is torn. Of neighbouring windows that are equal it is the middle one.
    """
    around = _sums(np.pad(worth, 1), rows + 2, cols + 2) - _sums(worth, rows, cols)
    values = _sums(left, rows, cols) - TORN * around
    equals = np.argwhere(values >= values.max() - NEAR * abs(values.max()))
    near = equals[(np.abs(equals - equals[0]) < (rows, cols)).all(axis=1)]
    row, col = near[np.abs(near - near.mean(axis=0)).sum(axis=1).argmin()]
    return int(row), int(col), float(values[row, col])


def _sums(worth: npt.NDArray[np.float64], rows: int, cols: int) -> npt.NDArray[np.float64]:
    """The sum of every window of rows × cols."""
    total = np.pad(worth.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    return np.asarray(total[rows:, cols:] - total[:-rows, cols:] - total[rows:, :-cols] + total[:-rows, :-cols])


FRAMES = ((230, 25, 75), (0, 130, 200), (255, 225, 25), (60, 180, 75))
"""RGB of the parts' frames, one after the other: red, blue, yellow, green."""


@dataclass(frozen=True, slots=True)
class Composite:
    """`image` uint8 [h, w, 3], and what it shows where: the whole view first, then the parts in detail."""

    image: Plane
    placements: tuple[CompositePlacement, ...]

    @property
    def tokens(self) -> int:
        """Number of tiles of 32×32 pixels that it takes."""
        return TileGrid.of(*self.image.shape[:2]).tiles

    def to_source(self, y: float, x: float) -> tuple[float, float]:
        """The place in the picture that the composite shows at (y, x), both in pixels.

        On a part's frame that is the part's nearest edge. Raises OptionError for a place outside the composite.
        """
        height, width = self.image.shape[:2]
        if not (0 <= y <= height and 0 <= x <= width):
            raise OptionError(f"({y}, {x}) lies outside a composite of {height} rows and {width} columns")
        nearest = min(self.placements, key=lambda one: _away(one.target, y, x))
        place = []
        for at, axis in ((y, 0), (x, 1)):
            (begin, end), (first, last) = nearest.target[axis::2], nearest.source[axis::2]
            share = min(max((at - begin) / (end - begin), 0.0), 1.0)
            place.append(first + share * (last - first))
        return place[0], place[1]


def foveate(image: Picture, relevance: npt.NDArray[np.floating] | torch.Tensor, tokens: int) -> Composite:
    """A picture for models behind an API that take pictures only: the whole view coarsely, what matters in detail.

    `image`: NumPy uint8 [H, W, 3], torch uint8 [3, H, W] on any device, strided as it likes, or any other picture that
    `arr_coc.ops.pictures.to_rgb` takes. `relevance`: finite
    [ceil(H/32), ceil(W/32)], usually in [0, 1]: how much each tile matters, absolutely, as the allocator's maps.
    `tokens`: the tiles of 32×32 pixels that the result may take; a model whose tokens are smaller or larger counts its
    own (for 28 pixels, multiply by (28/32)²).

    The result, in memory of its own, is at most `tokens` tiles large. The whole view takes a third to two thirds of
    them; beside it (below, or to the right of a tall picture) stand up to four parts at full size, or halved up to
    three times where that shows more of what matters. All begin and end at multiples of 32 pixels, so that no token
    shows two of them. A part has a coloured frame, and the same frame marks its place in the whole view. A picture
    that needs no reduction comes back as it is; a budget too small for parts buys the whole view alone.

    Raises ShapeError for other shapes and dtypes, NonFiniteError, BudgetError below 1 token.
    """
    picture = _picture(image)
    height, width = picture.shape[:2]
    grid = TileGrid.of(height, width)
    matter = _relevance(relevance, grid)
    if check_tokens(tokens, grid.tiles) == grid.tiles:
        whole = (0, 0, height, width)
        return Composite(picture.copy(), (CompositePlacement(whole, whole),))
    if width >= height:
        return _drawn(picture, best_layout((height, width), matter, tokens))
    turned = best_layout((width, height), matter.T, tokens)
    placements = (CompositePlacement(_turned(one.source), _turned(one.target)) for one in turned.placements)
    return _drawn(picture, CompositeLayout((turned.size[1], turned.size[0]), tuple(placements)))


def _drawn(picture: Plane, layout: CompositeLayout) -> Composite:
    image = np.empty((*layout.size, 3), np.uint8)
    whole, *parts = layout.placements
    _show(picture, whole, image)
    for part, colour in zip(parts, FRAMES, strict=False):
        _frame(image, _inside(whole, part.source), colour)
        top, left, bottom, right = part.target
        _frame(image, (top - BORDER_PX, left - BORDER_PX, bottom + BORDER_PX, right + BORDER_PX), colour)
        _show(picture, part, image)
    return Composite(image, layout.placements)


def _show(picture: Plane, placement: CompositePlacement, image: Plane) -> None:
    (top, left, bottom, right), (y0, x0, y1, x1) = placement.source, placement.target
    source = picture[top:bottom, left:right]
    image[y0:y1, x0:x1] = cv2.resize(source, (x1 - x0, y1 - y0), interpolation=cv2.INTER_AREA)


def _frame(image: Plane, box: Box, colour: tuple[int, int, int]) -> None:
    """Draws a frame inside the edges of a box."""
    top, left, bottom, right = box
    area = image[top:bottom, left:right]
    for edge in (area[:BORDER_PX], area[-BORDER_PX:], area[:, :BORDER_PX], area[:, -BORDER_PX:]):
        edge[:] = colour


def _inside(whole: CompositePlacement, source: Box) -> Box:
    """Return the place in the whole view that shows a part of the picture."""
    (_, _, height, width), (_, _, bottom, right) = whole.source, whole.target
    top, left, low, far = source
    return (
        top * bottom // height,
        left * right // width,
        -(-low * bottom // height),
        -(-far * right // width),
    )


def _away(box: Box, y: float, x: float) -> float:
    top, left, bottom, right = box
    return max(top - y, y - bottom, 0.0) + max(left - x, x - right, 0.0)


def _turned(box: Sequence[int]) -> Box:
    """The box in a picture whose rows and columns have changed places."""
    return box[1], box[0], box[3], box[2]


def _picture(image: Picture) -> Plane:
    if isinstance(image, torch.Tensor) and image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3:
        image = image.permute(1, 2, 0)  # of a tensor the first axis counts, also where the last is three long as well
    return to_rgb(image)


def _relevance(relevance: npt.NDArray[np.floating] | torch.Tensor, grid: TileGrid) -> npt.NDArray[np.float32]:
    array = relevance.detach().cpu().float().numpy() if isinstance(relevance, torch.Tensor) else relevance
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise ShapeError(f"relevance is an array or tensor of numbers, got {type(relevance).__name__}")
    if array.shape != grid.shape:
        raise ShapeError(
            f"relevance has one value for each 32-pixel tile, {list(grid.shape)} here, got {list(array.shape)}"
        )
    matter = array.astype(np.float32)
    if not np.isfinite(matter).all():
        raise NonFiniteError("relevance holds NaN or Inf")
    return matter
