"""Addresses of sources: parsing, and forms without secrets for messages."""

from __future__ import annotations

import os
import re
import sys
from urllib.parse import unquote

from stream.config import Config
from stream.untrusted import replace_surrogates

HIDDEN = "***"
"""Replacement for a secret in an address that is shown."""

NETWORK_SCHEMES = frozenset(
    {"rtsp", "rtsps", "http", "https", "udp", "rtp", "rtmp", "rtmps", "srt", "tcp", "onvif", "onvifs"}
)

SCENE_PREFIX = "scene:"
"""Prefix of the name of a generated scene."""

LEROBOT_PREFIX = "lerobot:"
"""Prefix of the folder of a LeRobot dataset."""

SCREEN_PREFIX = "screen:"
"""Prefix of the name of a display; alone it names the display in use."""

STDIN = "-"
"""Address of standard input."""

BROWSER = "browser:"
"""Prefix of a source that is the camera of a web page's viewer."""

ZMQ_PREFIX = "zmq+"
"""Prefix of the address of a ZeroMQ socket that sends frames."""

PULL = "?pull"
"""Suffix of a ZeroMQ address: take every frame of a PUSH socket instead of the newest frame of a PUB socket."""

ONE_DESKTOP = ("darwin", "win32")
"""Values of `sys.platform` of systems with one desktop, whose cameras have numbers instead of device files."""

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")
_SLASHED_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s@:]*:(?!\d+[/?#])[^\s]*@")
"""A password with an unescaped "/": an invalid address that users may type."""

_PARAMETER = re.compile(
    r"([?&;/#][\w.%-]*(?:pass|pwd|psw|token|secret|key|sig|auth|cred|session|streamid|jwt|user|usr|login)[\w.%-]*=)([^&;#\s]*)",
    re.IGNORECASE,
)
_CAMERA = re.compile(r"\d{1,3}|/dev/(video\d+|v4l/.+)")


def scheme_of(address: str) -> str | None:
    """Return the text before "://", in lower case; None for a path."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else None


def camera_of(address: str, platform: str = sys.platform) -> str | None:
    """Return the camera's device that an address names, None for other sources.

    `0` is /dev/video0 unless there is a file of that name; on macOS and Windows the number itself names the camera.
    """
    if not _CAMERA.fullmatch(address):
        return None
    if not address.isdigit():
        return address
    if os.path.exists(address):
        return None
    if platform in ONE_DESKTOP:
        return address
    return f"/dev/video{address}"


def is_read_once(address: str) -> bool:
    """Return True if a source can be read only once, so that a second process could not continue it."""
    return address == STDIN or (address.startswith(ZMQ_PREFIX) and address.endswith(PULL))


def is_live_address(address: str) -> bool:
    """Return True if the form of an address is that of a live source; HTTP may serve a file, so only HLS counts."""
    scheme = scheme_of(address)
    if scheme in {"http", "https"}:
        return ".m3u8" in address
    return camera_of(address) is not None or address.startswith(SCREEN_PREFIX) or scheme is not None


def has_slashed_credentials(address: str) -> bool:
    """Return True if the password has a "/" not written as %2F, which ends the host part of the address."""
    return _CREDENTIALS.search(address) is None and _SLASHED_CREDENTIALS.search(address) is not None


def redacted(address: str) -> str:
    """Return an address for messages: user, password and secret-looking parameters are `***`; a path is
    unchanged, but for bytes that are not UTF-8, which become `\\xe9`."""
    if scheme_of(address) is None:
        return replace_surrogates(address)
    text = _CREDENTIALS.sub(f"{HIDDEN}@", address)
    if text == address:
        text = _SLASHED_CREDENTIALS.sub(f"{HIDDEN}@", address)
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)


def name_of(address: str) -> str:
    """Return the name of a source for viewers on other machines: the last part of a local path, else the redacted
    address."""
    scheme = scheme_of(address)
    prefix = ""
    path = address
    if address.startswith(LEROBOT_PREFIX):
        prefix = LEROBOT_PREFIX
        path = address.removeprefix(LEROBOT_PREFIX)
    elif scheme in ("file", "zmq+ipc"):
        prefix = f"{scheme}://"
        path = address.partition("://")[2]
    elif scheme is not None:
        return redacted(address)
    return replace_surrogates(prefix + (os.path.basename(path.rstrip("/")) or path))


def camera_name(config: Config) -> str:
    """Return the name of a run's camera: the configured one, or one made from the source without its secrets."""
    return config.value("past.camera") or name_of(camera_of(config.source) or config.source)


def scrubbed(text: str, address: str) -> str:
    """Return a text without the secrets of `address` and the credentials of other addresses in it."""
    text = text.replace(address, redacted(address))
    for secret in _secrets(address):
        text = text.replace(secret, HIDDEN)
    return _CREDENTIALS.sub(f"{HIDDEN}@", text)


def shown_config(config: Config) -> Config:
    """Return a configuration for logs and recordings: addresses and sections without secrets, the values of headers as
    `***`."""
    capture = config.capture.model_copy(update={"headers": dict.fromkeys(config.capture.headers, HIDDEN)})
    sections = {name: section.shown() for name, section in config.sections().items()}
    return config.model_copy(update={"source": redacted(config.source), "capture": capture, **sections})


def _secrets(address: str) -> list[str]:
    """Return the secrets of an address, longest first, in written and in decoded form."""
    if scheme_of(address) is None:
        return []
    secrets: set[str] = {value for _, value in _PARAMETER.findall(address)}
    for credentials in _CREDENTIALS.findall(address) or _SLASHED_CREDENTIALS.findall(address):
        secrets |= {credentials[:-1], credentials[:-1].partition(":")[2]}
    secrets |= {unquote(secret) for secret in secrets}
    # a shorter password is not replaced in other texts: it would blank out unrelated words
    return sorted((secret for secret in secrets if len(secret) >= 4), key=len, reverse=True)


def chosen_index(text: str, count: int) -> int | None:
    """Return the number from 0 that a part of an address names; None unless it is a number below `count`."""
    digits = text.lstrip("0") or "0"  # int() refuses some thousand digits
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(count)):
        return None
    return int(digits) if int(digits) < count else None
