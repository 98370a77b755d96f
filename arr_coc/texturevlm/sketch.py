"""Calls of the library's first sketch whose form differs from that of `arr_coc.ops`, which does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from arr_coc import ops
from arr_coc.budget import DEFAULT_BUDGET, Budget
from arr_coc.errors import OptionError, ShapeError
from arr_coc.ops.foveated import magnification_of
from arr_coc.ops.texture import Foveation
from arr_coc.texture.pictures import check_tensor


@dataclass(frozen=True, slots=True)
class SpatialTexture:
    """Keys or values of attention as they lie in space: `rows` [..., N, D], row by row of a `grid` (rows, columns)."""

    rows: torch.Tensor
    grid: tuple[int, int]

    @classmethod
    def of(cls, features: torch.Tensor) -> SpatialTexture:
        """Take [..., D, rows, columns], channels first as of a picture. Raises ShapeError for fewer axes."""
        check_tensor(features, "features")
        if features.ndim < 3 or 0 in features.shape:
            raise ShapeError(f"features in space are [..., D, rows, columns], got {list(features.shape)}")
        return cls(features.flatten(-2).transpose(-1, -2), (features.shape[-2], features.shape[-1]))


class SketchTexture(ops.Texture):
    """A picture's texture; with `layout="spatial"` a `SpatialTexture` of keys or values."""

    def __new__(cls, image: Any, tolerance: float = 0.0, layout: str = "picture") -> Any:
        """Raise OptionError for another layout than picture and spatial."""
        if layout not in ("picture", "spatial"):
            raise OptionError(f"layout is picture or spatial, got {layout!r}")
        if layout == "spatial":
            return SpatialTexture.of(image)
        return super().__new__(cls)

    def __init__(self, image: Any, tolerance: float = 0.0, layout: str = "picture") -> None:
        """Take what `arr_coc.ops.Texture` takes."""
        super().__init__(image, tolerance)

    def sample_foveated(
        self,
        fixation: Sequence[float] | torch.Tensor,
        budget: Budget = DEFAULT_BUDGET,
        M0: float | None = None,  # noqa: N803
        e0: float | None = None,
        layer: int = 0,
        *,
        num_patches: int | None = None,
        cortical_magnification: Mapping[str, float] | None = None,
    ) -> Foveation:
        """Return what `arr_coc.ops.Texture.sample_foveated` returns.

        Args:
            fixation: (y, x), in [0, 1] of the picture; two whole numbers above 1 are pixels.
            budget: A number of tokens, or a share of the tiles.
            M0: Of the formula.
            e0: Of the formula.
            layer: The layer.
            num_patches: Another name of `budget`.
            cortical_magnification: `M0` and `e0` together.

        Raises:
            BudgetError, OptionError: As `arr_coc.ops.Texture.sample_foveated`.
        """
        if cortical_magnification is not None:
            M0, e0 = magnification_of(cortical_magnification)
        place = ops.foveated.share_of_picture(torch.as_tensor(fixation), self.grid).tolist()
        return super().sample_foveated(place, num_patches or budget, M0, e0, layer)


Texture = TexturePyramid = SketchTexture


def hierarchical_attention(
    queries: torch.Tensor,
    key_texture: SpatialTexture,
    value_texture: SpatialTexture,
    coarse_mip: int = 1,
    fine_ratio: float = 0.1,
    block: int = 1,
) -> torch.Tensor:
    """Return what `arr_coc.ops.hierarchical_attention` returns, with keys and values in space.

    Args:
        queries: [..., Q, D].
        key_texture: `Texture(keys, layout="spatial")` of keys [..., D, rows, columns].
        value_texture: Likewise, of values of any width.
        coarse_mip: The mipmap level through which most keys are seen.
        fine_ratio: Share of the cells that is seen key by key.
        block: Number of consecutive queries that choose together.

    Raises:
        ShapeError, OptionError, NonFiniteError: As `arr_coc.ops.hierarchical_attention`.
    """
    for name, texture in (("key_texture", key_texture), ("value_texture", value_texture)):
        if not isinstance(texture, SpatialTexture):
            raise ShapeError(f"{name} is made by Texture(..., layout='spatial'), got {type(texture).__name__}")
    return ops.hierarchical_attention(
        queries,
        key_texture.rows,
        value_texture.rows,
        grid=key_texture.grid,
        share=fine_ratio,
        level=coarse_mip,
        block=block,
    )
