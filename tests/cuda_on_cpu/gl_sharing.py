"""Textures of real OpenGL (Mesa serves) on the CUDA device that is the CPU.

The two share no memory, so texels are copied from the one to the other whenever CUDA maps or unmaps the texture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.backends.cuda import interop
from arr_coc.backends.gl import device as gl_device
from arr_coc.backends.gl import store as gl_store
from arr_coc.backends.gl.device import GlDevice
from arr_coc.types import LEVELS
from stream.extensions.doctor.gpu.sharing import gl_level
from tests.cuda_on_cpu.machine import CpuMachine


def put_level(gl: GlDevice, name: int, level: int, texels: npt.NDArray[np.uint8]) -> None:
    """Give a texture of OpenGL the texels uint8 [height, width, 4]."""
    with gl.current():
        names = gl.library.gl
        box = (0, 0, texels.shape[1], texels.shape[0])
        names.glTextureSubImage2D(
            name, level, *box, names.GL_RGBA, names.GL_UNSIGNED_BYTE, np.ascontiguousarray(texels)
        )
        names.glFinish()


SHARES = ("cuGraphicsMapResources", "cuGraphicsUnmapResources")


def share_textures(machine: CpuMachine, set_attribute: Callable[[object, str, object], None]) -> None:
    """Register textures of GL, and their texels, with the device, as a driver for both would do."""
    gl = gl_device.open_device()
    sizes: dict[int, tuple[int, int]] = {}

    def open_device(cuda: int | None = None) -> GlDevice:
        return gl

    def living() -> list[tuple[int, tuple[int, int]]]:
        with gl.current():
            return [item for item in sizes.items() if gl.library.gl.glIsTexture(item[0])]

    def make_storage(name: int, levels: int, form: int, width: int, height: int) -> None:
        storage(name, levels, form, width, height)
        machine.add_gl_texture(int(name), width, height, levels)
        sizes[int(name)] = width, height

    def call(name: str, *arguments: Any) -> Any:
        result = None if name == "cuGraphicsMapResources" else driver(name, *arguments)
        for texture, (width, height) in living() if name in SHARES else ():
            for level in range(LEVELS):
                shape = height >> level, width >> level
                texels = machine.gl_texels(texture, level, *shape[::-1])
                if name == "cuGraphicsMapResources":
                    texels[:] = gl_level(gl, texture, level, *shape)
                else:
                    put_level(gl, texture, level, texels)
        return driver(name, *arguments) if name == "cuGraphicsMapResources" else result

    storage, driver = gl.library.gl.glTextureStorage2D, interop.call
    set_attribute(gl_device, "open_device", open_device)
    set_attribute(interop, "open_device", open_device)
    set_attribute(gl_store, "open_device", open_device)
    set_attribute(gl.library.gl, "glTextureStorage2D", make_storage)
    set_attribute(interop, "call", call)
