"""Sources over TLS: checked certificates, and messages for untrusted ones."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support.rtsp_server import RtspServer, encode
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError
from stream.extensions.onvif.camera import find_stream
from stream.sources import tls
from stream.sources.tls import ffmpeg_options, is_checked, problem_at
from tests.support.network import LIMIT_S
from tests.support.onvif import OnvifCamera
from tests.support.senders import Reading, opened
from tests.support.tls import behind_tls, make_certificate
from tests.support.video import moving_square


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of another host."""
    return make_certificate(tmp_path_factory.mktemp("elsewhere"), "DNS:elsewhere.test")


@pytest.fixture(scope="module")
def camera() -> Iterator[RtspServer]:
    with RtspServer(encode(list(moving_square(20)), 50, 10), 50) as server:
        yield server


def test_a_camera_with_a_self_signed_certificate_is_read_unless_it_is_checked(
    camera: RtspServer, pair: tuple[str, str]
) -> None:
    with behind_tls(camera.port, *pair) as port:
        address = f"rtsps://127.0.0.1:{port}/live"
        for settings in ({}, {"ca_file": pair[0]}):
            with opened(address, **settings) as source:
                assert len(Reading(source).frames(1)) == 1
        with pytest.raises(SourceError) as raised:
            opened(address, tls_verify=True)
    assert str(raised.value) == (
        f"{address} has a certificate that cannot be trusted: self-signed certificate; name a file with it, or with "
        "its signer's, as capture.ca_file, or set capture.tls_verify = false to accept any certificate"
    )


def test_a_certificate_of_another_host_is_not_trusted(camera: RtspServer, other_pair: tuple[str, str]) -> None:
    with behind_tls(camera.port, *other_pair) as port:
        with pytest.raises(SourceError, match=r"IP address mismatch.*127\.0\.0\.1"):
            opened(f"rtsps://127.0.0.1:{port}/live", ca_file=other_pair[0])
        with pytest.raises(SourceError, match="cannot be trusted: self-signed certificate"):
            opened(f"https://127.0.0.1:{port}/clip.mp4")


def test_a_server_without_tls_is_reported() -> None:
    words = "speaks no TLS there; check the port, or use the address without the s"
    with OnvifCamera("rtsp://127.0.0.1/live") as camera:
        with pytest.raises(SourceError, match=words):
            opened(f"rtsps://127.0.0.1:{camera.port}/live")
        with pytest.raises(SourceError, match=words):
            find_stream(f"onvifs://127.0.0.1:{camera.port}", CaptureConfig(), LIMIT_S)


def test_a_file_without_certificates_is_reported_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")
    for file in (empty, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=r"capture\.ca_file .* holds no certificate that can be read"):
            opened("rtsps://127.0.0.1:1/live", ca_file=str(file))


def test_a_camera_is_asked_over_https_only(pair: tuple[str, str]) -> None:
    with OnvifCamera("rtsp://127.0.0.1/live", ("admin", "hush!")) as camera, behind_tls(camera.port, *pair) as port:
        camera.media_address = f"http://127.0.0.1:{camera.port}/onvif/media"
        address = f"onvifs://admin:hush%21@127.0.0.1:{port}"
        for settings in (CaptureConfig(), CaptureConfig(ca_file=pair[0])):
            assert find_stream(address, settings, LIMIT_S) == "rtsp://admin:hush%21@127.0.0.1/live"
        assert not b"".join(camera.raw).count(f"Host: 127.0.0.1:{camera.port}\r".encode())
        count = len(camera.requests)
        with pytest.raises(SourceError, match=r"^onvifs://\*\*\*@.*cannot be trusted: self-signed certificate"):
            find_stream(address, CaptureConfig(tls_verify=True), LIMIT_S)
        assert len(camera.requests) == count


@pytest.mark.parametrize(
    ("settings", "checked"),
    [
        ({}, {"https", "rtmps"}),
        ({"ca_file": "x.pem"}, {"https", "rtmps", "rtsps", "onvifs"}),
        ({"tls_verify": False, "ca_file": "x.pem"}, set()),
        ({"tls_verify": True}, {"https", "rtmps", "rtsps", "onvifs"}),
    ],
)
def test_addresses_whose_certificates_are_checked(settings: dict[str, object], checked: set[str]) -> None:
    config = CaptureConfig.model_validate(settings)
    assert {scheme for scheme in tls.PORTS if is_checked(scheme, config)} == checked


def test_options_of_other_addresses_and_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ffmpeg_options("rtsp", CaptureConfig()) == {}
    assert ffmpeg_options("rtsps", CaptureConfig()) == {"tls_verify": "0"}
    assert problem_at("rtsp://127.0.0.1/live", CaptureConfig(), 1) is None
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    assert problem_at(f"rtsps://127.0.0.1:{port}/live", CaptureConfig(), 1) is None
    nowhere = ssl.DefaultVerifyPaths(None, None, "", "", "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nowhere)
    assert ffmpeg_options("https", CaptureConfig())["ca_file"].endswith("cacert.pem")
    monkeypatch.setattr(tls.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    assert ffmpeg_options("https", CaptureConfig()) == {"tls_verify": "1"}
    monkeypatch.setattr(tls.sys, "platform", "darwin")  # type: ignore[attr-defined]
    assert ffmpeg_options("https", CaptureConfig()) == {"tls_verify": "1"}
