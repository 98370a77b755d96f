"""Forms of output paths that have a meaning beyond a file."""

from __future__ import annotations

STDOUT = "-"
"""Place of an output that goes to standard output."""

HLS_SUFFIX = ".m3u8"
"""Suffix of an HLS stream, whose segments lie in the folder of its playlist."""

BAG_SUFFIX = ".rosbag"
"""Ending of the name of a ROS 2 bag, which is a folder; `.bag` is that of a ROS 1 file."""


def is_hls(path: str) -> bool:
    """Return whether an output is an HLS stream, in a separate folder."""
    return path.lower().endswith(HLS_SUFFIX)


def is_bag(path: str) -> bool:
    """Return True if an output is a ROS 2 bag."""
    return path.lower().endswith(BAG_SUFFIX)
