"""Import of Rerun's library, which else writes its own log on the run's stderr and waits for viewers at the end."""

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

rr.unregister_shutdown()  # at the end of the program it waits without limit for a viewer that hangs

__all__ = ["DISCONNECT_LIMIT_S", "disconnect", "rr", "rrb"]

DISCONNECT_LIMIT_S = 10.0


def disconnect(stream: rr.RecordingStream, limit_s: float) -> None:
    """Complete what a recording goes to, and let go of it; or of nothing, where that waits for what never comes.

    The library has no limit for it. A thread that waits for ever keeps the recording, and goes with the program.
    """
    thread = threading.Thread(target=stream.disconnect, name="rerun end", daemon=True)
    thread.start()
    thread.join(limit_s)
