"""Levels of tensors: the stores' bytes, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.backends.registry import open_store
from arr_coc.errors import NonFiniteError, ShapeError
from arr_coc.ops.mipmaps import _halved_by_cv2, _halved_by_torch, generate_mipmaps
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import FramePlanes
from tests.support.video import expected_levels, stamp


def picture(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def planar(image: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    """[..., H, W, 3] → [..., 3, H, W], strided."""
    return torch.from_numpy(image).movedim(-1, -3)


@given(st.integers(1, 100), st.integers(1, 150), st.integers(0, 1 << 16))
def test_integers_equal_the_cpu_store_byte_for_byte(height: int, width: int, seed: int) -> None:
    image = picture(height, width, 3, seed=seed)
    planes = FramePlanes("rgb", (image,))
    store = open_store(PlaneFormat.of(planes), "cpu")
    store.update(planes, stamp(0))
    with store.lease() as view:
        for level, (array, tensor) in enumerate(
            zip(generate_mipmaps(image), generate_mipmaps(planar(image)), strict=True)
        ):
            np.testing.assert_array_equal(array, view.read(level))
            np.testing.assert_array_equal(tensor.movedim(0, -1).numpy(), view.read(level))
            assert tensor.is_contiguous()
            assert array.flags.c_contiguous


def test_torch_and_cv2_halve_alike() -> None:
    fine = torch.from_numpy(picture(2, 3, 64, 96))
    assert torch.equal(_halved_by_torch(fine), _halved_by_cv2(fine))


def test_a_batch_is_its_pictures_one_by_one() -> None:
    images = picture(2, 3, 40, 70, 3)
    batch = generate_mipmaps(planar(images))
    assert [tuple(level.shape) for level in batch[:2]] == [(2, 3, 3, 64, 96), (2, 3, 3, 32, 48)]
    for index in np.ndindex(2, 3):
        for level, array, tensor in zip(generate_mipmaps(images), generate_mipmaps(images[index]), batch, strict=True):
            np.testing.assert_array_equal(level[index], array)
            np.testing.assert_array_equal(tensor[index].movedim(0, -1).numpy(), array)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_are_means_of_their_own_dtype(dtype: torch.dtype) -> None:
    image = picture(64, 64, 3)
    levels = generate_mipmaps(planar(image).to(dtype))
    for level, expected in zip(levels, expected_levels(image), strict=True):
        assert level.dtype == dtype
        torch.testing.assert_close(level.float().movedim(0, -1), torch.from_numpy(expected).float(), atol=2, rtol=0.01)
    torch.testing.assert_close(
        generate_mipmaps(planar(image).double())[5].mean(), torch.from_numpy(image).double().mean()
    )


def test_gradients_reach_the_picture_also_through_its_padding() -> None:
    image = torch.rand(3, 33, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: generate_mipmaps(x)[4:], (image,))


def test_level_0_is_the_picture_itself_if_no_change_is_needed() -> None:
    image = torch.zeros(3, 32, 64)
    assert generate_mipmaps(image)[0].data_ptr() == image.data_ptr()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (torch.zeros(3, 8, 8, dtype=torch.int32), "uint8 or floating-point samples, got torch.int32"),
        (torch.zeros(8, 8, 3), r"\[..., 3, H, W\], got \[8, 8, 3\]"),
        (torch.zeros(3, 0, 8), r"got \[3, 0, 8\]"),
        (np.zeros((8, 8, 3), np.float32), r"got float32 \[8, 8, 3\]"),
        (np.zeros((3, 8, 8), np.uint8), r"got uint8 \[3, 8, 8\]"),
    ],
)
def test_invalid_pictures_are_refused(image: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        generate_mipmaps(image)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_picture_with_nan_is_refused(bad: float) -> None:
    image = torch.zeros(3, 8, 8)
    image[1, 2, 3] = bad
    with pytest.raises(NonFiniteError, match="image holds NaN or Inf"):
        generate_mipmaps(image)
