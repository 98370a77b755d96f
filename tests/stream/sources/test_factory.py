"""Addresses, and the contract that every source keeps."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError, SourceNotFound
from stream.sources import Source
from stream.sources.factory import open_source
from stream.sources.types import FILE, SCENE, source_type
from tests.support.clock import FakeClock
from tests.support.video import make_video, moving_square

CLOCK = FakeClock(11)


@pytest.fixture(params=["file", "scene"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "scene":
        return "scene:static"
    return str(make_video(tmp_path / "clip.mp4", moving_square(12)))


def opened(address: str, **capture: object) -> Source:
    return open_source(address, CaptureConfig.model_validate(capture), CLOCK)


class TestContract:
    def test_it_describes_its_frames_and_may_be_closed_twice(self, address: str) -> None:
        with opened(address) as source:
            info = source.describe()
            frames = list(source.frames())
            assert source.trailing_skipped() == ()
        source.close()
        assert not any(frame.skipped for frame in frames)
        assert len(frames) == info.frames
        assert {(frame.planes.width_px, frame.planes.height_px) for frame in frames} == {
            (info.width_px, info.height_px)
        }
        assert info.fps is not None
        assert info.duration_ns == pytest.approx(len(frames) / info.fps * 1e9)
        assert not info.live

    def test_indexes_and_times_rise_from_zero(self, address: str) -> None:
        with opened(address, max_frames=5) as source:
            frames = list(source.frames())
        assert [frame.frame_index for frame in frames] == list(range(5))
        assert frames[0].media_ns == 0
        assert all(second.media_ns > first.media_ns for first, second in itertools.pairwise(frames))
        assert {frame.capture_ns for frame in frames} == {11}
        assert [frame.discontinuity for frame in frames] == ["start", None, None, None, None]

    def test_it_gives_the_same_twice(self, address: str) -> None:
        runs = []
        for _ in range(2):
            with opened(address, max_frames=4) as source:
                runs.append([(frame.media_ns, [p.copy() for p in frame.planes.planes]) for frame in source.frames()])
        for (time, planes), (other_time, other_planes) in zip(*runs, strict=True):
            assert time == other_time
            assert all(np.array_equal(a, b) for a, b in zip(planes, other_planes, strict=True))

    def test_the_work_size_is_honoured(self, address: str) -> None:
        with opened(address, size="96x64", max_frames=1) as source:
            assert next(source.frames()).planes.planes[0].shape[:2] == (64, 96)

    def test_a_stream_that_it_does_not_have_and_a_work_size_too_large_are_refused(self, address: str) -> None:
        with pytest.raises(SourceError, match="has no video stream 7"):
            opened(address, stream=7)
        with pytest.raises(ConfigError, match=r"capture\.size"):
            opened(address, size="99999x10")


@pytest.mark.parametrize(
    ("address", "kind", "pattern"),
    [
        ("", SourceNotFound, "no source was given; give the path"),
        ("  ", SourceNotFound, "no source was given; give the path"),
        ("scene:nowhere", SourceNotFound, "no scene is called 'nowhere'; there are demo"),
        ("nowhere.mp4", SourceNotFound, "nowhere.mp4 does not exist"),
        ("n" * 5000, SourceNotFound, "does not exist"),
        ("null\0.mp4", SourceNotFound, "does not exist"),
        ("~no-such-user/a.mp4", SourceNotFound, "~no-such-user/a.mp4 does not exist"),
        ("ftp://u:hush@camera/1", SourceError, r"ftp://\*\*\*@camera/1 is not read; download"),
    ],
)
def test_an_address_that_leads_nowhere_says_what_to_do(address: str, kind: type[Exception], pattern: str) -> None:
    with pytest.raises(kind, match=pattern):
        opened(address)


def test_a_file_whose_name_is_like_an_address_is_a_file() -> None:
    assert source_type("Scene:intro.avi") is source_type("Zmq+notes.mp4") is FILE
    assert source_type("scene:demo") is SCENE
    assert source_type("ONVIF://camera") is source_type("onvif://camera")


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_video(tmp_path / "clip.mp4", moving_square(2))
    monkeypatch.setenv("HOME", str(tmp_path))
    with opened("~/clip.mp4") as source:
        assert len(list(source.frames())) == 2


def test_a_looped_scene_begins_anew_and_its_time_goes_on() -> None:
    with opened("scene:static") as source:
        once = list(source.frames())
    assert once[0].planes.layout == "rgb"
    with opened("scene:static", loop=True, max_frames=2 * len(once) + 3) as source:
        info, frames = source.describe(), list(source.frames())
    assert (info.frames, info.duration_ns) == (None, None)
    assert len(frames) == 2 * len(once) + 3
    assert np.array_equal(frames[len(once) + 2].planes.planes[0], once[2].planes.planes[0])
    assert all(0 < after.media_ns - before.media_ns < 10**9 for before, after in itertools.pairwise(frames))
    assert [frame.discontinuity for frame in frames if frame.discontinuity] == ["start"]


def test_a_looped_scene_goes_on_behind_its_end() -> None:
    """As for a frame process that replaces a dead one."""
    with opened("scene:static", loop=True, start_s=1000.0, max_frames=1) as source:
        (frame,) = source.frames()
    assert frame.media_ns >= 1000 * 10**9


def test_only_scenes_are_looped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"capture\.loop repeats drawn scenes, and 'clip\.mp4' is none"):
        opened("clip.mp4", loop=True)
