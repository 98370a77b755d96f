"""Folder of a ROS 2 bag, checked before a run."""

from __future__ import annotations

import os

from stream.config import Config
from stream.errors import OutputError
from stream.sinks.output_file import check_writable

SUFFIX = ".rosbag"
"""Ending of the name of a bag; `.bag` is that of a ROS 1 file."""


def check(config: Config) -> None:
    """Raise OutputError for a bag that exists."""
    for path in config.output.paths:
        if path.lower().endswith(SUFFIX):
            check_new_folder(path)


def check_new_folder(path: str) -> None:
    """Raise OutputError if a new folder cannot be made at `path`, as far as can be checked without making it."""
    if os.path.lexists(path):
        raise OutputError(folder_exists(path))
    check_writable(path)


def folder_exists(path: str) -> str:
    """Return the message about a folder that would be overwritten."""
    return f"cannot write {path!r}: it exists already, and a bag is never overwritten; name another, or remove it"
