"""The most memory that a process of the test suite has taken, and its limit."""

from __future__ import annotations

import resource
import sys

LIMIT_BYTES = 3 * 2**30
"""Some machines that test have 4 GB. On Linux the suite reaches 1.3 GB."""

UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
"""Of `ru_maxrss`."""


def largest_process_bytes() -> int:
    """The largest resident size that this process, or a child that has ended, has ever had."""
    return UNIT_BYTES * max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def complaint(largest_bytes: int) -> str | None:
    """The problem with this much memory; None if it is within the limit."""
    if largest_bytes <= LIMIT_BYTES:
        return None
    return (
        f"a process of the tests took {largest_bytes / 2**30:.1f} GiB of memory, which is more than "
        f"{LIMIT_BYTES / 2**30:g} GiB; find the test, and let it do with smaller data"
    )
