"""Graphics device without a screen: the choice of a display, and a context for each thread.

Devices are listed by EGL_EXT_device_enumeration; EGL_NV_device_cuda says which CUDA device one is. Software comes
last, through Mesa's surfaceless platform, or as a separate device.

The first context is never drawn with; it keeps the shared objects alive while threads come and go. A thread's own
context is made when it first needs one, and ends with the thread. OpenGL deletes objects only in a thread with a
context, so any thread may put a released one into a list; the next thread with a context deletes it.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from arr_coc.backends.gl.library import REMEDY, GlLibrary, load
from arr_coc.errors import BackendMissing, DeviceLost, StoreError

PLATFORM_DEVICE = 0x313F
PLATFORM_SURFACELESS = 0x31DD
CUDA_DEVICE = 0x323A
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class DisplayCandidate:
    """An EGL display that may be initialised, and what to call it. `cuda` is the CUDA device's number, if it is one."""

    display: Any
    name: str
    cuda: int | None = None


def display_candidates(library: GlLibrary) -> Iterator[DisplayCandidate]:
    """Displays in the order in which they are worth trying: GPUs, then software."""
    devices = sorted(
        _list_devices(library), key=lambda device: (device[0], device[1].cuda is None, device[1].cuda or 0)
    )
    yield from (choice for software, choice in devices if not software)
    if b"EGL_MESA_platform_surfaceless" in _client_extensions(library):
        yield DisplayCandidate(_display(PLATFORM_SURFACELESS, None), "surfaceless")
    yield from (choice for software, choice in devices if software)


def _client_extensions(library: GlLibrary) -> list[bytes]:
    names: bytes | None = library.egl.eglQueryString(None, library.egl.EGL_EXTENSIONS)
    return (names or b"").split()


def _list_devices(library: GlLibrary) -> list[tuple[bool, DisplayCandidate]]:
    """(Is it software, the device's display)."""
    extensions = _client_extensions(library)
    if not {b"EGL_EXT_device_base", b"EGL_EXT_platform_device"} & set(extensions):
        return []
    from OpenGL.EGL.EXT.device_enumeration import eglQueryDevicesEXT
    from OpenGL.EGL.EXT.device_query import eglQueryDeviceStringEXT

    handles = (library.egl.EGLDeviceEXT * MOST_DEVICES)()
    count = ctypes.c_int()
    eglQueryDevicesEXT(MOST_DEVICES, handles, count)
    devices = []
    for index in range(count.value):
        names = (eglQueryDeviceStringEXT(handles[index], library.egl.EGL_EXTENSIONS) or b"").split()
        if b"EGL_NV_device_cuda" in names:
            from OpenGL.EGL.EXT.device_query import eglQueryDeviceAttribEXT

            number = ctypes.c_ssize_t()
            eglQueryDeviceAttribEXT(handles[index], CUDA_DEVICE, number)
            cuda = number.value
        else:
            cuda = None
        if cuda is None:
            label = f"device {index}"
        else:
            label = f"device {index} (CUDA {cuda})"
        devices.append(
            (
                b"EGL_MESA_device_software" in names,
                DisplayCandidate(_display(PLATFORM_DEVICE, handles[index]), label, cuda),
            )
        )
    return devices


def _display(platform: int, native: Any) -> Any:
    from OpenGL.EGL.EXT.platform_base import eglGetPlatformDisplayEXT

    return eglGetPlatformDisplayEXT(platform, native, None)


VERSION = (4, 5)

_CORE_4_5 = (0x3098, 4, 0x30FB, 5, 0x30FD, 1)
_TOLD_OF_RESETS = (*_CORE_4_5, 0x31BD, 0x31BF)
"""EGL_KHR_create_context: major, minor, core profile; reset notification strategy: lose context on reset."""

_DRAW = 0x3059
_READ = 0x305A

SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swiftshader")

_ERRORS = {0x0500: "invalid enum", 0x0501: "invalid value", 0x0502: "invalid operation", 0x0506: "invalid framebuffer"}
_OUT_OF_MEMORY = 0x0505
_CONTEXT_LOST = 0x0507

Deletion = Callable[["GlDevice"], None]


class GlContext:
    """One thread's context. What belongs to the thread alone is kept in `scratch`, and goes with it."""

    def __init__(self, device: GlDevice, handle: int) -> None:
        self._calls = device.library.calls
        self._display = device.display
        self.handle = handle
        self.scratch: dict[str, Any] = {}

    def __del__(self) -> None:
        calls = self._calls
        if calls.eglGetCurrentContext() == self.handle:
            calls.eglMakeCurrent(self._display, None, None, None)
        calls.eglDestroyContext(self._display, self.handle)


class GlDevice:
    """Contexts that share textures, buffers, programs, samplers and fences.

    `renderer` is the driver's name; `software` whether a CPU draws. `loss_reason` is why it cannot be used any
    more.
    """

    def __init__(self, library: GlLibrary, choice: DisplayCandidate) -> None:
        """Raise BackendMissing if this display gives no OpenGL 4.5."""
        self.library = library
        self.name = choice.name
        self.cuda = choice.cuda
        self.display = _address(choice.display)
        self.loss_reason: str | None = None
        self._attributes: tuple[int, ...] = ()
        self._local = threading.local()
        self._deferred: deque[Deletion] = deque()
        self._pointer = choice.display
        self._root: Any = None
        try:
            library.egl.eglInitialize(choice.display, ctypes.c_long(), ctypes.c_long())
            self._root = self._first_context()
            with self.current():
                gl = self.library.gl
                self.version = int(gl.glGetIntegerv(gl.GL_MAJOR_VERSION)), int(gl.glGetIntegerv(gl.GL_MINOR_VERSION))
                self.renderer = library.gl.glGetString(library.gl.GL_RENDERER).decode()
        except library.egl.EGLError as error:
            raise BackendMissing(f"{choice.name}: {_egl_name(error)}") from error
        except DeviceLost as error:
            raise BackendMissing(f"{choice.name}: {error}") from error
        self.software = any(name in self.renderer.lower() for name in SOFTWARE)
        if self.version < VERSION:
            raise BackendMissing(
                f"{choice.name}: {self.renderer} has OpenGL {self.version[0]}.{self.version[1]}, and 4.5 is needed",
                "update its driver",
            )

    def __del__(self) -> None:
        if self._root is not None:
            self.library.calls.eglDestroyContext(self.display, _address(self._root))

    @contextmanager
    def current(self) -> Iterator[GlContext]:
        """This thread's context, current. Another one that was current is so again afterwards.

        Raises DeviceLost if the device was lost.
        """
        if self.loss_reason is not None:
            raise DeviceLost(self.loss_reason)
        context = self._context()
        calls = self.library.calls
        before = calls.eglGetCurrentContext()
        if before == context.handle:
            self._sweep()
            yield context
            return
        others = before and (calls.eglGetCurrentDisplay(), *map(calls.eglGetCurrentSurface, (_DRAW, _READ)), before)
        if not calls.eglMakeCurrent(self.display, None, None, context.handle):
            raise self.mark_lost("the driver gives this thread no context")
        try:
            self._sweep()
            yield context
        finally:
            if others:
                calls.eglMakeCurrent(*others)

    def check_context(self) -> None:
        """Raise StoreError if no context is current in this thread."""
        if not self.library.calls.eglGetCurrentContext():
            raise StoreError("no OpenGL context is current to draw with; make one with GlDevice.make_context")

    def check(self, activity: str) -> None:
        """Check the last calls. Raises DeviceLost if the device was lost or is out of memory."""
        calls = self.library.calls
        error = calls.glGetError()
        if self._attributes == _TOLD_OF_RESETS and (status := calls.glGetGraphicsResetStatus()):
            raise self.mark_lost(f"{self.renderer} was reset ({status:#x}) while {activity}")
        if error:
            raise self.failure(error, activity)

    def failure(self, code: int, activity: str) -> StoreError:
        """Return the error for an OpenGL error code."""
        if code == _OUT_OF_MEMORY:
            return DeviceLost(f"{self.renderer} is out of memory while {activity}; close other textures or programs")
        if code == _CONTEXT_LOST:
            return self.mark_lost(f"{self.renderer} lost its context while {activity}")
        return StoreError(f"{self.renderer} refused {activity}: {_ERRORS.get(code, f'error {code:#x}')}")

    def mark_lost(self, reason: str) -> DeviceLost:
        """Mark the device as lost: nothing uses it any more, and the next store opens another."""
        self.loss_reason = f"{reason}; open a new store, or choose texture.backend = cpu"
        return DeviceLost(self.loss_reason)

    @contextmanager
    def creating(self, kind: str) -> Iterator[None]:
        """Convert PyOpenGL's errors into those of a store."""
        try:
            yield
        except self.library.gl.GLError as error:
            raise self.failure(int(error.err), f"making {kind}") from error

    def defer_delete(self, deletion: Deletion) -> None:
        """Has objects deleted by whichever thread comes by next. May be called anywhere, also by a finalizer."""
        self._deferred.append(deletion)

    def clear(self) -> None:
        """Delete released objects. Does nothing on a device that was lost, whose objects are gone."""
        if self.loss_reason is None:
            with self.current():
                pass

    def make_context(self) -> int:
        """Return the address of a new context that shares the device's objects."""
        return _address(self._new_context(self._root))

    def extensions(self) -> set[str]:
        """Return the names of the driver's extensions. Some context must be current."""
        gl = self.library.gl
        return {
            gl.glGetStringi(gl.GL_EXTENSIONS, index).decode() for index in range(gl.glGetIntegerv(gl.GL_NUM_EXTENSIONS))
        }

    def _sweep(self) -> None:
        while self._deferred:
            try:
                deletion = self._deferred.popleft()
            except IndexError:
                return
            deletion(self)

    def _context(self) -> GlContext:
        context: GlContext | None = getattr(self._local, "context", None)
        if context is None:
            try:
                context = self._local.context = GlContext(self, self.make_context())
            except self.library.egl.EGLError as error:
                raise self.mark_lost(f"the driver gives this thread no context ({_egl_name(error)})") from error
        return context

    def _first_context(self) -> Any:
        """With notice of resets if the driver supports it; of any version if it has no 4.5, to learn which."""
        for self._attributes in (_TOLD_OF_RESETS, _CORE_4_5):
            try:
                return self._new_context(None)
            except self.library.egl.EGLError:
                continue
        self._attributes = ()
        return self._new_context(None)

    def _new_context(self, shared: Any) -> Any:
        egl = self.library.egl
        egl.eglBindAPI(egl.EGL_OPENGL_API)
        array = (ctypes.c_int * (len(self._attributes) + 1))(*self._attributes, egl.EGL_NONE)
        return egl.eglCreateContext(self._pointer, None, shared, array)


_devices: dict[int | None, GlDevice] = {}
_open_lock = threading.Lock()


def open_device(cuda: int | None = None) -> GlDevice:
    """Return the process's device, made at the first use: the best one, or the CUDA device of that number.

    Raises BackendMissing, with the error of each display, if none supports OpenGL 4.5.
    """
    with _open_lock:
        device = _devices.get(cuda)
        if device is None or device.loss_reason is not None:
            device = _devices[cuda] = find_device(cuda)
        return device


def find_device(cuda: int | None = None) -> GlDevice:
    """Return a device with separate contexts, chosen as by `open_device`. Raises BackendMissing as that does."""
    library = load()
    failures = []
    try:
        candidates = list(display_candidates(library))
    except library.egl.EGLError as error:
        raise BackendMissing(f"texture.backend = gl: EGL lists no displays ({_egl_name(error)})", REMEDY) from error
    for choice in candidates:
        if cuda is not None and choice.cuda != cuda:
            failures.append(f"{choice.name}: not CUDA device {cuda}")
            continue
        try:
            return GlDevice(library, choice)
        except BackendMissing as error:
            failures.append(str(error))
    if cuda is None:
        requirement = "OpenGL 4.5"
    else:
        requirement = f"OpenGL 4.5 on CUDA device {cuda}"
    raise BackendMissing(f"texture.backend = gl finds no {requirement} ({'; '.join(failures) or 'no display'})", REMEDY)


def _egl_name(error: Any) -> str:
    """EGL_BAD_MATCH and the like."""
    return str(error.err).split()[0]


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
