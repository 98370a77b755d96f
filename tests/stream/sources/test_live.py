"""Live sources over a real RTSP server on loopback, which is cut, stalled and brought back."""

from __future__ import annotations

import io
import itertools
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import av
import psutil
import pytest

from benchmarks.support.rtsp_server import RtspServer, encode
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError
from stream.media import PollableSource, SourceOutage
from stream.sources import planes as form
from stream.sources.connection import LiveTarget
from stream.sources.live import ConnectionLost, LiveDecoder, LiveSource, ReconnectingReader
from stream.sources.network import network_target
from stream.sources.segments import SegmentRecorder
from stream.sources.timing import Backoff
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_S, until
from tests.support.senders import Reading, TcpSender, frames_of, opened, ts_bytes
from tests.support.video import make_video, moving_square

FPS = 50
MS = 1_000_000

STALL_S = 1.5
"""Far longer than a busy machine delays a thread, so that only the test's own silences count."""


@pytest.fixture(scope="module")
def units() -> list[bytes]:
    return encode(list(moving_square(20)), FPS, gop=5)


@pytest.fixture
def server(units: list[bytes]) -> Iterator[RtspServer]:
    with RtspServer(units, FPS) as rtsp_server:
        yield rtsp_server


@pytest.fixture(params=["tcp", "udp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_frames_come_in_order_at_their_times(server: RtspServer, transport: str) -> None:
    with opened(server.url, rtsp_transport=transport) as source:
        info = source.describe()
        assert (info.name, info.width_px, info.height_px, info.fps) == (server.url, 64, 48, FPS)
        assert (info.live, info.frames, info.duration_ns, info.codec) == (True, None, None, "h264")
        frames = Reading(source).frames(8)
        assert source.repaired_pts() == (0, 0)
        assert source.trailing_skipped() == ()
    numbers = [frame.frame_index for frame in frames]  # a busy machine may drop some
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    assert [frame.discontinuity for frame in frames] == ["start", *[None] * 7]
    assert [frame.media_ns // MS for frame in frames] == [20 * index for index in numbers]
    assert frames[0].planes.planes[0].shape == (48, 64)


def test_the_first_frame_is_there_with_the_first_key_frame(server: RtspServer) -> None:
    server.stall_after = 15  # three key frames; probing as FFmpeg does it by itself would wait for some eighty units
    opened(server.url).close()


def test_the_first_picture_is_the_key_frame_that_opening_reads(transport: str) -> None:
    distant = encode(list(moving_square(20)) * 20, FPS, gop=400)
    with RtspServer(distant, FPS, waits=True) as server:
        server.stall_after = 15
        opened(server.url, rtsp_transport=transport).close()


def test_frames_with_b_frames_come_in_the_order_in_which_they_are_shown() -> None:
    coded = encode(list(moving_square(20)), FPS, gop=10, b_frames=2)
    with RtspServer(coded, FPS) as server, opened(server.url) as source:
        frames = Reading(source).frames(30)
    times = [frame.media_ns for frame in frames]
    assert times == sorted(times)
    lefts = [int((frame.planes.planes[0][18] != frame.planes.planes[0][40]).argmax()) for frame in frames[10:]]
    steps = [after - before for before, after in itertools.pairwise(lefts)]
    assert sum(step < 0 for step in steps) <= 2, f"the square goes back only when the clip begins again: {lefts}"


def test_nothing_old_is_handed_over_to_a_late_reader(server: RtspServer) -> None:
    with opened(server.url) as source:
        until(lambda: server.sent_units > 20)
        now_ns = MonotonicClock().now_ns()
        (first,) = Reading(source).frames(1)
    assert first.capture_ns > now_ns
    assert (first.frame_index, first.media_ns, first.discontinuity) == (0, 0, "start")


def test_a_cut_is_reported_and_tried_again_until_the_server_is_back(
    server: RtspServer, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Backoff, "next_s", lambda self: waits.append(0.02) or waits[-1])
    with opened(server.url, rtsp_transport=transport, stall_s=STALL_S) as source:
        reading = Reading(source)
        before = reading.frames(3)[-1]
        server.cut()
        outage = reading.lost()
        assert outage.attempts == 0
        assert outage.frame_index >= before.frame_index
        until(lambda: len(waits) > 3)
        server.start()
        outage_end = reading.back()
        assert outage_end.reason == outage.reason
        assert outage_end.lasted_s is not None
        assert outage_end.attempts >= 3
        after = reading.frames(3)
    assert after[0].discontinuity == "reconnect"
    numbers = [outage.frame_index, *(frame.frame_index for frame in after)]  # a busy machine may drop some
    assert numbers == sorted(set(numbers))
    lasted_s = (after[0].media_ns - outage.media_ns) / 1e9
    assert 0 < lasted_s <= outage_end.lasted_s + 0.01, "less by what the first connection took to open"
    assert [frame.discontinuity for frame in after[1:]] == [None, None]


def test_a_stall_without_a_close_is_noticed(server: RtspServer, transport: str) -> None:
    with opened(server.url, rtsp_transport=transport, stall_s=STALL_S) as source:
        reading = Reading(source)
        reading.frames(3)
        server.stalled = True
        assert reading.lost().reason == f"no picture for {STALL_S:g} s"
        server.stalled = False
        assert reading.back().attempts >= 1
        assert reading.frames(1)[0].discontinuity == "reconnect"


def test_without_reconnecting_a_loss_ends_it(units: list[bytes]) -> None:
    with RtspServer(units, FPS, ("u", "hush")) as server:
        address = server.url.replace("//", "//u:hush@")
        with opened(address, reconnect=False) as source:
            reading = Reading(source)
            reading.frames(2)
            server.cut()
            with pytest.raises(
                SourceError, match=r"rtsp://\*\*\*@127.* is lost: .*; set capture\.reconnect = true"
            ) as raised:
                reading.frames(1000)
    assert "hush" not in str(raised.value)


def test_it_stops_while_it_is_lost_stalled_or_running(server: RtspServer) -> None:
    """The source's time limits are long, so waiting for one of them would fail."""
    for trouble in (lambda: None, lambda: setattr(server, "stalled", True), server.cut):
        server.stalled = False
        source = opened(server.url)
        reading = Reading(source)
        reading.frames(2)
        trouble()
        timer = threading.Timer(0.15, setattr, (reading, "stop", True))
        timer.start()
        with pytest.raises(StopIteration):
            reading.frames(10**9)
        source.close()
        source.close()
        timer.join()


def test_it_ends_after_as_many_frames_as_were_asked_for(server: RtspServer) -> None:
    with opened(server.url, max_frames=4) as source:
        assert [item.frame_index for item in source.frames()] == [0, 1, 2, 3]


def test_it_can_be_waited_for_beside_other_things(server: RtspServer) -> None:
    with opened(server.url) as source:
        assert isinstance(source, PollableSource)
        assert source.poll() == []
        assert source.fileno() >= 0
        Reading(source).frames(2)
        assert source.dropped_frames == 0


@pytest.mark.parametrize("auth", ["Basic", "Digest"])
def test_a_login_is_used_and_a_wrong_one_named_without_showing_it(units: list[bytes], auth: str) -> None:
    with RtspServer(units, FPS, ("me", "p@ss!"), auth) as server:
        with opened(server.url.replace("//", "//me:p%40ss!@")) as source:
            assert source.describe().name == f"rtsp://***@127.0.0.1:{server.port}/live"
        for login in ("", "me:wrong@"):
            with pytest.raises(SourceError, match="rejects the user name or password; write them") as raised:
                opened(server.url.replace("//", f"//{login}"))
            assert "wrong" not in str(raised.value)


def test_a_source_that_cannot_be_opened_gives_the_reason(server: RtspServer) -> None:
    with pytest.raises(SourceError, match="has no such stream; check the path"):
        opened(server.url.replace("live", "dead"))
    with pytest.raises(ConfigError, match="size"):
        opened(server.url, size="99999x10")
    with pytest.raises(ConfigError, match=r"capture\.start_s = 2 is for files, and rtsp:.* is live"):
        opened(server.url, start_s=2.0)
    server.cut()
    with pytest.raises(SourceError, match="refuses the connection: nothing listens there; check host and port"):
        opened(server.url)


def test_a_server_that_says_nothing_fails_within_the_time_limit() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(SourceError, match=r"does not answer within 0\.3 s; check the address"),
    ):
        opened(f"rtsp://127.0.0.1:{silent.getsockname()[1]}/live", open_timeout_s=0.3)


def test_a_server_that_sends_nothing_fails_within_the_time_limit(server: RtspServer, transport: str) -> None:
    server.stalled = True
    with pytest.raises(SourceError, match=r"(does not answer|gives no picture).* 0\.4 s"):
        opened(server.url, open_timeout_s=0.4, rtsp_transport=transport)


def test_opening_never_holds_the_caller_beyond_the_limit() -> None:
    released = threading.Event()
    closed = threading.Event()

    class Container:
        file = None

        def close(self) -> None:
            closed.set()

    def hang(limit_s: float) -> av.container.InputContainer:
        released.wait(LIMIT_S)
        return Container()

    with pytest.raises(SourceError, match=r"the camera does not answer within 0\.01 s"):
        LiveSource(LiveTarget("the camera", hang), CaptureConfig(open_timeout_s=0.01), MonotonicClock())
    released.set()
    assert closed.wait(LIMIT_S), "what opens too late is closed"


class SlowContainer:
    """Packets of a container, each of them a second after the one before."""

    read_timeout = None

    def __init__(self, packets: list[av.Packet], clock: FakeClock) -> None:
        self._packets = packets
        self._clock = clock

    def demux(self, stream: object) -> Iterator[av.Packet]:
        for packet in self._packets:
            self._clock.advance(1000 * MS)
            yield packet


@pytest.mark.parametrize(("gop", "is_found"), [(20, True), (70, False)])
def test_a_connection_may_begin_long_before_its_next_key_frame(gop: int, is_found: bool) -> None:
    clock = FakeClock()
    with av.open(io.BytesIO(ts_bytes(100, gop)), format="mpegts") as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size][1:]
        decoder = LiveDecoder(SlowContainer(packets, clock), stream, CaptureConfig(), clock, threading.Event())
        frames = decoder.frames(10.0)
        if is_found:
            assert [next(frames).key_frame for _ in range(3)] == [True, False, False]
        else:
            with pytest.raises(ConnectionLost, match="no picture for 60 s"):
                next(frames)


class StalledContainer:
    """Packets of a container every 40 ms; the last one comes with the end of the read that times out."""

    read_timeout = 5.0

    def __init__(self, packets: list[av.Packet], clock: FakeClock) -> None:
        self._packets = packets
        self._clock = clock

    def demux(self, stream: object) -> Iterator[av.Packet]:
        while self._packets:
            self._clock.advance(40 * MS if self._packets[1:] else 5000 * MS)
            yield self._packets.pop(0)
        self._clock.advance(100 * MS)
        raise av.error.ExitError(0, "Immediate exit requested")


def test_the_picture_of_a_read_that_timed_out_is_no_sign_of_life() -> None:
    clock = FakeClock()
    with av.open(io.BytesIO(ts_bytes(20, 5)), format="mpegts") as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        decoder = LiveDecoder(StalledContainer(packets, clock), stream, CaptureConfig(), clock, threading.Event())
        times_ms: list[int] = []
        with pytest.raises(ConnectionLost, match="no picture for 5 s"):
            times_ms.extend((clock.now_ns() - decoder.late_ns) // MS for _ in decoder.frames(10.0))
    assert times_ms == [40 * number for number in range(1, 21)], "the last one is no later after the one before"
    assert clock.now_ns() == (19 * 40 + 5000) * MS, "it waits no second time"


def test_a_source_without_a_key_frame_is_named() -> None:
    data = ts_bytes(60, gop=400)
    begin = data.index(b"\0\0\1\x65")
    without = data[:begin] + b"\0\0\1\x0c" + data[begin + 4 :]  # filler instead of the key frame's slice
    with TcpSender(without) as sender:
        config = CaptureConfig(open_timeout_s=LIMIT_S)
        target = network_target(sender.url, config)
        reader = ReconnectingReader(target, target.open(LIMIT_S), 0.0, config, MonotonicClock())
        reader.start()
        until(lambda: "sends no key frame within 120 s; let it send key frames" in str(reader.no_frame_error()))
        reader.stop()
    reader.join(LIMIT_S)


def test_packets_whose_times_run_at_a_wrong_rate_are_not_copied(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    recorder = SegmentRecorder(None, 1.0, in_memory=True)
    target = LiveTarget("the camera", Mock())
    with av.open(io.BytesIO(ts_bytes(200, gop=10)), format="mpegts") as container:
        stream = container.streams.video[0]
        reader = ReconnectingReader(target, container, 0.0, CaptureConfig(), clock, recorder)
        reader.begin()
        reader.timeline.connected(stream.time_base, None, checks_rate=True)
        recorder.connect(stream)
        for frame in container.decode(stream):
            clock.advance(200 * MS)  # ten times the distance of the frames' own times
            reader._hand_over(frame, Mock(skipped=lambda: (), late_ns=0, aspect=None, deinterlacer=Mock(reach_px=0)))
    last = frames_of(reader.queue.drain() or [])[-1]
    assert last.media_ns == 199 * 200 * MS
    assert [record.message for record in caplog.records] == [
        "the clock of the camera runs at a wrong rate: media time follows its arrival",
        "the video is encoded for the output: its packets cannot be copied (their times run at a wrong rate)",
    ]


def test_a_source_without_pictures_is_reported(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", moving_square(3))
    damaged = path.read_bytes()
    with av.open(str(path)) as container:
        first = next(packet for packet in container.demux(video=0) if packet.size)
        spans = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    for position, size in [(first.pos, first.size), *spans]:
        damaged = damaged[:position] + bytes(size) + damaged[position + size :]
    path.write_bytes(damaged)
    target = LiveTarget("the camera", lambda limit_s: av.open(str(path)))
    with pytest.raises(SourceError, match="the camera gives no picture: the other end closed the stream; check"):
        LiveSource(target, CaptureConfig(), MonotonicClock())


def test_fifty_reconnects_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short file that is opened again whenever it ends."""
    monkeypatch.setattr(Backoff, "next_s", lambda self: 0.0)
    path = make_video(tmp_path / "clip.avi", moving_square(2), codec="mjpeg", pixel_format="yuvj420p")
    process, sizes = psutil.Process(), []
    with LiveSource(
        LiveTarget("loop", lambda limit_s: av.open(str(path))), CaptureConfig(), MonotonicClock()
    ) as source:
        reading = Reading(source)
        tracemalloc.start()
        try:
            for count in (10, 50):
                items = reading.until(lambda items, count=count: sum(map(_is_return, items)) == count)
                del items
                sizes.append((tracemalloc.get_traced_memory()[0], process.num_fds(), threading.active_count()))
        finally:
            tracemalloc.stop()
    (memory, files, threads), (memory_after, files_after, threads_after) = sizes
    assert memory_after - memory < 100_000
    assert files_after <= files + 1
    assert threads_after <= threads + 1


def test_a_whole_life_leaves_no_thread_and_no_descriptor(server: RtspServer) -> None:
    def readers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("read ")]

    opened(server.url).close()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        with opened(server.url) as source:
            Reading(source).frames(2)
    until(lambda: readers() == [])
    if files:
        until(lambda: len(os.listdir("/proc/self/fd")) <= files)


def _is_return(item: object) -> bool:
    return isinstance(item, SourceOutage) and item.lasted_s is not None


def test_pictures_that_cannot_be_converted_end_it(server: RtspServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "planes_of", Mock(side_effect=av.error.OSError(95, "Operation not supported")))
    with opened(server.url) as source, pytest.raises(SourceError, match="has pictures of the format yuv420p, which"):
        Reading(source).frames(1)
