"""Interlaced video comes out as whole pictures: one a frame, at its time."""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock, patch

import av
import numpy as np
import pytest

from arr_coc.video.picture_mask import PictureMask
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources import deinterlace
from stream.sources.deinterlace import PROGRESSIVE_FRAMES, Deinterlacer
from stream.sources.factory import open_source
from stream.sources.fit import FrameFitter
from stream.sources.live import ConnectionLost, LiveDecoder
from stream.sources.planes import planes_of, to_planes
from tests.support.polygons import box_polygon
from tests.support.video import Image, make_video

INTERLACED = {"x264-params": "interlaced=1:bframes=2"}


def moment(t: float, height: int = 96, width: int = 128) -> Image:
    """A bright bar that moves six pixels a frame."""
    image = np.full((height, width, 3), 40, np.uint8)
    left = round(10 + 6 * t)
    image[16:80, left : left + 24] = 220
    return image


def woven(index: int) -> Image:
    """Lines of two moments, half a frame apart."""
    image = moment(index)
    image[1::2] = moment(index + 0.5)[1::2]
    return image


def combs(luma: np.ndarray) -> float:
    """Mean difference of lines from those above and below."""
    return float(np.abs(2 * luma[1:-1].astype(int) - luma[:-2] - luma[2:]).mean())


def frames_of(path: Path, **capture: object) -> list[SourceFrame]:
    with open_source(str(path), CaptureConfig.model_validate(capture), MonotonicClock()) as source:
        return [frame for frame in source.frames() if isinstance(frame, SourceFrame)]


def coded(index: int, pixel_format: str = "yuv420p", image: Image | None = None) -> av.VideoFrame:
    """A frame that is not flagged: only a decoder can do that."""
    picture = woven(index) if image is None else image
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pixel_format)
    frame.pts, frame.time_base = index, Fraction(1, 25)
    return frame


@pytest.fixture
def interlaced_file(tmp_path: Path) -> Path:
    return make_video(tmp_path / "a.mp4", map(woven, range(12)), options=INTERLACED)


def test_flagged_frames_have_no_combs(interlaced_file: Path) -> None:
    coded_frames, frames = frames_of(interlaced_file, deinterlace="off"), frames_of(interlaced_file)
    assert [(f.media_ns, f.duration_ns) for f in frames] == [(f.media_ns, f.duration_ns) for f in coded_frames]
    for index, (before, after) in enumerate(zip(coded_frames, frames, strict=True)):
        still = combs(moment(index)[..., 0])
        assert combs(before.planes.planes[0]) > 3 * still
        assert combs(after.planes.planes[0]) < 1.2 * still
        assert (after.planes.coded_motion is None) == (before.planes.coded_motion is None) == (index == 0)


@pytest.mark.parametrize(
    ("capture", "times"),
    [
        ({"start_s": 0.2}, range(5, 12)),
        ({"max_frames": 3}, range(3)),
        ({"start_s": 0.2, "duration_s": 0.12}, range(5, 8)),
    ],
)
def test_parts_have_all_their_frames(interlaced_file: Path, capture: dict[str, object], times: range) -> None:
    frames = frames_of(interlaced_file, **capture)
    assert [frame.media_ns // 1_000_000 for frame in frames] == [40 * index for index in times]
    all_frames = frames_of(interlaced_file)
    for frame in frames:
        (same,) = (other for other in all_frames if other.media_ns == frame.media_ns)
        np.testing.assert_array_equal(frame.planes.planes[0][2:-2], same.planes.planes[0][2:-2])


def test_progressive_video_is_passed_on_untouched(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4", map(woven, range(4)))  # combs in it, but no flag
    with patch.object(deinterlace, "_filter", side_effect=AssertionError):
        frames = frames_of(path)
    with av.open(str(path)) as container:
        for frame, plain in zip(frames, container.decode(video=0), strict=True):
            np.testing.assert_array_equal(frame.planes.planes[0], plain.to_ndarray()[:96])
            assert frame.planes.reach_px == 0
    assert combs(frames_of(path, deinterlace="on")[2].planes.planes[0]) < combs(frames[2].planes.planes[0]) / 3


def test_a_change_of_size_loses_no_frame(tmp_path: Path) -> None:
    small = make_video(tmp_path / "1.ts", map(woven, range(30)), options=INTERLACED).read_bytes()
    images = (np.pad(woven(index), ((0, 32), (0, 0), (0, 0))) for index in range(30))
    (tmp_path / "a.ts").write_bytes(small + make_video(tmp_path / "2.ts", images, options=INTERLACED).read_bytes())
    frames = frames_of(tmp_path / "a.ts")
    assert [frame.planes.height_px for frame in frames] == [96] * 30 + [128] * 30
    assert [frame.frame_index for frame in frames if frame.discontinuity] == [0, 30]
    times = [frame.media_ns for frame in frames]
    assert times == sorted(set(times))


def through(deinterlacer: Deinterlacer, frames: Sequence[av.VideoFrame]) -> list[av.VideoFrame]:
    outputs = [complete for frame in frames for complete in deinterlacer.put(frame)]
    return [*outputs, *deinterlacer.rest()]


@pytest.mark.parametrize(
    ("pixel_format", "becomes"),
    [
        ("nv12", "yuv420p"),  # as devices give it
        ("p010le", "yuv420p10le"),
        ("yuyv422", "yuv422p"),
        ("yuvj420p", "yuvj420p"),
        ("yuv422p10le", "yuv422p10le"),
        ("gray", "gray"),
    ],
)
@pytest.mark.parametrize("color_range", [0, 1, 2])
def test_formats_keep_their_samples_and_colours(pixel_format: str, becomes: str, color_range: int) -> None:
    frames = [coded(index, pixel_format=pixel_format, image=moment(0)) for index in range(3)]
    for frame in frames:
        frame.color_range, frame.colorspace, frame.color_trc = color_range, 1, 1
    outputs = through(Deinterlacer("on", "h264"), frames)
    assert [frame.format.name for frame in outputs] == [becomes] * 3
    assert [(frame.pts, frame.time_base) for frame in outputs] == [(index, Fraction(1, 25)) for index in range(3)]
    expected, planes = planes_of(frames[1]), planes_of(outputs[1])  # nothing moves
    assert planes.colour == expected.colour
    for plane, other in zip(planes.planes, expected.planes, strict=True):
        # swscale dithers as it rounds P010
        np.testing.assert_allclose(plane.astype(int), other, atol=1 if pixel_format == "p010le" else 0)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("pts", [[0, 1, 2, 3, 4], [None] * 5, [4, 0, 0, 9, 1]])
def test_every_frame_comes_out_once_with_its_time(count: int, pts: list[int | None]) -> None:
    frames = [coded(index) for index in range(count)]
    for frame, time in zip(frames, pts, strict=False):
        frame.pts = time
    frames[-1].time_base = Fraction(1, 50)
    outputs = through(Deinterlacer("on", "h264"), frames)
    assert [frame.pts for frame in outputs] == pts[:count]
    assert outputs[-1].time_base == Fraction(1, 50)


@pytest.mark.parametrize(("pixel_format", "size"), [("rgb24", (96, 128)), ("gray10le", (96, 128)), ("yuv420p", (2, 2))])
def test_frames_that_the_filter_does_not_take_are_shown_as_they_are(
    pixel_format: str, size: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    frames = [coded(0, pixel_format=pixel_format, image=moment(0, *size)) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        outputs = through(Deinterlacer("on", "h264"), frames)
    assert all(frame is same for frame, same in zip(frames, outputs, strict=True))
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "interlaced video is shown as it is coded: it cannot be deinterlaced"
    ]


def test_the_filter_ends_when_frames_are_no_longer_flagged(interlaced_file: Path) -> None:
    with av.open(str(interlaced_file)) as container:
        flagged = list(container.decode(video=0))
    plain = [coded(index) for index in range(PROGRESSIVE_FRAMES + 2)]
    deinterlacer = Deinterlacer("auto", "h264")
    assert deinterlacer.put(plain[0])[0] is plain[0]
    flagged[0] = flagged[0].reformat(96, 64)
    outputs = [frame for frame in flagged[1:3] for frame in deinterlacer.put(frame)]
    assert len(outputs) == 1
    outputs += [complete for frame in plain[1:] for complete in deinterlacer.put(frame)]
    assert len(outputs) == 2 + len(plain[1:])  # none is held back any more
    assert outputs[-1] is plain[-1]
    assert deinterlacer.rest() == ()


@pytest.mark.parametrize("setting", ["auto", "on", "off"])
def test_a_live_source_that_is_lost_gives_its_last_frame(interlaced_file: Path, setting: str) -> None:
    config = CaptureConfig(deinterlace=setting)
    with av.open(str(interlaced_file)) as container:
        stream = container.streams.video[0]
        packets = Mock(read_timeout=None)
        packets.demux.return_value = iter([packet for packet in container.demux(stream) if packet.size])
        decoder = LiveDecoder(packets, stream, config, MonotonicClock(), threading.Event())
        times = []
        with suppress(ConnectionLost):
            for frame in decoder.frames(10.0):
                times.append(frame.pts)
    assert times == [512 * index for index in range(len(times))]
    assert len(times) == 10  # the other two are in the decoder


def test_an_interlaced_png_shows_one_moment(tmp_path: Path) -> None:
    """Its order of lines is one of storage."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    lines = b"".join(
        (b"\0" + bytes([9 * y for _ in range(x, 8, dx)])) for x, y0, dx, dy in passes for y in range(y0, 8, dy)
    )
    parts = ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1)), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    (tmp_path / "a.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in parts
        )
    )
    with av.open(str(tmp_path / "a.png")) as container:
        assert next(container.decode(video=0)).interlaced_frame
    (frame,) = frames_of(tmp_path / "a.png")
    np.testing.assert_array_equal(frame.planes.planes[0][:, 0], 9 * np.arange(8))


def test_masked_lines_reach_no_line_beside_them() -> None:
    """Two videos that differ in the masked part only give the same planes."""
    mask = PictureMask([box_polygon((0.25, 0.25, 0.75, 0.75))])
    fit = FrameFitter.of(CaptureConfig())

    def masked(value: int) -> list[np.ndarray]:
        deinterlacer = Deinterlacer("on", "h264")
        frames = []
        for index in range(4):
            image = woven(index)
            image[24:72, 32:96] = value * (index % 2)
            image[24:72:2, 32:96] = value
            frames.append(coded(index, pixel_format="yuv420p", image=image))
        outputs = through(deinterlacer, frames)
        planes = (mask.apply(to_planes(frame, fit, "a", reach_px=deinterlacer.reach_px)) for frame in outputs)
        return [plane for frame in planes for plane in frame.planes]

    for first, second in zip(masked(0), masked(255), strict=True):
        np.testing.assert_array_equal(first, second)
