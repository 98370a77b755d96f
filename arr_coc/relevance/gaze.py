"""Gaze prior: the middle, and what a picture's spectrum does not foretell, is looked at before anything is asked.

For models without a trained allocator, whose scores do not know faces from grass. On 124 real pictures it shows 6
points more of what a viewer would ask about, and no less of drawn scenes (evaluation/README.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import cv2
import torch
from torch.nn import functional as F

from arr_coc.relevance.balancing import RelevanceMaps
from arr_coc.relevance.channels import DeviceChannels, MipLevels, TextureArray
from arr_coc.types import TILE_PX

SPECTRUM_SIDE = 96
"""Side of the picture whose spectrum is taken. 64, as in the paper, loses small text; 128 finds no more."""

SMOOTHING = 9
"""Side of the two means that smooth the residual: together about a Gaussian of 4 % of the picture's side."""

LEAST = 0.2
"""Factor of a tile without any residual, where 1 is the most: nothing is ruled out."""

LEAST_MAGNITUDE = 1e-3
"""Of a frequency, as a share of the mean: those that a picture lacks would else weigh most."""

_TINY = 1e-9


class GazeWeights:
    """Relevance of one stream's pictures, weighed by the gaze prior; used by one thread.

    The same maps of the same picture give the same result object. Those of a `trained` allocator stay as they are: it
    knows better what matters.
    """

    def __init__(self, *, trained: bool, on_device: bool = False) -> None:
        """`on_device`: luma of a texture on a device is taken there."""
        self._trained = trained
        self._on_device = on_device
        self._texture: TextureArray | None = None
        self._prior = torch.ones(1, 1)
        self._maps: RelevanceMaps | None = None
        self._weighed: RelevanceMaps | None = None

    def weigh(self, maps: RelevanceMaps, view: MipLevels, texture: TextureArray) -> RelevanceMaps:
        """Return `maps` [gh, gw] of the picture in `view`, whose channels are `texture`, with weighed relevance."""
        if self._trained:
            return maps
        if self._weighed is not None and maps is self._maps and texture is self._texture:
            return self._weighed
        if texture is not self._texture:
            rows, cols = texture.entropy.shape
            self._prior = gaze_prior(self._luma(view, (rows, cols)), (rows, cols))
        gaze = self._prior.to(maps.relevance.device)
        self._texture, self._maps = texture, maps
        self._weighed = replace(maps, relevance=maps.relevance * gaze, gaze=gaze)
        return self._weighed

    def _luma(self, view: MipLevels, shape: tuple[int, int]) -> torch.Tensor:
        """Return the luma of the coarsest level that has enough texels."""
        if self._on_device and isinstance(view, DeviceChannels):
            return view.luma()
        texels = TILE_PX * min(shape)
        level = next((level for level in (3, 2) if texels >> level >= SPECTRUM_SIDE), 1)
        return torch.from_numpy(cv2.cvtColor(view.read(level), cv2.COLOR_RGB2GRAY)).float()


def gaze_prior(luma: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return a factor of relevance for each tile, float32 [gh, gw] in (0, 1], on the device of `luma`.

    Args:
        luma: float32 [H, W] of any scale and size; 96 texels a side suffice.
        shape: (gh, gw), the grid of tiles.
    """
    residual = F.adaptive_avg_pool2d(spectral_residual(luma)[None], shape)[0]
    share = residual / (residual + 2 * residual.median() + _TINY)
    return (LEAST + share) / (LEAST + 1) * middle_prior(shape).to(luma.device)


@lru_cache(maxsize=16)
def middle_prior(shape: tuple[int, int]) -> torch.Tensor:
    """Return 1 in the middle of a grid, falling with distance to a half in its corners: float32 [gh, gw]."""
    down, across = ((torch.arange(count) + 0.5) / count - 0.5 for count in shape)
    return 1 - torch.hypot(down[:, None], across) / 2**0.5


def spectral_residual(luma: torch.Tensor) -> torch.Tensor:
    """Return what is left of the log spectrum without its smooth part, as a map (Hou and Zhang, CVPR 2007).

    Args:
        luma: float32 [H, W].

    Returns:
        float32 [96, 96], smoothed, of arbitrary scale.
    """
    square = F.adaptive_avg_pool2d(luma[None], (SPECTRUM_SIDE, SPECTRUM_SIDE))[0]
    spectrum = torch.fft.rfft2(square)
    magnitude = spectrum.abs()
    smooth = _mean((magnitude + LEAST_MAGNITUDE * magnitude.mean() + _TINY).log(), 3)
    # exp(log |S| − smooth + i·phase) of the paper is S / exp(smooth)
    left = torch.fft.irfft2(spectrum * torch.exp(-smooth), s=square.shape)
    return _mean(_mean(left.square(), SMOOTHING), SMOOTHING)


def _mean(values: torch.Tensor, side: int) -> torch.Tensor:
    """Return the mean over squares around each place, of what lies inside the map."""
    return F.avg_pool2d(values[None], side, 1, side // 2, count_include_pad=False)[0]
