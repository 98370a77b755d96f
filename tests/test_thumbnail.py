"""Small pictures of frames."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from arr_coc.thumbnail import GLANCE_SHAPE, Thumbnail
from arr_coc.types import FramePlanes
from tests.plane_maker import SUBSAMPLINGS, random_planes


@pytest.mark.parametrize("sampling", list(SUBSAMPLINGS))
@pytest.mark.parametrize("size", [(1080, 1920), (121, 161), (1, 1), (2, 1500)])
def test_every_format_gives_a_glance(sampling: str, size: tuple[int, int]) -> None:
    seen = Thumbnail.of(random_planes(np.random.default_rng(0), *size, sampling=sampling))
    assert seen.glance.shape == (3, *GLANCE_SHAPE)
    assert seen.luma.shape == (size[0] // seen.texel_px, size[1] // seen.texel_px)
    assert seen.luma.shape[1] <= 320 or seen.luma.shape[0] == 1


def test_the_luma_is_a_box_mean() -> None:
    luma = np.random.default_rng(1).integers(0, 256, (72, 640), dtype=np.uint8)
    seen = Thumbnail.of(FramePlanes("gray", (luma,)))
    assert seen.texel_px == 2
    np.testing.assert_allclose(seen.luma, luma.reshape(36, 2, 320, 2).mean(axis=(1, 3)), atol=0.5)
    assert (seen.glance[1:] == 128).all()


def test_rgb_is_seen_as_its_luma_and_chroma() -> None:
    rgb = np.full((72, 128, 3), (200, 40, 90), np.uint8)
    y, v, u = cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb)[0, 0]
    glance = Thumbnail.of(FramePlanes("rgb", (rgb,))).glance
    assert glance[:, 0, 0].tolist() == [y, u, v]
