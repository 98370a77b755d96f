"""The torch reference against OpenGL's own filters, on one picture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from arr_coc.ops.difference import Thresholds
from arr_coc.ops.gl.store import GlStore
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.texture import Texture
from arr_coc.types import FramePlanes
from tests.backends import require
from tests.plane_maker import Bytes, stamp


def picture() -> Bytes:
    """Waves and ramps, of a size that needs padding."""
    y, x = np.mgrid[0:120, 0:150]
    return np.stack([127 + 100 * np.sin(x / 17) * np.cos(y / 23), x * 1.5, y * 1.9], -1).astype(np.uint8)


@pytest.fixture
def store() -> Iterator[GlStore]:
    require("gl")
    planes = FramePlanes("rgb", (picture(),))
    store = GlStore(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, stamp(0))
    yield store
    store.close()


def test_trilinear_samples_agree_within_2_of_255(store: GlStore) -> None:
    rng = np.random.default_rng(0)
    y, x, level = rng.uniform(-20, 150, 2000), rng.uniform(-20, 180, 2000), rng.uniform(0, 5, 2000)
    expected = Texture(picture()).sample(torch.from_numpy(np.stack([y, x], 1)), torch.from_numpy(level))
    with store.texels() as texels:
        got = texels.sample(np.stack([x, y, level], 1)) * 255
    assert np.abs(got - expected.numpy()).max() < 2


@pytest.mark.parametrize("length_px", [3.0, 8.0, 16.0])
def test_anisotropic_samples_agree_within_4_of_255(store: GlStore, length_px: float) -> None:
    rng = np.random.default_rng(1)
    points, angles = rng.uniform((30, 30), (90, 120), (500, 2)), rng.uniform(0, 2 * np.pi, 500)
    along = np.stack([np.sin(angles), np.cos(angles)], 1) * length_px
    expected = Texture(picture()).sample_along(torch.from_numpy(points), torch.from_numpy(along), 1.0)
    with store.texels() as texels:
        got = texels.sample_along(points[:, ::-1], along[:, ::-1], 1.0) * 255
    assert np.abs(got - expected.numpy()).max() < 4
