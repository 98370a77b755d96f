"""`capture.start_s`: where a file or a scene begins, and that its times stay true."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stream.clock import FakeClock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceError
from stream.runtime.preflight import check_source
from stream.sources.base import SourceFrame
from stream.sources.open import open_source
from tests.video_maker import make_video, moving_square

MS = 1_000_000
FPS = 25
FRAMES = 26
KEY_FRAMES = {"g": "8", "bf": "2"}


def read(address: str | Path, start_s: float, **capture: object) -> list[SourceFrame]:
    config = CaptureConfig(start_s=start_s, **capture)  # type: ignore[arg-type]
    with open_source(str(address), config, FakeClock()) as source:
        frames = list(source.frames())
        assert source.trailing_skipped() == ()
        return frames


@pytest.fixture(params=["mp4", "mkv", "ts", "flv"])
def clip(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """26 frames of 40 ms, a key frame every 8, B-frames between."""
    return make_video(tmp_path / f"clip.{request.param}", moving_square(FRAMES), FPS, options=KEY_FRAMES)


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 20, 25])
def test_a_file_begins_there_with_the_frames_of_that_time(clip: Path, first: int) -> None:
    whole = read(clip, 0.0)
    frames = read(clip, first / FPS)
    assert [frame.frame_index for frame in frames] == list(range(len(frames)))
    assert [frame.media_ns for frame in frames] == [frame.media_ns for frame in whole[first:]]
    assert [frame.media_ns // MS for frame in frames] == [index * 40 for index in range(first, FRAMES)]
    for begun, same in zip(frames, whole[first:], strict=True):
        assert np.array_equal(begun.planes.planes[0], same.planes.planes[0])
    assert [frame.discontinuity for frame in frames] == ["start"] + [None] * (len(frames) - 1)
    assert not any(frame.skipped for frame in frames), "what lies before was not lost"


def test_between_two_frames_the_next_one_is_the_first(clip: Path) -> None:
    assert read(clip, 0.33)[0].media_ns == 360 * MS


def test_the_number_of_frames_counts_from_there(clip: Path) -> None:
    assert [frame.media_ns // MS for frame in read(clip, 0.4, max_frames=2)] == [400, 440]


@pytest.mark.parametrize("start_s", [1.04, 2.0, 1e6])
def test_beyond_the_end_there_is_nothing(clip: Path, start_s: float) -> None:
    with pytest.raises(
        SourceError, match=rf"clip\.\w+ ends before capture.start_s = {start_s:g}".replace("+0", r"\+0")
    ):
        read(clip, start_s)


def test_a_variable_rate_is_no_hindrance(tmp_path: Path) -> None:
    path = make_video(tmp_path / "vfr.mkv", moving_square(4), Fraction(1000), pts=[0, 100, 150, 900])
    assert [frame.media_ns // MS for frame in read(path, 0.12)] == [150, 900]


@pytest.mark.parametrize(("start_s", "first"), [(0.0, 0), (1.0, 24), (1.01, 25), (2.5, 60)])
def test_a_scene_begins_there(start_s: float, first: int) -> None:
    whole = read("scene:demo", 0.0, max_frames=64)
    frames = read("scene:demo", start_s, max_frames=3)
    assert [(frame.frame_index, frame.media_ns) for frame in frames] == [
        (number, whole[first + number].media_ns) for number in range(3)
    ]
    assert np.array_equal(frames[0].planes.planes[0], whole[first].planes.planes[0])
    assert frames[0].discontinuity == "start"


def test_a_scene_ends_too() -> None:
    with pytest.raises(SourceError, match=r"scene:demo ends before capture\.start_s = 500"):
        read("scene:demo", 500.0)


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
    clip: Path, start_s: float, duration_s: float, expected: list[int]
) -> None:
    assert [frame.media_ns // MS for frame in read(clip, start_s, duration_s=duration_s)] == expected


def test_a_part_between_two_frames_is_refused(clip: Path) -> None:
    with pytest.raises(
        SourceError, match=r"has no frame in the 0\.01 s from capture\.start_s = 0\.41 on; give a longer"
    ):
        read(clip, 0.41, duration_s=0.01)


@pytest.mark.parametrize(("start_s", "first"), [(0.0, 0), (0.2, 5), (0.21, 6)])
def test_a_stream_without_times_is_counted_through(tmp_path: Path, start_s: float, first: int) -> None:
    path = make_video(tmp_path / "raw.h264", moving_square(10), FPS, options={"bf": "0"})
    whole, frames = read(path, 0.0), read(path, start_s, duration_s=0.1)
    assert [frame.media_ns // MS for frame in frames] == [40 * index for index in range(first, min(first + 3, 10))][
        : len(frames)
    ]
    assert np.array_equal(frames[0].planes.planes[0], whole[first].planes.planes[0])


def test_a_part_of_a_folder_and_of_a_scene(tmp_path: Path) -> None:
    for number in range(6):
        Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    assert [frame.media_ns // MS for frame in read(tmp_path, 0.05, duration_s=0.1)] == [80, 120]
    frames = read("scene:demo", 1.0, duration_s=0.1)
    assert [frame.media_ns // MS for frame in frames] == [1000, 1041, 1083]
    for address in (str(tmp_path), "scene:demo"):
        with pytest.raises(SourceError, match=r"has no frame in the 0\.01 s from capture\.start_s = 0\.05 on"):
            read(address, 0.05, duration_s=0.01)


@pytest.mark.parametrize("address", ["rtsp://camera/x", "/dev/video0", "udp://127.0.0.1:5"])
def test_a_part_of_what_is_live_is_refused_before_it_is_opened(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"capture\.duration_s = 2 is for files, and {address} is live; --for ends"):
        check_source(address, CaptureConfig(duration_s=2.0), NetworkConfig())
