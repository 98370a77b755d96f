"""Texture channels on the device: the tables that their kernels read, and the launches."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.ops.cuda.device import Device
from arr_coc.ops.cuda.texture import MipTexture
from arr_coc.types import TileGrid

CHANNELS = 13
TEXELS = 256
"""Texels of level 1 in a tile, which the histogram counts."""


class ChannelKernels:
    """Computes the texture array of one grid: whole, because on a device that costs less than finding out what is
    stale."""

    def __init__(self, device: Device, grid: TileGrid) -> None:
        self._device, self._grid = device, grid
        ends = (grid.rows, grid.cols)
        places = np.concatenate([np.linspace(0, 1, length, dtype=np.float32) for length in ends])
        self._places = torch.from_numpy(places).to(device.place)
        counts = np.arange(TEXELS + 1)
        logs = np.rint(counts * np.log2(np.maximum(counts, 1)) * (1 << 20)).astype(np.int64)
        self._logs = torch.from_numpy(logs).to(device.place)

    def compute(self, texture: MipTexture, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Channels float32 [13, rows, cols] and entropy float32 [rows, cols], in the current context."""
        rows, cols = self._grid.shape
        channels = self._device.empty((CHANNELS, rows, cols), torch.float32)
        entropy = self._device.empty((rows, cols), torch.float32)
        tables = (self._places.data_ptr(), self._logs.data_ptr())
        launch = self._device.kernels.launch
        launch("tile_channels", (cols, rows), stream, texture.handle, *tables, channels.data_ptr(), entropy.data_ptr())
        launch("cluster_distance", (1, 1), stream, texture.handle, rows, cols, channels[-1].data_ptr())
        return channels, entropy
