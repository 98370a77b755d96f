"""Features of the OpenGL store alone: ways to upload, reading back, threads, and freeing the device's memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from arr_coc.backends.gl import store as texels
from arr_coc.backends.gl.kernels import read_back
from arr_coc.backends.gl.store import GlStore
from arr_coc.backends.gl.texture import TileTexture
from arr_coc.backends.gl.upload import UploadPlan, Way, plan_upload
from arr_coc.errors import BackendMissing, DeviceLost, StoreError
from arr_coc.texture.packing import Rectangle, cover
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.texture.store.raster import allocate_levels
from arr_coc.types import FramePlanes
from tests.support.garbage import collect_earlier
from tests.support.stores import own_device, shared_device
from tests.support.video import Bytes, expected_levels, random_planes, stamp

JOIN_S = 120.0
REGION = np.array([[1, 0, 0]])


def opened(planes: FramePlanes) -> GlStore:
    shared_device()
    return GlStore(PlaneFormat.of(planes), Thresholds(), 1000)


def noise(seed: int, height: int = 160, width: int = 224) -> FramePlanes:
    return random_planes(np.random.default_rng(seed), height, width)


def all_levels(store: GlStore) -> list[Bytes]:
    with store.lease() as view:
        return [view.read(level).copy() for level in range(6)]


def assert_levels(levels: list[Bytes]) -> None:
    for level, expected in enumerate(expected_levels(levels[0])):
        np.testing.assert_array_equal(levels[level], expected, err_msg=f"level {level}")


@pytest.mark.parametrize("way", ["parts", "box", "whole"])
def test_every_way_to_upload_gives_the_same_bytes(way: Way) -> None:
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    store.way = way
    dirty = np.zeros(store.grid.shape, bool)
    dirty[0, 0] = dirty[4, 6] = dirty[1:4, 2:5] = True
    store.write(noise(1), Difference(dirty), stamp(1))
    assert store.last_way == way
    assert_levels(all_levels(store))
    store.close()


@pytest.mark.parametrize("copy_level0", [True, False])
@pytest.mark.parametrize("way", ["parts", "box", "whole"])
def test_level_0_arrives_by_copies_and_by_the_kernel(way: Way, copy_level0: bool) -> None:
    device = shared_device()
    texture, level0 = TileTexture(device, 5, 7), np.random.default_rng(0).integers(0, 256, (160, 224, 3), np.uint8)
    dirty = np.zeros((5, 7), bool)
    dirty[0, 0] = dirty[4, 6] = dirty[1:4, 2:5] = True
    texture.paint(level0, plan_upload(cover(dirty), (5, 7), way), copy_level0)
    levels = dict(enumerate(allocate_levels(5, 7)))
    read_back(texture, [(0, 0, 5, 7)], levels)
    arrived = np.ones((5, 7), bool) if way == "whole" else dirty
    for level, expected in enumerate(expected_levels(level0)):
        side = 32 >> level
        mask = arrived.repeat(side, axis=0).repeat(side, axis=1)[..., None]
        texels = levels[level]
        if way == "box" and level == 0 and copy_level0:
            mask = np.ones_like(mask)
        np.testing.assert_array_equal(texels * mask, expected * mask)
    texture.release()


def test_only_what_changed_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[list[Rectangle]] = []

    def noted(texture: TileTexture, rectangles: list[Rectangle], levels: dict[int, Bytes]) -> None:
        reads.append(list(rectangles))
        read_back(texture, rectangles, levels)

    monkeypatch.setattr(texels, "read_back", noted)
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    with store.lease() as view:
        view.read(0)
        assert reads == []
        for level in range(6):
            view.read(level)
    assert reads == [[(0, 0, 5, 7)]]
    for frame, tile in ((1, (1, 2)), (2, (2, 2))):
        dirty = np.zeros(store.grid.shape, bool)
        dirty[tile] = True
        store.write(noise(frame), Difference(dirty), stamp(frame))
    assert_levels(all_levels(store))
    assert_levels(all_levels(store))
    assert reads[1:] == [[(1, 2, 3, 3)]]
    store.close()


def test_threads_that_read_at_once_and_come_and_go_are_right() -> None:
    """Each reader has its own context; the writer's fence marks the complete frame for it."""
    store, wrong = opened(noise(0)), []
    regions = np.array([(level, 0, 0) for level in range(6)])

    def read(frame: int) -> None:
        with store.lease() as view:
            levels = expected_levels(view.read(0))
            if view.stamp.frame_index != frame or any((view.read(n) != levels[n]).any() for n in range(6)):
                wrong.append(("read", frame))
            for pixels, level in zip(view.gather(regions), levels, strict=True):
                part = level[:32, :32].transpose(2, 0, 1)
                if (pixels[:, : part.shape[1], : part.shape[2]] != part).any():
                    wrong.append(("gather", frame))

    for frame in range(12):
        store.update(noise(frame), stamp(frame))
        threads = [threading.Thread(target=read, args=(frame,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
    assert wrong == []
    store.close()


def test_writers_of_different_threads_follow_each_other() -> None:
    store = opened(noise(0))
    for frame in range(4):
        thread = threading.Thread(target=store.update, args=(noise(frame), stamp(frame)))
        thread.start()
        thread.join(JOIN_S)
        assert_levels(all_levels(store))
    store.close()


def exists(store: GlStore) -> bool:
    """True if the device still has the store's memory; the query frees nothing."""
    gl, texture = store.device.library.gl, store._texture
    with patch.object(store.device, "_sweep"), store.device.current():
        return bool(gl.glIsTexture(texture.name)) or bool(gl.glIsBuffer(texture.ring.name))


def test_a_closed_store_keeps_its_texture_until_the_last_reader_lets_go() -> None:
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    with store.lease() as outer:
        with store.lease():
            store.close()
            store.close()
        assert exists(store)
        assert_levels([outer.read(level) for level in range(6)])
        assert outer.gather(REGION).any()
    assert not exists(store)
    with pytest.raises(StoreError, match="closed"), store.lease():
        pass
    with pytest.raises(StoreError, match="closed"), store.texels():
        pass


def test_no_pixel_buffer_stays_bound_for_who_uses_the_context_next() -> None:
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    all_levels(store)
    gl = store.device.library.gl
    with store.device.current():
        assert gl.glGetIntegerv(gl.GL_PIXEL_UNPACK_BUFFER_BINDING) == 0
        assert gl.glGetIntegerv(gl.GL_PIXEL_PACK_BUFFER_BINDING) == 0
    store.close()


def test_a_store_closed_in_the_middle_of_a_write_keeps_its_memory_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    paint, existence = store._texture.paint, []

    def close_and_paint(level0: Bytes, plan: UploadPlan) -> None:
        store.close()
        paint(level0, plan)
        existence.append(exists(store))

    monkeypatch.setattr(store._texture, "paint", close_and_paint)
    store.update(noise(1), stamp(1))
    assert existence == [True]
    assert not exists(store)


def test_a_store_that_was_not_closed_is_freed() -> None:
    collect_earlier()
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    device, name = store.device, store._texture.name
    del store
    gc.collect()
    device.clear()
    with device.current():
        assert not device.library.gl.glIsTexture(name)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def grown(work: Callable[[int], None], warm: int, rounds: int) -> int:
    """Bytes by which the process has grown over `rounds`; its open files must be as many as before."""
    for index in range(warm):
        work(index)
    files, before = open_files(), resident_bytes()
    for index in range(rounds):
        work(index)
    assert open_files() == files
    return resident_bytes() - before


def test_a_thousand_stores_leave_nothing() -> None:
    frames = [noise(seed, 96, 96) for seed in range(2)]
    names = []

    def use(index: int) -> None:
        store = opened(frames[index % 2])
        store.update(frames[index % 2], stamp(0))
        with store.lease() as view:
            view.read(5)
            view.gather(REGION)
        names.append(store._texture.name)
        if index % 2:
            store.close()

    assert grown(use, 50, 1000) < 20 << 20
    device = shared_device()
    device.clear()
    with device.current():
        assert not any(device.library.gl.glIsTexture(name) for name in names)


@pytest.mark.slow
def test_a_hundred_thousand_updates_leave_nothing() -> None:
    frames = [noise(seed) for seed in range(4)]
    store = opened(frames[0])
    store.update(frames[0], stamp(0))
    rng = np.random.default_rng(0)

    def use(index: int) -> None:
        dirty = rng.random(store.grid.shape) < rng.random()
        store.write(frames[index % 4], Difference(dirty), stamp(index))
        if index % 10 == 0:
            with store.lease() as view:
                view.read(1)
                view.gather(REGION)

    assert grown(use, 1000, 100_000) < 8 << 20
    assert_levels(all_levels(store))
    store.close()


def test_a_picture_larger_than_the_device_takes_is_refused() -> None:
    shared_device()
    planes = FramePlanes("gray", (np.zeros((32, 1 << 16), np.uint8),))
    with pytest.raises(BackendMissing, match=r"takes textures of up to \d+x\d+ texels, got 65536x32; choose"):
        opened(planes)


def test_a_ring_larger_than_the_device_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    gl = device.library.gl
    get_integer = gl.glGetIntegerv

    def small(name: int) -> object:
        return 16 if name == gl.GL_MAX_TEXTURE_BUFFER_SIZE else get_integer(name)

    monkeypatch.setattr(gl, "glGetIntegerv", small)
    with pytest.raises(BackendMissing, match="reads no buffer of"):
        TileTexture(device, 1, 1)


def failing_store(monkeypatch: pytest.MonkeyPatch, error: int) -> GlStore:
    """A store on a separate device that reports an error with the second frame."""
    device = own_device()
    monkeypatch.setattr("arr_coc.backends.gl.store.open_device", lambda _: device)
    store = GlStore(PlaneFormat.of(noise(0)), Thresholds(), 1000)
    store.update(noise(0), stamp(0))
    monkeypatch.setattr(device.library.calls, "glGetError", lambda: error)
    with pytest.raises(DeviceLost, match="while updating the texture"):
        store.update(noise(1), stamp(1))
    monkeypatch.undo()
    return store


def test_memory_that_runs_out_spoils_the_store_and_not_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    store = failing_store(monkeypatch, 0x0505)
    assert store.device.loss_reason is None
    with pytest.raises(DeviceLost, match="out of memory while updating"), store.lease():
        pass
    store.close()
    assert not exists(store)


def test_a_write_that_fails_halfway_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(noise(0))
    store.update(noise(0), stamp(0))
    monkeypatch.setattr(store.device.library.calls, "glGetError", lambda: 0x0502)
    with pytest.raises(StoreError, match="refused updating the texture: invalid operation"):
        store.update(noise(1), stamp(1))
    monkeypatch.undo()
    with pytest.raises(DeviceLost, match="refused updating"), store.lease():
        pass
    store.close()


def test_a_context_that_is_lost_ends_the_store_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    store = failing_store(monkeypatch, 0x0507)
    assert store.device.loss_reason is not None
    with pytest.raises(DeviceLost, match="lost its context"), store.lease():
        pass
    store.close()
    fresh = opened(noise(0))
    fresh.update(noise(0), stamp(0))
    assert_levels(all_levels(fresh))
    fresh.close()


def test_a_reader_learns_that_the_device_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    monkeypatch.setattr("arr_coc.backends.gl.store.open_device", lambda _: device)
    store = GlStore(PlaneFormat.of(noise(0)), Thresholds(), 1000)
    store.update(noise(0), stamp(0))
    with store.lease() as view:
        monkeypatch.setattr(device.library.calls, "glGetGraphicsResetStatus", lambda: 0x8254)
        with pytest.raises(DeviceLost, match=r"was reset \(0x8254\) while reading the texture"):
            view.read(1)
        with pytest.raises(DeviceLost, match="was reset"):
            view.gather(REGION)
        assert view.read(0).any()
    store.close()
