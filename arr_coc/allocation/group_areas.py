"""What a group of pictures shows of each tile: maps of areas, and the tokens that add to them."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.texture.regions import (
    REGION_AREAS,
    shape_grid,
    shape_pool,
    spread,
)
from arr_coc.types import TILE_PX

Regions = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

STALE = 125

NEWS = 126

NEVER = 127
"""In a map of areas: a tile that the group showed until it, or another one in its token, changed; and one that it has
not shown, which has changed since it began, or has not."""

NEAR_TILES = 2
"""Tiles this near to one that changed are patched with it: they have seen most of it."""

CHANGE_LEVEL = 2
"""Level of the texture whose texels are means of 4×4 pixels."""

_AREAS = REGION_AREAS.astype(np.int8)
"""Log2 of a region's area in tiles, by shape."""


def and_near(tiles: Flags) -> Flags:
    """Return tiles bool [gh, gw] and those near them."""
    side = 2 * NEAR_TILES + 1
    patch: Flags = cv2.dilate(tiles.astype(np.uint8), np.ones((side, side), np.uint8)).astype(bool)
    return patch


def _by_tile(picture: npt.NDArray[np.uint8], shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return level 2 of a picture tile by tile: uint8 [gh, 8, gw, 24], a view of it if it is contiguous."""
    side = TILE_PX >> CHANGE_LEVEL
    return picture.reshape(shape[0], side, shape[1], side * 3)


def with_tiles(picture: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8], tiles: Flags) -> npt.NDArray[np.uint8]:
    """Return a picture with these tiles of another one, both level 2."""
    shape, (rows, cols) = (tiles.shape[0], tiles.shape[1]), np.nonzero(tiles)
    if not len(rows):
        return picture
    replaced = picture.copy()
    _by_tile(replaced, shape)[rows, :, cols] = _by_tile(other, shape)[rows, :, cols]
    return replaced


def show(regions: Regions, areas: npt.NDArray[np.int8]) -> Flags:
    """Show regions [K, 3], the smallest first, and return which of them show a tile that none as small showed: bool
    [K]. `areas` [gh, gw] are brought up to date."""
    shape = (areas.shape[0], areas.shape[1])
    codes = regions[:, 0]
    is_addition = np.zeros(len(regions), bool)
    for code in sorted(np.unique(codes).tolist(), key=lambda code: int(_AREAS[code])):
        indices = np.flatnonzero(codes == code)
        rows = regions[indices, 1]
        cols = regions[indices, 2]
        new = shape_pool(areas, code, np.maximum)[rows, cols] > _AREAS[code]
        is_addition[indices] = new
        shape_areas: npt.NDArray[Any] = np.full(shape_grid(shape, code), NEVER, np.int8)
        shape_areas[rows[new], cols[new]] = _AREAS[code]
        np.minimum(areas, spread(shape_areas, code, shape), out=areas)
    return is_addition


def is_covered(regions: Regions, areas: npt.NDArray[np.int8]) -> Flags:
    """Return which regions [K, 3] show only tiles that smaller ones show: bool [K]."""
    codes = regions[:, 0]
    mask = np.zeros(len(regions), bool)
    for code in np.unique(codes[_AREAS[codes] > 0]).tolist():
        indices = np.flatnonzero(codes == code)
        mask[indices] = shape_pool(areas, code, np.maximum)[regions[indices, 1], regions[indices, 2]] < _AREAS[code]
    return mask


def most_relevant(candidates: Flags, relevance: npt.NDArray[np.float32], count: int) -> Regions:
    """Return up to `count` of the candidate tiles [gh, gw] at level 0, the most relevant first: int32 [n, 3]."""
    if count > 0:
        tiles = np.flatnonzero(candidates)
    else:
        tiles = np.zeros(0, np.int64)
    tiles = tiles[np.argsort(-relevance.ravel()[tiles], kind="stable")[: max(count, 0)]]
    rows, cols = np.divmod(tiles, candidates.shape[1])
    return np.stack([np.zeros_like(rows), rows, cols], axis=1).astype(np.int32)
