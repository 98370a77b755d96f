"""Grounds of clips, light and wear."""

from __future__ import annotations

import numpy as np
import pytest

from training.clips.grounds import CALM_GROUNDS, GROUNDS, Degradation, Lighting

GREY = 128


def grey(height: int = 120, width: int = 120) -> np.ndarray:
    return np.full((height, width, 3), GREY, np.uint8)


@pytest.mark.parametrize("ground", list(dict.fromkeys((*GROUNDS, *CALM_GROUNDS))), ids=lambda ground: ground.__name__)
def test_grounds_are_muted_and_neither_dark_nor_bright(ground) -> None:  # type: ignore[no-untyped-def]
    pictures = [ground(np.random.default_rng(seed), 200, 133) for seed in range(8)]
    for image in pictures:
        assert image.shape == (133, 200, 3)
        assert image.dtype == np.uint8
        assert np.percentile(image, 1) > 40
        assert np.percentile(image, 99) < 215
        spread = image.max(axis=2).astype(int) - image.min(axis=2)
        assert spread.mean() < 50
    assert any((image != pictures[0]).any() for image in pictures[1:])
    np.testing.assert_array_equal(pictures[3], ground(np.random.default_rng(3), 200, 133))


def test_light_differs_between_corners_and_grows_with_frames() -> None:
    light = Lighting(1.0, (0.5, 1.0, 1.0, 1.0), 0.1)
    first, last = light.on(grey(), 0), light.on(grey(), 2)
    assert first[0, 0, 0] < 80
    assert first[-1, -1, 0] == pytest.approx(GREY, abs=2)
    assert last[-1, -1, 0] == pytest.approx(1.2 * GREY, abs=3)
    np.testing.assert_array_equal(Lighting().on(grey(), 3), grey())
    lights = [Lighting.random(np.random.default_rng(seed), 15) for seed in range(40)]
    assert all(0.5 < light.level * (1 + 14 * light.step) < 1.5 for light in lights)
    assert len({light.step for light in lights}) > 10


def test_wear_is_none_by_default_and_blurs_speckles_and_compresses() -> None:
    rng = np.random.default_rng(0)
    image = grey()
    image[:, 60:] = 220
    np.testing.assert_array_equal(Degradation().of(rng, image), image)
    assert 130 < Degradation(blur_px=0.9).of(rng, image)[60, 60, 0] < 215
    assert Degradation(grain=4).of(rng, image)[:, :50].std() > 3
    assert (Degradation(jpeg_quality=20).of(rng, image) != image).any()
    assert len({Degradation.random(np.random.default_rng(seed)) for seed in range(30)}) > 10
