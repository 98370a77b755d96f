"""Short pauses of a process whose frames are live: the garbage collector, and the change from thread to thread."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005
"""Time that a thread may keep the interpreter while another waits. Python's own 5 ms are a sixth of a frame's period at
30 fps, and a frame changes threads three times."""


_LOCK = threading.Lock()
_switch_before_s: list[float] = []
"""One entry for each block that is open; all the same, which held before the first."""


@contextmanager
def short_pauses() -> Iterator[None]:
    """Keeps pauses of this process short inside the block. Blocks of several runs may overlap.

    Imported objects are left out of garbage collections: a full one takes 90 ms with torch, and all threads wait.
    """
    with _LOCK:
        if not _switch_before_s:
            gc.freeze()
        _switch_before_s.append(_switch_before_s[0] if _switch_before_s else sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        with _LOCK:
            before_s = _switch_before_s.pop()
            if not _switch_before_s:
                sys.setswitchinterval(before_s)
                gc.unfreeze()
