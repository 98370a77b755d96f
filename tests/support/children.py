"""The processes that the tests' own process has started."""

from __future__ import annotations

from multiprocessing import resource_tracker

import psutil


def own_children() -> list[psutil.Process]:
    """Every process below this one that is alive, but multiprocessing's own, which stays once something used it."""
    tracker = getattr(resource_tracker, "_resource_tracker")  # noqa: B009
    return [child for child in psutil.Process().children(recursive=True) if child.pid != tracker._pid]
