"""Whether a relevance map has structure at all, or only noise: the semantic-void guard."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

VOID_STRUCTURE = 0.25
"""Below this a map has no structure. White noise measures 0.00 ± 0.02 on a 34×60 grid, ± 0.12 on 6×6."""

VOID_RANGE = 0.05
"""A map whose values all lie within this has no structure either, whatever its shape."""


def structure(relevance: npt.NDArray[np.float32]) -> float:
    """How far a map [gh, gw] is from noise, in [0, 1]: the larger of its coherence and its sparsity.

    Coherence is the mean correlation of horizontal and vertical neighbours (Moran's I at lag one): near 1 for objects
    larger than a tile, 0 for white noise. Sparsity is 2·H − 1 with Hoyer's H (2004) of what exceeds the median: 1 for
    a single tile that stands out, below 0 for noise of any usual distribution. A map whose range is less than
    `VOID_RANGE` measures 0.
    """
    if relevance.size < 4 or float(relevance.max() - relevance.min()) < VOID_RANGE:
        return 0.0
    return float(np.clip(max(_coherence(relevance), _sparsity(relevance)), 0, 1))


def _coherence(relevance: npt.NDArray[np.float32]) -> float:
    deviation = relevance - relevance.mean()
    products = float((deviation[1:] * deviation[:-1]).sum() + (deviation[:, 1:] * deviation[:, :-1]).sum())
    pairs = deviation[1:].size + deviation[:, 1:].size
    return products / pairs * deviation.size / float(np.square(deviation).sum())


def _sparsity(relevance: npt.NDArray[np.float32]) -> float:
    above = np.maximum(relevance - np.median(relevance), 0)
    norm = float(np.sqrt(np.square(above).sum()))
    root = float(np.sqrt(above.size))
    if norm == 0:
        return 0.0
    return 2 * (root - float(above.sum()) / norm) / (root - 1) - 1
