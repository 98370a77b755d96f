"""`replay`: the answers of a recorded run again, and whether they are the same."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from stream.commands.outcome import FAILED, report_note
from stream.commands.text_options import text_option
from stream.errors import RecordingError


def replay(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="What the run was given with --record.")],
    model: Annotated[
        str | None, text_option("--model", "-m", metavar="NAME", help="Where the recorded model is now. [where it was]")
    ] = None,
    device: Annotated[
        str | None,
        text_option("--device", metavar="NAME", help="Where the model runs: cpu, cuda, cuda:1... [as recorded]"),
    ] = None,
    dtype: Annotated[
        str | None, text_option("--dtype", metavar="NAME", help="float32, bfloat16 or float16. [as recorded]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Answer a recorded run again, and compare the answers."""
    from stream.recording import Recording

    recording = Recording(folder)

    from stream.logs import print_line
    from stream.replay_report import json_lines, text_lines
    from stream.runtime.replay import Replay, answered_by, open_recorded, replay_config

    told = answered_by(recording)
    if told.program != version("arr-coc-stream"):
        report_note(f"note: recorded by version {told.program}")
    config = replay_config(told, model, device, dtype)
    replayed = Replay(open_recorded(told, config), told)
    lines_of = json_lines if as_json else text_lines
    for record in recording.records():
        for event in replayed.take(record):
            for line in lines_of(event):
                print_line(line)
    summary = replayed.summary(recording.damage)
    for damage in summary.damage:
        report_note(f"note: {damage}")
    if not summary.answers + summary.looks:
        raise RecordingError(f"nothing was answered in {folder!r}, so there is nothing to replay")
    for line in lines_of(summary):
        print_line(line)
    return FAILED if summary.differing else 0
