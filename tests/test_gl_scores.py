"""Scores and top-k on OpenGL, against the CPU's."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_coc.channels import luma_entropy
from arr_coc.errors import NonFiniteError, ShapeError
from arr_coc.ops.difference import Thresholds
from arr_coc.ops.gl.scores import top_k
from arr_coc.ops.gl.store import GlStore
from arr_coc.ops.planes import PlaneFormat
from arr_coc.types import FramePlanes
from tests.gl_devices import shared_device
from tests.plane_maker import stamp


def pictures(rng: np.random.Generator) -> FramePlanes:
    """Flat, noisy, striped and nearly flat tiles, in colour."""
    picture = rng.integers(0, 256, (96, 320, 3), dtype=np.uint8)
    picture[:32, :96] = (31, 200, 90)
    picture[:32, 96:192] = rng.integers(126, 130, (32, 96, 1))
    picture[32:64, ::8] = 255
    picture[64:, 100:] //= 40
    return FramePlanes("rgb", (picture,))


def test_entropy_is_that_of_the_cpu_bit_for_bit() -> None:
    shared_device()
    planes = pictures(np.random.default_rng(0))
    store = GlStore(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, stamp(0))
    tiles = np.argwhere(np.ones(store.grid.shape, bool))[::-1]
    with store.lease() as view, store.texels() as texels:
        got = texels.entropy(tiles)
        luma = cv2.cvtColor(view.read(1), cv2.COLOR_RGB2GRAY)
        assert texels.entropy(tiles[:0]).shape == (0,)
    blocks = luma.reshape(3, 16, 10, 16).swapaxes(1, 2)[tuple(tiles.T)]
    np.testing.assert_array_equal(got, luma_entropy(blocks))
    assert got.min() == 0
    assert got.max() > 0.8
    store.close()


VALUES = arrays(
    np.float32, st.integers(1, 300), elements=st.sampled_from([0.0, -0.0, 0.25, 0.5, 0.75, 1.0, -3.0, 1e-30])
)


@given(VALUES, st.integers(1, 300))
def test_the_largest_come_first_and_equal_ones_by_place(relevance: npt.NDArray[np.float32], count: int) -> None:
    count = min(count, len(relevance))
    expected = np.argsort(-relevance, kind="stable")[:count]
    np.testing.assert_array_equal(top_k(shared_device(), relevance, count), expected)


@pytest.mark.parametrize("tiles", [2040, 8160])
def test_frames_of_tiles_are_ranked(tiles: int) -> None:
    relevance = np.random.default_rng(1).random(tiles, np.float32)
    expected = np.argsort(-relevance, kind="stable")[:273]
    np.testing.assert_array_equal(top_k(shared_device(), relevance, 273), expected)


@pytest.mark.parametrize(
    ("relevance", "count", "error", "said"),
    [
        (np.zeros((2, 2), np.float32), 1, ShapeError, r"relevance is float32 \[n\], got float32 \(2, 2\)"),
        (np.zeros(3), 1, ShapeError, "got float64"),
        (np.zeros(3, np.float32), 0, ShapeError, "takes 1 to 3 of them, got 0"),
        (np.zeros(3, np.float32), 4, ShapeError, "takes 1 to 3 of them, got 4"),
        (np.array([0, np.nan], np.float32), 1, NonFiniteError, "NaN or infinity"),
        (np.array([0, np.inf], np.float32), 1, NonFiniteError, "NaN or infinity"),
    ],
)
def test_what_cannot_be_ranked_is_refused(relevance: npt.NDArray, count: int, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        top_k(shared_device(), relevance, count)
