"""Tiled texture of six levels, and the compute programs that fill it.

They take no uniforms, which would be shared as well: what a call is about lies in the buffers that it binds.

Level 0 arrives by plain copies if a CPU draws: llvmpipe copies a texel in 0.2 ns and takes 2 ns to store one from a
kernel. A GPU stores it in the same kernel that makes the other levels, which saves the calls. Measured with llvmpipe
at 1080p and 10 % of the tiles, on one core: mipmaps alone take 0.30 ms with 16 invocations a tile that read four texels
at a time through a buffer texture and store whole words. Storing normalised bytes takes 0.42, and 64 invocations take
0.52; if those read single texels, from a storage buffer or from level 0, 0.80. Level 0 adds 0.41 in the same kernel,
0.03 as copies.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from arr_coc.backends.gl.buffers import Fence, GlResource, RingSlice, UploadRing
from arr_coc.backends.gl.device import GlDevice
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
from arr_coc.backends.gl.upload import (
    FOUR_TEXELS,
    RECORD_BYTES,
    TILE_BYTES,
    Records,
    UploadPlan,
    lay_out,
    upload_bytes,
)
from arr_coc.errors import BackendMissing
from arr_coc.resources import kernel_folder
from arr_coc.texture.packing import TilePacker
from arr_coc.texture.store.planes import Plane
from arr_coc.types import LEVELS, TILE_PX

_programs: WeakKeyDictionary[GlDevice, dict[tuple[str, ...], int]] = WeakKeyDictionary()
_compile_lock = threading.Lock()


def program(device: GlDevice, kernel: str, *defines: str) -> int:
    """Return the program of `kernels/<kernel>.comp` with preprocessor symbols defined. Some context must be current.

    Raises BackendMissing if the source is missing or the driver does not compile it.
    """
    key = (kernel, *defines)
    with _compile_lock:
        programs = _programs.setdefault(device, {})
        if key not in programs:
            programs[key] = _compiled(device, kernel, source(kernel, *defines))
        return programs[key]


def source(kernel: str, *defines: str) -> str:
    """Return the source, its `#define`s after the line with the version. Raises BackendMissing if it is missing."""
    path = kernel_folder() / f"{kernel}.comp"
    try:
        version, _, rest = path.read_text(encoding="utf-8").partition("\n")
    except OSError as error:
        raise BackendMissing(
            f"texture.backend = gl needs {path}, which is not here", "run from a checkout, or install the package anew"
        ) from error
    return "\n".join([version, *(f"#define {define}" for define in defines), rest])


def _compiled(device: GlDevice, kernel: str, text: str) -> int:
    gl = device.library.gl
    with device.creating(f"the program {kernel}"):
        shader = gl.glCreateShader(gl.GL_COMPUTE_SHADER)
        name = gl.glCreateProgram()
        try:
            gl.glShaderSource(shader, [text])
            gl.glCompileShader(shader)
            if not gl.glGetShaderiv(shader, gl.GL_COMPILE_STATUS):
                raise _refused(device, kernel, gl.glGetShaderInfoLog(shader))
            gl.glAttachShader(name, shader)
            gl.glLinkProgram(name)
            if not gl.glGetProgramiv(name, gl.GL_LINK_STATUS):
                raise _refused(device, kernel, gl.glGetProgramInfoLog(name))
        except BackendMissing:
            gl.glDeleteProgram(name)
            raise
        finally:
            gl.glDeleteShader(shader)
    return int(name)


def _refused(device: GlDevice, kernel: str, log: Any) -> BackendMissing:
    if isinstance(log, bytes):
        text = log.decode(errors="replace")
    else:
        text = str(log)
    reason = (text.strip().splitlines() or ["no reason given"])[0]
    return BackendMissing(
        f"{device.renderer} does not compile {kernel}.comp ({reason})",
        "update its driver or choose texture.backend = cpu",
    )


MOST_TILES_AT_ONCE = 65520
"""Workgroups of one dispatch: what every device takes, and records that end at an aligned place."""


class TileTexture(GlResource):
    """RGBA8 [rows * 32, cols * 32] of six levels; `words` is the same texels as one uint32 each.

    One thread paints at a time; without `uploads` nothing but CUDA writes, which maps the texture. A reader in another
    context calls `order` first.
    """

    def __init__(
        self,
        device: GlDevice,
        rows: int,
        cols: int,
        frames_in_flight: int = 2,
        *,
        uploads: bool = True,
        layer: tuple[int, int] | None = None,
    ) -> None:
        """`layer`: the name of an array of textures, and the number of its layer that this texture is; None for one of
        its own.

        Raises BackendMissing if the device has no textures of this size, DeviceLost if memory is short.
        """
        self.device = device
        self.shape = (rows, cols)
        self._packer = TilePacker()
        self._write_fence: Fence | None = None
        self._draw_fences: deque[Fence] = deque()
        with device.current():
            side = int(device.library.gl.glGetIntegerv(device.library.gl.GL_MAX_TEXTURE_SIZE))
            if max(rows, cols) * TILE_PX > side:
                raise BackendMissing(
                    f"{device.renderer} takes textures of up to {side}x{side} texels, "
                    f"got {cols * TILE_PX}x{rows * TILE_PX}",
                    "choose a smaller picture or texture.backend = cpu",
                )
            self._make(layer)
            frame = rows * cols * (TILE_BYTES + RECORD_BYTES) + 4096
            self._ring = self._make_ring(max(frame, min(256 << 20, frames_in_flight * frame))) if uploads else None
            device.check("making a texture")

    @property
    def ring(self) -> UploadRing:
        """Memory of uploads."""
        assert self._ring is not None, "made without uploads"
        return self._ring

    def paint(self, level0: Plane, plan: UploadPlan, copy_level0: bool | None = None) -> None:
        """Update all levels from level 0.

        Args:
            level0: uint8 [rows * 32, cols * 32, 3].
            plan: The blocks and tiles to update.
            copy_level0: True if copies bring blocks to level 0, False if the kernel does; None is what suits the
                device.

        Raises:
            DeviceLost: The device failed.
        """
        if copy_level0 is None:
            copies = self.device.software
        else:
            copies = copy_level0
        with self.device.current():
            self.order()
            self.order_draws()
            slot = self.ring.take(upload_bytes(plan))
            layout = lay_out(level0, plan, slot.memory, slot.offset, self._packer)
            calls = self.device.library.calls
            if copies:
                calls.glBindBuffer(PIXEL_UNPACK_BUFFER, self.ring.name)
                for copy in layout.copies:
                    row0, col0, row1, col1 = (edge * TILE_PX for edge in copy.block.rectangle)
                    box = (col0, row0, col1 - col0, row1 - row0)
                    calls.glTextureSubImage2D(self.name, 0, *box, RGBA, UNSIGNED_BYTE, copy.offset)
                calls.glBindBuffer(PIXEL_UNPACK_BUFFER, 0)
            calls.glBindTextureUnit(0, self._texels)
            for level in range(LEVELS):
                calls.glBindImageTexture(level, self.words, level, False, 0, WRITE_ONLY, R32UI)
            self._dispatch(layout.blocks, slot, 0, not copies)
            self._dispatch(layout.strip, slot, layout.strip_offset, True)
            calls.glMemoryBarrier(TEXTURE_FETCH_BARRIER | SHADER_IMAGE_ACCESS_BARRIER | TEXTURE_UPDATE_BARRIER)
            self._write_fence = Fence(self.device)
            self.ring.seal(self._write_fence)
            self.device.check("updating the texture")

    def order(self) -> None:
        """Order this thread's later commands after the last painting."""
        if self._write_fence is not None:
            self._write_fence.order()

    def mark_painted(self, fence: Fence) -> None:
        """Record that commands before `fence` painted the texture."""
        self._write_fence = fence

    def order_draws(self) -> None:
        """Order this thread's later commands after the draws that were registered."""
        while self._draw_fences:
            self._draw_fences.popleft().order()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Commands inside, in the caller's context, draw from the texture; later painting comes after them, also if
        they end with an error. Raises StoreError if no context is current at their end."""
        try:
            yield
        finally:
            self.device.check_context()
            self._draw_fences.append(Fence(self.device))

    def release(self) -> None:
        """Free texture and ring. May be called twice."""
        if self._ring is not None:
            self._ring.release()
        super().release()

    def _make(self, layer: tuple[int, int] | None) -> None:
        gl, (rows, cols) = self.device.library.gl, self.shape
        names = (ctypes.c_uint * 2)()
        buffer_texture = ctypes.c_uint()
        with self.device.creating(f"a texture of {cols * TILE_PX}x{rows * TILE_PX} texels"):
            gl.glGenTextures(2, names)
            gl.glCreateTextures(gl.GL_TEXTURE_BUFFER, 1, buffer_texture)
            self.name = names[0]
            self.words = names[1]
            self._texels = buffer_texture.value
            super().__init__(self.device, "glDeleteTextures", (self.name, self.words, self._texels))
            if layer is None:
                gl.glBindTexture(gl.GL_TEXTURE_2D, self.name)  # from here on a name is that of a texture
                gl.glTextureStorage2D(self.name, LEVELS, gl.GL_RGBA8, cols * TILE_PX, rows * TILE_PX)
            else:
                array, number = layer
                gl.glTextureView(self.name, gl.GL_TEXTURE_2D, array, gl.GL_RGBA8, 0, LEVELS, number, 1)
            gl.glTextureView(self.words, gl.GL_TEXTURE_2D, self.name, gl.GL_R32UI, 0, LEVELS, 0, 1)
            gl.glTextureParameteri(self.words, gl.GL_TEXTURE_MIN_FILTER, gl.GL_NEAREST_MIPMAP_NEAREST)
            gl.glTextureParameteri(self.words, gl.GL_TEXTURE_MAG_FILTER, gl.GL_NEAREST)
            gl.glTextureParameteri(self.name, gl.GL_TEXTURE_MIN_FILTER, gl.GL_LINEAR_MIPMAP_LINEAR)
            gl.glTextureParameteri(self.name, gl.GL_TEXTURE_WRAP_S, gl.GL_CLAMP_TO_EDGE)
            gl.glTextureParameteri(self.name, gl.GL_TEXTURE_WRAP_T, gl.GL_CLAMP_TO_EDGE)
            self.anisotropy = self._set_anisotropy()

    def _set_anisotropy(self) -> float:
        """Return the largest that the device has: how many times longer than wide a footprint may be. Software has
        none."""
        gl = self.device.library.gl
        if self.device.software:
            return 1.0
        if self.device.version < (4, 6) and "GL_EXT_texture_filter_anisotropic" not in self.device.extensions():
            return 1.0
        largest = float(gl.glGetFloatv(gl.GL_MAX_TEXTURE_MAX_ANISOTROPY))
        gl.glTextureParameterf(self.name, gl.GL_TEXTURE_MAX_ANISOTROPY, largest)
        return largest

    def _make_ring(self, nbytes: int) -> UploadRing:
        gl = self.device.library.gl
        ring = UploadRing(self.device, nbytes)
        if ring.capacity // FOUR_TEXELS > gl.glGetIntegerv(gl.GL_MAX_TEXTURE_BUFFER_SIZE):
            raise BackendMissing(
                f"{self.device.renderer} reads no buffer of {ring.capacity} bytes", "choose texture.backend = cpu"
            )
        gl.glTextureBuffer(self._texels, gl.GL_RGBA32UI, ring.name)
        return ring

    def _dispatch(self, records: Records, slot: RingSlice, offset: int, store_level0: bool) -> None:
        calls = self.device.library.calls
        for start in range(0, len(records), MOST_TILES_AT_ONCE):
            count = min(MOST_TILES_AT_ONCE, len(records) - start)
            calls.glUseProgram(program(self.device, "tile_mips", *(["STORE_LEVEL_0"] if store_level0 else [])))
            place = slot.offset + offset + start * RECORD_BYTES
            calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 0, self.ring.name, place, count * RECORD_BYTES)
            calls.glDispatchCompute(count, 1, 1)
