"""Tiles of two pictures compared: what motions explain them, and how far they are still off."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from arr_coc.types import TILE_PX
from arr_coc.video.camera_motion import CameraMotion
from arr_coc.video.tile_patches import NOT_COMPARED, Luma, TilePair, texels_at
from tests.support.camera_moves import Picture, clutter, document

TEXELS = 8
TEXEL_PX = TILE_PX // TEXELS
ROWS, COLS = 10, 14
INNER = np.zeros((ROWS, COLS), bool)
INNER[2:-2, 2:-2] = True
INNER = INNER.ravel()
EVERYWHERE = np.arange(ROWS * COLS)


def small(wide: Picture, right_px: int, down_px: int = 0) -> Luma:
    """A part of a picture, of texels: uint8 [ROWS · TEXELS, COLS · TEXELS]."""
    part = wide[200 + down_px : 200 + down_px + ROWS * TILE_PX, 200 + right_px : 200 + right_px + COLS * TILE_PX]
    size = COLS * TEXELS, ROWS * TEXELS
    return np.asarray(cv2.GaussianBlur(cv2.resize(part, size, interpolation=cv2.INTER_AREA), (3, 3), 0), np.uint8)


@pytest.mark.parametrize("draw", [clutter, document])
def test_only_the_right_motion_explains_a_picture(draw: type[clutter]) -> None:  # type: ignore[valid-type]
    wide = draw(1)
    pair = TilePair(small(wide, 0), small(wide, 40), TEXELS, EVERYWHERE)
    zero_motion = pair.without_motion()
    right = pair.with_camera(CameraMotion.shift(0, -40))
    wrong = pair.with_camera(CameraMotion.shift(0, -24))
    assert pair.explained_tiles(right.residual, zero_motion.residual)[INNER].mean() > 0.95
    assert pair.explained_tiles(wrong.residual, zero_motion.residual)[INNER].mean() < 0.3
    assert pair.explained_tiles(zero_motion.residual, zero_motion.residual)[INNER].mean() < 0.3
    assert (pair.fit(right.residual) >= pair.fit(wrong.residual))[INNER].all()


@pytest.mark.parametrize(
    "camera", [CameraMotion.shift(5.0, -9.5), CameraMotion(np.array([[0.8, 0.1, 2], [0.1, 1, 4]]), 1)]
)
def test_tiles_that_move_each_by_itself_move_as_with_the_camera(camera: CameraMotion) -> None:
    wide = clutter(2)
    pair = TilePair(small(wide, 0), small(wide, 8), TEXELS, EVERYWHERE)
    by_camera = pair.with_camera(camera)
    interior = np.zeros((ROWS, COLS), bool)
    interior[3:6, 4:9] = True
    mask = interior.ravel()
    by_tile = pair.with_motions(by_camera.dy_px, by_camera.dx_px, mask)
    assert (by_tile.sad[~mask] == NOT_COMPARED).all()
    assert by_tile.residual[mask] == pytest.approx(by_camera.residual[mask], abs=2.5)
    better = pair.without_motion().or_better(by_tile)
    assert (better.residual[~mask] == pair.without_motion().residual[~mask]).all()
    assert (better.residual <= pair.without_motion().residual).all()
    movers = better.dx_px != 0
    assert (better.patches[movers] == by_tile.patches[movers]).all()


def test_the_rest_within_a_texel_is_registered() -> None:
    wide = clutter(3)
    pair = TilePair(small(wide, 0), small(wide, 2, 1), TEXELS, EVERYWHERE)
    dy, dx = pair.rest(pair.without_motion().patches)
    structured = pair.structure()[INNER] > 0.5
    assert np.median(dx[INNER][structured]) == pytest.approx(-2, abs=0.4)
    assert np.median(dy[INNER][structured]) == pytest.approx(-1, abs=0.4)
    assert max(np.abs(dy).max(), np.abs(dx).max()) <= TEXEL_PX


def test_a_plain_tile_and_one_edge_have_no_structure_in_two_directions() -> None:
    plain = np.full((TEXELS, TEXELS), 120, np.uint8)
    edge = plain.copy()
    edge[:, TEXELS // 2 :] = 200
    corner = edge.copy()
    corner[: TEXELS // 2] = 40
    structures = [
        float(TilePair(picture, picture, TEXELS, np.arange(1)).structure()[0]) for picture in (plain, edge, corner)
    ]
    assert max(structures[:2]) < 0.1
    assert structures[2] > 0.9


def test_texels_are_read_in_between_and_beyond_the_edge() -> None:
    picture = np.array([[0, 100], [200, 40]], np.uint8)
    down, across = np.array([0, 0, 0.5, 1, -7.3, 40]), np.array([0, 0.25, 0.5, 9, 0.25, -40])
    assert texels_at(picture, down, across).tolist() == [0, 25, 85, 40, 25, 200]


def test_some_tiles_are_compared_as_all_of_them_are() -> None:
    wide = clutter(4)
    old, new = small(wide, 0), small(wide, 5)
    indices = np.array([17, 40, 41, 139])
    all_tiles, some_tiles = TilePair(old, new, TEXELS, EVERYWHERE), TilePair(old, new, TEXELS, indices)
    camera = CameraMotion.shift(1.5, -5.0)
    assert (some_tiles.structure() == all_tiles.structure()[indices]).all()
    assert (some_tiles.with_camera(camera).patches == all_tiles.with_camera(camera).patches[indices]).all()
    rests = some_tiles.rest(some_tiles.without_motion().patches), all_tiles.rest(all_tiles.without_motion().patches)
    assert (rests[0][1] == rests[1][1][indices]).all()
