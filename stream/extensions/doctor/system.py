"""Checks of the system: Python, libraries, FFmpeg, sockets, cameras, texture stores, CUDA."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec

from arr_coc.errors import counted
from stream.errors import SourceError, TransportError
from stream.extensions.doctor.diagnostic import TORCH_FOR_CUDA, DiagnosticCheck, State
from stream.extensions.doctor.nvidia import driver_devices
from stream.options.extra import Extra
from stream.runtime.child import python_command, python_environment
from stream.sources.address import SCREEN_PREFIX

OLDEST_PYTHON = (3, 10)

SMALL_LIBRARIES = ("numpy", "pyzmq", "msgspec", "pydantic", "rich", "typer", "pillow", "psutil", "safetensors")

WHEELS = "install PyAV from PyPI, whose wheels have all of it: pip install --force-reinstall --only-binary av av"


def python(version_info: tuple[int, ...] = tuple(sys.version_info[:3])) -> DiagnosticCheck:
    """Check the version of Python."""
    cores = counted(os.cpu_count() or 1, "core")
    python_text = f"{'.'.join(map(str, version_info))} on {platform.system()} {platform.machine()}, {cores}"
    if version_info[:2] < OLDEST_PYTHON:
        return DiagnosticCheck(
            "python", "broken", python_text, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer"
        )
    return DiagnosticCheck("python", "works", python_text)


def library(module: str, distribution: str, *, part: str | None = None, imported: bool = True) -> DiagnosticCheck:
    """Check a library's version.

    Args:
        module: Name of the module.
        distribution: Name of the distribution that has it.
        part: Name of the row; the module's if None.
        imported: Also import it, which finds broken installations.
    """
    part = part or module
    remedy = f"pip install {distribution}"
    try:
        version_text = version(distribution)
        if imported:
            __import__(module)
    except PackageNotFoundError:
        if not imported or find_spec(module) is None:
            return DiagnosticCheck(part, "broken", "not installed", remedy)
        version_text = str(getattr(__import__(module), "__version__", "of unknown version"))
    except (ImportError, OSError) as error:
        return DiagnosticCheck(part, "broken", f"cannot be imported: {error}", f"{remedy} --force-reinstall")
    return DiagnosticCheck(part, "works", version_text)


def opencv() -> DiagnosticCheck:
    """Check OpenCV, and that only one package has installed it: they overwrite each other's files."""
    check = library("cv2", "opencv-python-headless", part="opencv")
    packages = sorted(
        package for package in set(packages_distributions().get("cv2", ())) if package.startswith("opencv")
    )
    if len(packages) < 2:
        return check
    others = [package for package in packages if package != "opencv-python-headless"]
    return DiagnosticCheck(
        "opencv",
        check.state,
        f"{check.found}; {' and '.join(packages)} overwrite each other",
        f"pip uninstall -y {' '.join(others)}; pip install --force-reinstall --no-deps opencv-python-headless",
    )


def libraries() -> DiagnosticCheck:
    """Check the small libraries, in one row."""
    versions = []
    missing = []
    for name in SMALL_LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return DiagnosticCheck(
            "libraries", "broken", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}"
        )
    return DiagnosticCheck("libraries", "works", ", ".join(versions))


def ffmpeg() -> DiagnosticCheck:
    """Name the FFmpeg that PyAV brings."""
    from stream.sources import decoder as abilities

    return DiagnosticCheck("ffmpeg", "works", f"libraries of PyAV {abilities.ffmpeg_version()}")


def decoders(support: dict[str, bool] | None = None) -> DiagnosticCheck:
    """Check that FFmpeg decodes the usual codecs; runs need H.264."""
    if support is None:
        from stream.sources.decoder import decodable

        support = decodable()
    return _each("decoders", support, "absent" if support.get("H.264", True) else "broken")


def hardware_decoding(failures: dict[str, str | None] | None = None) -> DiagnosticCheck:
    """Check which devices decode video; runs do without."""
    if failures is None:
        from stream.sources.hardware import working_devices

        failures = working_devices()
    usable = [device for device, failure in failures.items() if failure is None]
    if usable:
        return DiagnosticCheck("hardware", "works", f"{', '.join(usable)} decodes video, if capture.decoder selects it")
    reasons = "; ".join(f"{device}: {failure}" for device, failure in failures.items())
    remedy = "install the driver of the graphics card, or leave capture.decoder at software"
    return DiagnosticCheck("hardware", "absent", f"no device decodes video ({reasons})", remedy)


def heatmaps(works: bool | None = None) -> DiagnosticCheck:
    """Check that FFmpeg encodes heat maps."""
    if works is None:
        from stream.sources.decoder import encodes_heatmaps

        works = encodes_heatmaps()
    if works:
        return DiagnosticCheck("heat maps", "works", "libx264")
    return DiagnosticCheck("heat maps", "absent", "no libx264, so no --heatmap and no demo", WHEELS)


def network(support: dict[str, bool] | None = None) -> DiagnosticCheck:
    """Check that FFmpeg reads network protocols."""
    if support is None:
        from stream.sources.decoder import protocols

        support = protocols()
    return _each("network", support, "absent")


def _each(part: str, support: dict[str, bool], incomplete_state: State) -> DiagnosticCheck:
    """Return one check of several abilities: `incomplete_state` if FFmpeg has not all of them."""
    missing = [name for name, works in support.items() if not works]
    names = ", ".join(name for name, works in support.items() if works) or "none"
    if not missing:
        return DiagnosticCheck(part, "works", names)
    return DiagnosticCheck(part, incomplete_state, f"{names}; not {', '.join(missing)}", WHEELS)


def plots() -> DiagnosticCheck:
    """Check for matplotlib, which draws the figures of `bench`."""
    if find_spec("matplotlib") is None:
        return DiagnosticCheck("plots", "absent", "no matplotlib, so no bench --png", "pip install matplotlib")
    return DiagnosticCheck("plots", "works", f"matplotlib {version('matplotlib')}")


def optional(extra: Extra) -> DiagnosticCheck:
    """Check for the libraries of an extra."""
    if missing := extra.missing():
        problem = f"no {', '.join(missing)}, so no {extra.needed_for}"
        return DiagnosticCheck(extra.part, "absent", problem, extra.install)
    return DiagnosticCheck(extra.part, "works", ", ".join(f"{name} {version(name)}" for name in extra.libraries))


def sockets() -> DiagnosticCheck:
    """Check the sockets between processes: a folder whose name is short enough, and ports on loopback."""
    from stream.transport import private_directory

    try:
        with private_directory() as folder:
            parent = os.path.dirname(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except TransportError as error:
        return DiagnosticCheck("sockets", "broken", error.problem, error.remedy)
    except OSError as error:
        return DiagnosticCheck(
            "sockets", "broken", f"cannot be made: {error.strerror}", "set TMPDIR to a folder that can be written"
        )
    return DiagnosticCheck("sockets", "works", f"in {parent}, and on loopback")


def shared_frames(has_memfd: bool = hasattr(os, "memfd_create")) -> DiagnosticCheck:
    """Name the memory in which whole frames reach the answer process."""
    return DiagnosticCheck("frames", "works", "shared in memory (memfd)" if has_memfd else "shared in a temporary file")


TRIAL_LIMIT_S = 30.0
"""Time for a texture store to open and be used once; on a slow machine most of it goes into imports."""

NEWER_DRIVER = "install a newer driver of the graphics card"


def cameras() -> DiagnosticCheck:
    """Check for cameras that can be opened."""
    from stream.sources.cameras import list_cameras, none_found
    from stream.sources.decoder import reads
    from stream.sources.devices import capture_system

    if not reads(capture_system().camera):
        return DiagnosticCheck("cameras", "absent", f"this FFmpeg has no {capture_system().title}", WHEELS)
    devices = list_cameras()
    usable = [camera for camera in devices if camera.problem is None]
    if usable:
        return DiagnosticCheck("cameras", "works", ", ".join(f"{camera.address} ({camera.name})" for camera in usable))
    if devices:
        problem, _, remedy = (devices[0].problem or "").partition("; ")
        return DiagnosticCheck("cameras", "absent", f"{devices[0].device} {problem}", remedy or None)
    cause, remedy = none_found()
    return DiagnosticCheck("cameras", "absent", cause, remedy)


def screens(environment: Mapping[str, str] = os.environ) -> DiagnosticCheck:
    """Check for a display whose screen can be captured."""
    from stream.sources.checks import Screen
    from stream.sources.decoder import reads
    from stream.sources.devices import capture_system

    if not reads(capture_system().screen):
        return DiagnosticCheck("screens", "absent", f"this FFmpeg has no {capture_system().screen_title}", WHEELS)
    try:
        screen = Screen.of(SCREEN_PREFIX, environment)
    except SourceError:
        return DiagnosticCheck(
            "screens", "absent", "DISPLAY is not set, so no screen:", "run this in a desktop session"
        )
    return DiagnosticCheck("screens", "works", f"screen: is {screen.display or 'the desktop'}")


def texture(
    backend: str, configured_backend: str, trial: Sequence[str] | None = None, limit_s: float = TRIAL_LIMIT_S
) -> DiagnosticCheck:
    """Check a texture store, which is needed only if it is the configured one.

    It is tried in a separate process: drivers have been known to hang, and to crash.

    Args:
        backend: Name of the store.
        configured_backend: Name of the store that runs use; the check of another one is `absent`, not `broken`.
        trial: Command that opens the store, in place of the usual one.
        limit_s: Time limit of the command, in seconds.
    """
    part = f"texture {backend}"
    state: State = "broken" if backend == configured_backend else "absent"
    command = trial or python_command("arr_coc.backends.registry", backend)
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            env=python_environment(),
        )
    except subprocess.TimeoutExpired:
        return DiagnosticCheck(part, state, f"did not open within {limit_s:g} s", NEWER_DRIVER)
    if process.returncode == 0:
        finding, _, remedy = process.stdout.strip().partition("\n")
        return DiagnosticCheck(part, "works", finding, remedy or None)
    if process.returncode < 0:
        return DiagnosticCheck(part, state, f"crashed: {signal.Signals(-process.returncode).name}", NEWER_DRIVER)
    lines = process.stdout.splitlines() or [(process.stderr.splitlines() or ["failed"])[-1], ""]
    return DiagnosticCheck(part, state, lines[0], lines[-1] or NEWER_DRIVER)


def cuda(device: str, driver: Callable[[], int] | None = None) -> DiagnosticCheck:
    """Check CUDA as torch sees it; needed only if the user asks for it. `driver` counts the driver's devices."""
    import torch

    if torch.cuda.is_available() and _usable(device):
        names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
        return DiagnosticCheck("cuda", "works", f"CUDA {torch.version.cuda}: {', '.join(sorted(names))}")
    state: State = "absent" if _usable(device) else "broken"
    if state == "absent":
        prefix = ""
    else:
        prefix = f"the device {device!r} cannot be used: "
    count = (driver or driver_devices)()
    if not count:
        return DiagnosticCheck(
            "cuda", state, f"{prefix}no NVIDIA driver", "with an NVIDIA card, install its driver; else cpu"
        )
    if torch.version.cuda is None:
        return DiagnosticCheck(
            "cuda", state, f"{prefix}a driver with {count} device(s), but torch for the CPU", TORCH_FOR_CUDA
        )
    if torch.cuda.is_available():
        return DiagnosticCheck(
            "cuda", state, f"{prefix}there are {torch.cuda.device_count()}", "give auto, cuda or cuda:0"
        )
    finding = f"{prefix}torch for CUDA {torch.version.cuda} cannot use the driver"
    return DiagnosticCheck("cuda", state, finding, "install a newer NVIDIA driver")


def _usable(device: str) -> bool:
    """Return whether torch can put something on the device; `auto` always finds one."""
    import torch

    if device in ("auto", "cpu"):
        return True
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True
