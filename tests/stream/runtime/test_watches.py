"""Runs that watch for something, with a fake answer model that detects brightness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import ModelError
from stream.answer.scheduler import WATCHES_ONLY
from stream.answer.triggers import NO_YES_OR_NO
from stream.config import AllocateConfig, AnswerConfig, Config, OutputConfig, PipelineConfig, WatchConfig
from stream.display.lines import LinesDisplay
from stream.events import (
    Answer,
    AnswerDeltaEvent,
    Event,
    FrameReady,
    Notice,
    QueryChanged,
    Started,
    Summary,
    VerdictChanged,
    YesNoResult,
)
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.session import run_session
from tests.support.clock import FakeClock
from tests.support.video import make_video

FPS, FRAMES = 10, 60
LIGHT = range(20, 40)
QUESTION = "is there a light?"


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six seconds in which a lamp is lit from second 2 to second 4."""
    frames = []
    for index in range(FRAMES):
        frame = np.full((96, 128, 3), 60, np.uint8)
        frame[:32, :32] = 90
        if index in LIGHT:
            frame[32:64, 64:96] = 250
        frames.append(frame)
    return str(make_video(tmp_path_factory.mktemp("video") / "lamp.mp4", iter(frames), FPS))


def configured(
    source: str, output: OutputConfig | None = None, *, captions: bool = False, ends_run: bool = True, **watch: Any
) -> Config:
    return Config(
        source=source,
        allocate=AllocateConfig(budget=12),
        answer=AnswerConfig(every_s=1.0, on_cut=False, captions=captions),
        watch=(WatchConfig(question=QUESTION, name="light", on_cut=False, ends_run=ends_run, **watch),),
        output=output or OutputConfig(),
        pipeline=PipelineConfig(single_process=True),
    )


def run(config: Config, model: str = "FakeAnswerModel", ask: str | None = None) -> list[Event]:
    """The events of a run, which is asked another question once it has checked the first one."""
    events: list[Event] = []
    pipeline = run_in_threads(config, model_loader=f"tests.support.answer_models:{model}")
    for event in pipeline.run():
        if ask is not None and isinstance(event, YesNoResult):
            pipeline.ask(ask)
            ask = None
        events.append(event)
    return events


def looks(events: list[Event]) -> list[tuple[int, str, str | None]]:
    return [(event.frame_index, event.trigger, event.holds) for event in events if isinstance(event, YesNoResult)]


def turns(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.frame_index, event.to) for event in events if isinstance(event, VerdictChanged)]


def summary(events: list[Event]) -> Summary:
    assert isinstance(events[-1], Summary)
    return events[-1]


def test_it_ends_with_the_frame_in_which_the_answer_turns_to_yes(video: str) -> None:
    events = run(configured(video))
    assert looks(events) == [(0, "start", "no"), (20, "change", "yes")]
    assert turns(events) == [(20, "yes")]
    assert [event.frame_index for event in events if isinstance(event, FrameReady)] == list(range(21))
    assert (summary(events).ended, summary(events).found, summary(events).frames) == ("found", True, 21)
    assert not [event for event in events if isinstance(event, (Answer, AnswerDeltaEvent))]
    assert next(event for event in events if isinstance(event, Started)).query == QUESTION


def test_going_on_it_reports_every_turn(video: str) -> None:
    events = run(configured(video, ends_run=False))
    assert turns(events) == [(20, "yes"), (40, "no")]
    assert looks(events) == [(0, "start", "no"), (20, "change", "yes"), (40, "change", "no"), (59, "end", "no")]
    assert (summary(events).ended, summary(events).found, summary(events).frames) == ("finished", True, FRAMES)


def test_a_source_that_ends_without_it_is_reported_and_without_a_question_nothing_is_missed(video: str) -> None:
    events = run(configured(video, sure=1.0, threshold=1.0))
    assert turns(events) == []
    assert (summary(events).ended, summary(events).found) == ("finished", False)
    no_question = {"answer": AnswerConfig(every_s=None, on_cut=False), "watch": ()}
    events = run(configured(video).model_copy(update=no_question))
    assert summary(events).found is None
    assert looks(events) == []


def test_the_beat_goes_on_if_nothing_changes(video: str) -> None:
    events = run(configured(video, ends_run=False, on_change=None, every_s=1.5))
    assert [frame for frame, trigger, _ in looks(events) if trigger == "every"] == [15, 30, 45]
    assert turns(events) == [(30, "yes"), (45, "no")]


def test_an_unsure_yes_is_confirmed_by_another_look(video: str) -> None:
    events = run(configured(video), "DoubtingAnswerModel")
    assert looks(events) == [(0, "start", "no"), (20, "change", "no"), (23, "again", "yes")]
    assert turns(events) == [(23, "yes")]


def test_neither_yes_nor_no_is_reported_once_and_turns_nothing(video: str) -> None:
    events = run(configured(video), "TalkativeAnswerModel")
    notices = [event.message for event in events if isinstance(event, Notice) and event.code == NO_YES_OR_NO]
    assert len(notices) == 1
    assert "'is there a light?' with neither yes nor no (both together have 1.0 %" in notices[0]
    assert turns(events) == []
    assert {holds for _, _, holds in looks(events)} == {None}


def test_beside_captions_both_are_as_if_alone(video: str) -> None:
    beside = run(configured(video, captions=True, ends_run=False))
    plain = configured(video)
    plain = plain.model_copy(update={"watch": ()})
    answers = [
        [(event.answer, event.frame_index, event.text, event.trigger) for event in events if isinstance(event, Answer)]
        for events in (beside, run(plain))
    ]
    assert answers[0] == answers[1]
    assert turns(beside) == [(20, "yes"), (40, "no")]
    assert {0, 10, 20, 30, 40, 50} <= {frame for frame, _, _ in looks(beside)}, (
        "a caption's packet is looked at as well"
    )


def test_beside_captions_the_last_one_is_finished(video: str) -> None:
    events = run(configured(video, captions=True))
    assert [event.frame_index for event in events if isinstance(event, Answer)] == [0, 10, 20]
    assert summary(events).ended == "found"


def test_whole_frames_are_looked_at_too(video: str) -> None:
    config = configured(video)
    config = config.model_copy(update={"answer": config.answer.model_copy(update={"encode": "full"})})
    assert turns(run(config)) == [(20, "yes")]


def test_a_run_that_only_watches_keeps_its_question(video: str) -> None:
    events = run(configured(video), ask="what is it?")
    assert [event for event in events if isinstance(event, QueryChanged)] == [
        QueryChanged(query="what is it?", error=WATCHES_ONLY)
    ]
    assert turns(events) == [(20, "yes")]


def test_beside_captions_the_other_question_changes(video: str) -> None:
    events = run(configured(video, captions=True), ask="what is it?")
    assert [event for event in events if isinstance(event, QueryChanged)] == [QueryChanged(query="what is it?")]
    assert {event.question for event in events if isinstance(event, YesNoResult)} == {QUESTION}
    assert [event.query for event in events if isinstance(event, Answer)][-1] == "what is it?"


def test_a_model_that_cannot_watch_is_refused(video: str) -> None:
    with pytest.raises(ModelError, match="no single token for yes"):
        run(configured(video), "WordlessAnswerModel")


def test_two_runs_write_the_same_bytes(video: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl"
        config = configured(video, OutputConfig(paths=(str(path),), timing=False), captions=True)
        sink = LinesDisplay(None, clock=FakeClock())
        run_session(
            config,
            sink,
            make_run=lambda config: run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel"),
        )
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert b'"type":"turned","watch":"light","frame_index":20' in written[0]
    assert b"timing" not in written[0].replace(b'"timing":null', b"")
    assert "0:02.0  yes (99 %): is there a light?\n" in capsys.readouterr().out
