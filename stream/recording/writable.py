"""Obstacles to writing a file or folder, in the words of the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_obstacle(path: str | Path, mode: int = os.W_OK) -> str | None:
    """Return why a file or folder that is there cannot be written; None if it can. `mode`: as of `os.access`."""
    if os.access(path, mode):
        return None
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return os.strerror(errno.EROFS if is_read_only else errno.EACCES)
