"""Drawing of scenes: shapes, lettering, grain, clutter and shadows."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from stream.scenes import load_scene
from stream.scenes.catalogue import SIGNS, sign_box_px, street
from stream.scenes.drawing import SHAPE_NAMES, fill, outline, place_shape
from stream.scenes.textures import (
    GRAINS,
    Glyph,
    add_grain,
    clutter,
    opencv_face,
    set_text,
    shadow,
    stamp,
)

GREY = 128


def grey(height: int = 120, width: int = 120) -> np.ndarray:
    return np.full((height, width, 3), GREY, np.uint8)


def filled(shape: str, angle_deg: float = 0.0) -> np.ndarray:
    """Coverage of a shape of 80 pixels in the middle of 120x120, bool [120, 120]."""
    image = grey()
    fill(image, place_shape(shape, 60, 60, 80, angle_deg), (255, 0, 0))
    return image[..., 0] > 190


def test_there_are_eleven_shapes_that_differ() -> None:
    assert len(SHAPE_NAMES) == 11
    masks = {shape: filled(shape) for shape in SHAPE_NAMES}
    for shape, mask in masks.items():
        assert np.abs(np.concatenate(outline(shape))).max() <= 1.21
        rows, cols = np.nonzero(mask)
        bounds = (cols.min(), rows.min(), cols.max() + 1, rows.max() + 1)
        (body, *_) = place_shape(shape, 60, 60, 80)
        np.testing.assert_allclose(bounds, (*body.min(axis=0), *body.max(axis=0)), atol=1.5)
        for other in SHAPE_NAMES:
            assert other == shape or (mask & masks[other]).sum() / (mask | masks[other]).sum() < 0.9
    with pytest.raises(KeyError):
        outline("sphere")


def test_a_ring_has_a_hole_and_a_crescent_is_open_to_the_right() -> None:
    assert not filled("ring")[60, 60]
    assert filled("circle")[60, 60]
    crescent = filled("crescent")
    assert crescent[60].nonzero()[0].max() < 60 < crescent[30].nonzero()[0].max()


def test_shapes_turn() -> None:
    """Anticlockwise, as rot90 does."""
    right, up = filled("arrow"), filled("arrow", 90)
    assert right[60, 95]
    assert (np.rot90(right) ^ up).mean() < 0.01 < (np.rot90(right, -1) ^ up).mean()


def block(character: str, height_px: int) -> Glyph:
    """A face of blocks: half as wide as high, one pixel apart."""
    return Glyph(np.full((height_px, height_px // 2), 255, np.uint8), 0, -height_px, height_px // 2 + 1)


def test_lettering_puts_glyphs_side_by_side() -> None:
    lettering = set_text(block, "abc", 10, spacing_px=2)
    assert lettering.size_px == (21, 10)
    assert lettering.boxes == ((0, 0, 5, 10), (8, 0, 13, 10), (16, 0, 21, 10))
    assert lettering.mask[:, 5:8].max() == 0


def test_a_stamp_mixes_colours_by_coverage_and_is_cut_off_at_the_edge() -> None:
    image = grey(20, 20)
    mask = np.array([[255, 128, 0]], np.uint8)
    stamp(image, mask, 18, 4, (228, 28, 128))
    assert image[4, 18].tolist() == [228, 28, 128]
    assert image[4, 19, 0] == pytest.approx(178, abs=1)
    for corner in ((-1, 0), (30, 0), (0, -5)):
        before = image.copy()
        stamp(image, mask, *corner, (0, 0, 0))
        assert (image != before).any() == (corner == (-1, 0))


@pytest.mark.parametrize("font", [cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_COMPLEX])
def test_opencvs_fonts_are_about_as_high_as_asked_for(font: int) -> None:
    for height_px in (16, 30):
        glyph = opencv_face(font)("H", height_px)
        assert glyph.mask.shape[0] == pytest.approx(height_px, rel=0.25)
        assert glyph.top_px == pytest.approx(-height_px, rel=0.25)
        assert 0 < glyph.mask.shape[1] < 1.5 * glyph.advance_px


@pytest.mark.parametrize("level", GRAINS)
def test_grain_has_the_deviation_asked_for(level: int) -> None:
    noisy = add_grain(np.random.default_rng(0), grey(300, 300), level)
    assert noisy.std() == pytest.approx(level, abs=0.35)
    assert add_grain(np.random.default_rng(0), grey(40, 1500), level).shape == (40, 1500, 3), "wider than the field"


def test_clutter_leaves_the_taken_boxes_alone() -> None:
    image = grey(400, 400)
    boxes = np.array([[100.0, 100.0, 300.0, 250.0]])
    clutter(np.random.default_rng(0), image, 200, boxes)
    assert (image[100:250, 100:300] == GREY).all()
    assert 0.02 < (image != GREY).any(axis=2).mean() < 0.3


def test_a_shadow_is_soft_and_near_its_box() -> None:
    image = grey()
    shadow(image, (40, 40, 80, 80))
    assert image[66, 66, 0] < 100
    assert (image[:30] == GREY).all()
    assert np.abs(np.diff(image[66, :, 0].astype(int))).max() < 12
    shadow(image, (500, 500, 540, 540))


def test_the_street_shows_its_signs_at_their_boxes() -> None:
    image = street(1000, 384)
    np.testing.assert_array_equal(image, street(1000, 384))
    for word, _, ink in SIGNS:
        left, top, right, bottom = (int(edge) for edge in sign_box_px(word, 1000, 384))
        inked = (np.abs(image[top:bottom, left:right].astype(int) - ink) < 8).all(axis=2)
        assert 0.2 < inked.mean() < 0.8
        cols = inked.any(axis=0).nonzero()[0]
        assert cols[0] <= 2
        assert cols[-1] >= right - left - 3
    with pytest.raises(KeyError):
        sign_box_px("NOWHERE", 1000, 384)


def test_the_street_scene_pans_past_all_signs() -> None:
    scene = load_scene("street")
    before, after = (scene.render(index).astype(int) for index in (10, 11))
    assert np.abs(before[:300, 3:] - after[:300, :-3]).mean() < 3 < np.abs(before - after).mean()
    way_px = 3 * (scene.frames - 1)
    lefts = [sign_box_px(word, scene.width_px + way_px, scene.height_px)[0] for word, _, _ in SIGNS]
    assert min(lefts) >= 0
    assert max(lefts) < scene.width_px + way_px - 100
    assert scene.facts(0).caption == "a red circle moves right."
    inks, words = {word: ink for word, _, ink in SIGNS}, set()
    for index in (0, 60, scene.frames - 1):
        image, facts = scene.render(index), scene.facts(index)
        for word, box in facts.words:
            left, top, right, bottom = (max(0, int(edge)) for edge in box)
            inked = (np.abs(image[top:bottom, left:right].astype(int) - inks[word]) < 24).all(axis=2)
            assert 0.2 < inked.mean() < 0.8
            words.add(word)
        assert [label for label, _ in facts.labels[len(facts.things) :]] == [word for word, _ in facts.words]
    assert words == set(inks)
