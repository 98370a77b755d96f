"""Samples of a texture by every sampler: the library's, OpenGL's and CUDA's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.backends.cuda.device import find_device
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.backends.gl.store import GlStore
from arr_coc.ops.texture import Texture
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import FramePlanes
from stream.extensions.doctor.gpu.reference import bilinear, smooth_picture, trilinear
from tests.support.stores import prepare
from tests.support.video import stamp

Floats = npt.NDArray[np.floating]
Picture = npt.NDArray[np.uint8]


@dataclass
class Sampler:
    """A picture's levels in 0..1, and its colours at points (x, y, level) and along footprints (dx, dy)."""

    levels: list[Floats]
    sample: Callable[[Floats], Floats]
    along: Callable[..., Floats]


@contextmanager
def library_sampler(picture: Picture) -> Iterator[Sampler]:
    texture = Texture(picture)

    def sample(points: Floats) -> Floats:
        places = torch.from_numpy(points[:, 1::-1].copy())
        return texture.sample(places, torch.from_numpy(points[:, 2].copy())).numpy() / 255

    def along(points: Floats, footprints: Floats, width_px: float = 1.0) -> Floats:
        places, lines = (torch.from_numpy(array[:, ::-1].copy()) for array in (points, footprints))
        return texture.sample_along(places, lines, width_px).numpy() / 255

    yield Sampler([level.permute(1, 2, 0).numpy() / 255 for level in texture.levels], sample, along)


@contextmanager
def store_sampler(kind: type[GlStore] | type[CudaStore], picture: Picture) -> Iterator[Sampler]:
    planes = FramePlanes("rgb", (picture,))
    store = kind(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, stamp(0))
    with store.lease() as view:
        levels = [view.read(level) / 255.0 for level in range(6)]
        if isinstance(store, GlStore):
            with store.texels() as texels:
                yield Sampler(levels, texels.sample, texels.sample_along)
        else:

            def on_device(array: Floats) -> torch.Tensor:
                return torch.from_numpy(array.astype(np.float32)).to(find_device().place)

            yield Sampler(
                levels,
                lambda points: view.sample(on_device(points)).cpu().numpy(),
                lambda points, footprints, width_px=1.0: (
                    view.sample_along(on_device(points), on_device(footprints), width_px).cpu().numpy()
                ),
            )
    store.close()


Open = Callable[[Picture], AbstractContextManager[Sampler]]


@pytest.fixture(params=["library", "gl", "cuda"])
def open_sampler(request: pytest.FixtureRequest) -> Open:
    if request.param == "library":
        return library_sampler
    prepare(request.param, request)
    return lambda picture: store_sampler(GlStore if request.param == "gl" else CudaStore, picture)


def test_texel_centres_are_exact(open_sampler: Open) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    with open_sampler(noise) as sampler:
        for level, texels in enumerate(sampler.levels):
            rows, cols = np.mgrid[: texels.shape[0], : texels.shape[1]].reshape(2, -1)
            points = np.stack([(cols + 0.5) * 2**level, (rows + 0.5) * 2**level, np.full(len(rows), float(level))], 1)
            np.testing.assert_array_equal(np.rint(sampler.sample(points) * 255), np.rint(texels.reshape(-1, 3) * 255))
        assert sampler.sample(points[:0]).shape == (0, 3)


def test_between_texels_and_levels_is_interpolation_within_2_of_255(open_sampler: Open) -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform((-20, -20, 0), (180, 150, 5), (2000, 3))
    with open_sampler(rng.integers(0, 256, (128, 160, 3), dtype=np.uint8)) as sampler:
        assert np.abs(sampler.sample(points) - trilinear(sampler.levels, points)).max() <= 2 / 255


@pytest.mark.parametrize("length_px", [1, 3, 8, 16, 24])
@pytest.mark.parametrize("width_px", [1.0, 3.0])
def test_along_a_line_is_its_mean_within_4_of_255(open_sampler: Open, length_px: float, width_px: float) -> None:
    rng = np.random.default_rng(2)
    points, angles = rng.uniform((30, 30), (120, 90), (300, 2)), rng.uniform(0, 2 * np.pi, 300)
    footprints = np.stack([np.cos(angles), np.sin(angles)], 1) * length_px
    with open_sampler(smooth_picture()) as sampler:
        colours = sampler.along(points, footprints, width_px)
        assert sampler.along(points[:0], footprints[:0]).shape == (0, 3)
        steps = (np.arange(64) + 0.5) / 64 - 0.5
        along = [bilinear(sampler.levels[0], *(points + footprints * step).T) for step in steps]
    assert np.abs(colours - np.mean(along, axis=0)).max() <= 4 / 255


def test_a_line_leaves_out_what_lies_beside_it(open_sampler: Open) -> None:
    """Rows of black and white: along them colours stay apart, across them and without direction they blur."""
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[::2] = 255
    rows = np.array([[48, 30.5], [48, 31.5]])
    with open_sampler(picture) as sampler:
        along = sampler.along(rows, np.full((2, 2), (12.0, 0.0)))
        blurred = [
            sampler.along(rows, np.full((2, 2), (0.0, 12.0))),
            sampler.along(rows, np.full((2, 2), (12.0, 0.0)), 8.0),
            sampler.along(rows, np.full((2, 2), (32.0, 0.0)), 8.0),
            sampler.sample(np.column_stack([rows, np.log2([12, 12])])),
        ]
    np.testing.assert_allclose(along[:, 0], [1, 0], atol=0.02)
    for colours in blurred:
        np.testing.assert_allclose(colours[:, 0], [0.5, 0.5], atol=0.1)
