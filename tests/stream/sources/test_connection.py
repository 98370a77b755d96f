"""Opening of live sources: options, and messages of errors."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import av
import pytest

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources import connection
from stream.sources.connection import (
    is_endless,
    network_failure,
    network_options,
    opened_network,
    reading_failure,
)
from stream.sources.devices import camera_failure, camera_options, camera_target
from stream.sources.mjpeg import AddressRequest
from stream.sources.network import network_target


def error(number: int) -> av.FFmpegError:
    """FFmpeg's error for an errno."""
    with pytest.raises(av.FFmpegError) as raised:
        av.error.err_check(-number, "a name that is secret")
    return raised.value


def config(**capture: object) -> CaptureConfig:
    return CaptureConfig.model_validate(capture)


class TestOptions:
    def test_rtsp_takes_the_transport_that_was_asked_for_and_reads_little(self) -> None:
        options = network_options("rtsp://camera/1", config(rtsp_transport="udp"))
        assert options["rtsp_transport"] == "udp"
        assert options["probesize"] == "32"

    @pytest.mark.parametrize("address", ["udp://:5000", "rtmp://server/app", "tcp://server:5000", "rtp://:5004"])
    def test_others_are_probed_briefly(self, address: str) -> None:
        options = network_options(address, config())
        assert float(options["analyzeduration"]) <= 1e6

    @pytest.mark.parametrize("scheme", ["rtsp", "rtsps", "udp", "rtp", "tcp", "rtmp", "rtmps"])
    def test_opening_discards_no_packet(self, scheme: str) -> None:
        assert "nobuffer" not in network_options(f"{scheme}://camera:5000/1", config()).get("fflags", "")

    def test_files_on_a_web_server_are_probed_as_files_are(self) -> None:
        assert set(network_options("https://server/clip.mp4", config())) == {"reconnect", "reconnect_delay_max"}

    def test_a_camera_is_asked_for_its_mode_and_never_blocks(self) -> None:
        assert camera_options(config()) == {"fflags": "4"}
        assert camera_options(config(camera_mode="640x480:mjpeg", fps=29.97)) == {
            "fflags": "4",
            "video_size": "640x480",
            "input_format": "mjpeg",
            "framerate": "29.97",
        }
        assert "input_format" not in camera_options(config(camera_mode="640x480"))


class TestErrors:
    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (errno.EBUSY, "is in use by another program; end that program"),
            (errno.EACCES, "may not be opened by this user; add the user to the group"),
            (errno.EPERM, "may not be opened by this user; give"),
            (errno.ENOENT, "is not there; plug the camera in"),
            (errno.ENODEV, "is not there; plug the camera in"),
            (errno.EINVAL, "does not support this mode; choose capture.camera_mode"),
            (errno.ENOTTY, "is not a camera that gives pictures; choose one that `devices` lists"),
            (errno.ENOMEM, "cannot be opened: cannot allocate memory; try another"),
        ],
    )
    def test_a_camera(self, number: int, words: str) -> None:
        failure = camera_failure(error(number), 10.0)
        assert f"{failure.reason}; {failure.remedy}".startswith(words)

    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (errno.ECONNREFUSED, "refuses the connection"),
            (errno.ECONNRESET, "broke the connection"),
            (errno.EHOSTUNREACH, "cannot be reached from here"),
            (errno.ENETUNREACH, "cannot be reached from here"),
            (errno.EIO, "cannot be reached: the host name is unknown"),
            (errno.EADDRINUSE, "is an address that another program"),
            (errno.EPROTONOSUPPORT, "does not offer this transport"),
            (errno.ETIMEDOUT, "does not answer within 10 s"),
            (errno.ENOMEM, "cannot be opened: cannot allocate memory"),
        ],
    )
    def test_an_address(self, number: int, words: str) -> None:
        assert network_failure(error(number), 0.0, 10.0).reason.startswith(words)

    def test_an_error_at_the_time_limit_is_a_timeout(self) -> None:
        assert network_failure(error(errno.ECONNRESET), 9.9, 10.0).reason == "does not answer within 10 s"

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (av.error.HTTPServerError, "reports a server error"),
            (av.error.HTTPBadRequestError, "refuses the request"),
            (av.error.HTTPForbiddenError, "rejects the user name"),
            (av.error.ProtocolNotFoundError, "needs a protocol that this FFmpeg lacks"),
        ],
    )
    def test_one_of_a_server(self, kind: type[av.FFmpegError], words: str) -> None:
        assert network_failure(kind(1, "no"), 0.0, 10.0).reason.startswith(words)

    def test_one_while_reading(self) -> None:
        assert reading_failure(av.error.InvalidDataError(1, "no")) == "its data is no longer video"
        assert reading_failure(error(errno.EIO)) == "the connection broke"
        assert reading_failure(error(errno.ENODEV)) == "no such device"
        assert reading_failure(av.error.ExternalError(1, "no")) == "the device or its display failed"

    def test_a_camera_that_is_not_there_or_none(self) -> None:
        with pytest.raises(SourceError, match=r"/dev/video98 is not there; plug the camera in"):
            camera_target("/dev/video98", config()).open(1.0)
        if os.path.exists("/dev/null"):
            with pytest.raises(SourceError, match=r"/dev/null is not a camera"):
                camera_target("/dev/null", config()).open(1.0)

    def test_a_camera_that_gives_no_picture(self) -> None:
        assert "no picture within 2 s" in camera_failure(av.error.ExitError(1, "no"), 2.0).reason

    @pytest.mark.parametrize("kind", [ValueError, av.error.InvalidDataError])
    def test_errors_never_show_a_secret(self, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
        address = "rtsp://me:hush!@camera/1"

        def fail(*arguments: object, **options: object) -> None:
            raise ValueError(f"bad {address}") if kind is ValueError else kind(1, f"bad {address}", address)

        monkeypatch.setattr(connection.av, "open", fail)
        with pytest.raises(SourceError, match=r"rtsp://\*\*\*@camera/1") as raised:
            network_target(address, config()).open(1.0)
        assert "hush" not in str(raised.value)

    def test_a_redirect_after_the_time_limit_is_not_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now_s = [0.0]
        limits_s = []

        def refuse(request: AddressRequest) -> av.container.InputContainer:
            limits_s.append(request.open_s)
            raise error(errno.EIO)

        def redirect_slowly(*_: object) -> str:
            now_s[0] += 2.0
            return "http://camera/2"

        monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
        monkeypatch.setattr(connection, "redirect_of", redirect_slowly)
        capture = config(headers={"X-Key": "a"})
        with pytest.raises(SourceError, match="does not answer within 1 s"):
            opened_network("http://camera/1", "the camera", capture, Mock(accelerator=None), 1.0, refuse)
        assert limits_s == [1.0]

    def test_a_machine_without_v4l2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection.av, "open", Mock(side_effect=ValueError("no container format 'v4l2'")))
        with pytest.raises(SourceError, match="FFmpeg was built without V4L2; use Linux, or a network camera"):
            camera_target("/dev/video0", config()).open(1.0)


@pytest.mark.parametrize(
    ("name", "size", "duration", "endless"),
    [
        ("mpjpeg", 100, None, True),
        ("hls", -1, None, True),
        ("hls", -1, 5_000_000, False),
        ("mov,mp4", 100, 5_000_000, False),
        ("mpegts", 100, None, False),
        ("mpegts", -38, None, True),
        ("flv", -38, 5_000_000, False),
    ],
)
def test_a_source_without_an_end_in_bytes_or_in_time_is_live(
    name: str, size: int, duration: int | None, endless: bool
) -> None:
    container: Any = SimpleNamespace(format=SimpleNamespace(name=name), size=size, duration=duration)
    assert is_endless(container) is endless
