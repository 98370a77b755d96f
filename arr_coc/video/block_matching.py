"""Share of a picture that was in the one before, by block matching on thumbnails.

Two searches, from cheap to dear. In place: blocks of the whole luma picture are correlated with the same place before,
and with the place from where one shift of the whole picture brought them (phase correlation). Anywhere: blocks of a
smaller picture are looked for all over the smaller picture before (full search by normalised correlation); those count
that came with their neighbours, because a block of unrelated pictures is often found, but each somewhere else.

Correlation is of detail, without what is smooth, and does not see gain and offset: light may change.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.video.motion import Floats, Thumbnail, block_means, correlate, shifted

FLAT = 6
"""Range of values, of 255, within which a border row or column is a letterbox bar."""

LEAST_SHOWN = 0.25
"""Least share of a picture between the bars; a picture that shows less has no bars but is dark."""

Luma = npt.NDArray[np.uint8]


def without_bars(old: Luma, new: Luma) -> tuple[slice, slice]:
    """Return the rows and columns between the bars that both pictures uint8 [h, w] have; all of them where hardly any
    would be left."""
    rows, cols = (_between_bars(old, new, axis) for axis in (1, 0))
    small = (rows.stop - rows.start) * (cols.stop - cols.start) < old.size * LEAST_SHOWN
    return (slice(None), slice(None)) if small else (rows, cols)


def _between_bars(old: Luma, new: Luma, axis: int) -> slice:
    size = old.shape[1 - axis]
    busy = np.flatnonzero((np.ptp(old, axis=axis) > FLAT) | (np.ptp(new, axis=axis) > FLAT))
    first, last = (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, 0)
    # Where there is a bar, the texels at its edge mix it with the picture.
    return slice(first + (first > 0), last - (last < size))


SEARCH_WIDTH_PX = 128
"""Width of the smaller picture, in which blocks are looked for everywhere."""

BLOCK_PX = 16
BLOCK_ROWS, BLOCK_COLS = 4, 7

PLACE_PX = 24
"""Side of the blocks that are compared in place."""

ALIKE_IN_PLACE = 0.6
ALIKE_ELSEWHERE = 0.7
"""Least correlations of a block that is there again. Where it is looked for all over, chance finds better places."""

DETAIL_SIGMA_PX = 6.0
TELLING = 2.0
"""Standard deviation of detail, of 255, from which a block says something."""

TOGETHER_PX = 2.5
TOGETHER_SHARE = 0.15
"""Two neighbouring blocks came together where their ways differ by this and this share of the way, as in a zoom."""

LEAST_NEIGHBOURS = 2

LEAST_BLOCKS = 8
"""A search among many places finds some of a few blocks by chance: shares are of so many blocks at least."""


@dataclass(frozen=True, slots=True)
class Match:
    """`found` in [0, 1]: share of the new picture's telling blocks that were in the old one; `telling` in [0, 1]:
    share of blocks that say something, in the picture that has fewer of them."""

    found: float = 0.0
    telling: float = 0.0


def match_blocks(before: Thumbnail, after: Thumbnail, enough: float = 1.0) -> Match:
    """Look for the blocks of `after` in `before`; from `enough` of them on, no dearer search is made.

    A match of nothing where the pictures differ in size or are too small to be parted in blocks.
    """
    pair = _comparable(before, after)
    if pair is None:
        return Match()
    first, second = pair
    old, new = _detail(first), _detail(second)
    still = _in_place(old, new)
    if still.found >= enough:
        return still
    moved = _shifted(first, second, old, new)
    if moved.found >= enough:
        return moved
    found = max(still.found, moved.found, _found_anywhere(_smaller(first), _smaller(second)))
    return Match(found, min(still.telling, _telling_share(old)))


def found_in_place(before: Thumbnail, after: Thumbnail) -> float:
    """Return the share of the telling blocks of `after` that were in the same place of `before`, in [0, 1].

    0 where the pictures differ in size or are too small to be parted in blocks.
    """
    pair = _comparable(before, after)
    return 0.0 if pair is None else _in_place(_detail(pair[0]), _detail(pair[1])).found


def _comparable(before: Thumbnail, after: Thumbnail) -> tuple[Luma, Luma] | None:
    """Both luma pictures without the bars that they share, if they are of one size and large enough."""
    if before.luma.shape != after.luma.shape:
        return None
    shown = without_bars(before.luma, after.luma)
    first, second = np.ascontiguousarray(before.luma[shown]), np.ascontiguousarray(after.luma[shown])
    return (first, second) if min(second.shape) >= 2 * PLACE_PX else None


def _in_place(old: Floats, new: Floats, least_blocks: int = 1) -> Match:
    """Blocks that correlate with the same place before."""
    mean_old, mean_new = block_means(old, PLACE_PX), block_means(new, PLACE_PX)
    variance_old = block_means(old * old, PLACE_PX) - mean_old * mean_old
    variance_new = block_means(new * new, PLACE_PX) - mean_new * mean_new
    product = block_means(old * new, PLACE_PX) - mean_old * mean_new
    telling = variance_new >= TELLING * TELLING
    alike = telling & (product > ALIKE_IN_PLACE * np.sqrt(np.maximum(variance_old * variance_new, 1e-6)))
    return Match(float(alike.sum()) / max(least_blocks, int(telling.sum())), float(telling.mean()))


def _shifted(before: Luma, after: Luma, old: Floats, new: Floats) -> Match:
    """The same after one shift of the whole picture, found by phase correlation (Kuglin and Hines, 1975).

    Nothing where less than half of the picture would be left to compare.
    """
    dy, dx, _ = correlate(before.astype(np.float32), after.astype(np.float32))
    if abs(dy) > old.shape[0] / 2 or abs(dx) > old.shape[1] / 2 or max(abs(dx), abs(dy)) < 0.5:
        return Match()
    moved, inside = shifted(old, dy, dx)
    moved, seen = np.ascontiguousarray(moved[inside]), np.ascontiguousarray(new[inside])
    return _in_place(moved, seen, LEAST_BLOCKS) if min(seen.shape) >= PLACE_PX else Match()


def _telling_share(detail: Floats) -> float:
    mean = block_means(detail, PLACE_PX)
    return float((block_means(detail * detail, PLACE_PX) - mean * mean >= TELLING * TELLING).mean())


def _found_anywhere(old: Floats, new: Floats) -> float:
    """Share of telling blocks that are found somewhere before, and came from there with their neighbours."""
    rows, cols = new.shape
    tops = np.linspace(0, rows - BLOCK_PX, BLOCK_ROWS).round().astype(int)
    lefts = np.linspace(0, cols - BLOCK_PX, BLOCK_COLS).round().astype(int)
    telling = np.zeros((BLOCK_ROWS, BLOCK_COLS), bool)
    alike = np.zeros_like(telling)
    ways = np.zeros((BLOCK_ROWS, BLOCK_COLS, 2))
    for row, top in enumerate(tops):
        for col, left in enumerate(lefts):
            block = new[top : top + BLOCK_PX, left : left + BLOCK_PX]
            if block.std() < TELLING:
                continue
            telling[row, col] = True
            _, best, _, (x, y) = cv2.minMaxLoc(cv2.matchTemplate(old, block, cv2.TM_CCOEFF_NORMED))
            alike[row, col] = best >= ALIKE_ELSEWHERE
            ways[row, col] = y - top, x - left
    together = alike & _with_neighbours(ways, telling)
    return float(together.sum()) / max(LEAST_BLOCKS, int(telling.sum()))


def _with_neighbours(ways: npt.NDArray[np.float64], telling: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Blocks whose way two of their eight neighbours share, or the only one that there is."""
    rows, cols = telling.shape
    there = np.pad(telling, 1)
    padded = np.pad(ways, ((1, 1), (1, 1), (0, 0)))
    limit = TOGETHER_PX + TOGETHER_SHARE * np.hypot(ways[..., 0], ways[..., 1])
    agreeing, neighbours = np.zeros((rows, cols), int), np.zeros((rows, cols), int)
    for dy, dx in ((y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)):
        apart = padded[dy : dy + rows, dx : dx + cols] - ways
        near = there[dy : dy + rows, dx : dx + cols]
        neighbours += near
        agreeing += near & (np.hypot(apart[..., 0], apart[..., 1]) <= limit)
    return (neighbours > 0) & (agreeing >= np.minimum(LEAST_NEIGHBOURS, neighbours))


def _detail(luma: Luma) -> Floats:
    picture = luma.astype(np.float32)
    return picture - cv2.GaussianBlur(picture, (0, 0), DETAIL_SIGMA_PX)


def _smaller(luma: Luma) -> Floats:
    rows, cols = luma.shape
    height = max(2 * BLOCK_PX, round(rows * SEARCH_WIDTH_PX / cols))
    return _detail(cv2.resize(luma, (SEARCH_WIDTH_PX, height), interpolation=cv2.INTER_AREA))
