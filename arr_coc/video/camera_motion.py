"""Motion of the camera, from the motion of tiles: a robust affine fit, which covers pans, zooms and turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX

Floats = npt.NDArray[np.float32]

START_SCALE_PX, END_SCALE_PX = 64.0, 2.0
SCALE_STEP = 0.5
"""Scale of the robust weights, from one within which all tiles agree to one that only inliers meet."""

INLIER_PX, INLIER_SHARE = 3.0, 0.08
"""A tile moves with the camera where it departs by at most so many pixels and this share of its way."""

LEAST_TILES = 4
LEAST_SUPPORT = 0.5
"""Least number of confident tiles, and least share of their confidence, that moves with the camera."""

AFFINE_TILES = 12
AFFINE_SPREAD_TILES = 1.0
"""Least number of tiles, and least standard deviation of their places, for more than a translation."""

TILES_USED = 300
"""Of more tiles every n-th is fitted."""

_RIDGE = 1e-3  # tiles; keeps the fit of tiles in one line from an arbitrary slope across it


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
        row, col = np.mgrid[0:rows, 0:cols]
        dy, dx = (m[0] * row + m[1] * col + m[2] for m in self.matrix)
        return dy.astype(np.float32), dx.astype(np.float32)

    def warp(self, texels: int) -> npt.NDArray[np.float64]:
        """Return the matrix [2, 3] that `cv2.warpAffine` takes, with WARP_INVERSE_MAP, to bring the picture before
        to where it is now; a tile has `texels` × `texels` texels."""
        texel_px = TILE_PX / texels
        (a, b, ty), (c, d, tx) = self.matrix / texel_px
        # tile coordinates of a texel: (texel + 0.5) / texels - 0.5
        offset = 0.5 / texels - 0.5
        down = [-b / texels, 1 - a / texels, -(ty + (a + b) * offset)]
        across = [1 - d / texels, -c / texels, -(tx + (c + d) * offset)]
        return np.array([across, down], np.float64)


def fit_camera(dy_px: Floats, dx_px: Floats, weights: Floats) -> CameraMotion | None:
    """Return what most of the weight of tiles [rows, cols] agrees on; None where there is no such motion.

    Iteratively reweighted least squares with Geman and McClure's weights and graduated non-convexity (Blake and
    Zisserman, Visual Reconstruction, 1987): it begins with all tiles and ends with those that agree.
    """
    at = np.argwhere(weights > 0)
    if len(at) < LEAST_TILES:
        return None
    at = at[:: -(-len(at) // TILES_USED)]
    moved = np.stack([dy_px[tuple(at.T)], dx_px[tuple(at.T)]], axis=1).astype(np.float64)
    trust = weights[tuple(at.T)].astype(np.float64)
    spread = at.std(axis=0).min()
    affine = len(at) >= AFFINE_TILES and spread >= AFFINE_SPREAD_TILES
    centre = at.mean(axis=0)
    design = np.column_stack([at - centre, np.ones(len(at))]) if affine else np.ones((len(at), 1))
    fitted = np.zeros((design.shape[1], 2))
    fitted[-1] = np.median(moved, axis=0)
    scale_px = START_SCALE_PX
    while scale_px >= END_SCALE_PX:
        for _ in range(2):
            residual = ((moved - design @ fitted) ** 2).sum(axis=1)
            share = trust / (1 + residual / scale_px**2) ** 2
            normal = design.T @ (design * share[:, None]) + _RIDGE * np.eye(design.shape[1])
            fitted = np.linalg.solve(normal, design.T @ (moved * share[:, None]))
        scale_px *= SCALE_STEP
    departure = np.linalg.norm(moved - design @ fitted, axis=1)
    inliers = departure <= INLIER_PX + INLIER_SHARE * np.linalg.norm(moved, axis=1)
    support = float(trust[inliers].sum() / trust.sum())
    if inliers.sum() < LEAST_TILES or support < LEAST_SUPPORT:
        return None
    slopes = fitted[:2].T if affine else np.zeros((2, 2))
    return CameraMotion(np.column_stack([slopes, fitted[-1] - slopes @ centre]), support)
