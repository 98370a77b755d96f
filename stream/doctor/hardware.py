"""Cameras and graphics cards."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence

from stream.doctor.check import Check, State
from stream.doctor.software import WHEELS
from stream.start import python_command, python_environment

TRIAL_LIMIT_S = 30.0
"""How long a texture store may take to open and be used once; on a slow machine most of it goes into imports."""

NEWER_DRIVER = "install a newer driver of the graphics card"

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


def texture(backend: str, wanted: str, trial: Sequence[str] | None = None, limit_s: float = TRIAL_LIMIT_S) -> Check:
    """Whether a texture store works, needed only where it is the wanted one.

    It is tried in a process of its own: drivers have been known to hang, and to crash.
    """
    part = f"texture {backend}"
    state: State = "broken" if backend == wanted else "absent"
    command = trial or python_command("arr_coc.ops.backends", backend)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            env=python_environment(),
        )
    except subprocess.TimeoutExpired:
        return Check(part, state, f"did not open within {limit_s:g} s", NEWER_DRIVER)
    if done.returncode == 0:
        return Check(part, "works", done.stdout.strip())
    if done.returncode < 0:
        return Check(part, state, f"crashed: {signal.Signals(-done.returncode).name}", NEWER_DRIVER)
    said = done.stdout.splitlines() or [(done.stderr.splitlines() or ["failed"])[-1], ""]
    return Check(part, state, said[0], said[-1] or NEWER_DRIVER)


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
