"""Textures of several cameras of one size in one array of OpenGL (GL_TEXTURE_2D_ARRAY), one layer a camera.

A program that draws or samples all cameras binds one texture. Frames that come together are uploaded together: one part
of the ring, one fence, and one dispatch for the mipmaps of all of them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from arr_coc.backends.gl.buffers import Fence, GlResource, UploadRing, align
from arr_coc.backends.gl.device import GlDevice, open_device
from arr_coc.backends.gl.library import (
    PIXEL_UNPACK_BUFFER,
    R32UI,
    RGBA,
    SHADER_IMAGE_ACCESS_BARRIER,
    SHADER_STORAGE_BUFFER,
    TEXTURE_FETCH_BARRIER,
    TEXTURE_UPDATE_BARRIER,
    UNSIGNED_BYTE,
    WRITE_ONLY,
)
from arr_coc.backends.gl.store import GlStore
from arr_coc.backends.gl.texture import MOST_TILES_AT_ONCE, TileTexture, program
from arr_coc.backends.gl.upload import (
    FOUR_TEXELS,
    RECORD_BYTES,
    TILE_BYTES,
    Records,
    UploadPlan,
    lay_out,
    upload_bytes,
)
from arr_coc.errors import BackendMissing, ShapeError
from arr_coc.texture.packing import TilePacker
from arr_coc.texture.store.base import LEASE_TIMEOUT_MS, DrawnTexture
from arr_coc.texture.store.planes import Difference, Mask, Plane, PlaneFormat, Thresholds
from arr_coc.types import LEVELS, TILE_PX, FramePlanes, FrameStamp, TileChange, TileGrid

LAYER_SHIFT = 16
"""A tile's layer is in the upper half of its row, as kernels/tile_mips.comp has it."""


@dataclass(frozen=True, slots=True)
class LayerUpload:
    """Change of one layer: its number, level 0 uint8 [rows * 32, cols * 32, 3], and the plan."""

    layer: int
    level0: Plane
    plan: UploadPlan


class TextureLayers(GlResource):
    """RGBA8 [layers, rows * 32, cols * 32] of six levels: `name` of the array, and `textures`, each layer by itself."""

    def __init__(self, device: GlDevice, grid: TileGrid, count: int) -> None:
        """Raise BackendMissing if the device has no array of this size, DeviceLost if memory is short."""
        rows, cols = grid.shape
        self._device = device
        self._packer = TilePacker()
        self._lock = threading.Lock()
        gl = device.library.gl
        names = (ctypes.c_uint * 2)()
        buffer_texture = ctypes.c_uint()
        with device.current():
            most = int(gl.glGetIntegerv(gl.GL_MAX_ARRAY_TEXTURE_LAYERS))
            if count > most:
                raise BackendMissing(
                    f"{device.renderer} takes arrays of up to {most} textures, got {count} cameras",
                    "open several arrays, or a store for each camera",
                )
            with device.creating(f"{count} textures of {cols * TILE_PX}x{rows * TILE_PX} texels"):
                gl.glGenTextures(2, names)
                gl.glCreateTextures(gl.GL_TEXTURE_BUFFER, 1, buffer_texture)
                self.name = names[0]
                self._words = names[1]
                self._texels = buffer_texture.value
                super().__init__(device, "glDeleteTextures", (self.name, self._words, self._texels))
                gl.glBindTexture(gl.GL_TEXTURE_2D_ARRAY, self.name)  # from here on a name is that of a texture
                gl.glTextureStorage3D(self.name, LEVELS, gl.GL_RGBA8, cols * TILE_PX, rows * TILE_PX, count)
                gl.glTextureView(self._words, gl.GL_TEXTURE_2D_ARRAY, self.name, gl.GL_R32UI, 0, LEVELS, 0, count)
                frames = count * (grid.tiles * (TILE_BYTES + 2 * RECORD_BYTES) + 8192)
                self._ring = UploadRing(device, max(frames, min(256 << 20, 2 * frames)))
                if self._ring.capacity // FOUR_TEXELS > gl.glGetIntegerv(gl.GL_MAX_TEXTURE_BUFFER_SIZE):
                    raise BackendMissing(
                        f"{device.renderer} reads no buffer of {self._ring.capacity} bytes", "open fewer cameras"
                    )
                gl.glTextureBuffer(self._texels, gl.GL_RGBA32UI, self._ring.name)
            self.textures = tuple(
                TileTexture(device, rows, cols, uploads=False, layer=(self.name, number)) for number in range(count)
            )
            device.check("making an array of textures")

    def paint(self, uploads: Sequence[LayerUpload]) -> None:
        """Update all levels of some layers from their level 0, each once. Raises DeviceLost."""
        copies = self._device.software
        calls = self._device.library.calls
        with self._lock, self._device.current():
            for upload in uploads:
                self.textures[upload.layer].order()
                self.textures[upload.layer].order_draws()
            sizes = [align(upload_bytes(upload.plan)) for upload in uploads]
            # beside each part's own records, which lack the layer, those of all parts: of blocks, and of strips
            tiles = sum(len(upload.plan.strip) for upload in uploads)
            tiles += sum(len(block.dirty) for upload in uploads for block in upload.plan.blocks)
            slot = self._ring.take(sum(sizes) + align(tiles * RECORD_BYTES) + align(1))
            blocks: list[Records] = []
            strips: list[Records] = []
            start = 0
            calls.glBindBuffer(PIXEL_UNPACK_BUFFER, self._ring.name)
            for upload, size in zip(uploads, sizes, strict=True):
                memory = slot.memory[start : start + size]
                layout = lay_out(upload.level0, upload.plan, memory, slot.offset + start, self._packer)
                start += size
                for copy in layout.copies if copies else ():
                    row0, col0, row1, col1 = (edge * TILE_PX for edge in copy.block.rectangle)
                    box = (col0, row0, col1 - col0, row1 - row0)
                    name = self.textures[upload.layer].name
                    calls.glTextureSubImage2D(name, 0, *box, RGBA, UNSIGNED_BYTE, copy.offset)
                for records, parts in ((layout.blocks, blocks), (layout.strip, strips)):
                    records[:, 0] |= np.uint32(upload.layer << LAYER_SHIFT)
                    parts.append(records)
            calls.glBindBuffer(PIXEL_UNPACK_BUFFER, 0)
            calls.glBindTextureUnit(0, self._texels)
            for level in range(LEVELS):
                calls.glBindImageTexture(level, self._words, level, True, 0, WRITE_ONLY, R32UI)
            for parts, store_level0 in ((blocks, not copies), (strips, True)):
                records = np.concatenate(parts)
                slot.memory[start : start + records.nbytes] = records.view(np.uint8).ravel()
                self._dispatch(slot.offset + start, len(records), store_level0)
                start += align(records.nbytes)
            calls.glMemoryBarrier(TEXTURE_FETCH_BARRIER | SHADER_IMAGE_ACCESS_BARRIER | TEXTURE_UPDATE_BARRIER)
            fence = Fence(self._device)
            self._ring.seal(fence)
            for upload in uploads:
                self.textures[upload.layer].mark_painted(fence)
            self._device.check("updating an array of textures")

    def release(self) -> None:
        """Free array and ring; textures of layers keep theirs until they are freed. May be called twice."""
        self._ring.release()
        super().release()

    def _dispatch(self, offset: int, count: int, store_level0: bool) -> None:
        calls = self._device.library.calls
        defines = ["LAYERS", *(["STORE_LEVEL_0"] if store_level0 else [])]
        for start in range(0, count, MOST_TILES_AT_ONCE):
            tiles = min(MOST_TILES_AT_ONCE, count - start)
            calls.glUseProgram(program(self._device, "tile_mips", *defines))
            place = offset + start * RECORD_BYTES
            calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 0, self._ring.name, place, tiles * RECORD_BYTES)
            calls.glDispatchCompute(tiles, 1, 1)


class GlLayer(GlStore):
    """The store of one camera, whose texture is a layer of an array. It may be used as any store."""

    def __init__(
        self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, layers: TextureLayers, number: int
    ) -> None:
        self._layers = layers
        self.layer = number
        super().__init__(fmt, thresholds, lease_timeout_ms)

    def _make_texture(self) -> TileTexture:
        return self._layers.textures[self.layer]

    @contextmanager
    def without_readers(self) -> Iterator[None]:
        """Hold readers off. Raises LeaseTimeout, with everything as it was, and StoreError once closed."""
        with self._using(), self._leases.writing(self._lease_timeout_ms):
            yield

    @contextmanager
    def writing(
        self, planes: FramePlanes, difference: Difference, stamp: FrameStamp
    ) -> Iterator[tuple[TileChange, LayerUpload | None]]:
        """Give what differs, which is painted inside, without readers; versions move at the end."""
        dirty = difference.dirty
        if self._begins(stamp):
            dirty = np.ones(self.grid.shape, bool)
        with self._noting_failure():
            upload = self._upload_of(planes, dirty) if dirty.any() else None
            yield TileChange(stamp, dirty), upload
            self._note(dirty, stamp)

    def _update_levels(self, planes: FramePlanes, dirty: Mask) -> None:
        self._layers.paint([self._upload_of(planes, dirty)])

    def _upload_of(self, planes: FramePlanes, dirty: Mask) -> LayerUpload:
        plan = self._convert(planes, dirty)
        return LayerUpload(self.layer, self._host.read(0), plan)


class GlLayers:
    """Textures of several cameras of one size: `stores`, one for each, in the array of textures `name`."""

    def __init__(
        self,
        fmt: PlaneFormat,
        cameras: int,
        thresholds: Thresholds | None = None,
        lease_timeout_ms: int = LEASE_TIMEOUT_MS,
    ) -> None:
        """Raise BackendMissing if OpenGL does not work here or has no such array, DeviceLost if memory is short."""
        if cameras < 1:
            raise ShapeError(f"an array has textures of 1 camera or more, got {cameras}")
        rules = thresholds or Thresholds()
        self._layers = TextureLayers(open_device(), fmt.grid, cameras)
        self.name = self._layers.name
        self.stores = tuple(GlLayer(fmt, rules, lease_timeout_ms, self._layers, number) for number in range(cameras))

    def update(self, frames: Sequence[FramePlanes], stamps: Sequence[FrameStamp]) -> list[TileChange]:
        """Compare and write a frame of each camera, all together.

        Readers of all textures are waited for, and wait meanwhile: none may hold one while it asks for another. Raises
        ShapeError for another number of frames than cameras, and what the stores' `write` raises.
        """
        if not len(frames) == len(stamps) == len(self.stores):
            raise ShapeError(f"an array of {len(self.stores)} cameras takes as many frames, got {len(frames)}")
        differences = [store.compare(planes) for store, planes in zip(self.stores, frames, strict=True)]
        with ExitStack() as stack:
            for store in self.stores:
                stack.enter_context(store.without_readers())
            parts = [
                stack.enter_context(store.writing(planes, difference, stamp))
                for store, planes, difference, stamp in zip(self.stores, frames, differences, stamps, strict=True)
            ]
            uploads = [upload for _, upload in parts if upload is not None]
            if uploads:
                self._layers.paint(uploads)
        return [change for change, _ in parts]

    @contextmanager
    def drawing(self, timeout_ms: int | None = None) -> Iterator[list[DrawnTexture]]:
        """Lease all textures for drawing from the array `name`, as a store's `drawing` does; their stamps and grids."""
        with ExitStack() as stack:
            yield [stack.enter_context(store.drawing(timeout_ms)) for store in self.stores]

    def close(self) -> None:
        """Close the stores. May be called twice."""
        for store in self.stores:
            store.close()
        self._layers.release()
