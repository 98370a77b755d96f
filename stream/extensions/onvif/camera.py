"""ONVIF cameras: the RTSP address of a stream, requested from the camera.

ONVIF Core and Media services, version 1: GetSystemDateAndTime, GetCapabilities, GetProfiles, GetStreamUri
(https://www.onvif.org/specs/core/ONVIF-Core-Specification.pdf). Discovery is not used.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import MAXYEAR, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from stream.errors import SourceError
from stream.extension import SourceOpening
from stream.extensions.onvif.soap import SoapClient, SoapRefusal
from stream.sources.address import chosen_index, redacted
from stream.sources.checks import check_address
from stream.sources.connection import (
    CREDENTIALS,
    REFUSED,
    UNKNOWN_HOST,
    UNREACHABLE,
    FailureAdvice,
    LiveTarget,
    cannot,
    opened_network,
    too_slow,
)
from stream.sources.hardware import HardwareDecoding
from stream.sources.live import LiveSource
from stream.sources.tls import context_of, problem_of

if TYPE_CHECKING:
    import av

    from stream.config import CaptureConfig

HTTP = {"onvif": "http", "onvifs": "https"}
"""Schemes of addresses, and of the requests to the camera."""

PORTS = {"http": 80, "https": 443}

DEVICE = "http://www.onvif.org/ver10/device/wsdl"
MEDIA = "http://www.onvif.org/ver10/media/wsdl"
SCHEMA = "http://www.onvif.org/ver10/schema"

_CHECK = "check that ONVIF is switched on in the camera's settings, and its port (often 80, 8000, 8080 or 2020)"


@dataclass(frozen=True, slots=True)
class OnvifAddress:
    """Address `onvif://USER:PASSWORD@HOST:PORT/PATH?profile=NAME`, with `onvifs` for HTTPS.

    `profile` is a number from 0, a name or a token.
    """

    scheme: str
    host: str
    port: int
    path: str
    profile: str | None
    user: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, address: str) -> OnvifAddress:
        """Read an address that `check_address` has accepted."""
        parts = urlsplit(address)
        credentials, _, _ = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        profile = parse_qs(parts.query).get("profile", [None])[0]
        # path of the device service; the same on every camera (ONVIF Core, 5.1.1).
        if len(parts.path) > 1:
            path = parts.path
        else:
            path = "/onvif/device_service"
        port = parts.port or PORTS[HTTP[parts.scheme]]
        return cls(parts.scheme, parts.hostname or "", port, path, profile, unquote(user), unquote(password))


@dataclass(frozen=True, slots=True)
class MediaProfile:
    """Stream of a camera: its token, name, and description of the picture."""

    token: str
    name: str
    picture: str


def find_stream(address: str, config: CaptureConfig, limit_s: float) -> str:
    """Return the RTSP address, with credentials, of a camera's profile.

    Host and credentials are taken from `address`, never from a reply, so that no other host receives the credentials.
    Raises SourceError, without secrets in its message, and ConfigError for an invalid `capture.ca_file`.
    """
    target = OnvifAddress.of(address)
    name = redacted(address)
    client = SoapClient(target.host, target.port, time.monotonic() + limit_s, target.user, target.password)
    if HTTP[target.scheme] == "https":
        client.tls = context_of(target.scheme, config)
    try:
        return _request_uri(client, target, config.rtsp_transport, name)
    except SourceError:
        raise
    except SoapRefusal as refusal:
        if refusal.credentials:
            failure = CREDENTIALS
        else:
            failure = FailureAdvice(refusal.reason, _CHECK)
    except TimeoutError:
        failure = too_slow(limit_s)
    except ssl.SSLError as error:
        failure = FailureAdvice(*problem_of(error))
    except ConnectionRefusedError:
        failure = FailureAdvice(REFUSED.reason, _CHECK)
    except socket.gaierror:
        failure = UNKNOWN_HOST
    except OSError:
        failure = UNREACHABLE
    raise cannot(name, failure)


def _request_uri(client: SoapClient, target: OnvifAddress, transport: str, name: str) -> str:
    with contextlib.suppress(SoapRefusal):  # some cameras require credentials even for this; then the clocks must agree
        clock = client.call(target.path, f'<GetSystemDateAndTime xmlns="{DEVICE}"/>', anonymous=True)
        _follow_clock(client, clock)
    port, path = _media_service(client, target)

    def media(request: str) -> ElementTree.Element:
        return client.call(path, request, port=port)

    profile = _select_profile(_profiles(media(f'<GetProfiles xmlns="{MEDIA}"/>')), target.profile, name)
    protocol = "UDP" if transport == "udp" else "RTSP"
    reply = media(
        f'<GetStreamUri xmlns="{MEDIA}"><StreamSetup><Stream xmlns="{SCHEMA}">RTP-Unicast</Stream>'
        f'<Transport xmlns="{SCHEMA}"><Protocol>{protocol}</Protocol></Transport></StreamSetup>'
        f"<ProfileToken>{escape(profile.token)}</ProfileToken></GetStreamUri>"
    )
    uri = next((text.text.strip() for text in reply.iter(f"{{{SCHEMA}}}Uri") if text.text), "")
    return _with_credentials(uri, target, name)


def _follow_clock(client: SoapClient, reply: ElementTree.Element) -> None:
    """Set the camera's time for the client's tokens: a camera rejects tokens of another time."""
    utc = reply.find(f".//{{{SCHEMA}}}UTCDateTime")
    if utc is None:
        return
    parts = ("Date/Year", "Date/Month", "Date/Day", "Time/Hour", "Time/Minute", "Time/Second")
    places = (".//" + "/".join(f"{{{SCHEMA}}}{step}" for step in part.split("/")) for part in parts)
    try:
        numbers = [int(utc.findtext(place) or "") for place in places]
        device_time = datetime(*numbers, tzinfo=timezone.utc)  # type: ignore[arg-type, misc]
        if device_time.year < MAXYEAR:  # tokens carry a later time
            client.device_epoch = device_time - timedelta(seconds=time.monotonic())
    except (ValueError, OverflowError):
        return


def _media_service(client: SoapClient, target: OnvifAddress) -> tuple[int, str]:
    """Return port and path of the media service, which default to those of the device service.

    The camera's port is used only if it names the user's host and scheme: a camera that names another host is behind a
    router, and a request over HTTPS is never repeated over HTTP.
    """
    request = f'<GetCapabilities xmlns="{DEVICE}"><Category>Media</Category></GetCapabilities>'
    try:
        reply = client.call(target.path, request)
        address = reply.findtext(f".//{{{SCHEMA}}}Media/{{{SCHEMA}}}XAddr") or ""
        parts = urlsplit(address.strip())
        port = parts.port or PORTS[HTTP[target.scheme]]
    except SoapRefusal as refusal:
        if refusal.credentials:
            raise
        return target.port, target.path
    except ValueError:
        return target.port, target.path
    if not parts.hostname:
        return target.port, target.path
    same = parts.hostname == target.host.lower() and parts.scheme == HTTP[target.scheme]
    return (port if same else target.port), parts.path or target.path


def _profiles(reply: ElementTree.Element) -> list[MediaProfile]:
    """Return the profiles with video."""
    profiles = []
    for element in reply.iter(f"{{{MEDIA}}}Profiles"):
        video = element.find(f"{{{SCHEMA}}}VideoEncoderConfiguration")
        if video is None or not element.get("token"):
            continue
        size = [video.findtext(f"{{{SCHEMA}}}Resolution/{{{SCHEMA}}}{side}") or "?" for side in ("Width", "Height")]
        picture = f"{video.findtext(f'{{{SCHEMA}}}Encoding') or 'video'} {'x'.join(size)}"
        name = element.findtext(f"{{{SCHEMA}}}Name") or ""
        profiles.append(MediaProfile(element.get("token") or "", name.strip(), picture))
    return profiles


def _select_profile(profiles: list[MediaProfile], choice: str | None, name: str) -> MediaProfile:
    """Return the chosen profile, by default the first. Raises SourceError."""
    if not profiles:
        raise SourceError(f"{name} has no profile with video; add one in the camera's settings")
    if choice is None:
        return profiles[0]
    if (number := chosen_index(choice, len(profiles))) is not None:
        return profiles[number]
    for profile in profiles:
        if choice in (profile.token, profile.name):
            return profile
    choices = "; ".join(f"{number}: {profile.name} ({profile.picture})" for number, profile in enumerate(profiles))
    raise SourceError(f"{name} has no profile {choice!r}; there is {choices}")


def _with_credentials(uri: str, target: OnvifAddress, name: str) -> str:
    """Return the address of a stream with the user's host and credentials."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        parts = urlsplit("")
        port = None
    if parts.scheme not in ("rtsp", "rtsps"):
        raise SourceError(f"{name} names no RTSP stream; give the camera's RTSP address, as its manual says")
    if ":" in target.host:
        host = f"[{target.host}]"
    else:
        host = target.host
    if target.user:
        credentials = f"{quote(target.user, safe='')}:{quote(target.password, safe='')}@"
    else:
        credentials = ""
    place = f"{credentials}{host}" + (f":{port}" if port else "")
    address = parts._replace(netloc=place, fragment="").geturl()
    check_address(address)
    return address


def onvif_target(address: str, config: CaptureConfig) -> LiveTarget:
    """Return the target for an ONVIF camera; the stream's address is requested at first, and again after a loss."""
    name = redacted(address)
    hardware = HardwareDecoding(config, name)
    stream = _KeptAddress(lambda limit_s: find_stream(address, config, limit_s))

    def open_it(limit_s: float) -> av.container.InputContainer:
        start_s = time.monotonic()
        stream_address = stream.get(limit_s)
        # least time for opening the stream if requesting its address took most of the limit
        left_s = max(limit_s - (time.monotonic() - start_s), 0.5)
        try:
            return opened_network(stream_address, name, config, hardware, left_s)
        except SourceError:
            stream.forget()
            raise

    return LiveTarget(name, open_it, hardware=hardware)


class _KeptAddress:
    """Cache of a stream's address, kept as long as it can be opened."""

    def __init__(self, find: Callable[[float], str]) -> None:
        self._find = find
        self._address: str | None = None

    def get(self, limit_s: float) -> str:
        if self._address is None:
            self._address = self._find(limit_s)
        return self._address

    def forget(self) -> None:
        self._address = None


def open_onvif(opening: SourceOpening) -> LiveSource:
    """Open the camera of an address."""
    check_address(opening.address)
    target = onvif_target(opening.address, opening.capture)
    return LiveSource(target, opening.capture, opening.clock, segments=opening.segments)
