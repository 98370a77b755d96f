"""`demo`: everything at once, on a drawn clip."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stream.commands.options import RunOptions, takes_run_options
from stream.commands.outcome import also_written, exit_status, report_note, report_written
from stream.errors import OutputError
from stream.layers import Layer, file_layer


@takes_run_options
def demo(
    folder: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the results go. [demo]", show_default=False)
    ] = "demo",
    *,
    run: RunOptions,
) -> int:
    """Caption a drawn clip with the bundled model, and draw what it looked at."""
    captions = tuple(os.path.join(folder, name) for name in ("captions.vtt", "captions.jsonl"))
    summary_path, heatmap = os.path.join(folder, "summary.json"), os.path.join(folder, "heatmap.mp4")
    outputs = Layer("demo", {"output.paths": captions, "output.heatmap": heatmap})
    config = run.configuration(base=[file_layer("demo"), outputs])
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder!r}: {error.strerror}") from error

    from stream.sinks.display import open_display
    from stream.sinks.output_file import OutputFile

    terminal = open_display(captions=True)
    summary_file = OutputFile(summary_path)
    try:
        from stream.event_forms import encode_event
        from stream.session import run_session

        summary = run_session(config, terminal)
        summary_file.append(encode_event(summary) + "\n")
    finally:
        terminal.close()
        summary_file.close()
    report_written([*config.output.paths, summary_path, *also_written(config.output)])
    report_note("In the video, bright tiles were seen sharp, dark ones coarsely or not at all.")
    return exit_status(summary)
