"""Formats of planes."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.errors import ShapeError
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import Colour, FramePlanes
from tests.support.video import SUBSAMPLINGS, random_planes


@pytest.mark.parametrize("sampling", list(SUBSAMPLINGS))
@pytest.mark.parametrize("size", [(64, 96), (121, 161)])
def test_the_format_is_read_off_the_planes(sampling: str, size: tuple[int, int]) -> None:
    planes = random_planes(np.random.default_rng(0), *size, sampling=sampling, colour=Colour("bt709", True))
    fmt = PlaneFormat.of(planes)
    assert fmt == PlaneFormat("yuv", *size, SUBSAMPLINGS[sampling], Colour("bt709", True))
    assert fmt.grid.shape == (-(-size[0] // 32), -(-size[1] // 32))
    assert fmt.steps() == ((1, 1), SUBSAMPLINGS[sampling], SUBSAMPLINGS[sampling])


def test_gray_and_rgb_have_one_plane() -> None:
    rng = np.random.default_rng(1)
    assert PlaneFormat.of(random_planes(rng, 33, 40, layout="gray")).steps() == ((1, 1),)
    assert PlaneFormat.of(random_planes(rng, 33, 40, layout="rgb")).steps() == ((1, 1),)


Y, U = np.zeros((64, 64), np.uint8), np.zeros((32, 32), np.uint8)


@pytest.mark.parametrize(
    ("planes", "message"),
    [
        (FramePlanes("yuv", (Y, U)), "has 3 planes, got 2"),
        (FramePlanes("yuv", (Y, U, U[:20])), "not a 1, 2 or 4 fold subsampling"),
        (FramePlanes("yuv", (Y, U[:11], U[:11])), "not a 1, 2 or 4 fold subsampling"),
        (FramePlanes("gray", (Y.astype(np.uint16),)), "got uint16"),
        (FramePlanes("rgb", (Y,)), r"does not fit a plane of shape \(64, 64\)"),
        (FramePlanes("gray", (np.zeros((4, 4, 3), np.uint8),)), "does not fit a plane of shape"),
        (FramePlanes("gray", (np.zeros((0, 4), np.uint8),)), "does not fit a plane of shape"),
    ],
)
def test_planes_that_do_not_belong_together_are_refused(planes: FramePlanes, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        PlaneFormat.of(planes)
