"""The store on CUDA.

Frames in host memory are compared and converted on the host, so that bytes stay those of the CPU store; their
dirty tiles are packed into pinned memory, copied at once, and written on all levels by one kernel. Frames that are CUDA
tensors are compared and taken on the device. Readers on the device sample the texture into tensors; readers on the host
get what changed since they last looked.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.cuda.device import CudaDevice, device_at, find_device, torch_failures
from arr_coc.backends.cuda.frames import DeviceFrame, FrameUploader
from arr_coc.backends.cuda.memory import (
    AT_ONCE,
    FINE_BYTES,
    DeviceTexture,
    HostMirror,
    MipTexture,
    StagingBuffer,
    StagingRing,
    StreamOrder,
    TextureHandles,
    put_places,
    room_for,
)
from arr_coc.backends.cuda.view import ChannelKernels, CudaTexels, CudaView
from arr_coc.errors import StoreError
from arr_coc.texture.packing import TilePacker
from arr_coc.texture.store.base import BaseTextureStore
from arr_coc.texture.store.planes import Difference, Mask, Plane, PlaneFormat, Thresholds
from arr_coc.types import TILE_PX, FramePlanes, FrameStamp, TileChange


class CudaStore(BaseTextureStore):
    """A texture on CUDA device `index`, by default torch's current one when the store is opened.

    Work is given to the current stream of the thread that asks for it; events keep streams in order.
    """

    backend = "cuda"

    def __init__(
        self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, index: int | None = None
    ) -> None:
        """Raise BackendMissing without a CUDA device, its driver or torch with CUDA, or if it has no textures of this
        size; DeviceLost if the device has no memory for the texture.
        """
        if index is None:
            self._device = find_device()
        else:
            self._device = device_at(index)
        self._thresholds = thresholds
        self._packer = TilePacker()
        self._device.check_size(fmt.grid.padded_width_px, fmt.grid.padded_height_px)
        super().__init__(fmt, thresholds, lease_timeout_ms, levels=1)
        resources = ExitStack()
        self._finalizer = weakref.finalize(self, _free, self._device, resources)
        self._finalizer.atexit = False
        try:
            with self._device.current() as stream, torch_failures("opening a texture store"):
                self._open(resources)
                # Torch gave memory that only this stream's earlier work has done with.
                self._order.after_write(stream)
        except StoreError:
            self._finalizer()
            raise

    @property
    def hardware(self) -> str:
        return f"CUDA device {self._device.index}"

    @property
    def _level0(self) -> Plane:
        return self._host.read(0)

    @property
    def held_planes(self) -> FramePlanes:
        self._catch_up()
        return super().held_planes

    def compare(self, planes: FramePlanes) -> Difference:
        self._catch_up()
        return super().compare(planes)

    @property
    def place(self) -> torch.device:
        """The device that frames as tensors have to lie on."""
        return self._device.place

    def compare_tensor(self, frame: torch.Tensor) -> Difference:
        """Compare a frame that is on the device: uint8 [H, W, 3] or [3, H, W], RGB, with any strides.

        For stores of layout `rgb` (`tensors.format_of`), with the same thresholds and rules as for frames in ordinary
        memory. Only the map of changes comes to the host. Raises ShapeError if the tensor has another shape, dtype or
        device, DeviceLost if the device failed, StoreError once the store is closed.
        """
        self._check_not_freed()
        device_frame = DeviceFrame.of(frame, self.format, self._device)
        if self._stamp is None:
            return Difference.everywhere(self.grid)
        return Difference(self._uploader.compare(device_frame, self._thresholds))

    def write_tensor(self, frame: torch.Tensor, difference: Difference, stamp: FrameStamp) -> TileChange:
        """Write the tiles that differ from a frame on the device, as `write` does from planes.

        The frame may be overwritten by later work on its stream, if that is the thread's current one.

        Args:
            frame: As `compare_tensor`.
            difference: What `compare_tensor` returned for the frame.
            stamp: The frame's stamp.

        Raises:
            LeaseTimeout: As `write`.
            ShapeError, DeviceLost, StoreError: As `compare_tensor`.
        """
        self._check_not_freed()
        device_frame = DeviceFrame.of(frame, self.format, self._device)
        if self._begins(stamp):
            dirty = np.ones(self.grid.shape, bool)
        else:
            dirty = difference.dirty
        with self._writing():
            if dirty.any():
                self._uploader.write(device_frame, dirty)
                self._mirror.note(dirty, level0=True)
            self._note(dirty, stamp)
        return TileChange(stamp, dirty)

    def update_tensor(self, frame: torch.Tensor, stamp: FrameStamp) -> TileChange:
        """Compare and write a frame that is on the device. Raises what `write_tensor` raises."""
        return self.write_tensor(frame, self.compare_tensor(frame), stamp)

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[CudaView]:
        """As any store's, with a view that also gives what stays on the device.

        An error of torch's on the device, inside, is raised as DeviceLost.
        """
        with super().lease(timeout_ms) as view:
            cuda_view = CudaView(view.stamp, view.grid, view.versions, self._texels())
            try:
                with torch_failures("working with a texture's tensors"):
                    yield cuda_view
            finally:
                cuda_view.release()

    def _open(self, resources: ExitStack) -> None:
        self._device.kernels.load()
        self._order = StreamOrder(resources)
        self._texture = self._make_texture(resources)
        room = room_for(min(AT_ONCE, self.grid.tiles))
        # parts of the ring: one is filled while two are on their way
        self._ring = StagingRing(self._device, 3, room, resources)
        self._uploader = FrameUploader(self._device, self._texture, self.grid, self._order, resources)
        slot = StagingBuffer(self._device, room, resources)
        self._mirror = HostMirror(self._device, self._texture, self._order, slot, self._level0)
        self._channels = ChannelKernels(self._device, self.grid)
        resources.callback(self._order.wait)  # before all that is freed

    def _make_texture(self, resources: ExitStack) -> DeviceTexture:
        """Return a new texture, freed by `resources`. In the device's context. Raises DeviceLost."""
        return MipTexture(self.grid, resources)

    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        self._host.update(planes, dirty)
        self.send(np.argwhere(dirty))

    def send(self, tiles: npt.NDArray[np.intp]) -> None:
        """Copy tiles int [n, 2] (row, col) of the host's level 0 to the device, on all levels. `write` calls it.

        Raises DeviceLost if the device failed, StoreError once the texture was freed.
        """
        self._check_not_freed()
        with self._texture.mapped() as texture, self._device.current() as stream, self._order.writing(stream):
            for start in range(0, len(tiles), AT_ONCE):
                self._upload(tiles[start : start + AT_ONCE], texture, stream)
        self._mirror.note(tiles, level0=False)

    def _upload(self, tiles: npt.NDArray[np.intp], texture: TextureHandles, stream: int) -> None:
        """Pack tiles int [n, 2] of level 0, copy them, and have them written on all levels."""
        slot = self._ring.take()
        count = len(tiles)
        start = put_places(slot, tiles)
        end = start + count * FINE_BYTES
        self._packer.pack(self._level0, tiles, slot.host[start:end].reshape(count, TILE_PX, TILE_PX, 3))
        slot.upload(end, stream)
        places = slot.device
        texels = slot.device + start
        self._device.kernels.launch("upload_tiles", (count, 1), stream, texels, places, *texture.surfaces)
        slot.mark(stream)

    def _texels(self) -> CudaTexels:
        return CudaTexels(self._device, self._texture, self._order, self._mirror, self._channels)

    def _catch_up(self) -> None:
        """Copy to the host, for comparison, the tiles that only the device has."""
        if self.format.layout == "rgb" and self._finalizer.alive:
            self._mirror.read(0)

    def _check_not_freed(self) -> None:
        if not self._finalizer.alive:
            raise StoreError("the texture store is closed")

    def _free(self) -> None:
        self._finalizer()


def _free(device: CudaDevice, resources: ExitStack) -> None:
    """Free what a store made on the device, once the device has done with it. What cannot be freed went with it."""
    with suppress(StoreError), device.current():
        resources.close()
