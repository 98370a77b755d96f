"""Trilinear sampling: the stores' values at texel centres, OpenGL's between them, and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from arr_coc.ops.texture import Texture
from tests.test_ops_texture import images


def centres(level: int, height: int, width: int) -> torch.Tensor:
    """Where the texels of one level lie: [height, width, 2]."""
    rows, cols = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (torch.stack((rows, cols), dim=-1) + 0.5) * (1 << level)


@given(st.integers(1, 80), st.integers(1, 80), st.integers(0, 5))
def test_texel_centres_give_the_texels(height: int, width: int, level: int) -> None:
    texture = Texture(images(1, height, width)[0])
    texels = texture.levels[level]
    points = centres(level, texels.shape[1], texels.shape[2])
    assert torch.equal(texture.sample(points, level).permute(2, 0, 1), texels.float())


@pytest.mark.parametrize("level", [0, 2, 5])
def test_between_texels_it_is_bilinear_and_clamped_to_the_edge(level: int) -> None:
    texture = Texture(images(1, 70, 100)[0].double())
    points = torch.rand(200, 2, dtype=torch.float64) * 260 - 40
    texels = texture.levels[level][None]
    size = torch.tensor(texels.shape[-2:]) << level
    places = (points / size * 2 - 1).flip(-1)[None, None]
    expected = F.grid_sample(texels, places, padding_mode="border", align_corners=False)[0, :, 0].T
    torch.testing.assert_close(texture.sample(points, level), expected)


def test_between_levels_it_is_linear_and_clamped() -> None:
    texture = Texture(images(1, 64, 64)[0].double())
    points = torch.rand(50, 2, dtype=torch.float64) * 64
    two, three = texture.sample(points, 2.0), texture.sample(points, 3.0)
    torch.testing.assert_close(texture.sample(points, 2.25), 0.75 * two + 0.25 * three)
    mixed = torch.tensor([2.0, 3.0], dtype=torch.float64).repeat(25)
    assert torch.equal(texture.sample(points, mixed)[1::2], three[1::2])
    assert torch.equal(texture.sample(points, 9.0), texture.sample(points, 5.0))
    assert torch.equal(texture.sample(points, -3.0), texture.sample(points, 0.0))


def test_far_outside_lies_the_nearest_edge() -> None:
    texture = Texture(images(1, 64, 96)[0])
    far = torch.tensor([[1e30, -1e30], [-1e30, 1e30]], requires_grad=True)
    sampled = texture.sample(far)
    assert torch.equal(sampled, torch.stack((texture.levels[0][:, -1, 0], texture.levels[0][:, 0, -1])).float())
    sampled.sum().backward()
    assert far.grad is not None
    assert not far.grad.any()


def test_each_layer_is_sampled_by_itself() -> None:
    image = images(3, 40, 40)
    points = torch.rand(3, 20, 2) * 40
    together = Texture(image).sample(points, 1.3, torch.arange(3)[:, None])
    for layer in range(3):
        assert torch.equal(together[layer], Texture(image[layer]).sample(points[layer], 1.3))
    assert torch.equal(Texture(image).sample(points[2], 1.3, 2), together[2])


def test_gradients_to_picture_points_and_level() -> None:
    generator = torch.manual_seed(0)
    image = torch.rand(2, 3, 40, 33, dtype=torch.float64, generator=generator, requires_grad=True)
    points = (torch.rand(6, 2, dtype=torch.float64, generator=generator) * 50 - 5).requires_grad_()
    level = torch.tensor([0.3, 1.7, 2.5, 4.6, -0.5, 5.5], dtype=torch.float64, requires_grad=True)
    layer = torch.tensor([0, 1, 0, 1, 0, 1])

    def sampled(image: torch.Tensor, points: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        return Texture(image).sample(points, level, layer)

    assert torch.autograd.gradcheck(lambda p, s: sampled(image.detach(), p, s), (points, level))
    assert torch.autograd.gradcheck(lambda x: sampled(x, points.detach(), level.detach()), (image,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda p, s: sampled(image.detach(), p, s), (points, level))


def test_following_the_gradient_finds_a_place() -> None:
    """A smooth hill: from its flank, ascending the sampled height leads to its top."""
    rows, cols = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    hill = torch.exp(-((rows - 40) ** 2 + (cols - 20) ** 2) / 400).expand(3, 64, 64)
    texture = Texture(hill)
    point = torch.tensor([25.0, 33.0], requires_grad=True)
    for _ in range(60):
        (slope,) = torch.autograd.grad(texture.sample(point, 1.0).sum(), point)
        point = (point + 20 * slope).detach().requires_grad_()
    assert torch.linalg.vector_norm(point.detach() - torch.tensor([40.5, 20.5])) < 1
