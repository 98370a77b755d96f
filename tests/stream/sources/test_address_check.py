"""Invalid addresses: rejected by their text alone, with the missing part in the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.config import CaptureConfig
from stream.errors import SourceError, SourceNotFound
from stream.sources.checks import check_address
from stream.sources.factory import open_source
from tests.support.clock import FakeClock


@pytest.mark.parametrize(
    "address",
    [
        "rtsp://cam", "rtsp://u:p@cam:554/live", "rtsp://u:p@ss@cam/live", "RTSPS://cam/", "http://[::1]:80/x",
        "http://cam?x=1", "https://cam:1/x", "udp://127.0.0.1:5000", "udp://:5000", "udp://@:5000", "rtp://@239.0.0.1:5004",
        "tcp://cam:1", "tcp://:5000?listen=1", "rtmp://cam/live/one", "http://cam:65535/x@y",
        "srt://cam:9000?streamid=read:a:me:hush", "srt://:9000?mode=listener",
        "zmq+tcp://127.0.0.1:1", "clip.mp4", "a:b.mp4", "C:/clip.mp4", "-", "0",
    ],
)  # fmt: skip
def test_plausible_addresses_are_accepted(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("rtsp://", "rtsp:// names no host; write rtsp://HOST/PATH"),
        ("rtsp:///live", "rtsp:///live names no host; write rtsp://HOST/PATH"),
        ("rtsp://:554/live", "rtsp://:554/live names no host; write rtsp://HOST/PATH"),
        ("https://me:hush@/x", "https://***@/x names no host; write https://HOST/PATH"),
        ("http://", "http:// names no host; write http://HOST/PATH"),
        ("tcp://:5000", "tcp://:5000 names no host; write tcp://HOST:PORT"),
        ("udp://", "udp:// names no port; write udp://HOST:PORT"),
        ("udp://127.0.0.1", "udp://127.0.0.1 names no port; write udp://HOST:PORT"),
        ("tcp://[::1]", "tcp://[::1] names no port; write tcp://HOST:PORT"),
        ("http://cam:99999/x", "http://cam:99999/x has no usable port: it is a number from 1 to 65535; write http://HOST/PATH"),
        ("udp://cam:0", "udp://cam:0 has no usable port: it is a number from 1 to 65535; write udp://HOST:PORT"),
        ("rtsp://cam:/x", "rtsp://cam:/x has no usable port: it is a number from 1 to 65535; write rtsp://HOST/PATH"),
        ("rtsp://cam:one", "rtsp://cam:one has no usable port: it is a number from 1 to 65535; write rtsp://HOST/PATH"),
        (
            "rtsp://[::1/x",
            "rtsp://[::1/x has an IPv6 address without its closing bracket; write rtsp://HOST/PATH with [::1] as HOST",
        ),
        ("rtsp://me:hu/sh@cam/x", "the password in rtsp://***@cam/x has a / in it; write %2F in its place"),
        (
            "foo://cam",
            "foo://cam begins with no scheme that can be read; there are http://, https://, onvif://, onvifs://, "
            "rtmp://, rtmps://, rtp://, rtsp://, rtsps://, srt://, tcp://, udp://",
        ),
        ("srt://cam", "srt://cam names no port; write srt://HOST:PORT"),
        ("file:///etc/hosts", "file:///etc/hosts is not read; write the path alone, without file://"),
        (
            "whep://me:hush@cam/x",
            "whep://***@cam/x is WebRTC, which is not read; let mediamtx read it, and give the address that it serves: "
            "rtsp://HOST:8554/NAME",
        ),
        ("rist://cam:1", "rist://cam:1 is RIST, which is not read; pass it on with ristreceiver, and give udp://127.0.0.1:PORT"),
        ("rtmpt://cam/a/b", "rtmpt://cam/a/b is RTMP in a disguise that is not read; write rtmp:// or rtmps://"),
        ("mms://cam/a", "mms://cam/a is MMS, which is not read; write http://, which such servers offer too"),
        ("sftp://cam/a", "sftp://cam/a is not read; download the file, or mount its folder, and give its path"),
    ],
)  # fmt: skip
def test_missing_parts_are_named_before_anything_is_opened(address: str, problem: str) -> None:
    with pytest.raises(SourceError) as raised:
        open_source(address, CaptureConfig(), FakeClock())
    assert str(raised.value) == problem


@pytest.mark.parametrize(
    ("address", "form"),
    [("rtsp:cam", "rtsp://HOST/PATH"), ("HTTP:/cam/x", "http://HOST/PATH"), ("zmq:5558", "zmq+tcp://HOST:PORT")],
)
def test_half_an_address_that_is_no_file_is_named(address: str, form: str) -> None:
    with pytest.raises(SourceNotFound) as raised:
        open_source(address, CaptureConfig(), FakeClock())
    assert str(raised.value) == f"{address} is neither a file nor a whole address; write {form}"


def test_a_file_of_such_a_name_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rtsp:cam").write_bytes(b"no video")
    with pytest.raises(SourceError, match="is not a video that FFmpeg can read"):
        open_source("rtsp:cam", CaptureConfig(), FakeClock())


def test_srt_that_ffmpeg_lacks_is_named_with_the_remedy() -> None:
    with pytest.raises(SourceError) as raised:
        open_source("srt://127.0.0.1:1?streamid=hush&passphrase=hush", CaptureConfig(open_timeout_s=2.0), FakeClock())
    message = str(raised.value)
    assert message.startswith("srt://127.0.0.1:1?streamid=***&passphrase=*** ")
    if "needs a protocol" in message:  # PyAV's packages; elsewhere nothing listens there
        assert message.endswith(
            "needs a protocol that this FFmpeg lacks; let mediamtx read it, and give the address that it serves: "
            "rtsp://HOST:8554/NAME"
        )
