"""Pictures have the shape that their stream states, or that `capture.aspect` gives."""

from __future__ import annotations

import logging
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import av
import cv2
import numpy as np
import pytest
from PIL import Image as PictureFile
from pydantic import ValidationError

from arr_coc.types import FramePlanes
from stream.clock import MonotonicClock
from stream.config import MAX_PIXELS, CaptureConfig
from stream.media import SourceFrame
from stream.sources.aspect import PixelAspect
from stream.sources.factory import open_source
from tests.support.video import Image, make_video


def circle(width: int, height: int, sample_aspect: Fraction) -> Image:
    """A bright disc that is round once the picture is shown."""
    y, x = np.mgrid[:height, :width]
    squared_px = ((x + 0.5 - width / 2) * float(sample_aspect)) ** 2 + (y + 0.5 - height / 2) ** 2
    return np.where(squared_px[..., None] < (height / 3) ** 2, 220, 30).repeat(3, axis=2).astype(np.uint8)


def video(path: Path, size: tuple[int, int], sample_aspect: Fraction, **options: Any) -> Path:
    return make_video(path, [circle(*size, sample_aspect)] * 9, sample_aspect=sample_aspect, **options)


def shown(path: Path, **capture: object) -> tuple[FramePlanes, tuple[int, int]]:
    """Planes of a file's last frame, and the (width, height) that the source has announced."""
    with open_source(str(path), CaptureConfig.model_validate(capture), MonotonicClock()) as source:
        info = source.describe()
        *_, last = source.frames()
        assert isinstance(last, SourceFrame)
        return last.planes, (info.width_px, info.height_px)


def roundness(planes: FramePlanes) -> float:
    """Width of the bright disc / its height."""
    luma = planes.planes[0] if planes.layout == "yuv" else planes.planes[0][..., 0]
    bright = luma > 120
    return float(bright.any(axis=0).sum() / bright.any(axis=1).sum())


@pytest.mark.parametrize(
    ("name", "size", "sample_aspect", "options", "expected"),
    [
        ("dvr.mp4", (96, 108), Fraction(2), {}, (192, 108)),
        ("dvr.ts", (96, 108), Fraction(2), {}, (192, 108)),  # states it in the coded pictures only
        ("pal.mkv", (72, 58), Fraction(64, 45), {}, (102, 58)),
        ("pal.mpg", (720, 576), Fraction(64, 45), {"codec": "mpeg2video"}, (1024, 576)),
        ("dv.dv", (720, 576), Fraction(64, 45), {"codec": "dvvideo"}, (1024, 576)),
        ("ntsc.mp4", (72, 48), Fraction(8, 9), {}, (72, 54)),  # enlarged, never reduced
        ("deep.mov", (72, 58), Fraction(16, 15), {"codec": "prores", "pixel_format": "yuv422p10le"}, (76, 58)),
        ("turned.mp4", (96, 108), Fraction(2), {"rotation": 90}, (108, 192)),
    ],
)
def test_a_circle_is_round(
    tmp_path: Path,
    name: str,
    size: tuple[int, int],
    sample_aspect: Fraction,
    options: dict[str, object],
    expected: tuple[int, int],
) -> None:
    path = video(tmp_path / name, size, sample_aspect, **options)
    planes, announced = shown(path)
    assert (planes.width_px, planes.height_px) == announced == expected
    assert roundness(planes) == pytest.approx(1, abs=0.06)
    coded, announced = shown(path, aspect="off")
    assert (coded.width_px, coded.height_px) == announced == (size[::-1] if "rotation" in options else size)


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        ({"aspect": "4:3"}, (144, 108)),
        ({"aspect": "1:2"}, (96, 192)),
        ({"size": "64x36"}, (64, 36)),
        ({"size": "64x36", "aspect": "off"}, (64, 36)),
        ({"fit": "resize"}, (352, 192)),  # of 192x108, to the least area of Qwen's processor
        ({"max_tiles": 10}, (128, 64)),
    ],
)
def test_all_sizes_are_reached_in_one_resize(
    tmp_path: Path, capture: dict[str, object], expected: tuple[int, int]
) -> None:
    path = video(tmp_path / "a.mp4", (96, 108), Fraction(2))
    with patch.object(cv2, "resize", side_effect=cv2.resize) as resize:
        planes, _ = shown(path, **capture)
    assert (planes.width_px, planes.height_px) == expected
    luma = [call for call in resize.call_args_list if call.args[0].shape[:2] == (108, 96)]
    assert len(luma) in (0, 9)  # one a frame; Qwen's own resize is another function
    assert all(call.args[0].shape[:2] in ((108, 96), (54, 48)) for call in resize.call_args_list)


def test_a_turned_picture_gets_the_shape_that_is_asked_for(tmp_path: Path) -> None:
    path = video(tmp_path / "a.mp4", (96, 108), Fraction(2), rotation=90)
    planes, _ = shown(path, aspect="9:16")
    assert (planes.width_px, planes.height_px) == (108, 192)


def test_square_pixels_are_passed_on_untouched(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    for sample_aspect in (None, Fraction(1), Fraction(128, 129)):  # the last: a rounded size
        path = make_video(tmp_path / "a.mp4", [image], sample_aspect=sample_aspect)
        with av.open(str(path)) as container:
            frame = next(container.decode(video=0))
            with patch.object(cv2, "resize", side_effect=AssertionError):
                planes, _ = shown(path)
            for plane, coded in zip(planes.planes, frame.planes, strict=True):
                assert plane.base is not None  # a view on the decoder's buffer
                lines = np.frombuffer(coded, np.uint8).reshape(coded.height, coded.line_size)
                np.testing.assert_array_equal(plane, lines[:, : coded.width])


def test_an_absurd_shape_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = video(tmp_path / "a.mp4", (96, 108), Fraction(1, 10))
    with caplog.at_level(logging.WARNING):
        planes, announced = shown(path)
    assert (planes.width_px, planes.height_px) == announced == (96, 108)
    assert [record.message for record in caplog.records] == [
        "pixels of the shape 1:10 are shown as squares; capture.aspect sets the shape of the picture, such as 16:9"
    ]


def test_a_shape_may_change_in_mid_stream(tmp_path: Path) -> None:
    parts = [
        make_video(
            tmp_path / f"{number}.ts",
            [circle(96, 108, sample_aspect)] * 30,
            sample_aspect=sample_aspect,
            options={"bf": "0"},  # else a few frames come out after the change was read
        ).read_bytes()
        for number, sample_aspect in enumerate([Fraction(1), Fraction(2)])
    ]
    (tmp_path / "a.ts").write_bytes(b"".join(parts))
    with open_source(str(tmp_path / "a.ts"), CaptureConfig(), MonotonicClock()) as source:
        frames = [frame for frame in source.frames() if isinstance(frame, SourceFrame)]
    assert [frame.planes.width_px for frame in frames] == [96] * 30 + [192] * 30
    changes = [(frame.frame_index, frame.discontinuity) for frame in frames if frame.discontinuity]
    assert changes == [(0, "start"), (30, "format")]


def test_the_density_of_a_still_is_no_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    PictureFile.fromarray(circle(64, 48, Fraction(1))).save(path, dpi=(100, 200))
    planes, _ = shown(path)
    assert (planes.width_px, planes.height_px) == (64, 48)
    planes, _ = shown(path, aspect="2:1")
    assert (planes.width_px, planes.height_px) == (96, 48)


def test_a_picture_is_not_enlarged_beyond_the_limit() -> None:
    container = SimpleNamespace(format=SimpleNamespace(name="mpegts"))
    statements: Any = SimpleNamespace(sample_aspect_ratio=Fraction(2), container=container)
    for max_pixels, size in ((20_000, (100, 200)), (19_999, (50, 100))):
        aspect = PixelAspect("auto", statements, statements, max_pixels)
        assert aspect.shown_size(100, 100, swaps_sides=False) == size
    assert PixelAspect("auto", statements, statements, MAX_PIXELS).shown_size(100, 100, swaps_sides=True) == (200, 100)


@pytest.mark.parametrize("aspect", ["square", "0:1", "16:0", "16/9", "1.78", "16:9\n", ""])
def test_other_words_are_refused(aspect: str) -> None:
    with pytest.raises(ValidationError):
        CaptureConfig(aspect=aspect)
