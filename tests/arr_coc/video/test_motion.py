"""The camera's shift, found in moved pictures and nowhere else."""

from __future__ import annotations

import itertools

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import NO_SHIFT, FramePlanes
from arr_coc.video.motion import DOWNSCALED_SHAPE, Match, Thumbnail, estimate_shift, found_in_place, match_blocks
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


@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize(("dy", "dx"), [(0, 6), (-4, 3), (9, -12), (0, -30), (2, 0)])
def test_a_pan_is_measured_in_pixels_of_the_frame(dy: int, dx: int, scale: int) -> None:
    """`scale`: at 1280 wide the picture is halved twice before it is looked at."""
    height, width, margin = 180, 320, 40
    wide = scenery(1, height + 2 * margin, width + 2 * margin)
    wide = cv2.resize(wide, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    height, width, margin, dy, dx = (value * scale for value in (height, width, margin, dy, dx))
    before = wide[margin : margin + height, margin : margin + width]
    after = wide[margin - dy : margin - dy + height, margin - dx : margin - dx + width]
    shift = estimate_shift(thumbnail(before), thumbnail(after))
    assert shift
    assert abs(shift.dy_px - dy) < 0.3 * scale
    assert abs(shift.dx_px - dx) < 0.3 * scale
    assert 0 < shift.response <= 1


def test_unrelated_pictures_have_no_shift() -> None:
    for seed in range(2, 22, 2):
        assert estimate_shift(thumbnail(scenery(seed, 180, 320)), thumbnail(scenery(seed + 1, 180, 320))) is NO_SHIFT


def test_a_still_picture_has_no_shift() -> None:
    rng = np.random.default_rng(3)
    picture = scenery(3, 180, 320)
    noisy = np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
    assert not estimate_shift(thumbnail(picture), thumbnail(noisy))
    assert not estimate_shift(thumbnail(picture), thumbnail((picture * 0.7).astype(np.uint8)))
    assert not estimate_shift(thumbnail(picture), thumbnail(picture))


def test_flat_small_and_resized_pictures_have_no_shift() -> None:
    flat, small, other = np.full((90, 160), 80, np.uint8), np.zeros((4, 160), np.uint8), np.zeros((60, 160), np.uint8)
    assert estimate_shift(thumbnail(flat), thumbnail(flat)) is NO_SHIFT
    assert estimate_shift(thumbnail(small), thumbnail(small)) is NO_SHIFT
    assert estimate_shift(thumbnail(flat), thumbnail(other)) is NO_SHIFT
    assert not NO_SHIFT


def test_one_thing_that_moves_while_the_light_changes_is_no_shift() -> None:
    road = scenery(4, 180, 320) // 8 + 100
    before, after = road.copy(), (road * 0.9).astype(np.uint8)
    cv2.rectangle(before, (100, 60), (160, 140), 250, -1)
    cv2.rectangle(after, (106, 60), (166, 140), 250, -1)
    assert estimate_shift(thumbnail(before), thumbnail(after)) is NO_SHIFT


def test_unrelated_noise_has_no_shift() -> None:
    rng = np.random.default_rng(5)
    noise = [rng.integers(0, 256, (90, 160), dtype=np.uint8) for _ in range(8)]
    for one, other in itertools.pairwise(noise):
        assert estimate_shift(thumbnail(one), thumbnail(other)) is NO_SHIFT


@pytest.mark.parametrize("sampling", list(SUBSAMPLINGS))
@pytest.mark.parametrize("size", [(1080, 1920), (121, 161), (1, 1), (2, 1500)])
def test_every_format_gives_a_glance(sampling: str, size: tuple[int, int]) -> None:
    seen = Thumbnail.of(random_planes(np.random.default_rng(0), *size, sampling=sampling))
    assert seen.downscaled.shape == (3, *DOWNSCALED_SHAPE)
    assert seen.luma.shape == (size[0] // seen.texel_px, size[1] // seen.texel_px)
    assert seen.luma.shape[1] <= 320 or seen.luma.shape[0] == 1


def test_the_luma_is_a_box_mean() -> None:
    luma = np.random.default_rng(1).integers(0, 256, (72, 640), dtype=np.uint8)
    seen = Thumbnail.of(FramePlanes("gray", (luma,)))
    assert seen.texel_px == 2
    np.testing.assert_allclose(seen.luma, luma.reshape(36, 2, 320, 2).mean(axis=(1, 3)), atol=0.5)
    assert (seen.downscaled[1:] == 128).all()


def test_rgb_is_seen_as_its_luma_and_chroma() -> None:
    rgb = np.full((72, 128, 3), (200, 40, 90), np.uint8)
    y, v, u = cv2.cvtColor(rgb, cv2.COLOR_RGB2YCrCb)[0, 0]
    downscaled = Thumbnail.of(FramePlanes("rgb", (rgb,))).downscaled
    assert downscaled[:, 0, 0].tolist() == [y, u, v]


def test_pictures_of_different_size_have_no_block_in_common() -> None:
    one, other = (thumbnail(scenery(0, 64, width)) for width in (64, 96))
    assert match_blocks(one, other) == Match()
    assert found_in_place(one, other) == 0.0
