"""Picture of an answer: heat map, tiles and text."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from arr_coc.qwen.answer_picture import LINE_PX, MARGIN_PX, MOST_LINES, OUTLINES, UNSEEN_BRIGHTNESS, answer_picture, png

GREY = np.full((320, 640, 3), 100, np.uint8)
FLAT = np.zeros((10, 20), np.float32)
REGIONS = np.array([[0, 2, 3], [1, 2, 4]])
"""Tile (2, 3), and tiles (4, 8) to (5, 9)."""


def test_tiles_are_outlined_by_level_and_what_is_not_shown_is_dark() -> None:
    drawing = answer_picture(GREY, FLAT, REGIONS, 0, "here.")
    assert (drawing[2 * 32 + 16, 3 * 32 + 16] == 100).all()
    assert 60 < drawing[4 * 32 + 32, 8 * 32 + 32, 0] < 100
    assert (drawing[300, 600] == round(100 * UNSEEN_BRIGHTNESS)).all()
    assert tuple(drawing[2 * 32, 3 * 32 + 9]) == OUTLINES[0]
    assert tuple(drawing[6 * 32 - 1, 8 * 32 + 9]) == OUTLINES[1]
    assert (GREY == 100).all()


def test_an_overview_has_no_outlines() -> None:
    drawing = answer_picture(GREY, FLAT, np.array([[5, 0, 0], [0, 2, 3]]), 1, "")
    assert (drawing[0, :90] == round(100 * UNSEEN_BRIGHTNESS)).all()
    assert tuple(drawing[2 * 32, 3 * 32]) == OUTLINES[0]


def test_relevance_is_coloured_up_to_its_own_largest_value() -> None:
    heat = FLAT.copy()
    heat[2, 3] = 0.05
    drawing = answer_picture(GREY, heat, REGIONS, 0, "here.")
    red, _, blue = drawing[2 * 32 + 16, 3 * 32 + 16].astype(int)
    assert red > blue + 30
    assert (drawing[300, 600] == round(100 * UNSEEN_BRIGHTNESS)).all()


@pytest.mark.parametrize(
    ("size", "expected"), [((3000, 20), (1024, 7)), ((150, 230), (417, 640)), ((700, 900), (700, 900))]
)
def test_the_long_side_is_within_limits(size: tuple[int, int], expected: tuple[int, int]) -> None:
    drawing = answer_picture(np.zeros((*size, 3), np.uint8), np.ones((10, 12), np.float32), REGIONS, 0, "a.")
    assert drawing.shape[1] == expected[1]
    assert drawing.shape[0] >= expected[0] + 2 * LINE_PX + 2 * MARGIN_PX


def test_the_text_stands_below_in_lines_that_fit() -> None:
    heights = []
    for text in ("", "a red circle.", "a red circle moves left. " * 8, "wide" * 100, "word " * 5000):
        drawing = answer_picture(GREY, FLAT, REGIONS, 0, text)
        strip = drawing[320:]
        heights.append((len(strip) - 2 * MARGIN_PX) // LINE_PX)
        assert strip[:, : MARGIN_PX - 1].max() == strip[:, 1 - MARGIN_PX :].max() <= 22
        assert strip.max() > 100
    assert heights == [1, 2, heights[2], heights[3], MOST_LINES + 1]
    assert 2 < heights[2] <= MOST_LINES
    assert 2 < heights[3] <= MOST_LINES + 1


def test_a_png_holds_every_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(image)))), image)
