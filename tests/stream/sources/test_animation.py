"""Animated WebP: its frames, their times, and other files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stream.config import CaptureConfig
from stream.errors import SourceError, SourceNotFound
from stream.media import Source, SourceFrame
from stream.sources.animation import AnimationSource, frame_durations_ms
from stream.sources.factory import open_source
from tests.support.clock import FakeClock
from tests.support.video import make_video, moving_square

MS = 1_000_000
DURATIONS_MS = [100, 250, 0, 40]


@pytest.fixture
def animation(tmp_path: Path) -> Path:
    """Animation of four frames, each of a different grey, the third without a duration."""
    path = tmp_path / "moving.webp"
    frames = [Image.new("RGB", (64, 48), (40 * number,) * 3) for number in range(4)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=DURATIONS_MS, lossless=True)
    return path


def opened(path: Path, **capture: object) -> Source:
    return open_source(str(path), CaptureConfig.model_validate(capture), FakeClock(7))


def read(path: Path, **capture: object) -> list[SourceFrame]:
    with opened(path, **capture) as source:
        return [frame for frame in source.frames() if isinstance(frame, SourceFrame)]


def test_frames_have_their_times_and_their_pictures(animation: Path) -> None:
    frames = read(animation)
    assert [frame.media_ns // MS for frame in frames] == [0, 100, 350, 450]
    assert [frame.duration_ns // MS for frame in frames if frame.duration_ns] == [100, 250, 100, 40]
    assert [int(np.median(frame.planes.planes[0])) for frame in frames] == [0, 40, 80, 120]
    assert [frame.discontinuity for frame in frames] == ["start", None, None, None]


def test_it_is_described(animation: Path) -> None:
    with opened(animation) as source:
        info = source.describe()
    assert (info.width_px, info.height_px, info.frames, info.live) == (64, 48, 4, False)
    assert (info.duration_ns, info.codec) == (490 * MS, "webp")


def test_a_part_of_it_is_read(animation: Path) -> None:
    assert [frame.media_ns // MS for frame in read(animation, start_s=0.1, duration_s=0.3)] == [100, 350]
    assert [frame.media_ns // MS for frame in read(animation, max_frames=1)] == [0]
    with pytest.raises(SourceError, match=r"has no frame from 9 s on"):
        opened(animation, start_s=9)


def test_unreadable_files_are_refused(animation: Path) -> None:
    with pytest.raises(SourceError, match=r"has 64x48 pixels, more than capture\.max_pixels = 1000"):
        opened(animation, max_pixels=1000)
    with pytest.raises(SourceError, match="has no video stream 1"):
        opened(animation, stream=1)
    animation.write_bytes(animation.read_bytes()[:120])
    with pytest.raises(SourceError, match=r"moving\.webp cannot be decoded"):
        opened(animation)


def test_the_frames_from_a_damaged_one_on_are_skipped(animation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(animation) as source:
        assert isinstance(source, AnimationSource)
        seek = source._image.seek

        def fail(place: int) -> None:
            if place == 2:
                raise EOFError("broken off")
            seek(place)

        monkeypatch.setattr(source._image, "seek", fail)
        assert len(list(source.frames())) == 2
        (loss,) = source.trailing_skipped()
    assert (loss.what, loss.reason, loss.media_ns, loss.count) == ("frames 3-4", "broken off", 350 * MS, 2)


def test_a_reader_may_stop(animation: Path) -> None:
    with opened(animation) as source:
        assert list(source.frames(lambda: True)) == []


def test_other_files_are_no_animations(tmp_path: Path) -> None:
    still, pipe, short = tmp_path / "still.webp", tmp_path / "pipe.webp", tmp_path / "short.webp"
    Image.new("RGB", (32, 32)).save(still)
    os.mkfifo(pipe)
    short.write_bytes(b"RIFF")
    video = make_video(tmp_path / "clip.mp4", moving_square(2))
    assert [frame_durations_ms(path) for path in (still, pipe, short, video, tmp_path / "none")] == [[]] * 5
    with pytest.raises(SourceNotFound):
        opened(tmp_path / "none")
