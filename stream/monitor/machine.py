"""Processor, system and library versions of this machine, as reports name them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "av", "numpy", "opencv-python-headless", "pyzmq", "arr-coc-stream")


def machine() -> dict[str, Any]:
    """The processor, how many of its cores this process may use, their load, and the versions of relevant libraries.

    Every benchmark writes this beside its figures.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: package_version(name) for name in PACKAGES},
    }


def package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
