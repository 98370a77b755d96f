"""Reader's view of a texture on CUDA: host arrays as from any store, and tensors and channels on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.cuda.device import CudaDevice, call
from arr_coc.backends.cuda.memory import DeviceTexture, HostMirror, StreamOrder, TextureHandles
from arr_coc.errors import OptionError, ShapeError
from arr_coc.texture.store.base import TextureView
from arr_coc.texture.store.planes import Plane
from arr_coc.types import REGION_SHAPES, TILE_PX, FrameStamp, TileGrid, TileVersions

CHANNELS = 13
TEXELS = 256
"""Texels of level 1 in a tile, which the histogram counts."""


class ChannelKernels:
    """Computation of the texture array of one grid: whole, because on a device that costs less than finding out what is
    stale."""

    def __init__(self, device: CudaDevice, grid: TileGrid) -> None:
        self._device = device
        self._grid = grid
        ends = (grid.rows, grid.cols)
        places = np.concatenate([np.linspace(0, 1, length, dtype=np.float32) for length in ends])
        self._places = torch.from_numpy(places).to(device.place)
        counts = np.arange(TEXELS + 1)
        logs = np.rint(counts * np.log2(np.maximum(counts, 1)) * (1 << 20)).astype(np.int64)
        self._logs = torch.from_numpy(logs).to(device.place)

    def compute(self, texture: TextureHandles, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Channels float32 [13, rows, cols] and entropy float32 [rows, cols], in the current context."""
        rows, cols = self._grid.shape
        channels = self._device.empty((CHANNELS, rows, cols), torch.float32)
        entropy = self._device.empty((rows, cols), torch.float32)
        tables = (self._places.data_ptr(), self._logs.data_ptr())
        launch = self._device.kernels.launch
        launch("tile_channels", (cols, rows), stream, texture.handle, *tables, channels.data_ptr(), entropy.data_ptr())
        launch("cluster_distance", (1, 1), stream, texture.handle, rows, cols, channels[-1].data_ptr())
        return channels, entropy


HALF_PX = TILE_PX // 2
THREADS = 256

DTYPES = (torch.uint8, torch.float16, torch.bfloat16)

Regions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CudaTexels:
    """Texels of one store's texture, for any thread."""

    device: CudaDevice
    texture: DeviceTexture
    order: StreamOrder
    levels: HostMirror
    channel_kernels: ChannelKernels

    def read(self, level: int) -> Plane:
        return self.levels.read(level)

    @contextmanager
    def _reading(self) -> Iterator[tuple[TextureHandles, int]]:
        """The texture, and the stream to read it in."""
        with self.texture.mapped() as texture, self.device.current() as stream, self.order.reading(stream):
            yield texture, stream

    def gather(self, regions: Regions) -> Plane:
        """Return the pixels of regions in host memory."""
        patches = self.patches(torch.from_numpy(regions), torch.uint8)
        host = np.empty(tuple(patches.shape), np.uint8)
        if host.size:
            with self.device.current() as stream:
                # into memory that is not pinned: returns when the copy is complete
                call("cuMemcpyDtoHAsync", host.ctypes.data, patches.data_ptr(), host.nbytes, stream)
                call("cuStreamSynchronize", stream)
        return host

    def patches(self, regions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the pixels of regions int64 [K, 3] on the device: [K, 3, 32, 32]."""
        count = len(regions)
        place = self.device.place
        out = self.device.empty((count, 3, TILE_PX, TILE_PX), dtype)
        if not count:
            return out
        regions = regions.to(place).contiguous()
        scales = shape_scales(place)
        if dtype == torch.uint8:
            name = "gather_bytes"
            target = [out.data_ptr()]
        else:
            name = "gather_halves"
            target = [normalised(dtype, place).data_ptr(), out.data_ptr()]
        with self._reading() as (texture, stream):
            tables = (regions.data_ptr(), scales.data_ptr(), len(scales))
            values = (texture.handle, *tables, texture.width_px, texture.height_px)
            self.device.kernels.launch(name, (count, 1), stream, *values, *target)
        return out

    def sample(self, points: torch.Tensor) -> torch.Tensor:
        """Return the colours at points [n, 3] (x, y, level): [n, 3]."""
        return self._sampled("sample_points", len(points), points.data_ptr())

    def sample_along(self, points: torch.Tensor, footprints: torch.Tensor, width_px: float) -> torch.Tensor:
        """Return the colours averaged over footprints: [n, 3]; see `CudaView.sample_along`."""
        return self._sampled("sample_footprints", len(points), points.data_ptr(), footprints.data_ptr(), width_px)

    def _sampled(self, kernel: str, count: int, *arguments: float) -> torch.Tensor:
        out = self.device.empty((count, 3), torch.float32)
        if count:
            with self._reading() as (texture, stream):
                values = (texture.smooth, *arguments, count, texture.width_px, texture.height_px, out.data_ptr())
                self.device.kernels.launch(kernel, (-(-count // THREADS), 1), stream, *values)
        return out

    def channels(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the thirteen channels and the entropy."""
        with self._reading() as (texture, stream):
            return self.channel_kernels.compute(texture, stream)


class CudaView(TextureView):
    """A texture view with more: what stays on the device."""

    def __init__(self, stamp: FrameStamp, grid: TileGrid, versions: TileVersions, texels: CudaTexels) -> None:
        super().__init__(stamp, grid, versions, texels)
        self._on_device: CudaTexels | None = texels

    def release(self) -> None:
        super().release()
        self._on_device = None

    def patches(
        self, regions: npt.NDArray[np.integer] | torch.Tensor, dtype: torch.dtype = torch.uint8
    ) -> torch.Tensor:
        """Return the pixels of regions [K, 3] (shape, row, col), which never visit the host: [K, 3, 32, 32] on the
        device.

        uint8 gives them as they are; float16 and bfloat16 in [−1, 1], as Qwen's preprocessing has them (mean and
        standard deviation 0.5). The tensor is ready in the order of the thread's current stream, and stays valid after
        the lease. Regions that lie on the device are not looked at: one outside the grid shows the nearest texels.

        Raises ShapeError if `regions` has another shape, or lies on the host and outside the grid, or if `dtype` is
        none of these; StoreError after the lease has ended, DeviceLost if the device failed.
        """
        if dtype not in DTYPES:
            raise ShapeError(f"patches are uint8, float16 or bfloat16, got {dtype}")
        texels = self._texels_for()
        place = texels.device.place
        if isinstance(regions, torch.Tensor) and (regions.device == place or regions.device.type != "cpu"):
            texels.device.check(regions, "the regions' tensor")
            if regions.ndim != 2 or regions.shape[1] != 3 or regions.dtype != torch.int64:
                raise ShapeError(f"regions on the device are int64 [K, 3], got {regions.dtype} {list(regions.shape)}")
            return texels.patches(regions, dtype)
        return texels.patches(torch.from_numpy(self._checked(np.asarray(regions))), dtype)

    def sample(self, points: torch.Tensor) -> torch.Tensor:
        """Return the colours at `points` float32 [n, 3] (x, y, level) on the device: float32 [n, 3] there, RGB of 0..1.

        x and y are in texels of level 0, whose centres lie at 0.5, 1.5…; beyond the edge its texels go on. Devices
        weigh texels with 8 bits: results lie within 2/255 of exact trilinear interpolation, and at texel centres are
        the texels. NaN gives any colour. Raises ShapeError for another shape, dtype or place, StoreError after the
        lease has ended, DeviceLost if the device failed.
        """
        return self._texels_for(points=(points, 3)).sample(points)

    def sample_along(self, points: torch.Tensor, footprints: torch.Tensor, width_px: float = 1.0) -> torch.Tensor:
        """Return the colours averaged over elongated footprints, such as a line of text: float32 [n, 3] on the device.

        Up to sixteen samples along the line are averaged (McCormack et al., "Feline: fast elliptical lines for
        anisotropic texture mapping", SIGGRAPH 1999): a smooth picture's results lie within 4/255 of the mean along the
        line.

        Args:
            points: Centres, float32 [n, 2] (x, y), in texels of level 0.
            footprints: Directions and lengths, float32 [n, 2] (dx, dy), in texels of level 0.
            width_px: Width across the line.

        Raises:
            OptionError: A width that is not positive.
            ShapeError: Tensors of another shape, dtype or place, or of different lengths.
            StoreError, DeviceLost: As `sample`.
        """
        if not 0 < width_px < float("inf"):
            raise OptionError(f"a footprint's width is a positive number of texels, got {width_px}")
        texels = self._texels_for(points=(points, 2), footprints=(footprints, 2))
        if len(points) != len(footprints):
            raise ShapeError(f"a footprint for each point: got {len(points)} points and {len(footprints)} footprints")
        return texels.sample_along(points, footprints, width_px)

    def texture_array(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the channels of profile `core13`, float32 [13, gh, gw], and the entropy, float32 [gh, gw], on the
        device.

        They equal `arr_coc.relevance.channels.texture_array` bit for bit, but for saliency (within 2e-6) and the
        distance to the nearest colour cluster (within 1e-3, which the host's own formula loses as well). Raises
        StoreError after the lease has ended, DeviceLost if the device failed.
        """
        return self._texels_for().channels()

    def luma(self) -> torch.Tensor:
        """Luma of level 1 on the device, rounded as cv2 rounds it: float32 [16·gh, 16·gw] of whole numbers, 0…255.

        Raises as `texture_array`.
        """
        rows, cols = self.grid.shape
        down = -(-rows // 2)
        right = -(-cols // 2)
        regions = np.stack([np.ones(down * right, np.int64), *np.divmod(np.arange(down * right), right)], axis=1)
        tiles = self.patches(regions).unflatten(0, (down, right)).permute(2, 0, 3, 1, 4)
        red, green, blue = tiles.flatten(3, 4).flatten(1, 2)[:, : rows * HALF_PX, : cols * HALF_PX].int()
        return ((red * 9798 + green * 19235 + blue * 3735 + (1 << 14)) >> 15).float()

    def _texels_for(self, **tensors: tuple[torch.Tensor, int]) -> CudaTexels:
        """Return the texels while the lease lasts, and tensors that kernels may read: each with its number of
        columns."""
        self._held()
        assert self._on_device is not None
        for name, (tensor, columns) in tensors.items():
            self._on_device.device.check(tensor, f"the tensor of {name}")
            shape = tuple(tensor.shape)
            if shape[1:] != (columns,) or tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise ShapeError(f"{name} are contiguous float32 [n, {columns}], got {tensor.dtype} {list(shape)}")
        return self._on_device


@cache
def shape_scales(place: torch.device) -> torch.Tensor:
    """Return the table of region shapes on a device: int32 [shapes, 2], made once."""
    return torch.tensor(REGION_SHAPES, dtype=torch.int32).to(place)


@cache
def normalised(dtype: torch.dtype, place: torch.device) -> torch.Tensor:
    """Return the normalised value of each byte and primary: [3, 256] in [−1, 1], made once."""
    values = (torch.arange(256, dtype=torch.float32) / 255 - 0.5) / 0.5
    return values.to(dtype).expand(3, 256).contiguous().to(place)
