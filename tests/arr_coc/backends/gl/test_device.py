"""Devices and contexts: one a thread, gone with it; and the errors without them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arr_coc.backends.gl import library
from arr_coc.backends.gl.buffers import MappedBuffer
from arr_coc.backends.gl.device import GlDevice, display_candidates, find_device, open_device
from arr_coc.backends.gl.texture import program, source
from arr_coc.errors import BackendMissing, DeviceLost, StoreError
from tests.support.garbage import collect_earlier
from tests.support.stores import own_device, read_on_device, shared_device

ROOT = Path(__file__).resolve().parents[4]
JOIN_S = 120.0


def in_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a separate thread, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(JOIN_S)
    assert results, "the thread failed"
    return results[0]


def opened_elsewhere(**environment: str) -> str:
    """Output of another process that opens the device: the error, or nothing."""
    command = "from arr_coc.backends.gl.device import open_device; open_device()"
    process = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=JOIN_S,
    )
    return (process.stderr.strip().splitlines() or [""])[-1]


def handle_of(device: GlDevice) -> int:
    with device.current() as context:
        return context.handle


def test_a_thread_keeps_its_context_and_no_other_thread_has_it() -> None:
    device = shared_device()
    handle = handle_of(device)
    assert handle_of(device) == handle
    assert in_thread(lambda: handle_of(device)) != handle


def test_contexts_share_objects() -> None:
    device = shared_device()

    def make() -> MappedBuffer:
        with device.current():
            buffer = MappedBuffer(device, 256, "read")
            buffer.memory[:] = 77
            return buffer

    buffer = in_thread(make)
    with device.current():
        assert (read_on_device(device, buffer) == 77).all()


def test_a_thread_that_ends_ends_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    ended: list[int] = []
    destroy = device.library.calls.eglDestroyContext

    def noted(display: int, handle: int) -> int:
        ended.append(handle)
        result: int = destroy(display, handle)
        return result

    monkeypatch.setattr(device.library.calls, "eglDestroyContext", noted)
    handles = [in_thread(lambda: handle_of(device)) for _ in range(3)]
    assert ended == handles


def test_an_unreferenced_device_ends_its_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    collect_earlier()
    device = own_device()
    ended: list[int] = []
    calls = device.library.calls
    destroy = calls.eglDestroyContext
    monkeypatch.setattr(
        calls, "eglDestroyContext", lambda *arguments: (ended.append(arguments[1]), destroy(*arguments))
    )
    handle = handle_of(device)
    del device
    gc.collect()
    assert len(ended) == 2, "its own, and this thread's"
    assert handle in ended
    assert calls.eglGetCurrentContext() != handle


def test_threads_that_come_and_go_leave_nothing() -> None:
    device = shared_device()

    def work() -> None:
        with device.current() as context:
            context.scratch["results"] = MappedBuffer(device, 1 << 20, "read")

    def use() -> tuple[int, int]:
        for _ in range(100):
            in_thread(lambda: work() or True)
        device.clear()
        return len(os.listdir("/proc/self/fd")), resident_bytes()

    use()
    files, before = use()
    files_after, after = use()
    assert files_after == files
    assert after - before < 50 << 20, "100 buffers of 1 MB are left over"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_the_context_that_was_current_is_current_again() -> None:
    first, second = own_device(), own_device()
    current = first.library.calls.eglGetCurrentContext
    with first.current() as context:
        assert current() == context.handle
        with second.current() as inner:
            assert current() == inner.handle
        assert current() == context.handle
        with pytest.raises(KeyError), second.current():
            raise KeyError
        assert current() == context.handle


def test_released_objects_are_deleted_by_the_next_user() -> None:
    device = shared_device()
    is_buffer = device.library.gl.glIsBuffer
    with device.current():
        buffer = MappedBuffer(device, 256, "write")
        buffer.release()
        buffer.release()
        assert is_buffer(buffer.name)
    with device.current():
        assert not is_buffer(buffer.name)
        other = MappedBuffer(device, 256, "write")
        name = other.name
        del other
    with device.current():
        assert not is_buffer(name)


def test_the_device_is_one_until_it_is_lost() -> None:
    device = shared_device()
    assert open_device() is device
    assert "OpenGL" not in (device.loss_reason or "")
    assert device.version >= (4, 5)
    device.mark_lost("the plug was pulled")
    replaced = open_device()
    assert replaced is not device
    with pytest.raises(DeviceLost, match=r"^the plug was pulled; open a new store, or choose"), device.current():
        pass
    device.clear()
    assert handle_of(replaced)


@pytest.mark.parametrize(
    ("error", "reset", "raised", "message", "is_lost"),
    [
        (0x0505, 0, DeviceLost, "is out of memory while working; close other", False),
        (0x0507, 0, DeviceLost, "lost its context while working; open a new store", True),
        (0, 0x8253, DeviceLost, r"was reset \(0x8253\) while working; open a new store", True),
        (0x0502, 0, StoreError, "refused working: invalid operation", False),
        (0x1234, 0, StoreError, "refused working: error 0x1234", False),
    ],
)
def test_errors_are_named(error: int, reset: int, raised: type, message: str, is_lost: bool) -> None:
    device = own_device()
    calls = vars(device.library.calls) | {"glGetError": lambda: error, "glGetGraphicsResetStatus": lambda: reset}
    with device.current():
        device.check("working")
        device.library = library.GlLibrary(device.library.egl, device.library.gl, SimpleNamespace(**calls))
        with pytest.raises(raised, match=message) as info:
            device.check("working")
    assert info.type is raised
    assert (device.loss_reason is not None) == is_lost


def test_a_thread_without_a_context_loses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    monkeypatch.setattr(device.library.calls, "eglMakeCurrent", lambda *_: 0)
    with pytest.raises(DeviceLost, match="the driver gives this thread no context"), device.current():
        pass


def test_a_thread_for_which_there_is_no_context_loses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()

    def refuse() -> int:
        raise device.library.egl.EGLError(err=0x3003)

    monkeypatch.setattr(device, "make_context", refuse)

    def message() -> str:
        with pytest.raises(DeviceLost) as info, device.current():
            pass
        return str(info.value)

    assert in_thread(message).startswith("the driver gives this thread no context (EGL_BAD_ALLOC); open a new store")


def test_a_gpu_that_is_not_here_is_named() -> None:
    shared_device()
    with pytest.raises(
        BackendMissing, match=r"no OpenGL 4.5 on CUDA device 4711 \(.*not CUDA device 4711.*libgl1-mesa"
    ):
        find_device(4711)


def test_an_egl_that_lists_nothing_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    egl = shared_device().library.egl

    def refuse(*_: object) -> None:
        raise egl.EGLError(err=0x3008)

    monkeypatch.setattr(egl, "eglQueryString", refuse)
    with pytest.raises(BackendMissing, match=r"EGL lists no displays \(EGL_BAD_DISPLAY\); install .*libegl1"):
        find_device()


def test_software_comes_last() -> None:
    device = shared_device()
    names = [choice.name for choice in display_candidates(device.library)]
    assert names
    if device.software:
        assert device.cuda is None
        assert device.name == "surfaceless" or "surfaceless" not in names


def test_no_egl_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "EGL_FILE", "libEGL-not-here.so.1")
    with pytest.raises(BackendMissing, match=r"libEGL-not-here\.so\.1 is not here; install .*libegl1"):
        library.load.__wrapped__()


def test_no_opengl_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_device()
    monkeypatch.setitem(sys.modules, "OpenGL", None)
    with pytest.raises(BackendMissing, match=r"PyOpenGL finds no EGL and OpenGL \(.*\); install .*libopengl0"):
        library.load.__wrapped__()


def test_a_function_that_the_driver_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_device()
    monkeypatch.setitem(library.QUICK, "glFrobnicate", (None,))
    monkeypatch.setattr(library.ctypes, "CDLL", lambda _: SimpleNamespace(eglGetProcAddress=Nothing()))
    with pytest.raises(BackendMissing, match="does not know glBindBuffer, which"):
        library.load.__wrapped__()


class Nothing:
    """A function that finds nothing."""

    restype: Any = None
    argtypes: Any = None

    def __call__(self, name: bytes) -> None:
        return None


def test_pyopengl_for_a_screen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_device()
    from OpenGL import platform

    class GLXPlatform:
        pass

    monkeypatch.setattr(platform, "PLATFORM", GLXPlatform())
    with pytest.raises(BackendMissing, match="has loaded it on GLXPlatform; set PYOPENGL_PLATFORM=egl"):
        library.load.__wrapped__()


def test_no_driver_is_reported_with_the_remedy() -> None:
    shared_device()
    message = opened_elsewhere(__EGL_VENDOR_LIBRARY_FILENAMES="/nowhere.json")
    assert message.startswith("arr_coc.errors.BackendMissing: texture.backend = gl finds no OpenGL 4.5 (")
    assert "apt install libegl1 libgl1-mesa-dri libopengl0" in message


def test_a_driver_that_is_too_old_says_what_it_has() -> None:
    if not shared_device().software:
        pytest.skip("only Mesa's software driver can pretend to be old")
    message = opened_elsewhere(MESA_GL_VERSION_OVERRIDE="4.2")
    assert "has OpenGL 4.2, and 4.5 is needed; update its driver" in message
    assert opened_elsewhere() == ""


def test_a_kernel_is_compiled_once() -> None:
    device = shared_device()
    with device.current():
        assert program(device, "tile_mips") == program(device, "tile_mips")
        assert program(device, "tile_mips") != program(device, "tile_mips", "STORE_LEVEL_0")
        assert in_thread(lambda: in_context(device, "tile_mips")) == program(device, "tile_mips")


def in_context(device: GlDevice, kernel: str) -> int:
    with device.current():
        return program(device, kernel)


def test_a_kernel_that_is_not_here_or_does_not_compile_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = shared_device()
    monkeypatch.setattr("arr_coc.backends.gl.texture.kernel_folder", lambda: tmp_path)
    with pytest.raises(BackendMissing, match=r"missing\.comp, which is not here; run from a checkout"):
        source("missing")
    (tmp_path / "broken.comp").write_text("#version 450\nlayout(local_size_x = 1) in;\nvoid main() { frob(); }\n")
    with device.current(), pytest.raises(BackendMissing, match=r"does not compile broken\.comp \(.*frob"):
        program(device, "broken")
    (tmp_path / "lonely.comp").write_text("#version 450\nvoid helper() {}\n")
    with device.current(), pytest.raises(BackendMissing, match=r"does not compile lonely\.comp"):
        program(device, "lonely")


def test_symbols_are_defined_after_the_version() -> None:
    lines = source("tile_mips", "STORE_LEVEL_0").splitlines()
    assert lines[:2] == ["#version 450", "#define STORE_LEVEL_0"]
