"""Runs that give only answers with news, or with earlier ones before the question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stream.cli import main
from stream.clock import DisplayClock
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.display.state import Transcript
from stream.events import Answer, AnswerDeltaEvent, AnswerUnchanged, Event, Notice, Summary
from stream.extensions.history.section import HistorySection
from stream.extensions.live.layout import figure_rows
from stream.extensions.record.format import Recording
from stream.extensions.record.replay import ReplayedAnswer
from stream.extensions.record.section import RecordSection
from stream.monitor.statistics import RunStatistics
from stream.runtime.frame_stages import run_in_threads
from tests.extensions.record.test_replay import replayed
from tests.stream.runtime.test_answer_worker import endpoint, events_of, serving_at, without_clock
from tests.support import answer_models
from tests.support.answer_models import NewsAnswerModel
from tests.support.clock import FakeClock
from tests.support.events import answer
from tests.support.video import make_still_video

__all__ = ["endpoint"]

MODEL = "tests.support.answer_models:NewsAnswerModel"
NEWS: dict[str, Any] = {"when": "news"}
BOTH: dict[str, Any] = {"when": "news", "history": 2}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Dark, but for a tile that becomes brighter after 1.2 and 2.4 s."""
    path = tmp_path_factory.mktemp("video") / "still.mp4"
    return str(make_still_video(path, (0, 100, 200), 12, brightest=30))


def config(
    video: str, endpoint: str | None = None, record: str | None = None, history: int = 0, **options: Any
) -> Config:
    return Config(
        source=video,
        capture=CaptureConfig(open_timeout_s=5.0),
        allocate=AllocateConfig(budget=24),
        answer=AnswerConfig(server=endpoint, every_s=0.5, **options),
        history=HistorySection(answers=history),
        record=RecordSection(folder=record),
        pipeline=PipelineConfig(single_process=endpoint is None),
    )


def alone(video: str, **options: Any) -> list[Event]:
    return list(run_in_threads(config(video, **options), model_loader=MODEL).run())


def answers_of(events: list[Event]) -> list[Answer | AnswerUnchanged]:
    return [event for event in events if isinstance(event, (Answer, AnswerUnchanged))]


def test_only_what_is_new_is_answered(video: str) -> None:
    all_answers, news = answers_of(alone(video)), alone(video, **NEWS)
    points = answers_of(news)
    assert [point.text for point in points] == [answer.text for answer in all_answers]
    assert [point.frame_index for point in points] == [answer.frame_index for answer in all_answers]
    answers = [point for point in points if isinstance(point, Answer)]
    assert [answer.text for answer in answers] == ["quarter 0", "quarter 1", "quarter 3"]
    for point in points:
        if isinstance(point, AnswerUnchanged):
            last = max((answer for answer in answers if answer.answer < point.answer), key=lambda answer: answer.answer)
            assert (point.since_s, point.text, point.probability) == (last.pts_s, last.text, 0.875)
    pieces = [event.text for event in news if isinstance(event, AnswerDeltaEvent)]
    assert "".join(pieces) == "".join(answer.text for answer in answers)
    summary = news[-1]
    assert isinstance(summary, Summary)
    assert (summary.answers, summary.unchanged) == (3, len(all_answers) - 3)


def test_a_threshold_above_the_score_leaves_the_words_to_compare(video: str) -> None:
    points = answers_of(alone(video, when="news", same_above=0.9))
    assert [point.text_tokens for point in points] == [4] * len(points)
    assert sum(isinstance(point, Answer) for point in points) == 3


def test_earlier_answers_stand_before_the_question(video: str) -> None:
    texts = [answer.text for answer in answers_of(alone(video, history=2))]
    assert texts[:4] == [
        "quarter 0",
        "quarter 0, quarter 0 at 0 ms",
        "quarter 0, quarter 0 at 0 ms, quarter 0 at 500 ms",
        "quarter 1, quarter 0 at 500 ms, quarter 0 at 1000 ms",
    ]


@pytest.mark.parametrize("options", [NEWS, {"history": 2}, BOTH])
def test_in_lockstep_a_server_that_dies_changes_nothing(video: str, endpoint: str, options: dict[str, Any]) -> None:
    expected = answers_of(alone(video, **options))
    run, count = run_in_threads(config(video, endpoint, **options)), 0
    served = serving_at(endpoint, model="NewsAnswerModel")
    served.__enter__()
    events: list[Event] = []
    try:
        for event in run.run():
            events.append(event)
            if isinstance(event, (Answer, AnswerUnchanged)):
                count += 1
                if count in (2, 5):
                    served.__exit__(None, None, None)
                    served = serving_at(endpoint, model="NewsAnswerModel")
                    served.__enter__()
    finally:
        served.__exit__(None, None, None)
    assert [event for event in events if isinstance(event, Notice) and event.code == "answers-lost"]
    assert without_clock(answers_of(events)) == without_clock(expected)


def test_over_tcp_it_is_the_same(video: str, endpoint: str) -> None:
    with serving_at(endpoint, model="NewsAnswerModel"):
        assert without_clock(answers_of(events_of(config(video, endpoint, **BOTH)))) == without_clock(
            answers_of(alone(video, **BOTH))
        )


def test_a_recorded_run_gives_the_same_again(video: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    recorded = config(video, record=str(folder), **BOTH)
    points = answers_of(list(run_in_threads(recorded, model_loader=MODEL).run()))
    events, summary = replayed(Recording(folder), NewsAnswerModel(Config()))
    assert (summary.answers, summary.differing) == (len(points), 0)
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    assert [event.text for event in replies] == [point.text for point in points]
    assert not answers_of(events), "a replay has its own in their place"


@pytest.fixture
def _loads_the_fake_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", MODEL)


def caption(video: str, path: Path, *extra: str) -> int:
    arguments = ["--when", "news", "--every", "0.5", "--budget", "24", "--no-timing", "--single-process"]
    return main(["caption", video, "-o", str(path), *arguments, *extra])


@pytest.mark.usefixtures("_loads_the_fake_model")
def test_a_continued_run_answers_what_the_whole_run_would(
    video: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(frame_index: int) -> None:
        if frame_index == 25:
            raise ArithmeticError("the spoon is bent")

    unbroken, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert caption(video, unbroken, "--history", "2") == 0
    with monkeypatch.context() as patch:
        patch.setattr(answer_models, "on_packet", fail)
        assert caption(video, broken, "--history", "2") == 1
    asked_frames: list[int] = []
    monkeypatch.setattr(answer_models, "on_packet", asked_frames.append)
    assert caption(video, broken, "--history", "2", "--resume") == 0
    assert broken.read_bytes() == unbroken.read_bytes()
    assert asked_frames[0] == 25


@pytest.mark.usefixtures("_loads_the_fake_model")
def test_captions_have_a_cue_for_each_answer_and_the_file_of_events_has_the_rest(
    video: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cues, events = tmp_path / "a.vtt", tmp_path / "a.jsonl"
    assert caption(video, cues, "-o", str(events)) == 0
    assert [line for line in cues.read_text().splitlines() if line.startswith("quarter")] == [
        f"quarter {number}" for number in (0, 1, 3)
    ]
    assert cues.read_text().count(" --> ") == 3
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    unchanged = [line for line in lines if line["type"] == "unchanged"]
    assert {line["probability"] for line in unchanged} == {0.875}
    assert lines[-1]["unchanged"] == len(unchanged) == 5
    assert " · 3 answers, 5 unchanged · " in capsys.readouterr().err


def test_the_display_counts_on_from_the_answer_that_holds() -> None:
    transcript, statistics = Transcript(DisplayClock(live=False)), RunStatistics(FakeClock())
    first = answer(1.0, "a bus")
    unchanged = AnswerUnchanged(**structs.asdict(answer(2.0, "a bus")), since_s=1.0, probability=0.9)
    for event in (first, unchanged, unchanged):
        transcript.add(event)
        statistics.add(event)
    (entry,) = transcript.entries
    assert entry.display_text == "a bus (×3, to 0:02.0)"
    figures = statistics.snapshot()
    assert (figures.answers, figures.unchanged) == (1, 2)
    assert dict(figure_rows(figures))["answers"][:2] == ["1", "2 unchanged"]
    transcript.add_message("asked: what?")
    transcript.add(unchanged)
    assert len(transcript.entries) == 2, "after a message it is in no line"
