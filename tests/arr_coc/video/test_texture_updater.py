"""The texture of a stream: epochs, stores, shifts and leases."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from arr_coc.errors import DeviceLost, LeaseTimeout, StoreError, StoreReplaced
from arr_coc.texture.store.planes import Thresholds
from arr_coc.types import Colour, FramePlanes
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from tests.support.network import until
from tests.support.stores import GONE, FailingStore, use_failing_stores
from tests.support.video import copy_planes, random_planes, stamp

BY_NAME = f'{GONE}; with texture.backend = "auto" the CPU store would take over'


def frames(seed: int, count: int, height: int = 96, width: int = 160) -> list[FramePlanes]:
    rng = np.random.default_rng(seed)
    return [random_planes(rng, height, width) for _ in range(count)]


def test_the_first_frame_begins_an_epoch_and_the_next_ones_go_on() -> None:
    updater = TextureUpdater()
    planes = frames(0, 1)[0]
    first = updater.process(planes, stamp(0))
    second = updater.process(copy_planes(planes), stamp(1))
    assert (first.epoch_reason, second.epoch_reason) == ("start", None)
    assert first.epoch == second.epoch != 0
    assert first.change.dirty.all()
    assert second.change.dirty_share == 0
    with updater.lease() as view:
        assert view.versions.epoch == view.stamp.epoch == first.epoch


def test_epochs_of_two_updaters_differ() -> None:
    planes = frames(0, 1)[0]
    assert TextureUpdater().process(planes, stamp(0)).epoch != TextureUpdater().process(planes, stamp(0)).epoch


def test_a_discontinuity_begins_an_epoch_and_moves_every_version() -> None:
    updater = TextureUpdater()
    planes = frames(0, 1)[0]
    first = updater.process(planes, stamp(0))
    update = updater.process(copy_planes(planes), stamp(1), discontinuity="seek")
    assert update.epoch_reason == "seek"
    assert update.epoch != first.epoch
    assert update.change.dirty.all()
    assert not update.cut.is_cut


def test_a_cut_begins_an_epoch_unless_it_should_not() -> None:
    for cuts, reasons in ((True, ["start", None, "cut"]), (False, ["start", None, None])):
        updater = TextureUpdater(TextureOptions(cuts=cuts))
        first, second = frames(1, 2)
        updates = [updater.process(planes, stamp(i)) for i, planes in enumerate((first, first, second))]
        assert [update.epoch_reason for update in updates] == reasons
        assert updates[2].cut.is_cut
        assert (updates[2].epoch != updates[1].epoch) is cuts
        with updater.lease() as view:
            assert (view.versions.frame == 2).all()


@pytest.mark.parametrize(
    "other",
    [
        random_planes(np.random.default_rng(2), 64, 96),
        random_planes(np.random.default_rng(2), 96, 160, sampling="444"),
        random_planes(np.random.default_rng(2), 96, 160, layout="rgb"),
        random_planes(np.random.default_rng(2), 96, 160, colour=Colour("bt709")),
    ],
)
def test_another_format_opens_another_store(other: FramePlanes) -> None:
    updater = TextureUpdater()
    planes = frames(2, 1)[0]
    first = updater.process(planes, stamp(0))
    with updater.lease() as old:
        update = updater.process(other, stamp(1))
        assert update.epoch_reason == "size"
        assert update.epoch != first.epoch
        assert old.read(0).shape == (96, 160, 3)
        assert old.stamp.frame_index == 0
    with updater.lease() as new:
        assert new.read(0).shape[:2] == (other.height_px, other.width_px)
    assert updater.process(copy_planes(other), stamp(2)).epoch_reason is None


def test_a_pan_is_reported_with_the_frame() -> None:
    rng = np.random.default_rng(3)
    wide = rng.integers(0, 256, (24, 60), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    updater = TextureUpdater()
    updates = [
        updater.process(FramePlanes("gray", (np.ascontiguousarray(wide[:, x : x + 320]),)), stamp(i))
        for i, x in enumerate(range(0, 60, 12))
    ]
    assert updates[0].motion is None
    for update in updates[1:]:
        assert update.epoch_reason is None
        assert update.motion is not None
        assert update.motion.dx_px[:, :-1] == pytest.approx(-12, abs=0.5)
        assert update.motion.dy_px[:, :-1] == pytest.approx(0, abs=0.5)


def test_preparing_changes_nothing_and_does_not_wait_for_readers() -> None:
    updater = TextureUpdater()
    first, second = frames(4, 2)
    updater.process(first, stamp(0))
    with updater.lease() as view:
        before = view.read(0).copy()
        pending = updater.prepare(second)
        assert pending.difference.dirty.all()
        assert pending.cut.is_cut
        np.testing.assert_array_equal(view.read(0), before)
    assert updater.process(copy_planes(first), stamp(1)).change.dirty_share == 0


def test_a_commit_that_readers_held_up_can_be_repeated() -> None:
    updater = TextureUpdater(TextureOptions(lease_timeout_ms=1))
    old_planes, new_planes = frames(5, 2)
    first_update = updater.process(old_planes, stamp(0))
    pending = updater.prepare(new_planes)
    with updater.lease() as view:
        with pytest.raises(LeaseTimeout):
            updater.commit(pending, stamp(1))
        assert view.versions.epoch == first_update.epoch
    update = updater.commit(pending, stamp(1))
    assert update.cut.is_cut
    assert update.epoch_reason == "cut"


def test_thresholds_are_those_of_the_options() -> None:
    updater = TextureUpdater(TextureOptions(thresholds=Thresholds(mean=255, largest=255)))
    first, second = frames(6, 2)
    updater.process(first, stamp(0))
    assert updater.process(second, stamp(1)).change.dirty_share == 0


def test_before_the_first_frame_and_after_close_there_is_nothing() -> None:
    updater = TextureUpdater()
    with pytest.raises(StoreError, match="no frame yet"), updater.lease():
        pass
    planes = frames(7, 1)[0]
    updater.process(planes, stamp(0))
    pending = updater.prepare(planes)
    updater.close()
    updater.close()
    with pytest.raises(StoreError, match="closed"), updater.lease():
        pass
    with pytest.raises(StoreError, match="closed"):
        updater.prepare(planes)
    with pytest.raises(StoreError, match="closed"):
        updater.commit(pending, stamp(1))


def test_a_reader_just_before_another_size_still_gets_a_view() -> None:
    updater = TextureUpdater()
    updater.process(frames(7, 1)[0], stamp(0))
    before = updater._store
    assert before is not None
    others = frames(7, 2, 64, 64)
    updater.process(others[0], stamp(1))
    with before.lease() as view:
        assert view.stamp.frame_index == 0
    updater.process(others[1], stamp(2))
    with pytest.raises(StoreError, match="closed"), before.lease():
        pass


def test_a_picture_that_was_replaced_bit_by_bit_is_the_one_before() -> None:
    """No step is large enough to be looked at; the next frame that is must not be compared with an older look."""
    rng = np.random.default_rng(8)
    first, second, third = (
        FramePlanes("gray", (rng.integers(0, 200, (24, 40), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1),))
        for _ in range(3)
    )
    updater = TextureUpdater()
    updater.process(first, stamp(0))
    assert updater.process(second, stamp(1)).epoch_reason == "cut"
    mixed_planes = copy_planes(second)
    for index in range(10):
        mixed_planes.planes[0][:, 32 * index : 32 * index + 32] = third.planes[0][:, 32 * index : 32 * index + 32]
        assert updater.process(copy_planes(mixed_planes), stamp(2 + index)).change.dirty_share == pytest.approx(0.1)
    brighter = FramePlanes("gray", (third.planes[0] + np.uint8(40),))
    update = updater.process(brighter, stamp(20))
    assert update.change.dirty_share == 1
    assert update.epoch_reason is None
    assert update.cut.unlikeness < 0.1


class TestHardwareThatGivesUp:
    """With "auto" the CPU store takes over, with the same picture; a backend that was asked for by name ends."""

    def test_while_it_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_failing_stores(monkeypatch, fails_writing=2)
        updater, reference = TextureUpdater(), TextureUpdater(TextureOptions(backend="cpu"))
        sequence = frames(9, 4)
        updates = []
        for index, planes in enumerate(sequence):
            updates.append(updater.process(planes, stamp(index)))
            reference.process(planes, stamp(index))
            assert_same_texture(updater, reference)
        assert [update.epoch_reason for update in updates][2] == "store"
        assert updates[2].epoch != updates[1].epoch
        assert [update.fallback for update in updates] == [None, None, GONE, None]
        assert updates[2].change.dirty.all()
        assert updates[2].cut.departure > 20
        assert updater.fallbacks == 1
        failing_store, *others = opened
        assert {store.backend for store in others} == {"cpu"}
        assert isinstance(failing_store, FailingStore)
        assert failing_store.closed == 1

    def test_a_store_is_made_for_the_first_frame_and_for_another_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_failing_stores(monkeypatch, fails_writing=0)
        updater = TextureUpdater()
        assert updater.process(frames(10, 1)[0], stamp(0)).epoch_reason == "store"
        assert updater.process(frames(10, 1, 64, 64)[0], stamp(1)).epoch_reason == "size"
        assert [store.backend for store in opened] == ["cuda", "cpu", "cpu"]
        first = opened[0]
        assert isinstance(first, FailingStore)
        assert first.closed == 1

    def test_while_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_failing_stores(monkeypatch, fails_reading=0)
        updater, reference = TextureUpdater(), TextureUpdater(TextureOptions(backend="cpu"))
        first, second = frames(11, 2)
        before = updater.process(first, stamp(0))
        reference.process(first, stamp(0))
        pending = updater.prepare(second)
        with pytest.raises(StoreReplaced, match=GONE), updater.lease() as view:
            view.read(3)
        with updater.lease() as view:
            assert view.stamp.frame_index == 0
            assert view.versions.epoch == view.stamp.epoch != before.epoch
        assert_same_texture(updater, reference)
        update = updater.commit(pending, stamp(1))
        reference.process(second, stamp(1))
        assert_same_texture(updater, reference)
        assert (updater.fallbacks, update.fallback) == (1, None)
        failing_store = opened[0]
        assert isinstance(failing_store, FailingStore)
        assert failing_store.closed == 1

    def test_a_texture_of_two_frames_cannot_be_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A write that fails halfway leaves some tiles of one frame and some of another."""
        opened = use_failing_stores(monkeypatch, fails_writing=1)
        updater = TextureUpdater(TextureOptions(backend="gl"))
        first, second = frames(12, 2)
        updater.process(first, stamp(0))
        with pytest.raises(DeviceLost):
            updater.process(second, stamp(1))
        with pytest.raises(DeviceLost, match=GONE), opened[0].lease():
            pass

    def test_one_that_was_asked_for_by_name_fails_its_writer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_failing_stores(monkeypatch, fails_writing=0)
        updater = TextureUpdater(TextureOptions(backend="gl"))
        with pytest.raises(DeviceLost, match=BY_NAME):
            updater.process(frames(13, 1)[0], stamp(0))
        assert ([store.backend for store in opened], updater.fallbacks) == (["gl"], 0)

    def test_one_that_was_asked_for_by_name_fails_its_readers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_failing_stores(monkeypatch, fails_reading=0)
        updater = TextureUpdater(TextureOptions(backend="gl"))
        updater.process(frames(13, 1)[0], stamp(0))
        for _ in range(2):
            with pytest.raises(DeviceLost, match=BY_NAME), updater.lease() as view:
                view.read(0)
        assert ([store.backend for store in opened], updater.fallbacks) == (["gl"], 0)

    def test_readers_and_the_writer_notice_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader fails while the writer waits for it: one CPU store takes over, and both go on in it."""
        use_failing_stores(monkeypatch, fails_reading=0, fails_writing=1)
        updater, reference = TextureUpdater(), TextureUpdater(TextureOptions(backend="cpu"))
        first, second = frames(14, 2)
        updater.process(first, stamp(0))
        pending = updater.prepare(second)
        writer = threading.Thread(target=updater.commit, args=(pending, stamp(1)))

        def read_while_the_writer_waits() -> None:
            with updater.lease() as view:
                writer.start()
                until(updater._write_lock.locked)
                view.gather(np.zeros((1, 3), np.int64))

        with pytest.raises(StoreReplaced):
            read_while_the_writer_waits()
        writer.join(10)
        reference.process(first, stamp(0))
        reference.process(second, stamp(1))
        assert_same_texture(updater, reference)
        assert updater.fallbacks == 1


def assert_same_texture(updater: TextureUpdater, reference: TextureUpdater) -> None:
    with updater.lease() as view, reference.lease() as expected:
        assert view.stamp.frame_index == expected.stamp.frame_index
        for level in range(6):
            np.testing.assert_array_equal(view.read(level), expected.read(level))
