"""Limits of a source: the files that FFmpeg may open, and the size of a picture.

A playlist, or a description of a session, names other files and addresses; so does a name with `%d` in it. Whoever
gives a file means that file: FFmpeg is told by its whitelists to open nothing else. An address may lead to other
addresses, as HLS does, and never to a file.
"""

from __future__ import annotations

import av

from stream.config import CaptureConfig
from stream.sources.checks import more_than

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


def too_large(max_pixels: int) -> str:
    """Return the reason that a decoder rejects a picture."""
    return f"{more_than(max_pixels)}, or damaged"


def decoding_failure(error: av.FFmpegError, max_pixels: int) -> str:
    """Return the reason that a packet does not decode, in FFmpeg's words where there are better ones than "Invalid
    argument"."""
    return too_large(max_pixels) if isinstance(error, av.error.ArgumentError) else error.strerror or str(error)


def _formats_without(refused: frozenset[str]) -> str:
    return ",".join(sorted(name for name in av.formats_available if name not in refused))
