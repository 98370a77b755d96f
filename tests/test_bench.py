"""The benchmark's report: what is measured, what is left out, and its JSON and picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stream.bench import Recorder, Report, report
from stream.commands.bench import show
from stream.config import Config
from stream.errors import ConfigError, OutputError
from stream.plot import plot_report
from tests.event_maker import answer, frame, summary


def recorded(frames: int, gap_ms: int = 40) -> Recorder:
    """Frames every `gap_ms`, each ready 5 ms after capture, and an answer for every tenth."""
    recorder = Recorder()
    for index in range(frames):
        recorder.write(frame(index, index * gap_ms / 1000))
        if index % 10 == 0:
            recorder.write(answer(index * gap_ms / 1000, "x", frame_index=index))
    recorder.write(summary(dropped={"answer.busy": 2}))
    recorder.close()
    return recorder


def figure(result: Report, name: str) -> float | None:
    return next(one.value for one in result.figures if one.name == name)


def test_the_first_and_last_second_are_left_out() -> None:
    result = report(recorded(101), scheduled=False)
    assert (result.frames, result.measured_frames, result.trim_s) == (101, 51, 1.0)
    assert figure(result, "fps") == pytest.approx(25)
    assert figure(result, "answers") == pytest.approx(5 / 2)


def test_a_short_run_is_measured_whole_and_says_so() -> None:
    result = report(recorded(50), scheduled=False)
    assert (result.measured_frames, result.trim_s) == (50, 0.0)


def test_latencies_are_named_and_jitter_needs_a_schedule() -> None:
    free, paced = report(recorded(101), scheduled=False), report(recorded(101), scheduled=True)
    frame_latency = free.latencies[0].values
    assert frame_latency is not None
    assert frame_latency.p50 == pytest.approx(5)
    assert figure(free, "interarrival") is None
    assert figure(paced, "interarrival") == pytest.approx(0, abs=1e-3)
    assert figure(paced, "deadline misses") == 0


def test_an_empty_run_has_no_figures_and_no_errors() -> None:
    result = report(Recorder(), scheduled=True)
    assert all(one.values is None for one in result.latencies)
    assert all(one.value is None for one in result.figures)


def test_json_holds_configuration_machine_and_definitions() -> None:
    told = json.loads(json.dumps(report(recorded(101), scheduled=True).as_json(Config())))
    assert told["config"]["allocate"]["budget"] == 273
    assert {"cpu", "cores", "python", "torch"} <= set(told["machine"])
    assert told["latency_ms"]["frame"]["p99"] == pytest.approx(5)
    assert all(entry["definition"] for entry in (*told["figures"].values(), *told["latency_ms"].values()))
    assert told["dropped"] == {"answer.busy": 2}


@pytest.mark.parametrize("scheduled", [True, False])
def test_the_table_fits_80_columns(
    scheduled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = report(recorded(101), scheduled=scheduled)
    show(result, "clip.mp4", scheduled=scheduled)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 26
    assert any(line.startswith("interarrival") for line in lines) == scheduled
    assert "dropped: 2 at answer.busy" in lines


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "bench.png"
    plot_report(report(recorded(101), scheduled=False), "clip.mp4", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="cannot write"):
        plot_report(report(Recorder(), scheduled=False), "none", str(tmp_path / "no" / "bench.png"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"arr-coc-stream\[plot\]"):
        plot_report(report(Recorder(), scheduled=False), "none", "x.png")
