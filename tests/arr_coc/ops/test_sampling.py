"""Elongated footprints: box means for aligned ones, sharper than squares on lines, and gradients."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from arr_coc.ops.texture import Texture
from tests.arr_coc.ops.test_texture import images


@pytest.mark.parametrize("length", [1, 2, 4, 6, 16])
def test_an_aligned_footprint_of_whole_texels_is_their_mean(length: int) -> None:
    image = images(1, 64, 64)[0].double()
    texture = Texture(image)
    across = texture.sample_along(torch.tensor([10.5, 20 + length / 2]), torch.tensor([0.0, length]), 1.0)
    torch.testing.assert_close(across, image[:, 10, 20 : 20 + length].mean(dim=1))
    down = texture.sample_along(torch.tensor([20 + length / 2, 10.5]), torch.tensor([float(length), 0.0]), 1.0)
    torch.testing.assert_close(down, image[:, 20 : 20 + length, 10].mean(dim=1))


def test_beyond_16_taps_the_level_rises() -> None:
    image = torch.zeros(3, 64, 128, dtype=torch.float64)
    image[:, 16:18] = 1
    texture = Texture(image)
    along = torch.tensor([0.0, 64.0])
    torch.testing.assert_close(
        texture.sample_along(torch.tensor([17.0, 64.0]), along, 1.0), texture.sample(torch.tensor([17.0, 64.0]), 2.0)
    )
    assert texture.sample_along(torch.tensor([17.0, 64.0]), along, 4.0)[0] < 1
    assert texture.sample_along(torch.tensor([17.0, 64.0]), along / 4, 1.0)[0] == 1


def test_a_short_footprint_is_a_square_of_its_width() -> None:
    texture = Texture(images(1, 64, 64)[0])
    points = torch.rand(20, 2) * 64
    for along in (torch.zeros(2), torch.tensor([1.0, 0.5])):
        assert torch.equal(texture.sample_along(points, along, 4.0), texture.sample(points, 2.0))


def test_every_point_has_its_own_footprint_and_layer() -> None:
    texture = Texture(images(2, 64, 64))
    points, along = torch.rand(8, 2) * 64, torch.randn(8, 2) * 8
    across, layer = torch.linspace(0.5, 4, 8), torch.arange(8) % 2
    batch = texture.sample_along(points, along, across, layer)
    for index in range(8):
        colour = texture.sample_along(points[index], along[index], float(across[index]), int(layer[index]))
        torch.testing.assert_close(batch[index], colour)
    assert texture.sample_along(torch.zeros(0, 2), torch.zeros(2)).shape == (0, 3)


def line_of_text(angle: float) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    picture = np.full((320, 320, 3), 255, np.uint8)
    cv2.putText(picture, "elongated", (52, 172), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (0, 0, 0), 3)
    turn = cv2.getRotationMatrix2D((159.5, 159.5), -angle, 1)
    return np.asarray(cv2.warpAffine(picture, turn, (320, 320), flags=cv2.INTER_AREA, borderValue=(255, 255, 255)))


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_a_strip_shows_a_line_of_any_direction_as_if_it_were_level(angle: float) -> None:
    direction = torch.tensor([np.sin(np.radians(angle)), np.cos(np.radians(angle))]).float()[None]
    strip = Texture(line_of_text(angle)).gather_strips(torch.tensor([[160.0, 160.0]]), 256 * direction, 64.0)[0, 0]
    level = torch.from_numpy(line_of_text(0)[128:192, 32:288, 0]).float()
    expected = level.reshape(32, 2, 32, 8).mean(dim=(1, 3))
    assert (strip - expected).abs().mean() < 0.05 * expected.std() + 8 * (angle == 30)


def test_a_strip_keeps_what_a_region_of_the_same_width_loses() -> None:
    """Four tiles of stripes, two pixels each, in one token: strips keep them, level 2 averages them away."""
    stripes = torch.zeros(3, 128, 128)
    stripes[:, (torch.arange(128) // 2) % 2 == 0] = 255
    texture = Texture(stripes)
    strip = texture.gather_strips(torch.tensor([[48.0, 64.0]]), torch.tensor([[0.0, 128.0]]), 32.0)
    assert torch.equal(strip[0, :, :, 0], stripes[:, 32:64, 0])
    assert texture.gather(torch.tensor([[2, 0, 0]])).std() == 0


def test_gradients_to_picture_points_and_footprint() -> None:
    generator = torch.manual_seed(3)
    image = torch.rand(3, 40, 40, dtype=torch.float64, generator=generator, requires_grad=True)
    points = (torch.rand(4, 2, dtype=torch.float64, generator=generator) * 40).requires_grad_()
    along = torch.tensor([[1.0, 5.2], [0.3, 0.2], [-9.0, 6.0], [30.0, 0.7]], dtype=torch.float64, requires_grad=True)
    across = torch.tensor([1.3, 2.1, 0.9, 1.1], dtype=torch.float64, requires_grad=True)

    def sampled(points: torch.Tensor, along: torch.Tensor, across: torch.Tensor) -> torch.Tensor:
        return Texture(image.detach()).sample_along(points, along, across)

    assert torch.autograd.gradcheck(sampled, (points, along, across))
    places = points.detach(), along.detach(), across.detach()
    assert torch.autograd.gradcheck(lambda x: Texture(x).sample_along(*places), (image,), fast_mode=True)


def centres(level: int, height: int, width: int) -> torch.Tensor:
    """Centres of the texels of one level: [height, width, 2]."""
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
    points = torch.tensor([[1e30, -1e30], [-1e30, 1e30]], requires_grad=True)
    sampled = texture.sample(points)
    assert torch.equal(sampled, torch.stack((texture.levels[0][:, -1, 0], texture.levels[0][:, 0, -1])).float())
    sampled.sum().backward()
    assert points.grad is not None
    assert not points.grad.any()


def test_each_layer_is_sampled_by_itself() -> None:
    image = images(3, 40, 40)
    points = torch.rand(3, 20, 2) * 40
    batch = Texture(image).sample(points, 1.3, torch.arange(3)[:, None])
    for layer in range(3):
        assert torch.equal(batch[layer], Texture(image[layer]).sample(points[layer], 1.3))
    assert torch.equal(Texture(image).sample(points[2], 1.3, 2), batch[2])


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
