"""Pictures of one stream compared for cuts: thumbnails, phase correlation, and blocks that are found again.

Thumbnails are made from the planes, without converting them, and only for frames that differ much from the texture.

Searches, from cheap to dear. In place: blocks of the whole luma picture are correlated with the same place before,
and with the place shifted by the motion of the whole picture (phase correlation). Anywhere: blocks of a
smaller picture are looked for all over the smaller picture before (full search by normalised correlation); those count
that came with their neighbours, because a block of unrelated pictures is often found, but each somewhere else. At full
size: texture that is too fine for thumbnails.

Correlation is of detail, without what is smooth, and does not see gain and offset: light may change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePlanes

Floats = npt.NDArray[np.float32]

DOWNSCALED_SHAPE = (36, 64)
"""Rows and columns of the glance: about level 5 of 1920×1080, and the same for every frame size."""


@dataclass(frozen=True)
class Thumbnail:
    """`luma` uint8 [h, w], each texel a box mean of `texel_px` × `texel_px` pixels; `chroma` its u and v, if it has
    any.

    `downscaled` uint8 [3, 36, 64] (y, u, v) shows the whole frame. `halvings` are the first plane, halved once, twice
    and so on.
    """

    luma: npt.NDArray[np.uint8]
    texel_px: int
    chroma: tuple[npt.NDArray[np.uint8], ...]
    halvings: tuple[npt.NDArray[np.uint8], ...] = ()

    @classmethod
    def of(cls, planes: FramePlanes) -> Thumbnail:
        """Halves the planes with the box filter; an RGB picture is halved first and then turned to Y'CbCr."""
        texel_px = 1
        # luma is halved until it is at most this wide: level 3 at 1920×1080, level 2 at 1280×720
        while planes.width_px // texel_px > 320 and planes.height_px // texel_px > 1:
            texel_px *= 2
        levels = [planes.planes[0]]
        for _ in range(texel_px.bit_length() - 1):
            levels.append(halve_plane(levels[-1], 2))
        first = levels[-1]
        halvings = tuple(levels[1:])
        if planes.layout == "rgb":
            luma, v, u = cv2.split(cv2.cvtColor(first, cv2.COLOR_RGB2YCrCb))
            return cls(luma, texel_px, (u, v), halvings)
        return cls(first, texel_px, tuple(halve_plane(plane, texel_px // 2) for plane in planes.planes[1:]), halvings)

    @cached_property
    def downscaled(self) -> npt.NDArray[np.uint8]:
        downscaled = np.full((3, *DOWNSCALED_SHAPE), 128, np.uint8)
        for channel, plane in zip(downscaled, (self.luma, *self.chroma), strict=False):
            cv2.resize(plane, DOWNSCALED_SHAPE[::-1], dst=channel, interpolation=cv2.INTER_AREA)
        return downscaled


def halve_plane(plane: npt.NDArray[np.uint8], factor: int) -> npt.NDArray[np.uint8]:
    """Means over `factor` × `factor` samples, a power of two, by halving again and again; of odd sizes the last row or
    column is left out."""
    while factor > 1 and min(plane.shape[:2]) > 1:
        height = plane.shape[0] // 2
        width = plane.shape[1] // 2
        plane = cv2.resize(plane[: height * 2, : width * 2], (width, height), interpolation=cv2.INTER_AREA)
        factor //= 2
    return plane


@lru_cache(maxsize=4)
def _hann_window(rows: int, cols: int) -> Floats:
    return np.asarray(cv2.createHanningWindow((cols, rows), cv2.CV_32F), np.float32)


def correlate(first: Floats, second: Floats) -> tuple[float, float, float]:
    """Phase correlation of two pictures [h, w] under a Hann window: (dy, dx) in texels, and the peak's share."""
    # cv2 multiplies its arguments by the window in place.
    (dx, dy), response = cv2.phaseCorrelate(first.copy(), second.copy(), _hann_window(*first.shape))
    return dy, dx, response


def shift_picture(picture: Floats, dy: float, dx: float) -> tuple[Floats, tuple[slice, slice]]:
    """Return a moved picture, and the part of it that lies inside.

    Args:
        picture: float32 [h, w].
        dy: Motion down, in texels.
        dx: Motion to the right, in texels.
    """
    rows, cols = picture.shape
    output = cv2.warpAffine(picture, np.array([[1, 0, dx], [0, 1, dy]], np.float32), (cols, rows))
    return np.asarray(output, np.float32), (
        slice(max(0, math.ceil(dy)), rows + min(0, math.floor(dy))),
        slice(max(0, math.ceil(dx)), cols + min(0, math.floor(dx))),
    )


def block_means(values: Floats) -> Floats:
    """Means over whole blocks of `PLACE_PX`: float32 [h // PLACE_PX, w // PLACE_PX]."""
    rows, cols = (size // PLACE_PX for size in values.shape)
    blocks = values[: rows * PLACE_PX, : cols * PLACE_PX]
    return np.asarray(cv2.resize(blocks, (cols, rows), interpolation=cv2.INTER_AREA), np.float32)


FLAT = 6
"""Range of values, of 255, within which a border row or column is a letterbox bar."""

Luma = npt.NDArray[np.uint8]


def without_bars(old: Luma, new: Luma) -> tuple[slice, slice]:
    """Return the rows and columns between the bars that both pictures uint8 [h, w] have; all of them if hardly any
    would be left."""
    rows, cols = (_between_bars(old, new, axis) for axis in (1, 0))
    # least share of a picture between the bars; a picture that shows less has no bars but is dark
    small = (rows.stop - rows.start) * (cols.stop - cols.start) < old.size * 0.25
    if small:
        return (slice(None), slice(None))
    return (rows, cols)


def _between_bars(old: Luma, new: Luma, axis: int) -> slice:
    size = old.shape[1 - axis]
    busy = np.flatnonzero((np.ptp(old, axis=axis) > FLAT) | (np.ptp(new, axis=axis) > FLAT))
    first, last = (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, 0)
    # The texels at a bar's edge mix it with the picture.
    return slice(first + (first > 0), last - (last < size))


SEARCH_WIDTH_PX = 128
"""Width of the smaller picture, in which blocks are looked for everywhere."""

BLOCK_PX = 16
BLOCK_ROWS = 4
BLOCK_COLS = 7

PLACE_PX = 24
"""Side of the blocks that are compared in place."""

ALIKE_IN_PLACE = 0.6
ALIKE_ELSEWHERE = 0.7
"""Least correlations of a block that is found again. A search all over finds better places by chance."""

DETAIL_SIGMA_PX = 6.0
TEXTURED = 2.0
"""Standard deviation of detail, of 255, from which a block says something."""

TOGETHER_PX = 2.5
TOGETHER_SHARE = 0.15
"""Two neighbouring blocks came together if their ways differ by this and this share of the way, as in a zoom."""

LEAST_NEIGHBOURS = 2

LEAST_BLOCKS = 8
"""A search among many places finds some of a few blocks by chance: shares are of at least this many blocks."""


@dataclass(frozen=True, slots=True)
class BlockMatch:
    """`match_share` in [0, 1]: share of the new picture's textured blocks that were in the old one; `textured` in
    [0, 1]: share of textured blocks, in the picture that has fewer of them."""

    match_share: float = 0.0
    textured: float = 0.0


def match_blocks(before: Thumbnail, after: Thumbnail, target_share: float = 1.0) -> BlockMatch:
    """Look for the blocks of one picture in another.

    An empty match if the pictures differ in size or are too small to be parted in blocks.

    Args:
        before: The picture to search.
        after: The picture whose blocks are looked for.
        target_share: Share of matching blocks, in [0, 1], from which no dearer search is made.
    """
    pair = _comparable(before, after)
    if pair is None:
        return BlockMatch()
    first, second = pair
    old = _detail(first)
    new = _detail(second)
    static_match = _in_place(old, new)
    if static_match.match_share >= target_share:
        return static_match
    shift_match = _shifted(first, second, old, new)
    if shift_match.match_share >= target_share:
        return shift_match
    match_share = max(
        static_match.match_share, shift_match.match_share, _found_anywhere(_smaller(first), _smaller(second))
    )
    return BlockMatch(match_share, min(static_match.textured, _textured_share(old)))


def in_place_match_share(before: Thumbnail, after: Thumbnail) -> float:
    """Return the share of the textured blocks of `after` that were in the same place of `before`, in [0, 1].

    0 if the pictures differ in size or are too small to be parted in blocks.
    """
    pair = _comparable(before, after)
    if pair is None:
        return 0.0
    return _in_place(_detail(pair[0]), _detail(pair[1])).match_share


def _comparable(before: Thumbnail, after: Thumbnail) -> tuple[Luma, Luma] | None:
    """Return both luma pictures without the bars that they share, if they are of one size and large enough."""
    if before.luma.shape != after.luma.shape:
        return None
    view = without_bars(before.luma, after.luma)
    first = np.ascontiguousarray(before.luma[view])
    second = np.ascontiguousarray(after.luma[view])
    if min(second.shape) >= 2 * PLACE_PX:
        return (first, second)
    return None


def _in_place(old: Floats, new: Floats, least_blocks: int = 1) -> BlockMatch:
    """Return the blocks that correlate with the same place before."""
    mean_old = block_means(old)
    mean_new = block_means(new)
    variance_old = block_means(old * old) - mean_old * mean_old
    variance_new = block_means(new * new) - mean_new * mean_new
    product = block_means(old * new) - mean_old * mean_new
    textured = variance_new >= TEXTURED * TEXTURED
    matches = textured & (product > ALIKE_IN_PLACE * np.sqrt(np.maximum(variance_old * variance_new, 1e-6)))
    return BlockMatch(float(matches.sum()) / max(least_blocks, int(textured.sum())), float(textured.mean()))


def _shifted(before: Luma, after: Luma, old: Floats, new: Floats) -> BlockMatch:
    """Return the same after one shift of the whole picture, found by phase correlation (Kuglin and Hines, 1975).

    Nothing if less than half of the picture would be left to compare.
    """
    dy, dx, _ = correlate(before.astype(np.float32), after.astype(np.float32))
    if abs(dy) > old.shape[0] / 2 or abs(dx) > old.shape[1] / 2 or max(abs(dx), abs(dy)) < 0.5:
        return BlockMatch()
    old_part, overlap = shift_picture(_softened(old), dy, dx)
    old_part = np.ascontiguousarray(old_part[overlap])
    new_part = np.ascontiguousarray(_softened(new)[overlap])
    if min(new_part.shape) >= PLACE_PX:
        return _in_place(old_part, new_part, LEAST_BLOCKS)
    return BlockMatch()


def _softened(detail: Floats) -> Floats:
    """Without what is as fine as a texel: box means of finer texture, half a texel apart, correlate by 0.5 only."""
    return np.asarray(cv2.GaussianBlur(detail, (3, 3), 0), np.float32)


def _textured_share(detail: Floats) -> float:
    mean = block_means(detail)
    return float((block_means(detail * detail) - mean * mean >= TEXTURED * TEXTURED).mean())


def _found_anywhere(old: Floats, new: Floats) -> float:
    """Return the share of textured blocks that are found somewhere before, and came from there with their
    neighbours."""
    rows, cols = new.shape
    tops = np.linspace(0, rows - BLOCK_PX, BLOCK_ROWS).round().astype(int)
    lefts = np.linspace(0, cols - BLOCK_PX, BLOCK_COLS).round().astype(int)
    textured = np.zeros((BLOCK_ROWS, BLOCK_COLS), bool)
    matches = np.zeros_like(textured)
    ways = np.zeros((BLOCK_ROWS, BLOCK_COLS, 2))
    for row, top in enumerate(tops):
        for col, left in enumerate(lefts):
            block = new[top : top + BLOCK_PX, left : left + BLOCK_PX]
            if block.std() < TEXTURED:
                continue
            textured[row, col] = True
            _, best, _, (x, y) = cv2.minMaxLoc(cv2.matchTemplate(old, block, cv2.TM_CCOEFF_NORMED))
            matches[row, col] = best >= ALIKE_ELSEWHERE
            ways[row, col] = y - top, x - left
    consensus = matches & _with_neighbours(ways, textured)
    return float(consensus.sum()) / max(LEAST_BLOCKS, int(textured.sum()))


def _with_neighbours(ways: npt.NDArray[np.float64], textured: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the blocks whose way two of their eight neighbours share, or the only one that there is."""
    rows, cols = textured.shape
    mask = np.pad(textured, 1)
    padded = np.pad(ways, ((1, 1), (1, 1), (0, 0)))
    limit = TOGETHER_PX + TOGETHER_SHARE * np.hypot(ways[..., 0], ways[..., 1])
    votes = np.zeros((rows, cols), int)
    neighbours = np.zeros((rows, cols), int)
    for dy, dx in ((y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)):
        deviations = padded[dy : dy + rows, dx : dx + cols] - ways
        neighbour = mask[dy : dy + rows, dx : dx + cols]
        neighbours += neighbour
        votes += neighbour & (np.hypot(deviations[..., 0], deviations[..., 1]) <= limit)
    return (neighbours > 0) & (votes >= np.minimum(LEAST_NEIGHBOURS, neighbours))


def _detail(luma: Luma) -> Floats:
    picture = luma.astype(np.float32)
    return picture - cv2.GaussianBlur(picture, (0, 0), DETAIL_SIGMA_PX)


def _smaller(luma: Luma) -> Floats:
    rows, cols = luma.shape
    height = max(2 * BLOCK_PX, round(rows * SEARCH_WIDTH_PX / cols))
    return _detail(cv2.resize(luma, (SEARCH_WIDTH_PX, height), interpolation=cv2.INTER_AREA))


SITE_ROWS = 4
SITE_COLS = 6
SITE_PX = 32
REACH_PX = 64
"""Blocks that are looked for in large pictures, and how far. They lie in the middle of equal parts of the picture."""

ALIKE_AT_FULL_SIZE = 0.6
UNIQUE = 0.8
APART_PX = 4
"""A block is found again if its best place correlates this well, no place farther from that than `APART_PX` more than
this share of it (straight edges and plain blobs are found in many places), and the block beside it lies beside it."""


def full_size_match_share(before: FramePlanes, after: FramePlanes, target_share: float) -> float:
    """Return the share of textured blocks of `after` that were near by in `before`, in [0, 1].

    Fine texture, zoomed or turned by a fraction of a texel, is another one in thumbnails, and itself at full size.
    0 if the planes differ in size.

    Args:
        before: The picture to search.
        after: The picture whose blocks are looked for.
        target_share: Share that ends the search.
    """
    if before.planes[0].shape != after.planes[0].shape:
        return 0.0
    match_share = _FinePair(before, after, 1).match_share(target_share)
    # pictures at least this wide are compared in half their size too, in which blocks show more
    if match_share < target_share and before.width_px >= 960:
        match_share = max(match_share, _FinePair(before, after, 2).match_share(target_share))
    return match_share


@dataclass(frozen=True, slots=True)
class _FinePair:
    """Two pictures of one size; parts are read as luma, each texel a mean of `texel_px` × `texel_px` pixels."""

    before: FramePlanes
    after: FramePlanes
    texel_px: int

    def match_share(self, target_share: float) -> float:
        """Return the share of textured blocks that are found again; stops if `target_share` cannot be reached any
        more."""
        matches = textured = 0
        sites = self._sites()
        for index, (top, left) in enumerate(sites):
            if matches + len(sites) - index < target_share * max(LEAST_BLOCKS, textured):
                break
            block = self._luma(self.after, top, left, SITE_PX, 2 * SITE_PX)
            if min(block[:, :SITE_PX].std(), block[:, SITE_PX:].std()) >= TEXTURED:
                textured += 1
                matches += self._has_match(block, top, left)
        return matches / max(LEAST_BLOCKS, textured)

    def _sites(self) -> list[tuple[int, int]]:
        """Top left corners of the blocks, from the middle outwards: a zoom or a turn moves little there."""
        height = self.after.height_px // self.texel_px
        width = self.after.width_px // self.texel_px
        if min(height, width) < 4 * SITE_PX:
            return []
        tops = [round((row + 0.5) * height / SITE_ROWS) - SITE_PX // 2 for row in range(SITE_ROWS)]
        lefts = [round((col + 0.5) * width / SITE_COLS) - SITE_PX for col in range(SITE_COLS)]
        corners = [(max(0, top), min(max(0, left), width - 2 * SITE_PX)) for top in tops for left in lefts]
        return sorted(corners, key=lambda at: math.hypot(at[0] + SITE_PX / 2 - height / 2, at[1] + SITE_PX - width / 2))

    def _has_match(self, block: Floats, top: int, left: int) -> bool:
        """Return True if the left half of a block [32, 64] has one clear place near (top, left), and the right one
        follows."""
        first_row = max(0, top - REACH_PX)
        first_col = max(0, left - REACH_PX)
        rows = top + SITE_PX + REACH_PX - first_row
        cols = left + 2 * SITE_PX + REACH_PX - first_col
        around = self._luma(self.before, first_row, first_col, rows, cols)
        fits = cv2.matchTemplate(around[:, :-SITE_PX], block[:, :SITE_PX], cv2.TM_CCOEFF_NORMED)
        _, best, _, (x, y) = cv2.minMaxLoc(fits)
        if best < ALIKE_AT_FULL_SIZE:
            return False
        near_rows, near_cols = (slice(max(0, at - APART_PX), at + APART_PX + 1) for at in (y, x))
        fits[near_rows, near_cols] = -1
        if fits.max() > UNIQUE * best:
            return False
        below = y + SITE_PX + APART_PX
        right = x + 2 * SITE_PX + APART_PX
        beside = around[near_rows.start : below, x + SITE_PX - APART_PX : right]
        return bool(cv2.matchTemplate(beside, block[:, SITE_PX:], cv2.TM_CCOEFF_NORMED).max() >= ALIKE_AT_FULL_SIZE)

    def _luma(self, planes: FramePlanes, top: int, left: int, rows: int, cols: int) -> Floats:
        texel_px = self.texel_px
        part = planes.planes[0][top * texel_px : (top + rows) * texel_px, left * texel_px : (left + cols) * texel_px]
        if planes.layout == "rgb":
            luma = cv2.cvtColor(np.ascontiguousarray(part), cv2.COLOR_RGB2GRAY)
        else:
            luma = part
        return np.asarray(_softened(halve_plane(luma, texel_px).astype(np.float32)), np.float32)
