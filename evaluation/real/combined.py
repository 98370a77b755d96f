"""A sum of cheap saliency maps without training, as a candidate for what an untrained allocator looks at.

Each map is in [0, 1) and is a ratio to a constant; nothing depends on the rest of the frame, but for the spectral
residual, whose scale is arbitrary. The weights were fitted on the half `choose` of the labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from arr_coc.qwen.preprocess import Rgb
from evaluation.real.saliency import TEXELS_A_TILE, Map, of_tiles, small_picture, spectral_residual

WEIGHTS = {"residual": 1.7, "barrier": 1.7, "centre": 0.9, "motion": 1.6, "edges": 0.8}

BARRIER_PASSES = 3
"""Raster passes of the barrier distance; the paper takes three."""

HALF_BARRIER = 30.0
"""Barrier distance in Lab at which a tile is halfway to the most salient."""

HALF_MOTION = 6.0
"""Change in grey levels, likewise."""

HALF_EDGES = 0.1
"""Mean Sobel magnitude, likewise."""

PAST_FRAMES = 9
"""Frames of the last second whose median is the still picture."""


def combined(images: Sequence[Rgb], shape: tuple[int, int]) -> Map:
    """Return the weighted mean of the maps of the newest frame: float32 [rows, cols] in [0, 1).

    Args:
        images: uint8 [H, W, 3], the frames of the last second, the newest last.
        shape: (rows, cols) of the tiles.
    """
    image = images[-1]
    residual = spectral_residual(image, shape)
    maps = {
        "residual": residual / (residual + 2 * np.median(residual) + 1e-12),
        "barrier": barrier(image, shape),
        "centre": centre(shape),
        "motion": motion(images, shape),
        "edges": edges(image, shape),
    }
    total = sum(weight * maps[name] for name, weight in WEIGHTS.items())
    return np.asarray(total / sum(WEIGHTS.values()), np.float32)


def barrier(image: Rgb, shape: tuple[int, int]) -> Map:
    """Return how far tiles are from the picture's border by the minimum barrier distance of their colours in Lab: the
    least range of values along any path (Zhang et al., ICCV 2015)."""
    lab = cv2.cvtColor(small_picture(image, shape, 1).astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    distance = np.sum([barrier_distance(lab[..., channel]) for channel in range(3)], axis=0)
    return np.asarray(distance / (distance + HALF_BARRIER), np.float32)


def barrier_distance(values: Map) -> Map:
    """Return the least difference between the highest and the lowest value along a path to the border, for each place
    of a map [rows, cols], by raster passes, so a little too high on winding paths."""
    distance = np.full(values.shape, np.inf, np.float32)
    distance[[0, -1]] = 0
    distance[:, [0, -1]] = 0
    highest, lowest = values.copy(), values.copy()
    rows, cols = values.shape
    # Rows downward, columns to the right, then back; a transposed view serves for columns.
    maps = distance, highest, lowest, values
    columns = distance.T, highest.T, lowest.T, values.T
    for _ in range(BARRIER_PASSES):
        for row in range(1, rows - 1):
            _relax(*maps, row, row - 1)
        for col in range(1, cols - 1):
            _relax(*columns, col, col - 1)
        for row in range(rows - 2, 0, -1):
            _relax(*maps, row, row + 1)
        for col in range(cols - 2, 0, -1):
            _relax(*columns, col, col + 1)
    return distance


def _relax(distance: Map, highest: Map, lowest: Map, values: Map, here: int, there: int) -> None:
    """Let the places of the line `here` take the way over the line `there` if that is nearer."""
    high = np.maximum(highest[there], values[here])
    low = np.minimum(lowest[there], values[here])
    nearer = high - low < distance[here]
    distance[here] = np.where(nearer, high - low, distance[here])
    highest[here] = np.where(nearer, high, highest[here])
    lowest[here] = np.where(nearer, low, lowest[here])


def centre(shape: tuple[int, int]) -> Map:
    """Return 1 in the middle, 0 in the corners."""
    down, across = ((np.arange(count) + 0.5) / count - 0.5 for count in shape)
    return np.asarray(1 - np.hypot(down[:, None], across) / np.hypot(0.5, 0.5), np.float32)


def motion(images: Sequence[Rgb], shape: tuple[int, int]) -> Map:
    """Return by how much tiles differ from the frame before or from the median of the last second, above twice the
    median of that change: a camera that moves changes everything."""
    if len(images) < 3:
        return np.zeros(shape, np.float32)
    picks = np.unique(np.linspace(0, len(images) - 1, PAST_FRAMES).round().astype(int))
    greys = [small_picture(images[pick], shape, TEXELS_A_TILE).mean(axis=2, dtype=np.float32) for pick in picks]
    change = np.zeros(shape, np.float32)
    for before in (greys[-2], np.median(greys, axis=0)):
        tiles = of_tiles(np.abs(greys[-1] - before), shape)
        change = np.maximum(change, tiles - 2 * np.median(tiles) - 1)
    return np.asarray(change / (change + HALF_MOTION), np.float32)


def edges(image: Rgb, shape: tuple[int, int]) -> Map:
    """Return the mean Sobel magnitude of tiles, as a share of its largest."""
    grey = cv2.cvtColor(small_picture(image, shape, 2 * TEXELS_A_TILE), cv2.COLOR_RGB2GRAY).astype(np.float32)
    magnitude = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)) / (4 * 255)
    mean = of_tiles(magnitude, shape)
    return mean / (mean + HALF_EDGES)
