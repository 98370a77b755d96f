"""Decoded frames as planes: views, colour as swscale reads it, depth, rotation."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from arr_coc.types import FramePlanes
from stream.sources.orientation import quarter_turns
from stream.sources.planes import colour_of, planes_of, rgb_of
from tests.support.garbage import collect_earlier
from tests.support.video import make_video

Pixels = npt.NDArray[np.uint8]

KR_KB = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
    "fcc": (0.30, 0.11),
}
"""ITU-T H.273, table 4: the luma weights of red and blue."""

HEIGHT, WIDTH = 24, 32


def gradient(height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """Luma varies from pixel to pixel, chroma hardly, so that chroma interpolation does not affect the comparison."""
    rows, cols = np.mgrid[0:height, 0:width]
    luma = (40 + 3 * rows + 2 * cols) % 160
    return np.stack([luma + 60, luma + 20, luma + 40], axis=-1).astype(np.uint8)


def frame_of(image: Pixels, pixel_format: str, **tags: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format=pixel_format)
    for name, value in tags.items():
        setattr(frame, name, value)
    return frame


def to_rgb(planes: FramePlanes) -> npt.NDArray[np.float64]:
    """The textbook conversion, chroma repeated."""
    if planes.layout == "rgb":
        return planes.planes[0].astype(float)
    luma = planes.planes[0].astype(float)
    if planes.layout == "gray":
        return np.repeat(luma[..., None], 3, axis=-1)
    u, v = (repeated(plane, luma.shape) - 128.0 for plane in planes.planes[1:])
    if not planes.colour.full_range:
        luma, u, v = (luma - 16) * 255 / 219, u * 255 / 224, v * 255 / 224
    kr, kb = KR_KB[planes.colour.matrix]
    red, blue = luma + 2 * (1 - kr) * v, luma + 2 * (1 - kb) * u
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 255)


def repeated(plane: Pixels, shape: tuple[int, ...]) -> Any:
    down, across = -(-shape[0] // plane.shape[0]), -(-shape[1] // plane.shape[1])
    return np.repeat(np.repeat(plane, down, 0), across, 1)[: shape[0], : shape[1]]


def assert_equals_swscale(frame: av.VideoFrame, tolerance: float = 2.0) -> None:
    difference = np.abs(to_rgb(planes_of(frame)) - frame.to_ndarray(format="rgb24").astype(float))
    assert difference.max() <= tolerance


@pytest.mark.parametrize("color_range", [0, 1, 2])
@pytest.mark.parametrize("colorspace", [0, 1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("pixel_format", ["yuv444p", "yuvj444p"])
def test_matrix_and_range_are_read_as_swscale_reads_them(pixel_format: str, colorspace: int, color_range: int) -> None:
    frame = frame_of(gradient(), pixel_format, colorspace=colorspace, color_range=color_range)
    for plane, value in zip(frame.planes[1:], (90, 170), strict=True):
        np.frombuffer(plane, np.uint8)[:] = value
    assert_equals_swscale(frame)


@pytest.mark.parametrize("size", [(24, 32), (120, 2000)])
def test_unspecified_matrix_is_bt601_at_every_size(size: tuple[int, int]) -> None:
    assert colour_of(frame_of(gradient(*size), "yuv420p")).matrix == "bt601"
    assert_equals_swscale(frame_of(gradient(*size), "yuv420p"), tolerance=3)


@pytest.mark.parametrize("colorspace", [8, 10])
def test_a_matrix_that_swscale_refuses_still_gives_planes(colorspace: int) -> None:
    frame = frame_of(gradient(), "yuv420p10le", colorspace=colorspace)
    assert planes_of(frame).layout == "yuv"
    assert rgb_of(frame).shape == (HEIGHT, WIDTH, 3)


def test_transfer_is_named_and_not_applied() -> None:
    assert colour_of(frame_of(gradient(), "yuv420p", color_trc=18)).transfer == "hlg"
    assert colour_of(frame_of(gradient(), "yuv420p", color_trc=2)).transfer == "unspecified"


@pytest.mark.parametrize(
    ("pixel_format", "layout", "chroma"),
    [
        ("yuv420p", "yuv", (12, 16)),
        ("yuvj420p", "yuv", (12, 16)),
        ("yuva420p", "rgb", None),
        ("yuv422p", "yuv", (24, 16)),
        ("yuv444p", "yuv", (24, 32)),
        ("yuv440p", "yuv", (12, 32)),
        ("yuv411p", "yuv", (24, 8)),
        ("yuv410p", "yuv", (6, 8)),
        ("nv12", "yuv", (12, 16)),
        ("nv21", "yuv", (12, 16)),
        ("nv16", "yuv", (24, 16)),
        ("yuyv422", "yuv", (24, 16)),
        ("yuv420p10le", "yuv", (12, 16)),
        ("yuv420p12le", "yuv", (12, 16)),
        ("yuv422p10le", "yuv", (24, 16)),
        ("yuv444p16le", "yuv", (24, 32)),
        ("yuv420p10be", "yuv", (12, 16)),
        ("p010le", "yuv", (12, 16)),
        ("gray", "gray", None),
        ("gray10le", "gray", None),
        ("gray16be", "gray", None),
        ("ya8", "rgb", None),
        ("rgb24", "rgb", None),
        ("bgra", "rgb", None),
        ("gbrp", "rgb", None),
        ("gbrp10le", "rgb", None),
        ("rgb565le", "rgb", None),
        ("xyz12le", "rgb", None),
    ],
)
@pytest.mark.parametrize("color_range", [1, 2])
def test_every_family_of_formats(
    pixel_format: str, layout: str, chroma: tuple[int, int] | None, color_range: int
) -> None:
    frame = frame_of(gradient(), pixel_format, color_range=color_range)
    planes = planes_of(frame)
    assert planes.layout == layout
    assert planes.planes[0].shape[:2] == (HEIGHT, WIDTH)
    assert chroma is None or [plane.shape for plane in planes.planes[1:]] == [chroma, chroma]
    assert all(plane.dtype == np.uint8 for plane in planes.planes)
    assert_equals_swscale(frame, tolerance=5)


def test_u_and_v_are_not_exchanged() -> None:
    blue = np.full((HEIGHT, WIDTH, 3), (20, 30, 220), dtype=np.uint8)
    for pixel_format in ("yuv420p", "nv12", "nv21", "yuv420p10le", "yuyv422"):
        _, u, v = planes_of(frame_of(blue, pixel_format)).planes
        assert u.min() > 190, pixel_format
        assert v.max() < 120, pixel_format


def test_a_palette_becomes_rgb() -> None:
    indexes = np.arange(16, dtype=np.uint8).reshape(4, 4)
    colours = np.random.default_rng(0).integers(0, 256, (256, 4), dtype=np.uint8)
    colours[:, 0] = 255
    frame = av.VideoFrame.from_ndarray((indexes, colours), format="pal8")
    planes = planes_of(frame)
    assert planes.layout == "rgb"
    assert np.array_equal(planes.planes[0], frame.to_ndarray(format="rgb24"))


ALPHA_FORMATS = ["rgba", "bgra", "argb", "gbrap", "rgba64le", "yuva420p", "yuva422p10le", "yuva444p16be", "ya8"]


@pytest.mark.parametrize("pixel_format", ALPHA_FORMATS)
@pytest.mark.parametrize(("alpha", "share"), [(0, 0.0), (102, 0.4), (255, 1.0)])
def test_transparent_pixels_are_white(pixel_format: str, alpha: int, share: float) -> None:
    rgba = np.full((HEIGHT, WIDTH, 4), 100, np.uint8)
    rgba[..., 3] = alpha
    planes = planes_of(av.VideoFrame.from_ndarray(rgba, format="rgba").reformat(format=pixel_format))
    assert planes.layout == "rgb"
    assert np.abs(planes.planes[0] - (100 * share + 255 * (1 - share))).max() <= 2


def test_a_transparent_colour_of_a_palette_shows_white() -> None:
    indexes = np.array([[0, 1], [1, 0]], np.uint8).repeat(8, 0).repeat(8, 1)
    colours = np.zeros((256, 4), np.uint8)
    colours[0], colours[1] = (0, 200, 0, 0), (255, 10, 20, 30)
    frame = av.VideoFrame.from_ndarray((indexes, colours), format="pal8")
    rgba = frame.reformat(format="rgba").to_ndarray()
    rgb = rgb_of(frame)
    assert {tuple(colour) for colour in rgb.reshape(-1, 3)} == {(255, 255, 255), tuple(rgba[0, 8, :3])}
    assert (rgb[rgba[..., 3] == 0] == 255).all()


@pytest.mark.parametrize("disposal", [1, 2])
def test_a_gif_with_transparency_is_shown_as_on_a_white_page(tmp_path: Path, disposal: int) -> None:
    """A square moves over nothing: with disposal 1 it leaves what it covered, with 2 it leaves nothing behind."""
    images = []
    for left in (2, 10, 18):
        image = np.zeros((16, 32, 4), np.uint8)
        image[4:10, left : left + 6] = (200, 30, 10, 255)
        images.append(Image.fromarray(image))
    path = tmp_path / "square.gif"
    images[0].save(path, save_all=True, append_images=images[1:], disposal=disposal, duration=40)
    with av.open(str(path)) as container:
        pictures = [rgb_of(frame) for frame in container.decode(video=0)]
    assert len(pictures) == 3
    for number, picture in enumerate(pictures):
        red = (picture == (200, 30, 10)).all(axis=-1)
        assert (picture[~red] == 255).all(), number
        squares = red[6].sum() // 6
        assert squares == (1 if disposal == 2 else number + 1)


def test_ten_bits_are_rounded_not_cut() -> None:
    frame = frame_of(gradient(), "yuv420p10le")
    for plane, value in zip(frame.planes, (402, 513, 510), strict=True):
        np.frombuffer(plane, np.uint16)[:] = value
    assert [int(plane[0, 0]) for plane in planes_of(frame).planes] == [100, 128, 128]
    np.frombuffer(frame.planes[0], np.uint16)[:] = 1020
    assert int(planes_of(frame).planes[0][0, 0]) == 255
    frame.color_range = 2
    assert int(planes_of(frame).planes[0][0, 0]) == 254


def test_planes_are_read_only_views_that_outlive_the_frame() -> None:
    collect_earlier()
    frame = frame_of(gradient(), "yuv420p")
    address = frame.planes[0].buffer_ptr
    planes = planes_of(frame)
    luma = planes.planes[0]
    before = luma.copy()
    assert luma.ctypes.data == address
    assert not luma.flags.writeable
    del frame, planes
    gc.collect()
    av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    assert np.array_equal(luma, before)


def test_odd_sizes_have_rounded_up_chroma() -> None:
    planes = planes_of(frame_of(gradient(121, 161), "yuv420p"))
    assert [plane.shape for plane in planes.planes] == [(121, 161), (61, 81), (61, 81)]


@pytest.mark.parametrize(
    ("degrees", "turns"), [(0, 0), (90, 1), (-90, 3), (180, 2), (-180, 2), (270, 3), (89, 1), (3, 0)]
)
def test_rotation_to_quarter_turns(degrees: int, turns: int) -> None:
    assert quarter_turns(degrees) == turns


def rotated_frame(folder: Path, degrees: int, height: int = HEIGHT, width: int = WIDTH) -> av.VideoFrame:
    """A frame with a display matrix, red in its stored top left corner."""
    image = gradient(height, width)
    image[: height // 3, : width // 3] = (230, 20, 20)
    path = make_video(folder / "rotated.mkv", [image], codec="ffv1", rotation=degrees)
    with av.open(str(path)) as container:
        return next(container.decode(video=0))


@pytest.mark.parametrize("degrees", [90, -90, 180])
@pytest.mark.parametrize("size", [(24, 32), (24, 33), (25, 32)])
def test_a_rotated_frame_is_turned_upright(tmp_path: Path, degrees: int, size: tuple[int, int]) -> None:
    frame = rotated_frame(tmp_path, degrees, *size)
    upright = np.rot90(frame.to_ndarray(format="rgb24"), degrees // 90)
    assert np.array_equal(rgb_of(frame), upright)
    planes = planes_of(frame)
    assert (planes.height_px, planes.width_px) == upright.shape[:2]
    difference = np.abs(to_rgb(planes) - upright.astype(float))
    assert np.median(difference) <= 2
    assert (difference > 40).mean() < 0.01


def test_a_phone_held_upright_is_shown_upright(tmp_path: Path) -> None:
    """FFmpeg's players turn a frame whose display matrix says -90 degrees clockwise: its top left becomes top right."""
    red = rgb_of(rotated_frame(tmp_path, -90))[..., 0].astype(int) - rgb_of(rotated_frame(tmp_path, -90))[..., 1]
    assert red.shape == (WIDTH, HEIGHT)
    assert red[1, -2] > 150
    assert red[1, 1] < 100


def test_turning_keeps_chroma_on_its_luma(tmp_path: Path) -> None:
    """If an odd side would put chroma between two luma samples, the frame becomes RGB before it is turned."""
    assert planes_of(rotated_frame(tmp_path, 180, 24, 32)).layout == "yuv"
    assert planes_of(rotated_frame(tmp_path, 180, 24, 33)).layout == "rgb"
    assert planes_of(rotated_frame(tmp_path, 90, 25, 32)).layout == "yuv"
    assert planes_of(rotated_frame(tmp_path, -90, 25, 32)).layout == "rgb"
