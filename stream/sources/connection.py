"""Opening something live: a camera or an address on a network, within a time limit, with little delay."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import av

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.address import redacted, scheme_of, scrubbed
from stream.sources.failures import Failure, camera_failure, camera_too_slow, network_failure, too_slow
from stream.sources.limits import address_options

US_PER_S = 1_000_000

GRACE_S = 0.5
"""How much longer than its own time limit FFmpeg may take: a name server, for instance, does not look at it."""

_NONBLOCK = 4
"""AVFMT_FLAG_NONBLOCK, which FFmpeg knows by number only: a camera that hangs would hold its reader for ever."""

_DESCRIBED = {"fflags": "nobuffer", "probesize": "32"}
"""For protocols that say beforehand which streams there are: opening reads hardly anything, and the decoder finds size
and format by itself. Measured on loopback at 25 FPS: first picture after 0.4 s (the key frame) instead of 1.6 s."""

_PROBED = {"fflags": "nobuffer", "fpsprobesize": "4", "analyzeduration": str(US_PER_S // 2)}
"""For the others: opening looks for streams, and measures the frame rate over a few frames only."""

_OPTIONS = {
    **dict.fromkeys(("rtsp", "rtsps"), _DESCRIBED),
    **dict.fromkeys(("udp", "rtp", "tcp", "rtmp", "rtmps"), _PROBED),
}

_RESUMABLE = frozenset({"rtsp", "rtsps"})
"""A read that timed out gives the last picture, which FFmpeg held back until it saw the next one begin, and may then be
tried again: two of them make up `capture.stall_s`."""

_RTP_WAIT = str(US_PER_S // 10)
"""How long a gap in RTP over UDP is waited for; FFmpeg's own half a second would be seen."""

_UDP_BUFFER_BYTES = 1 << 22
"""What the system may hold of a UDP stream while nobody reads: a key frame comes in one burst."""

_HTTP_LIVE_FORMATS = frozenset({"mpjpeg"})

log = logging.getLogger(__name__)

Open = Callable[[float], av.container.InputContainer]
"""Opens something live within so many seconds; raises SourceError."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something live that can be opened, and opened again.

    `name` holds no secrets, `too_slow` says why nothing came within a time limit, and `paced` that pictures come in
    bursts, and are handed on at the pace of their PTS.
    """

    name: str
    open: Open
    too_slow: Callable[[float], Failure] = too_slow
    paced: bool = False


def network_target(address: str, config: CaptureConfig) -> Target:
    """An address on a network."""
    name = redacted(address)

    def open_it(limit_s: float) -> av.container.InputContainer:
        options = {**network_options(address, config), **address_options(scheme_of(address) or "", config)}
        timeout = (limit_s, config.stall_s / 2 if scheme_of(address) in _RESUMABLE else config.stall_s)
        return _opened(lambda: av.open(address, options=options, timeout=timeout, metadata_errors="replace"), limit_s)

    def _opened(call: Callable[[], av.container.InputContainer], limit_s: float) -> av.container.InputContainer:
        start_s = time.monotonic()
        try:
            return call()
        except av.FFmpegError as error:
            failure = network_failure(error, time.monotonic() - start_s, limit_s)
        except ValueError as error:
            failure = Failure(f"cannot be opened: {scrubbed(str(error), address)}", "check the address")
        raise cannot(name, failure)

    return Target(name, open_it)


def camera_target(device: str, config: CaptureConfig) -> Target:
    """A camera of this machine, through V4L2."""

    def open_it(limit_s: float) -> av.container.InputContainer:
        start_s = time.monotonic()
        try:
            timeout = (limit_s, config.stall_s)
            return av.open(device, format="v4l2", options=camera_options(config), timeout=timeout)
        except av.FFmpegError as error:
            failure = camera_failure(error, time.monotonic() - start_s, limit_s)
        except ValueError:
            failure = Failure("cannot be opened: FFmpeg was built without V4L2", "use Linux, or a network camera")
        raise cannot(device, failure)

    return Target(device, open_it, camera_too_slow)


def network_options(address: str, config: CaptureConfig) -> dict[str, str]:
    """FFmpeg's options: little delay, and a file on a web server is asked for again where it broke off."""
    scheme = scheme_of(address)
    options = dict(_OPTIONS.get(scheme or "", {}))
    if scheme in ("rtsp", "rtsps"):
        options["rtsp_transport"] = config.rtsp_transport
        options["buffer_size"] = str(_UDP_BUFFER_BYTES)
        options["max_delay"] = _RTP_WAIT
        options["allowed_media_types"] = "video"
    elif scheme in ("udp", "rtp"):
        options["buffer_size"] = str(_UDP_BUFFER_BYTES)
    elif scheme in ("http", "https"):
        options |= {"reconnect": "1", "reconnect_delay_max": "2"}
    return options


def camera_options(config: CaptureConfig) -> dict[str, str]:
    """FFmpeg's options for `capture.camera_mode` and `capture.fps`."""
    options = {"fflags": f"nobuffer+{_NONBLOCK}"}
    if config.camera_mode is not None:
        size, _, pixel_format = config.camera_mode.partition(":")
        options["video_size"] = size
        if pixel_format:
            options["input_format"] = pixel_format
    if config.fps is not None:
        options["framerate"] = f"{config.fps:g}"
    return options


def is_endless(container: av.container.InputContainer) -> bool:
    """Whether what came over HTTP is live: of no known length, neither in bytes nor in time."""
    if container.format.name in _HTTP_LIVE_FORMATS:
        return True
    if container.format.name == "hls":
        return container.duration is None
    return container.duration is None and container.size <= 0


def opened_within(target: Target, limit_s: float) -> av.container.InputContainer:
    """Opens in a thread of its own, so that nothing that FFmpeg waits for can hold the caller beyond the limit.

    Raises SourceError. What opens after that is closed at once.
    """
    opening = _Opening(target, limit_s)
    opening.start()
    return opening.result(limit_s + GRACE_S)


def cannot(name: str, failure: Failure) -> SourceError:
    return SourceError(f"{name} {failure.reason}; {failure.remedy}")


class _Opening(threading.Thread):
    """One attempt to open a target."""

    def __init__(self, target: Target, limit_s: float) -> None:
        super().__init__(name="open source", daemon=True)
        self._target = target
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._abandoned = False
        self._container: av.container.InputContainer | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        container = None
        try:
            container = self._target.open(self._limit_s)
        except Exception as error:
            self._error = error
        with self._lock:
            self._container = container
            self._done.set()
            if container is not None and self._abandoned:
                container.close()

    def result(self, timeout_s: float) -> av.container.InputContainer:
        try:
            self._done.wait(timeout_s)
        finally:
            with self._lock:
                self._abandoned = not self._done.is_set()
        if self._error is not None:
            raise self._error
        if self._container is None:
            raise cannot(self._target.name, self._target.too_slow(self._limit_s))
        return self._container
