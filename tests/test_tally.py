"""The summary of a run says what its events were."""

from __future__ import annotations

from msgspec.structs import replace

from stream.clock import FakeClock
from stream.events import Cut, FrameReady, Notice, Skipped
from stream.monitor.statistics import RunStatistics
from tests import event_maker
from tests.event_maker import answer, look

S = 1_000_000_000


def frame(index: int, ready_ns: int) -> FrameReady:
    return event_maker.frame(
        index, 1.0 + index / 10, ready_ns=ready_ns, dirty_share=index / 10, tokens=100 + index, tiles=200
    )


def test_every_kind_is_counted() -> None:
    clock = FakeClock(10 * S)
    run = RunStatistics(clock)
    for index in range(3):
        run.add(frame(index, 20 * S + index * S // 2))
    run.add(answer(0.0, ""))
    run.add(Cut(frame_index=1, pts_s=0.1, score=0.5))
    run.add(Skipped(frame_index=1, pts_s=0.1, what="packets 3-6", reason="bad", count=4))
    run.add(Notice(code="loading", message="loading"))
    clock.advance(15 * S)
    summary = run.summary("finished", None, {"capture.replaced": 2, "texture.replaced": 0}, "gl")
    assert (summary.frames, summary.answers, summary.cuts, summary.skipped) == (3, 1, 1, 4)
    assert summary.dropped == {"capture.replaced": 2}
    assert summary.backend == "gl"
    assert (summary.mean_tokens, round(summary.mean_dirty_share, 6)) == (101.0, 0.1)
    assert round(summary.duration_s, 6) == 0.2
    assert summary.timing == {"wall_s": 15.0, "fps": 2.0}


def test_the_summary_says_what_choosing_tokens_saved() -> None:
    run = RunStatistics(FakeClock())
    run.add(frame(0, 0))
    assert run.summary("finished", None, {}, "cpu").work_ratio is None, "nothing was answered"
    for flops, full_flops in ((10, 50), (30, 50)):
        run.add(replace(answer(0.0, ""), flops=flops, full_flops=full_flops))
    summary = run.summary("finished", None, {}, "cpu")
    assert summary.work_ratio == 2.5
    assert summary.mean_tiles == frame(0, 0).tiles


def test_a_run_without_frames_has_a_summary_too() -> None:
    summary = RunStatistics(FakeClock()).summary("error", "the capture stage died: …", {}, "cpu")
    assert (summary.frames, summary.duration_s, summary.mean_tokens) == (0, 0.0, 0.0)
    assert summary.timing == {"wall_s": 0.0, "fps": 0.0}
    assert (summary.ended, summary.error) == ("error", "the capture stage died: …")


def test_what_was_watched_for_was_found_or_not() -> None:
    run = RunStatistics(FakeClock())

    def found() -> bool | None:
        return run.summary("finished", None, {}, "cpu").found

    assert found() is None
    run.add(look(0.0, holds=None))
    assert found() is False
    run.add(look(0.0, holds="yes"))
    run.add(look(0.0, holds="no"))
    assert found() is True
