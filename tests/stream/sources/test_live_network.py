"""Video over HTTP (files, MJPEG, HLS) and MPEG-TS over UDP, on loopback."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.rtsp_server import encode
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.live import LiveDecoder
from stream.sources.network import network_target
from stream.sources.segments import SegmentRecorder
from stream.sources.threaded import PrefetchSource
from stream.sources.timing import Pacer
from tests.support.network import LIMIT_S, until
from tests.support.senders import (
    Handler,
    Reading,
    Server,
    TcpSender,
    frames_of,
    free_udp_port,
    hls_sender,
    jpegs,
    mjpeg,
    opened,
    outages_of,
    ts_bytes,
    udp_sender,
)
from tests.support.video import Image, make_photo, make_video, moving_square, overwrite_packet

MS = 1_000_000
COUNT = 20

STALL_S = 1.5
"""Far longer than a busy machine delays a thread, so that only the test's own silences count."""


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    return jpegs(list(moving_square(COUNT)))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    make_video(tmp_path / "clip.mp4", moving_square(COUNT))
    with Server(tmp_path) as server:
        yield server


def noise(count: int) -> Iterator[Image]:
    rng = np.random.default_rng(1)
    return (rng.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(count))


class TestFiles:
    def test_an_index_at_the_end_needs_a_server_that_sends_parts(self, web: Server, tmp_path: Path) -> None:
        path = make_video(tmp_path / "late.mp4", noise(12))
        data = path.read_bytes()
        assert data.index(b"moov") > data.index(b"mdat"), "the index comes last"
        with opened(f"{web.url}/late.mp4") as source:
            assert source.describe().frames == 12
        web.ranges = False
        with pytest.raises(SourceError) as raised:
            opened(f"{web.url}/late.mp4")
        assert str(raised.value) == (
            f"{web.url}/late.mp4 has its index (moov) after its pictures, and the server does not send parts of a "
            "file, or broke off; put the index in front (ffmpeg -i IN.mp4 -c copy -movflags +faststart OUT.mp4), or "
            "download it first"
        )

    def test_a_damaged_file_is_not_taken_for_that(self, web: Server, tmp_path: Path) -> None:
        path = make_video(tmp_path / "bad.mp4", moving_square(1), options={"bf": "0"})
        overwrite_packet(path, 1)
        with pytest.raises(SourceError, match=r"no frame of .*bad\.mp4 can be decoded \(packet 1: Invalid data"):
            opened(f"{web.url}/bad.mp4")

    def test_a_file_on_a_web_server_is_a_file(self, web: Server, tmp_path: Path) -> None:
        with opened(f"{web.url}/clip.mp4") as source, opened(str(tmp_path / "clip.mp4")) as local:
            info = source.describe()
            assert (info.live, info.frames, info.duration_ns) == (False, COUNT, COUNT * 40 * MS)
            pairs = list(zip(source.frames(), local.frames(), strict=True))
            assert source.trailing_skipped() == ()
            assert source.repaired_pts() == (0, 0)
        for frame, expected in pairs:
            assert (frame.frame_index, frame.media_ns, frame.discontinuity) == (
                expected.frame_index,
                expected.media_ns,
                expected.discontinuity,
            )
            assert np.array_equal(frame.planes.planes[0], expected.planes.planes[0])

    def test_a_login_and_a_token_stay_hidden(self, web: Server) -> None:
        web.login = ("me", "hush!")
        with opened(web.url.replace("//", "//me:hush!@") + "/clip.mp4?token=hush!") as source:
            assert source.describe().name == web.url.replace("//", "//***@") + "/clip.mp4?token=***"
        with pytest.raises(SourceError, match=r"clip\.mp4 rejects the user name or password"):
            opened(f"{web.url}/clip.mp4")

    def test_absent_servers_and_other_content_are_reported(self, web: Server, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"none\.mp4 has no such stream; check the path"):
            opened(f"{web.url}/none.mp4")
        (tmp_path / "noise.mp4").write_bytes(bytes(range(256)) * 64)
        with pytest.raises(SourceError, match="sends nothing that FFmpeg can read as video"):
            opened(f"{web.url}/noise.mp4")
        with pytest.raises(SourceError, match=r"http://127.* refuses the connection"):
            opened("http://127.0.0.1:1/clip.mp4")

    def test_a_reader_can_stop_while_the_server_is_silent(self, web: Server, tmp_path: Path) -> None:
        make_video(tmp_path / "long.mkv", moving_square(200, 320, 240), options={"bf": "0"})
        data = (tmp_path / "long.mkv").read_bytes()

        def half(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[: len(data) // 2])
            handler.server.stopped.wait(LIMIT_S)

        web.live["half.mkv"] = half
        source = opened(f"{web.url}/half.mkv")
        reading = Reading(source)
        timer = threading.Timer(0.3, setattr, (reading, "stop", True))
        timer.start()
        with pytest.raises(StopIteration):
            reading.frames(1000)
        source.close()
        timer.join()

    def test_a_source_that_was_never_read_is_closed(self, web: Server) -> None:
        source = opened(f"{web.url}/clip.mp4")
        assert isinstance(source, PrefetchSource)
        source.close()
        source.close()

    def test_a_reader_that_leaves_early_ends_the_thread(self, web: Server) -> None:
        with opened(f"{web.url}/clip.mp4") as source:
            Reading(source).frames(1)
        assert not [thread for thread in threading.enumerate() if thread.name == "read ahead"]

    def test_errors_of_the_source_reach_the_reader(self, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with opened(f"{web.url}/clip.mp4") as source:

            def fail(should_stop: object) -> Iterator[object]:
                raise SourceError("the web is gone")
                yield

            monkeypatch.setattr(source._source, "frames", fail)
            with pytest.raises(SourceError, match="the web is gone"):
                list(source.frames())


class TestMjpeg:
    def test_it_is_live(self, web: Server, pictures: list[bytes]) -> None:
        web.live["camera"] = mjpeg(pictures)
        with opened(f"{web.url}/camera") as source:
            info = source.describe()
            assert (info.live, info.duration_ns, info.codec, info.width_px) == (True, None, "mjpeg", 64)
            assert Reading(source).frames(4)[0].frame_index == 0

    def test_its_times_are_those_of_arrival(self, web: Server, pictures: list[bytes]) -> None:
        web.live["camera"] = mjpeg(pictures, fps=5)
        with opened(f"{web.url}/camera") as source:
            assert source.describe().fps is None
            first, *others = Reading(source).frames(4)
            assert source.repaired_pts() == (0, 0)
        assert [frame.media_ns for frame in others] == [frame.capture_ns - first.capture_ns for frame in others]

    def test_its_pictures_may_have_exif(self, web: Server, tmp_path: Path) -> None:
        photo = make_photo(tmp_path / "photo.jpg", next(moving_square(1))).read_bytes()
        web.live["camera"] = mjpeg([photo])
        with opened(f"{web.url}/camera") as source:
            assert [frame.planes.width_px for frame in Reading(source).frames(3)] == [64] * 3

    @pytest.mark.parametrize(
        ("then", "reason"), [("close", "the connection broke"), ("silent", "no picture for"), ("garbage", "no picture")]
    )
    def test_an_end_a_silence_and_garbage_count_as_lost(
        self, web: Server, pictures: list[bytes], then: str, reason: str
    ) -> None:
        web.live["camera"] = mjpeg(pictures, good=8, then=then)
        with opened(f"{web.url}/camera", stall_s=STALL_S) as source:
            reading = Reading(source)
            items = reading.until(lambda items: len(outages_of(items)) == 2)
            outage, outage_end = outages_of(items)
            assert outage.reason.startswith(reason)
            assert outage.lasted_s is None
            assert outage_end.attempts >= 1
            (after,) = reading.frames(1)
        assert after.discontinuity == "reconnect"
        assert after.frame_index > frames_of(items)[-1].frame_index  # a busy machine may drop some
        assert after.media_ns > frames_of(items)[-1].media_ns


class TestHls:
    def test_a_window_that_moves_on_is_live_and_comes_at_its_pace(
        self, web: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits_ns: list[int] = []
        due_ns = Pacer.due_ns

        def noted(self: Pacer, media_ns: int, now_ns: int) -> int:
            due = due_ns(self, media_ns, now_ns)
            waits_ns.extend([due] * (due > now_ns))
            return due

        monkeypatch.setattr(Pacer, "due_ns", noted)
        with hls_sender(tmp_path):
            until((tmp_path / "live3.ts").exists)
            with opened(f"{web.url}/live.m3u8") as source:
                assert source.describe().live
                frames = Reading(source).frames(30)
        assert waits_ns, "segments of 0.2 s come at once, their frames one by one"
        assert [frame.media_ns // MS for frame in frames] == [20 * frame.frame_index for frame in frames]

    def test_one_that_has_ended_is_a_file(self, web: Server, tmp_path: Path) -> None:
        with hls_sender(tmp_path):
            until((tmp_path / "live1.ts").exists)
        with opened(f"{web.url}/live.m3u8") as source:
            info = source.describe()
            frames = list(source.frames())
        assert not info.live
        assert info.duration_ns is not None
        assert len(frames) > 20

    @pytest.mark.parametrize(("count", "offset"), [(100, "0"), (250, "0"), (100, "1000")])
    def test_after_a_discontinuity_media_time_goes_on(
        self, web: Server, tmp_path: Path, count: int, offset: str
    ) -> None:
        (tmp_path / "a.ts").write_bytes(ts_bytes(count, gop=25, fps=25))
        (tmp_path / "b.ts").write_bytes(ts_bytes(350 - count, gop=25, fps=25, output_ts_offset=offset))
        (tmp_path / "ad.m3u8").write_text(
            f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:10\n#EXTINF:{count / 25},\na.ts\n"
            f"#EXT-X-DISCONTINUITY\n#EXTINF:{(350 - count) / 25},\nb.ts\n#EXT-X-ENDLIST\n"
        )
        with opened(f"{web.url}/ad.m3u8") as source:
            times = [frame.media_ns for frame in source.frames()]
        assert times == [40 * MS * index for index in range(350)]


class TestUdp:
    @pytest.fixture
    def port(self) -> int:
        return free_udp_port()

    def test_frames_come_and_a_silence_is_reported_until_it_ends(self, port: int) -> None:
        with udp_sender(port):
            source = opened(f"udp://127.0.0.1:{port}", stall_s=STALL_S)
            reading = Reading(source)
            frames = reading.frames(5)
        numbers = [frame.frame_index for frame in frames]  # a busy machine may drop some
        assert numbers == sorted(set(numbers))
        assert source.describe().live
        assert reading.lost().reason == f"no picture for {STALL_S:g} s"
        with udp_sender(port):
            assert reading.back().attempts >= 1
            assert reading.frames(1)[0].discontinuity == "reconnect"
        source.close()

    def test_without_data_opening_ends_within_its_limit(self, port: int) -> None:
        with pytest.raises(SourceError, match=r"udp://127.* does not answer within 0\.3 s"):
            opened(f"udp://127.0.0.1:{port}", open_timeout_s=0.3)

    def test_a_port_in_use_is_named(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.0.0.1", 0))
            with pytest.raises(SourceError, match="another program on this machine uses"):
                opened(f"udp://127.0.0.1:{listener.getsockname()[1]}", open_timeout_s=5.0)


class TestTcp:
    def test_a_stream_whose_pid_changes_goes_on(self) -> None:
        data = ts_bytes(60, gop=10) + ts_bytes(60, gop=10, mpegts_start_pid="512")
        config, stop = CaptureConfig(open_timeout_s=LIMIT_S, stall_s=LIMIT_S), threading.Event()
        with TcpSender(data) as sender, network_target(sender.url, config).open(LIMIT_S) as container:
            decoder = LiveDecoder(container, container.streams.video[0], config, MonotonicClock(), stop)
            assert len(list(itertools.islice(decoder.frames(LIMIT_S), 110))) == 110

    def test_a_format_without_times_is_not_copied(self, caplog: pytest.LogCaptureFixture) -> None:
        units = encode(list(moving_square(40)), 25, gop=5)
        caplog.set_level("INFO", "stream.sources.segments")
        recorder = SegmentRecorder(None, 1.0, in_memory=True)
        with TcpSender(b"".join(units)) as sender, opened(sender.url, segments=recorder) as source:
            assert (source.describe().codec, source.describe().fps) == ("h264", None)
        assert "the video is encoded for the output: h264 has no times" in caplog.text

    def test_the_first_picture_is_the_first_that_was_sent(self) -> None:
        with TcpSender(ts_bytes(30, gop=400)) as sender, opened(sender.url) as source:
            assert source.describe().fps == 50

    def test_after_an_outage_too(self) -> None:
        with TcpSender(ts_bytes(30, gop=400), ts_bytes(31, gop=400)) as sender, opened(sender.url) as source:
            source.poll()
            sender.go_on.set()
            items = Reading(source).until(lambda items: len(outages_of(items)) == 2)
        assert outages_of(items)[-1].attempts >= 1


def test_ffmpeg_says_nothing_by_itself(capfd: pytest.CaptureFixture[str], web: Server, pictures: list[bytes]) -> None:
    web.live["camera"] = mjpeg(pictures, good=3, then="garbage")
    with opened(f"{web.url}/camera", stall_s=0.2) as source:
        Reading(source).lost()
    with pytest.raises(SourceError):
        opened("rtsp://127.0.0.1:1/x")
    assert capfd.readouterr() == ("", "")
