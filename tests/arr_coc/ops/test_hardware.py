"""Samples by texture units, on a GPU or a driver that stands for one: near the exact ones, with their gradients."""

from __future__ import annotations

import pytest
import torch

from arr_coc.backends.cuda.device import find_device
from arr_coc.errors import OptionError
from arr_coc.ops.foveated import sample_foveated
from arr_coc.ops.hardware import LARGEST_ERROR
from arr_coc.ops.texture import Texture
from tests.arr_coc.ops.test_texture import images


def textures() -> tuple[Texture, Texture]:
    """A picture that the hardware samples, and the same that the formula does."""
    image = images(1, 100, 150)[0].to(find_device().place)
    return Texture.from_image(image, tolerance=LARGEST_ERROR), Texture(image)


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.manual_seed(5)
    points = torch.rand(40, 2, generator=generator) * torch.tensor([140.0, 190.0]) - 20
    level = torch.rand(40, generator=generator) * 7 - 1
    place = find_device().place
    return points.to(place).requires_grad_(), level.to(place).requires_grad_()


def test_samples_are_near_the_exact_ones_and_their_gradients_equal(cuda: None) -> None:
    by_hardware, exact = textures()
    assert by_hardware.hardware
    assert not exact.hardware
    results = []
    for texture in (by_hardware, exact):
        points, level = leaves()
        exact_samples = texture.sample(points, level)
        (exact_samples * 0.5).sum().backward()
        results.append((exact_samples.detach(), points.grad, level.grad))
    (samples, *gradients), (exact_samples, *expected) = results
    torch.testing.assert_close(samples, exact_samples, atol=255 * LARGEST_ERROR, rtol=0)
    torch.testing.assert_close(gradients, expected)


def test_only_what_needs_a_gradient_gets_one(cuda: None) -> None:
    by_hardware, _ = textures()
    points, level = leaves()
    by_hardware.sample(points.detach(), level).sum().backward()
    assert points.grad is None
    assert level.grad is not None
    by_hardware.sample(points, 1.5).sum().backward()
    assert points.grad is not None
    assert not by_hardware.sample(points.detach(), 0.5).requires_grad


def test_everything_that_samples_uses_the_hardware(cuda: None) -> None:
    by_hardware, exact = textures()
    points, along = leaves()[0].detach(), torch.randn(40, 2).to(find_device().place) * 8
    for samples, expected in (
        (by_hardware.sample_along(points, along, 1.5), exact.sample_along(points, along, 1.5)),
        (by_hardware.gather_strips(points[:3], along[:3], 16), exact.gather_strips(points[:3], along[:3], 16)),
        (
            sample_foveated(by_hardware, (0.2, 0.7), 6).patches,
            sample_foveated(exact, (0.2, 0.7), 6).patches,
        ),
    ):
        torch.testing.assert_close(samples, expected, atol=255 * LARGEST_ERROR, rtol=0)
    doubled = by_hardware.sample(points.double(), 0.3)
    assert doubled.dtype == torch.float32


def test_the_formula_samples_if_texture_units_do_not_suit(cuda: None) -> None:
    image = images(1, 64, 64)[0].to(find_device().place)
    assert not Texture(image, tolerance=LARGEST_ERROR / 2).hardware
    assert not Texture(image.float(), tolerance=0.1).hardware
    assert not Texture(image[None], tolerance=0.1).hardware
    assert not Texture(image.permute(1, 2, 0).cpu().numpy(), tolerance=0.1).hardware


def test_without_a_device_the_formula_samples() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a CUDA device")
    assert not Texture(images(1, 64, 64)[0], tolerance=0.1).hardware


@pytest.mark.parametrize("tolerance", [-0.1, 1.5, float("nan")])
def test_a_tolerance_is_a_share(tolerance: float) -> None:
    with pytest.raises(OptionError, match=r"lies in \[0, 1\], got"):
        Texture(images(1, 64, 64)[0], tolerance)
