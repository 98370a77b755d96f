"""How far a source may reach: what FFmpeg may open beside what was named, and how large a picture may be.

A playlist, or a description of a session, names other files and addresses; so does a name with `%d` in it. Whoever
gives a file means that file: FFmpeg is told by its whitelists to open nothing else. An address may lead to other
addresses, as HLS does, and never to a file.
"""

from __future__ import annotations

from pathlib import Path

import av

from stream.config import CaptureConfig
from stream.errors import SourceError

PLAYLISTS = frozenset({"hls", "dash", "webm_dash_manifest", "concat", "sdp", "imf", "hds", "smoothstreaming", "lavfi"})
"""Demuxers whose content names what is to be opened next."""

SIBLINGS = frozenset({"mlv", "vobsub"})
"""Demuxers that open a file of a similar name beside the one that they were given."""

OVER_HTTP = frozenset({"hls", "dash"})
"""Playlists that are the usual form of video on a web server."""

_PROTOCOLS = {
    **dict.fromkeys(("http", "https"), "http,https,tls,tcp,httpproxy,crypto,data"),
    **dict.fromkeys(("rtsp", "rtsps"), "rtsp,rtsps,rtp,srtp,udp,tcp,tls,http,https,httpproxy,crypto"),
    **dict.fromkeys(("rtmp", "rtmps"), "rtmp,rtmps,rtmpe,rtmpt,rtmpts,ffrtmpcrypt,ffrtmphttp,tcp,tls,http,https"),
    "rtp": "rtp,srtp,udp,crypto",
    "udp": "udp",
    "tcp": "tcp",
}

SCALE_DOWN = "scale it down, or raise capture.max_pixels"

_SNIFFED_BYTES = 4096

_KINDS = (
    (b"#EXTM3U", "an HLS playlist"),
    (b"ffconcat version", "a list of files (ffconcat)"),
    (b"<MPD", "a DASH manifest"),
    (b"<CompositionPlaylist", "an IMF playlist"),
    (b"v=0", "a description of a session (SDP)"),
)


def decoder_options(max_pixels: int) -> dict[str, str]:
    """FFmpeg's options for a decoder that takes no memory for a larger picture."""
    return {"max_pixels": str(max_pixels)}


def file_options(config: CaptureConfig) -> dict[str, str]:
    """FFmpeg's options for a local file, or for standard input: that alone is opened."""
    return {
        **decoder_options(config.max_pixels),
        "protocol_whitelist": "file",
        "format_whitelist": _formats_without(PLAYLISTS | SIBLINGS),
        "pattern_type": "none",  # image2: a %d in a name is part of the name
    }


def address_options(scheme: str, config: CaptureConfig) -> dict[str, str]:
    """FFmpeg's options for an address on a network: no file is opened, whatever the other end says."""
    options = {**decoder_options(config.max_pixels), "protocol_whitelist": _PROTOCOLS[scheme]}
    if scheme in ("http", "https"):
        options["format_whitelist"] = _formats_without((PLAYLISTS - OVER_HTTP) | SIBLINGS)
    elif scheme in ("tcp", "udp"):
        options["format_whitelist"] = _formats_without(PLAYLISTS | SIBLINGS)
    return options


def refused_playlist(path: Path) -> SourceError | None:
    """Why a local file that FFmpeg may not open is refused, where it names other things to be opened."""
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return None
    for mark, kind in _KINDS:
        if head.startswith(mark) or (mark.startswith(b"<") and mark in head):
            return SourceError(
                f"{path} is {kind}, which names other files or addresses; only the source itself is opened, so give "
                f"the video or its address, or join it first: ffmpeg -i {path.name} -c copy joined.mkv"
            )
    return None


def too_large(max_pixels: int) -> str:
    """Why a decoder takes a picture for invalid."""
    return f"{more_than(max_pixels)}, or damaged"


def more_than(max_pixels: int) -> str:
    return f"more than capture.max_pixels = {max_pixels}"


def decoding_failure(error: av.FFmpegError, max_pixels: int) -> str:
    """Why a packet does not decode, in FFmpeg's words where there are better ones than "Invalid argument"."""
    return too_large(max_pixels) if isinstance(error, av.error.ArgumentError) else error.strerror or str(error)


def _formats_without(refused: frozenset[str]) -> str:
    return ",".join(sorted(name for name in av.formats_available if name not in refused))
