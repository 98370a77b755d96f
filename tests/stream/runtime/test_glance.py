"""Whole runs that glance, with a fake answer model that looks at the brightest region."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import BudgetError, ModelError
from stream.config import (
    AllocateConfig,
    AnswerConfig,
    CaptureConfig,
    Config,
    GlanceConfig,
    PipelineConfig,
    WatchConfig,
)
from stream.config_loading import ConfigLayer, build_config
from stream.control import Ask
from stream.errors import ConfigError
from stream.events import Answer, Event, Explanation, FrameReady, Glance, QueryChanged, Summary, YesNoResult
from stream.extensions.record.format import Recording
from stream.extensions.record.replay import Replay, ReplayedAnswer, ReplayedGlance, answered_by
from stream.extensions.shadow.section import ShadowSection
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from tests.stream.runtime.test_answer_worker import (
    continued,
    endpoint,
    run_across_a_loss,
    serving_at,
    without_clock,
    without_pieces,
)
from tests.stream.runtime.test_pipeline import configured, nothing_left_behind, run, without_timing
from tests.support.answer_models import GLANCED_AT, FakeAnswerModel, GlancingAnswerModel
from tests.support.network import LIMIT_S
from tests.support.video import make_video

__all__ = ["endpoint", "nothing_left_behind"]

FRAMES, FPS = 30, 10
MODEL = "GlancingAnswerModel"
LAMP = {(0, row, col) for row in (2, 3) for col in (4, 5)}
"""Tiles (level, row, column) in which the lamp is."""


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dim room with a busy rug, and a plain lamp that is hardly brighter than the wall and the brightest there is."""
    rng = np.random.default_rng(0)
    rug = rng.integers(20, 80, (64, 64, 3), np.uint8)
    frames = []
    for index in range(FRAMES):
        frame = np.full((128, 192, 3), 60, np.uint8)
        frame[:64, :64] = rug
        frame[64:128, 128:192] = 75
        frame[index : index + 4, 96:100] = 0
        frames.append(frame)
    return str(make_video(tmp_path_factory.mktemp("video") / "lamp.mp4", iter(frames), FPS))


def glancing(video: str, every_s: float = 60.0, **answer: Any) -> Config:
    options = {"every_s": 1.0, "glance": GlanceConfig(every_s=every_s), **answer}
    return configured(video, answer=AnswerConfig(**options))


def test_the_model_looks_once_before_the_first_answer_about_a_question(video: str) -> None:
    result = run(glancing(video), MODEL)
    (glance,) = result.of(Glance)
    assert (glance.frame_index, glance.query) == (0, "Say what happens.")
    assert (glance.tokens_used, glance.tokens_total) == (6, 24)
    answers = result.of(Answer)
    assert [answer.glances for answer in answers] == [1, 0, 0, 0]
    assert [answer.glance_tokens for answer in answers] == [6, 0, 0, 0]
    assert {answer.tokens_used for answer in answers} == {12}
    order = [type(event) for event in result.events if isinstance(event, (FrameReady, Glance, Answer))]
    assert order[:4] == [FrameReady, Glance, Answer, FrameReady]
    assert result.summary.glances == 1


def test_the_place_that_it_looked_at_is_what_matters_most_in_its_answer(video: str, tmp_path: Path) -> None:
    """The lamp is the dullest thing in the room, which no score would choose by how it looks."""

    def ranks(**answer: Any) -> list[int]:
        """The best rank of a sharp token on the lamp, in each frame that was answered about."""
        config = glancing(video, feedback=False, **answer)
        config = config.with_values({"why.file": str(tmp_path / "why.jsonl")})
        return [
            min((token.rank for token in event.tokens if (token.level, token.row, token.col) in LAMP), default=24)
            for event in run(config, MODEL).of(Explanation)
        ]

    with_glance, without = ranks(), ranks(glance=GlanceConfig(enabled=False))
    assert with_glance[0] <= 2, "only the lamp's region of the overview may matter as much"
    assert without[0] > 4


@pytest.mark.parametrize("overview", ["keep", "drop"])
def test_an_overview_counts_in_the_budget_kept_or_dropped(video: str, overview: str) -> None:
    answers = run(glancing(video, overview=overview), MODEL).of(Answer)
    assert [answer.tokens_used for answer in answers] == ([12, 12, 12, 12] if overview == "keep" else [6, 12, 12, 12])


def test_runs_give_the_same_events_in_one_process_and_in_two(video: str) -> None:
    config = glancing(video, every_s=1.0)
    two = config.model_copy(update={"pipeline": PipelineConfig()})
    first, *others = [without_timing(run(variant, MODEL).events) for variant in (config, config, two)]
    assert sum(event["type"] == "glance" for event in first) == 3
    for other in others:
        assert other == first


@pytest.mark.parametrize(
    ("answer", "model"),
    [
        ({"glance": GlanceConfig(enabled=False)}, MODEL),
        ({"encode": "full"}, MODEL),
        ({"encode": "prune"}, MODEL),
        ({}, "FakeAnswerModel"),
    ],
)
def test_if_it_is_off_nothing_is_looked_at(video: str, answer: dict[str, Any], model: str) -> None:
    result = run(glancing(video, **answer), model)
    assert result.of(Glance) == []
    assert {answer.glances for answer in result.of(Answer)} == {0}


@pytest.mark.parametrize(
    ("model", "glance", "kind", "message"),
    [
        (
            "FakeAnswerModel", {"enabled": True}, ModelError,
            "fake cannot glance: its attention cannot be read; leave --glance out",
        ),
        ("BlindAnswerModel", {}, ModelError, "the attention of blind cannot be read; turn glances off"),
        (MODEL, {"tokens": 12}, BudgetError, "an overview of 12 tokens leaves nothing of a budget of 12"),
    ],
)  # fmt: skip
def test_a_model_or_a_budget_that_allows_no_glance_ends_the_run_in_one_line(
    video: str, model: str, glance: dict[str, Any], kind: type[Exception], message: str
) -> None:
    config = glancing(video, glance=GlanceConfig(**glance))
    config = config.model_copy(update={"allocate": AllocateConfig(budget="50%")})
    result = run(config, model, fails=True)
    assert isinstance(result.error, kind)
    assert message in str(result.error)
    assert isinstance(result.events[-1], Summary)


@pytest.mark.parametrize(("encode", "every"), [("incremental", None), ("sparse", 1)])
def test_incremental_encoding_and_shadow_checks_go_with_glances(video: str, encode: str, every: int | None) -> None:
    config = glancing(video, encode=encode).model_copy(update={"shadow": ShadowSection(every=every)})
    result = run(config, MODEL)
    assert (len(result.of(Glance)), len(result.of(Answer))) == (1, 4)


def test_a_watch_alone_is_what_the_glance_asks(video: str) -> None:
    watch = WatchConfig(question="is there a lamp?", name="lamp", on_cut=False, ends_run=True)
    events = run(glancing(video).model_copy(update={"watch": (watch,)}), MODEL).events
    order = [event for event in events if isinstance(event, (Glance, YesNoResult))]
    assert [type(event) for event in order[:2]] == [Glance, YesNoResult]
    assert isinstance(order[0], Glance)
    assert not any(isinstance(event, Glance) for event in order[1:])
    assert order[0].query == "is there a lamp?"


def test_another_question_is_glanced_for_anew(video: str) -> None:
    def ask(pipeline: Run, event: Event) -> None:
        if isinstance(event, Answer) and event.answer == 0:
            pipeline.send(Ask("who?"))

    result = run(glancing(video), MODEL, ask)
    queries = [event.query for event in result.of(Glance)]
    assert (queries[0], set(queries[1:])) == ("Say what happens.", {"who?"})
    turns = [event for event in result.events if isinstance(event, (Glance, QueryChanged, Answer))]
    after = turns[next(index for index, event in enumerate(turns) if isinstance(event, QueryChanged)) + 1 :]
    # of a turn that has spent its glances on the question before, the first answer has none
    assert any(isinstance(event, Glance) for event in after[:2])


def test_in_a_stream_of_one_question_hardly_any_answer_needs_a_glance() -> None:
    """Thirty frames a second, an answer with every other frame."""
    config = Config(
        source="scene:paced-720p30",
        capture=CaptureConfig(max_frames=150, size="192x128"),
        allocate=AllocateConfig(budget=12),
        answer=AnswerConfig(every_s=1 / 15),
        pipeline=PipelineConfig(single_process=True),
    )
    result = run(config, MODEL)
    answers = result.of(Answer)
    assert len(answers) >= 74
    assert 1 <= sum(answer.glances for answer in answers) <= 0.05 * len(answers)


def test_frames_never_wait_for_a_glance(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model looks for as long as no frame has come after the one that it looks at."""
    last_frame = threading.Event()
    glance = GlancingAnswerModel.glance

    def wait(self: GlancingAnswerModel, client: bytes, packet: Any, query: str) -> Any:
        assert last_frame.wait(LIMIT_S)
        return glance(self, client, packet, query)

    def follow(pipeline: Run, event: Event) -> None:
        if isinstance(event, FrameReady) and event.frame_index == FRAMES - 1:
            last_frame.set()

    monkeypatch.setattr(GlancingAnswerModel, "glance", wait)
    config = glancing(video).model_copy(update={"pipeline": PipelineConfig(single_process=True, answers="newest")})
    result = run(config, MODEL, follow)
    assert [event.frame_index for event in result.of(FrameReady)] == list(range(FRAMES))
    (glance_event,) = result.of(Glance)
    (last,) = result.of(Answer)
    assert glance_event.frame_index < last.frame_index == FRAMES - 1
    assert last.glances == 1


def test_ctrl_c_in_the_middle_of_a_glance_ends_the_run(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines: list[Run] = []

    def end(self: GlancingAnswerModel, client: bytes, packet: Any, query: str) -> Any:
        pipelines[0].end()
        return glance(self, client, packet, query)

    glance = GlancingAnswerModel.glance
    monkeypatch.setattr(GlancingAnswerModel, "glance", end)
    result = run(glancing(video), MODEL, lambda pipeline, event: pipelines.append(pipeline))
    assert result.summary.ended == "interrupted"


@pytest.fixture
def _killed_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLANCED_AT, str(tmp_path_factory.mktemp("mark") / "glanced"))


@pytest.mark.usefixtures("_killed_once")
def test_a_server_that_dies_in_a_glance_is_replaced_and_looks_at_the_same_frame(video: str) -> None:
    config = glancing(video).model_copy(update={"pipeline": PipelineConfig(restart=True)})
    result, calm = run(config, "KilledGlancingAnswerModel"), run(glancing(video), MODEL)
    kinds = (FrameReady, Glance, Answer)
    assert without_timing([event for event in result.events if isinstance(event, kinds)]) == without_timing(
        [event for event in calm.events if isinstance(event, kinds)]
    )


@pytest.mark.usefixtures("_killed_once")
def test_otherwise_a_glance_that_was_lost_is_counted_and_another_frame_is_looked_at() -> None:
    def end(pipeline: Run, event: Event) -> None:
        if isinstance(event, Answer):
            pipeline.end()

    config = Config(
        source="scene:paced-720p30",
        capture=CaptureConfig(size="192x128"),
        allocate=AllocateConfig(budget=12),
        pipeline=PipelineConfig(restart=True, answers="newest"),
    )
    result = run(config, "KilledGlancingAnswerModel", end)
    assert result.of(Answer)[0].glances == 1
    assert result.summary.dropped["glance.lost"] == 1


def test_a_recorded_run_is_glanced_at_again(video: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("recording") / "a"
    config = glancing(video, every_s=1.0).with_values({"record.folder": str(folder)})
    recorded = run(config, MODEL)
    recording = Recording(folder)

    def replayed(model: FakeAnswerModel) -> tuple[list[Event], Any]:
        replay = Replay(model, answered_by(recording))
        events = [event for record in recording.records() for event in replay.take(record)]
        return events, replay.summary(recording.damage)

    events, summary = replayed(GlancingAnswerModel(Config()))
    replies = [event for event in events if isinstance(event, ReplayedGlance)]
    assert [event.frame_index for event in replies] == [event.frame_index for event in recorded.of(Glance)]
    assert all(event.same and event.difference == 0 for event in replies)
    assert (summary.glances, summary.answers, summary.differing) == (3, 4, 0)
    order = [type(event) for event in events if isinstance(event, (ReplayedGlance, ReplayedAnswer))]
    assert order[:2] == [ReplayedGlance, ReplayedAnswer]

    class Elsewhere(GlancingAnswerModel):
        def glance(self, client: bytes, packet: Any, query: str) -> Any:
            reply = super().glance(client, packet, query)
            reply.feedback.attention[:] = 0.5
            return reply

    events, summary = replayed(Elsewhere(Config()))
    assert summary.differing == 3
    assert not any(event.same for event in events if isinstance(event, ReplayedGlance))


def test_a_run_that_failed_ends_with_the_same_bytes_once_it_is_continued(
    video: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("resumed")
    broken, asked_frames = continued(
        video, folder, monkeypatch, MODEL, "--budget", "12", "--set", "answer.glance.every_s=1"
    )
    assert broken.count(b'"glance"') >= 2
    assert set(asked_frames) == {25, 29}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer.glance.enabled": True, "answer.encode": "full"}, "encodes whole frames; give --encode sparse"),
        ({"answer.glance.enabled": True, "answer.encode": "prune"}, "encodes whole frames; give --encode sparse"),
        ({"answer.glance.tokens": 64, "allocate.budget": 64}, "leaves nothing of allocate.budget, 64 tokens"),
        ({"answer.glance.tokens": 64, "latency.target_ms": 100.0}, "leaves nothing of the target's least budget, 64"),
        ({"answer.glance.tokens": 64, "allocate.budget": "adaptive"}, "leaves nothing of allocate.budget, 64 tokens"),
        ({"answer.glance.enabled": False, "answer.overview": "keep"}, "answer.overview = keep needs glances"),
        ({"answer.glance.every_s": 0}, "should be more than 0"),
        ({"answer.glance.tokens": 0}, "should be 1 or more, or be 'auto'"),
    ],
)
def test_impossible_glances_are_refused_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        build_config([ConfigLayer("x", settings)])
    assert "\n" not in str(refused.value)


def test_an_overview_that_the_budget_pays_is_taken() -> None:
    for settings in ({"answer.glance.tokens": 63, "allocate.budget": 64}, {"answer.glance.tokens": 300}):
        build_config([ConfigLayer("x", settings)])


def remote(endpoint: str) -> Config:
    return Config(
        source="scene:moving",
        capture=CaptureConfig(max_frames=20, size="192x128", open_timeout_s=3.0),
        allocate=AllocateConfig(budget=12),
        answer=AnswerConfig(server=endpoint, query="What?", every_s=0.2),
    )


def test_a_glance_over_tcp_is_lost_with_its_server_and_taken_again(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_at(endpoint, model=MODEL):
        unbroken = without_clock(without_pieces(run_in_threads(remote(endpoint)).run()))
    assert sum(event["type"] == "glance" for event in unbroken) >= 1
    events = list(run_across_a_loss(remote(endpoint), monkeypatch, model=MODEL))
    assert [event for event in without_clock(without_pieces(events)) if event.get("code") != "answers-lost"] == unbroken
