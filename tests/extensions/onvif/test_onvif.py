"""ONVIF cameras: the stream's address and its credentials, and messages for cameras without a stream."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest

from benchmarks.support.rtsp_server import RtspServer, encode
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.extensions.onvif.camera import OnvifAddress, find_stream
from stream.extensions.onvif.soap import digest_answer
from stream.sources.address import is_live_address, redacted
from stream.sources.checks import check_address
from tests.support.http_server import DrippingServer
from tests.support.network import LIMIT_S, free_port
from tests.support.onvif import OnvifCamera, envelope_of, fault
from tests.support.senders import Reading, opened
from tests.support.video import moving_square

FPS = 50
LOGIN = ("admin", "hush!/@ß&<")
WRITTEN = "admin:hush%21%2F%40%C3%9F%26%3C"


@pytest.fixture
def camera() -> Iterator[OnvifCamera]:
    with OnvifCamera("rtsp://127.0.0.1:8554/live?channel=1&subtype=0", LOGIN) as running:
        yield running


def address_of(camera: OnvifCamera, query: str = "", credentials: str = WRITTEN) -> str:
    return find_stream(f"onvif://{credentials}@127.0.0.1:{camera.port}{query}", CaptureConfig(), LIMIT_S)


def refused(camera: OnvifCamera, query: str = "", credentials: str = WRITTEN) -> str:
    with pytest.raises(SourceError) as raised:
        address_of(camera, query, credentials)
    message = str(raised.value)
    assert "hush" not in message
    assert message.startswith(f"onvif://***@127.0.0.1:{camera.port}")
    return message


STREAM = f"rtsp://{WRITTEN}@127.0.0.1:8554/live?channel=1&subtype=0"


def test_the_first_profiles_stream_is_found_with_the_credentials(camera: OnvifCamera) -> None:
    assert address_of(camera) == STREAM
    assert camera.requests == ["GetSystemDateAndTime", "GetCapabilities", "GetProfiles", "GetStreamUri token_0"]


def test_the_password_is_never_sent(camera: OnvifCamera) -> None:
    for camera.auth in ("token", "digest"):
        address_of(camera)
    requests = b"".join(camera.raw)
    assert b"hush" not in requests
    assert b"Basic" not in requests


@pytest.mark.parametrize("clock_offset", [timedelta(), timedelta(days=400), -timedelta(hours=7)])
def test_tokens_carry_the_cameras_time(camera: OnvifCamera, clock_offset: timedelta) -> None:
    camera.clock_offset = clock_offset
    assert address_of(camera) == STREAM


@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256"])
def test_a_camera_may_want_http_digest(camera: OnvifCamera, algorithm: str) -> None:
    camera.auth, camera.algorithm = "digest", algorithm
    assert address_of(camera) == STREAM


def test_an_open_camera_needs_no_credentials(camera: OnvifCamera) -> None:
    camera.login = None
    uri = find_stream(f"onvif://127.0.0.1:{camera.port}", CaptureConfig(rtsp_transport="udp"), LIMIT_S)
    assert uri == "rtsp://127.0.0.1:8554/live?channel=1&subtype=0"
    assert b"<Protocol>UDP</Protocol>" in b"".join(camera.raw)
    assert b"Security" not in b"".join(camera.raw)


@pytest.mark.parametrize("profile", ["1", "Sub", "token_1"])
def test_a_profile_is_chosen_by_number_name_or_token(camera: OnvifCamera, profile: str) -> None:
    address_of(camera, f"?profile={profile}")
    assert camera.requests[-1] == "GetStreamUri token_1"


def test_a_clock_at_the_end_of_time_is_not_followed(camera: OnvifCamera) -> None:
    time = "<t:Time><t:Hour>23</t:Hour><t:Minute>59</t:Minute><t:Second>59</t:Second></t:Time>"
    date = "<t:Date><t:Year>9999</t:Year><t:Month>12</t:Month><t:Day>31</t:Day></t:Date>"
    camera.replies["GetSystemDateAndTime"] = 200, envelope_of(f"<t:UTCDateTime>{time}{date}</t:UTCDateTime>")
    assert address_of(camera) == STREAM


def test_an_unknown_profile_names_the_existing_ones(camera: OnvifCamera) -> None:
    assert "has no profile '00002'" in refused(camera, "?profile=00002"), "not the first one"
    assert refused(camera, "?profile=2").endswith(
        "?profile=2 has no profile '2'; there is 0: Main & loud (H264 640x480); 1: Sub (H264 320x240)"
    )
    camera.profiles = ()
    assert refused(camera).endswith(" has no profile with video; add one in the camera's settings")


def test_the_credentials_go_to_the_named_host_only(camera: OnvifCamera) -> None:
    camera.media_address = "http://elsewhere.invalid:1/onvif/media"
    camera.stream_uri = "rtsp://thief:me@elsewhere.invalid/live"
    assert address_of(camera) == f"rtsp://{WRITTEN}@127.0.0.1/live"


def test_services_may_be_behind_another_port_or_unnamed(camera: OnvifCamera) -> None:
    with OnvifCamera("rtsp://127.0.0.1/two", LOGIN) as other:
        camera.media_address = f"http://127.0.0.1:{other.port}/media"
        assert address_of(camera).endswith("@127.0.0.1/two")
        assert other.requests == ["GetProfiles", "GetStreamUri token_0"]
    for address in ("", "http://127.0.0.1:nonsense/media"):
        camera.replies["GetCapabilities"] = 200, envelope_of(f"<t:Media><t:XAddr>{address}</t:XAddr></t:Media>")
        assert address_of(camera) == STREAM
    camera.replies["GetCapabilities"] = 400, fault("ter:ActionNotSupported", "gone")
    assert address_of(camera) == STREAM
    camera.replies["GetCapabilities"] = 400, fault("ter:NotAuthorized", "no")
    assert "rejects the user name or password" in refused(camera)


@pytest.mark.parametrize("auth", ["token", "digest"])
def test_wrong_credentials_are_reported(camera: OnvifCamera, auth: str) -> None:
    camera.auth = auth
    for credentials in ("admin:hushed", "other:hush"):
        message = refused(camera, credentials=credentials)
        assert message.endswith(
            " rejects the user name or password; write them in front of the host name, as USER:PASSWORD@HOST, "
            "with %40 for an @ in them"
        )


NOT_ONVIF = "; check that ONVIF is switched on in the camera's settings, and its port (often 80, 8000, 8080 or 2020)"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((404, b"<html>no</html>"), "does not answer as such a device there (HTTP 404)" + NOT_ONVIF),
        ((200, b"\xff\xfe"), "does not answer as such a device there (HTTP 200)" + NOT_ONVIF),
        ((200, b'<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>'), "does not answer as such a device there (HTTP 200)"),
        ((200, b" " * (2 << 20)), "does not answer as such a device there (HTTP 200)"),
        ((500, fault("ter:ActionNotSupported", "no  such\nthing")), "refuses the request: no such thing" + NOT_ONVIF),
        ((400, fault("wsse:FailedAuthentication", "no")), "rejects the user name or password"),
    ],
)
def test_an_invalid_reply_is_reported_in_one_line(camera: OnvifCamera, reply: tuple[int, bytes], message: str) -> None:
    camera.replies["GetProfiles"] = reply
    assert message in refused(camera)
    assert "\n" not in refused(camera)


def test_a_camera_without_a_time_is_still_asked(camera: OnvifCamera) -> None:
    times = (fault("ter:NotAuthorized", "no"), envelope_of("<t:UTCDateTime/>"), envelope_of("<nothing/>"))
    for reply in times:
        camera.replies["GetSystemDateAndTime"] = 200, reply
        assert address_of(camera) == STREAM


@pytest.mark.parametrize("uri", ["", "http://127.0.0.1/live", "file:///etc/passwd", "rtsp://[1"])
def test_only_rtsp_is_opened(camera: OnvifCamera, uri: str) -> None:
    camera.stream_uri = uri
    assert refused(camera).endswith(" names no RTSP stream; give the camera's RTSP address, as its manual says")


def test_a_host_that_does_not_answer_says_so() -> None:
    with pytest.raises(SourceError, match=r"refuses the connection: nothing listens there; check that ONVIF is"):
        find_stream(f"onvif://127.0.0.1:{free_port()}", CaptureConfig(), LIMIT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(SourceError, match=r"does not answer within 0\.05 s; check the address"):
            find_stream(f"onvif://127.0.0.1:{port}", CaptureConfig(), 0.05)
    with pytest.raises(SourceError, match="does not answer within 0 s"):
        find_stream("onvif://127.0.0.1:1", CaptureConfig(), 0.0)
    with pytest.raises(SourceError, match="does not speak HTTP there"):
        find_stream("onvif://127.0.0.1:1/ü", CaptureConfig(), LIMIT_S)


@pytest.mark.parametrize("path", ["/head", "/body"])
def test_a_host_that_answers_byte_by_byte_does_not_answer(path: str) -> None:
    with DrippingServer() as server, pytest.raises(SourceError, match=r"does not answer within 0\.3 s"):
        find_stream(f"onvif://127.0.0.1:{server.port}{path}", CaptureConfig(), 0.3)


def test_an_address_is_read_and_shown() -> None:
    address = OnvifAddress.of("onvif://a%40b:c%3Ad@[::1]:8000?profile=Main%20one")
    assert (address.host, address.port, address.path) == ("::1", 8000, "/onvif/device_service")
    assert (address.user, address.password, address.profile) == ("a@b", "c:d", "Main one")
    assert "c:d" not in repr(address)
    assert OnvifAddress.of("onvif://host/own/service").path == "/own/service"
    assert redacted("onvif://a:hush@host") == "onvif://***@host"
    assert is_live_address("onvif://host")
    with pytest.raises(SourceError, match="onvif:// names no host; write onvif://USER:PASSWORD@HOST"):
        check_address("onvif://")


def test_a_challenge_that_cannot_be_answered_is_left() -> None:
    unusable = ["Basic realm=x", "Digest realm", 'Digest realm="x", nonce="n", algorithm=SHA-512', "Digest qop=auth"]
    assert digest_answer(unusable, "POST", "/", "u", "p") is None
    plain = digest_answer([*unusable, 'Digest realm="r\\"", nonce="n"'], "GET", "/a", 'u"', "p")
    assert plain is not None
    assert "cnonce" not in plain
    assert 'username="u\\""' in plain


@pytest.fixture(scope="module")
def units() -> list[bytes]:
    return encode(list(moving_square(20)), FPS, gop=5)


def test_it_is_a_live_source_that_is_found_again(
    camera: OnvifCamera, units: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with RtspServer(units, FPS, login=("admin", "hushhush")) as server:
        camera.login, camera.stream_uri = ("admin", "hushhush"), server.url
        with opened(f"onvif://admin:hushhush@127.0.0.1:{camera.port}") as source:
            info, reading = source.describe(), Reading(source)
            assert (info.name, info.live) == (f"onvif://***@127.0.0.1:{camera.port}", True)
            reading.frames(3)
            with RtspServer(units, FPS, login=("admin", "hushhush")) as second_server:
                camera.stream_uri = second_server.url
                server.cut()
                reading.lost()
                reading.back()
                reading.frames(2)
    assert camera.requests.count("GetStreamUri token_0") == 2
    assert "hush" not in caplog.text
