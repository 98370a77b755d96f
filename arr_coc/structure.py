"""Whether there is structure to choose by, or only noise: the semantic-void guard.

A stream's guard judges the picture, by `picture_structure`. The relevance map cannot tell: a trained scorer smooths
over its neighbours and knows where in a frame things usually are, so it makes structured maps of white noise; and it
may find nothing to prefer on a page of print. Where there is a map alone, `structure` judges that. What answers looked
at in a picture overrules how it looks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

VOID_STRUCTURE = 0.25
"""Below this a map has no structure. White noise measures 0.00 ± 0.02 on a 34×60 grid, ± 0.12 on 6×6."""

VOID_RANGE = 0.05
"""A map whose values all lie within this has no structure either, whatever its shape."""

LEAST_TILES = 64
"""Pictures of fewer tiles are not judged: so few neighbours prove nothing, and most budgets show all of them."""

_CLEAR = 0.35
"""Above every threshold, hysteresis included: nothing else needs to be measured."""

_LEAST_RANGES = (0.05, 0.05, 0.05, 0.02, 0.1)
"""What red, green, blue, edge magnitude and entropy must vary by, between tiles, to count. A blank wall or a slope of
light varies by 0.007, 0.007, 0.007, 0.003 and 0.055 at most, under a sensor's noise of 4 of 255."""

_COUNTING = (0, 1, 2, 5, 6)
_COLOURS, _EDGES, _ENTROPY = (0, 1, 2), 5, 6

_LEAST_STEP = 0.04
"""By how much a colour must differ from its neighbours' mean somewhere; slopes and spots of light bend by 0.03."""

_LEAST_EDGES = 0.004
"""What edge magnitude must vary by where entropy counts: a steep slope fills more or fewer bins of the histogram, and
has no edges."""

Map = npt.NDArray[np.float32]


def structure(relevance: Map) -> float:
    """How far a map [gh, gw] is from noise, in [0, 1]: the larger of its coherence and its sparsity.

    Coherence is the mean correlation of horizontal and vertical neighbours (Moran's I at lag one): near 1 for objects
    larger than a tile, 0 for white noise. Sparsity is 2·H − 1 with Hoyer's H (2004) of what exceeds the median: 1 for
    a single tile that stands out, below 0 for noise of any usual distribution. A map whose range is less than
    `VOID_RANGE` measures 0.
    """
    if relevance.size < 4 or float(relevance.max() - relevance.min()) < VOID_RANGE:
        return 0.0
    return float(np.clip(max(_coherence(relevance), _sparsity(relevance)), 0, 1))


def picture_structure(looks: Map) -> float:
    """How far a picture is from a void (blank, a slope of light, white noise, drops all over), in [0, 1].

    `looks` float32 [7, gh, gw]: red, green, blue, Sobel gx, gy and magnitude, and entropy of each tile, all of them
    absolute. Of each of them but gx and gy, a slope over the frame (a surface of second order) is taken away; the
    largest of their structures counts, but for a colour that only bends, and for entropy without edges. 1 for fewer
    than `LEAST_TILES` tiles.
    """
    rows, cols = looks.shape[1:]
    if rows * cols < LEAST_TILES:
        return 1.0
    slopes, found = _slopes(rows, cols), 0.0
    for channel, least in zip(_COUNTING, _LEAST_RANGES, strict=True):
        values = looks[channel].ravel()
        rest = (values - slopes @ (values @ slopes)).reshape(rows, cols)
        if float(rest.max() - rest.min()) < least or _is_light(channel, looks):
            continue
        found = max(found, _coherence(rest))
        if found < _CLEAR:
            found = max(found, _sparsity(np.abs(rest)))
        if found >= _CLEAR:
            break
    return min(1.0, found)


def _is_light(channel: int, looks: Map) -> bool:
    """Whether slopes of light explain how a channel varies."""
    if channel in _COLOURS:
        values = looks[channel]
        if min(values.shape) < 3:
            return False  # a strip has no tile with neighbours all around
        bends = values[1:-1, 1:-1] - (values[:-2, 1:-1] + values[2:, 1:-1] + values[1:-1, :-2] + values[1:-1, 2:]) / 4
        return float(np.abs(bends).max()) < _LEAST_STEP
    return channel == _ENTROPY and float(np.ptp(looks[_EDGES])) < _LEAST_EDGES


@lru_cache(maxsize=8)
def _slopes(rows: int, cols: int) -> Map:
    """An orthonormal basis of the surfaces of second order over a grid: float32 [rows · cols, 6]."""
    y, x = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, cols), indexing="ij"))
    basis = np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1))[0]
    return np.ascontiguousarray(basis, np.float32)


def _coherence(relevance: Map) -> float:
    deviation = relevance - relevance.mean()
    products = float((deviation[1:] * deviation[:-1]).sum() + (deviation[:, 1:] * deviation[:, :-1]).sum())
    pairs = deviation[1:].size + deviation[:, 1:].size
    return products / pairs * deviation.size / float(np.square(deviation).sum())


def _sparsity(relevance: Map) -> float:
    above = np.maximum(relevance - np.median(relevance), 0)
    norm = float(np.sqrt(np.square(above).sum()))
    root = float(np.sqrt(above.size))
    if norm == 0:
        return 0.0
    return 2 * (root - float(above.sum()) / norm) / (root - 1) - 1
