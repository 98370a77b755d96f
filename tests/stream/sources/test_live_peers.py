"""Live sources over other projects' servers: nginx for RTMP, GStreamer for RTSP with login and TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from arr_coc.types import NS_PER_S
from stream.errors import SourceError
from tests.support.gstreamer import camera, require_gstreamer
from tests.support.network import until
from tests.support.nginx import rtmp_server
from tests.support.senders import FPS, Reading, Sender, opened

LOGIN = "viewer:s3cret"


@pytest.fixture
def rtmp(tmp_path: Path) -> Iterator[str]:
    with rtmp_server(tmp_path) as address:
        yield address


@pytest.fixture(scope="module")
def gstreamer() -> None:
    require_gstreamer()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, signed, chain = (folder / name for name in ("key.pem", "signed.pem", "both.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", signed], check=True, capture_output=True)
    chain.write_bytes(key.read_bytes() + signed.read_bytes())
    return chain


def published(address: str) -> Sender:
    """A sender to the address; waits until the server serves its stream."""
    sender = Sender(address, "flv")

    def there() -> bool:
        try:
            opened(address).close()
        except SourceError:
            return False
        return True

    until(there)
    return sender


def test_rtmp_gives_frames_at_their_times_and_comes_back(rtmp: str) -> None:
    address = f"{rtmp}/camera"
    with published(address) as first, opened(address) as source:
        info = source.describe()
        assert (info.name, info.width_px, info.height_px, info.live, info.codec) == (address, 64, 48, True, "h264")
        reading = Reading(source)
        frames = reading.frames(10)
        steps = [(after.media_ns - before.media_ns) * FPS / NS_PER_S for before, after in pairwise(frames)]
        assert all(step == pytest.approx(round(step)) for step in steps)  # a busy machine may drop some
        first.close()
        assert reading.lost().reason in ("the connection broke", "the other end closed the stream")
        with Sender(address, "flv"):
            assert reading.back().attempts >= 1
            assert reading.frames(3)[0].media_ns > frames[-1].media_ns


def test_a_stream_without_an_rtmp_sender_is_reported(rtmp: str) -> None:
    with pytest.raises(SourceError, match="has no such stream, or does not give it out; check the path"):
        opened(f"{rtmp}/unused")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_gstreamer_gives_frames_with_b_frames_in_order(gstreamer: None, transport: str) -> None:
    with camera() as served, opened(f"rtsp://127.0.0.1:{served.port}/cam", rtsp_transport=transport) as source:
        info = source.describe()
        assert (info.width_px, info.height_px, info.fps, info.codec) == (320, 240, 25, "h264")
        frames = Reading(source).frames(25)
        steps = [(after.media_ns - before.media_ns) * 25 / NS_PER_S for before, after in pairwise(frames)]
        assert all(step == pytest.approx(round(step), abs=0.01) for step in steps)
        assert min(steps) > 0


@pytest.mark.slow
def test_gstreamer_asks_for_a_login_by_digest(gstreamer: None) -> None:
    with camera(LOGIN) as served:
        at = f"127.0.0.1:{served.port}/cam"
        with opened(f"rtsp://{LOGIN}@{at}") as source:
            assert source.describe().name == f"rtsp://***@{at}"
            assert len(Reading(source).frames(5)) == 5
        for wrong in (f"rtsp://viewer:wrong@{at}", f"rtsp://{at}"):
            with pytest.raises(SourceError, match="rejects the user name or password"):
                opened(wrong)


@pytest.mark.slow
def test_gstreamer_over_tls(gstreamer: None, certificate: Path) -> None:
    with camera(LOGIN, certificate) as served, opened(f"rtsps://{LOGIN}@127.0.0.1:{served.port}/cam") as source:
        assert len(Reading(source).frames(5)) == 5


@pytest.mark.slow
def test_gstreamer_that_is_killed_and_started_again(gstreamer: None) -> None:
    with camera() as first, opened(f"rtsp://127.0.0.1:{first.port}/cam") as source:
        reading = Reading(source)
        reading.frames(5)
        first.kill()
        reading.lost()
        with camera(port=first.port):
            assert reading.back().attempts >= 1
            assert reading.frames(3)[0].discontinuity == "reconnect"
