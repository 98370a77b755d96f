"""FFmpeg's errors on opening and reading something live, in words, with what to do about them."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import av


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something live cannot be had, and what to do about it."""

    reason: str
    remedy: str


TOO_SLOW = 0.9
"""Of a time limit: an error that comes this late is the limit's doing, whatever FFmpeg calls it."""

_CREDENTIALS = Failure(
    "wants another user name or password",
    "write them in front of the host name, as USER:PASSWORD@HOST, with %40 for an @ in them",
)
_MISSING = Failure("has no such stream", "check the path after the host name")
_REFUSED = Failure("refuses the connection: nothing listens there", "check host and port, and that the server runs")
_UNREACHABLE = Failure("cannot be reached from here", "check the address and the network")
_UNKNOWN_HOST = Failure(
    "cannot be reached: the host name is unknown, or the connection broke", "check the address and the network"
)
_NO_VIDEO = Failure("sends nothing that FFmpeg can read as video", "check that the address is that of a stream")
_TRANSPORT = Failure(
    "does not offer this transport", 'set capture.rtsp_transport to "tcp", or "udp", whichever it was not'
)
_PORT_TAKEN = Failure("is an address that another program on this machine uses", "end that program, or use another")
_UNSUPPORTED = Failure("needs a protocol that this FFmpeg lacks", "use rtsp://, http://, udp:// or rtmp:// instead")

_NETWORK: tuple[tuple[type[Exception], Failure], ...] = (
    (av.error.HTTPUnauthorizedError, _CREDENTIALS),
    (av.error.HTTPForbiddenError, _CREDENTIALS),
    (av.error.HTTPNotFoundError, _MISSING),
    (av.error.HTTPServerError, Failure("fails by itself (HTTP 5xx)", "look at the server, or try again later")),
    (av.error.HTTPClientError, Failure("refuses the request (HTTP 4xx)", "check the address")),
    (av.error.ConnectionRefusedError, _REFUSED),
    (av.error.ConnectionResetError, Failure("broke the connection", "look at the server, or try again later")),
    (av.error.ProtocolNotFoundError, _UNSUPPORTED),
    (av.error.InvalidDataError, _NO_VIDEO),
)
_NETWORK_NUMBERS = {
    errno.EHOSTUNREACH: _UNREACHABLE,
    errno.ENETUNREACH: _UNREACHABLE,
    errno.EADDRNOTAVAIL: _UNREACHABLE,
    errno.EADDRINUSE: _PORT_TAKEN,
    errno.EPROTONOSUPPORT: _TRANSPORT,
    errno.EIO: _UNKNOWN_HOST,
}

_NO_CAMERA = Failure("is not there", "plug the camera in, or choose one that `devices` lists")
_NOT_A_CAMERA = Failure("is no camera that gives pictures", "choose one that `devices` lists")
_CAMERA_NUMBERS = {
    errno.ENOENT: _NO_CAMERA,
    errno.ENODEV: _NO_CAMERA,
    errno.ENXIO: _NO_CAMERA,
    errno.EBUSY: Failure("is in use by another program", "end that program, or choose another camera"),
    errno.EACCES: Failure(
        "may not be opened by this user", "add the user to the group that owns it: sudo usermod -aG video $USER"
    ),
    errno.EPERM: Failure("may not be opened by this user", "give this program access to the camera"),
    errno.ENOTTY: _NOT_A_CAMERA,
    errno.EINVAL: Failure(
        "does not take this mode", "choose capture.camera_mode and capture.fps among those that `devices` lists"
    ),
}


def network_failure(error: av.FFmpegError, took_s: float, limit_s: float) -> Failure:
    """Why an address on a network could not be opened."""
    if isinstance(error, (av.error.ExitError, av.error.TimeoutError)) or took_s >= TOO_SLOW * limit_s:
        return too_slow(limit_s)
    for kind, failure in _NETWORK:
        if isinstance(error, kind):
            return failure
    return _NETWORK_NUMBERS.get(error.errno) or Failure(f"cannot be opened: {reason_of(error)}", "check the address")


def camera_failure(error: av.FFmpegError, took_s: float, limit_s: float) -> Failure:
    """Why a camera could not be opened."""
    if isinstance(error, av.error.ExitError):
        return camera_too_slow(limit_s)
    return _CAMERA_NUMBERS.get(error.errno) or Failure(f"cannot be opened: {reason_of(error)}", "try another camera")


def camera_too_slow(limit_s: float) -> Failure:
    """No picture came within the time limit."""
    return Failure(f"gives no picture within {limit_s:g} s", "plug it out and in again, or choose another camera")


def too_slow(limit_s: float) -> Failure:
    """Nothing, or nothing of use, came within the time limit."""
    return Failure(
        f"does not answer within {limit_s:g} s",
        "check the address, the network and that something sends there; capture.open_timeout_s sets how long to wait",
    )


def reading_failure(error: av.FFmpegError) -> str:
    """Why something live that was being read is lost."""
    if isinstance(error, av.error.InvalidDataError):
        return "what it sends is no video any more"
    if error.errno == errno.EIO:
        return "the connection broke"
    return reason_of(error)


def silent(stall_s: float) -> str:
    return f"no picture for {stall_s:g} s"


def reason_of(error: av.FFmpegError) -> str:
    """FFmpeg's own words, which hold no address."""
    words = error.strerror or type(error).__name__
    return words[:1].lower() + words[1:]
