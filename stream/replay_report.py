"""A replay's events as lines: for people, or for scripts."""

from __future__ import annotations

from arr_coc.errors import counted
from stream.clock import clock_text
from stream.event_forms import encode_event
from stream.events import Event, Explanation, FrameReady
from stream.printable import printable
from stream.runtime.replay import LookedAgain, Replayed, ReplaySummary


def json_lines(event: Event) -> list[str]:
    """The event as a line of JSON, unless it is about a frame or why its tokens were chosen, as in a run's own."""
    return [] if isinstance(event, (FrameReady, Explanation)) else [encode_event(event)]


def text_lines(event: Event) -> list[str]:
    """An answer or a look, with the recorded one where that was another, or the summary; nothing else."""
    if isinstance(event, ReplaySummary):
        return [_total(event)]
    if isinstance(event, Replayed):
        return _compared(event, printable(event.text), printable(event.recorded))
    if isinstance(event, LookedAgain):
        question = printable(event.question)
        return _compared(event, *(f"yes {100 * yes:.1f} %: {question}" for yes in (event.yes, event.recorded_yes)))
    return []


def _compared(event: Replayed | LookedAgain, now: str, recorded: str) -> list[str]:
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
