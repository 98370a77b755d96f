"""The parts of the whole-model benchmark that judge, and one process of each kind with the bundled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arr_coc.hub import bundled_model_path
from benchmarks import whole_model
from benchmarks.support.whole_runs import MEASURED_MS, STOCK, RunFigures, run_pipeline, run_stock
from benchmarks.whole_model import against_stock, material, rounds_of, row, table
from tests.support.video import make_video, moving_square


def figures(way: str, scale: float, peak_mib: float = 100.0) -> RunFigures:
    answers = [dict.fromkeys(MEASURED_MS, scale * factor) for factor in (1, 2, 30)]
    return RunFigures(way, 10, answers, [scale / 1e3] * 3, [scale] * 3, {"a": peak_mib, "b": 1.0}, [0, 12])


def test_a_row_is_of_medians_and_the_largest_memory() -> None:
    result = row([figures("sparse 27%", 10.0), figures("sparse 27%", 10.0, peak_mib=200.0)])
    assert result["first_token_ms"] == 20.0
    assert result["tokens_hz"] == 550.0
    assert (result["answers_hz"], result["peak_mib"], result["answers"]) == (100.0, 201, 6)


def test_ways_are_compared_with_the_stock_model() -> None:
    rows = [row([figures(STOCK, 40.0)]), row([figures("sparse 27%", 10.0, peak_mib=50.0)])]
    assert against_stock(rows) == {
        "sparse 27%": {"first_token": 4.0, "tokens": 4.0, "answers": 4.0, "cpu": 4.0, "memory": 0.5}
    }
    assert against_stock(rows[1:]) == {}
    assert [line.split()[0] for line in table(rows).splitlines()] == ["way", STOCK, "sparse"]


def test_ways_and_stock_take_turns_on_the_same_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def measure(model: Path, clip: Path, way: str, *numbers: int) -> RunFigures:
        calls.append((way, numbers))
        return figures(way, 1.0)

    monkeypatch.setattr(whole_model, "measure_way", measure)
    *_, runs = rounds_of(Path(), Path(), ["full 100%", "sparse 10%"], 2, 3)
    assert calls == 2 * [("full 100%", (3,)), ("sparse 10%", (3,)), (STOCK, (0, 12))]
    assert [len(results) for results in runs.values()] == [2, 2, 2]


def test_a_run_and_stock_answer_about_the_same_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled model ends its answers itself; twelve tokens are not asked of it."""
    monkeypatch.setattr("benchmarks.support.whole_runs._times", lambda answer: {"answer_ms": answer.timing.total_ms})
    monkeypatch.setattr(whole_model, "CLIP", "clip.mp4")
    clip = make_video(tmp_path / "clip.mp4", moving_square(40, 128, 96))
    with material(tmp_path, bundled_model_path()) as (model, clip_path):
        assert clip_path == clip
        run = run_pipeline(str(model), str(clip_path), "sparse 50%", 2)
        stock = run_stock(str(model), str(clip_path), run.frames)
    assert (len(run.frames), run.visual_tokens, stock.visual_tokens) == (2, 6, 12)
    assert len(stock.answers) == len(run.answers) == len(run.gaps_s) == len(stock.cpu_s) == 1
    assert run.peak_mib.keys() == {"frames", "answers"}
    assert min(run.peak_mib.values()) > 50
