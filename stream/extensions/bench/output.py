"""Report of a measurement for people: tables of at most 80 columns, and a picture as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from arr_coc.errors import counted, of_counted
from stream.config_loading import leaves
from stream.display.progress import PlainConsole
from stream.errors import OutputError
from stream.extensions.bench.report import Report
from stream.extensions.bench.series import ENOUGH_RUNS, Series, Spread, differences
from stream.sources.address import shown_config

SHOWN_STATISTICS = ("p50", "p99")
"""Statistics of each latency in the table of several runs, which has no room for more; the JSON has all."""

QUEUEING = """\
Read as fast as possible: fps is the maximum of this machine. Frames wait for
each other, so latencies of frames and answers are mostly queueing, and jitter
has no meaning. Add --realtime to measure latency and jitter."""
"""Below the figures of a run whose frames had no schedule."""

SERIES_COLOURS = ("tab:blue", "tab:orange")
CUT = "tab:purple"
DROP = "tab:red"
MARKED_PERCENTILES = (("p50", "tab:green"), ("p95", "goldenrod"), ("p99", "tab:red"))

FRAME_STAGES = (("texture", "tab:cyan"), ("allocate", "tab:olive"), ("held", "whitesmoke"), ("waits", "lightgray"))
ANSWER_STAGES = (
    ("frame", "navy"),
    ("encode", "tab:green"),
    ("prefill", "tab:pink"),
    ("decode", "tab:brown"),
    ("answer waits", "lightgray"),
)
"""Parts of the whole latency of a frame and of an answer, by their names in the report."""


def print_report(series: Sequence[Series], source: str, *, scheduled: bool) -> None:
    """Prints one run, several, or two configurations beside each other."""
    console = PlainConsole()
    console.width = min(console.width, 80)
    console.print()
    if len(series) == 2:
        _print_comparison(console, source, *series)
    elif len(series[0].runs) > 1:
        _print_runs(console, source, series[0])
    else:
        _print_run(console, source, series[0].runs[0])
    if not scheduled:
        console.print(QUEUEING)


def changed_keys(a: Series, b: Series) -> dict[str, tuple[object, object]]:
    """The keys in which two configurations differ, with both values."""
    values_a, values_b = (dict(leaves(shown_config(series.config).model_dump())) for series in (a, b))
    return {
        key: (values_a.get(key), values_b.get(key))
        for key in {**values_a, **values_b}
        if values_a.get(key) != values_b.get(key)
    }


def _print_run(console: PlainConsole, source: str, run: Report) -> None:
    console.print(f"{source}: {of_counted(run.measured_frames, run.frames, 'frame')} measured")
    console.print(_left_out([run]), style="dim")
    table = _table("latency, ms", "p50", "p95", "p99", "max")
    table.add_column("from … to", style="dim")
    for latency in run.latencies:
        if latency.values is not None:
            values = (latency.values.p50, latency.values.p95, latency.values.p99, latency.values.max)
            table.add_row(latency.name, *(f"{value:.2f}" for value in values), latency.definition)
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


def _print_runs(console: PlainConsole, source: str, series: Series) -> None:
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


def _print_comparison(console: PlainConsole, source: str, a: Series, b: Series) -> None:
    count = min(len(a.runs), len(b.runs))
    console.print(f"{source}: {count} {'run' if count == 1 else 'runs'} of each, alternating")
    for key, (of_a, of_b) in changed_keys(a, b).items():
        console.print(f"{key}: A {of_a}, B {of_b}")
    console.print(_left_out([*a.runs, *b.runs]), style="dim")
    table = _table("median", "A", "B", "B ÷ A", "lowest–highest")
    has_verdict = count >= ENOUGH_RUNS
    if has_verdict:
        table.add_column("")
    for difference in differences(a, b):
        if difference.row.statistic in ("", *SHOWN_STATISTICS):
            if difference.ratio is None:
                ratio = ("", "")
            else:
                ratio = _median_and_range(difference.ratio)
            if difference.verdict == "differs":
                style = "bold"
            else:
                style = "dim"
            label = difference.row.label
            if difference.row.unit:
                label = f"{label}, {difference.row.unit}"
            cells = (label, _number(difference.a.median), _number(difference.b.median), *ratio)
            verdict = (difference.verdict,) if has_verdict else ()
            table.add_row(*(Text(cell, style=style if has_verdict else "") for cell in (*cells, *verdict)))
    console.print(table)
    if not has_verdict:
        console.print(f"Too few runs to distinguish a difference from noise: --runs {ENOUGH_RUNS} or more.")
    else:
        console.print("differs: every run of one lies beyond every run of the other. noise: they", style="dim")
        console.print("overlap, so nothing was shown. Definitions: docs/measuring.md", style="dim")


def _table(first: str, *numbers: str) -> Table:
    table = Table(first, box=None, pad_edge=False, header_style="bold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _median_and_range(spread: Spread) -> tuple[str, str]:
    return _number(spread.median), f"{_number(spread.low)}–{_number(spread.high)}"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.2f}"


def _left_out(runs: Sequence[Report]) -> str:
    short_runs = [run for run in runs if not run.left_out_s[1]]
    if not short_runs:
        start_s, end_s = runs[0].left_out_s
        return f"The first {start_s:g} s and the last {end_s:g} s of each run are left out."
    return "Too short to leave out its start and its last second: the warm-up is included."


def plot_series(series: Sequence[Series], title: str, path: str) -> None:
    """Writes a PNG of one series, or of two beside each other.

    Needs matplotlib. Raises OutputError if `path` cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4 + 3.4 * len(series)), layout="constrained")
    figure.suptitle(title)
    _draw(figure, series)
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise OutputError(f"cannot write {path!r}: {error.strerror}") from error


def _draw(figure: Any, series: Sequence[Series]) -> None:
    parts = figure.subfigures(len(series) + 1, 1, height_ratios=[3.4] * len(series) + [4])
    largest_ms = max((float(variant.middle_run().timeline.latency_ms.max(initial=0)) for variant in series), default=0)
    for part, variant, colour in zip(parts, series, SERIES_COLOURS, strict=False):
        latency, answers = part.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        timeline = variant.middle_run().timeline
        latency.plot(timeline.ready_s, timeline.latency_ms, ".", markersize=3, color=colour, label="frame")
        for index, at_s in enumerate(timeline.cuts_s):
            latency.axvline(at_s, color=CUT, linewidth=1, linestyle="--", label=None if index else "cut")
        if timeline.gaps_s:
            count = sum(frames for _, frames in timeline.gaps_s)
            places = [at_s for at_s, _ in timeline.gaps_s]
            tops = np.full(len(places), 1.1 * largest_ms)
            latency.plot(places, tops, "v", markersize=5, color=DROP, label=f"dropped: {count}")
        latency.set(ylabel="frame latency, ms", ylim=(0, 1.2 * largest_ms or 1))
        name = f"{variant.name}: " if len(series) > 1 else ""
        if len(variant.runs) == 1:
            runs = ""
        else:
            runs = f", the middle one of {counted(len(variant.runs), 'run')}"
        latency.set_title(f"{name}latency of each frame{runs}")
        waits = [(captured, first - captured) for captured, first, _ in timeline.answers_s]
        utterances = [(first, last - first) for _, first, last in timeline.answers_s]
        answers.broken_barh(waits, (0, 1), facecolors="silver", label="answer: to first token")
        answers.broken_barh(utterances, (0, 1), facecolors="tab:green", label="answer: spoken")
        answers.set(xlabel="time of the run, s", ylim=(0, 1), yticks=[])
        part.legend(loc="outside right upper", fontsize="small")
    spread, stages = parts[-1].subfigures(1, 2, width_ratios=(3, 2))
    _draw_distribution(spread.subplots(), series)
    of_frames, of_answers = stages.subfigures(2, 1)
    _draw_stages(of_frames, series, FRAME_STAGES, "where a frame's time goes")
    _draw_stages(of_answers, series, ANSWER_STAGES, "where an answer's time goes")


def _draw_distribution(axes: Any, series: Sequence[Series]) -> None:
    pooled = [np.concatenate([run.timeline.latency_ms for run in variant.runs]) for variant in series]
    # the distribution is drawn to here, so that one straggler does not press the rest into a line
    shown_ms = max((float(np.percentile(values, 99.9)) for values in pooled if values.size), default=1)
    bins = np.linspace(0, 1.05 * shown_ms or 1, 80)
    share = axes.twinx()
    for variant, values, colour in zip(series, pooled, SERIES_COLOURS, strict=False):
        label = variant.name if len(series) > 1 else "frames"
        axes.hist(values, bins=bins, color=colour, alpha=0.5, label=label)
        if values.size:
            share.plot(np.sort(values), np.linspace(0, 100, values.size), color=colour, linewidth=1.5)
    if len(series) == 1 and pooled[0].size:
        for name, colour in MARKED_PERCENTILES:
            value = float(np.percentile(pooled[0], int(name[1:])))
            axes.axvline(value, color=colour, linewidth=1, label=f"{name} {value:.2f} ms")
    axes.set(xlabel="frame latency, ms", ylabel="frames", xlim=(0, bins[-1]))
    axes.set_title("distribution, and share of frames at most so late")
    axes.legend(loc="center right", framealpha=0.9)
    share.set(ylabel="share, %", ylim=(0, 101))


def _draw_stages(part: Any, series: Sequence[Series], stages: Sequence[tuple[str, str]], title: str) -> None:
    """One bar a series, made of the stages' mean times."""
    axes = part.subplots()
    left = np.zeros(len(series))
    for stage, colour in stages:
        means = np.array([_mean_ms(variant, stage) for variant in series])
        axes.barh(range(len(series)), means, left=left, color=colour, label=stage, height=0.6)
        left += means
    axes.set(yticks=range(len(series)), yticklabels=[variant.name if len(series) > 1 else "" for variant in series])
    axes.invert_yaxis()
    axes.set(xlabel="mean, ms", xlim=(0, 1.05 * float(left.max(initial=0)) or 1))
    axes.set_title(title)
    part.legend(loc="outside lower center", ncols=len(stages), fontsize="small", frameon=False, columnspacing=1)


def _mean_ms(series: Series, name: str) -> float:
    """Over the runs; a wait that clocks make negative is none."""
    means = [
        latency.mean
        for run in series.runs
        for latency in run.latencies
        if latency.name == name and latency.mean is not None
    ]
    return max(0.0, float(np.mean(means))) if means else 0.0
