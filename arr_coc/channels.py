"""What can be said about a tile from its own texels, and about the frame from one texel a tile.

Tile-local quantities are sums of whole numbers, exact in float32: computing a few tiles gives the same bits as
computing all of them. Edges and the histogram look at level 1 (256 texels a tile), where sensor noise is halved and
strokes of text remain; colour variance looks at level 2.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX

LUMA_SIDE = TILE_PX >> 1
COLOUR_SIDE = TILE_PX >> 2
HISTOGRAM_BINS = 16

CLUSTER_START = np.array([[64, 64, 64], [192, 192, 192], [192, 104, 64], [64, 104, 192]], np.float32)
CLUSTER_STEPS = 4
SURROUND_TILES = (5, 11)

_SOBEL_LARGEST = 4 * 255
_TEXELS = LUMA_SIDE * LUMA_SIDE
_FIXED_POINT = 1 << 20
_COUNTS = np.arange(_TEXELS + 1)
_COUNT_LOG = np.rint(_COUNTS * np.log2(np.maximum(_COUNTS, 1)) * _FIXED_POINT).astype(np.int64)

_OPPONENTS = np.array([[1 / 3, 1 / 3, 1 / 3], [1, -1, 0], [-0.5, -0.5, 1]], np.float32) / 255

Image = npt.NDArray[np.uint8]
Maps = npt.NDArray[np.float32]


def _tile_means(image: npt.NDArray[Any], rows: int, cols: int) -> Maps:
    """Means over the cells of an image [rows·s, cols·s(, c)] of whole numbers: float32 [rows, cols(, c)]."""
    return cv2.resize(image.astype(np.float32, copy=False), (cols, rows), interpolation=cv2.INTER_AREA)


def edge_means(blocks: Image) -> Maps:
    """Sobel gx, gy in [−1, 1] and magnitude in [0, 1], averaged over tiles.

    `blocks` uint8 [n, h + 2, w + 2] luma with a halo of one texel, h and w multiples of 16; returns float32
    [3, n·h/16, w/16].
    """
    count, height, width = blocks.shape
    image = blocks.reshape(count * height, width)
    gx, gy = (cv2.Sobel(image, cv2.CV_32F, *axes) for axes in ((1, 0), (0, 1)))
    magnitude = cv2.magnitude(gx, gy)
    np.rint(magnitude, out=magnitude)
    inner_height, inner_width = height - 2, width - 2
    means = []
    for edges, largest in ((gx, _SOBEL_LARGEST), (gy, _SOBEL_LARGEST), (magnitude, _SOBEL_LARGEST * np.sqrt(2))):
        inner = edges.reshape(blocks.shape)[:, 1:-1, 1:-1].reshape(count * inner_height, inner_width)
        rows, cols = count * inner_height // LUMA_SIDE, inner_width // LUMA_SIDE
        means.append(_tile_means(inner, rows, cols) / np.float32(largest))
    return np.stack(means)


def luma_entropy(tiles: Image) -> Maps:
    """Shannon entropy of each tile's 16-bin luma histogram, divided by log 16: exactly 0 for a flat tile.

    Of two histograms whose bins lie half a bin apart the smaller entropy counts, because a nearly flat tile whose
    luma lies at a bin's border would otherwise flicker with the noise. `tiles` uint8 [n, 16, 16] luma; returns
    float32 [n].
    """
    count = len(tiles)
    half_bins = 2 * HISTOGRAM_BINS
    bins = np.add(tiles.reshape(count, -1) >> 3, (np.arange(count) * half_bins)[:, None], dtype=np.intp)
    halves = np.bincount(bins.ravel(), minlength=count * half_bins).reshape(count, half_bins)
    aligned = _COUNT_LOG[halves[:, 0::2] + halves[:, 1::2]].sum(axis=1)
    shifted = _COUNT_LOG[halves[:, 1:-1:2] + halves[:, 2::2]].sum(axis=1)
    shifted += _COUNT_LOG[halves[:, 0]] + _COUNT_LOG[halves[:, -1]]
    bits = _COUNT_LOG[_TEXELS] - np.maximum(aligned, shifted)
    return (bits / (_TEXELS * np.log2(HISTOGRAM_BINS) * _FIXED_POINT)).astype(np.float32)


def colour_variance(tiles: Image) -> Maps:
    """Variance of colour inside each tile, mean of the three primaries, times 4 (so in [0, 1]).

    `tiles` uint8 [n, 8, 8, 3]; returns float32 [n].
    """
    count = len(tiles)
    texels = tiles.reshape(count * COLOUR_SIDE, COLOUR_SIDE, 3).astype(np.float32)
    mean, square = _tile_means(texels, count, 1), _tile_means(np.square(texels), count, 1)
    variance = (square - np.square(mean)).reshape(count, 3)
    return np.maximum((variance[:, 0] + variance[:, 1] + variance[:, 2]) * np.float32(4 / 3 / 255**2), 0)


def centre_surround(fine: Image, coarse: Image) -> Maps:
    """Centre–surround differences of intensity, red–green and blue–yellow (Itti, Koch & Niebur, 1998), in [0, 1].

    The centres are the four texels of level 4 in a tile, `fine` uint8 [2·gh, 2·gw, 3]; the surrounds are means over
    5 and 11 tiles of level 5, `coarse` uint8 [gh, gw, 3]. Largest of the four, mean of the two, not normalised by the
    frame. Returns float32 [3, gh, gw].
    """
    centre = cv2.transform(fine.astype(np.float32), _OPPONENTS)
    base = cv2.transform(coarse.astype(np.float32), _OPPONENTS)
    high, low = _extreme(centre, np.maximum), _extreme(centre, np.minimum)
    saliency = np.zeros_like(base)
    for side in SURROUND_TILES:
        surround = cv2.blur(base, (side, side), borderType=cv2.BORDER_REPLICATE)
        saliency += np.maximum(high - surround, surround - low)
    return np.clip(saliency.transpose(2, 0, 1) / len(SURROUND_TILES), 0, 1)


def _extreme(image: Maps, pick: np.ufunc) -> Maps:
    """The largest or smallest of 2×2 texels: [2·gh, 2·gw, 3] → [gh, gw, 3]."""
    rows = pick(image[0::2], image[1::2])
    return pick(rows[:, 0::2], rows[:, 1::2])


def cluster_distance(coarse: Image) -> Maps:
    """Distance of each tile's colour to the nearest of the frame's four colour clusters, divided by the cube's
    diagonal.

    k-means over level 5 (`coarse` uint8 [gh, gw, 3]) from a fixed start in a fixed number of steps; a cluster that
    nothing belongs to stays where it is. Returns float32 [gh, gw] in [0, 1].
    """
    points = np.ones((4, coarse.shape[0] * coarse.shape[1]), np.float32)
    points[:3] = coarse.reshape(-1, 3).T
    centres = CLUSTER_START
    for _ in range(CLUSTER_STEPS):
        nearness = _nearness(points, centres)
        sums = (nearness == nearness.max(axis=0)).astype(np.float32) @ points.T
        centres = np.where(sums[:, 3:] > 0, sums[:, :3] / np.maximum(sums[:, 3:], 1), centres)
    squared = np.square(points[:3]).sum(axis=0) - _nearness(points, centres).max(axis=0)
    return (np.sqrt(np.maximum(squared, 0)) / np.float32(255 * np.sqrt(3))).reshape(coarse.shape[:2])


def _nearness(points: Maps, centres: Maps) -> Maps:
    """Each point's own square less its squared distance to each centre: [clusters, points], of points [4, points]."""
    return np.concatenate([2 * centres, -np.square(centres).sum(axis=1, keepdims=True)], axis=1) @ points
