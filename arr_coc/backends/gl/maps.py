"""Maps of tiles in the memory of a device of OpenGL, which compute shaders fill from a texture and from each other.

They stay there from kernel to kernel; the host asks for those that it needs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.buffers import StorageBuffer
from arr_coc.backends.gl.library import BUFFER_UPDATE_BARRIER, SHADER_STORAGE_BARRIER, SHADER_STORAGE_BUFFER
from arr_coc.backends.gl.texture import TileTexture, program

Map = npt.NDArray[np.float32]

CHANNELS = 13
CHANNEL_PLANES = CHANNELS + 1
"""The channels of `core13`, and entropy."""

PLACES = 3
"""Channels 3 and 4, which no kernel writes."""

TEXELS = 256
"""Texels of level 1 in a tile, which the histogram counts."""


class TileMaps:
    """`planes` maps float32 [gh, gw] of a texture's tiles: the channels of `core13`, entropy, and others; used by one
    thread at a time."""

    def __init__(self, texture: TileTexture, planes: int = CHANNEL_PLANES) -> None:
        """Raise DeviceLost if the device lacks the memory."""
        counts = np.arange(TEXELS + 1)
        logs = np.rint(counts * np.log2(np.maximum(counts, 1)) * (1 << 20)).astype(np.uint32)
        ends = (np.linspace(0, 1, length, dtype=np.float32) for length in texture.shape)
        places = np.stack(np.meshgrid(*ends, indexing="ij"))
        self.texture = texture
        self._device = texture.device
        self._plane_bytes = texture.shape[0] * texture.shape[1] * 4
        with self._device.current():
            self._maps = StorageBuffer(self._device, planes * self._plane_bytes)
            self._logs = StorageBuffer(self._device, logs.nbytes)
            self._logs.write(logs)
            self.put(PLACES, places)

    def put(self, plane: int, values: Map) -> None:
        """Write maps [gh, gw] or [n, gh, gw] from `plane` on. Some context must be current."""
        self._maps.write(np.ascontiguousarray(values, np.float32), plane * self._plane_bytes)

    def read(self, plane: int, count: int) -> Map:
        """Return `count` maps from `plane` on, in host memory: float32 [count, gh, gw]. Raises DeviceLost."""
        values = np.empty((count, *self.texture.shape), np.float32)
        with self._device.current():
            self._maps.read(values, plane * self._plane_bytes, "reading maps")
        return values

    def run(self, kernel: str, groups: tuple[int, int], *buffers: StorageBuffer) -> None:
        """Start workgroups of a kernel that sees the texture, these maps as storage buffer 0, and further buffers.

        The texture's last painting comes before it. Some context must be current.
        """
        calls = self._device.library.calls
        calls.glUseProgram(program(self._device, kernel))
        calls.glBindTextureUnit(0, self.texture.words)
        for index, buffer in enumerate((self._maps, *buffers)):
            calls.glBindBufferRange(SHADER_STORAGE_BUFFER, index, buffer.name, 0, buffer.nbytes)
        calls.glDispatchCompute(*groups, 1)
        calls.glMemoryBarrier(SHADER_STORAGE_BARRIER | BUFFER_UPDATE_BARRIER)

    def fill_channels(self) -> None:
        """Start the kernels that make the channels and the entropy of all tiles. Some context must be current."""
        rows, cols = self.texture.shape
        self.texture.order()
        self.run("tile_channels", (cols, rows), self._logs)
        self.run("cluster_distance", (1, 1))

    def release(self) -> None:
        """Free the device's memory. May be called twice."""
        self._maps.release()
        self._logs.release()
