"""Foveated patches: places, detail, gradients to the fixation, and a toy that learns where to look."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.errors import BudgetError, NonFiniteError, OptionError, ShapeError
from arr_coc.ops.foveated import sample_foveated
from arr_coc.ops.texture import Texture
from tests.arr_coc.ops.test_texture import images


def test_an_even_grid_is_the_picture() -> None:
    image = images(1, 96, 128)[0]
    view = sample_foveated(image, (0.3, 0.9), num_patches=12, cortical_magnification=1)
    assert view.grid == (3, 4)
    expected = image.float().unflatten(2, (4, 32)).unflatten(1, (3, 32)).permute(1, 3, 0, 2, 4).flatten(0, 1)
    torch.testing.assert_close(view.patches, expected, atol=0.05, rtol=0)
    torch.testing.assert_close(view.centres[5], torch.tensor([48.0, 48.0]))
    assert view.levels.abs().max() < 1e-4


def test_a_smaller_even_grid_is_a_mipmap_level() -> None:
    image = images(1, 128, 256)[0]
    view = sample_foveated(image, (0.5, 0.5), num_patches=2, cortical_magnification=1)
    expected = Texture(image).levels[2].float().unflatten(2, (2, 32)).permute(2, 0, 1, 3)
    torch.testing.assert_close(view.patches, expected, atol=0.1, rtol=0)
    torch.testing.assert_close(view.levels, torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("size", "patches", "grid"),
    [((720, 1280), 273, (12, 22)), ((1280, 720), 273, (22, 12)), ((64, 64), 7, (3, 2)), ((32, 3200), 7, (1, 7))],
)
def test_patches_are_divided_by_the_pictures_aspect(size: tuple[int, int], patches: int, grid: tuple[int, int]) -> None:
    view = sample_foveated(images(1, *size)[0], (0.5, 0.5), patches)
    assert view.grid == grid
    assert view.patches.shape == (grid[0] * grid[1], 3, 32, 32)


def test_detail_falls_off_from_the_fixation_by_cortical_magnification() -> None:
    """M(e) = M0/(e + e0): samples a frame width, e in frame widths; eight times as many at 0 as at 1."""
    axis = torch.zeros(3, 32, 1024)
    fixation = 0.25
    view = sample_foveated(axis, (0.5, fixation), num_patches=32, cortical_magnification=8)
    assert view.grid[0] == 1
    centres = view.centres[:, 1] / 1024
    density = 1 / centres.diff()
    eccentricity = ((centres[1:] + centres[:-1]) / 2 - fixation).abs()
    product = density * (eccentricity + 1 / 7)
    is_peripheral = eccentricity > 0.02
    assert product[is_peripheral].std() < 0.01 * product[is_peripheral].mean()
    nearest = int((centres - fixation).abs().argmin())
    assert (view.levels[: nearest + 1].diff() <= 0).all()
    assert (view.levels[nearest:].diff() >= 0).all()


@pytest.mark.parametrize("fixation", [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.1, 0.97)])
def test_the_whole_picture_is_covered_from_every_fixation(fixation: tuple[float, float]) -> None:
    rows, cols = torch.meshgrid(torch.arange(200.0), torch.arange(300.0), indexing="ij")
    ramp = torch.stack([rows, cols, rows])
    view = sample_foveated(ramp, fixation, num_patches=24)
    height, width = view.grid
    sheet = view.patches.unflatten(0, (height, width)).permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    assert (sheet[0].diff(dim=0) >= 0).all()
    assert (sheet[1].diff(dim=1) >= 0).all()
    assert sheet[0, 0].max() < 8
    assert sheet[0, -1].min() > 191
    assert sheet[1, :, 0].max() < 8
    assert sheet[1, :, -1].min() > 291


def test_several_pictures_and_several_fixations() -> None:
    image, fixations = images(2, 64, 96), torch.tensor([[0.2, 0.4], [0.9, 0.1]])
    pairs = sample_foveated(image, fixations, 6)
    single_picture = sample_foveated(image[0], fixations, 6)
    single_fixation = sample_foveated(image, (0.2, 0.4), 6)
    assert pairs.patches.shape == single_picture.patches.shape == single_fixation.patches.shape == (2, 6, 3, 32, 32)
    for index in range(2):
        pair = sample_foveated(image[index], fixations[index], 6)
        torch.testing.assert_close(pairs.patches[index], pair.patches)
        torch.testing.assert_close(pairs.centres[index], pair.centres)
        torch.testing.assert_close(
            single_picture.patches[index], sample_foveated(image[0], fixations[index].tolist(), 6).patches
        )
        torch.testing.assert_close(single_fixation.patches[index], sample_foveated(image[index], (0.2, 0.4), 6).patches)
    texture = Texture(image[1])
    assert torch.equal(
        sample_foveated(texture, (0.5, 0.5), 4).patches, sample_foveated(image[1], (0.5, 0.5), 4).patches
    )


def test_gradients_to_fixation_and_picture() -> None:
    generator = torch.manual_seed(3)
    image = torch.rand(3, 40, 56, dtype=torch.float64, generator=generator, requires_grad=True)
    fixation = torch.tensor([0.31, 0.62], dtype=torch.float64, requires_grad=True)

    def shown(fixation: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        view = sample_foveated(image, fixation, 2, 6.0)
        return view.patches[:, :, ::9, ::7], view.centres, view.levels

    assert torch.autograd.gradcheck(shown, (fixation, image.detach()))
    assert torch.autograd.gradcheck(lambda image: shown(fixation.detach(), image)[0], (image,), fast_mode=True)
    batch = torch.tensor([[0.2, 0.5], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    sample_foveated(image.detach(), batch, 4).patches.square().sum().backward()
    assert batch.grad is not None
    assert batch.grad.isfinite().all()
    assert batch.grad[0].all()


def scenes(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Grey pictures [count, 3, 128, 128], each with a square of fine stripes somewhere; whether these are level; and
    the middles of the squares in [0, 1]."""
    pictures = torch.full((count, 3, 128, 128), 0.4)
    level = torch.randint(0, 2, (count,), generator=generator)
    corners = torch.randint(0, 97, (count, 2), generator=generator)
    stripes = 0.3 + 0.4 * ((torch.arange(32) // 2) % 2)
    for picture, is_level, (row, col) in zip(pictures, level, corners.tolist(), strict=True):
        picture[:, row : row + 32, col : col + 32] = stripes[:, None] if is_level else stripes
    return pictures, level, (corners + 16) / 128


class Looker(nn.Module):
    """A model that looks at a thumbnail of 8×8, then at one patch, and classifies the direction of its stripes."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))
        self.classifier = nn.Linear(2, 1)
        nn.init.zeros_(self.classifier.weight)  # a reader that is wrong at first teaches to look away

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        texture = Texture(pictures)
        thumbnail = texture.levels[4][:, 0] - 0.4
        weights = (self.gain * 100 * thumbnail).flatten(1).softmax(dim=1).unflatten(1, (8, 8))
        places = (torch.arange(8) + 0.5) / 8
        fixation = torch.stack([weights.sum(dim=2) @ places, weights.sum(dim=1) @ places], dim=1)
        patches = sample_foveated(texture, fixation, num_patches=1, cortical_magnification=16).patches[:, 0, 0]
        edges = [patches.diff(dim=axis).abs().mean(dim=(1, 2)) for axis in (1, 2)]
        return self.classifier(40 * torch.stack(edges, dim=1))[:, 0], fixation


def test_a_toy_learns_where_to_look() -> None:
    """On pictures that were not seen, it reads what it looks at, and hardly anything from the middle."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    looker = Looker()
    optimiser = torch.optim.Adam(looker.parameters(), lr=0.05)
    for _ in range(80):
        pictures, level, _ = scenes(16, generator)
        loss = F.binary_cross_entropy_with_logits(looker(pictures)[0], level.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    pictures, level, middles = scenes(150, generator)
    results = []
    with torch.no_grad():
        for gain in (looker.gain, torch.zeros(())):
            looker.gain.copy_(gain)
            logits, fixation = looker(pictures)
            accuracy = ((logits > 0) == level.bool()).float().mean()
            results.append((float(accuracy), float((fixation - middles).norm(dim=1).mean())))
    (accuracy, distance), (blind_accuracy, blind_distance) = results
    assert accuracy > 0.95
    assert blind_accuracy < 0.8
    assert distance < 0.07 < 0.25 < blind_distance


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"fixation_point": (0.5, 1.2)}, OptionError, r"lies in \[0, 1\] of the picture, .*; bring it there by torch"),
        ({"fixation_point": (0.5,)}, ShapeError, r"a fixation point is \(y, x\).*, got \[1\]"),
        ({"fixation_point": torch.zeros(3, 2)}, ShapeError, "there are 2 pictures and 3 fixation points"),
        ({"fixation_point": (0.5, float("nan"))}, NonFiniteError, "fixation_point"),
        ({"num_patches": 0}, BudgetError, "at least 1, got 0"),
        ({"cortical_magnification": 0.5}, OptionError, "at least 1, got 0.5"),
        ({"cortical_magnification": float("inf")}, OptionError, "finite number"),
        ({"image": torch.zeros(2, 2)}, ShapeError, "3 or 4 axes"),
    ],
)
def test_invalid_inputs_are_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sample_foveated(**{"image": images(2, 64, 64), "fixation_point": (0.5, 0.5), **changes})
