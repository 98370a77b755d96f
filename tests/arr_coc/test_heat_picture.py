"""A picture with its heat map over it."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from arr_coc.model import LONGEST_PX, heat_picture, png

GREY = np.full((64, 96, 3), 100, np.uint8)


def test_only_what_is_hot_is_coloured() -> None:
    heat = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(heat_picture(GREY, heat), GREY)
    heat[0, 0] = 1
    shown = heat_picture(GREY, heat)
    assert shown[5, 5, 0] > shown[5, 5, 2]  # the highest is red
    np.testing.assert_array_equal(shown[60, 90], GREY[60, 90])
    assert GREY.max() == 100


def test_a_large_picture_is_shown_smaller() -> None:
    assert heat_picture(np.zeros((3000, 20, 3), np.uint8), np.ones((94, 1), np.float32)).shape == (LONGEST_PX, 7, 3)


def test_a_png_holds_every_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(image)))), image)
