"""`bench` command: frame rate, latency, jitter, drops and memory of one configuration, or of two."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.options import GivenOptions, parse_count, takes_options
from stream.commands.outcome import INTERRUPTED, report_note
from stream.errors import ConfigError
from stream.options.durations import parse_duration

if TYPE_CHECKING:
    from stream.config import Config
    from stream.extensions.bench.measure import BenchPlan, BenchResult
    from stream.sinks.output_file import OutputFile

UNPACED = {"pipeline.answers": "newest"}
"""No frame waits for an answer."""


@takes_options
def bench(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="A video file, or scene:NAME.", show_default=False)
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option("--runs", metavar="N", help="Number of runs. [1; 5 to compare]", show_default=False),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="End each run this long after its first frame: 60s, 10m.", show_default=False
        ),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            "--warmup", metavar="TIME", help="Time left out at the start of each run. [1s]", show_default=False
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Compare with the changes of a TOML file or preset; may be repeated.",
            show_default=False,
        ),
    ] = None,
    against_set: Annotated[
        list[str] | None,
        typer.Option(
            "--against-set",
            metavar="KEY=VALUE",
            help="Compare with this key changed; may be repeated.",
            show_default=False,
        ),
    ] = None,
    json_path: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write every figure as JSON.", show_default=False),
    ] = None,
    png_path: Annotated[
        str | None,
        typer.Option("--png", metavar="FILE", help="Also draw latencies, answers and stages.", show_default=False),
    ] = None,
    *,
    options: GivenOptions,
) -> int:
    """Measure frames a second, latency, jitter, drops and memory.

    With --against or --against-set: compare two configurations, run by run.
    """
    from stream.commands.run import also_written, check_run, report_written
    from stream.sinks.output_file import OutputFile, check_distinct
    from stream.sinks.types import output_files

    configs = _configurations(options, source, against or (), against_set or ())
    # two configurations are compared by several runs of each, unless --runs says otherwise
    if runs is None:
        count = 5 if len(configs) > 1 else 1
    else:
        count = parse_count("--runs", runs)
    _check_source(configs["A"], count * len(configs))
    if limit is None:
        limit_s = None
    else:
        limit_s = parse_duration("--for", limit)
    if warmup is None:
        warmup_s = None
    else:
        warmup_s = parse_duration("--warmup", warmup)
    paths = [path for path in (json_path, png_path) if path is not None]
    outputs = sorted({path for config in configs.values() for path in output_files(config)})
    check_distinct([*paths, *outputs], configs["A"].source, *(options["config"] or ()), *(against or ()))
    _check_files(paths, png_path)
    for config in configs.values():
        check_run(config)

    from stream.extensions.bench.measure import BenchPlan
    from stream.monitor.metrics import TRIM_S

    with ExitStack() as stack:
        files = {path: stack.enter_context(closing(OutputFile(path))) for path in paths}
        result = _measure(BenchPlan(configs, count, limit_s, TRIM_S if warmup_s is None else warmup_s))
        _report(result, configs["A"].source, files, json_path, png_path)
    report_written([*paths, *sorted({path for config in configs.values() for path in also_written(config)})])
    if result.failure is not None:
        raise result.failure
    return INTERRUPTED if result.interrupted else 0


def _configurations(
    options: GivenOptions, source: str | None, against: Sequence[str], against_set: Sequence[str]
) -> dict[str, Config]:
    """Return the configuration to measure, "A", and the one to compare it with, if any, "B"."""
    from stream.config_loading import ConfigLayer, layer_from_assignment, layer_from_file

    base = [ConfigLayer("bench", UNPACED)]
    if source is None:
        top = []
    else:
        top = [ConfigLayer("SOURCE", {"source": source})]
    layers = [
        *map(layer_from_file, against),
        *(layer_from_assignment(assignment, "--against-set") for assignment in against_set),
    ]
    configs = {"A": options.configuration(base, top)}
    if layers:
        configs["B"] = options.configuration(base, [*top, *layers])
        if configs["B"] == configs["A"]:
            raise ConfigError("nothing to compare: --against changes no key; name one that differs")
    return configs


def _check_source(config: Config, runs: int) -> None:
    if not config.source:
        raise ConfigError("no SOURCE to measure; give a video file, or scene:demo for a drawn one")
    if config.source == "-" and runs > 1:
        raise ConfigError(f"standard input can be read only once, not {runs} times; give a file, or --runs 1")
    if config.value("record.folder") is not None and runs > 1:
        raise ConfigError(
            f"a folder takes the recording of one run, not of {runs}; leave --record out, or give --runs 1"
        )


def _check_files(paths: Sequence[str], png_path: str | None) -> None:
    from stream.sinks.output_file import check_suffix, check_writable

    if png_path is not None:
        check_suffix(png_path, (".png",), "the picture", "figures go to --json")
        if find_spec("matplotlib") is None:
            raise ConfigError("--png needs matplotlib, which is not installed: pip install matplotlib")
    for path in paths:
        check_writable(path)


def _measure(plan: BenchPlan) -> BenchResult:
    from stream.extensions.bench.measure import measure

    def announce(number: int, name: str) -> None:
        if plan.runs > 1 or len(plan.configs) > 1:
            suffix = f" of {name}" if len(plan.configs) > 1 else ""
            report_note(f"run {number} of {plan.runs}{suffix}")

    return measure(plan, announce)


def _report(
    result: BenchResult, source: str, files: dict[str, OutputFile], json_path: str | None, png_path: str | None
) -> None:
    """Print the figures, and write the files that were asked for."""
    from stream.extensions.bench.output import plot_series, print_report
    from stream.extensions.bench.series import document
    from stream.sources.address import redacted

    source = redacted(source)
    print_report(result.series, source, scheduled=result.scheduled)
    if json_path is not None:
        content = document(source, result.series, scheduled=result.scheduled)
        files[json_path].append(json.dumps(content, indent=2) + "\n")
    if png_path is not None:
        files[png_path].keep()
        plot_series(result.series, os.path.basename(source), png_path)
