"""Masked planes: what the polygon touches is black in every layout, and nothing else changes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.texture.polygons import Polygon
from arr_coc.types import Colour, FramePlanes, FrameStamp, TileGrid
from arr_coc.video.picture_mask import PictureMask
from arr_coc.video.texture_updater import TextureUpdater

BOX: Polygon = ((0.25, 0.25), (0.5, 0.25), (0.5, 0.75), (0.25, 0.75))
H, W = 48, 64


def noise(*shape: int) -> npt.NDArray[np.uint8]:
    planes = np.random.default_rng(3).integers(60, 110, shape).astype(np.uint8)
    planes.flags.writeable = False
    return planes


def planes(down: int, across: int, height: int = H, width: int = W, *, full: bool = False) -> FramePlanes:
    chroma = -(-height // down), -(-width // across)
    return FramePlanes("yuv", (noise(height, width), noise(*chroma), noise(*chroma)), Colour(full_range=full))


@pytest.mark.parametrize(("down", "across"), [(1, 1), (1, 2), (2, 2), (2, 1), (1, 4), (4, 4)])
@pytest.mark.parametrize(("height", "width"), [(48, 64), (47, 61), (5, 5), (2, 3), (1, 1)])
@pytest.mark.parametrize("full", [False, True])
def test_pixels_inside_are_black_in_every_sampling(down: int, across: int, height: int, width: int, full: bool) -> None:
    frame = planes(down, across, height, width, full=full)
    masked = PictureMask([BOX]).apply(frame)
    rows, cols = np.mgrid[:height, :width]
    x0, x1, y0, y1 = cols / width, (cols + 1) / width, rows / height, (rows + 1) / height
    touched = (x1 > 0.25) & (x0 < 0.5) & (y1 > 0.25) & (y0 < 0.75)
    luma, u, v = masked.planes
    assert touched.any()
    assert (luma[touched] == (0 if full else 16)).all()
    for chroma in (u, v):
        assert (chroma.repeat(down, axis=0).repeat(across, axis=1)[:height, :width][touched] == 128).all()


def test_pixels_outside_stay_and_the_frame_is_another() -> None:
    frame = planes(2, 2)
    masked = PictureMask([BOX]).apply(frame)
    changed = masked.planes[0] != frame.planes[0]
    assert changed[12:37, 16:33].all()
    assert changed.sum() == 25 * 17
    assert not np.shares_memory(masked.planes[0], frame.planes[0])
    assert masked.owner is None


@pytest.mark.parametrize(("full", "black"), [(True, 0), (False, 16)])
def test_gray_is_black_of_its_range(full: bool, black: int) -> None:
    masked = PictureMask([BOX]).apply(FramePlanes("gray", (noise(H, W),), Colour(full_range=full)))
    assert set(masked.planes[0][12:36, 16:32].ravel()) == {black}


def test_rgb_grows_by_its_reach() -> None:
    masked = PictureMask([BOX]).apply(FramePlanes("rgb", (noise(H, W, 3),), reach_px=3))
    black = (masked.planes[0] == 0).all(axis=2)
    assert black[9:40, 13:36].all()
    assert black.sum() == 31 * 23


def test_several_masks_add_up_and_one_beside_the_picture_is_none() -> None:
    corner: Polygon = ((0.9, 0.9), (1.0, 0.9), (1.0, 1.0))
    pixels = PictureMask([BOX, corner]).apply(FramePlanes("rgb", (noise(H, W, 3),))).planes[0]
    assert not pixels[20, 20].any()
    assert not pixels[47, 63].any()
    assert pixels[0, 0].all()


def test_every_level_of_the_texture_is_black_there() -> None:
    updater, mask = TextureUpdater(), PictureMask([((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))])
    bright = FramePlanes("yuv", (np.full((128, 256), 235, np.uint8), *[np.full((64, 128), 200, np.uint8)] * 2))
    updater.process(mask.apply(bright), FrameStamp(0, 0, 0))
    with updater.lease() as view:
        for level in range(3):
            assert not view.read(level)[:, : 128 >> level].any()
    updater.close()


class Motion:
    """The codec's motion of a grid: every tile one pixel down and two across."""

    def __init__(self, has_motion: bool = True) -> None:
        self.has_motion = has_motion

    def over(self, grid: TileGrid) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        return (np.ones(grid.shape, np.float32), np.full(grid.shape, 2, np.float32)) if self.has_motion else None


def test_the_codec_says_nothing_of_masked_tiles() -> None:
    mask, grid = PictureMask([BOX]), TileGrid.of(128, 256)
    frame = FramePlanes("gray", (noise(128, 256),), coded_motion=Motion())
    motion = mask.apply(frame).coded_motion
    assert motion is not None
    vectors = motion.over(grid)
    assert vectors is not None
    hidden = np.isnan(vectors[0])
    assert (hidden == np.isnan(vectors[1])).all()
    assert hidden.sum() == 3 * 3  # the lower and the right border run along the next tiles
    assert hidden[1:4, 2:5].all()
    full_mask = PictureMask([((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))])
    masked_motion = full_mask.apply(frame).coded_motion
    assert masked_motion is not None
    assert masked_motion.over(grid) is None
    no_motion = mask.apply(FramePlanes("gray", (noise(128, 256),), coded_motion=Motion(has_motion=False))).coded_motion
    assert no_motion is not None
    assert no_motion.over(grid) is None
