"""Checks of a source before FFmpeg is loaded: address, file header, size of a PNG, time range, pictures of a folder.

PNG (ISO/IEC 15948): IHDR begins with width and height; zTXt and iCCP are a keyword, a zero byte, the method of
compression, and data in zlib's form, of which a megabyte may unpack to a gigabyte.
"""

from __future__ import annotations

import glob
import os
import re
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from stream.clock import clock_text
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError, SourceNotFound, SourceOver
from stream.sources.address import (
    NETWORK_SCHEMES,
    ONE_DESKTOP,
    SCREEN_PREFIX,
    ZMQ_PREFIX,
    has_slashed_credentials,
    redacted,
    scheme_of,
)

PORT_MAX = 65_535

_FORMS = {
    "rtsp": "rtsp://HOST/PATH", "rtsps": "rtsps://HOST/PATH", "http": "http://HOST/PATH", "https": "https://HOST/PATH",
    "rtmp": "rtmp://HOST/APP/STREAM", "rtmps": "rtmps://HOST/APP/STREAM",
    "onvif": "onvif://USER:PASSWORD@HOST", "onvifs": "onvifs://USER:PASSWORD@HOST",
    "udp": "udp://HOST:PORT", "rtp": "rtp://HOST:PORT", "tcp": "tcp://HOST:PORT", "srt": "srt://HOST:PORT",
}  # fmt: skip

RELAY = "let mediamtx read it, and give the address that it serves: rtsp://HOST:8554/NAME"
"""Remedy for a protocol that FFmpeg, or its build, lacks."""

_FETCH = "download the file, or mount its folder, and give its path"

_NOT_READ = {
    **dict.fromkeys(("whep", "wheps", "webrtc", "whip", "whips"), f"is WebRTC, which is not read; {RELAY}"),
    "rist": "is RIST, which is not read; pass it on with ristreceiver, and give udp://127.0.0.1:PORT",
    **dict.fromkeys(
        ("rtmpe", "rtmpt", "rtmpte", "rtmpts"), "is RTMP in a disguise that is not read; write rtmp:// or rtmps://"
    ),
    **dict.fromkeys(("mms", "mmsh", "mmst"), "is MMS, which is not read; write http://, which such servers offer too"),
    **dict.fromkeys(("ws", "wss"), f"is a web socket, which is not read; {RELAY}"),
    "ndi": "is NDI, which is not read; turn it into RTSP or SRT with a program of its maker",
    **dict.fromkeys(("ftp", "ftps", "sftp", "smb", "nfs", "s3", "gs"), f"is not read; {_FETCH}"),
    "file": "is not read; write the path alone, without file://",
}
"""Schemes of other programs → what they are, and the remedy."""

_NEED_A_PORT = frozenset({"udp", "rtp", "srt", "tcp"})

_MAY_LISTEN_ANYWHERE = frozenset({"udp", "rtp"})
"""Schemes that, without a host, receive at the port on any address of this machine, as with `udp://@:5000`."""

_BARE_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")


@dataclass(frozen=True, slots=True)
class _Authority:
    """Host and port of an address: an IPv6 host in brackets, the port as written."""

    host: str
    port: str | None

    @classmethod
    def of(cls, address: str) -> _Authority:
        text = re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
        if text.startswith("["):
            host, bracket, rest = text.partition("]")
            return cls(host + bracket, rest[1:] if rest.startswith(":") else None)
        host, colon, port = text.partition(":")
        return cls(host, port if colon else None)


def check_address(address: str) -> None:
    """Raise SourceError for an address without a host, without a required port, or with an invalid port; SourceNotFound
    for an incomplete address that is no file either."""
    scheme = scheme_of(address)
    if scheme is None:
        match = _BARE_SCHEME.match(address)  # `rtsp:cam` and the like, unless a file has that name
        if match is not None and not os.path.lexists(address):
            name = match[1].lower()
            form = f"{ZMQ_PREFIX}tcp://HOST:PORT" if name.startswith("zmq") else _FORMS.get(name)
            if form is not None:
                raise SourceNotFound(f"{redacted(address)} is neither a file nor a whole address; write {form}")
    elif not address.startswith(ZMQ_PREFIX):
        _check_network(scheme, address)


def _check_network(scheme: str, address: str) -> None:
    name = redacted(address)
    if scheme in _NOT_READ:
        raise SourceError(f"{name} {_NOT_READ[scheme]}")
    if scheme not in NETWORK_SCHEMES:
        schemes = ", ".join(f"{entry}://" for entry in sorted(NETWORK_SCHEMES))
        raise SourceError(f"{name} begins with no scheme that can be read; there are {schemes}")
    if has_slashed_credentials(address):
        raise SourceError(f"the password in {name} has a / in it; write %2F in its place")
    authority = _Authority.of(address)
    form = _FORMS[scheme]
    if authority.host.startswith("[") and not authority.host.endswith("]"):
        raise SourceError(f"{name} has an IPv6 address without its closing bracket; write {form} with [::1] as HOST")
    listens = scheme in _MAY_LISTEN_ANYWHERE or "listen" in address.partition("?")[2]
    if not authority.host and not listens:
        raise SourceError(f"{name} names no host; write {form}")
    if authority.port is None:
        if scheme in _NEED_A_PORT:
            raise SourceError(f"{name} names no port; write {form}")
    elif not _is_port(authority.port):
        raise SourceError(f"{name} has no usable port: it is a number from 1 to {PORT_MAX}; write {form}")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= PORT_MAX


_PLACE = re.compile(r"(?P<display>[^+]*)(?:\+(?P<x>\d{1,5}),(?P<y>\d{1,5}))?")

_SCREENS = f"{SCREEN_PREFIX}, {SCREEN_PREFIX}:1 or {SCREEN_PREFIX}:0+100,50"


@dataclass(frozen=True, slots=True)
class Screen:
    """Display, and the corner of the captured area on it; the display is empty if the system has one desktop."""

    display: str
    corner: tuple[int, int]

    @classmethod
    def of(cls, address: str, environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Screen:
        """Parse `screen:[DISPLAY][+X,Y]`. Raises SourceError for any other form, and if there is no display."""
        place = _PLACE.fullmatch(address.removeprefix(SCREEN_PREFIX))
        if place is None:
            raise SourceError(f"{address} names no screen; write {_SCREENS}")
        corner = int(place["x"] or 0), int(place["y"] or 0)
        if platform in ONE_DESKTOP:
            if place["display"] or (platform == "darwin" and place["x"]):
                raise SourceError(f"{address} names a part that this system does not offer; write {SCREEN_PREFIX}")
            return cls("", corner)
        display = place["display"] or environment.get("DISPLAY", "")
        if not display:
            raise SourceError(
                f"{address} has no display to capture: DISPLAY is not set; run this in the desktop's session, or name "
                f"the display: {SCREEN_PREFIX}:0"
            )
        return cls(display, corner)


SCALE_DOWN = "scale it down, or raise capture.max_pixels"

SIGNATURE = b"\x89PNG\r\n\x1a\n"

METADATA_MAX_BYTES = 16 << 20
"""Limit of a file's unpacked metadata; a colour profile of a printing press has two or three MB."""


def check_png(path: Path, max_pixels: int) -> None:
    """Raise SourceError for a PNG of more than `max_pixels`, or with more than `METADATA_MAX_BYTES` of unpacked
    metadata; other files pass."""
    try:
        with path.open("rb") as file:
            if file.read(len(SIGNATURE)) != SIGNATURE:
                return
            head = file.read(16)
            file.seek(len(SIGNATURE))
            if len(head) == 16 and head[4:8] == b"IHDR":
                width, height = struct.unpack(">8xII", head)
            else:
                width = height = 0
            metadata_bytes = _unfolded_bytes(file)
    except OSError:
        return  # opening the file will report the problem
    if width * height > max_pixels:
        raise SourceError(f"{path} has {width}x{height} pixels, {more_than(max_pixels)}; {SCALE_DOWN}")
    if metadata_bytes > METADATA_MAX_BYTES:
        raise SourceError(
            f"{path} has metadata of more than {METADATA_MAX_BYTES >> 20} MB, which a picture has no use for; save the "
            "picture again without them"
        )


def more_than(max_pixels: int) -> str:
    return f"more than capture.max_pixels = {max_pixels}"


def _unfolded_bytes(file: BinaryIO) -> int:
    """Return the size of the unpacked metadata, counted up to the limit."""
    total = 0
    while total <= METADATA_MAX_BYTES and len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind not in (b"zTXt", b"iCCP"):
            file.seek(length + 4, os.SEEK_CUR)
            continue
        data = file.read(min(length, METADATA_MAX_BYTES + 1))
        file.seek(length - len(data) + 4, os.SEEK_CUR)
        total += max(len(data), _unfold(data.partition(b"\0")[2][1:], METADATA_MAX_BYTES + 1 - total))
    return total


def _unfold(data: bytes, most: int) -> int:
    try:
        return len(zlib.decompressobj().decompress(data, most))
    except zlib.error:
        return 0


_KINDS = (
    (b"#EXTM3U", "an HLS playlist"),
    (b"ffconcat version", "a list of files (ffconcat)"),
    (b"<MPD", "a DASH manifest"),
    (b"<CompositionPlaylist", "an IMF playlist"),
    (b"v=0", "a description of a session (SDP)"),
)


def check_file(path: Path, max_pixels: int) -> None:
    """Check that a video file can be opened.

    Raises SourceNotFound if it does not exist, SourceError if it is no file, may not be read, is empty, is a playlist,
    or is a PNG beyond the limits of `check_png`.
    """
    if not os.path.exists(path):
        raise SourceNotFound(f"{path} does not exist; check the name, or use scene:NAME for a generated clip")
    if path.is_dir():
        raise SourceError(f"{path} is a folder; give one of the video files in it")
    if not os.access(path, os.R_OK):
        raise SourceError(f"{path} may not be read by this user; change its permissions")
    if path.is_file() and path.stat().st_size == 0:
        raise SourceError(f"{path} is empty; copy or record it again")
    if path.is_file():  # a pipe or a device can be read once only
        # FFmpeg would refuse a file that names other files too, with a less clear message
        with path.open("rb") as file:
            head = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
        for mark, kind in _KINDS:
            if head.startswith(mark) or (mark.startswith(b"<") and mark in head):
                raise SourceError(
                    f"{path} is {kind}, which names other files or addresses; only the source itself is opened, so "
                    f"give the video or its address, or join it first: ffmpeg -i {path.name} -c copy joined.mkv"
                )
        check_png(path, max_pixels)


NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Range of media time from `start_ns` to `end_ns`, exclusive; None is the end of the file.

    An episode in a file extends from `origin_ns`, which counts as 0, to `limit_ns`.
    """

    start_ns: int
    end_ns: int | None
    origin_ns: int = 0
    limit_ns: int | None = None

    @classmethod
    def of(cls, config: CaptureConfig) -> TimeRange:
        start_ns = round(config.start_s * NS_PER_S)
        return cls(start_ns, None if config.duration_s is None else start_ns + round(config.duration_s * NS_PER_S))

    def within(self, from_ns: int, to_ns: int, slack_ns: int) -> TimeRange:
        """Return the same range of an episode that extends from `from_ns` to `to_ns` in its file.

        These limits are rounded, so both move earlier by `slack_ns`.
        """
        if self.start_ns:
            start_ns = from_ns + self.start_ns
        else:
            start_ns = max(0, from_ns - slack_ns)
        if self.end_ns is None:
            end_ns = to_ns - slack_ns
        else:
            end_ns = min(from_ns + self.end_ns, to_ns - slack_ns)
        return TimeRange(start_ns, end_ns, from_ns, to_ns)

    def ended_by(self, media_ns: int) -> bool:
        """Return True if a frame at that time lies after the range."""
        return self.end_ns is not None and media_ns >= self.end_ns

    def empty(self, name: str, length_ns: int | None = None, instead: str = "") -> SourceOver:
        """Return the error of a file without a frame in the range; `instead` is another possible reason."""
        start = _time_text(self.start_ns - self.origin_ns)
        if self.end_ns is not None and (length_ns is None or self.start_ns < length_ns) and not instead:
            length_s = (self.end_ns - self.start_ns) / NS_PER_S
            return SourceOver(f"{name} has no frame in the {length_s:g} s from {start} on; give more --duration")
        if length_ns is None:
            length = ""
        else:
            length = f" (its length is {_time_text(length_ns - self.origin_ns)})"
        return SourceOver(f"{name} has no frame from {start} on{length}{instead}; give an earlier --start")


def _time_text(media_ns: int) -> str:
    """Return media time as it is given: seconds, from a minute on with a clock's parts."""
    if media_ns < 60 * NS_PER_S:
        return f"{media_ns / NS_PER_S:g} s"
    return clock_text(media_ns / NS_PER_S)


def refuse_time_range(config: CaptureConfig, name: str) -> None:
    """Raise ConfigError if a time range is set, for a live source."""
    for key, value in (("start_s", config.start_s), ("duration_s", config.duration_s)):
        if value:
            if key == "start_s":
                instead = "leave it out"
            else:
                instead = "--for ends a run after a time"
            raise ConfigError(f"capture.{key} = {value:g} is for files, and {name} is live; {instead}")


def refuse_stream(config: CaptureConfig, name: str) -> None:
    """Raise SourceError if a video stream other than 0 is chosen, for a source with one stream."""
    if config.stream:
        raise SourceError(
            f"{name} has no video stream {config.stream}, only stream 0; leave --stream (capture.stream) out"
        )


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif", ".heic", ".heif"})
"""File suffixes of pictures in a folder."""

_VIDEO_SUFFIXES = frozenset({".mp4", ".mkv", ".mov", ".webm", ".avi", ".ts", ".m4v", ".mpg", ".mpeg", ".flv"})
"""File suffixes of videos, which the error names for a folder without pictures."""

_PICTURE_KINDS = "png, jpg, webp, bmp, tif, gif, avif or heic"

_SHOWN = 3
"""Limit of names that a message lists."""


def is_pattern(address: str) -> bool:
    """Return True if an address names files by a pattern such as `shots/*.png`."""
    return glob.has_magic(address) and not os.path.lexists(address)


def natural_order(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sort key for natural order: img2 before img10."""
    parts = re.split(r"(\d+)", path.name.casefold())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part], str(path)


def pictures_of(address: str) -> list[Path]:
    """Return the pictures that an address names, in order.

    Raises SourceNotFound or SourceError if there are none.
    """
    if is_pattern(address):
        paths = [Path(name) for name in glob.iglob(address, recursive=True)]
        if not paths:
            raise SourceNotFound(f"no file matches {address}; check the pattern, or give the folder alone")
        place = f"what {address} names"
    else:
        folder = Path(address)
        try:
            paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            raise SourceError(
                f"the folder {folder} cannot be read: {error.strerror}; change its permissions"
            ) from error
        place = address
    pictures = sorted(
        (path for path in paths if path.suffix.casefold() in SUFFIXES and path.is_file()), key=natural_order
    )
    if not pictures:
        raise SourceError(_no_pictures(place, paths))
    return pictures


def root_of(address: str) -> Path:
    """Return the folder that an address names, or that its pattern searches."""
    if not is_pattern(address):
        return Path(address)
    plain = list(takewhile(lambda part: not glob.has_magic(part), Path(address).parts))
    return Path(*plain)


def _no_pictures(place: str, paths: Sequence[Path]) -> str:
    if not paths:
        return f"{place} is an empty folder; put pictures there ({_PICTURE_KINDS}), or give a video file"
    videos = sorted(str(path) for path in paths if path.suffix.casefold() in _VIDEO_SUFFIXES)
    if videos:
        names = ", ".join(videos[:_SHOWN]) + (", ..." if len(videos) > _SHOWN else "")
        return f"{place} holds videos and no pictures; give one of them: {names}"
    return f"no picture is in {place}; pictures are {_PICTURE_KINDS}"
