"""Motion of the camera, from the motion of tiles: a robust affine fit, which covers pans, zooms and turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX

Floats = npt.NDArray[np.float32]
Fit = npt.NDArray[np.float64]
Factors = tuple[float, float, float]

START_SCALE_PX = 64.0
END_SCALE_PX = 2.0
SCALE_STEP = 0.5
"""Scale of the robust weights, from one within which all tiles agree to one that only inliers meet."""

INLIER_PX = 3.0
INLIER_SHARE = 0.08
"""A tile moves with the camera if it departs by at most these pixels plus this share of its way."""

LEAST_TILES = 4
LEAST_SUPPORT = 0.5
"""Least number of confident tiles, and least share of their confidence, that moves with the camera."""

AFFINE_TILES = 12
AFFINE_SPREAD_TILES = 1.0
"""Least number of tiles, and least standard deviation of their places, for more than a translation."""

TILES_USED = 300
"""Of more tiles every n-th is fitted."""

LEAST_BEND_TEXELS = 0.125
"""Zooms and turns that move the picture's edges by less count as none for moving a picture: one shift reads faster."""

RIDGE = 1e-3
"""In tiles: keeps the fit of tiles in one line from an arbitrary slope across it."""


@dataclass(frozen=True, slots=True)
class CameraMotion:
    """Affine motion: `matrix` float64 [2, 3] maps (row, col, 1), in tiles, to (dy_px, dx_px).

    `support` in [0, 1] is the share of confidence that it explains.
    """

    matrix: npt.NDArray[np.float64]
    support: float

    @classmethod
    def shift(cls, dy_px: float, dx_px: float) -> CameraMotion:
        """One translation, fully supported."""
        return cls(np.array([[0, 0, dy_px], [0, 0, dx_px]], np.float64), 1.0)

    def over(self, rows: int, cols: int) -> tuple[Floats, Floats]:
        """Return the motion (dy_px, dx_px) of each tile of a grid: float32 [rows, cols] each."""
        m = self.matrix.astype(np.float32)
        row = np.arange(rows, dtype=np.float32)[:, None]
        col = np.arange(cols, dtype=np.float32)
        return m[0, 0] * row + (m[0, 1] * col + m[0, 2]), m[1, 0] * row + (m[1, 1] * col + m[1, 2])

    def sources(self, rows: int, cols: int, texels: int) -> tuple[Factors, Factors]:
        """Return the earlier places of this frame's texels, of a grid of rows × cols tiles with `texels` texels each
        way: factors of (row, col, 1) of a texel that give its row, and its column."""
        texel_px = TILE_PX / texels
        (a, b, ty), (c, d, tx) = (self.matrix / texel_px).tolist()
        if max(abs(a) + abs(c), abs(b) + abs(d)) * max(rows, cols) < 2 * LEAST_BEND_TEXELS:
            middle_row = (rows - 1) / 2
            middle_col = (cols - 1) / 2
            dy = a * middle_row + b * middle_col + ty
            dx = c * middle_row + d * middle_col + tx
            return (1.0, 0.0, -dy), (0.0, 1.0, -dx)
        # tile coordinates of a texel: texel / texels + offset
        offset = 0.5 / texels - 0.5
        down = 1 - a / texels, -b / texels, -(ty + (a + b) * offset)
        return down, (-c / texels, 1 - d / texels, -(tx + (c + d) * offset))


def fit_camera(dy_px: Floats, dx_px: Floats, weights: Floats) -> CameraMotion | None:
    """Return the motion that most of the weight of tiles agrees on; None if there is no such motion.

    Iteratively reweighted least squares with Geman and McClure's weights and graduated non-convexity (Blake and
    Zisserman, Visual Reconstruction, 1987): it begins with all tiles and ends with those that agree.

    Args:
        dy_px: Motion down of each tile, float32 [rows, cols], in pixels.
        dx_px: Motion to the right of each tile, float32 [rows, cols], in pixels.
        weights: Weight of each tile, float32 [rows, cols]; 0 leaves a tile out.
    """
    row, col = np.nonzero(weights)
    if len(row) < LEAST_TILES:
        return None
    stride = -(-len(row) // TILES_USED)
    row = row[::stride]
    col = col[::stride]
    shifts: Fit = np.array([dy_px[row, col], dx_px[row, col]], np.float64).T
    trust: Fit = weights[row, col].astype(np.float64)
    places = np.array([row, col], np.float64).T
    centre = places.mean(axis=0)
    affine = len(row) >= AFFINE_TILES and places.std(axis=0).min() >= AFFINE_SPREAD_TILES
    if affine:
        design = np.column_stack([places - centre, np.ones(len(row))])
    else:
        design = np.ones((len(row), 1))
    parameters = _fitted(shifts, design, trust)
    inliers = _squares(shifts - design @ parameters) <= (INLIER_PX + INLIER_SHARE * np.sqrt(_squares(shifts))) ** 2
    support = float(trust @ inliers / trust.sum())
    if np.count_nonzero(inliers) < LEAST_TILES or support < LEAST_SUPPORT:
        return None
    slopes = parameters[:2].T if affine else np.zeros((2, 2))
    return CameraMotion(np.column_stack([slopes, parameters[-1] - slopes @ centre]), support)


def _fitted(shifts: Fit, design: Fit, trust: Fit) -> Fit:
    """Parameters [k, 2] that map places [n, k] to how most of them moved [n, 2]."""
    ridge = RIDGE * np.eye(design.shape[1])
    parameters: Fit = np.zeros((design.shape[1], 2))
    parameters[-1] = np.median(shifts, axis=0)
    scale_px = START_SCALE_PX
    while scale_px >= END_SCALE_PX:
        for _ in range(2):
            denominators = 1 + _squares(shifts - design @ parameters) / scale_px**2
            weighted = design * (trust / (denominators * denominators))[:, None]
            parameters = np.asarray(np.linalg.solve(design.T @ weighted + ridge, weighted.T @ shifts), np.float64)
        scale_px *= SCALE_STEP
    return parameters


def _squares(vectors: Fit) -> Fit:
    """Squared length of vectors [n, 2]: [n]."""
    return np.einsum("ij,ij->i", vectors, vectors)
