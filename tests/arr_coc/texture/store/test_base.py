"""Many readers, one writer: who waits for whom, and that no reader sees half a frame."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.backends.registry import _say_once, open_store
from arr_coc.errors import LeaseTimeout, ShapeError, StoreError
from arr_coc.texture.store.base import LeaseLock, TextureStore
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import Colour, FramePlanes
from tests.support.network import LIMIT_MS
from tests.support.stores import KINDS, open_kind, prepare, working
from tests.support.video import (
    SUBSAMPLINGS,
    Bytes,
    copy_planes,
    expected_level0,
    expected_levels,
    flat_planes,
    random_planes,
    stamp,
    with_tiles_of,
)


def started(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def test_readers_read_together_and_a_thread_may_read_twice() -> None:
    leases = LeaseLock()
    barrier = threading.Barrier(2, timeout=LIMIT_MS / 1e3)

    def read() -> None:
        with leases.reading(LIMIT_MS), leases.reading(LIMIT_MS):
            barrier.wait()

    other = started("other", read)
    read()
    other.join(LIMIT_MS / 1e3)
    with leases.writing(0):
        pass


def test_a_writer_that_waits_too_long_names_both_sides() -> None:
    leases = LeaseLock()
    with leases.reading(0), pytest.raises(LeaseTimeout) as caught, leases.writing(1):
        pass
    assert "'MainThread' waited 1 ms to write" in str(caught.value)
    assert "which thread 'MainThread' still read" in str(caught.value)


def test_a_reader_that_waits_too_long_names_both_sides() -> None:
    leases = LeaseLock()
    begin, end = threading.Event(), threading.Event()

    def write() -> None:
        with leases.writing(LIMIT_MS):
            begin.set()
            end.wait(LIMIT_MS / 1e3)

    writer = started("writer", write)
    begin.wait(LIMIT_MS / 1e3)
    with pytest.raises(LeaseTimeout, match=r"'MainThread' waited 1 ms to read .* thread 'writer'"), leases.reading(1):
        pass
    with pytest.raises(LeaseTimeout, match="which thread 'writer' still"), leases.writing(1):
        pass
    end.set()
    writer.join(LIMIT_MS / 1e3)
    with leases.reading(0):
        pass


def test_a_waiting_writer_goes_before_new_readers_but_not_before_nested_ones() -> None:
    leases = LeaseLock()
    order: list[str] = []

    def write() -> None:
        with leases.writing(LIMIT_MS):
            order.append("written")

    def read_late() -> None:
        with leases.reading(LIMIT_MS):
            order.append("read late")

    with leases.reading(LIMIT_MS):
        writer = started("writer", write)
        while not leases.writer_waits:
            pass
        late = started("late", read_late)
        with leases.reading(0):
            order.append("read nested")
    writer.join(LIMIT_MS / 1e3)
    late.join(LIMIT_MS / 1e3)
    assert order == ["read nested", "written", "read late"]


def test_a_writer_that_fails_lets_go() -> None:
    leases = LeaseLock()
    with pytest.raises(KeyError), leases.writing(0):
        raise KeyError
    with leases.reading(0):
        pass


Opener = Callable[[FramePlanes], TextureStore]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> Opener:
    prepare(request.param, request)
    return lambda planes: open_kind(PlaneFormat.of(planes), request.param, lease_timeout_ms=20)


def levels_of(store: TextureStore) -> list[Bytes]:
    with store.lease() as view:
        return [view.read(level).copy() for level in range(6)]


def assert_same(levels: list[Bytes], expected: list[Bytes]) -> None:
    for level, (texels, expected_texels) in enumerate(zip(levels, expected, strict=True)):
        np.testing.assert_array_equal(texels, expected_texels, err_msg=f"level {level}")


FORMATS = [("yuv", name) for name in SUBSAMPLINGS] + [("gray", "444"), ("rgb", "444")]


@pytest.mark.parametrize(("layout", "sampling"), FORMATS)
@pytest.mark.parametrize("size", [(64, 96), (121, 161), (1, 1), (33, 40)])
def test_the_first_frame_fills_every_level(opened: Opener, layout: str, sampling: str, size: tuple[int, int]) -> None:
    planes = random_planes(np.random.default_rng(0), *size, layout=layout, sampling=sampling, colour=Colour("bt709"))
    store = opened(planes)
    change = store.update(planes, stamp(7))
    levels = levels_of(store)
    assert np.abs(levels[0].astype(int) - expected_level0(planes)).max() <= 1
    assert_same(levels, expected_levels(levels[0]))
    assert change.dirty.all()


@st.composite
def updates(draw: st.DrawFn) -> tuple[FramePlanes, list[FramePlanes]]:
    """A frame, and some that follow it, each with other tiles replaced."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    size = draw(st.integers(1, 400)), draw(st.integers(1, 700))
    layout, sampling = draw(st.sampled_from(FORMATS))
    first = random_planes(rng, *size, layout=layout, sampling=sampling)
    frames, shape = [first], PlaneFormat.of(first).grid.shape
    for share in draw(st.lists(st.sampled_from([0.02, 0.1, 0.3, 0.6, 1.0]), min_size=1, max_size=3)):
        other = random_planes(rng, *size, layout=layout, sampling=sampling)
        tiles = rng.random(shape) < share
        if draw(st.booleans()):
            tiles[:] = False
            tiles[: 1 + round(share * shape[0]), -1 - round(share * shape[1]) :] = True
        frames.append(with_tiles_of(frames[-1], other, tiles))
    return first, frames[1:]


@given(updates())
def test_incremental_equals_full(case: tuple[FramePlanes, list[FramePlanes]]) -> None:
    """Bit for bit, over random sizes, formats and dirty sets; test_contract.py compares the other stores with this."""
    first, following = case
    store = open_kind(PlaneFormat.of(first), "reference", thresholds=Thresholds(mean=0, largest=0))
    store.update(first, stamp(0))
    for index, planes in enumerate(following, 1):
        store.update(planes, stamp(index))
        fresh = open_kind(PlaneFormat.of(planes), "reference")
        fresh.update(planes, stamp(0))
        assert_same(levels_of(store), levels_of(fresh))


def test_only_dirty_tiles_change_bytes_and_versions(opened: Opener) -> None:
    rng = np.random.default_rng(1)
    first, second = random_planes(rng, 200, 300), random_planes(rng, 200, 300)
    store = opened(first)
    store.update(first, stamp(3))
    before = levels_of(store)
    tiles = np.zeros(store.grid.shape, bool)
    tiles[1:3, 2:5] = tiles[6, 9] = True
    change = store.write(second, Difference(tiles), stamp(4))
    np.testing.assert_array_equal(change.dirty, tiles)
    with store.lease() as view:
        np.testing.assert_array_equal(view.versions.frame, np.where(tiles, 4, 3))
        assert view.stamp.frame_index == 4
        for level in range(6):
            side = 32 >> level
            same = (view.read(level) == before[level]).all(axis=2)
            same_tiles = same.reshape(store.grid.rows, side, store.grid.cols, side).all(axis=(1, 3))
            np.testing.assert_array_equal(same_tiles, ~tiles)


def test_frames_without_change_move_the_stamp_alone(opened: Opener) -> None:
    planes = random_planes(np.random.default_rng(2), 64, 64)
    store = opened(planes)
    store.update(planes, stamp(0))
    change = store.update(copy_planes(planes), stamp(1))
    assert change.dirty_share == 0
    with store.lease() as view:
        assert view.stamp.frame_index == 1
        assert (view.versions.frame == 0).all()


def test_a_new_epoch_in_the_stamp_brings_everything_up_to_date(opened: Opener) -> None:
    first = flat_planes(64, 96)
    store = opened(first)
    store.update(first, stamp(0))
    almost = flat_planes(64, 96, (101, 128, 128))
    assert store.update(almost, stamp(1)).dirty_share == 0
    change = store.update(almost, stamp(2, epoch=9))
    assert change.dirty.all()
    with store.lease() as view:
        assert view.versions.epoch == 9
        assert (view.versions.frame == 2).all()
        np.testing.assert_array_equal(view.read(0), expected_level0(almost))


def test_versions_of_an_older_view_stay_as_they_were(opened: Opener) -> None:
    rng = np.random.default_rng(4)
    store = opened(first := random_planes(rng, 64, 64))
    store.update(first, stamp(0))
    with store.lease() as view:
        versions = view.versions
    store.update(random_planes(rng, 64, 64), stamp(1))
    assert (versions.frame == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        versions.frame[0, 0] = 3


def test_comparing_changes_nothing(opened: Opener) -> None:
    rng = np.random.default_rng(5)
    store = opened(first := random_planes(rng, 64, 64))
    store.update(first, stamp(0))
    before = levels_of(store)
    other = random_planes(rng, 64, 64)
    assert store.compare(other).dirty.all()
    assert store.compare(first).dirty_share == 0
    assert_same(levels_of(store), before)


def test_the_writer_gives_up_where_a_reader_does_not_let_go(opened: Opener) -> None:
    rng = np.random.default_rng(6)
    store = opened(first := random_planes(rng, 64, 64))
    store.update(first, stamp(0))
    second = random_planes(rng, 64, 64)
    with store.lease() as view:
        assert store.compare(second).dirty.all()
        before = [view.read(level).copy() for level in range(6)]
        with pytest.raises(LeaseTimeout, match=r"'MainThread' waited 20 ms to write .* 'MainThread' still read"):
            store.update(second, stamp(1))
        assert_same([view.read(level) for level in range(6)], before)
    assert store.compare(first).dirty_share == 0
    assert store.update(second, stamp(1)).dirty.all()


def test_two_stores_at_once_do_not_mix(opened: Opener) -> None:
    rng = np.random.default_rng(9)
    frames = [random_planes(rng, 64, 96), random_planes(rng, 70, 100)]
    stores = [opened(planes) for planes in frames]
    for store, planes in zip(stores, frames, strict=True):
        store.update(planes, stamp(0))
    for store, planes in zip(stores, frames, strict=True):
        reference = open_kind(store.format, "reference")
        reference.update(planes, stamp(0))
        assert_same(levels_of(store), levels_of(reference))
        store.close()


def test_planes_of_another_format_are_refused(opened: Opener) -> None:
    rng = np.random.default_rng(7)
    store = opened(random_planes(rng, 64, 64))
    for other in (
        random_planes(rng, 64, 66),
        random_planes(rng, 64, 64, sampling="444"),
        random_planes(rng, 64, 64, layout="rgb"),
        random_planes(rng, 64, 64, colour=Colour("bt709")),
    ):
        with pytest.raises(ShapeError, match="the store was opened for"):
            store.compare(other)
        with pytest.raises(ShapeError, match="the store was opened for"):
            store.write(other, Difference.everywhere(store.grid), stamp(0))


def test_a_cuda_device_that_serves_no_store_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("arr_coc.backends.registry.has_cuda", lambda: True)
    monkeypatch.setattr("torch.version.cuda", None)
    _say_once.cache_clear()
    fmt = PlaneFormat.of(random_planes(np.random.default_rng(0), 32, 32))
    assert [open_store(fmt).backend for _ in range(2)] == ["cpu", "cpu"]
    assert caplog.text.count("stored in host memory: texture.backend = cuda needs torch with CUDA") == 1


def test_a_store_without_a_frame_or_closed_gives_no_lease(opened: Opener) -> None:
    planes = random_planes(np.random.default_rng(8), 64, 64)
    store = opened(planes)
    with pytest.raises(StoreError, match="no frame yet"), store.lease():
        pass
    store.update(planes, stamp(0))
    with store.lease() as view:
        store.close()
        assert view.read(0).shape == (64, 64, 3)
    store.close()
    with pytest.raises(StoreError, match="closed"), store.lease():
        pass
    with pytest.raises(StoreError, match="closed"):
        store.write(planes, Difference.everywhere(store.grid), stamp(1))


def test_an_unknown_backend_is_named() -> None:
    fmt = PlaneFormat.of(flat_planes(32, 32))
    with pytest.raises(StoreError, match="'vulkan'"):
        open_store(fmt, "vulkan")  # type: ignore[arg-type]
    assert open_store(fmt).backend == ("cuda" if "cuda" in working() else "cpu")
