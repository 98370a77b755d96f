"""Capture: pace, credits, drops, and the end of a source."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from arr_coc.types import FramePlanes
from stream.clock import Clock
from stream.errors import SourceError
from stream.media import MediaSegment, SkippedItem, SourceFrame, SourceOutage, VideoSegments
from stream.protocol.buffers import SlotTable
from stream.protocol.messages import Credit, End, FrameCaptured, SourceLost
from stream.sources.threaded import FrameQueue
from stream.stages import capture as capture_module
from stream.stages.base import CAPTURE_TEXTURE
from stream.stages.capture import CaptureStage
from stream.transport import Link
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_MS, until
from tests.support.runs import StageRunner, expect, stage_runner

MS = 1_000_000


class ListedSource:
    """Yields the frames of a list; `read` is set for each one that has been asked for."""

    def __init__(self, frames: list[SourceFrame], trailing: tuple[SkippedItem, ...] = ()) -> None:
        self._frames = frames
        self._trailing = trailing
        self.reads = 0
        self.exhausted = threading.Event()
        self.closed = False
        self.repaired = (0, 0)

    def frames(self, should_stop: object = None) -> Iterator[SourceFrame]:
        for frame in self._frames:
            self.reads += 1
            yield frame
        self.exhausted.set()

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        return self._trailing

    def repaired_pts(self) -> tuple[int, int]:
        return self.repaired

    def close(self) -> None:
        self.closed = True


def frame(index: int, **fields: object) -> SourceFrame:
    planes = FramePlanes("gray", (np.full((4, 4), index, np.uint8),))
    values = {"media_ns": index * 10 * MS, "capture_ns": 1000 + index, **fields}
    return SourceFrame(frame_index=index, planes=planes, **values)  # type: ignore[arg-type]


class NumberedSegments:
    """Completes a segment with each frame, and one at the end."""

    dropped_frames, dropped_fragments = 7, 3

    def __init__(self) -> None:
        self.waited: set[bool] = set()

    def attach(self, frame: SourceFrame, *, wait: bool) -> SourceFrame:
        self.waited.add(wait)
        return replace(frame, segments=(MediaSegment(file=str(frame.frame_index)),))

    def finish(self) -> tuple[MediaSegment, ...]:
        return (MediaSegment(file="last"),)


class Fixture:
    def __init__(
        self,
        runner: StageRunner,
        source: ListedSource,
        *,
        drop_frames: bool = False,
        realtime: bool = False,
        clock: Clock | None = None,
        segments: VideoSegments | None = None,
    ) -> None:
        self.planes: SlotTable[FramePlanes] = SlotTable(8)
        self.link: Link = runner.link(CAPTURE_TEXTURE)
        self.stage = CaptureStage(
            source,  # type: ignore[arg-type]
            self.planes,
            runner.transport,
            runner.control,
            clock or FakeClock(),
            drop_frames=drop_frames,
            realtime=realtime,
            segments=segments,
        )
        runner.start(self.stage)

    def next(self) -> FrameCaptured:
        self.link.send(Credit())
        return expect(self.link, FrameCaptured)


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as stages:
        yield stages


def test_nothing_is_read_before_the_first_credit(runner: StageRunner) -> None:
    source = ListedSource([frame(0)])
    Fixture(runner, source)
    assert not source.exhausted.wait(0.05)
    assert source.reads == 0


def test_every_frame_waits_for_its_credit_and_none_is_lost(runner: StageRunner) -> None:
    source = ListedSource([frame(index) for index in range(5)])
    fixture = Fixture(runner, source)
    frames = [fixture.next() for _ in range(5)]
    assert [f.frame_index for f in frames] == [0, 1, 2, 3, 4]
    assert [(f.media_ns, f.capture_ns) for f in frames] == [(index * 10 * MS, 1000 + index) for index in range(5)]
    assert [int(fixture.planes.take(f.slot).planes[0][0, 0]) for f in frames] == [0, 1, 2, 3, 4]
    assert expect(fixture.link, End) == End(reason="finished")
    assert runner.join() is None
    assert fixture.stage.drops == {"capture.replaced": 0}
    assert source.closed


def test_it_reads_at_most_one_frame_ahead_of_its_credits(runner: StageRunner) -> None:
    source = ListedSource([frame(index) for index in range(5)])
    fixture = Fixture(runner, source)
    fixture.next()
    assert fixture.link.receive(30) is None
    assert source.reads <= 3


def test_newest_wins_and_what_must_be_reported_is_carried_over(runner: StageRunner) -> None:
    losses = [SkippedItem("packet 2", "bad"), SkippedItem("packet 4", "worse")]
    source = ListedSource(
        [
            frame(0),
            frame(1, discontinuity="resolution", skipped=(losses[0],)),
            frame(2, skipped=(losses[1],)),
            frame(3),
        ]
    )
    fixture = Fixture(runner, source, drop_frames=True)
    assert fixture.next().frame_index == 0
    assert source.exhausted.wait(10)
    newest = fixture.next()
    assert (newest.frame_index, newest.discontinuity, newest.skipped) == (3, "resolution", tuple(losses))
    assert expect(fixture.link, End).reason == "finished"
    runner.join()
    assert fixture.stage.drops == {"capture.replaced": 2}


def test_the_last_frame_is_sent_however_late_its_credit_comes(runner: StageRunner) -> None:
    source = ListedSource([frame(0), frame(1)])
    fixture = Fixture(runner, source, drop_frames=True)
    fixture.next()
    assert source.exhausted.wait(10)
    assert fixture.link.receive(30) is None
    assert fixture.next().frame_index == 1


class SteppingClock:
    """Moves on by 1 ms whenever it is read."""

    def __init__(self) -> None:
        self.now = 500 * MS

    def now_ns(self) -> int:
        self.now += MS
        return self.now


def test_a_realtime_file_is_released_at_the_pace_of_its_media_time(runner: StageRunner) -> None:
    source = ListedSource([frame(index, media_ns=70 * MS + index * 10 * MS) for index in range(4)])
    fixture = Fixture(runner, source, realtime=True, clock=SteppingClock())
    fixture.link.send(Credit(count=4))
    released_ns = [expect(fixture.link, FrameCaptured).capture_ns for _ in range(4)]
    assert [(at - released_ns[0]) // MS for at in released_ns] == [0, 10, 20, 30]


def test_a_pause_of_hours_is_left_out_and_reported(runner: StageRunner, caplog: pytest.LogCaptureFixture) -> None:
    hour_ns = 3_600_000 * MS
    source = ListedSource([frame(0, media_ns=0), *(frame(1 + n, media_ns=hour_ns + n * 10 * MS) for n in range(3))])
    fixture = Fixture(runner, source, realtime=True, clock=SteppingClock())
    fixture.link.send(Credit(count=4))
    released = [expect(fixture.link, FrameCaptured) for _ in range(4)]
    assert [frame_message.media_ns - hour_ns for frame_message in released[1:]] == [0, 10 * MS, 20 * MS]
    assert [(frame_message.capture_ns - released[1].capture_ns) // MS for frame_message in released[1:]] == [0, 10, 20]
    assert caplog.messages == ["the next frame is at 1:00:00.0, more than a minute later; the pause is left out"]


def test_losses_after_the_last_frame_come_with_the_end(runner: StageRunner) -> None:
    losses = (SkippedItem("packets 7-9", "bad", None, 3),)
    fixture = Fixture(runner, ListedSource([frame(0)], losses))
    fixture.next()
    assert expect(fixture.link, End) == End(reason="finished", skipped=losses)


def test_repaired_times_are_counted_in_the_end(runner: StageRunner) -> None:
    source = ListedSource([frame(0)])
    source.repaired = (3, 2)
    fixture = Fixture(runner, source)
    fixture.next()
    assert expect(fixture.link, End) == End(reason="finished", made_pts=3, clamped_pts=2)


def test_ending_sends_the_frames_read_and_reports_interrupted(runner: StageRunner) -> None:
    source = ListedSource([frame(index) for index in range(100)])
    fixture = Fixture(runner, source)
    fixture.next()
    runner.control.end()
    fixture.link.send(Credit(count=100))
    received, last = [], None
    while not isinstance(last, End):
        envelope = fixture.link.receive(10_000)
        assert envelope is not None
        last = envelope.message
        received += [last.frame_index] if isinstance(last, FrameCaptured) else []
    assert last.reason == "interrupted"
    assert received == list(range(1, 1 + len(received)))
    assert len(received) <= 3


def test_ending_before_the_first_credit_reads_nothing(runner: StageRunner) -> None:
    source = ListedSource([frame(0)])
    runner.control.end()
    fixture = Fixture(runner, source)
    assert expect(fixture.link, End).reason == "interrupted"
    assert source.reads == 0


def test_cancelling_ends_it_while_it_waits_for_a_credit(runner: StageRunner) -> None:
    source = ListedSource([frame(0), frame(1), frame(2)])
    fixture = Fixture(runner, source)
    fixture.next()
    runner.control.cancel()
    assert runner.join() is None
    assert source.closed


def test_a_source_that_fails_is_reported_and_closed(runner: StageRunner) -> None:
    source = ListedSource([])

    def frames(should_stop: object) -> Iterator[SourceFrame]:
        yield frame(0)
        raise SourceError("the disk is gone")

    source.frames = frames  # type: ignore[method-assign]
    fixture = Fixture(runner, source)
    fixture.link.send(Credit(count=2))
    failure = runner.join()
    assert isinstance(failure, SourceError)
    assert source.closed


class CameraSource(ListedSource):
    """Yields the items of `queue` as the test puts them there."""

    def __init__(self) -> None:
        super().__init__([])
        self.queue = FrameQueue()

    def fileno(self) -> int:
        return self.queue.fileno()

    def poll(self) -> list[SourceFrame | SourceOutage] | None:
        self.reads += 1
        return self.queue.drain()

    @property
    def dropped_frames(self) -> int:
        return self.queue.dropped

    def close(self) -> None:
        super().close()
        self.queue.close()


class TestSourcesThatComeInTheirOwnTime:
    def test_a_waiting_frame_goes_out_with_its_credit_though_no_other_frame_comes(self, runner: StageRunner) -> None:
        source = CameraSource()
        fixture = Fixture(runner, source, drop_frames=True)
        source.queue.put(frame(0))
        assert fixture.next().frame_index == 0
        source.queue.put(frame(1))
        source.queue.put(frame(2))
        assert fixture.link.receive(30) is None
        assert fixture.next().frame_index == 2

    def test_a_frame_goes_out_as_it_comes_if_it_is_awaited(
        self, runner: StageRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stage that slept through its turn would send nothing within the limit of this test."""
        monkeypatch.setattr(capture_module, "WAIT_MS", 2 * LIMIT_MS)
        source = CameraSource()
        fixture = Fixture(runner, source, drop_frames=True)
        fixture.link.send(Credit(count=6))
        for index in range(5):
            assert fixture.link.receive(20) is None
            source.queue.put(frame(index))
            assert expect(fixture.link, FrameCaptured).frame_index == index
        runner.control.end()
        source.queue.put(frame(5))

    def test_outages_are_reported_with_and_without_credits(self, runner: StageRunner) -> None:
        source = CameraSource()
        fixture = Fixture(runner, source, drop_frames=True)
        source.queue.put(frame(0))
        assert fixture.next().frame_index == 0
        source.queue.put(SourceOutage(0, 5, "gone"))
        assert expect(fixture.link, SourceLost) == SourceLost(frame_index=0, media_ns=5, reason="gone")
        source.queue.put(SourceOutage(0, 5, "gone", 2.5, 3))
        assert expect(fixture.link, SourceLost) == SourceLost(
            frame_index=0, media_ns=5, reason="gone", lasted_s=2.5, attempts=3
        )
        source.queue.put(frame(1, discontinuity="reconnect"))
        assert fixture.next().discontinuity == "reconnect"

    def test_drops_are_counted_by_cause(self, runner: StageRunner) -> None:
        source = CameraSource()
        fixture = Fixture(runner, source, drop_frames=True)
        for index in range(6):
            source.queue.put(frame(index))
        source.queue.finish()
        assert fixture.next().frame_index == 5
        assert expect(fixture.link, End).reason == "finished"
        runner.join()
        assert fixture.stage.drops == {"capture.replaced": 3, "capture.late": 2}
        assert source.closed

    def test_segments_are_never_dropped_with_their_frames(self, runner: StageRunner) -> None:
        source = CameraSource()
        segments = NumberedSegments()
        fixture = Fixture(runner, source, drop_frames=True, segments=segments)
        for index in range(3):
            source.queue.put(frame(index))
        source.queue.finish()
        newest = fixture.next()
        assert newest.frame_index == 2
        assert [segment.file for segment in newest.segments] == ["0", "1", "2"]
        assert [segment.file for segment in expect(fixture.link, End).segments] == ["last"]
        runner.join()
        assert segments.waited == {False}
        assert fixture.stage.drops["capture.unencoded"] == 7
        assert fixture.stage.drops["capture.fragments"] == 3

    def test_nothing_is_asked_for_before_the_first_credit(self, runner: StageRunner) -> None:
        source = CameraSource()
        Fixture(runner, source, drop_frames=True)
        assert not source.queue.wait(0.03)
        assert source.reads == 0

    def test_ending_ends_it_while_nothing_comes(self, runner: StageRunner) -> None:
        source = CameraSource()
        fixture = Fixture(runner, source, drop_frames=True)
        fixture.link.send(Credit())
        until(lambda: source.reads)
        runner.control.end()
        assert expect(fixture.link, End).reason == "interrupted"

    def test_a_failure_is_reported(self, runner: StageRunner) -> None:
        source = CameraSource()
        fixture = Fixture(runner, source, drop_frames=True)
        source.queue.finish(SourceError("the camera is gone"))
        fixture.link.send(Credit())
        failure = runner.join()
        assert isinstance(failure, SourceError)
        assert source.closed
