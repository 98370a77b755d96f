"""MJPEG over HTTP as cameras send it, read as tolerantly as browsers do.

FFmpeg's demuxer of `multipart/x-mixed-replace` insists on a boundary before the first part, on parts of the type
`image/jpeg`, and on true lengths. Many cameras do without. So FFmpeg reads the bytes, the pictures are found by their
own structure, and its demuxer gets them as parts without a fault.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import av
from av.codec.hwaccel import HWAccel

from stream.sources.headers import RequestHeaders
from stream.sources.jpeg_splitter import JpegSplitter

MULTIPART = "mpjpeg"
"""FFmpeg's demuxer of MJPEG in parts."""

_PICTURES = frozenset({MULTIPART, "mjpeg", "jpeg_pipe"})
"""Demuxers that FFmpeg chooses for a camera's pictures, by its content type or its first bytes."""

_RAW = {"raw_packet_size": str(1 << 16)}
"""Option of the raw data: longest packet; a packet has what has arrived."""

_PROLOGUE_BYTES_MAX = 1 << 16
"""Bytes before the first picture after which a resource is no MJPEG."""


@dataclass(frozen=True, slots=True)
class AddressRequest:
    """Address on a network, FFmpeg's options for it, and limits of opening and of each read, in seconds.

    `headers` are those that the options contain. Address, options and headers may hold secrets.
    """

    address: str = field(repr=False)
    options: Mapping[str, str] = field(repr=False)
    open_s: float
    read_s: float
    accelerator: HWAccel | None = None
    headers: RequestHeaders = field(default_factory=RequestHeaders)

    def open(self) -> av.container.InputContainer:
        """Open whatever the address sends. Raises av.FFmpegError."""
        return av.open(
            self.address,
            options=dict(self.options),
            timeout=(self.open_s, self.read_s),
            metadata_errors="replace",
            hwaccel=self.accelerator,
        )


class MjpegReader:
    """Bytes of an address as an input of FFmpeg: the JPEG pictures among them, in parts without a fault."""

    def __init__(self, request: AddressRequest) -> None:
        """Open the address. Raises av.FFmpegError."""
        options = {**request.options, **_RAW}
        self._container: av.container.InputContainer | None = av.open(
            request.address, format="data", options=options, timeout=(request.open_s, request.read_s)
        )
        self._splitter = JpegSplitter()
        self._ready = bytearray()
        self._prologue_bytes = 0
        self._read_s = request.read_s

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes as soon as there are any; none at the end.

        Raises av.FFmpegError, also if what arrives is no picture for as long as a read may take.
        """
        since_s = time.monotonic()
        while not self._ready and self._container is not None:
            try:
                self._read_more(self._container)
                if not self._ready and time.monotonic() - since_s > self._read_s:
                    raise av.error.TimeoutError(errno.ETIMEDOUT, "no picture")
            except av.FFmpegError:
                self.close()
                raise
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def _read_more(self, container: av.container.InputContainer) -> None:
        data = bytes(next(container.demux()))  # the last packet has no bytes
        for picture in self._splitter.feed(data):
            self._ready += f"--p\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n".encode()
            self._ready += picture + b"\r\n"
        if self._splitter.found_picture:
            self._prologue_bytes = 0
        else:
            self._prologue_bytes += len(data)
        if not data or self._prologue_bytes > _PROLOGUE_BYTES_MAX:
            self.close()


class HttpOpening:
    """Opening of one address over HTTP, again and again: MJPEG tolerantly, all else by FFmpeg alone."""

    def __init__(self) -> None:
        self._is_mjpeg = False

    def open(self, request: AddressRequest) -> av.container.InputContainer:
        """Open the address. Raises av.FFmpegError.

        The first time FFmpeg finds out what it is; MJPEG is then asked for once more.
        """
        if self._is_mjpeg:
            return _open_mjpeg(request)
        start_s = time.monotonic()
        failure: av.FFmpegError | None = None
        try:
            container = request.open()
            if container.format.name not in _PICTURES or container.size > 0:
                return container
            container.close()
        except av.error.InvalidDataError as error:
            failure = error
        left_s = max(request.open_s - (time.monotonic() - start_s), 1.0)
        try:
            container = _open_mjpeg(replace(request, open_s=left_s))
        except av.FFmpegError as error:
            raise failure or error from None
        self._is_mjpeg = True
        return container


def close_container(container: av.container.InputContainer) -> None:
    """Close a container and the connection behind it, in the thread that reads it. Idempotent.

    A container does not close its input itself. Only its own is closed: an attempt to open that took too long may still
    read another one in its thread, which FFmpeg does not survive if it is closed there.
    """
    container.close()
    reader = getattr(container.file, "file", None)
    if isinstance(reader, MjpegReader):
        reader.close()


def _open_mjpeg(request: AddressRequest) -> av.container.InputContainer:
    reader = MjpegReader(request)
    try:
        return av.open(
            reader,
            format=MULTIPART,
            options=dict(request.options),
            metadata_errors="replace",
            hwaccel=request.accelerator,
        )
    except av.FFmpegError:
        reader.close()
        raise
