"""Frames come out as they are shown: turned and mirrored by display matrices, EXIF and the boxes of AVIF."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest

from arr_coc.types import FramePlanes
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.sources.factory import open_source
from stream.sources.folder import FolderSource
from stream.sources.orientation import Orientation
from stream.sources.planes import planes_of, rgb_of
from tests.support.video import Image, make_photo, make_video

SHOWN = {1: "RGBY", 2: "GRYB", 3: "YBGR", 4: "BYRG", 5: "RBGY", 6: "BRYG", 7: "YGBR", 8: "GYRB"}
"""EXIF's orientation → corners of what is shown: top left, top right, bottom left, bottom right."""

MATRICES = {
    1: (1, 0, 0, 1), 2: (-1, 0, 0, 1), 3: (-1, 0, 0, -1), 4: (1, 0, 0, -1),
    5: (0, 1, 1, 0), 6: (0, 1, -1, 0), 7: (0, -1, -1, 0), 8: (0, -1, 1, 0),
}  # fmt: skip
"""The same → a, b, c, d of a display matrix (ISO/IEC 14496-12, 6.2.2)."""

COLOURS = {"R": (220, 20, 20), "G": (20, 200, 20), "B": (20, 20, 220), "Y": (220, 220, 20)}


def quarters(height: int = 48, width: int = 64) -> Image:
    """Red, green, blue and yellow quarters."""
    image = np.empty((height, width, 3), np.uint8)
    for place, colour in enumerate(COLOURS.values()):
        rows, cols = (
            slice(0, size // 2) if first else slice(size // 2, size)
            for size, first in ((height, place < 2), (width, place % 2 == 0))
        )
        image[rows, cols] = colour
    return image


def corners(rgb: Image) -> str:
    """The nearest colours of the middles of the quarters."""
    height, width, _ = rgb.shape
    middles = [
        rgb[row, col].astype(int) for row in (height // 4, 3 * height // 4) for col in (width // 4, 3 * width // 4)
    ]
    return "".join(min(COLOURS, key=lambda name: abs(np.array(COLOURS[name]) - middle).sum()) for middle in middles)


def colours_of(planes: FramePlanes) -> str:
    if planes.layout == "rgb":
        return corners(planes.planes[0])
    height, width = planes.height_px, planes.width_px
    frame = av.VideoFrame(width, height, {1: "yuv444p", 2: "yuv420p"}[round(width / planes.planes[1].shape[1])])
    for plane, samples in zip(frame.planes, planes.planes, strict=True):
        buffer = np.ndarray((plane.height, plane.line_size), np.uint8, buffer=plane)
        buffer[:, : plane.width] = samples
    return corners(frame.to_ndarray(format="rgb24"))


def mirrored_video(path: Path, orientation: int, size: tuple[int, int] = (48, 64)) -> Path:
    """An MP4 file whose track header has the display matrix of an orientation."""
    data = make_video(path, [quarters(*size)] * 2).read_bytes()
    place = data.index(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in MATRICES[orientation])
    matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data[:place] + matrix + data[place + len(matrix) :])
    return path


def first_frame(path: Path) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """Corners of a file's first frame, its size, and the size that the source has announced."""
    source = open_source(str(path), CaptureConfig(), MonotonicClock())
    try:
        info, planes = source.describe(), next(source.frames()).planes
        return colours_of(planes), (planes.width_px, planes.height_px), (info.width_px, info.height_px)
    finally:
        source.close()


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "avif"])
def test_a_picture_is_the_same_as_a_file_and_in_a_folder(tmp_path: Path, suffix: str, orientation: int) -> None:
    path = make_photo(tmp_path / f"a.{suffix}", quarters(), orientation)
    size = (48, 64) if orientation > 4 else (64, 48)
    assert first_frame(path) == (SHOWN[orientation], size, size)
    if suffix != "avif":  # which folders do not have
        folder = FolderSource(str(tmp_path), CaptureConfig(), MonotonicClock())
        assert corners(next(folder.frames()).planes.planes[0]) == SHOWN[orientation]


@pytest.mark.parametrize("orientation", SHOWN)
def test_a_video_is_shown_as_its_display_matrix_says(tmp_path: Path, orientation: int) -> None:
    size = (48, 64) if orientation > 4 else (64, 48)
    assert first_frame(mirrored_video(tmp_path / "a.mp4", orientation)) == (SHOWN[orientation], size, size)


@pytest.mark.parametrize("orientation", SHOWN)
def test_turning_and_mirroring_keep_chroma_on_its_luma(tmp_path: Path, orientation: int) -> None:
    """Planes are those that the coded picture's, mirrored as a whole, would be."""
    a, b, c, d = MATRICES[orientation]
    image = quarters()
    image[:, :7] = 128
    path = make_photo(tmp_path / "a.png", image, orientation)
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    coded = frame.to_ndarray(format="rgb24")
    expected = coded if a or d else coded.transpose(1, 0, 2)
    rows_step, cols_step = (d, a) if a or d else (b, c)
    expected = expected[::rows_step, ::cols_step]
    np.testing.assert_array_equal(rgb_of(frame), expected)
    np.testing.assert_array_equal(planes_of(frame).planes[0], expected)


def test_a_matrix_without_area_counts_as_none(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4", [quarters()])
    data = path.read_bytes()
    place = data.index(b"tkhd") + 44
    path.write_bytes(data[:place] + bytes(32) + data[place + 32 :])
    assert first_frame(path)[0] == "RGBY"


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("turns", range(4))
def test_axes_that_come_out_in_the_opposite_order(turns: int, mirrored: bool) -> None:
    orientation, places = Orientation(turns, mirrored), np.arange(6, dtype=np.uint8).reshape(2, 3)
    upright = orientation.upright(places)
    upright = upright.T if orientation.swaps_sides else upright
    axes = {0: upright[0, 0] > upright[1, 0], 1: upright[0, 0] > upright[0, 1]}
    assert {axis for axis, is_opposite in axes.items() if is_opposite} == orientation.mirrored_axes
