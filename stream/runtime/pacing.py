"""Short pauses of a process whose frames are live: the garbage collector, and the change from thread to thread."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005
"""Time that a thread may keep the interpreter while another waits. Python's own 5 ms are a sixth of a frame's period at
30 fps, and a frame changes threads three times."""


@contextmanager
def short_pauses() -> Iterator[None]:
    """Keeps pauses of this process short inside the block.

    What was imported is left out of garbage collections: a full one takes 90 ms with torch, and all threads wait.
    """
    before_s = sys.getswitchinterval()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
        gc.unfreeze()
