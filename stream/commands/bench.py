"""`bench`: how fast, how soon, how evenly."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.options import RunOptions, takes_run_options
from stream.commands.outcome import exit_status, report_written
from stream.errors import ConfigError
from stream.layers import Layer

if TYPE_CHECKING:
    from rich.table import Table

    from stream.bench import Report

AS_FAST_AS_IT_GOES = Layer("bench", {"pipeline.answers": "newest"})
"""No frame waits for an answer."""


@takes_run_options
def bench(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="A video file, or scene:NAME.", show_default=False)
    ] = None,
    json_path: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write every figure as JSON.", show_default=False),
    ] = None,
    png_path: Annotated[
        str | None,
        typer.Option("--png", metavar="FILE", help="Also draw the frame latencies.", show_default=False),
    ] = None,
    *,
    run: RunOptions,
) -> int:
    """Measure frames a second, latency, jitter and drops."""
    top = [] if source is None else [Layer("SOURCE", {"source": source})]
    config = run.configuration(base=[AS_FAST_AS_IT_GOES], top=top)
    if not config.source:
        raise ConfigError("no SOURCE to measure; give a video file, or scene:demo for a drawn one")
    if png_path is not None and find_spec("matplotlib") is None:
        raise ConfigError("--png needs matplotlib, which is not installed: pip install 'arr-coc-stream[plot]'")

    from stream.sinks.open import check_not_input
    from stream.sinks.output_file import OutputFile
    from stream.sinks.terminal import TerminalSink

    for path in filter(None, (json_path, png_path)):
        check_not_input(path, config.source)
    json_file = None if json_path is None else OutputFile(json_path)
    png_file = None if png_path is None else OutputFile(png_path)
    terminal = TerminalSink(captions=False)
    try:
        from stream.bench import Recorder, report
        from stream.session import run_session

        recorder = Recorder()
        summary = run_session(config, terminal, extra=[recorder])
        scheduled = config.capture.realtime
        result = report(recorder, scheduled=scheduled)
        show(result, config.source, scheduled=scheduled)
        if json_file is not None:
            json_file.append(json.dumps(result.as_json(config), indent=2) + "\n")
        if png_file is not None:
            from stream.plot import plot_report

            png_file.keep()
            plot_report(result, os.path.basename(config.source), png_file.path)
    finally:
        terminal.close()
        for file in (json_file, png_file):
            if file is not None:
                file.close()
    report_written([path for path in (json_path, png_path, config.output.heatmap) if path is not None])
    return exit_status(summary)


def show(result: Report, source: str, *, scheduled: bool) -> None:
    """Prints the report, at most 80 columns wide."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, 80)
    console.print(f"\n{source}: {result.measured_frames} of {result.frames} frames measured", markup=False)
    console.print(_left_out(result), style="dim")
    console.print(_latency_table(result))
    console.print()
    console.print(_figure_table(result))
    if not scheduled:
        console.print("No schedule to be late for, so no jitter: add --realtime to measure it.", style="dim")
    dropped = ", ".join(f"{count} at {queue}" for queue, count in result.dropped.items())
    console.print(f"dropped: {dropped or 'nothing'}")


def _left_out(result: Report) -> str:
    if result.trim_s:
        return f"The first and the last {result.trim_s:.0f} s are left out."
    return "Too short to leave out its first and last second: the warm-up is included."


def _latency_table(result: Report) -> Table:
    from rich.table import Table

    table = Table("latency, ms", box=None, pad_edge=False, header_style="bold")
    for name in ("p50", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    table.add_column("from … to", style="dim")
    for one in result.latencies:
        if one.values is not None:
            values = (one.values.p50, one.values.p95, one.values.p99, one.values.max)
            table.add_row(one.name, *(f"{value:.2f}" for value in values), one.definition)
    return table


def _figure_table(result: Report) -> Table:
    from rich.table import Table

    table = Table("figure", box=None, pad_edge=False, header_style="bold")
    table.add_column("value", justify="right")
    table.add_column("")
    table.add_column("definition", style="dim")
    for one in result.figures:
        if one.value is not None:
            table.add_row(one.name, f"{one.value:.2f}", one.unit, one.definition)
    return table
