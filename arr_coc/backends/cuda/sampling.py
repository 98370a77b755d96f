"""Samples by the texture units of a CUDA device."""

from __future__ import annotations

import torch

from arr_coc.backends.cuda.device import find_device
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.errors import BackendMissing
from arr_coc.texture.store.base import LEASE_TIMEOUT_MS
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import Colour, FrameStamp


class HardwareTexture:
    """A picture uint8 [3, H, W] as a texture of the CUDA device that it lies on."""

    def __init__(self, image: torch.Tensor) -> None:
        """Raise BackendMissing and DeviceLost, as `CudaStore`."""
        height_px, width_px = image.shape[1:]
        self._store = CudaStore(
            PlaneFormat("rgb", height_px, width_px, (1, 1), Colour()), Thresholds(), LEASE_TIMEOUT_MS
        )
        self._store.update_tensor(image, FrameStamp(0, 0, 0))

    @classmethod
    def of(cls, image: object) -> HardwareTexture | None:
        """Return the texture of a picture uint8 [3, H, W]; None if it is something else, or lies on no CUDA device that
        can be used. Raises DeviceLost."""
        if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim != 3:
            return None
        try:
            if find_device().place == image.device:
                return cls(image)
            return None
        except BackendMissing:
            return None

    def sample(self, points: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Return the samples float32 [..., 3] in 0..255 at `points` [..., 2] (y, x) and `level` [...], without a
        gradient."""
        place = torch.cat((points.flip(-1), level.unsqueeze(-1)), dim=-1).detach()
        with self._store.lease() as view:
            colours = view.sample(place.reshape(-1, 3).float().contiguous())
        return colours.reshape(*level.shape, 3) * 255
