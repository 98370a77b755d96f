"""How much ordinary memory can still be had."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")

CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""A container's limit and use, in version 2 and version 1."""


def free_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that can still be had: what the system has, or what the container still may."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in CGROUP_FILES:
        try:
            left = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # no container, or one without a limit
            continue
        free = min(free, max(left, 0))
    return free
