"""What this build of FFmpeg can do: which codecs and network protocols it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import av

DECODERS: Mapping[str, Sequence[str]] = {
    "H.264": ("h264",),
    "HEVC": ("hevc",),
    "VP9": ("vp9", "libvpx-vp9"),
    "AV1": ("libdav1d", "libaom-av1", "libgav1"),
    "MJPEG": ("mjpeg",),
}
"""Video formats → the decoders of which one is enough. (FFmpeg's own `av1` only drives hardware.)"""

HEATMAP_ENCODER = "libx264"

PROTOCOLS = ("rtsp", "https", "udp", "rtmp")

CAMERA_FORMAT = "video4linux2,v4l2"


def ffmpeg_version() -> str:
    """The versions of PyAV and of the libavcodec that it carries."""
    codec = ".".join(map(str, av.library_versions["libavcodec"]))
    return f"{av.__version__} (libavcodec {codec})"


def decodable() -> dict[str, bool]:
    """Each video format, and whether it can be decoded."""
    return {
        name: any(decoder in av.codecs_available and _opens(decoder, "r") for decoder in decoders)
        for name, decoders in DECODERS.items()
    }


def encodes_heatmaps() -> bool:
    return _opens(HEATMAP_ENCODER, "w")


def reads_cameras() -> bool:
    return CAMERA_FORMAT in av.formats_available


def protocols() -> dict[str, bool]:
    """Each network protocol, and whether FFmpeg has it: asked of a port of this machine where nothing listens."""
    return {name: _speaks(name) for name in PROTOCOLS}


def _opens(name: str, mode: str) -> bool:
    try:
        av.codec.Codec(name, mode)
    except ValueError:
        return False
    return True


def _speaks(protocol: str) -> bool:
    try:
        av.open(f"{protocol}://127.0.0.1:1/nothing", timeout=(0.2, 0.2)).close()
    except av.error.ProtocolNotFoundError:
        return False
    except (av.FFmpegError, ValueError):
        return True
    return True
