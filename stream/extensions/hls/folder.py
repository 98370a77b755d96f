"""Names of files in the folder of a stream, and checks of the folder before a run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stream.config import Config
from stream.errors import OutputError

SUFFIX = ".m3u8"
VIDEO_PLAYLIST = "video.m3u8"
CAPTIONS_PLAYLIST = "captions.m3u8"
"""Playlists beside a master playlist."""
LISTED = re.compile(r"segment-\d{5,}\.(m4s|vtt)|header-\d{5,}\.mp4")
"""Names of files that playlists list."""
MARK = ".arr-coc-hls"
"""Marker file of a folder to which a stream was written, so that the next stream may overwrite it."""


def check(config: Config) -> None:
    """Raise OutputError for a master playlist with the name of a media playlist, for a second stream, and for a folder
    with files of another program."""
    streams = [path for path in config.output.paths if path.lower().endswith(SUFFIX)]
    for path in streams:
        if Path(path).name in (VIDEO_PLAYLIST, CAPTIONS_PLAYLIST):
            raise OutputError(f"output {path!r} has the name of a playlist beside it; name it master.m3u8")
    if len(streams) > 1:
        raise OutputError(f"outputs {streams[0]!r} and {streams[1]!r} are two streams; a run writes one .m3u8")
    for path in streams:
        check_folder(path)


def check_folder(path: str) -> None:
    """Raise OutputError if a stream would overwrite files that no stream has written."""
    try:
        names = sorted(os.listdir(os.path.dirname(path) or "."))
    except OSError:  # the folder does not exist yet
        return
    conflicts = [name for name in names if name in (VIDEO_PLAYLIST, CAPTIONS_PLAYLIST) or LISTED.fullmatch(name)]
    if conflicts and MARK not in names:
        raise OutputError(f"the folder of {path!r} holds {conflicts[0]!r}, which no run has written; name a new folder")
