"""Pictures of AVIF and HEIC in tiles: whole or not at all, as a file and in a folder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import av
import numpy as np
import pytest
from PIL import Image as PictureFile
from PIL import ImageOps

from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import Source, SourceFrame
from stream.recording.mp4_boxes import Mp4Box, file_boxes
from stream.sources import heif
from stream.sources.factory import open_source
from stream.sources.file import StdinSource
from stream.sources.heif import BRANDS, is_heif, tiled_picture
from stream.sources.orientation import Orientation
from stream.sources.tiled import assembled, read_heif
from tests.stream.sources.test_orientation import SHOWN, colours_of, corners, first_frame, quarters
from tests.support.heif import CODECS, box, full_box, make_grid
from tests.support.video import Image, make_audio, make_video

TRANSFORMS = {
    1: (0, None), 2: (0, 1), 3: (2, None), 4: (0, 0), 5: (1, 0), 6: (3, None), 7: (1, 1), 8: (1, None),
}  # fmt: skip
"""EXIF's orientation → quarter turns counterclockwise, then the axis of a mirror."""


def opened(path: Path, **capture: object) -> Source:
    return open_source(str(path), CaptureConfig.model_validate(capture), MonotonicClock())


def ramps(height: int = 100, width: int = 150) -> Image:
    """A picture without two equal tiles."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (height + width)], 2).astype(np.uint8)


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv420p10le"])
def test_the_tiles_are_put_together(tmp_path: Path, suffix: str, pixel_format: str) -> None:
    image = ramps()
    path = make_grid(tmp_path / f"a.{suffix}", image, pixel_format=pixel_format, thumbnail=True)
    frame = read_heif(path, CaptureConfig())
    assert (frame.width, frame.height, frame.format.name) == (150, 100, pixel_format)
    assert np.abs(frame.to_ndarray(format="rgb24").astype(int) - image).mean() < 3
    with opened(path) as source:
        assert source.describe().codec == {"heic": "hevc", "avif": "libdav1d"}[suffix]


def test_the_reference_of_avif_reads_the_same(tmp_path: Path) -> None:
    for orientation, (turns, mirror) in TRANSFORMS.items():
        path = make_grid(tmp_path / "a.avif", quarters(96, 128), turns=turns, mirror=mirror)
        with PictureFile.open(path) as image:
            assert corners(np.asarray(ImageOps.exif_transpose(image).convert("RGB"))) == SHOWN[orientation]


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("size", [(96, 128), (101, 151)])
def test_turns_and_mirrors_hold_for_the_whole_picture(tmp_path: Path, orientation: int, size: tuple[int, int]) -> None:
    turns, mirror = TRANSFORMS[orientation]
    path = make_grid(tmp_path / "a.heic", quarters(*size), turns=turns, mirror=mirror)
    height, width = size[::-1] if orientation > 4 else size
    assert first_frame(path) == (SHOWN[orientation], (width, height), (width, height))


def test_two_transforms_make_one_orientation(tmp_path: Path) -> None:
    path = make_grid(tmp_path / "a.heic", quarters(96, 128), turns=3, mirror=1)
    assert first_frame(path)[0] == SHOWN[5]


def test_a_folder_has_the_same_pictures(tmp_path: Path) -> None:
    make_grid(tmp_path / "a1.heic", quarters(96, 128), turns=2)
    make_grid(tmp_path / "a2.avif", quarters(96, 128), mirror=1)
    make_grid(tmp_path / "a3.heic", quarters(96, 128), missing=[2])
    PictureFile.fromarray(quarters()).save(tmp_path / "a4.avif")
    (tmp_path / "a2.avif").rename(tmp_path / "a2.jpg")  # phones and their programs do that
    with opened(tmp_path) as source:
        frames = [frame for frame in source.frames() if isinstance(frame, SourceFrame)]
    assert [colours_of(frame.planes) for frame in frames] == [SHOWN[3], SHOWN[2], SHOWN[1]]
    (loss,) = frames[-1].skipped
    assert loss.what.endswith("a3.heic")
    assert "it has a tile that cannot be decoded" in loss.reason


def test_the_whole_picture_is_scaled_as_any(tmp_path: Path) -> None:
    path = make_grid(tmp_path / "a.heic", ramps())
    with opened(path, size="64x32") as source:
        (frame,) = source.frames()
        assert isinstance(frame, SourceFrame)
        assert (frame.planes.width_px, frame.planes.height_px, frame.discontinuity) == (64, 32, "start")


@pytest.mark.parametrize(
    ("changes", "capture", "message"),
    [
        ({"missing": [3]}, {}, "has a tile that cannot be decoded .*; save it as JPEG or PNG"),
        ({"derived": b"iovl"}, {}, r"holds a picture made of others \(iovl\)"),
        ({}, {"max_pixels": 150 * 99}, "has 150x100 pixels, more than capture.max_pixels = 14850"),
        ({}, {"stream": 1}, "has no video stream 1, only stream 0"),
        ({}, {"start_s": 1.0}, "has no frame from 1 s on"),
    ],
)
def test_a_picture_that_cannot_be_shown_whole_is_refused(
    tmp_path: Path, changes: dict[str, object], capture: dict[str, object], message: str
) -> None:
    path = make_grid(tmp_path / "a.heic", ramps(), **changes)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=message):
        opened(path, **capture)


def test_a_file_whose_streams_are_no_tiles_lacks_them_all(tmp_path: Path) -> None:
    picture = heif.TiledPicture(1, 2, 64, 48, (77, 78), Orientation(0, False))
    for path in (make_video(tmp_path / "a.mp4", [quarters()] * 2), make_audio(tmp_path / "b.mp4")):
        with pytest.raises(SourceError, match=r"\.mp4 lacks 2 of 2 tiles of its picture; save it as JPEG or PNG"):
            assembled(path, picture, CaptureConfig())


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    path = make_grid(tmp_path / "a.heic", ramps())
    data = path.read_bytes()
    grid = data.index(b"idat") + 4
    for damage in (b"\1", b"\0\0\7", b"\0\0\1\2\0\0\0\0"):  # version, number of rows, width
        path.write_bytes(data[:grid] + damage + data[grid + len(damage) :])
        with pytest.raises(SourceError, match="has a description of its pictures that is damaged"):
            tiled_picture(path)
    tall = struct.pack(">BBBBHH", 0, 0, 1, 2, 150, 1000)
    path.write_bytes(data[:grid] + tall + data[grid + len(tall) :])
    with pytest.raises(SourceError, match="the tiles do not cover the picture"):
        opened(path)


def grid_at(path: Path, sizes: bytes, *places: bytes) -> Path:
    """Write a file that says no more than where the data of its picture, a grid of number 1, are."""
    meta = full_box(
        b"meta", 0, 0,
        full_box(b"pitm", 0, 0, struct.pack(">H", 1)),
        full_box(b"iinf", 0, 0, struct.pack(">H", 1), full_box(b"infe", 2, 0, struct.pack(">HH4s", 1, 0, b"grid"))),
        full_box(b"iloc", 0, 0, sizes, struct.pack(">H", len(places)), *places),
    )  # fmt: skip
    path.write_bytes(box(b"ftyp", b"heic", bytes(4), b"mif1") + meta)
    return path


def test_extents_that_take_no_bytes_take_no_steps(tmp_path: Path) -> None:
    path = grid_at(tmp_path / "a.heic", bytes(2), struct.pack(">HHH", 2, 0, 65_535))
    with (
        patch.object(heif, "_number", side_effect=heif._number) as numbers,
        pytest.raises(SourceError, match="has a description of its pictures that is damaged"),
    ):
        tiled_picture(path)
    assert numbers.call_count < 20


def test_a_place_behind_extents_of_others_is_found(tmp_path: Path) -> None:
    data = make_grid(tmp_path / "a.heic", ramps()).read_bytes()
    begin = data.index(b"iloc") + 12
    three_extents = struct.pack(">HHHHIIIIII", 2, 0, 0, 3, *range(6))
    entry = data[begin : begin + 16]
    iloc = full_box(b"iloc", 1, 0, bytes([0x44, 0x00]), struct.pack(">H", 2), three_extents, entry)
    assert heif._place_of(iloc[8:], 1) == struct.unpack(">2xH4xII", entry)


def test_a_file_of_another_brand_is_not_walked_through(tmp_path: Path) -> None:
    kinds = []

    def counted(file: BinaryIO) -> Iterator[Mp4Box]:
        for outer in file_boxes(file):
            kinds.append(outer.kind)
            yield outer

    for first in (box(b"ftyp", b"isom", bytes(4), b"isom"), box(b"RIFF", b"heic")):
        path = tmp_path / "a"
        path.write_bytes(first + box(b"free") * 100)
        with patch.object(heif, "file_boxes", counted):
            assert not is_heif(path)
    assert kinds == [b"ftyp", b"RIFF"]


def test_any_damage_gives_tiles_or_the_projects_error(tmp_path: Path) -> None:
    path = make_grid(tmp_path / "a.heic", ramps())
    data, random = path.read_bytes(), np.random.default_rng(0)
    end = data.index(b"mdat")
    for _ in range(300):
        damaged = bytearray(data)
        damaged[int(random.integers(0, end))] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        with suppress(SourceError):
            tiled_picture(path)


def test_standard_input_refuses_tiles_in_one_line(tmp_path: Path) -> None:
    path = make_grid(tmp_path / "a.heic", ramps(), thumbnail=True)
    with path.open("rb") as file, pytest.raises(SourceError, match="is a picture in tiles, which is read from a file"):
        StdinSource(CaptureConfig(), MonotonicClock(), file.fileno())


def test_whole_pictures_and_videos_have_no_tiles(tmp_path: Path) -> None:
    PictureFile.fromarray(quarters()).save(tmp_path / "a.avif")
    assert is_heif(tmp_path / "a.avif")
    assert tiled_picture(tmp_path / "a.avif") is None
    video = make_video(tmp_path / "a.mp4", [quarters()] * 2)
    assert not is_heif(video)
    data = video.read_bytes().replace(b"isom", b"mif1")  # the brand alone makes no picture of a video
    video.write_bytes(data)
    assert not is_heif(video)
    assert b"mif1" in BRANDS
    (tmp_path / "short").write_bytes(b"\0\0")
    assert tiled_picture(tmp_path / "short") is None


def test_a_video_with_two_streams_is_no_picture_in_tiles(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("libx264", rate=25) for _ in range(2)]
        for stream_ in streams:
            stream_.width, stream_.height, stream_.pix_fmt = 64, 48, "yuv420p"
            stream_.disposition = 0
        for number in range(3):
            for stream_ in streams:
                frame = av.VideoFrame.from_ndarray(quarters(), format="rgb24")
                frame.pts = number
                container.mux(stream_.encode(frame))
        for stream_ in streams:
            container.mux(stream_.encode(None))
    with opened(path) as source:
        assert len(list(source.frames())) == 3
