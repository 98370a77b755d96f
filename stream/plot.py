"""A picture of a benchmark: latency in time with answers, cuts and drops; its distribution; what the stages take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.counting import counted
from stream.bench.report import Timeline
from stream.bench.series import Series
from stream.errors import ConfigError, OutputError

SERIES_COLOURS = ("tab:blue", "tab:orange")
CUT, DROP = "tab:purple", "tab:red"
PERCENTILES = (("p50", "tab:green"), ("p95", "goldenrod"), ("p99", "tab:red"))

FRAME_STAGES = (("texture", "tab:cyan"), ("allocate", "tab:olive"), ("waits", "lightgray"))
ANSWER_STAGES = (
    ("frame", "navy"),
    ("encode", "tab:green"),
    ("prefill", "tab:pink"),
    ("decode", "tab:brown"),
    ("answer waits", "lightgray"),
)
"""What a frame's and an answer's whole latency is the sum of, by the names in the report."""

SHOWN_PERCENTILE = 99.9
"""The distribution is drawn to here, so that one straggler does not press the rest into a line."""


def plot_series(series: Sequence[Series], title: str, path: str) -> None:
    """Writes a PNG of one series, or of two beside each other.

    Raises ConfigError where matplotlib is missing, OutputError where `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--png needs matplotlib, which is not installed: pip install matplotlib") from error
    figure = Figure(figsize=(12, 4 + 3.4 * len(series)), layout="constrained")
    figure.suptitle(title)
    _draw(figure, series)
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise OutputError(f"cannot write {path!r}: {error.strerror}") from error


def _draw(figure: Any, series: Sequence[Series]) -> None:
    parts = figure.subfigures(len(series) + 1, 1, height_ratios=[3.4] * len(series) + [4])
    largest_ms = max((float(one.middle_run().timeline.latency_ms.max(initial=0)) for one in series), default=0)
    for part, one, colour in zip(parts, series, SERIES_COLOURS, strict=False):
        latency, answers = part.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        timeline = one.middle_run().timeline
        _draw_latency(latency, timeline, colour, largest_ms)
        latency.set_title(_timeline_title(one, len(series)))
        _draw_answers(answers, timeline)
        part.legend(loc="outside right upper", fontsize="small")
    spread, stages = parts[-1].subfigures(1, 2, width_ratios=(3, 2))
    _draw_distribution(spread.subplots(), series)
    of_frames, of_answers = stages.subfigures(2, 1)
    _draw_stages(of_frames, series, FRAME_STAGES, "where a frame's time goes")
    _draw_stages(of_answers, series, ANSWER_STAGES, "where an answer's time goes")


def _timeline_title(series: Series, count: int) -> str:
    name = f"{series.name}: " if count > 1 else ""
    runs = "" if len(series.runs) == 1 else f", the middle one of {counted(len(series.runs), 'run')}"
    return f"{name}latency of each frame{runs}"


def _draw_latency(axes: Any, timeline: Timeline, colour: str, largest_ms: float) -> None:
    axes.plot(timeline.ready_s, timeline.latency_ms, ".", markersize=3, color=colour, label="frame")
    for index, at_s in enumerate(timeline.cuts_s):
        axes.axvline(at_s, color=CUT, linewidth=1, linestyle="--", label=None if index else "cut")
    if timeline.gaps_s:
        count = sum(frames for _, frames in timeline.gaps_s)
        places = [at_s for at_s, _ in timeline.gaps_s]
        tops = np.full(len(places), 1.1 * largest_ms)
        axes.plot(places, tops, "v", markersize=5, color=DROP, label=f"dropped: {count}")
    axes.set(ylabel="frame latency, ms", ylim=(0, 1.2 * largest_ms or 1))


def _draw_answers(axes: Any, timeline: Timeline) -> None:
    waiting = [(captured, first - captured) for captured, first, _ in timeline.answers_s]
    spoken = [(first, last - first) for _, first, last in timeline.answers_s]
    axes.broken_barh(waiting, (0, 1), facecolors="silver", label="answer: to first token")
    axes.broken_barh(spoken, (0, 1), facecolors="tab:green", label="answer: spoken")
    axes.set(xlabel="time of the run, s", ylim=(0, 1), yticks=[])


def _draw_distribution(axes: Any, series: Sequence[Series]) -> None:
    pooled = [_pooled_ms(one) for one in series]
    shown_ms = max((float(np.percentile(values, SHOWN_PERCENTILE)) for values in pooled if values.size), default=1)
    bins = np.linspace(0, 1.05 * shown_ms or 1, 80)
    share = axes.twinx()
    for one, values, colour in zip(series, pooled, SERIES_COLOURS, strict=False):
        label = one.name if len(series) > 1 else "frames"
        axes.hist(values, bins=bins, color=colour, alpha=0.5, label=label)
        if values.size:
            share.plot(np.sort(values), np.linspace(0, 100, values.size), color=colour, linewidth=1.5)
    if len(series) == 1 and pooled[0].size:
        for name, colour in PERCENTILES:
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
        means = np.array([_mean_ms(one, stage) for one in series])
        axes.barh(range(len(series)), means, left=left, color=colour, label=stage, height=0.6)
        left += means
    axes.set(yticks=range(len(series)), yticklabels=[one.name if len(series) > 1 else "" for one in series])
    axes.invert_yaxis()
    axes.set(xlabel="mean, ms", xlim=(0, 1.05 * float(left.max(initial=0)) or 1))
    axes.set_title(title)
    part.legend(loc="outside lower center", ncols=len(stages), fontsize="small", frameon=False, columnspacing=1)


def _pooled_ms(series: Series) -> npt.NDArray[np.float64]:
    return np.concatenate([run.timeline.latency_ms for run in series.runs])


def _mean_ms(series: Series, name: str) -> float:
    """Over the runs; a wait that clocks make negative is none."""
    means = [one.mean for run in series.runs for one in run.latencies if one.name == name and one.mean is not None]
    return max(0.0, float(np.mean(means))) if means else 0.0
