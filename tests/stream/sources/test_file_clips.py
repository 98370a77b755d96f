"""Real clips: each is read whole, with its sizes and times, and its faults are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.types import NS_PER_S
from stream.config import CaptureConfig
from stream.sources import SkippedItem, SourceFrame
from stream.sources.file import FileSource
from tests.support.clock import FakeClock

MAX_FRAMES = 120
"""Limit of frames per clip, enough for all of its peculiarities."""

NAMES = (
    "anim_1200x1200_60fps.mp4",
    "broken_packet.mp4",
    "cuts_bunny_1080p60.mp4",
    "cuts_bunny_30s.webm",
    "handheld_figurine.mp4",
    "multistream_nasa.mp4",
    "odd_161x121.webm",
    "odd_hlg_10bit.mkv",
    "odd_resolution_change.h264",
    "screen_terminal.gif",
    "static_cars_topdown.mp4",
    "static_signer.mkv",
)


def entry(clips: Path, name: str) -> dict[str, Any]:
    (entry,) = [item for item in json.loads((clips / "manifest.json").read_text()) if item["file"] == name]
    return entry


def opened(clips: Path, name: str) -> FileSource:
    return FileSource(clips / name, CaptureConfig(max_frames=MAX_FRAMES), FakeClock())


def test_every_clip_is_tried(clips: Path) -> None:
    assert {item["file"] for item in json.loads((clips / "manifest.json").read_text())} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_frames_sizes_and_times_are_those_of_the_manifest(clips: Path, name: str) -> None:
    expected = entry(clips, name)
    with opened(clips, name) as source:
        frames = [(frame.media_ns, frame.planes.width_px, frame.planes.height_px) for frame in source.frames()]
        info, timeline = source.describe(), source.timeline
    assert len(frames) == min(expected["frames"], MAX_FRAMES)
    assert {(width, height) for _, width, height in frames} == {tuple(size) for size in expected["frame_sizes"]}
    assert (info.codec, info.pixel_format) == (expected["codec"], expected["pix_fmt"][0])
    assert timeline.made_pts == min(expected["frames_without_pts"], MAX_FRAMES)
    assert timeline.clamped_pts == 0
    gaps_s = np.diff([media_ns for media_ns, _, _ in frames]) / NS_PER_S
    low, middle, high = expected["dt_min_med_max"] or (0.04, 0.04, 0.04)
    assert gaps_s.min() >= low - 1e-4
    assert np.median(gaps_s) == pytest.approx(middle, abs=1e-4)
    assert gaps_s.max() <= high + 1e-4
    if expected["duration_s"] is not None:
        assert info.duration_ns == pytest.approx(expected["duration_s"] * NS_PER_S, abs=10_000_000)


def test_cut_times_of_the_manifest_are_media_times(clips: Path) -> None:
    """The manifest's times are from the file's PTS: origin and rounding must agree with them."""
    expected = entry(clips, "multistream_nasa.mp4")
    with FileSource(clips / "multistream_nasa.mp4", CaptureConfig(), FakeClock()) as source:
        times = [frame.media_ns for frame in source.frames()]
    cuts = zip(expected["hard_cut_first_frame"], expected["hard_cut_time_s"], strict=True)
    assert [times[index] / NS_PER_S for index, _ in cuts] == expected["hard_cut_time_s"]


def test_the_broken_packet_is_named(clips: Path) -> None:
    with opened(clips, "broken_packet.mp4") as source:
        losses = {frame.frame_index: (frame.media_ns, frame.skipped) for frame in source.frames() if frame.skipped}
        assert source.trailing_skipped() == ()
    loss = SkippedItem("packet 31", "Invalid data found when processing input", 3 * NS_PER_S)
    assert losses == {30: (3_100_000_000, (loss,))}


def test_the_change_of_size_is_reported(clips: Path) -> None:
    with opened(clips, "odd_resolution_change.h264") as source:
        changes = {frame.frame_index: frame.discontinuity for frame in source.frames() if frame.discontinuity}
    assert changes == {0: "start", 49: "resolution"}


def first_frame(clips: Path, name: str) -> SourceFrame:
    with opened(clips, name) as source:
        return next(source.frames())


@pytest.mark.parametrize(
    ("name", "layout", "matrix", "full_range", "transfer"),
    [
        ("static_signer.mkv", "yuv", "bt601", True, "unspecified"),
        ("odd_hlg_10bit.mkv", "yuv", "bt709", False, "bt709"),  # HLG, tone mapped
        ("anim_1200x1200_60fps.mp4", "yuv", "bt709", False, "bt709"),
        ("screen_terminal.gif", "rgb", "bt601", False, "unspecified"),
    ],
)
def test_colour_is_the_streams(
    clips: Path, name: str, layout: str, matrix: str, full_range: bool, transfer: str
) -> None:
    planes = first_frame(clips, name).planes
    assert planes.layout == layout
    assert (planes.colour.matrix, planes.colour.full_range, planes.colour.transfer) == (matrix, full_range, transfer)


def test_a_recording_cut_short_says_so(clips: Path, tmp_path: Path) -> None:
    data = (clips / "static_cars_topdown.mp4").read_bytes()
    path = tmp_path / "short.mp4"
    path.write_bytes(data[: len(data) // 10])
    with FileSource(path, CaptureConfig(), FakeClock()) as source:
        count = sum(1 for _ in source.frames())
        *_, loss = source.trailing_skipped()
    assert 0 < count < 377
    assert loss.what.startswith("the last ")
    assert loss.reason == "the file ends early: it declares 30.16 s"
