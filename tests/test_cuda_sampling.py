"""Filtered colours on CUDA, against exact interpolation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.errors import OptionError, ShapeError, StoreError
from arr_coc.ops.cuda.device import find_device
from arr_coc.ops.cuda.store import CudaStore
from arr_coc.ops.cuda.view import CudaView
from arr_coc.ops.difference import Thresholds
from arr_coc.ops.planes import PlaneFormat
from arr_coc.types import FramePlanes
from tests.plane_maker import stamp
from tests.test_gl_sampling import bilinear, smooth_picture, trilinear

Floats = npt.NDArray[np.floating]


def on_device(array: Floats) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32)).to(find_device().place)


@contextmanager
def view_of(picture: npt.NDArray[np.uint8]) -> Iterator[CudaView]:
    planes = FramePlanes("rgb", (picture,))
    store = CudaStore(PlaneFormat.of(planes), Thresholds(), 20)
    store.update(planes, stamp(0))
    with store.lease() as view:
        yield view
    store.close()


def levels_of(view: CudaView) -> list[Floats]:
    return [view.read(level) / 255.0 for level in range(6)]


def test_texel_centres_are_exact(cuda: None) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    with view_of(picture) as view:
        for level in range(6):
            texels = view.read(level)
            rows, cols = np.mgrid[: texels.shape[0], : texels.shape[1]].reshape(2, -1)
            points = np.stack([(cols + 0.5) * 2**level, (rows + 0.5) * 2**level, np.full(len(rows), level)], 1)
            got = (view.sample(on_device(points)) * 255).round().cpu()
            np.testing.assert_array_equal(got, texels.reshape(-1, 3))
        assert view.sample(on_device(points[:0])).shape == (0, 3)


def test_between_texels_and_levels_is_interpolation_within_2_of_255(cuda: None) -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform((-20, -20, 0), (180, 150, 5), (2000, 3))
    with view_of(rng.integers(0, 256, (128, 160, 3), dtype=np.uint8)) as view:
        expected = trilinear(levels_of(view), points)
        got = view.sample(on_device(points)).cpu().numpy()
    assert np.abs(got - expected).max() <= 2 / 255


@pytest.mark.parametrize("width_px", [1.0, 3.0])
def test_a_footprint_is_the_mean_along_its_line(cuda: None, width_px: float) -> None:
    rng = np.random.default_rng(2)
    centres = rng.uniform((30, 30), (130, 98), (300, 2))
    angles, lengths = rng.uniform(0, 2 * np.pi, 300), rng.uniform(4, 16, 300)
    footprints = np.stack([np.cos(angles), np.sin(angles)], 1) * lengths[:, None]
    with view_of(smooth_picture()) as view:
        level0 = levels_of(view)[0]
        got = view.sample_along(on_device(centres), on_device(footprints), width_px).cpu().numpy()
    steps = (np.arange(64) + 0.5) / 64 - 0.5
    along = [bilinear(level0, *(centres + footprints * step).T) for step in steps]
    assert np.abs(got - np.mean(along, axis=0)).max() <= 4 / 255


def test_a_line_leaves_out_what_lies_beside_it(cuda: None) -> None:
    """Where an isotropic sample of the same length would blend it in."""
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[32] = 255
    with view_of(picture) as view:
        along = view.sample_along(on_device(np.array([[32.0, 32.5]])), on_device(np.array([[16.0, 0.0]])))
        isotropic = view.sample(on_device(np.array([[32.0, 32.5, 4.0]])))
    assert (along > 0.99).all()
    assert (isotropic < 0.2).all()


def test_a_wide_footprint_takes_in_what_lies_beside_its_line(cuda: None) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[::2] = 255
    rows, line = on_device(np.array([[48, 30.5], [48, 31.5]])), on_device(np.full((2, 2), (12.0, 0.0)))
    with view_of(picture) as view:
        thin, wide = (view.sample_along(rows, line, width_px)[:, 0].cpu().numpy() for width_px in (1.0, 8.0))
    np.testing.assert_allclose(thin, [1, 0], atol=0.02)
    np.testing.assert_allclose(wide, [0.5, 0.5], atol=0.1)


def test_sampling_refuses_what_it_cannot_take(cuda: None) -> None:
    points = on_device(np.zeros((4, 3)))
    with view_of(np.zeros((32, 32, 3), np.uint8)) as view:
        for wrong in (points[:, :2], points.double(), points.T, points[0]):
            with pytest.raises(ShapeError, match=r"points are contiguous float32 \[n, 3\]"):
                view.sample(wrong)
        with pytest.raises(ShapeError, match="the tensor of points lies on meta"):
            view.sample(points.to("meta"))
        pair = on_device(np.ones((4, 2)))
        with pytest.raises(ShapeError, match="4 points and 3 footprints"):
            view.sample_along(pair, pair[:3])
        for width_px in (0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(OptionError, match="positive number of texels"):
                view.sample_along(pair, pair, width_px)
    with pytest.raises(StoreError, match="lease has ended"):
        view.sample(points)
