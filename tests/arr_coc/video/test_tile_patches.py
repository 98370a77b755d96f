"""Tiles of two pictures compared: what motions explain them, and how far they are still off."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from arr_coc.types import TILE_PX
from arr_coc.video.camera_motion import CameraMotion
from arr_coc.video.tile_patches import Luma, TilePair
from tests.support.camera_moves import Picture, clutter, document

TEXELS = 8
TEXEL_PX = TILE_PX // TEXELS
ROWS, COLS = 10, 14
INNER = slice(2, -2), slice(2, -2)


def small(wide: Picture, right_px: int, down_px: int = 0) -> Luma:
    """A part of a picture, of texels: uint8 [ROWS · TEXELS, COLS · TEXELS]."""
    part = wide[200 + down_px : 200 + down_px + ROWS * TILE_PX, 200 + right_px : 200 + right_px + COLS * TILE_PX]
    size = COLS * TEXELS, ROWS * TEXELS
    return np.asarray(cv2.GaussianBlur(cv2.resize(part, size, interpolation=cv2.INTER_AREA), (3, 3), 0), np.uint8)


@pytest.mark.parametrize("draw", [clutter, document])
def test_what_explains_a_picture_is_told_from_what_does_not(draw: type[clutter]) -> None:  # type: ignore[valid-type]
    wide = draw(1)
    pair = TilePair(small(wide, 0), small(wide, 40), TEXELS)
    still = pair.still()
    right, _ = pair.with_camera(CameraMotion.shift(0, -40))
    wrong, _ = pair.with_camera(CameraMotion.shift(0, -24))
    assert pair.explained(right.left, still.left)[INNER].mean() > 0.95
    assert pair.explained(wrong.left, still.left)[INNER].mean() < 0.3
    assert pair.explained(still.left, still.left)[INNER].mean() < 0.3
    assert (pair.fit(right.left) >= pair.fit(wrong.left))[INNER].all()


@pytest.mark.parametrize(
    "camera", [CameraMotion.shift(5.0, -9.5), CameraMotion(np.array([[0.8, 0.1, 2], [0.1, 1, 4]]), 1)]
)
def test_tiles_that_move_each_by_itself_move_as_with_the_camera(camera: CameraMotion) -> None:
    wide = clutter(2)
    pair = TilePair(small(wide, 0), small(wide, 8), TEXELS)
    together, _ = pair.with_camera(camera)
    where = np.zeros((ROWS, COLS), bool)
    where[3:6, 4:9] = True
    alone = pair.each(together.dy_px, together.dx_px, where)
    assert np.isinf(alone.left[~where]).all()
    assert alone.left[where] == pytest.approx(together.left[where], abs=2.5)
    better = pair.still().or_better(alone)
    assert (better.left[~where] == pair.still().left[~where]).all()
    assert (better.left <= pair.still().left).all()
    kept = better.dx_px != 0
    assert (better.patches[kept.ravel()] == alone.patches[kept.ravel()]).all()


def test_the_rest_within_a_texel_is_registered() -> None:
    wide = clutter(3)
    pair = TilePair(small(wide, 0), small(wide, 2, 1), TEXELS)
    dy, dx = pair.rest(pair.still().patches)
    told = pair.structure()[INNER] > 0.5
    assert np.median(dx[INNER][told]) == pytest.approx(-2, abs=0.4)
    assert np.median(dy[INNER][told]) == pytest.approx(-1, abs=0.4)
    assert max(np.abs(dy).max(), np.abs(dx).max()) <= TEXEL_PX


def test_a_plain_tile_and_one_edge_have_no_structure_in_two_directions() -> None:
    plain = np.full((TEXELS, TEXELS), 120, np.uint8)
    edge = plain.copy()
    edge[:, TEXELS // 2 :] = 200
    corner = edge.copy()
    corner[: TEXELS // 2] = 40
    found = [float(TilePair(picture, picture, TEXELS).structure()[0, 0]) for picture in (plain, edge, corner)]
    assert max(found[:2]) < 0.1
    assert found[2] > 0.9
