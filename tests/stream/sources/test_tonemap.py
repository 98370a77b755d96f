"""HDR is shown as SDR: what was SDR before it was coded as PQ or HLG comes back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.video.picture_mask import PictureMask
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources import planes as form
from stream.sources.factory import open_source
from stream.sources.fit import FrameFitter
from stream.sources.orientation import Orientation
from stream.sources.planes import planes_of, rgb_of, to_planes
from stream.sources.tonemap import report_hdr
from tests.support.heif import make_grid
from tests.support.polygons import box_polygon
from tests.support.video import Image, make_video

Floats = npt.NDArray[np.float64]

TRANSFERS = {"pq": 16, "hlg": 18}
TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])
"""Linear RGB of BT.709's primaries → that of BT.2020's (BT.2087)."""

WHITE_NITS = 203.0


def signal_of(light: Floats, transfer: str) -> Floats:
    """The signal of light in cd/m², by the inverse of the published curves."""
    if transfer == "pq":
        power = np.clip(light / 10_000, 0, 1) ** 0.1593017578125
        return np.asarray(((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375)
    luminance = np.maximum(light @ [0.2627, 0.6780, 0.0593] / 1000, 1e-9)[..., None]
    scene = light / 1000 * luminance ** (-0.2 / 1.2)
    upper = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), upper)


def hdr_frame(
    image: Image, transfer: str, pixel_format: str = "yuv420p10le", full_range: bool = False, nits: float = WHITE_NITS
) -> av.VideoFrame:
    """A picture of SDR as HDR, whose white has `nits`."""
    signal = np.clip(signal_of((image / 255) ** 2.4 * nits @ TO_BT2020.T, transfer), 0, 1)
    rgb = av.VideoFrame.from_ndarray(np.rint(signal * 65535).astype(np.uint16), format="rgb48le")
    color_range = 2 if full_range else 1
    frame = rgb.reformat(format=pixel_format, dst_colorspace=9, src_color_range=2, dst_color_range=color_range)
    frame.colorspace, frame.color_range = 9, color_range
    frame.color_trc, frame.color_primaries = TRANSFERS[transfer], 9
    return frame


def fields(colours: Any) -> Image:
    """Vertical fields of colours, 32 pixels each."""
    return np.broadcast_to(np.repeat(np.array(colours, np.uint8), 32, axis=0), (64, 32 * len(colours), 3)).copy()


GREYS = fields([[value] * 3 for value in range(0, 200, 8)])
MUTED = fields(
    [(191, 191, 191), (190, 160, 130), (120, 80, 60), (90, 120, 60), (60, 90, 140), (180, 110, 60), (16, 16, 16)]
)
BARS = fields([(191, 191, 0), (0, 191, 191), (0, 191, 0), (191, 0, 191), (191, 0, 0), (0, 0, 191)])
CENTRES = np.s_[:, 16::32]
"""Middles of the fields: shared chroma mixes two of them at their borders."""


def errors(frame: av.VideoFrame, image: Image) -> npt.NDArray[np.int_]:
    return np.abs(rgb_of(frame).astype(int) - image)[CENTRES]


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize(
    ("pixel_format", "full_range"),
    [
        ("yuv420p10le", False), ("yuv420p10le", True), ("yuv444p10le", False), ("yuv422p12le", False),
        ("p010le", False), ("gbrp10le", True),
    ],
)  # fmt: skip
def test_sdr_in_hdr_comes_back(transfer: str, pixel_format: str, full_range: bool) -> None:
    for image, mean, most in ((GREYS, 2, 5), (MUTED, 2, 5), (BARS, 3, 12)):
        frame = hdr_frame(image, transfer, pixel_format, full_range)
        difference = errors(frame, image)
        assert difference.mean() <= mean
        assert difference.max() <= most
        frame.color_trc = 1
        assert errors(frame, image).mean() > 5 * difference.mean()


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_brighter_light_is_brighter_up_to_white(transfer: str) -> None:
    nits = [0, 1, 50, 100, 150, 203, 300, 500, 800, 1000]
    greys = [int(rgb_of(hdr_frame(fields([(255, 255, 255)]), transfer, nits=light))[0, 0, 1]) for light in nits]
    assert greys == sorted(set(greys))
    assert (greys[0], greys[-1]) == (0, pytest.approx(255, abs=1))
    assert greys[5] > 225  # the reference white


def test_the_planes_are_those_of_bt709() -> None:
    frame = hdr_frame(MUTED, "pq")
    planes = planes_of(frame)
    assert (planes.layout, planes.colour.matrix, planes.colour.full_range) == ("yuv", "bt709", False)
    assert planes.colour.transfer == "bt709"
    assert planes.planes[1].shape == (32, MUTED.shape[1] // 2)
    assert planes.reach_px > 0


def test_eight_bits_are_read_too() -> None:
    assert errors(hdr_frame(GREYS, "hlg", "yuv420p"), GREYS).mean() < 4


@pytest.mark.parametrize("pixel_format", ["yuv420p10le", "yuv444p12le"])
def test_samples_beyond_their_bits_are_as_the_brightest(pixel_format: str) -> None:
    brightest, beyond = (hdr_frame(MUTED, "pq", pixel_format) for _ in range(2))
    bits = brightest.format.components[0].bits
    for frame, sample in ((brightest, 2**bits - 1), (beyond, 65_535)):
        luma = frame.planes[0]
        luma.update(np.full(luma.buffer_size // 2, sample, np.uint16).tobytes())
    for first, second in zip(planes_of(brightest).planes, planes_of(beyond).planes, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("pixel_format", ["gray10le", "yuva420p10le"])
def test_gray_and_transparent_pictures_are_shown_as_they_are_coded(
    pixel_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame = hdr_frame(GREYS, "pq", pixel_format)
    with caplog.at_level(logging.WARNING):
        report_hdr("a.mkv", frame)
    assert caplog.records == []
    luma = planes_of(frame).planes[0]
    frame.color_trc = 1
    np.testing.assert_array_equal(luma, planes_of(frame).planes[0])


@pytest.mark.parametrize("trc", [1, 2, 13, 14])
def test_other_transfers_are_left_alone(trc: int) -> None:
    frame = hdr_frame(MUTED, "pq")
    frame.color_trc = trc
    luma = np.ndarray((64, MUTED.shape[1]), np.uint16, buffer=frame.planes[0], strides=(frame.planes[0].line_size, 2))
    assert np.abs(planes_of(frame).planes[0] - luma / 4).max() <= 0.5
    assert planes_of(frame).reach_px == 0


@pytest.mark.parametrize("capture", [{}, {"size": "96x64"}, {"fit": "resize"}], ids=str)
def test_a_frame_is_converted_once(capture: dict[str, object]) -> None:
    frame, fit = hdr_frame(MUTED, "pq"), FrameFitter.of(CaptureConfig.model_validate(capture))
    with patch.object(form, "to_sdr", side_effect=form.to_sdr) as to_sdr:
        planes = to_planes(frame, fit, "a")
    assert to_sdr.call_count == 1
    assert planes.reach_px > 0


def test_a_turned_frame_is_converted_once() -> None:
    frame = hdr_frame(MUTED[:63, :127], "pq")
    with patch.object(form, "to_sdr", side_effect=form.to_sdr) as to_sdr:
        planes = planes_of(frame, Orientation(1, False))
    assert planes.layout == "rgb"  # chroma would shift
    np.testing.assert_array_equal(planes.planes[0], rgb_of(frame, Orientation(1, False)))
    assert to_sdr.call_count == 1


@pytest.mark.parametrize("pixel_format", ["yuv420p10le", "yuv444p10le", "yuv411p"])
@pytest.mark.parametrize("size", [(96, 128), (95, 127)])
@pytest.mark.parametrize("capture", [{}, {"size": "100x75"}, {"max_tiles": 6}], ids=str)
def test_a_masked_part_reaches_nothing_beside_it(
    pixel_format: str, size: tuple[int, int], capture: dict[str, object]
) -> None:
    fit = FrameFitter.of(CaptureConfig.model_validate(capture))
    mask = PictureMask([box_polygon((0.25, 0.25, 0.75, 0.75))])

    def masked(colour: tuple[int, int, int]) -> tuple[npt.NDArray[np.uint8], ...]:
        image = np.random.default_rng(0).integers(0, 200, (*size, 3), dtype=np.uint8)
        frame = hdr_frame(image, "pq", pixel_format)
        secret = hdr_frame(np.broadcast_to(np.array(colour, np.uint8), image.shape), "pq", pixel_format)
        for plane, other in zip(frame.planes, secret.planes, strict=True):
            lines, others = (np.frombuffer(part, np.uint8).reshape(plane.height, -1).copy() for part in (plane, other))
            sample = plane.line_size // 2 if pixel_format != "yuv411p" else plane.line_size
            width = plane.width * (plane.line_size // sample)
            begin, end = -(-plane.height // 4), plane.height * 3 // 4
            left, right = -(-plane.width // 4), plane.width * 3 // 4
            scale = width // plane.width
            lines[begin:end, left * scale : right * scale] = others[begin:end, left * scale : right * scale]
            plane.update(lines.tobytes())
        return mask.apply(to_planes(frame, fit, "a")).planes

    for first, second in zip(masked((0, 0, 0)), masked((255, 40, 10)), strict=True):
        np.testing.assert_array_equal(first, second)


def hdr_video(path: Path, image: Image, **options: Any) -> Path:
    """A file of 10 bits that states PQ; its samples are those of the picture as it is."""
    params = "log-level=none:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:bframes=0"
    return make_video(
        path, [image] * 3, codec="libx265", pixel_format="yuv420p10le", options={"x265-params": params}, **options
    )


def test_a_file_says_once_that_it_is_hdr(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = hdr_video(tmp_path / "a.mp4", MUTED, rotation=90)
    with caplog.at_level(logging.WARNING), open_source(str(path), CaptureConfig(), MonotonicClock()) as source:
        frames = [frame for frame in source.frames() if isinstance(frame, SourceFrame)]
    assert [record.message for record in caplog.records] == [f"{path} is HDR (PQ): it is shown as SDR"]
    planes = frames[-1].planes
    assert planes.colour.transfer == "bt709"
    assert (planes.width_px, planes.height_px) == MUTED.shape[:2]  # turned as stated
    with av.open(str(path)) as container:
        first = next(container.decode(video=0))
        assert Orientation.of(first).changes
        assert rgb_of(first).shape == (*MUTED.shape[1::-1], 3)


def test_sdr_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_video(tmp_path / "a.mp4", [MUTED] * 2)
    with caplog.at_level(logging.WARNING), open_source(str(path), CaptureConfig(), MonotonicClock()) as source:
        list(source.frames())
    make_grid(tmp_path / "a.heic", MUTED)
    with caplog.at_level(logging.WARNING):
        open_source(str(tmp_path / "a.heic"), CaptureConfig(), MonotonicClock()).close()
    assert caplog.records == []
