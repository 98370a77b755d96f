"""`replay`: the answers of a recorded run again, and whether they are the same."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream.commands.outcome import FAILED, report_note
from stream.errors import RecordingError

if TYPE_CHECKING:
    from stream.events import Event
    from stream.replay import LookedAgain, Replayed, ReplaySummary


def _text(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


def replay(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="What the run was given with --record.")],
    model: Annotated[
        str | None, _text("--model", "-m", metavar="NAME", help="Where the recorded model is now. [where it was]")
    ] = None,
    device: Annotated[
        str | None, _text("--device", metavar="NAME", help="Where the model runs: cpu, cuda, cuda:1... [as recorded]")
    ] = None,
    dtype: Annotated[
        str | None, _text("--dtype", metavar="NAME", help="float32, bfloat16 or float16. [as recorded]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False,
) -> int:
    """Answer again what a run recorded, and say whether the answers are the same."""
    from stream.recording import Recording

    recording = Recording(folder)

    from stream.replay import Replay, answered_by, open_recorded, replay_config

    told = answered_by(recording)
    if told.program != version("arr-coc-stream"):
        report_note(f"note: recorded by version {told.program}")
    config = replay_config(told, model, device, dtype)
    replayed = Replay(open_recorded(told, config), told)
    tell = _as_json if as_json else _as_lines
    for record in recording.records():
        for event in replayed.take(record):
            tell(event)
    summary = replayed.summary(recording.damage)
    for damage in summary.damage:
        report_note(f"note: {damage}")
    if not summary.answers + summary.looks:
        raise RecordingError(f"nothing was answered in {folder!r}, so there is nothing to replay")
    tell(summary)
    return FAILED if summary.differing else 0


def _as_json(event: Event) -> None:
    """Everything but frames and why their tokens were chosen, as the JSON lines of a run."""
    from stream.events import FrameReady, Why, encode_event
    from stream.sinks.terminal import print_line

    if not isinstance(event, (FrameReady, Why)):
        print_line(encode_event(event))


def _as_lines(event: Event) -> None:
    """Answers and looks, for people."""
    from stream.replay import LookedAgain, Replayed, ReplaySummary
    from stream.sinks.remarks import clock_text
    from stream.sinks.terminal import print_line

    if isinstance(event, ReplaySummary):
        print_line(_total(event))
    elif isinstance(event, (Replayed, LookedAgain)):
        verdict = "same" if event.same else "differs"
        now, recorded = _texts(event)
        at = clock_text(event.pts_s)
        print_line(f"{at}  {verdict:<8}  {now}")
        if not event.same:
            print_line(f"{'':{len(at)}}  recorded  {recorded}")


def _texts(event: Replayed | LookedAgain) -> tuple[str, str]:
    """What came of it now, and what was recorded."""
    from stream.replay import Replayed
    from stream.sinks.cells import printable

    if isinstance(event, Replayed):
        return printable(event.text), printable(event.recorded)
    question = printable(event.question)
    return f"yes {event.yes:.1%}: {question}", f"yes {event.recorded_yes:.1%}: {question}"


def _total(summary: ReplaySummary) -> str:
    from stream.sinks.remarks import clock_text

    parts = [
        f"{count} {what if count > 1 else what[:-1]}"
        for count, what in ((summary.answers, "answers"), (summary.looks, "looks"))
        if count
    ]
    if summary.first_s is None:
        parts.append("all the same")
    else:
        parts.append(f"{summary.differing} differ, the first at {clock_text(summary.first_s)}")
    if summary.recorded is not None:
        parts.append(f"of {summary.recorded.frames} frames")
        parts += [f"{count} dropped at {queue}" for queue, count in summary.recorded.dropped.items()]
    return ", ".join(parts)
