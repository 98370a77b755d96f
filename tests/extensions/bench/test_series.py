"""Several runs and two configurations: medians, spreads, differences and noise, and their JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stream.config import AllocateConfig, Config
from stream.errors import OutputError, ReaderGone
from stream.extensions.bench.output import QUEUEING, changed_keys, plot_series, print_report
from stream.extensions.bench.report import report
from stream.extensions.bench.series import SCHEMA, MetricDifference, Series, Spread, differences, document
from tests.extensions.bench.test_report import recorded

FAST, SLOW = Config(), Config(allocate=AllocateConfig(budget=64))


def series(name: str, *late_ms: float, config: Config = FAST, scheduled: bool = False) -> Series:
    runs = tuple(report(recorded(101, scheduled=scheduled, late_ms=late)) for late in late_ms)
    return Series(name, config, runs)


def difference(a: Series, b: Series, name: str, statistic: str = "p50") -> MetricDifference:
    return next(result for result in differences(a, b) if (result.row.name, result.row.statistic) == (name, statistic))


def test_a_figure_over_several_runs_has_a_median_and_a_range() -> None:
    rows = {row.label: row.spread for row in series("A", 5, 9, 6).rows()}
    assert rows["frame p50"] == Spread(*map(pytest.approx, (6, 5, 9)))
    assert rows["fps"] == Spread(*map(pytest.approx, (25, 25, 25)))
    assert rows["dropped, answer.busy"] == Spread(2, 2, 2)
    assert rows["interarrival"] is None


def test_the_middle_run_is_the_one_with_the_median_latency() -> None:
    variant = series("A", 5, 9, 6)
    assert variant.middle_run() is variant.runs[2]


def test_runs_that_lie_apart_differ_and_runs_that_overlap_are_noise() -> None:
    a = series("A", 5, 5.2, 5.1, 5.3, 5.4)
    faster, similar = series("B", 4, 4.1, 4.2, 4.1, 4), series("B", 5.2, 5, 5.3, 5.1, 5.6)
    result = difference(a, faster, "frame")
    assert result.verdict == "differs"
    assert result.ratio is not None
    assert result.ratio.median == pytest.approx(4.1 / 5.2, rel=0.03)
    assert difference(a, similar, "frame").verdict == "noise"
    assert difference(a, faster, "fps", "").verdict == "noise"


def test_a_few_runs_never_show_a_difference() -> None:
    result = difference(series("A", 5, 5, 5, 5), series("B", 1, 1, 1, 1), "frame")
    assert result.verdict == "too few runs"


def test_a_ratio_to_nothing_is_none() -> None:
    zero, positive = series("A", 0, 0), series("B", 5, 5)
    assert difference(zero, positive, "frame").ratio is None
    assert not any(result.row.name == "interarrival" for result in differences(zero, positive))


def test_the_json_of_a_comparison_reads_back() -> None:
    variants = series("A", 5, 6, 7), series("B", 5, 6, 7, config=SLOW)
    result = json.loads(json.dumps(document("clip.mp4", variants, scheduled=False)))
    assert (result["schema"], result["benchmark"], result["source"]) == (SCHEMA, "bench", "clip.mp4")
    assert result["machine"]["cores"] >= 1
    a, b = result["series"]
    assert (a["name"], b["name"], b["config"]["allocate"]["budget"]) == ("A", "B", 64)
    assert [run["latency_ms"]["frame"]["p50"] for run in a["runs"]] == pytest.approx([5, 6, 7])
    summary = {(row["name"], row["statistic"]): row for row in a["summary"]}
    assert summary["frame", "p50"] == {
        "name": "frame",
        "statistic": "p50",
        "unit": "ms",
        "median": 6,
        "min": 5,
        "max": 7,
    }
    assert summary["interarrival", None]["median"] is None
    assert {row["name"] for row in a["summary"]} == set(result["definitions"])
    compared = next(row for row in result["comparison"] if (row["name"], row["statistic"]) == ("frame", "p50"))
    assert compared["ratio"] == {"median": 1, "min": 1, "max": 1}
    assert compared["verdict"] == "too few runs"


def test_the_json_of_one_series_compares_nothing() -> None:
    assert document("clip.mp4", [series("A", 5)], scheduled=False)["comparison"] is None


def test_changed_keys_name_both_values() -> None:
    assert changed_keys(series("A", 5), series("B", 5, config=SLOW)) == {"allocate.budget": ("auto", 64)}
    other_source = series("B", 5, config=Config(source="rtsp://me:hush@camera/1"))
    assert changed_keys(series("A", 5), other_source) == {"source": ("", "rtsp://***@camera/1")}


@pytest.mark.parametrize("scheduled", [True, False])
@pytest.mark.parametrize("runs", [1, 3])
def test_the_tables_fit_80_columns(
    runs: int, scheduled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_report([series("A", *range(5, 5 + runs), scheduled=scheduled)], "clip.mp4", scheduled=scheduled)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("interarrival") for line in lines) == scheduled
    assert any("dropped" in line and "answer.busy" in line for line in lines)
    assert any("are left out" in line for line in lines)
    assert any("mostly queueing" in line for line in lines) != scheduled
    assert any("--realtime" in line for line in lines) != scheduled


def test_the_comparison_s_table_fits_80_columns_and_marks_differences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    five = [5, 5.2, 5.1, 5.3, 5.4]
    print_report([series("A", *five), series("B", *[ms / 2 for ms in five], config=SLOW)], "clip.mp4", scheduled=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "allocate.budget: A auto, B 64" in lines
    assert any(line.startswith("frame p50, ms") and line.rstrip().endswith("differs") for line in lines)
    assert any(line.startswith("fps") and line.rstrip().endswith("noise") for line in lines)


def test_the_note_on_queueing_fits_eighty_columns() -> None:
    assert max(map(len, QUEUEING.splitlines())) <= 80


def test_a_comparison_of_few_runs_reports_once_that_they_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    print_report([series("A", 5), series("B", 6)], "clip.mp4", scheduled=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "too few" in line.lower()] == [
        "Too few runs to distinguish a difference from noise: --runs 5 or more."
    ]
    assert any(line.startswith("frame p50, ms") for line in lines)


def test_tables_without_a_reader_raise_reader_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stdout = open(writer, "w", encoding="utf-8")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(ReaderGone):
        print_report([series("A", 5)], "clip.mp4", scheduled=False)
    os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    stdout.close()


@pytest.mark.parametrize("count", [1, 2])
def test_the_picture_is_a_png(count: int, tmp_path: Path) -> None:
    path = tmp_path / "bench.png"
    plot_series([series("A", 5), series("B", 6)][:count], "clip.mp4", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_empty_run_can_be_drawn_but_not_into_nowhere(tmp_path: Path) -> None:
    empty = Series("A", FAST, (report(recorded(0)),))
    with pytest.raises(OutputError, match="cannot write"):
        plot_series([empty], "none", str(tmp_path / "no" / "bench.png"))
