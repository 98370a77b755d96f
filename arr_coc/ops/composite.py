"""`foveate`: a smaller picture composed of a whole view and the best parts, with their placement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.ops.composite_layout import Box, CompositePlacement, draw, layout_of
from arr_coc.texture.pictures import Picture, check_tokens, to_rgb
from arr_coc.texture.store.planes import Plane
from arr_coc.types import TILE_PX, TileGrid

MOST_CELL_ASPECT = 2.0
"""Largest ratio of the sides of a relevance map's cells: a model's rounding to whole tiles stays below it."""


@dataclass(frozen=True, slots=True)
class Composite:
    """`image` uint8 [h, w, 3] and its `placements`: the whole view first, then the parts in detail."""

    image: Plane
    placements: tuple[CompositePlacement, ...]

    @property
    def tokens(self) -> int:
        """Number of tiles of 32×32 pixels that it takes."""
        return TileGrid.of(*self.image.shape[:2]).tiles

    def to_source(self, y: float, x: float) -> tuple[float, float]:
        """Return the place in the picture that the composite shows at (y, x), both in pixels.

        On a part's frame that is the part's nearest edge. Raises OptionError for a place outside the composite.
        """
        height, width = self.image.shape[:2]
        if not (0 <= y <= height and 0 <= x <= width):
            raise OptionError(f"({y}, {x}) lies outside a composite of {height} rows and {width} columns")
        nearest = min(self.placements, key=lambda placement: _away(placement.target, y, x))
        place = []
        for at, axis in ((y, 0), (x, 1)):
            (begin, end), (first, last) = nearest.target[axis::2], nearest.source[axis::2]
            share = min(max((at - begin) / (end - begin), 0.0), 1.0)
            place.append(first + share * (last - first))
        return place[0], place[1]


def foveate(image: Picture, relevance: npt.NDArray[np.floating] | torch.Tensor, tokens: int) -> Composite:
    """Return a picture for models behind an API that take pictures only: the whole view coarsely, what matters in
    detail.

    The whole view takes a third to two thirds of the tiles; beside it (below, or to the right of a tall picture) stand
    up to four parts at full size, or halved up to three times if that shows more relevance. All begin and end at
    multiples of 32 pixels, so that no token shows two of them. A part has a coloured frame, and the same frame marks
    its place in the whole view. A picture that needs no reduction comes back as it is; a budget too small for parts
    buys the whole view alone.

    Args:
        image: NumPy uint8 [H, W, 3], torch uint8 [3, H, W] on any device, strided as it likes, or any other picture
            that `arr_coc.texture.pictures.to_rgb` takes.
        relevance: Finite [ceil(H/32), ceil(W/32)], usually in [0, 1]: how much each tile matters, absolutely, as the
            allocator's maps. A map of another grid over the whole picture, such as the heat map of an answer, is
            resampled; its cells are to be about as high as wide.
        tokens: Tiles of 32×32 pixels that the result may take; a model whose tokens are smaller or larger counts its
            own (for 28 pixels, multiply by (28/32)²).

    Returns:
        The composite, in separate memory, at most `tokens` tiles large.

    Raises:
        ShapeError: Other shapes and dtypes.
        NonFiniteError: NaN or Inf in `relevance`.
        BudgetError: Fewer than 1 token.
    """
    if isinstance(image, torch.Tensor) and image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3:
        image = image.permute(1, 2, 0)  # a tensor's first axis holds the channels, even if the last has length 3, too
    picture = to_rgb(image)
    height, width = picture.shape[:2]
    grid = TileGrid.of(height, width)
    matter = _relevance(relevance, grid)
    layout = layout_of((height, width), matter, check_tokens(tokens, grid.tiles))
    return Composite(draw(picture, layout), layout.placements)


def _away(box: Box, y: float, x: float) -> float:
    top, left, bottom, right = box
    return max(top - y, y - bottom, 0.0) + max(left - x, x - right, 0.0)


def _relevance(relevance: npt.NDArray[np.floating] | torch.Tensor, grid: TileGrid) -> npt.NDArray[np.float32]:
    if isinstance(relevance, torch.Tensor):
        array = relevance.detach().cpu().float().numpy()
    else:
        array = relevance
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise ShapeError(f"relevance is an array or tensor of numbers, got {type(relevance).__name__}")
    rows, cols = array.shape if array.ndim == 2 and array.size else (1, 0)
    cell_aspect = grid.height_px * cols / (grid.width_px * rows)
    if array.shape != grid.shape and not 1 / MOST_CELL_ASPECT <= cell_aspect <= MOST_CELL_ASPECT:
        raise ShapeError(
            f"relevance has one value for each 32-pixel tile, {list(grid.shape)} here, got {list(array.shape)}; a map "
            "of another grid has rows before columns, and cells that are about square"
        )
    matter = array.astype(np.float32)
    if not np.isfinite(matter).all():
        raise NonFiniteError("relevance holds NaN or Inf")
    if matter.shape == grid.shape:
        return matter
    down = _overlaps(grid.height_px, grid.rows, matter.shape[0])
    across = _overlaps(grid.width_px, grid.cols, matter.shape[1])
    return np.asarray(down @ matter @ across.T, np.float32)


def _overlaps(length_px: int, tiles: int, cells: int) -> npt.NDArray[np.float32]:
    """Return the share of each tile, as far as it lies in the picture, that each of the equal cells covers: [tiles,
    cells]."""
    begin_px = np.arange(tiles)[:, None] * TILE_PX
    end_px = np.minimum(begin_px + TILE_PX, length_px)
    edges_px = np.linspace(0, length_px, cells + 1)
    common_px = np.minimum(end_px, edges_px[1:]) - np.maximum(begin_px, edges_px[:-1])
    return np.asarray(common_px.clip(0) / (end_px - begin_px), np.float32)
