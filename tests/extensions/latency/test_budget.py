"""Latency target of a run: configuration, allocate stage, and displays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from arr_coc.allocation.frame import FrameAllocation
from arr_coc.budget import TokenLimits
from arr_coc.types import NS_PER_S
from stream.config import CaptureConfig, Config
from stream.config_loading import ConfigLayer, build_config, layer_from_option
from stream.display.lines import figures_text
from stream.errors import ConfigError
from stream.events import Answer, Event, FrameReady, Notice
from stream.extensions.latency.budget import MET, MISSED, OFF, LatencyController
from stream.extensions.latency.section import LatencySection
from stream.extensions.live.layout import figure_rows
from stream.monitor.statistics import RunStatistics
from stream.protocol.messages import Credit
from stream.runtime.plan import RunPlan
from stream.sources import SourceInfo
from stream.stages.base import FrameLimits
from stream.stages.newest_frame import AllocatePolicy
from tests.stream.stages.test_allocate import NEWEST, POLICY, Fixture
from tests.support.clock import FakeClock
from tests.support.events import TIMING, answer
from tests.support.figures import FIGURES
from tests.support.runs import StageRunner, expect, stage_runner
from tests.support.selection import frame_of

FILE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")
CAMERA = dataclasses.replace(FILE, name="camera", live=True)


TILES = 1024


def took(ttft_ms: float, tiles: int = 1024) -> Answer:
    timing = replace(TIMING, ttft_ms=ttft_ms)
    return replace(answer(1.0, "a", timing=timing), tokens_total=tiles)


def showing(tokens: int, change_since: float = 1.0) -> FrameAllocation:
    """Allocation of a frame with this number of tokens and this change since the last answer."""
    return frame_of(torch.zeros(tokens, 3, dtype=torch.int64), torch.zeros(0, 0), change_since)


def limits(target: LatencyController, tiles: int) -> tuple[int | None, int | None]:
    """The budget and the most tokens of a frame."""
    given = target.limits(tiles, FrameLimits())
    return given.budget, given.most_tokens


def answers(target: LatencyController, ttft_ms: float, count: int, tiles: int = 1024) -> list[Notice]:
    """Notices while answers about frames of the budget take this long."""
    reported: list[Any] = []
    for _ in range(count):
        target.on_request(showing(limits(target, tiles)[1]), None)
        reported += target.on_event(took(ttft_ms, tiles), TILES)[1:]
    return reported


def test_with_a_memory_appended_tokens_count() -> None:
    target = LatencyController(200.0, 64)
    observed: list[int] = []
    target._controller.observe = lambda ttft_ms, tokens, tiles: observed.append(tokens)  # type: ignore[method-assign, assignment]
    for appended_tokens in (64, 3, 0, None):
        target.on_request(showing(64), appended_tokens)
        target.on_event(took(100), TILES)
    assert observed == [64, 3, 64]


def test_the_search_starts_at_a_fixed_budget_and_limits_an_adaptive_one() -> None:
    assert limits(LatencyController(500, 200), 1024) == (200, 200)
    assert limits(LatencyController(500, 1000), 1024) == (400, 400)
    assert limits(LatencyController(500, 200), 40) == (40, 40)
    assert limits(LatencyController(500, "adaptive"), 1024) == (None, 276)


def test_the_limits_of_a_run_bound_what_the_target_gives() -> None:
    target = LatencyController(500, "adaptive", TokenLimits(20, 90))
    assert limits(target, 1024) == (None, 90)
    (notice,) = answers(target, 4000, 20)
    assert notice.message.startswith("latency.target_ms = 500 cannot be met: even with 20 tokens p95")
    assert limits(target, 1024) == (None, 20)


@pytest.mark.parametrize(("budget", "tiles", "tokens"), [("auto", 300, 81), ("auto", 2040, 400), ("50%", 300, 150)])
def test_the_search_starts_at_a_share_of_the_frame(budget: str, tiles: int, tokens: int) -> None:
    assert limits(LatencyController(500, budget), tiles) == (tokens, tokens)


def test_an_answer_reports_the_target_and_the_new_budget() -> None:
    target = LatencyController(500, 200)
    for _ in range(4):
        target.on_request(showing(limits(target, 1024)[1]), None)
        (reported,) = target.on_event(took(900), TILES)
    assert isinstance(reported, Answer)
    assert reported.target_ms == 500
    assert reported.budget == limits(target, 1024)[1] < 150


def test_a_missed_target_is_reported_once_and_so_is_its_recovery() -> None:
    target = LatencyController(500, 64)
    (alarm,) = answers(target, 800, 20)
    assert alarm.code == MISSED
    assert alarm.message.startswith(
        "latency.target_ms = 500 cannot be met: even with 64 tokens p95 time to first token is 8"
    )
    (recovery,) = answers(target, 100, 20)
    assert (recovery.code, recovery.message) == (MET, "latency.target_ms = 500 can be met again")


def test_frames_shown_whole_and_answers_without_a_time_do_not_change_the_budget() -> None:
    target = LatencyController(500, 200)
    for _ in range(10):
        target.on_request(showing(1024), None)
        assert target.on_event(took(5000), TILES) == [replace(took(5000), target_ms=500.0, budget=200)]
        target.on_request(showing(200), None)
        target.on_event(replace(took(1), timing=None), TILES)
        assert limits(target, 1024) == (200, 200)


def test_frames_that_the_model_has_in_memory_do_not_change_the_budget() -> None:
    target, frame = LatencyController(500, 200), showing(200)
    for repeat in (frame, showing(200, change_since=0.0)):
        target.on_request(showing(190), None)
        target.on_request(frame, None)
        for _ in range(10):
            target.on_request(repeat, None)
            target.on_event(took(5), TILES)
            assert limits(target, 1024) == (200, 200)
    for _ in range(5):
        target.on_request(showing(190, change_since=0.0), None)
        target.on_request(showing(200, change_since=0.0), None)
        target.on_event(took(5), TILES)
    assert limits(target, 1024) == (400, 400)


@pytest.mark.parametrize(
    ("info", "realtime", "answers", "has_controller"),
    [
        (FILE, False, "lockstep", False),
        (FILE, False, "newest", True),
        (FILE, True, "lockstep", True),
        (CAMERA, False, "lockstep", True),
    ],
)
def test_the_target_is_off_in_lockstep(info: SourceInfo, realtime: bool, answers: str, has_controller: bool) -> None:
    config = Config.model_validate(
        {
            "latency": LatencySection(target_ms=300.0),
            "capture": CaptureConfig(realtime=realtime),
            "pipeline": {"answers": answers},
        }
    )
    plan = RunPlan.of(config, info)
    assert [type(setter) for setter in plan.budget.setters] == [LatencyController] * has_controller
    assert [notice.code for notice in plan.notices] == [OFF] * (not has_controller)
    plain = RunPlan.of(Config(), info)
    assert (plain.budget.setters, plain.notices) == ((), ())


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as stages:
        yield stages


def holding(runner: StageRunner, target: LatencyController) -> Fixture:
    fixture = Fixture(runner, AllocatePolicy(live=POLICY.live, whole_frames=False), NEWEST, target=target)
    fixture.begin()
    return fixture


def one_answer(fixture: Fixture, number: int, late_ms: int) -> list[Event]:
    """Events of a frame whose answer comes this late."""
    fixture.clock.advance(NS_PER_S)
    fixture.show(10 * number)
    expect(fixture.texture, Credit)
    fixture.frame_asked()
    fixture.clock.advance(late_ms * 1_000_000)
    fixture.reply(number)
    events = [fixture.next_event(), fixture.next_event()]
    assert [type(event) for event in events] == [FrameReady, Answer]
    return events


def test_frames_get_the_budget_that_the_target_allows(runner: StageRunner) -> None:
    fixture = holding(runner, LatencyController(1e6, 200))  # the allocator's own budget is 4
    frame, reported = one_answer(fixture, 0, 50)
    assert isinstance(frame, FrameReady)
    assert isinstance(reported, Answer)
    assert (frame.tokens, frame.tiles) == (12, 12)
    assert (reported.target_ms, reported.budget) == (1e6, 12)


def test_an_adaptive_budget_holds_below_the_limit(runner: StageRunner) -> None:
    frame, reported = one_answer(holding(runner, LatencyController(1e6, "adaptive")), 0, 50)
    assert isinstance(frame, FrameReady)
    assert isinstance(reported, Answer)
    assert (frame.tokens, reported.budget) == (4, 12)


def test_a_missed_target_is_reported_after_the_answer(runner: StageRunner) -> None:
    fixture = holding(runner, LatencyController(20, 200))
    for number in range(3):
        one_answer(fixture, number, 50)
    notice = fixture.next_event()
    assert isinstance(notice, Notice)
    assert notice.code == MISSED
    assert "even with 12 tokens" in notice.message


def test_wrong_targets_name_the_key() -> None:
    message = "--target-ms should be (more than 0|a number), or be none"
    for text in ("0", "-5", "nan", "soon", "true"):
        with pytest.raises(ConfigError, match=f"{message}, got"):
            build_config([layer_from_option("--target-ms", "latency.target_ms", text)])
    assert build_config([layer_from_option("--target-ms", "latency.target_ms", "250")]).latency.target_ms == 250


@pytest.mark.parametrize("encode", ["full", "weighted"])
def test_a_target_needs_an_encoding_that_the_budget_changes(encode: str) -> None:
    layers = [
        ConfigLayer("--target-ms", {"latency.target_ms": 100}),
        ConfigLayer("--encode", {"answer.encode": encode}),
    ]
    with pytest.raises(ConfigError, match=rf"--target-ms: .* answer.encode = {encode} ignores"):
        build_config(layers)
    assert build_config([*layers, ConfigLayer("x", {"answer.encode": "prune"})]).answer.encode == "prune"


def held(**changes: Any) -> Any:
    return dataclasses.replace(FIGURES, target_ms=500.0, budget=212, ttft_p95_ms=480.4, **changes)


def test_p95_is_of_all_answers_and_target_and_budget_are_of_the_last() -> None:
    live = RunStatistics(FakeClock())
    live.add(took(100))
    assert (live.snapshot().target_ms, live.snapshot().budget, live.snapshot().ttft_p95_ms) == (None, None, 100)
    for ttft_ms in (*[100.0] * 17, 200.0, 200.0):
        live.add(replace(took(ttft_ms), target_ms=500.0, budget=212))
    figures = live.snapshot()
    assert (figures.target_ms, figures.budget, figures.ttft_p95_ms) == (500, 212, 200)


def test_target_and_budget_are_shown_if_a_target_is_set() -> None:
    assert "target" not in dict(figure_rows(FIGURES))
    assert dict(figure_rows(held()))["target"] == ["500 ms", "first token p95 480 ms", "budget 212"]
    assert " · first token p95 480 for 500 ms, budget 212 · " in figures_text(held(), "0:01.0")
