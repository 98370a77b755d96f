"""Import of Rerun's library with its own log on stderr and its wait for viewers at exit turned off."""

from __future__ import annotations

import os
import threading

_LOG = os.environ.get("RUST_LOG")
os.environ["RUST_LOG"] = _LOG or "off"  # read once, at the import
try:
    import rerun as rr
    import rerun.blueprint as rrb
finally:
    if _LOG is None:
        del os.environ["RUST_LOG"]

rr.unregister_shutdown()  # it would wait without limit for a hung viewer when the program ends

__all__ = ["DISCONNECT_LIMIT_S", "disconnect", "rr", "rrb"]

DISCONNECT_LIMIT_S = 10.0


def disconnect(stream: rr.RecordingStream, limit_s: float) -> None:
    """Complete and release the target of a recording, or give up after `limit_s`.

    The library has no time limit. A thread that waits forever keeps the recording, and ends with the program.
    """
    thread = threading.Thread(target=stream.disconnect, name="rerun end", daemon=True)
    thread.start()
    thread.join(limit_s)
