"""Garbage of earlier tests, whose warnings are none of a later test that collects."""

from __future__ import annotations

import gc
import warnings


def collect_earlier() -> None:
    """Collect what earlier tests of this process left, such as sockets in reference cycles, without their warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
