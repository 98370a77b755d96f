"""Wide and tall regions put in the place of squares, as an allocator puts them along a line of text.

A square of level 1 or 2 that shows a text is split into strips, each as long as the square and a half or a quarter as
high; tiles side by side are joined into one strip. Now and then strips lie elsewhere, or stand upright.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from arr_coc.ops.regions import exist_on, first_tiles
from arr_coc.types import REGION_SHAPES

Regions = npt.NDArray[np.int64]

_STRIPS = {1: ((0, 1),), 2: ((0, 2), (1, 2))}
"""Level of a square → the scales (log2 of rows and columns, in tiles) of the strips that it may be split into."""

_PAIR = REGION_SHAPES.index((0, 1))

_SPLIT_SHARES = (0.15, 0.9)
_JOINED_SHARES = (0.1, 0.5)
"""Of the squares without a text, and of those with one: how many are split, and how many pairs of tiles are joined."""

_UPRIGHT_SHARE = 0.2


def with_strips(
    rng: np.random.Generator,
    regions: Regions,
    texts: npt.NDArray[np.bool_],
    shape: tuple[int, int],
    tokens: int,
) -> Regions:
    """Regions [K, 3] of squares, some of them split or joined, in token order, at most `tokens`.

    `texts` [K]: which of them show a text. They show the same tiles as before.
    """
    kept = _joined(rng, regions, texts)
    room = tokens - len(kept)
    found: list[list[int]] = []
    for place in rng.permutation(len(kept)).tolist():
        *square, text = kept[place]
        strips = _split(rng, square, shape) if rng.random() < _SPLIT_SHARES[text] else []
        if not 0 < len(strips) <= room + 1:
            strips = [square]
        found += strips
        room -= len(strips) - 1
    whole = np.array(found, np.int64).reshape(-1, 3)
    first = first_tiles(whole)
    return whole[np.lexsort((whole[:, 0], first[:, 1], first[:, 0]))]


def _split(rng: np.random.Generator, square: list[int], shape: tuple[int, int]) -> list[list[int]]:
    """The strips of a square, those on a grid of `shape`; none where its level has no strips."""
    level, row, col = square
    if level not in _STRIPS:
        return []
    scales = _STRIPS[level][int(rng.integers(len(_STRIPS[level])))]
    down, across = scales if rng.random() >= _UPRIGHT_SHARE else scales[::-1]
    rows, cols = 1 << (level - down), 1 << (level - across)
    code = REGION_SHAPES.index((down, across))
    strips = np.array([[code, row * rows + i, col * cols + j] for i in range(rows) for j in range(cols)])
    on_grid: list[list[int]] = strips[exist_on(strips, shape)].tolist()
    return on_grid


def _joined(rng: np.random.Generator, regions: Regions, texts: npt.NDArray[np.bool_]) -> list[list[int]]:
    """The regions, some pairs of tiles side by side as one: each [shape, row, col, whether it shows a text]."""
    shown = np.column_stack([regions, texts]).tolist()
    kept = [square for square in shown if square[0]]
    pairs: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for tile in shown:
        if tile[0] == 0:
            pairs[tile[1], tile[2] // 2].append(tile)
    for (row, col), tiles in pairs.items():
        text = max(tile[3] for tile in tiles)
        if len(tiles) == 2 and rng.random() < _JOINED_SHARES[text]:
            kept.append([_PAIR, row, col, text])
        else:
            kept += tiles
    return kept
