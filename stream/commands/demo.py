"""`demo`: everything at once, on a drawn clip."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from stream.commands.options import RunOptions, takes_run_options
from stream.commands.outcome import also_written, exit_status, report_note, report_written
from stream.errors import OutputError
from stream.layers import Layer, file_layer

MARK = ".arr-coc-demo"
"""A file that marks a folder as one that a demo has written to, so that the next one may overwrite its results."""


WITHOUT = (
    "target_ms",
    "until",
    "go_on",
    "stream",
    "heatmap",
    "publish",
    "control",
    "metrics_port",
    "realtime",
    "restart",
)
"""Options of runs that mean nothing here: the clip is drawn, read frame by frame and over in seconds, and the heat map
is one of the results anyway."""


@partial(takes_run_options, without=WITHOUT)
def demo(
    folder: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the results go. [demo]", show_default=False)
    ] = "demo",
    *,
    run: RunOptions,
) -> int:
    """Caption a drawn clip, and draw what the model looked at."""
    captions = tuple(os.path.join(folder, name) for name in ("captions.vtt", "captions.jsonl"))
    summary_path, heatmap = os.path.join(folder, "summary.json"), os.path.join(folder, "heatmap.mp4")
    outputs = Layer("demo", {"output.paths": captions, "output.heatmap": heatmap})
    config = run.configuration(base=[file_layer("demo"), outputs])
    _claim(folder, [*captions, summary_path, heatmap])

    from stream.display import open_display
    from stream.sinks.output_file import OutputFile

    terminal = open_display(captions=True)
    summary_file = OutputFile(summary_path)
    try:
        from stream.event_forms import encode_event
        from stream.runtime.session import run_session

        summary = run_session(config, terminal)
        summary_file.append(encode_event(summary) + "\n")
    finally:
        terminal.close()
        summary_file.close()
    report_written([*config.output.paths, summary_path, *also_written(config.output)])
    report_note("In the video, bright tiles were seen sharp, dark ones coarsely or not at all.")
    return exit_status(summary)


def _claim(folder: str, outputs: Sequence[str]) -> None:
    """Makes the folder, and marks it as a demo's.

    Raises OutputError where it cannot be made, or holds a file that would be overwritten and is no demo's.
    """
    mark = os.path.join(folder, MARK)
    there = [path for path in outputs if os.path.lexists(path)]
    if there and not os.path.isfile(mark):
        raise OutputError(f"{there[0]!r} is there already, and no demo wrote it; name another folder with -o")
    try:
        os.makedirs(folder, exist_ok=True)
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o666))
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder!r}: {error.strerror}; name another with -o") from error
