"""`replay` command: the answers of a recorded run again, compared line by line."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from arr_coc.errors import counted
from stream.clock import clock_text
from stream.commands.options import text_option
from stream.commands.outcome import FAILED, report_note
from stream.errors import RecordingError
from stream.untrusted import printable

if TYPE_CHECKING:
    from stream.events import Event
    from stream.extensions.record.replay import ReplayedAnswer, ReplayedYesNo


def replay(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the recording, as given to --record.")],
    model: Annotated[
        str | None,
        text_option("--model", "-m", metavar="NAME", help="Current location of the recorded model. [as recorded]"),
    ] = None,
    device: Annotated[
        str | None,
        text_option("--device", metavar="NAME", help="Device of the model: cpu, cuda, cuda:1... [as recorded]"),
    ] = None,
    dtype: Annotated[
        str | None,
        text_option("--dtype", metavar="NAME", help="float32, bfloat16, float16, int8 or int4. [as recorded]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, for scripts.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Answer a recorded run again, and compare the answers."""
    from stream.extensions.record.format import Recording

    recording = Recording(folder)

    from stream.extensions.record.replay import Replay, answered_by, open_recorded, replay_config
    from stream.logs import print_line

    provenance = answered_by(recording)
    if provenance.program != version("arr-coc-stream"):
        report_note(f"note: recorded by version {provenance.program}")
    config = replay_config(provenance, model, device, dtype)
    run = Replay(open_recorded(provenance, config), provenance)
    lines_of = json_lines if as_json else text_lines
    for record in recording.records():
        for event in run.take(record):
            for line in lines_of(event):
                print_line(line)
    summary = run.summary(recording.damage)
    for damage in summary.damage:
        report_note(f"note: {damage}")
    if not summary.answers + summary.looks:
        raise RecordingError(f"nothing was answered in {folder!r}, so there is nothing to replay")
    for line in lines_of(summary):
        print_line(line)
    return FAILED if summary.differing else 0


def json_lines(event: Event) -> list[str]:
    """Return the event as a line of JSON, unless it is about a frame or its tokens, as in a run's own."""
    from stream.events import AskedPicture, Explanation, FrameReady, encode_event

    if isinstance(event, (FrameReady, Explanation, AskedPicture)):
        return []
    return [encode_event(event)]


def text_lines(event: Event) -> list[str]:
    """Return an answer or yes/no check, with the recorded one if that was another, a glance that differs, or the
    summary; nothing else."""
    from stream.extensions.record.replay import ReplayedAnswer, ReplayedGlance, ReplayedYesNo, ReplaySummary

    if isinstance(event, ReplaySummary):
        parts = []
        for count, noun in ((event.answers, "answer"), (event.looks, "look"), (event.glances, "glance")):
            if count:
                parts.append(counted(count, noun))
        if event.first_s is None:
            parts.append("all the same")
        else:
            parts.append(f"{event.differing} differ, the first at {clock_text(event.first_s)}")
        parts.append(f"of {counted(event.frames, 'frame')}")
        if event.recorded is not None:
            from stream.display.text import dropped_text

            parts += [dropped_text(event.recorded.dropped)] if event.recorded.dropped else []
        return [", ".join(parts)]
    if isinstance(event, ReplayedAnswer):
        return _compared(event, printable(event.text), printable(event.recorded))
    if isinstance(event, ReplayedYesNo):
        question = printable(event.question)
        return _compared(event, *(f"yes {100 * yes:.1f} %: {question}" for yes in (event.yes, event.recorded_yes)))
    if isinstance(event, ReplayedGlance) and not event.same:
        return [f"{clock_text(event.pts_s)}  differs   a glance, by {100 * event.difference:.2f} % of its attention"]
    return []


def _compared(event: ReplayedAnswer | ReplayedYesNo, replay_text: str, recorded_text: str) -> list[str]:
    at = clock_text(event.pts_s)
    if event.same:
        return [f"{at}  same      {replay_text}"]
    return [f"{at}  differs   {replay_text}", f"{'':{len(at)}}  recorded  {recorded_text}"]
