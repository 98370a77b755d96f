"""Text for people: one line for each kind of event, and the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from arr_coc.errors import counted, of_counted
from stream.clock import clock_text, duration_text
from stream.events import (
    ANSWERS_LOST,
    AnswerCancelled,
    AnswerInvalid,
    AnswerUnchanged,
    BudgetChanged,
    ClipWritten,
    Cut,
    Event,
    Match,
    MemorySummary,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Restarted,
    ShadowSummary,
    Skipped,
    Summary,
    VerdictChanged,
    WatchesChanged,
)
from stream.logs import print_line
from stream.untrusted import printable

SEPARATOR = " · "
"""Between figures in a line."""

ABOUT_THE_MODEL = ("model-files", "model-world", "glances-off")
"""Codes of notices that every run of a model would repeat."""

SKIPS_SHOWN = 3
"""Losses that get a line each; the others are counted in the summary."""

CHANGES_SHOWN = 3
"""Changes of the picture's size or format that get a line each: a folder may hold a thousand pictures of different
sizes."""


def verdict_text(event: VerdictChanged) -> str:
    """A changed verdict, with its probability: `yes (97 %): is there a red car?`; and its warning."""
    if event.warning is None:
        warning = ""
    else:
        warning = f" ({event.warning})"
    chance = event.yes if event.to == "yes" else 1 - event.yes
    return printable(f"{event.to} ({chance:.0%}): {event.question}".replace("%", " %", 1) + warning)


def discards_partial_answer(event: Event) -> bool:
    """Return whether the answer that was being generated comes to nothing: cancelled, the same as the last one, not
    fitting its schema, or its process is gone."""
    is_lost = isinstance(event, Notice) and event.code == ANSWERS_LOST
    return is_lost or isinstance(event, (Restarted, AnswerCancelled, AnswerInvalid, AnswerUnchanged))


class EventText:
    """One line for each event that a person should know about. Many losses in a row are summed up.

    `clock` writes media time for people; `cuts` is whether scene cuts have lines.
    """

    def __init__(self, clock: Callable[[float], str] = clock_text, *, cuts: bool = False) -> None:
        self._clock = clock
        self._cuts = cuts
        self._skips = 0
        self._changes = 0

    def line(self, event: Event) -> str | None:
        """The line for an event that a person should know about, None for any other."""
        line = self._text(event)
        return None if line is None else printable(line)

    def _text(self, event: Event) -> str | None:
        if isinstance(event, Notice):
            if event.code == "loading":
                return None
            return f"note: {event.message}"
        if isinstance(event, Skipped):
            return self._skipped(event)
        if isinstance(event, Outage):
            return self._outage(event)
        if isinstance(event, PictureChanged):
            return self._changed(event)
        if isinstance(event, AnswerCancelled):
            return f"answer cancelled by the {event.by} at {self._clock(event.by_pts_s)}"
        if isinstance(event, AnswerInvalid):
            return f"the answer at {self._clock(event.pts_s)} does not fit the schema: {event.reason}"
        if isinstance(event, Cut) and self._cuts:
            return f"cut at {self._clock(event.pts_s)}"
        if isinstance(event, Match):
            return f"match {event.match} at {self._clock(event.pts_s)}: {event.question}"
        if isinstance(event, Restarted):
            if event.count == 1:
                so_far = ""
            else:
                so_far = f" ({counted(event.count, 'restart')} so far)"
            return f"restarting {event.process}{so_far}: {event.cause}"
        if isinstance(event, QueryChanged):
            if event.error is None:
                return f"asked: {event.query}"
            return f"not asked: {event.error}"
        if isinstance(event, WatchesChanged):
            if event.error is not None:
                return f"the watch {event.watch} is not changed: {event.error}"
            if any(watch.name == event.watch for watch in event.watches):
                change = "added"
            else:
                change = "removed"
            return f"watch {change}: {event.question}"
        if isinstance(event, BudgetChanged):
            direction = "rises" if event.reason == "differ" else "falls"
            checks = counted(event.checks, "shadow check")
            tokens = f"from {event.from_tokens} to {counted(event.to_tokens, 'token')}"
            return f"the budget {direction} {tokens}: {event.differing} of {checks} differ"
        if isinstance(event, ClipWritten) and event.video is not None:
            times = f"{self._clock(event.start_s)} to {self._clock(event.end_s)}"
            return f"clip of match {event.match}, {times}: {event.video}"
        return None

    def _skipped(self, event: Skipped) -> str | None:
        self._skips += 1
        if self._skips > SKIPS_SHOWN:
            if self._skips == SKIPS_SHOWN + 1:
                return "skipped more; the summary counts them"
            return None
        return f"skipped {event.what} before {self._clock(event.pts_s)}: {event.reason}"

    def _changed(self, event: PictureChanged) -> str | None:
        self._changes += 1
        if self._changes > CHANGES_SHOWN:
            if self._changes == CHANGES_SHOWN + 1:
                return "the picture keeps changing; .jsonl has every change"
            return None
        if event.reason == "resolution":
            aspect = "size"
        else:
            aspect = "format"
        return (
            f"the picture changes its {aspect} at {self._clock(event.pts_s)}; from here on it is processed at "
            f"{event.width_px}x{event.height_px}"
        )

    def _outage(self, event: Outage) -> str:
        if event.lasted_s is None:
            return f"source lost at {self._clock(event.pts_s)}: {event.reason}"
        if event.attempts < 2:
            tries = ""
        else:
            tries = f" and {counted(event.attempts, 'attempt')}"
        return f"source back after {duration_text(event.lasted_s)}{tries}"


DROPPED = {"capture": "frame", "texture": "frame", "answer": "answer", "answer.refused": "message", "glance": "glance"}
"""Queues, and causes that differ from their queue → the dropped items."""


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Drops by queue and cause, in words: `3 frames, 2 answers dropped`."""
    counts: Counter[str] = Counter()
    for queue, count in dropped.items():
        if queue != "texture.fallbacks":  # counted with the drops, and none: the CPU store has taken over
            counts[DROPPED.get(queue) or DROPPED.get(queue.partition(".")[0], queue)] += count
    return f"{', '.join(counted(count, kind) for kind, count in counts.items()) or 'nothing'} dropped"


def print_answer(at: str, text: str) -> None:
    """An answer as a plain line, with errors as `print_line` raises them."""
    print_line(f"{at}  {text}")


def label_text(camera: str, width: int) -> str:
    """The name of a camera before its line, in the width of the longest one; nothing for one without a name."""
    return f"{camera:<{width}}  " if camera else ""


def summary_text(summary: Summary, *, verbose: bool = False) -> str:
    """The run in one or two lines, if `verbose` with its tokens and groups of pictures; empty if it failed before its
    first frame."""
    if summary.error is not None and not summary.frames:
        return ""
    parts = [
        f"{counted(summary.frames, 'frame')} ({clock_text(summary.duration_s)})",
        *_results(summary),
        counted(summary.cuts, "cut"),
    ]
    if saved := saved_text(summary) if verbose else work_text(summary):
        parts.append(saved)
    if verbose and summary.memory is not None:
        parts.append(memory_text(summary.memory))
    if summary.shadow is not None:
        parts.append(shadow_text(summary.shadow))
    if summary.skipped:
        parts.append(f"{summary.skipped} skipped")
    parts += [dropped_text(summary.dropped)] if summary.dropped else []
    if summary.timing and summary.timing["fps"]:
        parts.append(f"{counted(round(summary.timing['fps']), 'frame')} a second")
    if verbose:
        parts.append(f"{summary.backend} texture")
    if summary.ended not in ("finished", "elapsed", "found"):
        parts.insert(0, summary.ended)
    return SEPARATOR.join(parts)


def _results(summary: Summary) -> Iterator[str]:
    """The answers, and the matches of watches: a run with nothing but watches has no answers."""
    if summary.answers or summary.found is None:
        yield (
            counted(summary.answers, "answer")
            + (f", {summary.unchanged} unchanged" if summary.unchanged else "")
            + (f", {summary.invalid} invalid" if summary.invalid else "")
        )
    if summary.found is not None:
        yield counted(summary.matches, "match", "matches")


def memory_text(memory: MemorySummary) -> str:
    """The groups of pictures and their tokens: `2 groups (first, cut), 120 tokens appended, 400 kept, 9 superseded`."""
    reasons = ", ".join(reason if count == 1 else f"{count} {reason}" for reason, count in memory.groups.items())
    tokens = counted(memory.appended_tokens, "token")
    if memory.superseded_tokens:
        superseded = f", {memory.superseded_tokens} superseded"
    else:
        superseded = ""
    groups = counted(sum(memory.groups.values()), "group")
    if memory.idle is not None:
        idle = f", {memory.idle.tokens} read ahead"
    else:
        idle = ""
    return f"{groups} ({reasons}), {tokens} appended, {memory.kept_tokens} kept{superseded}{idle}"


def shadow_text(shadow: ShadowSummary) -> str:
    """The shadow checks and what they changed: `3 of 8 shadow checks differ, 1 raise, 0 falls of the budget`."""
    moves = f", {counted(shadow.raises, 'raise')}, {counted(shadow.lowers, 'fall')} of the budget"
    checks = f"{shadow.differing} of {counted(shadow.checks, 'shadow check')} differ"
    return checks + (moves if shadow.raises else "")


def saved_text(summary: Summary) -> str:
    """The tokens that were shown, and the saving: `63 of 240 tokens a frame, 5.1× less work`."""
    tokens = round(summary.mean_tokens)
    tiles = round(summary.mean_tiles)
    if tokens >= tiles:
        return f"{counted(tokens, 'token')} a frame" + (", which is all" if tiles else "")
    return ", ".join(filter(None, [f"{of_counted(tokens, tiles, 'token')} a frame", work_text(summary)]))


def work_text(summary: Summary) -> str:
    """The saving of work against all tokens: `5.1× less work`; a small one is not named."""
    ratio = summary.work_ratio
    if ratio is None or ratio < 1.05:
        return ""
    return f"{ratio:.1f}× less work"
