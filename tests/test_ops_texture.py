"""The texture in torch: reading it, and what it refuses. Sampling itself: test_ops_sampling.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.ops.backends import open_store
from arr_coc.ops.mipmap_tensor import generate_mipmaps
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.texture import Texture
from arr_coc.types import FramePlanes
from tests.plane_maker import stamp
from tests.test_ops_view import regions_of

NAN = float("nan")


def images(layers: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (layers, 3, height, width), dtype=torch.uint8, generator=torch.manual_seed(1))


def test_levels_are_the_mipmaps() -> None:
    image = images(2, 70, 100)
    texture = Texture(image)
    assert texture.layers == 2
    assert texture.grid.shape == (3, 4)
    for level, expected in zip(texture.levels, generate_mipmaps(image), strict=True):
        assert torch.equal(level, expected)
    for level, expected in zip(Texture(image[1]).levels, generate_mipmaps(image[1]), strict=True):
        assert torch.equal(level, expected)


def test_numpy_and_torch_make_the_same_texture() -> None:
    array = images(2, 70, 100).permute(0, 2, 3, 1).numpy()
    for made, expected in (
        (Texture(array), Texture(images(2, 70, 100))),
        (Texture(array[0]), Texture(images(2, 70, 100)[0])),
    ):
        for level, wanted in zip(made.levels, expected.levels, strict=True):
            assert torch.equal(level, wanted)


def test_arrays_may_be_read_only_and_of_any_stride() -> None:
    array = images(1, 70, 100)[0].permute(1, 2, 0).numpy().copy()
    array.flags.writeable = False
    texture = Texture(array)
    assert torch.equal(texture.levels[3], Texture(images(1, 70, 100)[0]).levels[3])
    assert torch.equal(Texture(array[::-1, :, ::-1]).levels[0], Texture(array[::-1, :, ::-1].copy()).levels[0])


def test_gather_equals_the_stores_gather() -> None:
    array = images(1, 150, 230)[0].permute(1, 2, 0).numpy()
    planes = FramePlanes("rgb", (array,))
    store = open_store(PlaneFormat.of(planes), "cpu")
    store.update(planes, stamp(0))
    regions = np.array(regions_of(5, 8))
    pixels = Texture(array).gather(torch.from_numpy(regions))
    assert pixels.is_contiguous()
    with store.lease() as view:
        np.testing.assert_array_equal(pixels.numpy(), view.gather(regions))


def test_one_gather_reads_several_layers() -> None:
    image = images(3, 64, 64)
    regions = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    mixed = Texture(image).gather(regions, torch.tensor([2, 0, 1]))
    for pixels, region, layer in zip(mixed, regions, (2, 0, 1), strict=True):
        assert torch.equal(pixels, Texture(image[layer]).gather(region[None])[0])


def test_gather_carries_gradients_and_nothing_gathers_nothing() -> None:
    image = torch.rand(3, 64, 64, requires_grad=True)
    Texture(image).gather(torch.tensor([[1, 0, 0], [0, 1, 1]])).sum().backward()
    assert image.grad is not None
    assert image.grad[:, :32].unique().tolist() == [0.25]
    assert image.grad[:, 32:, 32:].unique().tolist() == [1.25]
    assert Texture(image).gather(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 32, 32)


def test_samples_are_floats_in_the_pictures_range() -> None:
    flat = torch.full((3, 32, 32), 200)
    point = torch.tensor([3.3, 7.7])
    for dtype, expected in (
        (torch.uint8, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ):
        sample = Texture(flat.to(dtype)).sample(point.double(), 1.5)
        assert sample.dtype == expected
        torch.testing.assert_close(sample, torch.full((3,), 200, dtype=expected))


POINT, ONE = torch.tensor([4.0, 4.0]), torch.tensor([[4.0, 4.0]])


@pytest.mark.parametrize(
    ("read", "error", "words"),
    [
        (lambda t: t.gather(torch.zeros(3, dtype=torch.int64)), ShapeError, r"int64 \[K, 3\].*got torch.int64 \[3\]"),
        (lambda t: t.gather(torch.zeros(1, 3, dtype=torch.int32)), ShapeError, "got torch.int32"),
        (lambda t: t.gather(torch.tensor([[0, 0, 0], [6, 0, 0]])), ShapeError, r"region \[6, 0, 0\]"),
        (lambda t: t.gather(torch.tensor([[0, 2, 0]])), ShapeError, r"outside a grid of \(2, 2\) tiles"),
        (lambda t: t.gather(torch.tensor([[1, 0, -1]])), ShapeError, r"region \[1, 0, -1\]"),
        (lambda t: t.gather(torch.tensor([[0, 0, 0]]), 1), OptionError, r"layers 0 to 0, got \[1\]"),
        (lambda t: t.sample(POINT, layer=-1), OptionError, r"layers 0 to 0, got \[-1\]"),
        (lambda t: t.sample(POINT, layer=torch.tensor(0.0)), ShapeError, "int64, got torch.float32"),
        (lambda t: t.sample(POINT.long()), ShapeError, r"points are floats .*got torch.int64 \[2\]"),
        (lambda t: t.sample(torch.zeros(3)), ShapeError, r"points are floats .*got torch.float32 \[3\]"),
        (lambda t: t.sample(torch.tensor(1.0)), ShapeError, r"got torch.float32 \[\]"),
        (lambda t: t.sample(POINT * NAN), NonFiniteError, "points holds NaN"),
        (lambda t: t.sample(POINT, NAN), NonFiniteError, "level holds NaN"),
        (lambda t: t.sample_along(POINT, POINT * NAN), NonFiniteError, "along holds NaN"),
        (lambda t: t.sample_along(POINT, POINT, 0.0), OptionError, "across_px, .* above 0"),
        (lambda t: t.sample_along(POINT, POINT, NAN), NonFiniteError, "across_px holds NaN"),
        (lambda t: t.gather_strips(POINT, POINT, 8.0), ShapeError, r"both \[K, 2\], got \[2\] and \[2\]"),
        (lambda t: t.gather_strips(ONE, torch.zeros(2, 2), 8.0), ShapeError, r"got \[1, 2\] and \[2, 2\]"),
        (lambda t: t.gather_strips(ONE, ONE * 0, 8.0), OptionError, "length 0 has no direction"),
    ],
)
def test_what_cannot_be_read_is_refused(read: Callable[[Texture], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(Texture(torch.zeros(3, 64, 64)))


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ShapeError, match="3 or 4 axes, got 5"):
        Texture(torch.zeros(1, 1, 3, 8, 8))
    with pytest.raises(ShapeError, match="RGB"):
        Texture(torch.zeros(8, 8, 3))
