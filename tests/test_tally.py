"""A run's events, counted."""

from __future__ import annotations

from msgspec.structs import replace

from stream.events import Answer, Cut, FrameReady, Notice, Skipped
from stream.tally import Tally
from tests.event_maker import look

S = 1_000_000_000


def frame(index: int, ready_ns: int) -> FrameReady:
    return FrameReady(
        frame_index=index,
        pts_s=1.0 + index / 10,
        capture_ns=0,
        ready_ns=ready_ns,
        texture_ms=0.1,
        allocate_ms=0.2,
        dirty_share=index / 10,
        tokens=100 + index,
        tiles=200,
        jitter_share=0.0,
    )


def answer() -> Answer:
    return Answer(
        answer=0,
        frame_index=0,
        pts_s=0.0,
        start_s=0.0,
        end_s=0.0,
        trigger="start",
        query="?",
        text="",
        tokens_used=1,
        tokens_total=2,
        text_tokens=3,
    )


def test_every_kind_is_counted() -> None:
    tally = Tally(10 * S)
    for index in range(3):
        tally.add(frame(index, 20 * S + index * S // 2))
    tally.add(answer())
    tally.add(Cut(frame_index=1, pts_s=0.1, score=0.5))
    tally.add(Skipped(frame_index=1, pts_s=0.1, what="packets 3-6", reason="bad", count=4))
    tally.add(Notice(code="loading", message="loading"))
    summary = tally.summary("finished", None, {"capture.replaced": 2, "texture.replaced": 0}, 25 * S, "gl")
    assert (summary.frames, summary.answers, summary.cuts, summary.skipped) == (3, 1, 1, 4)
    assert summary.dropped == {"capture.replaced": 2}
    assert summary.backend == "gl"
    assert (summary.mean_tokens, round(summary.mean_dirty_share, 6)) == (101.0, 0.1)
    assert round(summary.duration_s, 6) == 0.2
    assert summary.timing == {"wall_s": 15.0, "fps": 2.0}


def test_the_summary_says_what_choosing_tokens_saved() -> None:
    tally = Tally(0)
    tally.add(frame(0, 0))
    assert tally.summary("finished", None, {}, 1, "cpu").work_ratio is None, "nothing was answered"
    for flops, full_flops in ((10, 50), (30, 50)):
        tally.add(replace(answer(), flops=flops, full_flops=full_flops))
    summary = tally.summary("finished", None, {}, 1, "cpu")
    assert summary.work_ratio == 2.5
    assert summary.mean_tiles == frame(0, 0).tiles


def test_a_run_without_frames_has_a_summary_too() -> None:
    summary = Tally(0).summary("error", "the capture stage died: …", {}, 0, "cpu")
    assert (summary.frames, summary.duration_s, summary.mean_tokens) == (0, 0.0, 0.0)
    assert summary.timing == {"wall_s": 0.0, "fps": 0.0}
    assert (summary.ended, summary.error) == ("error", "the capture stage died: …")


def test_what_was_watched_for_was_found_or_not() -> None:
    tally = Tally(0)

    def found() -> bool | None:
        return tally.summary("finished", None, {}, 0, "cpu").found

    assert found() is None
    tally.add(look(0.0, holds=None))
    assert found() is False
    tally.add(look(0.0, holds="yes"))
    tally.add(look(0.0, holds="no"))
    assert found() is True
