"""Whether a local file can be a video at all; told from its name and its first bytes, without FFmpeg."""

from __future__ import annotations

import os
from pathlib import Path

from stream.errors import SourceError, SourceNotFound
from stream.sources.png_check import check_png

_SNIFFED_BYTES = 4096

_KINDS = (
    (b"#EXTM3U", "an HLS playlist"),
    (b"ffconcat version", "a list of files (ffconcat)"),
    (b"<MPD", "a DASH manifest"),
    (b"<CompositionPlaylist", "an IMF playlist"),
    (b"v=0", "a description of a session (SDP)"),
)


def check_file(path: Path, max_pixels: int) -> None:
    """Raises SourceNotFound where there is none, SourceError for what is no file, may not be read, is empty, is a
    playlist, or unfolds to more than fits: a picture of more than `max_pixels`."""
    if not os.path.exists(path):
        raise SourceNotFound(f"{path} does not exist; check the name, or use scene:NAME for a generated clip")
    if path.is_dir():
        raise SourceError(f"{path} is a folder; give one of the video files in it")
    if not os.access(path, os.R_OK):
        raise SourceError(f"{path} may not be read by this user; change its permissions")
    if path.is_file() and path.stat().st_size == 0:
        raise SourceError(f"{path} is empty; copy or record it again")
    if path.is_file():  # a pipe or a device can be read once only
        _check_playlist(path)
        check_png(path, max_pixels)


def _check_playlist(path: Path) -> None:
    """Raises SourceError for what names other things to be opened; FFmpeg refuses those by itself, in other words."""
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    for mark, kind in _KINDS:
        if head.startswith(mark) or (mark.startswith(b"<") and mark in head):
            raise SourceError(
                f"{path} is {kind}, which names other files or addresses; only the source itself is opened, so give "
                f"the video or its address, or join it first: ffmpeg -i {path.name} -c copy joined.mkv"
            )
