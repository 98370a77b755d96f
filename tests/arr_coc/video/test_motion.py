"""Thumbnails of pictures, and blocks that are found again."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import FramePlanes
from arr_coc.video.motion import DOWNSCALED_SHAPE, BlockMatch, Thumbnail, in_place_match_share, match_blocks
from tests.support.video import SUBSAMPLINGS, random_planes


def scenery(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    layers = [
        cv2.resize(rng.integers(0, 256, (height // s, width // s), dtype=np.uint8), (width, height))
        for s in (8, 20, 60)
    ]
    return np.mean(layers, axis=0).astype(np.uint8)


def thumbnail(luma: npt.NDArray[np.uint8]) -> Thumbnail:
    return Thumbnail.of(FramePlanes("gray", (luma,)))


@pytest.mark.parametrize("sampling", list(SUBSAMPLINGS))
@pytest.mark.parametrize("size", [(1080, 1920), (121, 161), (1, 1), (2, 1500)])
def test_every_format_gives_a_glance(sampling: str, size: tuple[int, int]) -> None:
    glance = Thumbnail.of(random_planes(np.random.default_rng(0), *size, sampling=sampling))
    assert glance.downscaled.shape == (3, *DOWNSCALED_SHAPE)
    assert glance.luma.shape == (size[0] // glance.texel_px, size[1] // glance.texel_px)
    assert glance.luma.shape[1] <= 320 or glance.luma.shape[0] == 1


def test_the_luma_is_a_box_mean() -> None:
    luma = np.random.default_rng(1).integers(0, 256, (72, 640), dtype=np.uint8)
    glance = Thumbnail.of(FramePlanes("gray", (luma,)))
    assert glance.texel_px == 2
    np.testing.assert_allclose(glance.luma, luma.reshape(36, 2, 320, 2).mean(axis=(1, 3)), atol=0.5)
    assert (glance.downscaled[1:] == 128).all()


def test_rgb_is_seen_as_its_luma_and_chroma() -> None:
    rgb = np.full((72, 128, 3), (200, 40, 90), np.uint8)
    y, v, u = cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb)[0, 0]
    downscaled = Thumbnail.of(FramePlanes("rgb", (rgb,))).downscaled
    assert downscaled[:, 0, 0].tolist() == [y, u, v]


def test_pictures_of_different_size_have_no_block_in_common() -> None:
    first, second = (thumbnail(scenery(0, 64, width)) for width in (64, 96))
    assert match_blocks(first, second) == BlockMatch()
    assert in_place_match_share(first, second) == 0.0
