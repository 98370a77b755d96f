"""Runs with a visual memory: in this process and over TCP, with servers that die, that evict it, or that have none."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config, MemoryConfig, PipelineConfig, WatchConfig
from stream.events import Answer, Event, Notice, Summary, YesNoResult
from stream.runtime.frame_stages import run_in_threads
from tests.stream.runtime.test_answer_worker import continued, endpoint, events_of, serving_at, without_clock
from tests.support.groups import nothing_near
from tests.support.network import LIMIT_S
from tests.support.video import make_still_video

__all__ = ["endpoint"]

MEMORY = MemoryConfig(enabled=True, tokens=512, patch=True)
SERVER = Config(answer=AnswerConfig(memory=MEMORY))
MODEL = "tests.support.answer_models:MemoryAnswerModel"


@pytest.fixture(autouse=True, scope="module")
def _nothing_near() -> Iterator[None]:
    with nothing_near():
        yield


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tile changes every second, the rest is still."""
    return str(make_still_video(tmp_path_factory.mktemp("video") / "still.mp4", (0, 40, 80, 120), 10))


def config(video: str, endpoint: str | None = None, memory: MemoryConfig = MEMORY, **answer: Any) -> Config:
    return Config(
        source=video,
        capture=CaptureConfig(open_timeout_s=5.0),
        allocate=AllocateConfig(budget=6),
        answer=AnswerConfig(server=endpoint, every_s=0.5, memory=memory, **answer),
        pipeline=PipelineConfig(single_process=endpoint is None),
    )


def answers_of(events: list[Event]) -> list[Answer]:
    return [event for event in events if isinstance(event, Answer)]


def alone(video: str, watch: tuple[WatchConfig, ...] = (), **answer: Any) -> list[Event]:
    watching = config(video, **answer).model_copy(update={"watch": watch})
    return list(run_in_threads(watching, model_loader=MODEL).run())


def test_answers_build_on_each_other(video: str) -> None:
    events = alone(video)
    answers = answers_of(events)
    assert len(answers) >= 8
    assert {answer.group for answer in answers} == {1}
    assert [answer.began for answer in answers] == ["first", *[""] * (len(answers) - 1)]
    frames = [answer.text.split()[3:] for answer in answers]
    for before, now in itertools.pairwise(frames):
        assert now[: len(before) - 1] == before[:-1], "only a frame with nothing new leaves"
    tokens_used = [answer.tokens_used for answer in answers]
    appended_tokens = np.cumsum([answer.appended_tokens for answer in answers])
    assert tokens_used == sorted(tokens_used), "the picture sharpens"
    assert (tokens_used <= appended_tokens).all(), "smaller tokens take the place of coarse ones"
    assert sum(answer.superseded_tokens for answer in answers) > 0
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert summary.memory is not None
    assert (summary.memory.groups, summary.memory.appended_tokens) == ({"first": 1}, appended_tokens[-1])


def test_over_tcp_and_twice_it_is_the_same(video: str, endpoint: str) -> None:
    expected = answers_of(alone(video))
    with serving_at(endpoint, SERVER, "MemoryAnswerModel"):
        for _ in range(2):
            assert without_clock(answers_of(events_of(config(video, endpoint)))) == without_clock(expected)


@pytest.mark.parametrize(("deaths", "frames"), [({2}, 1), ({1, 3, 5}, 1), ({1, 3, 5}, 3)])
def test_in_lockstep_a_server_that_dies_changes_no_answer(
    video: str, endpoint: str, deaths: set[int], frames: int
) -> None:
    memory = MEMORY.model_copy(update={"frames": frames})
    expected = answers_of(alone(video, memory=memory))
    run, answers = run_in_threads(config(video, endpoint, memory)), 0
    served = serving_at(endpoint, SERVER, "MemoryAnswerModel")
    served.__enter__()
    events: list[Event] = []
    try:
        for event in run.run():
            events.append(event)
            if isinstance(event, Answer):
                answers += 1
                if answers in deaths:
                    served.__exit__(None, None, None)
                    served = serving_at(endpoint, SERVER, "MemoryAnswerModel")
                    served.__enter__()
    finally:
        served.__exit__(None, None, None)
    assert [event for event in events if isinstance(event, Notice) and event.code == "answers-lost"]
    assert without_clock(answers_of(events)) == without_clock(expected)


def test_runs_that_share_a_server_get_the_answers_that_each_would_get_alone(video: str, endpoint: str) -> None:
    queries = ["What?", "Where is the square?"]
    expected = [[answer.text for answer in answers_of(alone(video, query=query))] for query in queries]
    results: dict[str, list[str]] = {}

    def run(query: str) -> None:
        results[query] = [answer.text for answer in answers_of(events_of(config(video, endpoint, query=query)))]

    with serving_at(endpoint, SERVER, "MemoryAnswerModel"):
        threads = [threading.Thread(target=run, args=(query,)) for query in queries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert [results[query] for query in queries] == expected


def test_a_server_without_memory_answers_about_one_frame_each(video: str, endpoint: str) -> None:
    with serving_at(endpoint):
        events = events_of(config(video, endpoint))
    (notice,) = (event for event in events if isinstance(event, Notice) and event.code == "memory-off")
    assert "start `serve-answers` with --memory" in notice.message
    assert {answer.group for answer in answers_of(events)} == {0}
    assert events[-1].memory is None  # type: ignore[union-attr]


def test_the_smaller_memory_of_both_counts(video: str, endpoint: str) -> None:
    small = Config(answer=AnswerConfig(memory=MemoryConfig(enabled=True, tokens=64)))
    with serving_at(endpoint, small, "MemoryAnswerModel"):
        answers = answers_of(events_of(config(video, endpoint)))
    assert {answer.began for answer in answers} <= {"first", "full", "superseded", "epoch", ""}
    assert max(answer.tokens_used for answer in answers) <= 64


@pytest.mark.parametrize("frames", ["1", "3"])
def test_a_continued_run_appends_what_the_whole_run_would(
    video: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: str
) -> None:
    _, asked_frames = continued(
        video, tmp_path, monkeypatch, "MemoryAnswerModel", "--memory", "--memory-frames", frames, "--budget", "6"
    )
    assert asked_frames[0] == 25


def test_a_watch_reads_the_memory(video: str) -> None:
    events = alone(video, (WatchConfig(question="is it there?", name="there"),), captions=True)
    assert [event for event in events if isinstance(event, YesNoResult)]
    assert {answer.group for answer in answers_of(events)} == {1}
