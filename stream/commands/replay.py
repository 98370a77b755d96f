"""`replay` and its lines."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from arr_coc.errors import counted
from stream.clock import clock_text
from stream.commands.options import text_option
from stream.commands.outcome import FAILED, report_note
from stream.errors import RecordingError
from stream.events import Event, Explanation, FrameReady, encode_event
from stream.runtime.replay import ReplayedAnswer, ReplayedYesNo, ReplaySummary
from stream.untrusted import printable


def replay(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the recording, as given to --record.")],
    model: Annotated[
        str | None,
        text_option("--model", "-m", metavar="NAME", help="Current location of the recorded model. [where it was]"),
    ] = None,
    device: Annotated[
        str | None,
        text_option("--device", metavar="NAME", help="Device of the model: cpu, cuda, cuda:1... [as recorded]"),
    ] = None,
    dtype: Annotated[
        str | None, text_option("--dtype", metavar="NAME", help="float32, bfloat16 or float16. [as recorded]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, for scripts.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Answer a recorded run again, and compare the answers."""
    from stream.recording.format import Recording

    recording = Recording(folder)

    from stream.logs import print_line

    pass
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


def json_lines(event: Event) -> list[str]:
    """The event as a line of JSON, unless it is about a frame or why its tokens were chosen, as in a run's own."""
    return [] if isinstance(event, (FrameReady, Explanation)) else [encode_event(event)]


def text_lines(event: Event) -> list[str]:
    """An answer or a look, with the recorded one where that was another, or the summary; nothing else."""
    if isinstance(event, ReplaySummary):
        return [_total(event)]
    if isinstance(event, ReplayedAnswer):
        return _compared(event, printable(event.text), printable(event.recorded))
    if isinstance(event, ReplayedYesNo):
        question = printable(event.question)
        return _compared(event, *(f"yes {100 * yes:.1f} %: {question}" for yes in (event.yes, event.recorded_yes)))
    return []


def _compared(event: ReplayedAnswer | ReplayedYesNo, now: str, recorded: str) -> list[str]:
    at = clock_text(event.pts_s)
    if event.same:
        return [f"{at}  same      {now}"]
    return [f"{at}  differs   {now}", f"{'':{len(at)}}  recorded  {recorded}"]


def _total(summary: ReplaySummary) -> str:
    """What was replayed, what differs, and of what kind of run it is."""
    parts = []
    for count, what in ((summary.answers, "answer"), (summary.looks, "look")):
        if count:
            parts.append(counted(count, what))
    if summary.first_s is None:
        parts.append("all the same")
    else:
        parts.append(f"{summary.differing} differ, the first at {clock_text(summary.first_s)}")
    parts.append(f"of {counted(summary.frames, 'frame')}")
    if summary.recorded is not None:
        parts += [f"{count} dropped at {queue}" for queue, count in summary.recorded.dropped.items()]
    return ", ".join(parts)
