"""Master playlists of HLS (RFC 8216, section 4.3.4): the chosen variant is opened in place of the playlist.

FFmpeg opens each variant of a master playlist, and its first segment. So the playlist is fetched here, and FFmpeg gets
the address of one variant.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urljoin, urlsplit

import av

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.address import redacted, scheme_of
from stream.sources.headers import HTTP, fetched
from stream.sources.mjpeg import AddressRequest, HttpOpening
from stream.sources.tls import ffmpeg_options
from stream.sources.variants import Variant, best_variant, report

_BEGINNING = b"#EXTM3U"
_VARIANT = "#EXT-X-STREAM-INF:"
_MEDIA = "#EXTINF:"
"""Tag of each segment, which no master playlist has."""

_ATTRIBUTE = re.compile(r'([A-Z0-9-]+)=("[^"]*"|[^",]*)')
_SIZE = re.compile(r"(\d{1,6})x(\d{1,6})")

_AUDIO = ("mp4a.", "ac-3", "ec-3", "ac-4", "opus", "Opus", "flac", "fLaC")
"""Beginnings of the codecs of variants that have sound only."""


class PlaylistOpening:
    """Opening of one address over HTTP, again and again: of a master playlist the chosen variant, all else as it is."""

    def __init__(self, address: str, config: CaptureConfig) -> None:
        self._name = redacted(address)
        self._config = config
        self._inner = HttpOpening()
        # the usual name saves a request
        self._is_playlist = ".m3u8" in address
        self._is_master: bool | None = None
        self.is_variant = False
        """True if the container that was opened last is the chosen variant of several."""

    def open(self, request: AddressRequest) -> av.container.InputContainer:
        """Open the address.

        FFmpeg finds out whether it is a playlist, because it refuses one at first; the first time a playlist is then
        fetched to see whether it is a master playlist, which is fetched each time.

        Raises av.FFmpegError, or SourceError if the master playlist has no variant of the number `capture.stream`.
        """
        self.is_variant = False
        start_s = time.monotonic()
        if not self._is_playlist:
            # without that format FFmpeg refuses a playlist with an ArgumentError
            formats = request.options["format_whitelist"].split(",")
            allowed = ",".join(name for name in formats if name != "hls")
            options = {**request.options, "format_whitelist": allowed}
            try:
                return self._inner.open(replace(request, options=options))
            except av.error.ArgumentError:
                self._is_playlist = True
        # half of the time, so that FFmpeg can open what cannot be fetched here
        if self._is_master is False:
            address = None
        else:
            address = self._variant(request, request.open_s / 2)
        left_s = max(request.open_s - (time.monotonic() - start_s), 1.0)
        if address is None:
            return self._inner.open(replace(request, open_s=left_s))
        self.is_variant = True
        options = {**request.options, **ffmpeg_options(scheme_of(address) or "", self._config)}
        options.pop("max_redirects", None)  # as for all that FFmpeg requests after a playlist
        return self._inner.open(replace(request, address=address, options=options, open_s=left_s))

    def _variant(self, request: AddressRequest, limit_s: float) -> str | None:
        """Return the address of the variant to read; None if there is no choice.

        Raises SourceError for a wrong number, and av.FFmpegError if a known master playlist cannot be fetched.
        """
        playlist = fetched(request.address, request.headers, self._config, limit_s, _BEGINNING)
        if playlist is None:
            if self._is_master:
                raise av.error.OSError(errno.EIO, "no playlist")
            return None
        address, content = playlist
        variants = variants_of(content.decode(errors="replace"), address)
        if not variants:
            self._is_master = False
            return None
        choices = [variant for variant, _ in variants]
        number = self._config.stream
        if number is None:
            selection = best_variant(choices, self._config)
        elif number < len(choices):
            selection = choices[number]
        else:
            raise SourceError(f"{self._name} has no video stream {number}; there is {'; '.join(map(str, choices))}")
        if self._is_master is None and self._config.stream is None and len(variants) > 1:
            report(self._name, choices, selection)
        self._is_master = True
        return variants[selection.index][1]


def variants_of(playlist: str, address: str) -> list[tuple[Variant, str]]:
    """Return the video variants of a master playlist, and their addresses.

    Empty if there is nothing to choose by: it is a media playlist, or the size of a variant is unknown. Variants that
    are not on a web server are left out, as by FFmpeg, and so are those with sound only.

    Args:
        playlist: Text of the playlist.
        address: Its URL, to which those of the variants are relative.
    """
    variants: list[tuple[Variant, str]] = []
    for attributes, uri in _entries(playlist):
        target = _web_address(address, uri)
        if target is None:
            continue
        size = _SIZE.fullmatch(attributes.get("RESOLUTION", ""))
        if size is None:
            codecs = attributes.get("CODECS", "").split(",")
            if all(codec.strip().startswith(_AUDIO) for codec in codecs):
                continue
            return []
        rate = attributes.get("BANDWIDTH", "")
        if rate.isdecimal() and len(rate) < 16:
            bit_rate = int(rate)
        else:
            bit_rate = 0
        variants.append((Variant(len(variants), int(size[1]), int(size[2]), bit_rate), target))
    return variants


def _entries(playlist: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield attributes and URI of each variant; nothing for a media playlist."""
    attributes: dict[str, str] | None = None
    lines = [line.strip() for line in playlist.splitlines()]
    if any(line.startswith(_MEDIA) for line in lines):
        return
    for line in lines:
        if line.startswith(_VARIANT):
            pairs = _ATTRIBUTE.findall(line.removeprefix(_VARIANT))
            attributes = {name: value.strip('"') for name, value in pairs}
        elif line and not line.startswith("#") and attributes is not None:
            yield attributes, line
            attributes = None


def _web_address(base: str, uri: str) -> str | None:
    """Return the URL of a variant; None if it is not on a web server."""
    try:
        target = urljoin(base, uri)
        if scheme_of(target) in HTTP and urlsplit(target).hostname:
            return target
        return None
    except ValueError:
        return None
