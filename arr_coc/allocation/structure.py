"""Guard against pictures without structure: how far a map, or a picture, is from noise.

A stream's guard judges the picture, by `picture_structure`. The relevance map is no evidence: a trained scorer smooths
over neighbours and has learned where in a frame things usually are, so it makes structured maps of white noise, and it
may prefer nothing on a page of print. If only a map is given, `map_structure` judges it. Feedback from answers on a
picture overrules its looks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from arr_coc.allocation.warping import structure_or_none

VOID_STRUCTURE = 0.25
"""Below this a map has no structure. White noise measures 0.00 ± 0.02 on a 34×60 grid, ± 0.12 on 6×6."""

VOID_RANGE = 0.05
"""A map whose values all lie within this has no structure either, whatever its shape."""

LEAST_TILES = 64
"""Pictures of fewer tiles are not judged: few neighbours prove nothing, and most budgets show all of them."""

CLEAR = 0.35
"""Above every threshold, hysteresis included: nothing else needs to be measured."""

LEAST_RANGES = (0.05, 0.05, 0.05, 0.02, 0.1)
"""Least ranges of red, green, blue, edge magnitude and entropy, between tiles, to count. A blank wall or a slope of
light varies by 0.007, 0.007, 0.007, 0.003 and 0.055 at most, under a sensor's noise of 4 of 255."""

EDGES = 5

LEAST_STEP = 0.04
"""By how much a colour must differ from its neighbours' mean somewhere; slopes and spots of light bend by 0.03."""

LEAST_EDGES = 0.004
"""Least spread of edge magnitude for entropy to count: a steep slope fills more or fewer bins of the histogram, and
has no edges."""

_MAP_LEAST = torch.tensor([VOID_RANGE])


def map_structure(relevance: torch.Tensor) -> torch.Tensor:
    """Return the distance of a map [gh, gw] from noise, in [0, 1]: the larger of its coherence and its sparsity.

    Coherence is the mean correlation of horizontal and vertical neighbours (Moran's I at lag one): near 1 for objects
    larger than a tile, 0 for white noise. Sparsity is 2·H − 1 with Hoyer's H (2004) of what exceeds the median: 1 for
    a single tile that stands out, below 0 for noise of any usual distribution. A map whose range is less than
    `VOID_RANGE` measures 0. A scalar on the map's device.
    """
    if relevance.numel() < 4:
        return relevance.new_zeros(())
    if relevance.is_cpu and (compiled := structure_or_none(relevance, None, _MAP_LEAST, (0, 0, 1))) is not None:
        return compiled
    maps = relevance[None]
    structure = torch.maximum(_coherence(maps), _sparsity(maps)).clamp(0, 1)
    return torch.where(_ranges(maps) < VOID_RANGE, 0.0, structure)[0]


def picture_structure(appearance: torch.Tensor) -> torch.Tensor:
    """Return the distance of a picture from a void (blank, a slope of light, white noise, drops all over), in [0, 1].

    `appearance` float32 [7, gh, gw]: red, green, blue, Sobel gx, gy and magnitude, and entropy of each tile, all of
    them absolute. Of each of them but gx and gy, a slope over the frame (a surface of second order) is taken away; the
    largest of their structures counts, but for a colour that only bends, and for entropy without edges. 1 for fewer
    than `LEAST_TILES` tiles. Of a picture above `CLEAR`, not all may be measured. A scalar on the picture's device.
    """
    rows, cols = appearance.shape[1:]
    if rows * cols < LEAST_TILES:
        return appearance.new_ones(())
    slopes, least = _surfaces(rows, cols, appearance.device)
    limits = LEAST_STEP, LEAST_EDGES, CLEAR
    if appearance.is_cpu and (compiled := structure_or_none(appearance, slopes, least, limits)) is not None:
        return compiled
    values = torch.cat([appearance[:3], appearance[EDGES:]]).flatten(1)
    rest = (values - values @ slopes @ slopes.T).unflatten(1, (rows, cols))
    counts = (_ranges(rest) >= least) & ~_are_light(appearance)
    structure = torch.where(counts, _coherence(rest), 0.0)
    if not structure.is_cpu or structure.max() < CLEAR:  # a device is not asked, and measures both
        structure = torch.where(counts, torch.maximum(structure, _sparsity(rest.abs())), 0.0)
    return structure.max().clamp(0, 1)


def _are_light(appearance: torch.Tensor) -> torch.Tensor:
    """Return True if slopes of light explain how red, green, blue, edge magnitude and entropy vary: bool [5]."""
    light = torch.zeros(5, dtype=torch.bool, device=appearance.device)
    colours = appearance[:3]
    if min(colours.shape[1:]) >= 3:  # a strip has no tile with neighbours all around
        around = colours[:, :-2, 1:-1] + colours[:, 2:, 1:-1] + colours[:, 1:-1, :-2] + colours[:, 1:-1, 2:]
        light[:3] = (colours[:, 1:-1, 1:-1] - around / 4).abs().amax(dim=(1, 2)) < LEAST_STEP
    light[4] = _ranges(appearance[EDGES][None])[0] < LEAST_EDGES
    return light


@lru_cache(maxsize=8)
def _surfaces(rows: int, cols: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an orthonormal basis of the surfaces of second order over a grid: float32 [rows · cols, 6];
    `LEAST_RANGES`."""
    y, x = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, cols), indexing="ij"))
    basis = np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1))[0]
    return torch.from_numpy(np.ascontiguousarray(basis, np.float32)).to(device), torch.tensor(LEAST_RANGES).to(device)


def _ranges(maps: torch.Tensor) -> torch.Tensor:
    flat = maps.flatten(1)
    return flat.amax(dim=1) - flat.amin(dim=1)


def _coherence(maps: torch.Tensor) -> torch.Tensor:
    deviation = maps - maps.mean(dim=(1, 2), keepdim=True)
    down = deviation[:, 1:] * deviation[:, :-1]
    across = deviation[:, :, 1:] * deviation[:, :, :-1]
    pairs = down[0].numel() + across[0].numel()
    tiles = maps[0].numel()
    spread = deviation.square().sum(dim=(1, 2))
    share = (down.sum(dim=(1, 2)) + across.sum(dim=(1, 2))) / pairs * tiles / spread
    return torch.where(spread > 0, share, 0.0)


def _sparsity(maps: torch.Tensor) -> torch.Tensor:
    values = maps.flatten(1)
    tiles = maps[0].numel()
    median = (values.kthvalue((tiles + 1) // 2, dim=1).values + values.kthvalue(tiles // 2 + 1, dim=1).values) / 2
    above = (values - median[:, None]).clamp(min=0)
    norm = above.square().sum(dim=1).sqrt()
    root = tiles**0.5
    return torch.where(norm > 0, 2 * (root - above.sum(dim=1) / norm) / (root - 1) - 1, 0.0)
