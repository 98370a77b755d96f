"""Loader of the EGL and OpenGL libraries, and constants.

PyOpenGL makes contexts, objects and programs. What runs every frame goes through function pointers: a call through
PyOpenGL costs about five times as much. Pointers to quick calls keep the interpreter's lock, because taking it back
may last 5 ms beside a busy thread; those that work or wait (`HEAVY`) let it go.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_int, c_uint, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from arr_coc.errors import BackendMissing

EGL_FILE = "libEGL.so.1"

REMEDY = (
    "install a graphics driver, or software OpenGL (Debian: apt install libegl1 libgl1-mesa-dri libopengl0), "
    "or choose texture.backend = cpu"
)

c_sync = c_void_p
c_offset = ctypes.c_ssize_t
c_size = ctypes.c_ssize_t

QUICK: dict[str, tuple[Any, ...]] = {
    "glBindBuffer": (None, c_uint, c_uint),
    "glBindBufferRange": (None, c_uint, c_uint, c_uint, c_offset, c_size),
    "glBindImageTexture": (None, c_uint, c_uint, c_int, ctypes.c_ubyte, c_int, c_uint, c_uint),
    "glBindSampler": (None, c_uint, c_uint),
    "glBindTextureUnit": (None, c_uint, c_uint),
    "glDeleteSync": (None, c_sync),
    "glFenceSync": (c_sync, c_uint, c_uint),
    "glGetError": (c_uint,),
    "glGetGraphicsResetStatus": (c_uint,),
    "glMemoryBarrier": (None, c_uint),
    "glUseProgram": (None, c_uint),
    "glWaitSync": (None, c_sync, c_uint, ctypes.c_uint64),
    "eglGetCurrentContext": (c_void_p,),
    "eglGetCurrentDisplay": (c_void_p,),
    "eglGetCurrentSurface": (c_void_p, c_int),
}

HEAVY: dict[str, tuple[Any, ...]] = {
    "glClientWaitSync": (c_uint, c_sync, c_uint, ctypes.c_uint64),
    "glDispatchCompute": (None, c_uint, c_uint, c_uint),
    "glFlush": (None,),
    "glGetNamedBufferSubData": (None, c_uint, c_offset, c_size, c_void_p),
    "glGetTextureSubImage": (None, c_uint, *[c_int] * 7, c_uint, c_uint, c_int, c_void_p),
    "glNamedBufferSubData": (None, c_uint, c_offset, c_size, c_void_p),
    "glTextureSubImage2D": (None, c_uint, *[c_int] * 5, c_uint, c_uint, c_void_p),
    "eglDestroyContext": (c_uint, c_void_p, c_void_p),
    "eglMakeCurrent": (c_uint, c_void_p, c_void_p, c_void_p, c_void_p),
}


@dataclass(frozen=True, slots=True)
class GlLibrary:
    """`egl` and `gl` are PyOpenGL's modules; `calls` has the functions of `QUICK` and `HEAVY`."""

    egl: Any
    gl: Any
    calls: SimpleNamespace


@lru_cache(maxsize=1)
def load() -> GlLibrary:
    """Return the libraries of this process. Raises BackendMissing if one is missing or was loaded for a screen."""
    try:
        handle = ctypes.CDLL(EGL_FILE)
    except OSError as error:
        raise BackendMissing(f"texture.backend = gl needs EGL, and {EGL_FILE} is not here", REMEDY) from error
    # PyOpenGL decides at its first import for the whole process
    if "OpenGL" not in sys.modules:
        os.environ["PYOPENGL_PLATFORM"] = "egl"
    try:
        from OpenGL import EGL, GL, platform
    except (ImportError, AttributeError, TypeError, OSError) as error:  # as it comes from PyOpenGL without a library
        raise BackendMissing(f"texture.backend = gl: PyOpenGL finds no EGL and OpenGL ({error})", REMEDY) from error
    if (platform_name := type(platform.PLATFORM).__name__) != "EGLPlatform":
        raise BackendMissing(
            f"texture.backend = gl needs PyOpenGL on EGL, and this process has loaded it on {platform_name}",
            "set PYOPENGL_PLATFORM=egl before anything imports OpenGL",
        )
    address = handle.eglGetProcAddress
    address.restype = c_void_p
    address.argtypes = [ctypes.c_char_p]
    calls = SimpleNamespace()
    for table, prototype in ((QUICK, ctypes.PYFUNCTYPE), (HEAVY, ctypes.CFUNCTYPE)):
        for name, signature in table.items():
            if not (pointer := address(name.encode())):
                raise BackendMissing(f"{EGL_FILE} does not know {name}, which OpenGL 4.5 has", REMEDY)
            setattr(calls, name, prototype(*signature)(pointer))
    return GlLibrary(EGL, GL, calls)


RGBA = 0x1908
UNSIGNED_BYTE = 0x1401
R32UI = 0x8236
READ_ONLY = 0x88B8
WRITE_ONLY = 0x88B9
PIXEL_PACK_BUFFER = 0x88EB
PIXEL_UNPACK_BUFFER = 0x88EC
SHADER_STORAGE_BUFFER = 0x90D2

TEXTURE_FETCH_BARRIER = 0x0008
SHADER_IMAGE_ACCESS_BARRIER = 0x0020
TEXTURE_UPDATE_BARRIER = 0x0100
BUFFER_UPDATE_BARRIER = 0x0200
SHADER_STORAGE_BARRIER = 0x2000
CLIENT_MAPPED_BUFFER_BARRIER = 0x4000

SYNC_GPU_COMMANDS_COMPLETE = 0x9117
SYNC_FLUSH_COMMANDS = 0x0001
TIMEOUT_EXPIRED = 0x911B
WAIT_FAILED = 0x911D
TIMEOUT_IGNORED = 0xFFFFFFFFFFFFFFFF
