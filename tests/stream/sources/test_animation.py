"""Animated WebP: frames at their own times, the part that is read, damage, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from stream.errors import SourceError, SourceOver
from tests.stream.sources.test_folder import MS, grey, opened, read, shades

SHADES = [10, 60, 110, 160]
SHOWN_MS = [100, 40, 200, 100]


@pytest.fixture
def animation(tmp_path: Path) -> Path:
    path = tmp_path / "a.webp"
    first, *rest = map(grey, SHADES)
    first.save(path, save_all=True, append_images=rest, duration=SHOWN_MS, lossless=True)
    return path


def test_frames_come_at_their_times(animation: Path) -> None:
    frames = read(animation)
    assert shades(frames) == SHADES
    assert [frame.media_ns // MS for frame in frames] == [0, 100, 140, 340]
    assert [frame.duration_ns for frame in frames] == [ms * MS for ms in SHOWN_MS]
    with opened(animation) as source:
        info = source.describe()
    assert (info.width_px, info.height_px, info.fps, info.frames, info.codec) == (40, 24, 10.0, 4, "webp")


def test_a_part_is_read(animation: Path) -> None:
    assert shades(read(animation, start_s=0.1, duration_s=0.1)) == SHADES[1:3]
    assert shades(read(animation, max_frames=2)) == SHADES[:2]
    with pytest.raises(SourceOver, match=r"ends before capture.start_s = 9"):
        read(animation, start_s=9.0)


def test_what_is_transparent_lies_over_white(tmp_path: Path) -> None:
    path = tmp_path / "t.webp"
    clear = [Image.new("RGBA", (40, 24), (200, 0, 0, alpha)) for alpha in (0, 255)]
    clear[0].save(path, save_all=True, append_images=clear[1:], duration=100, lossless=True)
    assert shades(read(path)) == [255, 200]


def test_a_damaged_end_is_reported(animation: Path) -> None:
    data = bytearray(animation.read_bytes())
    pixels = data.rindex(b"VP8L") + 8 + 5  # behind the chunk's header and the size of the picture
    data[pixels:] = b"\xff" * (len(data) - pixels)
    animation.write_bytes(data)
    with opened(animation) as source:
        frames = list(source.frames())
        lost = source.trailing_skipped()
    assert len(frames) + sum(item.count for item in lost) == len(SHADES)
    assert [item.what for item in lost] == ["frames 4-4"]


def test_a_file_without_a_readable_frame_is_refused(animation: Path) -> None:
    animation.write_bytes(animation.read_bytes()[:40])
    with pytest.raises(SourceError, match="check the file, or convert it"):
        opened(animation)


def test_a_large_one_is_refused_before_it_is_decoded(animation: Path) -> None:
    with pytest.raises(SourceError, match=r"40x24 pixels, more than capture.max_pixels = 100"):
        opened(animation, max_pixels=100)
