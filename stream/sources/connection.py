"""Opening an address within a time limit, FFmpeg's errors as advice, and limits on what FFmpeg may open.

A playlist, a session description and a name with `%d` lead to other files and addresses. FFmpeg's whitelists therefore
allow a local source to open that one file only; an address may lead to other addresses, as HLS does, never to a file.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass

import av

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.address import scheme_of, scrubbed
from stream.sources.checks import RELAY, more_than
from stream.sources.hardware import HardwareDecoding
from stream.sources.headers import HTTP, REDIRECTS_MAX, RequestHeaders, redirect_of, same_server
from stream.sources.mjpeg import MULTIPART, AddressRequest, close_container
from stream.sources.tls import ffmpeg_options, problem_at

PLAYLISTS = frozenset({"hls", "dash", "webm_dash_manifest", "concat", "sdp", "imf", "hds", "smoothstreaming", "lavfi"})
"""Demuxers whose content names other files or addresses to open."""

SIBLINGS = frozenset({"mlv", "vobsub"})
"""Demuxers that open a file of a similar name beside the given file."""

OVER_HTTP = frozenset({"hls", "dash"})
"""Usual playlist formats of video on a web server."""

_PROTOCOLS = {
    **dict.fromkeys(("http", "https"), "http,https,tls,tcp,httpproxy,crypto,data"),
    **dict.fromkeys(("rtsp", "rtsps"), "rtsp,rtsps,rtp,srtp,udp,tcp,tls,http,https,httpproxy,crypto"),
    **dict.fromkeys(("rtmp", "rtmps"), "rtmp,rtmps,rtmpe,rtmpt,rtmpts,ffrtmpcrypt,ffrtmphttp,tcp,tls,http,https"),
    "rtp": "rtp,srtp,udp,crypto",
    "udp": "udp",
    "tcp": "tcp",
    "srt": "srt",
}


_ANY_SEGMENT = {"extension_picky": "0", "allowed_extensions": "ALL", "allowed_segment_extensions": "ALL"}
"""Options of HLS: segments may have any name (`.jpg`, `.php`, `?session=`), as in players. The list of protocols, not
their names, keeps a playlist from files."""

_ONE_PROGRAM = {"merge_pmt_versions": "1"}
"""Option of MPEG-TS: a stream goes on if its PID changes midway. Otherwise FFmpeg begins another one, which is not
read."""


def decoder_options(max_pixels: int) -> dict[str, str]:
    """Return FFmpeg's options for a decoder that allocates no memory for a larger picture."""
    return {"max_pixels": str(max_pixels)}


def file_options(config: CaptureConfig) -> dict[str, str]:
    """Return FFmpeg's options for a local file or standard input, which open nothing else."""
    return {
        **decoder_options(config.max_pixels),
        **_ONE_PROGRAM,
        "protocol_whitelist": "file",
        "format_whitelist": _formats_without(PLAYLISTS | SIBLINGS),
        "pattern_type": "none",  # image2: a %d in a name is part of the name
    }


def address_options(scheme: str, config: CaptureConfig) -> dict[str, str]:
    """Return FFmpeg's options for a network address, which never open a file, whatever the server sends."""
    options = {**decoder_options(config.max_pixels), **_ONE_PROGRAM, "protocol_whitelist": _PROTOCOLS[scheme]}
    if scheme in ("http", "https"):
        options["format_whitelist"] = _formats_without((PLAYLISTS - OVER_HTTP) | SIBLINGS)
        options |= _ANY_SEGMENT
    elif scheme in ("srt", "tcp", "udp"):
        options["format_whitelist"] = _formats_without(PLAYLISTS | SIBLINGS)
    return options


def too_large(max_pixels: int) -> str:
    """Return the reason that a decoder rejects a picture."""
    return f"{more_than(max_pixels)}, or damaged"


def decoding_failure(error: av.FFmpegError, max_pixels: int) -> str:
    """Return the reason that a packet does not decode: FFmpeg's message, unless it is "Invalid argument"."""
    if isinstance(error, av.error.ArgumentError):
        return too_large(max_pixels)
    return error.strerror or str(error)


def _formats_without(refused: frozenset[str]) -> str:
    return ",".join(sorted(name for name in av.formats_available if name not in refused))


@dataclass(frozen=True, slots=True)
class FailureAdvice:
    """Reason that a live source cannot be read, and the remedy."""

    reason: str
    remedy: str


CREDENTIALS = FailureAdvice(
    "rejects the user name or password",
    "write them in front of the host name, as USER:PASSWORD@HOST, with %40 for an @ in them",
)
_MISSING = FailureAdvice("has no such stream", "check the path after the host name")
_NOT_GIVEN = FailureAdvice(
    "has no such stream, or does not give it out", "check the path after the host name, and that something sends there"
)
REFUSED = FailureAdvice(
    "refuses the connection: nothing listens there", "check host and port, and that the server runs"
)
UNREACHABLE = FailureAdvice("cannot be reached from here", "check the address and the network")
UNKNOWN_HOST = FailureAdvice(
    "cannot be reached: the host name is unknown, or the connection broke", "check the address and the network"
)
_NO_VIDEO = FailureAdvice("sends nothing that FFmpeg can read as video", "check that the address is that of a stream")
_TRANSPORT = FailureAdvice(
    "does not offer this transport", 'set capture.rtsp_transport to "tcp", or "udp", the one that it was not'
)
_PORT_TAKEN = FailureAdvice(
    "is an address that another program on this machine uses", "end that program, or use another"
)
_UNSUPPORTED = FailureAdvice("needs a protocol that this FFmpeg lacks", RELAY)

_NETWORK: tuple[tuple[type[Exception], FailureAdvice], ...] = (
    (av.error.HTTPUnauthorizedError, CREDENTIALS),
    (av.error.HTTPForbiddenError, CREDENTIALS),
    (av.error.HTTPNotFoundError, _MISSING),
    (
        av.error.HTTPServerError,
        FailureAdvice("reports a server error (HTTP 5xx)", "check the server, or try again later"),
    ),
    (av.error.HTTPClientError, FailureAdvice("refuses the request (HTTP 4xx)", "check the address")),
    (av.error.ConnectionRefusedError, REFUSED),
    (av.error.ConnectionResetError, FailureAdvice("broke the connection", "check the server, or try again later")),
    (av.error.ProtocolNotFoundError, _UNSUPPORTED),
    (av.error.InvalidDataError, _NO_VIDEO),
)
_NETWORK_NUMBERS = {
    errno.EPERM: _NOT_GIVEN,
    errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETUNREACH: UNREACHABLE,
    errno.EADDRNOTAVAIL: UNREACHABLE,
    errno.EADDRINUSE: _PORT_TAKEN,
    errno.EPROTONOSUPPORT: _TRANSPORT,
    errno.EIO: UNKNOWN_HOST,
}


def network_failure(error: av.FFmpegError, took_s: float, limit_s: float) -> FailureAdvice:
    """Return the reason that an address on a network could not be opened."""
    # an error after this share of the time limit is a timeout, whatever FFmpeg calls it
    if isinstance(error, (av.error.ExitError, av.error.TimeoutError)) or took_s >= 0.9 * limit_s:
        return too_slow(limit_s)
    for kind, failure in _NETWORK:
        if isinstance(error, kind):
            return failure
    return _NETWORK_NUMBERS.get(error.errno) or FailureAdvice(
        f"cannot be opened: {reason_of(error)}", "check the address"
    )


def too_slow(limit_s: float) -> FailureAdvice:
    """Return the advice for an address that did not answer in time."""
    return FailureAdvice(
        f"does not answer within {limit_s:g} s",
        "check the address, the network and that something sends there; capture.open_timeout_s sets how long to wait",
    )


def no_key_frame(limit_s: float) -> FailureAdvice:
    """Return the advice for a source whose packets arrive, but without the key frame that decoding begins with."""
    return FailureAdvice(
        f"sends no key frame within {limit_s:g} s",
        "let it send key frames more often, or set capture.open_timeout_s above the time between two of them",
    )


def reading_failure(error: av.FFmpegError) -> str:
    """Return the reason that a live source was lost."""
    if isinstance(error, av.error.InvalidDataError):
        return "its data is no longer video"
    if error.errno == errno.EIO:
        return "the connection broke"
    if isinstance(error, av.error.ExternalError):
        return "the device or its display failed"
    return reason_of(error)


def silent(stall_s: float) -> str:
    return f"no picture for {stall_s:g} s"


def reason_of(error: av.FFmpegError) -> str:
    """Return FFmpeg's message, which contains no address."""
    words = error.strerror or type(error).__name__
    return words[:1].lower() + words[1:]


US_PER_S = 1_000_000

# No `fflags=nobuffer` in either: it discards what opening has read, the first key frame with it, so that the first
# picture waits for the next one. What opening has read is decoded at once, so it delays no later picture.
_DESCRIBED = {"probesize": "32"}
"""Options for protocols that announce their streams: opening reads hardly anything, and the decoder detects size and
format. Measured on loopback at 25 FPS: first picture after 0.4 s (the key frame) instead of 1.6 s."""

_PROBED = {"fpsprobesize": "4", "analyzeduration": str(US_PER_S // 2)}
"""Options for other protocols: opening searches for streams, and measures the frame rate over a few frames only."""

_OPTIONS = {
    **dict.fromkeys(("rtsp", "rtsps"), _DESCRIBED),
    **dict.fromkeys(("udp", "rtp", "srt", "tcp", "rtmp", "rtmps"), _PROBED),
}

_RESUMABLE = frozenset({"rtsp", "rtsps"})
"""Schemes whose reads may be repeated after a timeout, which returns the last picture, held back by FFmpeg until the
next one begins: two such reads make up `capture.stall_s`."""

_RTP_WAIT = str(US_PER_S // 10)
"""Wait for missing packets in RTP over UDP, in µs; FFmpeg's default of half a second would be visible."""

_UDP_BUFFER_BYTES = 1 << 22
"""Receive buffer of a UDP stream in bytes: a key frame arrives in one burst."""

_REDIRECTS_TOO_OFTEN = FailureAdvice("redirects again and again", "check the address in a browser")

Open = Callable[[float], av.container.InputContainer]
"""Open a live source within a time limit in seconds. Raises SourceError."""


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """Live source that can be opened repeatedly.

    `name` has no secrets. `too_slow` returns the advice if nothing arrives within a time limit. `paced`: pictures
    arrive in bursts and are released at the pace of their PTS. `hardware` chose the decoder; None is software.
    `is_variant` returns True if the container that was opened last is the chosen variant of several.
    """

    name: str
    open: Open
    too_slow: Callable[[float], FailureAdvice] = too_slow
    paced: bool = False
    hardware: HardwareDecoding | None = None
    is_variant: Callable[[], bool] = lambda: False


def opened_network(
    address: str,
    name: str,
    config: CaptureConfig,
    hardware: HardwareDecoding,
    limit_s: float,
    opened: Callable[[AddressRequest], av.container.InputContainer] = AddressRequest.open,
) -> av.container.InputContainer:
    """Open a network address with FFmpeg.

    Args:
        address: URL, with credentials if the server needs them.
        name: Name of the source in errors.
        config: Options of the capture; `stall_s` limits each read.
        hardware: Decoding hardware to use.
        limit_s: Time limit of opening.
        opened: Function that opens it.

    Raises:
        SourceError: If the address cannot be opened.
        ConfigError: If `capture.ca_file` or `capture.headers` is invalid.
    """
    headers = RequestHeaders.of(config)
    start_s = time.monotonic()
    for _ in range(REDIRECTS_MAX):
        left_s = limit_s - (time.monotonic() - start_s)
        if left_s <= 0:  # to PyAV a negative limit is none
            raise cannot(name, too_slow(limit_s))
        request = _request_to(address, config, hardware, headers, left_s)
        try:
            return opened(request)
        except av.FFmpegError as error:
            took_s = time.monotonic() - start_s
            left_s = max(limit_s - took_s, 1.0)
            target = None
            if headers.follow_no_redirect and error.errno == errno.EIO:
                target = redirect_of(address, headers, config, left_s)
            if target is None:
                if error.errno == errno.EIO:
                    problem = problem_at(address, config, left_s)
                else:
                    problem = None
                raise cannot(
                    name, network_failure(error, took_s, limit_s) if problem is None else FailureAdvice(*problem)
                ) from error
            if not same_server(address, target):
                headers = headers.for_others()
            address = target
        except ValueError as error:
            reason = f"cannot be opened: {scrubbed(str(error), address)}"
            raise cannot(name, FailureAdvice(reason, "check the address")) from error
    raise cannot(name, _REDIRECTS_TOO_OFTEN)


def _request_to(
    address: str, config: CaptureConfig, hardware: HardwareDecoding, headers: RequestHeaders, limit_s: float
) -> AddressRequest:
    scheme = scheme_of(address) or ""
    options = {**network_options(address, config), **address_options(scheme, config), **ffmpeg_options(scheme, config)}
    if scheme in HTTP:
        options |= headers.ffmpeg_options(address)
    if scheme in _RESUMABLE:
        read_s = config.stall_s / 2
    else:
        read_s = config.stall_s
    return AddressRequest(address, options, limit_s, read_s, hardware.accelerator, headers)


def network_options(address: str, config: CaptureConfig) -> dict[str, str]:
    """Return FFmpeg's options for low delay, and for resuming a file from a web server after a broken connection."""
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


_NO_TIMESTAMPS = 0x80
"""AVFMT_NOTIMESTAMPS: the flag of FFmpeg's demuxers for formats that carry no times."""


def has_times(container: av.container.InputContainer) -> bool:
    """Return False if the PTS are FFmpeg's own count at 25 FPS, because the format carries no times (MJPEG, raw H.264,
    pictures one after the other)."""
    return not (container.format.flags & _NO_TIMESTAMPS or container.format.name.endswith("_pipe"))


def is_endless(container: av.container.InputContainer) -> bool:
    """Return True if a resource over HTTP is live: its length is unknown, in bytes and in time."""
    if container.format.name == MULTIPART:
        return True
    if container.format.name == "hls":
        return container.duration is None
    return container.duration is None and container.size <= 0


def opened_within(target: LiveTarget, limit_s: float) -> av.container.InputContainer:
    """Open a target in a separate thread, so that no wait of FFmpeg can hold the caller beyond the limit.

    A container that opens later is closed at once. Raises SourceError.
    """
    opening: Future[av.container.InputContainer] = Future()

    def attempt() -> None:
        try:
            container = target.open(limit_s)
        except Exception as error:
            if opening.set_running_or_notify_cancel():
                opening.set_exception(error)
            return
        if opening.set_running_or_notify_cancel():
            opening.set_result(container)
        else:
            close_container(container)

    threading.Thread(target=attempt, name="open source", daemon=True).start()
    try:
        # FFmpeg may exceed its limit by this, because name resolution, for instance, does not respect it
        return opening.result(limit_s + 0.5)
    except WaitedTooLong as error:
        if opening.cancel():
            raise cannot(target.name, target.too_slow(limit_s)) from error
        return opening.result()
    finally:
        opening.cancel()


def cannot(name: str, failure: FailureAdvice) -> SourceError:
    return SourceError(f"{name} {failure.reason}; {failure.remedy}")
