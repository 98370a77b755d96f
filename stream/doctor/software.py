"""Python, libraries, FFmpeg, and what the system lends to processes."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from arr_coc.errors import counted
from stream.doctor.check import Check, State
from stream.errors import TransportError

OLDEST_PYTHON = (3, 10)

SMALL_LIBRARIES = ("numpy", "pyzmq", "msgspec", "pydantic", "rich", "typer", "pillow", "psutil", "safetensors")

WHEELS = "install PyAV from PyPI, whose wheels have all of it: pip install --force-reinstall --only-binary av av"


def python(found: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    cores = counted(os.cpu_count() or 1, "core")
    said = f"{'.'.join(map(str, found))} on {platform.system()} {platform.machine()}, {cores}"
    if found[:2] < OLDEST_PYTHON:
        return Check("python", "broken", said, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Check("python", "works", said)


def library(module: str, distribution: str, *, part: str | None = None, imported: bool = True) -> Check:
    """A library's version; `imported`: it must also import, which finds broken installations."""
    part, remedy = part or module, f"pip install {distribution}"
    try:
        said = version(distribution)
        if imported:
            __import__(module)
    except PackageNotFoundError:
        if not imported or find_spec(module) is None:
            return Check(part, "broken", "not installed", remedy)
        said = str(getattr(__import__(module), "__version__", "of unknown version"))
    except (ImportError, OSError) as error:
        return Check(part, "broken", f"cannot be imported: {error}", f"{remedy} --force-reinstall")
    return Check(part, "works", said)


def libraries() -> Check:
    """The small ones, in one row."""
    found, missing = [], []
    for name in SMALL_LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("libraries", "broken", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("libraries", "works", ", ".join(found))


def ffmpeg() -> Check:
    from stream.sources import abilities

    return Check("ffmpeg", "works", f"PyAV {abilities.ffmpeg_version()}")


def decoders(found: dict[str, bool] | None = None) -> Check:
    if found is None:
        from stream.sources.abilities import decodable

        found = decodable()
    return _each("decoders", found, "absent" if found.get("H.264", True) else "broken")


def heatmaps(works: bool | None = None) -> Check:
    if works is None:
        from stream.sources.abilities import encodes_heatmaps

        works = encodes_heatmaps()
    if works:
        return Check("heat maps", "works", "libx264")
    return Check("heat maps", "absent", "no libx264, so no --heatmap and no demo", WHEELS)


def network(found: dict[str, bool] | None = None) -> Check:
    if found is None:
        from stream.sources.abilities import protocols

        found = protocols()
    return _each("network", found, "absent")


def _each(what: str, found: dict[str, bool], lacking: State) -> Check:
    """One check of several abilities: `lacking` where FFmpeg has not all of them."""
    missing = [name for name, works in found.items() if not works]
    there = ", ".join(name for name, works in found.items() if works) or "none"
    if not missing:
        return Check(what, "works", there)
    return Check(what, lacking, f"{there}; not {', '.join(missing)}", WHEELS)


def plots() -> Check:
    if find_spec("matplotlib") is None:
        return Check("plots", "absent", "no matplotlib, so no bench --png", "pip install matplotlib")
    return Check("plots", "works", f"matplotlib {version('matplotlib')}")


def sockets() -> Check:
    """Between the processes: a folder for their sockets, whose name is short enough, and ports on loopback."""
    from stream.transport import private_directory

    try:
        with private_directory() as folder:
            where = os.path.dirname(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except TransportError as error:
        return Check("sockets", "broken", error.problem, error.remedy)
    except OSError as error:
        return Check(
            "sockets", "broken", f"cannot be made: {error.strerror}", "set TMPDIR to a folder that can be written"
        )
    return Check("sockets", "works", f"in {where}, and on loopback")


def shared_frames(has_memfd: bool = hasattr(os, "memfd_create")) -> Check:
    """How whole frames reach the answer process."""
    return Check("frames", "works", "shared in memory (memfd)" if has_memfd else "shared in a temporary file")
