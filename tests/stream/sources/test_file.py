"""Files as a source: times, losses, changes of size, fitting, and unreadable files."""

from __future__ import annotations

import itertools
import logging
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import av
import numpy as np
import pytest
from PIL import Image, features

from arr_coc.types import NS_PER_S
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceError, SourceNotFound
from stream.sources import SourceFrame, file
from stream.sources import file as module
from stream.sources import planes as form
from stream.sources.decoder import open_container
from stream.sources.factory import check_source, open_source
from stream.sources.file import FileSource, PipeReader, StdinSource
from stream.sources.fit import resize_rgb
from tests.support.clock import FakeClock
from tests.support.senders import ts_bytes
from tests.support.video import (
    make_audio,
    make_mjpeg_avi,
    make_photo,
    make_song_with_cover,
    make_video,
    moving_square,
    overwrite_packet,
)

MS = NS_PER_S // 1000
NOISE = np.random.default_rng(0).bytes(5000)
TEXT = b"hello, this is text\n" * 99


def opened(path: Path, **capture: object) -> FileSource:
    return FileSource(path, CaptureConfig.model_validate(capture), FakeClock(7))


def read(path: Path, **capture: object) -> list[SourceFrame]:
    with opened(path, **capture) as source:
        return list(source.frames())


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Ten frames at 25 FPS, 64×48, with B-frames."""
    return make_video(tmp_path / "clip.mp4", moving_square(10))


def test_frames_come_in_order_with_their_times(clip: Path) -> None:
    frames = read(clip)
    assert [frame.frame_index for frame in frames] == list(range(10))
    assert [frame.media_ns for frame in frames] == [index * 40 * MS for index in range(10)]
    assert [frame.discontinuity for frame in frames] == ["start"] + [None] * 9
    assert {frame.capture_ns for frame in frames} == {7}
    assert {(frame.planes.layout, frame.planes.height_px, frame.planes.width_px) for frame in frames} == {
        ("yuv", 48, 64)
    }


def test_the_picture_is_the_one_that_was_encoded(tmp_path: Path) -> None:
    images = list(moving_square(3))
    path = make_video(tmp_path / "lossless.mkv", images, codec="ffv1", pixel_format="bgr0")
    for frame, image in zip(read(path), images, strict=True):
        assert np.array_equal(frame.planes.planes[0], image)


def test_it_describes_itself(clip: Path) -> None:
    with opened(clip) as source:
        info = source.describe()
    assert (info.name, info.width_px, info.height_px) == (str(clip), 64, 48)
    assert (info.fps, info.duration_ns, info.frames, info.live) == (25.0, 400 * MS, 10, False)
    assert (info.codec, info.pixel_format, info.rotation) == ("h264", "yuv420p", 0)


def test_capture_time_is_when_the_frame_leaves_the_decoder(clip: Path) -> None:
    clock = FakeClock()
    with FileSource(clip, CaptureConfig(), clock) as source:
        for count, frame in enumerate(source.frames()):
            assert frame.capture_ns == count * 5
            clock.advance(5)


def test_max_frames_ends_the_run_early(clip: Path) -> None:
    with opened(clip, max_frames=3) as source:
        assert len(list(source.frames())) == 3
        assert source.trailing_skipped() == ()


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "flv", "mov", "mpg"])
def test_media_time_starts_where_players_start(tmp_path: Path, suffix: str) -> None:
    """MPEG-TS, FLV and others begin at an arbitrary time, which players show as 0."""
    codec = "mpeg2video" if suffix == "mpg" else "libx264"
    path = make_video(tmp_path / f"clip.{suffix}", moving_square(5), codec=codec)
    assert [frame.media_ns // MS for frame in read(path)] == [0, 40, 80, 120, 160]


@pytest.mark.parametrize(
    ("name", "options", "times_ms", "missing", "clamped"),
    [
        ("raw.h264", {}, [0, 40, 80, 120, 160], 5, 0),
        (
            "back.mkv",
            {"codec": "mjpeg", "pixel_format": "yuvj420p", "packet_pts": [0, 2, 1, 4, 5]},
            [0, 80, 120, 160, 200], 0, 1,
        ),
    ],
)  # fmt: skip
def test_missing_pts_are_made_and_backward_ones_clamped_and_both_are_counted(
    tmp_path: Path, name: str, options: dict[str, Any], times_ms: list[int], missing: int, clamped: int
) -> None:
    with opened(make_video(tmp_path / name, moving_square(5), **options)) as source:
        assert [frame.media_ns // MS for frame in source.frames()] == times_ms
        assert (source.timeline.made_pts, source.timeline.clamped_pts) == (missing, clamped)


@pytest.mark.parametrize("pid", [0x100, 0x200])
def test_parts_one_after_the_other_take_their_time(tmp_path: Path, pid: int) -> None:
    path = tmp_path / "joined.ts"
    first, *others = (
        ts_bytes(count, 25, 25, mpegts_start_pid=str(at)) for count, at in ((100, 0x100), (250, pid), (50, 0x300))
    )
    path.write_bytes(first + others[0] + others[1] * (pid != 0x100))
    frames = read(path)
    count = 350 if pid == 0x100 else 400
    assert len(frames) == count
    # a part with other PIDs begins before the last frame of the one before has arrived, which is shown after its first
    least = count - 1 if pid == 0x100 else count - 3
    assert least * 40 * MS <= frames[-1].media_ns <= (count - 1) * 40 * MS


def test_a_packet_that_does_not_decode_is_named_and_skipped(clip: Path) -> None:
    overwrite_packet(clip, 4)
    with opened(clip) as source:
        frames = list(source.frames())
        assert source.trailing_skipped() == ()
    assert len(frames) == 9
    (after,) = [frame for frame in frames if frame.skipped]
    (loss,) = after.skipped
    assert (loss.what, loss.count) == ("packet 4", 1)
    assert "Invalid data" in loss.reason
    assert loss.media_ns is not None
    assert after.media_ns > loss.media_ns
    assert loss.media_ns not in {frame.media_ns for frame in frames}
    assert all(second.media_ns > first.media_ns for first, second in itertools.pairwise(frames))


def test_reading_damage_twice_gives_the_same(clip: Path) -> None:
    overwrite_packet(clip, 4, count=3)
    first, second = read(clip), read(clip)
    assert [(frame.media_ns, frame.skipped) for frame in first] == [(frame.media_ns, frame.skipped) for frame in second]
    for frame, same in zip(first, second, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(frame.planes.planes, same.planes.planes, strict=True))


def test_losses_after_the_last_frame_are_reported_at_the_end(tmp_path: Path) -> None:
    path = make_video(tmp_path / "tail.mp4", moving_square(6), options={"bf": "0"})
    overwrite_packet(path, 5, count=2)
    with opened(path) as source:
        assert len(list(source.frames())) == 4
        (loss,) = source.trailing_skipped()
    assert (loss.what, loss.count, loss.media_ns) == ("packets 5-6", 2, 160 * MS)


def test_a_file_cut_short_says_how_much_is_missing(tmp_path: Path) -> None:
    path = make_video(tmp_path / "long.mkv", moving_square(25), 10, codec="mjpeg", pixel_format="yuvj420p")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with opened(path) as source:
        frames = list(source.frames())
        (loss,) = [item for item in source.trailing_skipped() if item.what.startswith("the last")]
    assert 5 < len(frames) < 20
    assert loss.what == f"the last {2.5 - len(frames) / 10:.2f} s"
    assert loss.reason == "the file ends early: it declares 2.50 s"


def test_a_last_frame_that_is_shown_for_long_is_no_early_end(tmp_path: Path) -> None:
    path = make_video(tmp_path / "slides.mp4", moving_square(3), options={"bf": "0"}, last_duration=100)
    with opened(path) as source:
        assert len(list(source.frames())) == 3
        assert source.trailing_skipped() == ()
        assert source.describe().duration_ns == (2 + 100) * 40 * MS


def test_metadata_that_is_not_utf8_is_no_obstacle(tmp_path: Path) -> None:
    path = make_video(tmp_path / "odd.mkv", moving_square(2))
    path.write_bytes(path.read_bytes().replace(b"Lavf", b"\xff\xfe\xfd\xfc"))
    assert len(read(path)) == 2


def test_a_source_that_fails_to_open_leaves_no_file_open(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containers: list[av.container.InputContainer] = []

    def remember(path: Path, *options: Any) -> av.container.InputContainer:
        containers.append(open_container(path, *options))
        return containers[-1]

    overwrite_packet(clip, 1, count=10)
    monkeypatch.setattr(file, "open_container", remember)
    with pytest.raises(SourceError):
        opened(clip)
    with pytest.raises(AssertionError, match="not open"):
        next(containers[0].demux())


def test_every_frame_says_how_long_it_is_shown(tmp_path: Path) -> None:
    path = make_video(tmp_path / "slow.mp4", moving_square(3), 25, pts=[0, 1, 3], last_duration=None)
    with opened(path) as source:
        frames, info = list(source.frames()), source.describe()
    assert frames[-1].duration_ns is not None
    assert info.duration_ns is not None
    assert 0 < frames[-1].media_ns + frames[-1].duration_ns <= info.duration_ns
    raw = read(make_video(tmp_path / "raw.h264", moving_square(3)))
    assert [frame.duration_ns for frame in raw] == [40_000_000] * 3


def test_another_size_in_mid_stream_is_a_discontinuity(tmp_path: Path) -> None:
    small = make_video(tmp_path / "small.h264", moving_square(3, 64, 48))
    large = make_video(tmp_path / "large.h264", moving_square(3, 128, 96))
    joined = tmp_path / "joined.h264"
    joined.write_bytes(large.read_bytes() + small.read_bytes())
    frames = read(joined)
    assert [frame.discontinuity for frame in frames] == ["start", None, None, "resolution", None, None]
    assert [frame.planes.width_px for frame in frames] == [128, 128, 128, 64, 64, 64]
    resized = read(joined, size="96x96")
    assert [frame.discontinuity for frame in resized] == ["start", None, None, "resolution", None, None]
    assert {frame.planes.planes[0].shape for frame in resized} == {(96, 96)}


def test_other_planes_in_mid_stream_are_a_discontinuity(tmp_path: Path) -> None:
    parts = [
        make_video(tmp_path / f"{name}.mjpeg", moving_square(2), codec="mjpeg", pixel_format=name).read_bytes()
        for name in ("yuvj420p", "yuvj444p")
    ]
    joined = tmp_path / "joined.mjpeg"
    joined.write_bytes(b"".join(parts))
    assert [frame.discontinuity for frame in read(joined)] == ["start", None, "format", None]


def test_frames_are_fitted_as_configured(clip: Path) -> None:
    (frame,) = read(clip, size="40x24", max_frames=1)
    assert [plane.shape for plane in frame.planes.planes] == [(24, 40), (12, 20), (12, 20)]
    (frame,) = read(clip, fit="resize", max_frames=1)
    assert frame.planes.planes[0].shape == (224, 320, 3)
    (frame,) = read(clip, max_tiles=2, max_frames=1)
    assert frame.planes.planes[0].shape == (32, 32, 3)


def test_resized_frames_are_what_qwens_processor_makes_of_swscales(clip: Path) -> None:
    with av.open(str(clip)) as container:
        rgb = next(container.decode(video=0)).to_ndarray(format="rgb24")
    (frame,) = read(clip, fit="resize", max_frames=1)
    assert np.array_equal(frame.planes.planes[0], resize_rgb(rgb, (224, 320)))


def test_pictures_that_cannot_be_converted_are_an_error(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "planes_of", Mock(side_effect=av.error.OSError(95, "Operation not supported")))
    with pytest.raises(SourceError, match=r"clip\.mp4 has pictures of the format yuv420p, .* convert them to yuv420p"):
        read(clip)


def test_a_rotated_video_is_described_and_shown_upright(tmp_path: Path) -> None:
    path = make_video(tmp_path / "phone.mp4", moving_square(2), rotation=-90)
    with opened(path) as source:
        info = source.describe()
        frame = next(source.frames())
    assert (info.width_px, info.height_px, info.rotation) == (48, 64, -90)
    assert (frame.planes.width_px, frame.planes.height_px) == (48, 64)


@pytest.mark.parametrize(("name", "codec", "pixel_format"), [("a.png", "png", "rgb24"), ("a.jpg", "mjpeg", "yuvj420p")])
def test_a_still_picture_is_a_video_of_one_frame(tmp_path: Path, name: str, codec: str, pixel_format: str) -> None:
    frames = read(make_video(tmp_path / name, moving_square(1), codec=codec, pixel_format=pixel_format))
    assert [frame.media_ns for frame in frames] == [0]


@pytest.mark.parametrize("suffix", ["jpg", "webp", "png", "tif", "avif"])
def test_a_photo_with_exif_is_shown_upright(suffix: str, tmp_path: Path) -> None:
    """FFmpeg attaches EXIF as side data of a type that PyAV's enumeration lacks."""
    if suffix == "avif" and not features.check("avif"):
        pytest.skip("this Pillow cannot write AVIF")
    photo = make_photo(tmp_path / f"photo.{suffix}", next(moving_square(1)), orientation=6)
    (frame,) = read(photo)
    assert (frame.planes.width_px, frame.planes.height_px, frame.planes.coded_motion) == (48, 64, None)


def test_motion_jpeg_with_exif_is_read(tmp_path: Path) -> None:
    photo = make_photo(tmp_path / "photo.jpg", next(moving_square(1))).read_bytes()
    frames = read(make_mjpeg_avi(tmp_path / "camera.avi", [photo] * 5))
    assert [frame.media_ns // MS for frame in frames] == [0, 100, 200, 300, 400]


def test_of_several_streams_the_first_default_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = []
        for width in (32, 64):
            stream = container.add_stream("ffv1", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, 32, "yuv420p"
            streams.append(stream)
        streams[1].disposition = av.stream.Disposition.default
        for stream in streams:
            frame = av.VideoFrame(stream.width, 32, "yuv420p")
            frame.pts = 0
            container.mux(stream.encode(frame) + stream.encode(None))
    assert read(path)[0].planes.width_px == 64


def test_a_name_that_looks_like_a_protocol_is_still_a_file(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = clip.with_name("concat:a|b%03d.mp4")
    shutil.copy(clip, odd)
    monkeypatch.chdir(clip.parent)
    assert len(read(Path(odd.name))) == 10


def test_nothing_is_printed(clip: Path, capfd: pytest.CaptureFixture[str]) -> None:
    overwrite_packet(clip, 2, count=4)
    read(clip)
    assert capfd.readouterr() == ("", "")


class TestWhatCannotBeOpened:
    """One clear line each, with the name and the remedy."""

    def fails(self, path: Path, pattern: str, kind: type[SourceError] = SourceError) -> None:
        with pytest.raises(kind, match=pattern) as raised:
            opened(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_missing_or_a_folder(self, tmp_path: Path) -> None:
        self.fails(tmp_path / "none.mp4", "does not exist; check the name", SourceNotFound)
        self.fails(tmp_path, "is a folder; give one of the video files in it")

    def test_unreadable(self, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        self.fails(clip, "may not be read by this user; change its permissions")

    @pytest.mark.parametrize(
        ("name", "content", "pattern"),
        [
            ("empty.mp4", b"", "is empty; copy or record it again"),
            ("noise.mp4", NOISE, "is not a video that FFmpeg can read: Invalid data .*; it may be truncated, damaged"),
            ("notes.mp4", TEXT, "is not a video that FFmpeg can read: Invalid data .*; it may be truncated, damaged"),
            ("page.html", TEXT, "is not a video that FFmpeg can read: Invalid data .*; it may be truncated, damaged"),
            ("notes.txt", TEXT, "is not a video that FFmpeg can read: it looks like text"),  # drawn as a terminal
            ("drawing.svg", b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "has no decoder for; convert it"),
        ],
    )
    def test_no_video(self, tmp_path: Path, name: str, content: bytes, pattern: str) -> None:
        (tmp_path / name).write_bytes(content)
        self.fails(tmp_path / name, pattern)

    def test_audio_alone_or_with_a_cover(self, tmp_path: Path) -> None:
        for path in (make_audio(tmp_path / "song.m4a"), make_song_with_cover(tmp_path / "song.mp3")):
            self.fails(path, r"has no video stream \(only audio in it\)")

    def test_no_frame_decodes(self, clip: Path) -> None:
        overwrite_packet(clip, 1, count=10)
        self.fails(clip, r"no frame of .* can be decoded \(packets 1-10: Invalid data .*\); check the file")


FPS = 25
FRAMES = 26
KEY_FRAMES = {"g": "8", "bf": "2"}


def part_of(address: str | Path, start_s: float, **capture: object) -> list[SourceFrame]:
    config = CaptureConfig(start_s=start_s, **capture)  # type: ignore[arg-type]
    with open_source(str(address), config, FakeClock()) as source:
        frames = list(source.frames())
        assert source.trailing_skipped() == ()
        return frames


@pytest.fixture(params=["mp4", "mkv", "ts", "flv"])
def long_clip(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """26 frames of 40 ms, a key frame every 8, B-frames between."""
    return make_video(tmp_path / f"clip.{request.param}", moving_square(FRAMES), FPS, options=KEY_FRAMES)


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 20, 25])
def test_a_file_begins_there_with_the_frames_of_that_time(long_clip: Path, first: int) -> None:
    reference = part_of(long_clip, 0.0)
    frames = part_of(long_clip, first / FPS)
    assert [frame.frame_index for frame in frames] == list(range(len(frames)))
    assert [frame.media_ns for frame in frames] == [frame.media_ns for frame in reference[first:]]
    assert [frame.media_ns // MS for frame in frames] == [index * 40 for index in range(first, FRAMES)]
    for frame, expected in zip(frames, reference[first:], strict=True):
        assert np.array_equal(frame.planes.planes[0], expected.planes.planes[0])
    assert [frame.discontinuity for frame in frames] == ["start"] + [None] * (len(frames) - 1)
    assert not any(frame.skipped for frame in frames), "what lies before was not lost"


def test_between_two_frames_the_next_one_is_the_first_and_their_number_counts_from_there(long_clip: Path) -> None:
    assert [frame.media_ns // MS for frame in part_of(long_clip, 0.33, max_frames=2)] == [360, 400]


@pytest.mark.parametrize(("start_s", "start"), [(1.04, r"1\.04 s"), (2.0, "2 s"), (5940.0, r"1:39:00\.0")])
def test_beyond_the_end_there_is_nothing(long_clip: Path, start_s: float, start: str) -> None:
    with pytest.raises(SourceError, match=rf"clip\.\w+ has no frame from {start} on \(its length is 1\.\d+ s\)"):
        part_of(long_clip, start_s)


def test_a_variable_rate_is_no_hindrance(tmp_path: Path) -> None:
    path = make_video(tmp_path / "vfr.mkv", moving_square(4), Fraction(1000), pts=[0, 100, 150, 900])
    assert [frame.media_ns // MS for frame in read(path)] == [0, 100, 150, 900]
    assert [frame.media_ns // MS for frame in part_of(path, 0.12)] == [150, 900]


@pytest.mark.parametrize(("start_s", "first"), [(0.0, 0), (1.0, 24), (1.01, 25), (2.5, 60)])
def test_a_scene_begins_there(start_s: float, first: int) -> None:
    reference = part_of("scene:demo", 0.0, max_frames=64)
    frames = part_of("scene:demo", start_s, max_frames=3)
    assert [(frame.frame_index, frame.media_ns) for frame in frames] == [
        (number, reference[first + number].media_ns) for number in range(3)
    ]
    assert np.array_equal(frames[0].planes.planes[0], reference[first].planes.planes[0])
    assert frames[0].discontinuity == "start"
    with pytest.raises(SourceError, match=r"scene:demo has no frame from 8:20\.0 on"):
        part_of("scene:demo", 500.0)


@pytest.mark.parametrize(
    ("start_s", "duration_s", "expected"),
    [
        (0.0, 0.08, [0, 40]),
        (0.4, 0.08, [400, 440]),
        (0.41, 0.08, [440, 480]),
        (0.96, 9.0, [960, 1000]),
        (0.0, 0.01, [0]),
    ],
)
def test_a_part_ends_with_the_last_frame_before_its_end(
    long_clip: Path, start_s: float, duration_s: float, expected: list[int]
) -> None:
    frames = part_of(long_clip, start_s, duration_s=duration_s)
    assert [frame.media_ns // MS for frame in frames] == expected


def test_a_part_between_two_frames_is_refused(long_clip: Path) -> None:
    with pytest.raises(SourceError, match=r"has no frame in the 0\.01 s from 0\.41 s on; give more --duration"):
        part_of(long_clip, 0.41, duration_s=0.01)


@pytest.mark.parametrize(("start_s", "first"), [(0.0, 0), (0.2, 5), (0.21, 6)])
def test_a_stream_without_times_is_counted_through(tmp_path: Path, start_s: float, first: int) -> None:
    path = make_video(tmp_path / "raw.h264", moving_square(10), FPS, options={"bf": "0"})
    reference, frames = part_of(path, 0.0), part_of(path, start_s, duration_s=0.1)
    assert [frame.media_ns // MS for frame in frames] == [40 * (first + number) for number in range(len(frames))]
    assert np.array_equal(frames[0].planes.planes[0], reference[first].planes.planes[0])


def test_a_part_of_a_folder_and_of_a_scene(tmp_path: Path) -> None:
    for number in range(6):
        Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    assert [frame.media_ns // MS for frame in part_of(tmp_path, 0.05, duration_s=0.1)] == [80, 120]
    frames = part_of("scene:demo", 1.0, duration_s=0.1)
    assert [frame.media_ns // MS for frame in frames] == [1000, 1041, 1083]
    for address in (str(tmp_path), "scene:demo"):
        with pytest.raises(SourceError, match=r"has no frame in the 0\.01 s from 0\.05 s on"):
            part_of(address, 0.05, duration_s=0.01)


@pytest.mark.parametrize("address", ["rtsp://camera/x", "/dev/video0", "udp://127.0.0.1:5"])
def test_a_part_of_what_is_live_is_refused_before_it_is_opened(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"capture\.duration_s = 2 is for files, and {address} is live; --for ends"):
        check_source(address, CaptureConfig(duration_s=2.0), NetworkConfig())


@contextmanager
def pipe_of(write: Callable[[int], None]) -> Iterator[int]:
    """Reading end of a pipe; `write` writes to the other end in a thread, which closes it."""
    reading, writing = os.pipe()

    def run() -> None:
        try:
            write(writing)
        except BrokenPipeError:
            pass
        finally:
            os.close(writing)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield reading
    finally:
        os.close(reading)
        thread.join(10)
        assert not thread.is_alive()


def piped(data: bytes, chunk: int = 1 << 20) -> Callable[[int], None]:
    def write(descriptor: int) -> None:
        for start in range(0, len(data), chunk):
            part = data[start : start + chunk]
            while part:
                part = part[os.write(descriptor, part) :]

    return write


def read_whole(source: FileSource | StdinSource) -> list[tuple[int, list[bytes]]]:
    with source:
        return [(frame.media_ns, [p.tobytes() for p in frame.planes.planes]) for frame in source.frames()]


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        (".ts", "libx264"),
        (".mkv", "ffv1"),
        (".h264", "libx264"),
        (".mjpeg", "mjpeg"),
        (".avi", "mjpeg"),
        (".gif", "gif"),
    ],
)
def test_it_gives_the_frames_of_the_file(tmp_path: Path, suffix: str, codec: str) -> None:
    pixel_format = {"mjpeg": "yuvj420p", "gif": "rgb8"}.get(codec, "yuv420p")
    path = make_video(tmp_path / f"clip{suffix}", moving_square(12), codec=codec, pixel_format=pixel_format)
    with pipe_of(piped(path.read_bytes())) as descriptor:
        through_pipe = read_whole(StdinSource(CaptureConfig(), FakeClock(), descriptor))
    assert len(through_pipe) == 12
    assert through_pipe == read_whole(opened(path))


def test_a_writer_that_gives_little_at_a_time_is_waited_for(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.ts", moving_square(5))
    with pipe_of(piped(path.read_bytes(), chunk=97)) as descriptor:
        source = StdinSource(CaptureConfig(), FakeClock(), descriptor)
        assert source.describe().name == "standard input"
        assert not source.describe().live
        assert len(read_whole(source)) == 5


def test_a_redirected_file_may_have_its_index_at_the_end(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mp4", moving_square(5))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert len(read_whole(StdinSource(CaptureConfig(), FakeClock(), descriptor))) == 5
    finally:
        os.close(descriptor)


def test_a_wait_for_the_writer_ends_when_asked(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", moving_square(50), codec="ffv1")
    data, ended = path.read_bytes(), threading.Event()

    def half_and_then_nothing(descriptor: int) -> None:
        piped(data[: len(data) // 2])(descriptor)
        ended.wait(10)

    with pipe_of(half_and_then_nothing) as descriptor, StdinSource(CaptureConfig(), FakeClock(), descriptor) as source:
        calls = []
        count = sum(1 for _ in source.frames(lambda: bool(calls.append(1) or len(calls) > 1)))
        ended.set()
        assert 5 < count < 50
        assert len(calls) == 2
        assert source.trailing_skipped() == ()


def test_a_writer_that_dies_loses_the_rest_and_says_so(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", moving_square(50), codec="ffv1")
    data = path.read_bytes()
    with (
        pipe_of(piped(data[: len(data) // 2])) as descriptor,
        StdinSource(CaptureConfig(), FakeClock(), descriptor) as source,
    ):
        assert 5 < sum(1 for _ in source.frames()) < 50
        assert "the file ends early" in source.trailing_skipped()[-1].reason


def test_a_long_silence_at_the_start_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SAY_WAITING_S", -1.0)
    monkeypatch.setattr(module, "WAIT_MS", 1)
    reported = threading.Event()

    class ReportHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    def write(descriptor: int) -> None:
        assert reported.wait(10)
        os.write(descriptor, b"x")

    handler = ReportHandler()
    module.log.addHandler(handler)
    try:
        with pipe_of(write) as descriptor:
            reader = PipeReader(descriptor)
            assert reader.read(10) == b"x"
            assert reader.read(10) == b""
    finally:
        module.log.removeHandler(handler)
    assert caplog.messages == ["waiting for a video on standard input"]


class TestWhatIsNoVideo:
    def fails(self, descriptor: int, pattern: str) -> None:
        with pytest.raises(SourceError, match=pattern):
            StdinSource(CaptureConfig(), FakeClock(), descriptor)

    @pytest.mark.parametrize(
        ("data", "pattern"),
        [
            (b"", "ended without any data"),
            (NOISE * 10, r"not a video that FFmpeg can read from a pipe: .*; send MPEG-TS or Matroska"),
            (b"\x1b[1mno video at all\n" * 400, "not a video that FFmpeg can read from a pipe"),
        ],
    )
    def test_other_data(self, data: bytes, pattern: str) -> None:
        with pipe_of(piped(data)) as descriptor:
            self.fails(descriptor, pattern)

    def test_an_mp4_with_its_index_at_the_end(self, tmp_path: Path) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (8, 192, 256, 3), np.uint8)
        path = make_video(tmp_path / "clip.mp4", noise)
        assert path.stat().st_size > 1 << 16, "FFmpeg seeks within what it holds already"
        with pipe_of(piped(path.read_bytes())) as descriptor:
            self.fails(descriptor, "with its index in front")

    def test_sound(self, tmp_path: Path) -> None:
        path = make_audio(tmp_path / "song.ts")
        with pipe_of(piped(path.read_bytes())) as descriptor:
            self.fails(descriptor, "standard input has no video stream")

    def test_a_terminal(self) -> None:
        controller, terminal = pty.openpty()
        try:
            self.fails(terminal, "standard input is the terminal; pipe a video into it")
        finally:
            os.close(controller)
            os.close(terminal)

    def test_a_folder(self, tmp_path: Path) -> None:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            self.fails(descriptor, "is a folder; pipe a video into it")
        finally:
            os.close(descriptor)

    def test_a_closed_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails(10_000, "standard input is closed; pipe a video into it")
        monkeypatch.setattr(sys, "stdin", None)
        self.fails(0, "standard input is closed; pipe a video into it")


def test_the_address_is_a_dash(tmp_path: Path) -> None:
    """In a separate process, because this one's standard input is the test runner's."""
    path = make_video(tmp_path / "clip.ts", moving_square(12))
    code = (
        "from stream.sources.factory import open_source; from stream.config import CaptureConfig;"
        "from stream.clock import MonotonicClock;"
        "source = open_source('-', CaptureConfig(), MonotonicClock());"
        "print(len(list(source.frames()))); source.close()"
    )
    with path.open("rb") as clip, subprocess.Popen(["cat"], stdin=clip, stdout=subprocess.PIPE) as cat:
        process = subprocess.run([sys.executable, "-c", code], stdin=cat.stdout, capture_output=True, timeout=60)
    assert (process.stdout, process.stderr) == (b"12\n", b"")
