"""Changes that make a tile dirty, and noise that does not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.backends.registry import open_store
from arr_coc.texture.kernels import SETTING
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import FramePlanes
from tests.support.stores import require
from tests.support.video import copy_planes, flat_planes, random_planes, stamp


@pytest.fixture(autouse=True, params=["compiled", "reference"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test compares with the compiled kernel and without."""
    require(request.param)
    monkeypatch.setenv(SETTING, request.param)


def store_of(planes: FramePlanes, thresholds: Thresholds | None = None) -> TextureStore:
    store = open_store(PlaneFormat.of(planes), thresholds=thresholds)
    store.update(planes, stamp(0))
    return store


def dirty(before: FramePlanes, after: FramePlanes, thresholds: Thresholds | None = None) -> set[tuple[int, int]]:
    mask = store_of(before, thresholds).compare(after).dirty
    return {(int(row), int(col)) for row, col in np.argwhere(mask)}


def test_equal_planes_are_clean() -> None:
    planes = random_planes(np.random.default_rng(0), 200, 300)
    assert dirty(planes, copy_planes(planes)) == set()


def test_a_colour_of_the_same_luma_is_seen() -> None:
    """RGB (200, 30, 30) and (0, 88, 25), in BT.601."""
    red, green = flat_planes(64, 64, (82, 107, 193)), flat_planes(64, 64, (82, 109, 85))
    assert dirty(red, green) == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("change", [4, -4])
@pytest.mark.parametrize("plane", [0, 1, 2])
def test_the_mean_counts_above_its_threshold(plane: int, change: int) -> None:
    before = flat_planes(64, 96)
    after = copy_planes(before)
    side = 32 if plane == 0 else 16
    after.planes[plane][:side, side : 2 * side] += np.uint8(change % 256)
    assert dirty(before, after) == {(0, 1)}
    assert dirty(before, after, Thresholds(mean=4, largest=12)) == set()


@pytest.mark.parametrize("plane", [0, 1, 2])
def test_a_blinking_cursor_counts(plane: int) -> None:
    before = flat_planes(64, 96)
    after = copy_planes(before)
    after.planes[plane][20:22, 20:21] = 255
    assert dirty(before, after) == {(0, 0) if plane == 0 else (1, 1)}
    assert dirty(before, after, Thresholds(mean=3.5, largest=255)) == set()


def test_a_checkerboard_that_inverts_is_seen() -> None:
    """Its 2×2 means stay as they are."""
    before = flat_planes(64, 64)
    board = np.indices((64, 64)).sum(axis=0) % 2 * 200
    board_planes, inverse_planes = copy_planes(before), copy_planes(before)
    board_planes.planes[0][:] = board
    inverse_planes.planes[0][:] = 200 - board
    assert len(dirty(board_planes, inverse_planes)) == 4


def test_drift_cannot_hide() -> None:
    """Steps too small to be seen one by one: the texture never strays further than the threshold."""
    store = store_of(flat_planes(64, 64))
    for index in range(1, 60):
        value = 100 + index
        store.update(flat_planes(64, 64, (value, 128, 128)), stamp(index))
        with store.lease() as view:
            luma = view.read(5).astype(float).mean() / (255 / 219) + 16
        assert abs(luma - value) <= 4.5
    with store.lease() as view:
        assert view.versions.frame.min() > 50


@pytest.mark.parametrize("layout", ["yuv", "rgb"])
def test_noise_of_two_steps_is_not_seen(layout: str) -> None:
    """Standard deviation 2 in the texture's frame and in the next ones, over 37,000 tiles of a plane."""
    rng = np.random.default_rng(1)

    def noisy(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        return (128 + rng.standard_normal(shape, np.float32) * 2).round().astype(np.uint8)

    def frame() -> FramePlanes:
        if layout == "rgb":
            return FramePlanes("rgb", (noisy((512, 512, 3)),))
        return FramePlanes("yuv", (noisy((1088, 1920)), noisy((544, 960)), noisy((544, 960))))

    store = store_of(frame())
    assert sum(int(store.compare(frame()).dirty.sum()) for _ in range(6)) == 0


@pytest.mark.parametrize("size", [(33, 33), (121, 161), (65, 31)])
def test_a_change_in_the_last_row_or_column_is_seen(size: tuple[int, int]) -> None:
    height, width = size
    before = flat_planes(height, width)
    for row, col in ((height - 1, 0), (0, width - 1), (height - 1, width - 1)):
        after = copy_planes(before)
        after.planes[0][row, col] = 255
        assert dirty(before, after) == {(row // 32, col // 32)}


def test_every_channel_of_rgb_counts() -> None:
    before = random_planes(np.random.default_rng(2), 64, 64, layout="rgb")
    for channel in range(3):
        after = copy_planes(before)
        after.planes[0][:32, 32:, channel] ^= 8
        assert dirty(before, after) == {(0, 1)}


def test_changes_in_many_segments_are_all_found() -> None:
    """The planes are compared some tile rows at a time; changed and unchanged segments alternate here."""
    rng = np.random.default_rng(3)
    before = random_planes(rng, 1080, 1920)
    for _ in range(5):
        tiles = rng.random((34, 60)) < 0.01
        tiles[rng.integers(34)] = False
        after = copy_planes(before)
        for row, col in np.argwhere(tiles):
            plane = rng.integers(3)
            side = 32 if plane == 0 else 16
            after.planes[plane][row * side + 1, col * side + 3] ^= 0x80
        assert dirty(before, after) == {(int(row), int(col)) for row, col in np.argwhere(tiles)}


def test_read_only_and_strided_planes_are_compared() -> None:
    rng = np.random.default_rng(4)
    wide = random_planes(rng, 64, 128)
    planes = FramePlanes("yuv", (wide.planes[0][:, :96], wide.planes[1][:, :48], wide.planes[2][:, :48]))
    for plane in planes.planes:
        plane.flags.writeable = False
    assert dirty(planes, copy_planes(planes)) == set()
    changed = copy_planes(planes)
    changed.planes[0][40, 70] ^= 0x80
    assert dirty(planes, changed) == {(1, 2)}


def test_an_earlier_measurement_does_not_linger() -> None:
    """Neither in other tiles, nor in the padding of tiles at the edge."""
    before = flat_planes(200, 200)
    store = store_of(before)
    for row, col in ((0, 0), (199, 199), (100, 3), (0, 199)):
        assert store.compare(flat_planes(200, 200, (250, 30, 250))).dirty.all()
        assert store.compare(before).dirty_share == 0
        touched = copy_planes(before)
        touched.planes[0][row, col] += np.uint8(4)
        assert store.compare(touched).dirty_share == 0
        touched.planes[0][row, col] = 255
        assert np.argwhere(store.compare(touched).dirty).tolist() == [[row // 32, col // 32]]


@pytest.mark.parametrize(("plane", "side"), [(0, 32), (2, 16)])
def test_a_change_beside_the_last_one_is_seen(plane: int, side: int) -> None:
    before = flat_planes(192, 640)
    store = store_of(before)
    for tiles in ([(1, 10)], [(1, 2)], [(2, 18)], [(0, 5), (5, 19)], [(1, 0), (1, 19)], [(4, 4)], [], [(3, 9)]):
        touched = copy_planes(before)
        for row, col in tiles:
            touched.planes[plane][row * side + 5, col * side + 7] = 255
        assert np.argwhere(store.compare(touched).dirty).tolist() == [list(tile) for tile in tiles]
