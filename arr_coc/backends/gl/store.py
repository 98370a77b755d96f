"""`GlStore`, the OpenGL store, and its reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.device import open_device
from arr_coc.backends.gl.kernels import Floats, gather, read_back, sample, sample_along
from arr_coc.backends.gl.maps import CHANNEL_PLANES, CHANNELS, Map, TileMaps
from arr_coc.backends.gl.relevance import GlRelevance
from arr_coc.backends.gl.texture import TileTexture
from arr_coc.backends.gl.upload import UploadPlan, Way, cheaper, plan_upload
from arr_coc.errors import DeviceLost
from arr_coc.texture.packing import cover
from arr_coc.texture.store.base import BaseTextureStore, DrawnTexture, TextureView
from arr_coc.texture.store.planes import Difference, Mask, Plane, PlaneFormat, Thresholds
from arr_coc.texture.store.raster import allocate_levels
from arr_coc.texture.store.tensors import channels_last
from arr_coc.types import FramePlanes, FrameStamp, TileChange, TileGrid, TileVersions

if TYPE_CHECKING:
    import torch


class GlTexels:
    """Level 0 is the host's own copy, from which the texture was filled. Changed parts of the others are read back.

    Any number of threads read, none while the writer writes.
    """

    def __init__(self, texture: TileTexture, level0: Plane) -> None:
        rows, cols = texture.shape
        self.texture = texture
        self._maps: TileMaps | None = None
        self._levels = dict(enumerate(allocate_levels(rows, cols)))
        self._levels[0] = level0
        self._stale = np.zeros((rows, cols), bool)
        self._refresh_lock = threading.Lock()

    def mark_stale(self, dirty: Mask) -> None:
        """Record the tiles that the writer painted."""
        self._stale |= dirty

    def read(self, level: int) -> Plane:
        """One level that exists: uint8 [rows * 32 >> level, cols * 32 >> level, 3]."""
        if level:
            with self._refresh_lock:
                if self._stale.any():
                    # All levels at once: one wait for the device costs more than texels that are not needed. 100 tiles
                    # are what reading a rectangle costs beside its tiles: five levels, two calls each.
                    rectangles = cheaper(cover(self._stale), 100)
                    coarse = {level: pixels for level, pixels in self._levels.items() if level}
                    read_back(self.texture, rectangles, coarse)
                    self._stale[:] = False
        return self._levels[level]

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        """Return the pixels of regions [K, 3] (shape, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
        return gather(self.texture, regions)

    def sample(self, points: Floats) -> npt.NDArray[np.float32]:
        """Return the colours at points; see `arr_coc.backends.gl.kernels.sample`."""
        return sample(self.texture, points)

    def sample_along(self, points: Floats, footprints: Floats, width_px: float = 1.0) -> npt.NDArray[np.float32]:
        """Return the colours averaged along lines; see `arr_coc.backends.gl.kernels.sample_along`."""
        return sample_along(self.texture, points, footprints, width_px)

    def channels(self) -> Map:
        """Return the channels of `core13` and entropy: float32 [14, gh, gw]."""
        with self._refresh_lock, self.texture.device.current():
            if self._maps is None:
                self._maps = TileMaps(self.texture)
            self._maps.fill_channels()
            return self._maps.read(0, CHANNEL_PLANES)


class GlView(TextureView):
    """A texture view with more: relevance that stays on the device (`DeviceRelevance`)."""

    def __init__(self, stamp: FrameStamp, grid: TileGrid, versions: TileVersions, texels: GlTexels) -> None:
        super().__init__(stamp, grid, versions, texels)
        self._on_device = texels

    @property
    def texture(self) -> TileTexture:
        """The texture that the device reads. Raises StoreError after the lease has ended."""
        self._held()
        return self._on_device.texture

    def start_relevance(self, weights: Map, settings: Mapping[str, float]) -> GlRelevance:
        """Return the relevance of the texture's frames; see `GlRelevance`. Raises as `texture`, and DeviceLost."""
        return GlRelevance(self.texture, weights, settings)


class GlChannelView(GlView):
    """The same of a device that computes channels faster than the host (`DeviceChannels`)."""

    def texture_array(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the channels of profile `core13`, float32 [13, gh, gw], and the entropy, float32 [gh, gw], in host
        memory: the maps alone, not the levels that they are made from.

        They equal `arr_coc.relevance.channels.texture_array` bit for bit, but for saliency (within 2e-6). Raises
        StoreError after the lease has ended, DeviceLost if the device failed.
        """
        import torch  # takes a second, which a store that is only written to need not wait for

        self._held()
        maps = torch.from_numpy(self._on_device.channels())
        return maps[:CHANNELS], maps[CHANNELS]

    def luma(self) -> torch.Tensor:
        """Return the luma of level 1: float32 [16·gh, 16·gw] of whole numbers, 0…255. Raises as `texture_array`."""
        import torch

        return torch.from_numpy(cv2.cvtColor(self.read(1), cv2.COLOR_RGB2GRAY)).float()


class GlStore(BaseTextureStore):
    """A texture on a graphics device, with the same bytes as the CPU store's.

    Frames are converted on the host, whose level 0 stays there for its readers. Each thread that writes, or reads more
    than level 0, gets its own context, which ends with the thread. `way` fixes how dirty tiles are uploaded, for
    measuring; `last_way` is that of the last frame.
    """

    backend = "gl"

    def __init__(
        self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, cuda_device: int | None = None
    ) -> None:
        """`cuda_device`: the number of the CUDA device to draw on.

        Raises BackendMissing if no device supports OpenGL 4.5, DeviceLost if its memory does not suffice.
        """
        self.way: Way | None = None
        self.last_way: Way | None = None
        self.device = open_device(cuda_device)
        self.gives_channels = not self.device.software
        super().__init__(fmt, thresholds, lease_timeout_ms, levels=1)
        self._texture = self._make_texture()
        self._reader = GlTexels(self._texture, self._host.read(0))

    @property
    def hardware(self) -> str:
        major, minor = self.device.version
        return f"OpenGL {major}.{minor}, {self.device.renderer}{' (software)' if self.device.software else ''}"

    @property
    def place(self) -> torch.device:
        """The device that frames as tensors lie on: the host, which converts and uploads them."""
        import torch

        return torch.device("cpu")

    def compare_tensor(self, frame: torch.Tensor) -> Difference:
        """Compare a frame that is a tensor: uint8 [H, W, 3] or [3, H, W], RGB, with any strides.

        For stores of layout `rgb` (`tensors.format_of`). One on another device is copied to the host. Raises ShapeError
        if it has another shape or dtype.
        """
        return self.compare(self._planes_of(frame))

    def write_tensor(self, frame: torch.Tensor, difference: Difference, stamp: FrameStamp) -> TileChange:
        """Write the tiles that differ from a frame that is a tensor, as `write` does from planes.

        Args:
            frame: As `compare_tensor`.
            difference: What `compare_tensor` returned for the frame.
            stamp: The frame's stamp.

        Raises:
            ShapeError: As `compare_tensor`.
            LeaseTimeout, DeviceLost, StoreError: As `write`.
        """
        return self.write(self._planes_of(frame), difference, stamp)

    def update_tensor(self, frame: torch.Tensor, stamp: FrameStamp) -> TileChange:
        """Compare and write a frame that is a tensor. Raises what `write_tensor` raises."""
        return self.update(self._planes_of(frame), stamp)

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[GlView]:
        """As any store's, with a view of more."""
        kind = GlChannelView if self.gives_channels else GlView
        with super().lease(timeout_ms) as view:
            gl_view = kind(view.stamp, view.grid, view.versions, self._reader)
            try:
                yield gl_view
            finally:
                gl_view.release()

    @contextmanager
    def texels(self, timeout_ms: int | None = None) -> Iterator[GlTexels]:
        """Lease the reader of this backend, which also samples. Raises what `lease` raises."""
        with self.lease(timeout_ms):
            yield self._reader

    @contextmanager
    def drawing(self, timeout_ms: int | None = None) -> Iterator[DrawnTexture]:
        self.device.check_context()
        with BaseTextureStore.lease(self, timeout_ms) as view:
            self._texture.order()
            with self._texture.drawing():
                yield DrawnTexture(self._texture.name, view.stamp, view.grid)

    def _planes_of(self, frame: torch.Tensor) -> FramePlanes:
        pixels = channels_last(frame, self.format).cpu().numpy()
        return FramePlanes("rgb", (np.ascontiguousarray(pixels),))

    def _make_texture(self) -> TileTexture:
        """Return the texture. Raises BackendMissing, DeviceLost."""
        return TileTexture(self.device, *self.grid.shape)

    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        plan = self._convert(planes, dirty)
        self._texture.paint(self._host.read(0), plan)

    def _convert(self, planes: FramePlanes, dirty: Mask) -> UploadPlan:
        """Bring the host's level 0 up to date, and return how its dirty tiles are to be uploaded."""
        plan = plan_upload(cover(dirty), self.grid.shape, self.way)
        self._host.update(planes, dirty)
        self._reader.mark_stale(dirty)
        self.last_way = plan.way
        return plan

    def _texels(self) -> GlTexels:
        return self._reader

    def _free(self) -> None:
        self._texture.release()
        with suppress(DeviceLost):  # then the memory went with the device
            self.device.clear()
