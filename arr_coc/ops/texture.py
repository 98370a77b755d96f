"""`Texture`: a picture as a texture in torch, with foveated sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.registry import texture_units
from arr_coc.budget import DEFAULT_BUDGET, Budget, fixed_tokens
from arr_coc.errors import OptionError, ShapeError
from arr_coc.ops.hardware import LARGEST_ERROR
from arr_coc.ops.sampling import PackedMipChain, gather_strips, sample_along, sample_trilinear
from arr_coc.texture.covers import fixation_cover, magnified_cover, nearest_regions, quadtree, top_level
from arr_coc.texture.pictures import as_stack, check_finite, check_positive, check_tensor
from arr_coc.texture.regions import exist_on
from arr_coc.texture.store.planes import Plane
from arr_coc.types import LEVELS, TILE_PX, TileGrid

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class Foveation:
    """A disjoint cover of a picture by regions, and what each of them shows.

    `regions` int64 [K, 3] (shape, row, col), in token order, on the CPU; `pixels` [K, 3, 32, 32] of the texture's
    dtype and on its device. `M0` and `e0` are those of the formula M(e) = M0/(e + e0) that the cover follows; if
    the budget was too small for any cover, both are 0 and the regions are the coarsest ones next to the fixation.
    """

    regions: torch.Tensor
    pixels: torch.Tensor
    M0: float
    e0: float


@dataclass(frozen=True, slots=True)
class FoveationOptions:
    """Fixation, and how detail falls off from there; made by `FoveationOptions.of`, which checks it."""

    fixation: tuple[float, float]
    tokens: int
    M0: float | None
    e0: float | None

    @classmethod
    def of(
        cls,
        grid: TileGrid,
        fixation: Sequence[float],
        budget: Budget,
        M0: float | None,  # noqa: N803
        e0: float | None,
    ) -> FoveationOptions:
        """Return the checked options, with the fixation in tiles.

        Args:
            grid: The picture's tile grid.
            fixation: (y, x) in [0, 1] of the picture.
            budget: As `Texture.sample_foveated`.
            M0: As `Texture.sample_foveated`.
            e0: As `Texture.sample_foveated`.

        Raises:
            OptionError: A fixation outside [0, 1], M0 or e0 that are not above 0, or M0 without e0.
            BudgetError: A wrong budget.
        """
        place = [float(value) for value in fixation]
        if len(place) != 2 or not all(0 <= value <= 1 for value in place):
            raise OptionError(f"a fixation is (y, x), each in [0, 1] of the picture, got {tuple(place)}")
        if M0 is not None and e0 is None:
            raise OptionError("M0 means nothing without e0; give both, or e0 alone, or neither")
        for value, name in ((M0, "M0"), (e0, "e0")):
            if value is not None:
                check_positive(value, name)
        y, x = place
        in_tiles = (y * grid.height_px / TILE_PX, x * grid.width_px / TILE_PX)
        return cls(in_tiles, fixed_tokens(budget, grid.tiles), M0, e0)

    def cover(self, shape: tuple[int, int]) -> tuple[npt.NDArray[np.int64], float, float]:
        """Return the regions [K, 3] over a grid of `shape`, in token order, and the M0 and e0 that they follow."""
        tree = quadtree(shape, top_level(shape, self.tokens) if self.e0 is None else LEVELS - 1)
        if tree.roots > self.tokens:
            return nearest_regions(tree, self.fixation, self.tokens), 0.0, 0.0
        if self.e0 is None:
            regions, e0 = fixation_cover(shape, self.tokens, self.fixation)
            return regions, e0, e0
        most = math.inf if self.M0 is None else self.M0
        regions, actual_m0 = magnified_cover(shape, self.tokens, self.fixation, self.e0, most)
        return regions, actual_m0, self.e0


Layer = int | torch.Tensor


class Texture:
    """A picture with its six mipmap levels, or an array of pictures of one size (frames, cameras): its layers.

    The reference for every way of reading a texture, and the differentiable one: if the picture is floating point
    and requires a gradient, so does all that is read. Everything stays on the picture's device.

    Places are (y, x) in pixels of level 0, in which pixel (r, c) covers [r, r + 1) × [c, c + 1). Samples are float32
    (float64 of a float64 picture), in the picture's own range: 0…255 for uint8. `layer` says which picture of an
    array to read: one number, or an int64 tensor that broadcasts to the result.

    Every method raises NonFiniteError for NaN or Inf and ShapeError for tensors of another shape or dtype than it
    names; OptionError for a layer that does not exist.
    """

    def __init__(self, image: torch.Tensor | Plane | Image.Image | str | Path, tolerance: float = 0.0) -> None:
        """Copy the picture, and make the mipmaps of all layers in one pass.

        Args:
            image: [3, H, W], or [layers, 3, H, W], as torch uint8 or floating point; or NumPy uint8 [H, W, 3], or
                [layers, H, W, 3]; strided as it likes; or a Pillow image or a picture's file.
            tolerance: Error that samples may have, as a share of the range. From 2/255 on, one uint8 picture on a CUDA
                device is sampled by its texture units; gradients are those of the exact formula.

        Raises:
            OptionError: A tolerance outside [0, 1].
            ArrCocError: As `to_rgb`.
        """
        image = as_stack(image)
        if image.ndim not in (3, 4):
            raise ShapeError(f"a texture is made of one picture or a stack of them, 3 or 4 axes, got {image.ndim}")
        self._single = image.ndim == 3
        self._chain = PackedMipChain(image[None] if self._single else image)
        dtype = self._chain.texels.dtype
        if dtype == torch.float64:
            self._dtype = torch.float64
        else:
            self._dtype = torch.float32
        if not 0 <= tolerance <= 1:
            raise OptionError(
                f"tolerance, the error of a sample as a share of the range, lies in [0, 1], got {tolerance}"
            )
        if tolerance >= LARGEST_ERROR:
            self._chain.hardware = texture_units(image)

    @classmethod
    def from_image(cls, image: torch.Tensor | Plane | Image.Image | str | Path, tolerance: float = 0.0) -> Texture:
        """Return the same as `Texture(image)`."""
        return cls(image, tolerance)

    @property
    def hardware(self) -> bool:
        """True if samples are taken by the texture units of a device."""
        return self._chain.hardware is not None

    @property
    def grid(self) -> TileGrid:
        """The tiles of each layer."""
        return self._chain.grid

    @property
    def layers(self) -> int:
        return self._chain.layers

    @property
    def levels(self) -> tuple[torch.Tensor, ...]:
        """The finest first: [3, h, w], or [layers, 3, h, w] of an array. Views, strided as the texels lie."""
        levels = tuple(self._chain.level(level) for level in range(LEVELS))
        if self._single:
            return tuple(level[0] for level in levels)
        return levels

    def generate_mipmaps(self) -> tuple[torch.Tensor, ...]:
        """Return `levels`. They were made with the texture, in one pass, so this costs nothing."""
        return self.levels

    def gather(self, regions: torch.Tensor, layer: Layer = 0) -> torch.Tensor:
        """Return the pixels of regions, as `TextureView.gather` of the stores, texel for texel, in the picture's dtype.

        Args:
            regions: int64 [K, 3] (shape, row, col).
            layer: One, or int64 [K].

        Returns:
            [K, 3, 32, 32], contiguous.
        """
        check_tensor(regions, "regions")
        if regions.ndim != 2 or regions.shape[1] != 3 or regions.dtype != torch.int64:
            raise ShapeError(f"regions are int64 [K, 3] (shape, row, col), got {regions.dtype} {list(regions.shape)}")
        exists = torch.from_numpy(exist_on(regions.cpu().numpy(), self.grid.shape))
        if not exists.all():
            first = regions.cpu()[~exists][0].tolist()
            raise ShapeError(f"region {first} (shape, row, col) lies outside a grid of {self.grid.shape} tiles")
        layers = self._layer(layer).expand(len(regions))
        return self._chain.gather(layers, regions.to(self._chain.texels.device))

    def sample(self, points: torch.Tensor, level: float | torch.Tensor = 0.0, layer: Layer = 0) -> torch.Tensor:
        """Trilinear samples, with gradients to picture, points and level: see `sample_trilinear`.

        Args:
            points: float [..., 2], (y, x) in pixels.
            level: A number or a float tensor that broadcasts to [...], clamped to 0…5.
            layer: One, or int64 [...].

        Returns:
            [..., 3].
        """
        return sample_trilinear(
            self._chain, self.as_points(points, "points"), self._number(level, "level"), self._layer(layer)
        )

    def sample_along(
        self, points: torch.Tensor, along: torch.Tensor, across_px: float | torch.Tensor = 1.0, layer: Layer = 0
    ) -> torch.Tensor:
        """Anisotropic samples: the mean over footprints |along| long and `across_px` wide; see `sampling.py`.

        Args:
            points: float [..., 2], (y, x) in pixels.
            along: float [..., 2], length and direction of the footprints.
            across_px: A number or a tensor that broadcasts to [...].
            layer: One, or int64 [...].

        Returns:
            [..., 3].

        Raises:
            OptionError: `across_px` of 0 or less.
        """
        return sample_along(
            self._chain,
            self.as_points(points, "points"),
            self.as_points(along, "along"),
            self._width(across_px),
            self._layer(layer),
        )

    def gather_strips(
        self, centres: torch.Tensor, along: torch.Tensor, across_px: float | torch.Tensor, layer: Layer = 0
    ) -> torch.Tensor:
        """Rectangles of any direction as tokens: a line of text 32 pixels high and 128 long in one instead of four.

        Args:
            centres: float [K, 2], (y, x) in pixels.
            along: float [K, 2], length and direction of each rectangle.
            across_px: One height or [K].
            layer: One, or int64 [K].

        Returns:
            [K, 3, 32, 32], contiguous; columns go along.

        Raises:
            OptionError: A length or height of 0 or less.
        """
        centres = self.as_points(centres, "centres")
        along = self.as_points(along, "along")
        if centres.ndim != 2 or centres.shape != along.shape:
            raise ShapeError(f"centres and along are both [K, 2], got {list(centres.shape)} and {list(along.shape)}")
        if not along.any(dim=1).all():
            raise OptionError("a strip of length 0 has no direction; make every row of `along` longer than 0")
        count = len(centres)
        widths = self._width(across_px).expand(count)
        return gather_strips(self._chain, centres, along, widths, self._layer(layer).expand(count))

    def sample_foveated(
        self,
        fixation: Sequence[float],
        budget: Budget = DEFAULT_BUDGET,
        M0: float | None = None,  # noqa: N803
        e0: float | None = None,
        layer: int = 0,
    ) -> Foveation:
        """Return the whole picture in at most `budget` tokens, fine at the fixation and coarser with distance from it.

        Cortical magnification M(e) = M0/(e + e0) says how many texels a pixel are shown at eccentricity e (distance
        from the fixation in frame widths), so the level there is log2((e + e0)/M0): Daniel and Whitteridge (1961); in
        this form Horton and Hoyt (1991).

        With neither M0 nor e0, M0 = e0 (full detail just at the fixation) and e0 is as large as the budget pays for.
        With e0 alone, M0 is. With both, M0 is the most that is used: the budget may lower it, and a small M0 leaves
        some of the budget.

        Args:
            fixation: (y, x) in [0, 1] of the picture.
            budget: A number or a share of the tiles, as `arr_coc.budget` has it, clamped to their number.
            M0: Of the formula, above 0.
            e0: Of the formula, in frame widths, above 0; magnification has halved there.
            layer: The layer.

        Raises:
            BudgetError: A wrong budget.
            OptionError: A fixation outside [0, 1], or M0 or e0 that are not above 0.
        """
        regions, actual_m0, offset = FoveationOptions.of(self.grid, fixation, budget, M0, e0).cover(self.grid.shape)
        codes = torch.from_numpy(regions)
        return Foveation(codes, self.gather(codes, layer), actual_m0, offset)

    def as_points(self, points: torch.Tensor, name: str) -> torch.Tensor:
        """Floats [..., 2] on the texture's device, in the dtype of samples. Raises ShapeError, NonFiniteError."""
        if not points.dtype.is_floating_point or points.ndim < 1 or points.shape[-1] != 2:
            raise ShapeError(f"{name} are floats [..., 2] (y, x), got {points.dtype} {list(points.shape)}")
        check_finite(points, name)
        return points.to(self._chain.texels.device, self._dtype)

    def _number(self, value: float | torch.Tensor, name: str) -> torch.Tensor:
        number = torch.as_tensor(value).to(self._chain.texels.device, self._dtype)
        check_finite(number, name)
        return number

    def _width(self, across_px: float | torch.Tensor) -> torch.Tensor:
        width = self._number(across_px, "across_px")
        if not (width > 0).all():
            raise OptionError("across_px, a footprint's width in pixels, must be above 0")
        return width

    def _layer(self, layer: Layer) -> torch.Tensor:
        index = torch.as_tensor(layer, device=self._chain.texels.device)
        if index.dtype != torch.int64:
            raise ShapeError(f"layers are whole numbers, int64, got {index.dtype}")
        if not ((index >= 0) & (index < self.layers)).all():
            raise OptionError(f"this texture has layers 0 to {self.layers - 1}, got {np.unique(index.cpu()).tolist()}")
        return index
