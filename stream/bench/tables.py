"""The report as tables for people, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from arr_coc.counting import counted, of_counted
from stream.bench.compare import ENOUGH_RUNS, differences
from stream.bench.report import Report
from stream.bench.series import Row, Series, Spread
from stream.display.progress import PlainConsole
from stream.layers import known_keys
from stream.sources.address import shown_config

WIDTH = 80

SHOWN_STATISTICS = ("p50", "p99")
"""Of each latency, where several runs leave no room for more; the JSON has all."""

QUEUEING = """\
Read as fast as it goes: fps is the most that this machine does. Frames wait for
each other, so latencies of frames and answers are mostly queueing, and jitter
has no meaning. Add --realtime to measure latency and jitter."""
"""Below the figures of a run whose frames had no schedule."""


def show(series: Sequence[Series], source: str, *, scheduled: bool) -> None:
    """Prints one run, several, or two configurations beside each other."""
    console = PlainConsole()
    console.width = min(console.width, WIDTH)
    console.print()
    if len(series) == 2:
        _show_comparison(console, source, *series)
    elif len(series[0].runs) > 1:
        _show_runs(console, source, series[0])
    else:
        _show_run(console, source, series[0].runs[0])
    if not scheduled:
        console.print(QUEUEING)


def changed_keys(a: Series, b: Series) -> dict[str, tuple[object, object]]:
    """The keys in which two configurations differ, with both values."""
    return {key: (_value(a, key), _value(b, key)) for key in known_keys() if _value(a, key) != _value(b, key)}


def _value(series: Series, key: str) -> object:
    value: object = shown_config(series.config)
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _show_run(console: PlainConsole, source: str, run: Report) -> None:
    console.print(f"{source}: {of_counted(run.measured_frames, run.frames, 'frame')} measured")
    console.print(_left_out([run]), style="dim")
    table = _table("latency, ms", "p50", "p95", "p99", "max")
    table.add_column("from … to", style="dim")
    for one in run.latencies:
        if one.values is not None:
            values = (one.values.p50, one.values.p95, one.values.p99, one.values.max)
            table.add_row(one.name, *(f"{value:.2f}" for value in values), one.definition)
    console.print(table)
    console.print()
    table = _table("figure", "value")
    table.add_column("")
    table.add_column("definition", style="dim")
    for figure in run.figures:
        if figure.value is not None:
            table.add_row(figure.name, f"{figure.value:.2f}", figure.unit, figure.definition)
    console.print(table)
    dropped = ", ".join(f"{count} at {queue}" for queue, count in run.dropped.items())
    console.print(f"dropped: {dropped or 'nothing'}")


def _show_runs(console: PlainConsole, source: str, series: Series) -> None:
    frames = ", ".join(str(run.measured_frames) for run in series.runs)
    console.print(f"{source}: {counted(len(series.runs), 'run')}; frames measured: {frames}")
    console.print(_left_out(series.runs), style="dim")
    table = _table("latency, ms", "p50", "lowest–highest", "p99", "lowest–highest")
    rows = list(series.latency_rows(SHOWN_STATISTICS))
    for half, tail in zip(rows[::2], rows[1::2], strict=True):
        if half.spread is not None and tail.spread is not None:
            table.add_row(half.name, *_median_and_range(half.spread), *_median_and_range(tail.spread))
    console.print(table)
    console.print()
    table = _table("figure", "median", "lowest–highest")
    table.add_column("")
    for row in (*series.figure_rows(), *series.drop_rows()):
        if row.spread is not None:
            table.add_row(row.name, *_median_and_range(row.spread), row.unit)
    console.print(table)
    if not any(series.drop_rows()):
        console.print("dropped: nothing")
    console.print("Medians over the runs. Definitions: docs/measuring.md", style="dim")


def _show_comparison(console: PlainConsole, source: str, a: Series, b: Series) -> None:
    count = min(len(a.runs), len(b.runs))
    console.print(f"{source}: {count} {'run' if count == 1 else 'runs'} of each, by turns")
    for key, (of_a, of_b) in changed_keys(a, b).items():
        console.print(f"{key}: A {of_a}, B {of_b}")
    console.print(_left_out([*a.runs, *b.runs]), style="dim")
    table = _table("median", "A", "B", "B ÷ A", "lowest–highest")
    enough = count >= ENOUGH_RUNS
    if enough:
        table.add_column("")
    for one in differences(a, b):
        if one.row.statistic in ("", *SHOWN_STATISTICS):
            ratio = ("", "") if one.ratio is None else _median_and_range(one.ratio)
            style = "bold" if one.verdict == "differs" else "dim"
            cells = (_label(one.row), _number(one.a.median), _number(one.b.median), *ratio)
            verdict = (one.verdict,) if enough else ()
            table.add_row(*(Text(cell, style=style if enough else "") for cell in (*cells, *verdict)))
    console.print(table)
    if not enough:
        console.print(f"Too few runs to tell a difference from noise: --runs {ENOUGH_RUNS} or more.")
    else:
        console.print("differs: every run of one lies beyond every run of the other. noise: they", style="dim")
        console.print("overlap, so nothing was shown. Definitions: docs/measuring.md", style="dim")


def _table(first: str, *numbers: str) -> Table:
    table = Table(first, box=None, pad_edge=False, header_style="bold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _label(row: Row) -> str:
    unit = f", {row.unit}" if row.unit else ""
    return f"{row.label}{unit}"


def _median_and_range(spread: Spread) -> tuple[str, str]:
    return _number(spread.median), f"{_number(spread.low)}–{_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def _left_out(runs: Sequence[Report]) -> str:
    whole = [run for run in runs if not run.left_out_s[1]]
    if not whole:
        start_s, end_s = runs[0].left_out_s
        return f"The first {start_s:g} s and the last {end_s:g} s of each run are left out."
    return "Too short to leave out its start and its last second: the warm-up is included."
