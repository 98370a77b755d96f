"""Frames of videos at chosen times: none from the future, by seeking and by reading through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluation import frames
from evaluation.frames import Sampling, frames_of, scaled_down
from stream.errors import SourceError
from tests.support.benchmarks import FPS, SECONDS, grey_at, write_clip
from tests.support.video import make_video


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4")


@pytest.mark.parametrize(
    ("sampling", "part", "times_s"),
    [
        (Sampling(1), (0.0, None), (11.75,)),
        (Sampling(1), (0.0, 5.1), (5.0,)),
        (Sampling(3), (0.0, 4.0), (0.0, 2.0, 4.0)),
        (Sampling(3), (2.0, 4.0), (2.0, 3.0, 4.0)),
        (Sampling(3), (0.0, 99.0), (0.0, 6.0, 11.75)),
        (Sampling(2, middles=True), (0.0, None), (3.0, 9.0)),
        (Sampling(64, fps=1.0), (0.0, 3.0), (0.0, 1.0, 2.0, 3.0)),
        (Sampling(2, fps=1.0), (0.0, 3.0), (0.0, 3.0)),
        (Sampling(64, fps=0.5), (0.0, 5.0), (0.0, 2.5, 5.0)),
        (Sampling(9), (3.0, 3.0), (3.0,)),
        (Sampling(9), (7.0, 3.0), (3.0,)),
        (Sampling(99), (0.0, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)),
    ],
)
def test_times_are_even_and_not_after_the_end(
    clip: Path, sampling: Sampling, part: tuple[float, float | None], times_s: tuple[float, ...]
) -> None:
    images, found_s = frames_of(clip, sampling, *part)
    assert found_s == times_s
    for image, at_s in zip(images, found_s, strict=True):
        assert image.shape == (64, 96, 3)
        assert abs(int(image.mean()) - grey_at(at_s)) <= 2


def test_seeking_finds_what_reading_through_finds(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through = frames_of(clip, Sampling(12))
    starts_ns = []
    real = frames._decode
    monkeypatch.setattr(frames, "_decode", lambda path, start_ns: starts_ns.append(start_ns) or real(path, start_ns))
    monkeypatch.setattr(frames, "SEEK_NS", 0)
    monkeypatch.setattr(frames, "LEADS_NS", (1, frames.NS_PER_S))  # the first is too short
    by_seek = frames_of(clip, Sampling(12))
    assert len(starts_ns) > 12
    assert by_seek[1] == through[1]
    assert all(map(np.array_equal, by_seek[0], through[0]))


def test_a_frame_lasts_until_the_next_one(tmp_path: Path) -> None:
    images = [np.full((64, 64, 3), grey, np.uint8) for grey in (20, 120, 220)]
    path = make_video(tmp_path / "slow.mkv", images, 1, pts=[0, 30, 100])
    _, times_s = frames_of(path, Sampling(5), end_s=60.0)
    assert times_s == (0.0, 30.0)
    assert frames_of(path, Sampling(1), end_s=29.9)[1] == (0.0,)


def test_a_part_before_the_first_frame_is_refused(tmp_path: Path) -> None:
    path = make_video(tmp_path / "late.mkv", [np.zeros((64, 64, 3), np.uint8)] * 3, 1, pts=[5, 6, 7])
    assert frames_of(path, Sampling(9), end_s=6.0)[1] == (5.0, 6.0)
    with pytest.raises(SourceError, match=r"late.mkv has no frame in its first 4 s"):
        frames_of(path, Sampling(3), end_s=4.0)


def test_only_the_chosen_frames_are_held(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = []
    real = frames.rgb_of
    monkeypatch.setattr(frames, "rgb_of", lambda planes: converted.append(1) or real(planes))
    frames_of(clip, Sampling(3))
    assert len(converted) == 3 < FPS * SECONDS


@pytest.mark.parametrize(
    ("size", "tiles", "scaled"),
    [((64, 96), 6, (64, 96)), ((64, 96), None, (64, 96)), ((640, 960), 24, (128, 192)), ((720, 1280), 147, (288, 512))],
)
def test_large_pictures_are_scaled_down(size: tuple[int, int], tiles: int | None, scaled: tuple[int, int]) -> None:
    image = scaled_down(np.zeros((*size, 3), np.uint8), tiles)
    assert image.shape == (*scaled, 3)
    assert tiles is None or image.shape[0] * image.shape[1] <= tiles * 32 * 32
