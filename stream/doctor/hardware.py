"""Cameras and graphics cards."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from stream.config import TextureConfig
from stream.doctor.check import Check, State
from stream.doctor.software import WHEELS

TORCH_FOR_CUDA = "pip install torch --index-url https://download.pytorch.org/whl/cu128"


def cameras() -> Check:
    from stream.sources.abilities import reads_cameras
    from stream.sources.cameras import list_cameras, none_found

    if not reads_cameras():
        return Check("cameras", "absent", "this FFmpeg has no V4L2", WHEELS)
    found = list_cameras()
    usable = [camera for camera in found if camera.problem is None]
    if usable:
        return Check("cameras", "works", ", ".join(f"{camera.address} ({camera.name})" for camera in usable))
    if found:
        problem, _, remedy = (found[0].problem or "").partition("; ")
        return Check("cameras", "absent", f"{found[0].device} {problem}", remedy or None)
    why, remedy = none_found()
    return Check("cameras", "absent", why, remedy)


def texture(loads: Callable[[str], bool] | None = None) -> Check:
    """Which stores this version has; what OpenGL would need is told, and not used yet."""
    backends = [name for name in get_args(TextureConfig.model_fields["backend"].annotation) if name != "auto"]
    egl = (loads or _loads)("EGL")
    return Check(
        "texture", "works", f"{', '.join(backends)}; EGL {'is there, not used yet' if egl else 'is not there'}"
    )


def cuda(device: str, driver: Callable[[], int] | None = None) -> Check:
    """CUDA as torch sees it; needed only where the user asks for it. `driver` counts the driver's devices."""
    import torch

    if torch.cuda.is_available() and _usable(device):
        names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
        return Check("cuda", "works", f"CUDA {torch.version.cuda}: {', '.join(sorted(names))}")
    state: State = "absent" if _usable(device) else "broken"
    asked = "" if state == "absent" else f"the device {device!r} cannot be used: "
    count = (driver or _driver_devices)()
    if not count:
        return Check("cuda", state, f"{asked}no NVIDIA driver", "with an NVIDIA card, install its driver; else cpu")
    if torch.version.cuda is None:
        return Check("cuda", state, f"{asked}a driver with {count} device(s), but torch for the CPU", TORCH_FOR_CUDA)
    if torch.cuda.is_available():
        return Check("cuda", state, f"{asked}there are {torch.cuda.device_count()}", "give auto, cuda or cuda:0")
    found = f"{asked}torch for CUDA {torch.version.cuda} cannot use the driver"
    return Check("cuda", state, found, "install a newer NVIDIA driver")


def _usable(device: str) -> bool:
    """Whether torch can put something on the device; `auto` always finds one."""
    import torch

    if device in ("auto", "cpu"):
        return True
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True


def _loads(name: str) -> bool:
    """Whether the system's library can be loaded."""
    from ctypes import CDLL
    from ctypes.util import find_library

    found = find_library(name)
    try:
        return found is not None and CDLL(found) is not None
    except OSError:
        return False


def _driver_devices() -> int:
    """The CUDA devices that NVIDIA's driver knows; 0 without one."""
    from ctypes import CDLL, byref, c_int

    try:
        driver = CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(byref(count)):
        return 0
    return count.value
