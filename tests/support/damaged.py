"""Reads damaged copies of one file, and prints the outcome of each: `python -m tests.support.damaged FILE SEEDS…`.

In a separate process, so that a crash within FFmpeg takes nothing else with it. One JSON object a line: the seed
before it is read, the outcome after.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import sys
import tempfile
from pathlib import Path

FRAMES = 24
"""Enough to pass the damage in small clips, and to meet it in most large ones."""

LIMIT_S = 60
"""Far more than reading so few frames takes on a busy machine."""

MEMORY_BYTES = 6 << 30
"""Of address space; allocations beyond fail, as they would on a small machine."""


def damaged(data: bytes, seed: int) -> bytes:
    """The file with damage of the seed's kind: cut off, bits flipped, blocks zeroed, repeated or lost."""
    rng = random.Random(seed)
    broken = bytearray(data)
    head = min(len(data), 4096)
    kind = seed % 7
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind in (1, 2, 3):
        reach = (head, len(data) // 8, len(data))[kind - 1]
        for _ in range(1 << rng.randrange(9)):
            broken[rng.randrange(reach)] ^= 1 << rng.randrange(8)
        return bytes(broken)
    at, size = rng.randrange(len(data)), 1 << rng.randrange(4, 16)
    if kind == 4:
        broken[at : at + size] = bytes(len(broken[at : at + size]))
    elif kind == 5:
        broken[at:at] = broken[at : at + size]
    else:
        del broken[at : at + size]
    return bytes(broken)


def outcome(path: Path) -> str:
    """How reading the file ends: a count of frames, an error of ours, or a fault."""

    from stream.clock import MonotonicClock
    from stream.config import CaptureConfig
    from stream.errors import SourceError
    from stream.sources import SourceFrame
    from stream.sources.factory import open_source

    frames, last_ns = 0, -1
    try:
        with open_source(str(path), CaptureConfig(max_frames=FRAMES), MonotonicClock()) as source:
            source.describe()
            for frame in source.frames():
                assert isinstance(frame, SourceFrame)
                assert frame.media_ns > last_ns, f"time went back from {last_ns} to {frame.media_ns}"
                frames, last_ns = frames + 1, frame.media_ns
            source.trailing_skipped()
    except SourceError as error:
        text = str(error)
        return "refused" if "\n" not in text and text else f"fault: a message of several lines: {text!r}"
    except Exception as error:
        return f"fault: {type(error).__name__}: {error}"
    return "read" if frames else "fault: neither frames nor an error"


def main() -> int:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    original = Path(sys.argv[1])
    data = original.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / original.name
        for seed in map(int, sys.argv[2:]):
            path.write_bytes(damaged(data, seed))
            print(json.dumps({"seed": seed}), flush=True)
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            result = outcome(path)
            faulthandler.cancel_dump_traceback_later()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"seed": seed, "outcome": result, "peak_bytes": peak}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
