"""Which graphics device to draw on, without a screen.

Devices are listed by EGL_EXT_device_enumeration; EGL_NV_device_cuda says which CUDA device one is. Software comes
last, through Mesa's surfaceless platform, or as a device of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arr_coc.ops.gl.library import Library

PLATFORM_DEVICE = 0x313F
PLATFORM_SURFACELESS = 0x31DD
CUDA_DEVICE = 0x323A
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """An EGL display that may be initialised, and what to call it. `cuda` is the CUDA device's number, if it is one."""

    display: Any
    name: str
    cuda: int | None = None


def choices(library: Library) -> Iterator[Choice]:
    """Displays in the order in which they are worth trying: GPUs, then software."""
    listed = sorted(_list_devices(library), key=lambda found: (found[0], found[1].cuda is None, found[1].cuda or 0))
    yield from (choice for software, choice in listed if not software)
    if b"EGL_MESA_platform_surfaceless" in _client_extensions(library):
        yield Choice(_display(PLATFORM_SURFACELESS, None), "surfaceless")
    yield from (choice for software, choice in listed if software)


def _client_extensions(library: Library) -> list[bytes]:
    names: bytes | None = library.egl.eglQueryString(None, library.egl.EGL_EXTENSIONS)
    return (names or b"").split()


def _list_devices(library: Library) -> list[tuple[bool, Choice]]:
    """(Is it software, the device's display)."""
    known = _client_extensions(library)
    if not {b"EGL_EXT_device_base", b"EGL_EXT_platform_device"} & set(known):
        return []
    from OpenGL.EGL.EXT.device_enumeration import eglQueryDevicesEXT
    from OpenGL.EGL.EXT.device_query import eglQueryDeviceStringEXT

    handles, count = (library.egl.EGLDeviceEXT * MOST_DEVICES)(), ctypes.c_int()
    eglQueryDevicesEXT(MOST_DEVICES, handles, count)
    found = []
    for index in range(count.value):
        names = (eglQueryDeviceStringEXT(handles[index], library.egl.EGL_EXTENSIONS) or b"").split()
        cuda = _cuda_number(handles[index]) if b"EGL_NV_device_cuda" in names else None
        label = f"device {index}" if cuda is None else f"device {index} (CUDA {cuda})"
        found.append(
            (b"EGL_MESA_device_software" in names, Choice(_display(PLATFORM_DEVICE, handles[index]), label, cuda))
        )
    return found


def _cuda_number(handle: Any) -> int:
    from OpenGL.EGL.EXT.device_query import eglQueryDeviceAttribEXT

    number = ctypes.c_ssize_t()
    eglQueryDeviceAttribEXT(handle, CUDA_DEVICE, number)
    return number.value


def _display(platform: int, native: Any) -> Any:
    from OpenGL.EGL.EXT.platform_base import eglGetPlatformDisplayEXT

    return eglGetPlatformDisplayEXT(platform, native, None)
