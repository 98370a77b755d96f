"""One ordinary smaller picture that shows the whole view coarsely and chosen places in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.ops.checks import check_tokens
from arr_coc.ops.layout import BORDER_PX, Box, Layout, Placement, best_layout
from arr_coc.ops.pictures import Picture, to_rgb
from arr_coc.ops.planes import Plane
from arr_coc.types import TileGrid

FRAMES = ((230, 25, 75), (0, 130, 200), (255, 225, 25), (60, 180, 75))
"""RGB of the parts' frames, one after the other: red, blue, yellow, green."""


@dataclass(frozen=True, slots=True)
class Composite:
    """`image` uint8 [h, w, 3], and what it shows where: the whole view first, then the parts in detail."""

    image: Plane
    placements: tuple[Placement, ...]

    @property
    def tokens(self) -> int:
        """How many tiles of 32×32 pixels it takes."""
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
        return Composite(picture.copy(), (Placement(whole, whole),))
    if width >= height:
        return _drawn(picture, best_layout((height, width), matter, tokens))
    turned = best_layout((width, height), matter.T, tokens)
    placements = (Placement(_turned(one.source), _turned(one.target)) for one in turned.placements)
    return _drawn(picture, Layout((turned.size[1], turned.size[0]), tuple(placements)))


def _drawn(picture: Plane, layout: Layout) -> Composite:
    image = np.empty((*layout.size, 3), np.uint8)
    whole, *parts = layout.placements
    _show(picture, whole, image)
    for part, colour in zip(parts, FRAMES, strict=False):
        _frame(image, _inside(whole, part.source), colour)
        top, left, bottom, right = part.target
        _frame(image, (top - BORDER_PX, left - BORDER_PX, bottom + BORDER_PX, right + BORDER_PX), colour)
        _show(picture, part, image)
    return Composite(image, layout.placements)


def _show(picture: Plane, placement: Placement, image: Plane) -> None:
    (top, left, bottom, right), (y0, x0, y1, x1) = placement.source, placement.target
    source = picture[top:bottom, left:right]
    image[y0:y1, x0:x1] = cv2.resize(source, (x1 - x0, y1 - y0), interpolation=cv2.INTER_AREA)


def _frame(image: Plane, box: Box, colour: tuple[int, int, int]) -> None:
    """Draws a frame inside the edges of a box."""
    top, left, bottom, right = box
    area = image[top:bottom, left:right]
    for edge in (area[:BORDER_PX], area[-BORDER_PX:], area[:, :BORDER_PX], area[:, -BORDER_PX:]):
        edge[:] = colour


def _inside(whole: Placement, source: Box) -> Box:
    """Where the whole view shows a part of the picture."""
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
