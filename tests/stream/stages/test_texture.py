"""Texture: a frame is written for a credit, and only then; newest wins while it waits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.errors import StoreError
from arr_coc.types import FramePlanes, TileMotion
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from stream.errors import StageDied, TransportError
from stream.media import MediaSegment, SkippedItem
from stream.protocol.buffers import SlotTable
from stream.protocol.messages import Credit, End, FrameCaptured, TextureUpdated
from stream.stages.base import CAPTURE_TEXTURE, TEXTURE_ALLOCATE
from stream.stages.texture import LOSSLESS_CREDITS, TextureStage
from tests.support.runs import StageRunner, expect, stage_runner
from tests.support.stores import GONE, use_failing_stores


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as stages:
        yield stages


class Fixture:
    def __init__(self, runner: StageRunner, *, newest: bool = False, cuts: bool = True) -> None:
        self.planes: SlotTable[FramePlanes] = SlotTable(8)
        self.capture = runner.link(CAPTURE_TEXTURE, bind=True)
        self.allocate = runner.link(TEXTURE_ALLOCATE)
        self.updater = TextureUpdater(TextureOptions(cuts=cuts))
        self.motions: SlotTable[TileMotion] = SlotTable(2)
        self.stage = TextureStage(
            self.updater, self.planes, self.motions, runner.transport, runner.control, drop_frames=newest
        )
        runner.start(self.stage)

    def begin(self) -> Fixture:
        """Grants the first credit, and notes how many frames the stage then asks for."""
        self.allocate.send(Credit())
        self.wanted_frames = expect(self.capture, Credit).count
        return self

    def update(self) -> TextureUpdated:
        return expect(self.allocate, TextureUpdated)

    def send(self, index: int, image: npt.NDArray[np.uint8] | None = None, **fields: object) -> None:
        image = np.full((64, 64, 3), 40 + index % 2 * 100, np.uint8) if image is None else image
        slot = self.planes.put(FramePlanes("rgb", (image,)))
        assert slot is not None
        self.capture.send(
            FrameCaptured(slot=slot, frame_index=index, media_ns=index, capture_ns=7 + index, **fields)  # type: ignore[arg-type]
        )


def test_it_asks_for_nothing_before_the_allocate_stage_does(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    assert fixture.capture.receive(30) is None
    assert fixture.begin().wanted_frames == LOSSLESS_CREDITS


def test_a_frame_is_written_and_reported_for_its_credit(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    fixture.send(0)
    first = fixture.update()
    assert (first.stamp.frame_index, first.stamp.media_ns, first.stamp.capture_ns) == (0, 0, 7)
    assert first.dirty_share == 1.0
    assert expect(fixture.capture, Credit).count == 1
    fixture.send(1)
    assert fixture.allocate.receive(30) is None
    with fixture.updater.lease() as view:
        assert view.stamp.frame_index == 0
    fixture.allocate.send(Credit())
    second = fixture.update()
    assert second.stamp.frame_index == 1
    assert second.stamp.epoch >= first.stamp.epoch
    with fixture.updater.lease() as view:
        assert view.stamp == second.stamp
        assert int(view.read(0)[0, 0, 0]) == 140


def test_the_motion_of_a_frame_lies_in_its_slot(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    picture = np.kron(np.random.default_rng(0).integers(0, 256, (32, 32, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    fixture.send(0, picture)
    assert expect(fixture.allocate, TextureUpdated).motion_slot is None
    fixture.allocate.send(Credit())
    fixture.send(1, np.roll(picture, 8, axis=1))
    slot = expect(fixture.allocate, TextureUpdated).motion_slot
    assert slot is not None
    assert np.median(fixture.motions.take(slot).dx_px) == pytest.approx(8, abs=0.5)


def test_frames_that_must_not_be_lost_wait_in_line_and_a_discontinuity_begins_an_epoch(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    for index, discontinuity in enumerate((None, None, "format")):
        fixture.send(index, discontinuity=discontinuity)
    fixture.capture.send(End(reason="finished"))
    updates = [fixture.update()]
    for _ in range(2):
        fixture.allocate.send(Credit())
        updates.append(fixture.update())
    assert [update.stamp.frame_index for update in updates] == [0, 1, 2]
    assert [update.discontinuity for update in updates] == [None, None, "format"]
    assert updates[2].stamp.epoch != updates[1].stamp.epoch
    assert updates[2].dirty_share == 1.0
    assert expect(fixture.allocate, End) == End(reason="finished")
    assert runner.join() is None
    assert fixture.stage.drops == {"texture.replaced": 0, "texture.fallbacks": 0}


def test_a_waiting_frame_is_replaced_by_a_newer_one_and_counted(runner: StageRunner) -> None:
    losses = [SkippedItem("packet 2", "bad"), SkippedItem("packet 3", "bad")]
    fixture = Fixture(runner, newest=True)
    assert fixture.begin().wanted_frames == 1
    fixture.send(0)
    fixture.update()
    segments = [MediaSegment(file="a"), MediaSegment(file="b")]
    fixture.send(1, discontinuity="resolution", skipped=(losses[0],), segments=(segments[0],))
    fixture.send(2, skipped=(losses[1],), segments=(segments[1],))
    for _ in range(3):
        expect(fixture.capture, Credit)
    fixture.allocate.send(Credit())
    newest = fixture.update()
    assert newest.stamp.frame_index == 2
    assert newest.skipped == tuple(losses)
    assert newest.segments == tuple(segments)
    assert newest.discontinuity == "resolution", "that of the frame which it replaced"
    assert newest.dirty_share == 1.0
    fixture.capture.send(End(reason="interrupted"))
    assert expect(fixture.allocate, End).reason == "interrupted"
    runner.join()
    assert fixture.stage.drops == {"texture.replaced": 1, "texture.fallbacks": 0}


@pytest.mark.parametrize("cuts", [True, False])
def test_a_cut_is_reported_if_it_begins_an_epoch(runner: StageRunner, cuts: bool) -> None:
    fixture = Fixture(runner, cuts=cuts).begin()
    for index in range(3):
        random = np.random.default_rng(index // 2)
        fixture.send(index, np.kron(random.integers(0, 256, (16, 16, 3)), np.ones((8, 8, 1))).astype(np.uint8))
    first = fixture.update()
    fixture.allocate.send(Credit(count=2))
    same, second = fixture.update(), fixture.update()
    assert (same.cut_score, same.stamp.epoch) == (None, first.stamp.epoch)
    assert (second.cut_score is not None, second.stamp.epoch > first.stamp.epoch) == (cuts, cuts)


def test_a_slot_that_holds_nothing_is_named(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    fixture.capture.send(FrameCaptured(slot=99, frame_index=0, media_ns=0, capture_ns=0))
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert str(failure) == "the texture stage died: slot 99 holds nothing: it was never filled, or taken before"
    assert isinstance(failure.__cause__, TransportError)


def test_a_texture_that_fails_is_named(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.updater.close()
    fixture.begin()
    fixture.send(0)
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert isinstance(failure.__cause__, StoreError)


def test_cancelling_ends_it_while_it_waits(runner: StageRunner) -> None:
    Fixture(runner)
    runner.control.cancel()
    assert runner.join() is None


def test_hardware_that_gives_up_is_reported_with_the_frame_and_counted(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_failing_stores(monkeypatch, fails_writing=1)
    fixture = Fixture(runner).begin()
    updates = []
    for index in range(3):
        fixture.send(index)
        updates.append(fixture.update())
        fixture.allocate.send(Credit())
    assert [changed.fallback for changed in updates] == [None, GONE, None]
    assert updates[1].stamp.epoch != updates[0].stamp.epoch
    assert fixture.stage.drops == {"texture.replaced": 0, "texture.fallbacks": 1}
