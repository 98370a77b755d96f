"""Clocks that jump: the wall clock has no effect, and a monotonic clock that stops or leaps causes no failure."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arr_coc.types import NS_PER_S
from stream.answer.triggers import AnswerTriggers
from stream.config import AnswerConfig, Config, PipelineConfig
from stream.events import Answer, Event, Summary
from stream.monitor.statistics import RunStatistics
from stream.runtime.frame_stages import run_in_threads
from tests.support.clock import FakeClock
from tests.support.events import frame
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[2]
HOUR_NS = 3600 * NS_PER_S
FAKE = "tests.support.answer_models:FakeAnswerModel"
FRAMES = 20

WALL_CLOCK_FOR_PEOPLE = {
    "stream/extensions/fleet/on_ray/hosts.py": "relates the monotonic times of two machines",
    "stream/extensions/fleet/on_ray/run.py": "relates the monotonic times of two machines",
    "stream/logs.py": "dates log lines for readers",
    "stream/extensions/record/recorder.py": "dates recordings for readers",
    "stream/extensions/zeromq/sinks.py": "stamps messages for other machines",
    "stream/runtime/pictures.py": "stamps pictures with the time of day for browsers",
    "stream/extensions/robotics/pictures.py": "places a recording among those of other programs, if asked to",
    "stream/extensions/webhook/sink.py": "stamps messages for other machines",
    "stream/extensions/onvif/soap.py": "stamps requests with the time of a camera, which refuses others",
    "stream/extensions/otlp/sink.py": "places spans among those of other programs",
    "stream/extensions/web/hub.py": "stamps messages for browsers",
    "stream/clock.py": "dates answers for users",
    "stream/runtime/session.py": "dates events of live sources",
    "stream/extensions/past/commands/search.py": "counts times of a search from the present",
    "stream/extensions/mcp/server.py": "counts times of a search from the present",
    "stream/extensions/past/writer.py": "ages what is remembered",
    "stream/extensions/clips/folder.py": "ages files of clips, and names them",
    "stream/runtime/frame_stages.py": "gives schedules of watches the time of day",
    "stream/runtime/plan.py": "gives schedules of watches the time of day",
    "stream/extensions/clips/sink.py": "names files of clips by the time of day",
    "stream/extensions/on_match/sink.py": "gives commands the time of a match",
    "stream/extensions/past/sink.py": "dates what is remembered",
    "stream/extensions/detections/feed.py": "relates the times of a detector on another machine",
    "stream/extensions/web/chat/completions.py": "stamps replies for clients",
    "stream/extensions/past/page.py": "counts times of a search from the present",
}
"""Modules that may read the time of day, with the reason."""


def wall_clocks(path: Path) -> list[str]:
    """Every use of the time of day in a file."""
    uses = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "time.localtime", "time.ctime"}:
                uses.append(f"{name}, line {node.lineno}")
    return uses


def test_nothing_depends_on_the_wall_clock() -> None:
    files = [path for package in ("stream", "arr_coc") for path in (ROOT / package).rglob("*.py")]
    using = {str(path.relative_to(ROOT)): uses for path in files if (uses := wall_clocks(path))}
    assert set(using) <= set(WALL_CLOCK_FOR_PEOPLE), using


class UnsteadyClock:
    """Answers with the next of some steps at every reading: standing still, or leaping ahead."""

    def __init__(self, *steps_ns: int) -> None:
        self._steps_ns = steps_ns
        self._readings = 0
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += self._steps_ns[self._readings % len(self._steps_ns)]
        self._readings += 1
        return self._now_ns


CLOCKS = {
    "standing still": (0,),
    "suspended now and then": (1_000_000,) * 20 + (5 * HOUR_NS,),
    "leaping at every reading": (HOUR_NS,),
}
RUNS = [*(("lockstep", steps_ns) for steps_ns in CLOCKS.values()), ("newest", CLOCKS["standing still"])]
"""Between answers in lockstep silence is counted in waits; a run that drops frames takes a leap for silence."""


def times_of(event: Event) -> list[float]:
    """Every latency and duration of an event."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    values = [value for name, value in fields.items() if name.endswith("_ms") and isinstance(value, (int, float))]
    return values + [value for value in (fields.get("timing") or {}).values()]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_video(tmp_path_factory.mktemp("video") / "square.mp4", moving_square(FRAMES, 96, 64), 10))


@pytest.mark.parametrize(("answers", "steps_ns"), RUNS)
def test_a_run_goes_well_by_an_unsteady_clock(video: str, answers: str, steps_ns: tuple[int, ...]) -> None:
    config = Config.model_validate(
        {
            "source": video,
            "answer": AnswerConfig(every_s=0.5),
            "pipeline": PipelineConfig(single_process=True, answers=answers),
        }
    )
    events = list(run_in_threads(config, UnsteadyClock(*steps_ns), model_loader=FAKE).run())
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert (summary.ended, summary.frames) == ("finished", FRAMES)
    answer_events = [event for event in events if isinstance(event, Answer)]
    assert len(answer_events) >= (5 if answers == "lockstep" else 2)
    for event in events:
        assert all(math.isfinite(value) and value >= 0 for value in times_of(event)), event


def test_media_time_decides_and_not_the_clock(video: str) -> None:
    def run(*steps_ns: int) -> list[tuple[int, float, str]]:
        config = Config(source=video, answer=AnswerConfig(every_s=0.5), pipeline=PipelineConfig(single_process=True))
        events = run_in_threads(config, UnsteadyClock(*steps_ns), model_loader=FAKE).run()
        return [(e.frame_index, e.pts_s, e.text) for e in events if isinstance(e, Answer)]

    runs = [run(*steps_ns) for steps_ns in CLOCKS.values()]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("step_ns", [0, 1, HOUR_NS, 10_000 * HOUR_NS])
def test_triggers_speak_once_after_a_leap_and_go_on(step_ns: int) -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=2))
    now_ns, fired = 0, []
    for index in range(200):
        now_ns += step_ns if index == 100 else 40_000_000
        if triggers.observe(now_ns):
            fired.append(index)
            triggers.fire()
    assert fired[0] == 0
    assert fired.count(100) <= 1
    assert len(fired) in (4, 5)


def test_triggers_survive_a_clock_that_goes_back() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=1))
    for now_ns in (10 * NS_PER_S, 0, 5, HOUR_NS, 3, 3, 3):
        if triggers.observe(now_ns):
            triggers.fire()
    assert triggers.observe(3 + NS_PER_S) == "every"


@pytest.mark.parametrize("ready_ns", [[0, 0, 0], [5, 5, HOUR_NS]])
def test_statistics_by_an_unsteady_clock_is_finite(ready_ns: list[int]) -> None:
    clock = FakeClock()
    run = RunStatistics(clock)
    for index, at_ns in enumerate(ready_ns):
        run.add(frame(index, index / 10, ready_ns=at_ns, capture_ns=at_ns))
    timing = run.summary("finished", None, {}, "cpu").timing
    assert timing is not None
    assert all(math.isfinite(value) and value >= 0 for value in timing.values())
