"""Colour conversion against swscale's, on noise and on real clips."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.backends.registry import open_store
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.texture.store.raster import KR_KB, allocate_levels, page_zeros, refresh, rgb_matrix
from arr_coc.types import Colour, FramePlanes, Matrix
from tests.support.video import SUBSAMPLINGS, Bytes, expected_levels, random_planes, stamp

SWSCALE: dict[Matrix, int] = {
    "bt601": Colorspace.ITU601,
    "bt709": Colorspace.ITU709,
    "bt2020": 9,
    "smpte240m": Colorspace.SMPTE240M,
    "fcc": Colorspace.FCC,
}
MATRICES: dict[int, Matrix] = {1: "bt709", 9: "bt2020"}


def by_store(planes: FramePlanes) -> Bytes:
    store = open_store(PlaneFormat.of(planes))
    store.update(planes, stamp(0))
    with store.lease() as view:
        return view.read(0)[: planes.height_px, : planes.width_px].copy()


def by_swscale(planes: FramePlanes, pixel_format: str) -> Bytes:
    """The whole frame through swscale, with one more row if its height is odd: at odd heights swscale leaves its
    unscaled converters for one that interpolates chroma."""
    rows, cols = (planes.height_px + 1) // 2 * 2, (planes.width_px + 1) // 2 * 2
    frame = av.VideoFrame(cols, rows, pixel_format)
    for target, source in zip(frame.planes, planes.planes, strict=True):
        sample = np.frombuffer(target, np.uint8).reshape(-1, target.line_size)[: target.height, : target.width]
        padding = [(0, sample.shape[axis] - source.shape[axis]) for axis in (0, 1)]
        sample[:] = np.pad(source, padding, mode="edge")
    space = SWSCALE[planes.colour.matrix]
    range_ = ColorRange.JPEG if planes.colour.full_range else ColorRange.MPEG
    rgb = frame.reformat(
        format="rgb24",
        src_colorspace=space,
        dst_colorspace=space,
        src_color_range=range_,
        dst_color_range=ColorRange.JPEG,
    )
    return rgb.to_ndarray()[: planes.height_px, : planes.width_px]


def planes_of(frame: av.VideoFrame) -> FramePlanes:
    planes = []
    for index, plane in enumerate(frame.planes):
        height = frame.height if index == 0 else -(-frame.height // 2)
        width = frame.width if index == 0 else -(-frame.width // 2)
        planes.append(np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width])
    full = frame.format.name == "yuvj420p" or frame.color_range == ColorRange.JPEG
    return FramePlanes("yuv", tuple(planes), Colour(MATRICES.get(int(frame.colorspace), "bt601"), full), frame)


def difference(first: Bytes, second: Bytes) -> int:
    return int(np.abs(first.astype(int) - second).max())


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", list(KR_KB))
@pytest.mark.parametrize("size", [(128, 192), (97, 131)])
@pytest.mark.parametrize("sampling", ["420", "422"])
def test_noise_as_swscale(sampling: str, size: tuple[int, int], matrix: Matrix, full_range: bool) -> None:
    planes = random_planes(np.random.default_rng(0), *size, sampling=sampling, colour=Colour(matrix, full_range))
    assert difference(by_store(planes), by_swscale(planes, f"yuv{sampling}p")) <= 2


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", list(KR_KB))
def test_colours_without_subsampling_as_swscale(matrix: Matrix, full_range: bool) -> None:
    """From RGB noise, because swscale wraps around far outside of the RGB cube, in which 4:4:4 noise lies."""
    rgb = np.random.default_rng(1).integers(0, 256, (64, 96, 3)).reshape(-1, 3)
    forward = rgb_matrix(Colour(matrix, full_range))
    yuv = np.linalg.solve(forward[:, :3], rgb.T - forward[:, 3:]).clip(0, 255).round().astype(np.uint8)
    planes = FramePlanes("yuv", tuple(plane.reshape(64, 96) for plane in yuv), Colour(matrix, full_range))
    assert difference(by_store(planes), by_swscale(planes, "yuv444p")) <= 2


@pytest.mark.parametrize("sampling", list(SUBSAMPLINGS))
def test_flat_colours_of_every_sampling_as_swscale(sampling: str) -> None:
    down, across = SUBSAMPLINGS[sampling]
    for y, u, v in ((81, 90, 240), (145, 54, 34), (41, 240, 110), (16, 128, 128), (235, 128, 128)):
        chroma = (64 // down, 64 // across)
        planes = FramePlanes(
            "yuv", (np.full((64, 64), y, np.uint8), np.full(chroma, u, np.uint8), np.full(chroma, v, np.uint8))
        )
        assert difference(by_store(planes), by_swscale(planes, f"yuv{sampling}p")) <= 2


def test_gray_and_rgb_are_copied_as_swscale_does() -> None:
    rng = np.random.default_rng(2)
    gray = random_planes(rng, 64, 96, layout="gray")
    expected = av.VideoFrame.from_ndarray(gray.planes[0], format="gray").to_ndarray(format="rgb24")
    np.testing.assert_array_equal(by_store(gray), expected)
    rgb = random_planes(rng, 64, 96, layout="rgb")
    np.testing.assert_array_equal(by_store(rgb), rgb.planes[0])


def test_black_and_white_are_exact() -> None:
    for full_range, black, white in ((False, 16, 235), (True, 0, 255)):
        matrix = rgb_matrix(Colour("bt709", full_range))
        np.testing.assert_allclose(np.ceil(matrix @ [black, 128, 128, 1]), 0, atol=1e-9)
        np.testing.assert_allclose(np.ceil(matrix @ [white, 128, 128, 1]), 255, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "static_cars_topdown.mp4",
        "static_signer.mkv",
        "handheld_figurine.mp4",
        "cuts_bunny_30s.webm",
        "cuts_bunny_1080p60.mp4",
        "multistream_nasa.mp4",
        "anim_1200x1200_60fps.mp4",
        "odd_161x121.webm",
    ],
)
def test_real_clips_as_swscale(clips: Path, name: str) -> None:
    with av.open(str(clips / name)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index % 8 == 0:
                planes = planes_of(frame)
                assert difference(by_store(planes), by_swscale(planes, "yuv420p")) <= 2
            if index == 24:
                break


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1 << 16))
def test_every_level_is_the_rounded_mean_of_four(rows: int, cols: int, seed: int) -> None:
    levels = allocate_levels(rows, cols)
    levels[0][:] = np.random.default_rng(seed).integers(0, 256, levels[0].shape)
    refresh(levels, (0, 0, rows, cols))
    for level, expected in zip(levels, expected_levels(levels[0]), strict=True):
        np.testing.assert_array_equal(level, expected)


def test_halves_are_rounded_up() -> None:
    levels = allocate_levels(1, 1)
    levels[0][::2, ::2] = 2
    refresh(levels, (0, 0, 1, 1))
    assert (levels[1] == 1).all()
    levels[0][::2, ::2] = 1
    refresh(levels, (0, 0, 1, 1))
    assert (levels[1] == 0).all()


def test_nothing_outside_of_the_rectangle_is_touched() -> None:
    levels = allocate_levels(3, 4)
    levels[0][:] = 200
    refresh(levels, (1, 1, 2, 3))
    for level in range(1, 6):
        side = 32 >> level
        mask = np.zeros(levels[level].shape, bool)
        mask[side : 2 * side, side : 3 * side] = True
        np.testing.assert_array_equal(levels[level], np.where(mask, 200, 0))


@pytest.mark.parametrize("shape", [(3,), (40, 50, 3), (1024, 1024), (1088, 1920, 3)])
def test_room_is_zeroed_whatever_its_size(shape: tuple[int, ...]) -> None:
    room = page_zeros(*shape)
    assert room.shape == shape
    assert room.flags.c_contiguous
    assert room.flags.writeable
    assert not room.any()
    room[...] = 7
    assert page_zeros(*shape).sum() == 0


def test_room_begins_with_a_cache_line() -> None:
    assert [page_zeros(*shape).ctypes.data % 64 for shape in [(3,), (40, 50, 3), (1024, 1024)]] == [0, 0, 0]
