"""Runs with answers that have a schema: outputs, a server, a resumed run, a replay, and the bundled model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import webvtt

from arr_coc.errors import OptionError
from stream.cli import main
from stream.clock import DisplayClock
from stream.config import Config
from stream.config_loading import ConfigLayer, build_config
from stream.display.state import Transcript
from stream.display.text import summary_text
from stream.errors import ConfigError
from stream.events import Answer, AnswerDeltaEvent, AnswerInvalid, AnswerUnchanged, Event, Summary
from stream.extensions.journal.journal import Journal
from stream.extensions.record.format import Recording
from stream.extensions.record.replay import ReplayedAnswer
from stream.options.extra import Extra
from stream.runtime.frame_stages import run_in_threads
from tests.extensions.record.test_replay import replayed
from tests.stream.runtime.test_answer_worker import endpoint, events_of, serving_at, without_clock
from tests.stream.runtime.test_news import config, video
from tests.support.answer_models import CountingAnswerModel
from tests.support.clock import FakeClock

__all__ = ["endpoint", "video"]

MODEL = "tests.support.answer_models:CountingAnswerModel"
SCHEMA = {"json_schema": '{"quarter": "integer", "bright": "boolean"}'}


def alone(video: str, journal: Journal | None = None, **options: Any) -> list[Event]:
    run = run_in_threads(config(video, **SCHEMA, **options), model_loader=MODEL, continuation=journal)
    if journal is not None:
        journal.open()
    return list(run.run())


def points_of(events: list[Event]) -> list[Answer | AnswerInvalid | AnswerUnchanged]:
    return [event for event in events if isinstance(event, (Answer, AnswerInvalid, AnswerUnchanged))]


def test_answers_have_fields_and_those_that_break_off_are_counted(video: str) -> None:
    events = alone(video)
    points = points_of(events)
    assert [isinstance(point, AnswerInvalid) for point in points] == [point.frame_index % 4 == 3 for point in points]
    answers = [point for point in points if isinstance(point, Answer)]
    assert {json.dumps(answer.fields) for answer in answers} >= {'{"quarter": 0, "bright": false}'}
    assert [event.text for event in events if isinstance(event, AnswerDeltaEvent)] == [
        answer.text for answer in answers
    ]
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert (summary.answers, summary.invalid) == (len(answers), len(points) - len(answers))
    assert summary.invalid
    assert f"{summary.answers} answers, {summary.invalid} invalid" in summary_text(summary)


def test_over_tcp_it_is_the_same(video: str, endpoint: str) -> None:
    with serving_at(endpoint, model="CountingAnswerModel"):
        assert without_clock(points_of(events_of(config(video, endpoint, **SCHEMA)))) == without_clock(
            points_of(alone(video))
        )


def test_a_server_whose_model_refuses_the_schema_ends_the_run(video: str, endpoint: str) -> None:
    refused = {"json_schema": '{"refused": "integer"}'}
    with serving_at(endpoint, model="CountingAnswerModel"), pytest.raises(OptionError, match="refused"):
        events_of(config(video, endpoint, **refused))


def test_a_resumed_run_takes_the_fields_from_the_journal(video: str, tmp_path: Path) -> None:
    path = tmp_path / "a.resume"
    first = points_of(alone(video, Journal(path, {"run": "one"}), when="news"))
    assert {type(point) for point in first} == {Answer, AnswerInvalid, AnswerUnchanged}
    journal = Journal.continued(path, {"run": "one"})
    assert journal.earlier_answers == len(first)
    resumed = run_in_threads(
        config(video, **SCHEMA, when="news"),
        model_loader="tests.support.answer_models:BrokenAnswerModel",
        continuation=journal,
    )
    assert points_of(list(resumed.run())) == first


def test_a_recorded_run_gives_the_same_fields_again(video: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    recorded = run_in_threads(config(video, record=str(folder), **SCHEMA), model_loader=MODEL)
    points = points_of(list(recorded.run()))
    events, summary = replayed(Recording(folder), CountingAnswerModel(Config()))
    assert (summary.answers, summary.differing) == (len(points), 0)
    replies = [event for event in events if isinstance(event, ReplayedAnswer)]
    assert [event.fields for event in replies] == [point.fields for point in points]
    assert not points_of(events)


def test_an_answer_that_does_not_fit_is_a_message_of_the_display(video: str) -> None:
    transcript = Transcript(DisplayClock(FakeClock()))
    for event in alone(video):
        transcript.add(event)
    texts = [entry.text for entry in transcript.entries if entry.is_message]
    assert any("does not fit the schema: it is not whole JSON" in text for text in texts)
    assert not any("{" in entry.text for entry in transcript.entries if not entry.is_message)


class TestBundledModel:
    """Whole commands with real constrained decoding."""

    def caption(self, folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], list[str]]:
        lines, cues = folder / "a.jsonl", folder / "a.vtt"
        options = ["caption", "scene:demo", "--max-frames", "30", "--every", "1", "-o", str(lines), "-o", str(cues)]
        assert main([*options, *arguments]) == 0
        events = [json.loads(line) for line in lines.read_text().splitlines()]
        return events, [cue.text for cue in webvtt.read(cues)]

    def test_choices(self, tmp_path: Path) -> None:
        events, cues = self.caption(tmp_path, "-q", "What colour is the circle?", "--choices", "red,green,blue")
        answers = [event for event in events if event["type"] == "answer"]
        assert len(answers) > 1
        assert all(event["fields"] == {"answer": event["text"]} for event in answers)
        assert {*cues} == {event["text"] for event in answers} <= {"red", "green", "blue"}

    def test_a_schema_from_a_file(self, tmp_path: Path) -> None:
        schema = tmp_path / "street.json"
        schema.write_text('{"people": "integer", "weather": ["sun", "rain"], "open": "boolean"}')
        events, cues = self.caption(tmp_path, "--schema", str(schema))
        answers = [event for event in events if event["type"] == "answer"]
        assert answers
        texts = [text for text, _ in itertools.groupby(event["text"] for event in answers)]
        assert [cue.replace("\n", " ") for cue in cues] == texts
        for event in answers:
            assert [type(value) for value in event["fields"].values()] == [int, str, bool]
            assert event["text"].startswith(f"people: {event['fields']['people']}, weather: ")

    def test_an_answer_cut_at_the_limit_is_no_caption(self, tmp_path: Path) -> None:
        events, cues = self.caption(tmp_path, "--schema", '{"note": "string"}', "--set", "answer.max_tokens=3")
        kinds = [event["type"] for event in events]
        assert "invalid" in kinds
        assert "answer" not in kinds
        assert not cues


def refused(**values: str) -> str:
    layers = [ConfigLayer("--given", {f"answer.{key}": value for key, value in values.items()})]
    with pytest.raises(ConfigError) as error:
        build_config(layers)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestConfiguration:
    def test_the_schema_takes_the_place_of_its_file_and_its_short_form(self, tmp_path: Path) -> None:
        file = tmp_path / "a.json"
        file.write_text(SCHEMA["json_schema"])
        configs = [
            build_config([ConfigLayer("x", {"answer.json_schema": text})]) for text in (str(file), file.read_text())
        ]
        assert configs[0] == configs[1]
        assert configs[0].answer.json_schema is not None
        assert json.loads(configs[0].answer.json_schema)["required"] == ["quarter", "bright"]

    def test_one_line_says_what_is_wrong(self, tmp_path: Path) -> None:
        binary, missing = tmp_path / "b.json", tmp_path / "none.json"
        binary.write_bytes(b"\xff\xfe")
        assert refused(json_schema="{").startswith("--given: the schema is not JSON")
        assert "a: 'pattern' is not supported" in refused(
            json_schema='{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+"}}}'
        )
        assert f"cannot read the schema {str(missing)!r}: No such file" in refused(json_schema=str(missing))
        assert "it is not UTF-8 text" in refused(json_schema=str(binary))
        assert "is no choice" in refused(choices="a,,b")
        assert "a choice stands there twice" in refused(choices="a,a")
        assert "leave --choices or --schema out" in refused(choices="a,b", json_schema='{"a": "integer"}')
        assert "answer.thinking = show" in refused(choices="a,b", thinking="show")

    def test_a_missing_library_is_reported_before_the_model_is_loaded(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(Extra, "missing", lambda extra: ["llguidance"] if extra.name == "schema" else [])
        assert main(["caption", "scene:demo", "--choices", "a,b"]) == 2
        assert "--choices needs llguidance; pip install 'arr-coc-stream[schema]'" in capsys.readouterr().err
