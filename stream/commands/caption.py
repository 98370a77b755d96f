"""`caption`: a video goes in, captions come out."""

from __future__ import annotations

from typing import Annotated

import typer

from stream.commands.options import RunOptions, takes_run_options
from stream.commands.outcome import exit_status, report_written
from stream.errors import ConfigError
from stream.layers import Layer


@takes_run_options
def caption(
    source: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A video file or picture, or scene:NAME.", show_default=False)
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Captions as .vtt, .srt or .jsonl; may be repeated. [lines on stdout]",
            show_default=False,
        ),
    ] = None,
    timing: Annotated[
        bool | None,
        typer.Option("--timing/--no-timing", help="Latencies in .jsonl; without them two runs write the same bytes."),
    ] = None,
    *,
    run: RunOptions,
) -> int:
    """Say what happens in a video, while it runs."""
    top: list[Layer] = []
    if source is not None:
        top.append(Layer("FILE", {"source": source}))
    if output:
        top.append(Layer("-o", {"output.paths": tuple(output)}))
    if timing is not None:
        top.append(Layer("--timing", {"output.timing": timing}))
    config = run.configuration(top=top)
    if not config.source:
        raise ConfigError("no FILE to caption; give a video file, or scene:demo for a drawn one")

    from stream.sinks.terminal import TerminalSink

    terminal = TerminalSink(captions=not config.output.paths)
    try:
        from stream.session import run_session

        summary = run_session(config, terminal)
    finally:
        terminal.close()
    report_written([*config.output.paths, *filter(None, [config.output.heatmap])])
    return exit_status(summary)
