"""`sample_foveated`: a picture in a grid of patches that is fine around a fixation point, with gradients to that point.

Rows and columns are spaced apart by cortical magnification: along each axis, M(e) = M0/(e + e0) samples are taken per
frame width at distance e from the fixation, so that the sample number is the logarithm of the distance (Schwartz,
"Spatial mapping in the primate sensory projection", 1977, for each axis by itself). The grid covers the whole picture
for every fixation, and each sample lies between two mipmap levels, by the wider of its two spacings. So position and
level of every sample are smooth functions of the fixation. `Texture.sample_foveated` chooses whole regions instead, and
has no such gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from arr_coc.errors import OptionError, ShapeError
from arr_coc.ops.texture import Texture
from arr_coc.texture.pictures import check_positive, check_tokens
from arr_coc.texture.store.planes import Plane
from arr_coc.types import LEVELS, TILE_PX, TileGrid

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class FoveatedPatches:
    """Patches of a picture in `grid` (rows, columns), row by row: K of them, for each fixation.

    `patches` [..., K, 3, 32, 32], in the picture's range; `centres` [..., K, 2] (y, x) in pixels, and `levels` [...,
    K], the fractional mipmap level in the middle of each. All carry gradients to the fixation, `patches` also to a
    floating point picture.
    """

    patches: torch.Tensor
    centres: torch.Tensor
    levels: torch.Tensor
    grid: tuple[int, int]


def sample_foveated(
    image: Texture | torch.Tensor | Plane | Image.Image | str | Path,
    fixation_point: torch.Tensor | Sequence[float],
    num_patches: int = 64,
    cortical_magnification: float | Mapping[str, float] = 8.0,
) -> FoveatedPatches:
    """Sample the whole picture in at most `num_patches` patches of 32×32, finest at the fixation point.

    Args:
        image: a `Texture`, or a picture that it takes; a texture is not made again.
        fixation_point: (y, x) in [0, 1] of the picture: two numbers, or a tensor [2] or [N, 2], of N pictures in their
            order, or N times of one picture. Two numbers are the fixation of every picture. Whole numbers of which one
            is above 1 are pixels.
        num_patches: divided into rows and columns of about the picture's aspect.
        cortical_magnification: samples per pixel at the fixation, over those at one frame width from it: M(0)/M(1) =
            (1 + e0)/e0. 1 is an even grid. Or {"M0": …, "e0": …} of the formula; M0 has no effect, because the
            number of patches says how many samples there are.

    Returns:
        Patches with a leading axis N, or none for one picture and one fixation.

    Raises:
        OptionError: a fixation outside [0, 1], a magnification below 1.
        BudgetError: `num_patches` below 1.
        ShapeError, NonFiniteError: pictures or fixations of another shape or kind.
    """
    if isinstance(image, Texture):
        texture = image
    else:
        texture = Texture(image)
    fixations, layers = _fixations(texture, fixation_point)
    if isinstance(cortical_magnification, Mapping):
        _, e0 = magnification_of(cortical_magnification)
        cortical_magnification = (1 + e0) / e0
    if not (math.isfinite(cortical_magnification) and cortical_magnification >= 1):
        raise OptionError(f"cortical_magnification is a finite number of at least 1, got {cortical_magnification!r}")
    e0 = 1 / max(cortical_magnification - 1, 1e-6)
    grid = texture.grid
    num_patches = check_tokens(num_patches, num_patches)
    # a grid of at most so many patches, of the picture's aspect
    rows = min(max(round(math.sqrt(num_patches * grid.height_px / grid.width_px)), 1), num_patches)
    cols = num_patches // rows
    axes = [
        _Axis(fixations[:, axis], length_px, e0 * grid.width_px)
        for axis, length_px in enumerate((grid.height_px, grid.width_px))
    ]
    points, levels = _samples(axes, (rows * TILE_PX, cols * TILE_PX))
    colours = texture.sample(points, levels, layers[:, None, None])
    patches = (
        colours.unflatten(2, (cols, TILE_PX)).unflatten(1, (rows, TILE_PX)).permute(0, 1, 3, 5, 2, 4).flatten(1, 2)
    )
    centres, coarse = _samples(axes, (rows, cols))
    centre_levels = (coarse - math.log2(TILE_PX)).clamp(0, LEVELS - 1)
    patches = patches.contiguous()
    centres = centres.flatten(1, 2)
    centre_levels = centre_levels.flatten(1)
    if len(fixations) == 1 and torch.as_tensor(fixation_point).ndim == 1:
        patches = patches[0]
        centres = centres[0]
        centre_levels = centre_levels[0]
    return FoveatedPatches(patches, centres, centre_levels, (rows, cols))


def magnification_of(constants: Mapping[str, float]) -> tuple[float, float]:
    """Return M0 and e0 of M(e) = M0/(e + e0). Raises OptionError unless both are given, and above 0."""
    if constants.keys() != {"M0", "e0"}:
        raise OptionError(
            f"cortical_magnification needs M0 and e0, got {', '.join(map(str, constants)) or 'nothing'}",
            'give {"M0": 1.0, "e0": 0.5}',
        )
    for name, value in constants.items():
        check_positive(value, name)
    return constants["M0"], constants["e0"]


def share_of_picture(fixation: torch.Tensor, grid: TileGrid) -> torch.Tensor:
    """Return fixations [..., 2] (y, x) as shares of the picture: whole numbers of which one is above 1 are pixels."""
    if fixation.is_floating_point():
        return fixation
    if fixation.shape[-1:] != (2,) or not bool((fixation > 1).any()):
        return fixation.float()
    return fixation / torch.tensor([grid.height_px, grid.width_px], device=fixation.device)


class _Axis:
    """Warp of one axis of a picture around fixations [N] in [0, 1] of its length; `scale_px` is e0."""

    def __init__(self, fixations: torch.Tensor, length_px: int, scale_px: float) -> None:
        self._middle_px = fixations[:, None] * length_px
        self._scale_px = scale_px
        self._first = -torch.log1p(self._middle_px / scale_px)
        self._range = torch.log1p((length_px - self._middle_px) / scale_px) - self._first

    def places(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of `count` samples in pixels, and the spacing there: [N, count] each."""
        steps = (torch.arange(count).to(self._middle_px) + 0.5) / count
        u = self._first + steps * self._range
        places = self._middle_px + u.sign() * self._scale_px * torch.expm1(u.abs())
        return places, self._scale_px * u.abs().exp() * self._range / count


def _samples(axes: Sequence[_Axis], counts: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points [N, rows, cols, 2] and levels [N, rows, cols] of a grid of samples."""
    (y, down_px), (x, across_px) = (axis.places(count) for axis, count in zip(axes, counts, strict=True))
    y, x = torch.broadcast_tensors(y[:, :, None], x[:, None])
    return torch.stack((y, x), dim=-1), torch.maximum(down_px[:, :, None], across_px[:, None]).log2()


def _fixations(texture: Texture, fixation: torch.Tensor | Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Fixations [N, 2] in the dtype of samples, and the layer int64 [N] of each."""
    point = torch.as_tensor(fixation)
    if point.ndim not in (1, 2) or point.shape[-1] != 2 or not len(point):
        raise ShapeError(f"a fixation point is (y, x), or a tensor [N, 2] of them, got {list(point.shape)}")
    points = texture.as_points(share_of_picture(point, texture.grid), "fixation_point")
    if not ((points >= 0) & (points <= 1)).all():
        raise OptionError(
            f"a fixation point lies in [0, 1] of the picture, got {points.detach().cpu().tolist()}",
            "bring it there by torch.sigmoid or .clamp(0, 1)",
        )
    if points.ndim == 1:
        points = points.expand(texture.layers, 2)
    if texture.layers not in (1, len(points)):
        raise ShapeError(f"there are {texture.layers} pictures and {len(points)} fixation points; give one for each")
    layers = torch.arange(len(points), device=points.device)
    return points, layers if texture.layers > 1 else torch.zeros_like(layers)
