"""Frame processes, one after another, as one run: what each is given, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stream.config import CaptureConfig, Config
from stream.events import STORE_LOST, Notice, QueryChanged
from stream.runtime.frame_processes import RunContinuity
from stream.runtime.worker_messages import SourceOpened
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, look
from tests.support.runs import WATCHED_INFO


def continuity(*, live: bool = True, **capture: Any) -> RunContinuity:
    """With a first frame process that has opened its source."""
    made = RunContinuity(Config(source="a.mp4", capture=CaptureConfig(**capture)), FakeClock())
    made.next_config()
    made.note_source(SourceOpened(replace(WATCHED_INFO, live=live), "gl"))
    return made


def test_the_first_frame_process_is_given_the_run_as_it_is() -> None:
    config = Config(source="a.mp4", capture=CaptureConfig(max_frames=100))
    assert RunContinuity(config, FakeClock()).next_config() == config


@pytest.mark.parametrize("live", [True, False])
def test_the_next_one_reads_what_the_one_before_it_left(live: bool) -> None:
    run = continuity(live=live, max_frames=100)
    run.rebase(frame(39, 2.0))
    rest = run.next_config().capture
    assert run.frames_before == 40
    assert rest.max_frames == 60
    assert (rest.start_s == 0) is live
    run.rebase(frame(59, 3.0))
    assert run.next_config().capture.max_frames == 1


def test_frames_and_answers_are_counted_on() -> None:
    run = continuity()
    run.rebase(frame(39, 2.0))
    assert run.rebase(answer(2.0, "a", frame_index=39)) == answer(2.0, "a", frame_index=39)
    run.next_config()
    rebased = run.rebase(answer(0.0, "b", frame_index=3))
    assert (rebased.answer, rebased.frame_index) == (1, 43)  # type: ignore[union-attr]


def test_what_every_frame_process_says_as_it_begins_is_reported_once() -> None:
    run = continuity()
    loading, world, repaired = (Notice(code=code, message="") for code in ("loading", "model-world", "pts-repaired"))
    rebased = [run.rebase(event) for event in (loading, world, repaired, loading, world, repaired)]
    assert rebased == [None, world, repaired, None, None, repaired]


def test_drops_of_all_of_them_add_up() -> None:
    run = continuity()
    run.note_drops({"capture.replaced": 2})
    run.note_drops({"capture.replaced": 3})
    assert run.drops() == {"capture.replaced": 3}
    run.next_config()
    assert run.drops() == {"capture.replaced": 3}
    run.note_drops({"capture.replaced": 1, "texture.replaced": 4})
    assert run.drops() == {"capture.replaced": 4, "texture.replaced": 4}


def test_a_question_that_was_taken_is_the_next_ones_and_one_that_was_not_is_not() -> None:
    run = continuity()
    run.pending_query = "who?"
    assert run.next_config().answer.query != "who?"
    assert run.pending_query == "who?"
    run.rebase(QueryChanged(query="who?"))
    assert run.pending_query is None
    assert run.next_config().answer.query == "who?"
    run.pending_query = "refused?"
    run.rebase(QueryChanged(query="refused?", error="too long"))
    assert run.pending_query is None
    assert run.next_config().answer.query == "who?"


def test_the_answer_that_holds_is_known_from_looks() -> None:
    run = continuity()
    assert run.verdict is None
    run.rebase(look(1.0, holds="yes"))
    run.rebase(look(1.0, holds=None))
    assert run.verdict is True
    run.rebase(look(1.0, holds="no"))
    assert run.verdict is False


def test_the_store_that_runs_is_known_also_once_it_gave_up() -> None:
    run = continuity()
    assert run.backend == "gl"
    run.rebase(Notice(code=STORE_LOST, message="gone"))
    assert run.backend == "cpu"
