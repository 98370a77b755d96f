"""A picture in a budget of tokens, sharp where one looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.budget import Budget, fixed_tokens
from arr_coc.errors import OptionError
from arr_coc.ops.checks import check_positive
from arr_coc.ops.fixation import fixation_cover, magnified_cover, nearest_regions
from arr_coc.ops.quadtree import quadtree, top_level
from arr_coc.types import LEVELS, TILE_PX, TileGrid


@dataclass(frozen=True, slots=True)
class Foveation:
    """A disjoint cover of a picture by regions, and what each of them shows.

    `regions` int64 [K, 3] (level, row, col), in token order, on the CPU; `pixels` [K, 3, 32, 32] of the texture's
    dtype and on its device. `M0` and `e0` are those of the formula M(e) = M0/(e + e0) that the cover follows; where
    the budget was too small for any cover, both are 0 and the regions are the coarsest ones next to the fixation.
    """

    regions: torch.Tensor
    pixels: torch.Tensor
    M0: float
    e0: float


@dataclass(frozen=True, slots=True)
class Gaze:
    """Where one looks, and how detail falls off from there; made by `Gaze.of`, which checks it."""

    fixation: tuple[float, float]
    tokens: int
    M0: float | None
    e0: float | None

    @classmethod
    def of(
        cls,
        grid: TileGrid,
        fixation: Sequence[float],
        budget: Budget,
        M0: float | None,  # noqa: N803
        e0: float | None,
    ) -> Gaze:
        """`fixation` (y, x) in [0, 1] of the picture, which is kept in tiles.

        Raises OptionError for a fixation outside of it and for M0 and e0 that are not above 0 (or M0 without e0),
        BudgetError.
        """
        place = [float(value) for value in fixation]
        if len(place) != 2 or not all(0 <= value <= 1 for value in place):
            raise OptionError(f"a fixation is (y, x), each in [0, 1] of the picture, got {tuple(place)}")
        if M0 is not None and e0 is None:
            raise OptionError("M0 means nothing without e0; give both, or e0 alone, or neither")
        for value, name in ((M0, "M0"), (e0, "e0")):
            if value is not None:
                check_positive(value, name)
        y, x = place
        in_tiles = (y * grid.height_px / TILE_PX, x * grid.width_px / TILE_PX)
        return cls(in_tiles, fixed_tokens(budget, grid.tiles), M0, e0)

    def cover(self, shape: tuple[int, int]) -> tuple[npt.NDArray[np.int64], float, float]:
        """Regions [K, 3] over a grid of `shape`, in token order, and the M0 and e0 that they follow."""
        tree = quadtree(shape, top_level(shape, self.tokens) if self.e0 is None else LEVELS - 1)
        if tree.roots > self.tokens:
            return nearest_regions(tree, self.fixation, self.tokens), 0.0, 0.0
        if self.e0 is None:
            regions, e0 = fixation_cover(shape, self.tokens, self.fixation)
            return regions, e0, e0
        most = math.inf if self.M0 is None else self.M0
        regions, reached = magnified_cover(shape, self.tokens, self.fixation, self.e0, most)
        return regions, reached, self.e0
