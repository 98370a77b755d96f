"""Video as segments: packets copied as they are, other pictures encoded, and times that fit media time."""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import NS_PER_S, Colour, FramePlanes
from benchmarks.support.rtsp_server import RtspServer, encode
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import MediaSegment, SourceFrame
from stream.sources.encoding import QUEUE_FRAMES, FrameEncoder, picture_of
from stream.sources.factory import open_source
from stream.sources.fragments import codec_of
from stream.sources.segments import SegmentRecorder
from tests.support.fragments import packets_of, segments_of, video_file
from tests.support.full_disk import room_for
from tests.support.senders import Reading, opened
from tests.support.video import make_video, moving_square

FPS = 50

GOPS = {"bf": "2", "g": "25", "sc_threshold": "0", "preset": "ultrafast"}


@pytest.fixture(scope="module")
def reordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds of H.264 with B-frames and a key frame a second."""
    path = tmp_path_factory.mktemp("video") / "b.ts"
    return make_video(path, moving_square(100, 256), options=GOPS)


def recorded(address: str, folder: Path, segment_s: float = 1.0, **capture: object) -> list[MediaSegment]:
    """The segments of a source that is read to its end."""
    recorder = SegmentRecorder(str(folder), segment_s)
    segments: list[MediaSegment] = []
    config = CaptureConfig.model_validate(capture)
    with open_source(address, config, MonotonicClock(), segments=recorder) as source:
        for frame in source.frames():
            assert isinstance(frame, SourceFrame)
            segments += recorder.attach(frame, wait=True).segments
        segments += recorder.finish()
    return segments


def read(folder: Path, *segments: MediaSegment) -> av.container.InputContainer:
    parts = [segments[0].header, *(segment.file for segment in segments)]
    return av.open(io.BytesIO(b"".join((folder / part).read_bytes() for part in parts)))


def pictures(container: av.container.InputContainer) -> Iterator[tuple[Fraction, bytes]]:
    for frame in container.decode(video=0):
        yield _time(frame), frame.to_ndarray().tobytes()


def _time(frame: av.VideoFrame) -> Fraction:
    assert frame.pts is not None
    assert frame.time_base is not None
    return frame.pts * frame.time_base


def test_packets_are_copied_and_their_pictures_are_the_same(reordered: Path, tmp_path: Path) -> None:
    segments = recorded(str(reordered), tmp_path)
    with av.open(str(reordered)) as container:
        expected = list(pictures(container))
    actual = list(pictures(read(tmp_path, *segments)))
    assert [picture for _, picture in actual] == [picture for _, picture in expected]
    shifts = {float(at - then) for (at, _), (then, _) in zip(actual, expected, strict=True)}
    assert max(shifts) - min(shifts) < 1e-4


def test_each_segment_can_be_decoded_alone_and_says_its_times(reordered: Path, tmp_path: Path) -> None:
    segments = recorded(str(reordered), tmp_path)
    assert [segment.start_ns / NS_PER_S for segment in segments] == [0, 1, 2, 3]
    assert [segment.duration_ns / NS_PER_S for segment in segments] == [1, 1, 1, 1]
    for segment in segments:
        times = [at for at, _ in pictures(read(tmp_path, segment))]
        assert len(times) == 25
        assert float(times[0]) == pytest.approx(segment.track_ns / NS_PER_S, abs=1e-4)
        assert segment.size_bytes == (tmp_path / segment.file).stat().st_size
        assert (segment.width_px, segment.height_px) == (256, 48)
        assert segment.codec.startswith("avc1.")


def test_segments_are_as_long_as_asked_if_key_frames_allow(reordered: Path, tmp_path: Path) -> None:
    assert [segment.duration_ns / NS_PER_S for segment in recorded(str(reordered), tmp_path, 1.5)] == [2, 2]
    assert [segment.duration_ns / NS_PER_S for segment in recorded(str(reordered), tmp_path, 0.5)] == [1, 1, 1, 1]


def test_a_part_of_a_file_keeps_its_times(reordered: Path, tmp_path: Path) -> None:
    segments = recorded(str(reordered), tmp_path, start_s=1.5, duration_s=1.0)
    assert segments[0].start_ns == NS_PER_S
    assert sum(segment.duration_ns for segment in segments) < 2.3 * NS_PER_S


OTHER_FORMATS = {
    "vp09.00.": ("libvpx-vp9", {"cpu-used": "8", "deadline": "realtime"}),
    "hvc1.1.": ("libx265", {"x265-params": "log-level=none", "preset": "ultrafast"}),
    "av01.0.": ("libsvtav1", {"preset": "10"}),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_other_formats_are_copied_too(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SVT_LOG", "0")
    codec, options = OTHER_FORMATS[name]
    path = make_video(tmp_path / "a.mkv", moving_square(6, 128, 96), codec=codec, options=options)
    (segment,) = recorded(str(path), tmp_path)
    assert segment.codec.startswith(name)
    assert len(list(pictures(read(tmp_path, segment)))) == 6
    assert caplog.messages == []


def test_formats_are_named_as_rfc_6381_says() -> None:
    record = bytes.fromhex("0101600000009000000000005df000fcfdf8f800000f03200001")
    assert codec_of(b"....hvcC" + record) == "hvc1.1.6.L93.90"
    assert codec_of(b"....av1C" + bytes([0x81, 0x04, 0x0C]) + bytes(21)) == "av01.0.04M.08"
    assert codec_of(b"....av1C" + bytes([0x81, 0x28, 0x60]) + bytes(21)) == "av01.1.08M.12"
    assert codec_of(b"....vpcC" + bytes([1, 0, 0, 0, 2, 31, 0xA0]) + bytes(17)) == "vp09.02.31.10"
    assert codec_of(b"....avcC" + bytes([1, 0x64, 0, 0x1F]) + bytes(20)) == "avc1.64001f"
    assert codec_of(b"nothing of the kind") == ""


def test_a_scene_is_encoded_with_a_key_frame_for_each_segment(tmp_path: Path) -> None:
    segments = recorded("scene:demo", tmp_path, max_frames=60, size="320x192")
    assert [round(segment.start_ns / NS_PER_S, 3) for segment in segments] == [0, 1, 2]
    frames = list(pictures(read(tmp_path, *segments)))
    assert [round(float(at) * 24) for at, _ in frames] == list(range(60))
    assert all(len(list(pictures(read(tmp_path, segment)))) in (12, 24) for segment in segments)


@pytest.mark.parametrize(
    ("name", "count", "options"),
    [
        ("a.avi", 10, {"codec": "mjpeg", "pixel_format": "yuvj420p"}),
        ("a.h264", 50, {"options": {"g": "50", "bf": "0"}}),
    ],
)
def test_codecs_unfit_for_mp4_and_packets_without_times_are_encoded(
    tmp_path: Path, name: str, count: int, options: dict[str, Any]
) -> None:
    segments = recorded(str(make_video(tmp_path / name, moving_square(count), **options)), tmp_path)
    assert {segment.codec.partition(".")[0] for segment in segments} == {"avc1"}
    assert sum(len(list(pictures(read(tmp_path, segment)))) for segment in segments) >= 0.9 * count


def test_another_size_begins_another_track(tmp_path: Path) -> None:
    recorder = SegmentRecorder(str(tmp_path), 1.0)
    segments: list[MediaSegment] = []
    for index in range(8):
        side = 64 if index < 4 else 96
        planes = FramePlanes("rgb", (np.full((side, side, 3), index * 20, np.uint8),))
        segments += recorder.attach(SourceFrame(index, index * NS_PER_S // 10, 0, planes), wait=True).segments
    segments += recorder.finish()
    assert [(segment.width_px, round(segment.start_ns / NS_PER_S, 2)) for segment in segments] == [(64, 0), (96, 0.4)]
    assert segments[0].header != segments[1].header


@pytest.mark.parametrize("sampling", [(1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (4, 4)])
def test_every_form_of_a_frame_can_be_encoded(sampling: tuple[int, int]) -> None:
    across, down = sampling
    chroma = (-(-48 // down), -(-64 // across))
    yuv = (np.full((48, 64), 90, np.uint8), np.full(chroma, 110, np.uint8), np.full(chroma, 140, np.uint8))
    luma, u, v = (plane[0, 0] for plane in map(_samples, picture_of(FramePlanes("yuv", yuv)).planes))
    assert (luma, u, v) == (90, 110, 140)
    full = picture_of(FramePlanes("yuv", yuv, Colour(full_range=True)))
    assert _samples(full.planes[0])[0, 0] == pytest.approx(16 + 90 * 219 / 255, abs=1)
    gray = picture_of(FramePlanes("gray", (np.full((49, 65), 255, np.uint8),)))
    assert (gray.width, gray.height, _samples(gray.planes[0])[0, 0]) == (64, 48, 235), "odd sides are cut"


def _samples(plane: av.video.plane.VideoPlane) -> npt.NDArray[np.uint8]:
    return np.ndarray((plane.height, plane.line_size), np.uint8, buffer=plane)


def test_a_slow_encoder_leaves_frames_out_and_counts_them() -> None:
    encoder, gate = FrameEncoder(lambda packet, size: None, NS_PER_S), threading.Event()
    encode = encoder._encode
    encoder._encode = lambda frame: encode(frame) if gate.wait(30) else None  # type: ignore[method-assign]
    for _ in range(QUEUE_FRAMES + 3):
        encoder.put(SourceFrame(0, 0, 0, FramePlanes("gray", (np.zeros((64, 64), np.uint8),))), wait=False)
    assert encoder.dropped >= 2
    gate.set()
    encoder.close()


def test_a_source_that_comes_back_begins_another_track(reordered: Path, tmp_path: Path) -> None:
    """Twice the same stream, as two connections: same header, other times."""
    recorder = SegmentRecorder(str(tmp_path), 1.0)
    for offset_s in (0, 10):
        with av.open(str(reordered)) as container:
            stream = container.streams.video[0]
            recorder.connect(stream)
            for packet in container.demux(stream):
                frames = stream.codec_context.decode(packet)
                for frame in frames:
                    recorder.shown(frame, int((_time(frame) + offset_s) * NS_PER_S))
                if packet.size:
                    recorder.packet(packet)
    segments = recorder.finish()
    assert len(segments) == 8
    assert len({segment.header for segment in segments}) == 2
    starts = [segment.start_ns / NS_PER_S for segment in segments]
    assert starts[4] - starts[0] == pytest.approx(10)
    assert segments[4].track_ns == segments[0].track_ns


def test_times_that_leap_begin_another_track_and_without_key_frames_it_is_cut_all_the_same(tmp_path: Path) -> None:
    options = {"g": "5", "bf": "0"}
    path = make_video(tmp_path / "a.mkv", moving_square(50), pts=[*range(25), *range(1000, 1025)], options=options)
    segments = recorded(str(path), tmp_path)
    assert [round(segment.start_ns / NS_PER_S) for segment in segments] == [0, 40]
    assert segments[0].header != segments[1].header
    assert segments[0].duration_ns < 2 * NS_PER_S
    options = {"g": "1000", "bf": "0", "sc_threshold": "0"}
    segments = recorded(str(make_video(tmp_path / "a.mp4", moving_square(50), fps=1, options=options)), tmp_path)
    assert [round(segment.duration_ns / NS_PER_S) for segment in segments] == [20, 20, 10]
    assert len(list(pictures(read(tmp_path, *segments)))) == 50


def test_a_copied_video_that_changes_its_size_begins_another_track(tmp_path: Path) -> None:
    """As a camera that is switched to another size: new parameters come with its next key frame."""
    options = {"g": "25", "bf": "0", "sc_threshold": "0"}
    video = tmp_path / "both.ts"
    with video.open("wb") as file:
        for number, (width, height) in enumerate([(64, 48), (128, 96)]):
            pts = range(number * 25, number * 25 + 25)
            part = tmp_path / f"{number}.ts"
            file.write(make_video(part, moving_square(25, width, height), pts=pts, options=options).read_bytes())
    segments = recorded(str(video), tmp_path)
    assert len({segment.header for segment in segments}) == 2
    tracks = [read(tmp_path, segment).decode(video=0) for segment in segments]
    assert [{frame.width for frame in frames} for frames in tracks] == [{64}, {128}]
    first, second = (read(tmp_path, segment).streams.video[0].codec_context for segment in segments)
    assert (first.width, second.width) == (64, 128)
    assert first.extradata != second.extradata


def test_a_live_source_is_recorded_through_an_outage(tmp_path: Path) -> None:
    """Each connection is a track, from a key frame on, at the media time of its frames."""
    recorder = SegmentRecorder(str(tmp_path), 0.2)
    segments: list[MediaSegment] = []
    units = encode(list(moving_square(20)), FPS, gop=5)
    with RtspServer(units, FPS) as server, opened(server.url, recorder) as source:
        reading = Reading(source)

        def record(tracks: int) -> list[SourceFrame]:
            """Read until there are three segments of `tracks` tracks."""
            frames: list[SourceFrame] = []
            while [segment.header for segment in segments].count(segments[-1].header if segments else "") < 3 or (
                len({segment.header for segment in segments}) < tracks
            ):
                frames += reading.frames(1)
                segments.extend(recorder.attach(frames[-1], wait=False).segments)
            return frames

        record(1)
        server.cut()
        reading.lost()
        server.start()
        back = reading.back()
        later_frames = record(2)
        segments += recorder.finish()
    assert back.lasted_s is not None
    headers = [segment.header for segment in segments]
    _, again, *_ = dict.fromkeys(headers)  # a busy machine may lose the camera once more
    first_again = segments[headers.index(again)]
    assert abs(first_again.start_ns - later_frames[0].media_ns) <= 5 * NS_PER_S // FPS
    for segment in segments:
        decoded_frames = list(pictures(read(tmp_path, segment)))
        assert len(decoded_frames) == round(segment.duration_ns * FPS / NS_PER_S)


def test_a_full_disk_is_reported_once_and_leaves_no_part(reordered: Path, tmp_path: Path) -> None:
    with room_for(2000):
        segments = recorded(str(reordered), tmp_path)
    assert [segment.error for segment in segments] == ["File too large"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]


def test_fragments_in_memory_are_short_and_make_up_the_whole_video(reordered: Path) -> None:
    segments = list(segments_of(str(reordered)))
    assert [round(segment.start_ns / NS_PER_S) for segment in segments] == [0, 1, 2, 3]
    assert all(segment.key for segment in segments)
    data = segments[0].init + b"".join(segment.data for segment in segments)
    assert len(packets_of(data)) == 100
    assert {segment.file for segment in segments} == {""}


def test_a_fragment_that_finds_no_room_is_dropped_and_counted(reordered: Path) -> None:
    all_segments = list(segments_of(str(reordered)))
    room = len(all_segments[0].data) + len(all_segments[0].init)
    recorder = SegmentRecorder(None, 2.0, in_memory=True, waiting_bytes=room)
    with open_source(str(reordered), CaptureConfig(), MonotonicClock(), segments=recorder) as source:
        segments = [segment for frame in source.frames() for segment in recorder.attach(frame, wait=True).segments]
    segments += recorder.finish()
    assert [segment.start_ns for segment in segments] == [all_segments[0].start_ns]
    assert recorder.dropped_fragments == len(all_segments) - 1


def test_a_video_with_few_key_frames_has_fragments_between_them(tmp_path: Path) -> None:
    segments = list(segments_of(str(video_file(tmp_path / "a.mp4", 6))))
    assert [segment.key for segment in segments] == [True, False] * 3
    assert max(segment.duration_ns for segment in segments) < 1.1 * NS_PER_S
    for before, after in itertools.pairwise(segments):
        assert after.track_ns == before.track_ns + before.duration_ns


def test_files_and_fragments_come_from_one_recorder(tmp_path: Path) -> None:
    video = video_file(tmp_path / "a.mp4", 6)
    segments = list(segments_of(str(video), tmp_path))
    files, fragments = (
        [segment for segment in segments if bool(segment.file) is has_file] for has_file in (True, False)
    )
    assert [round(segment.start_ns / NS_PER_S) for segment in files] == [0, 2, 4]
    assert len(fragments) == 6
    data = (tmp_path / files[0].header).read_bytes()
    data += b"".join((tmp_path / segment.file).read_bytes() for segment in files)
    assert packets_of(data) == packets_of(fragments[0].init + b"".join(segment.data for segment in fragments))


def test_fragments_go_on_if_files_cannot_be_written(tmp_path: Path) -> None:
    video = video_file(tmp_path / "a.mp4", 6)
    folder = tmp_path / "gone"
    segments = list(segments_of(str(video), folder))
    assert [segment.error for segment in segments if segment.error] == ["No such file or directory"]
    assert len([segment for segment in segments if segment.data]) == 6


def test_nothing_is_copied_if_that_is_forbidden(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    video = video_file(tmp_path / "a.mp4", 4)
    fragments = list(segments_of(str(video), copies=False))
    packets = packets_of(fragments[0].init + b"".join(fragment.data for fragment in fragments))
    assert len(packets) == 100
    assert not set(packets) & set(packets_of(video))
