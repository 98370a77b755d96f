"""WebVTT and SubRip captions: cues of answers, and their file, valid at every moment of the run; overlay file with the
newest answer.

Completed cues are appended; the open cue is the file's tail, rewritten in place.
WebVTT: https://www.w3.org/TR/webvtt1/.
"""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import dataclass, replace

from arr_coc.qwen.grounding import GROUNDED, words_for
from stream.errors import OutputError
from stream.events import Answer, Event, FrameReady, Summary
from stream.extension import SinkOpening
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile
from stream.untrusted import printable, printable_lines

OPEN_CUE_MS = 1000
"""Length of a caption until the next one ends it, and of the caption of a still picture."""


@dataclass(frozen=True, slots=True)
class Cue:
    """One caption, shown from `start_ms` until `end_ms` of media time."""

    start_ms: int
    end_ms: int
    text: str


class CueTrack:
    """Converter of answers into cues that never overlap and never go back in time.

    A cue lasts until the next answer with another text; an empty answer ends it and shows nothing.
    """

    def __init__(self) -> None:
        self._open: Cue | None = None
        self._now_ms = 0

    @property
    def open(self) -> Cue | None:
        """The cue that is shown now; its end is not final."""
        return self._open

    def answer(self, at_s: float, text: str) -> Cue | None:
        """Show `text` from `at_s` on. Return the cue that this completes."""
        self._now_ms = max(self._now_ms, round(at_s * 1000))
        at_ms = self._now_ms
        text = text.strip()
        if self._open is not None and self._open.text == text:
            return None
        cue = self._complete(at_ms)
        if text:
            self._open = Cue(at_ms, at_ms + OPEN_CUE_MS, text)
        else:
            self._open = None
        return cue

    def finish(self, end_s: float | None) -> None:
        """End the open cue at the picture's end; if that is None, the cue lasts `OPEN_CUE_MS`."""
        if self._open is None:
            return
        start_ms = self._open.start_ms
        # seconds are binary fractions: a time may lie this far below the whole millisecond it stands for
        if end_s is None:
            end_ms = start_ms
        else:
            end_ms = math.floor(end_s * 1000 + 0.001)
        self._open = replace(self._open, end_ms=end_ms if end_ms > start_ms else start_ms + OPEN_CUE_MS)

    def _complete(self, at_ms: int) -> Cue | None:
        if self._open is None or at_ms <= self._open.start_ms:
            return None
        return replace(self._open, end_ms=at_ms)


SUBRIP_TAGS = re.compile(r"<(?=[/!?A-Za-z])|\{(?=\\|[A-Za-z]:)")
"""Starts of what players read as a tag: HTML's `<b>`, SubStation's `{\\an8}`, MicroDVD's `{y:b}`."""

SUBRIP_TIME = re.compile(r"(\d):(\d{1,2}):(\d{1,2}[.,]\d)")
"""A line with two of these begins a cue for some readers, whatever is between them."""

SUBRIP_FORMS = {"<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", "{": "("}


class CaptionSink(Sink):
    """Writer of answers as cues from their frame's time until the next answer; the last cue lasts until the clip's end.

    `resume`: the file belongs to a run that is being continued, see OutputFile.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        self._webvtt = path.lower().endswith(".vtt")
        self._file = OutputFile(path, resume=resume)
        if not self._file.regular:
            self._file.close()
            raise OutputError(f"cannot write captions to {path!r}: it is not a regular file; .jsonl can go to a pipe")
        self._track = CueTrack()
        self._number = 1
        self._tail: int | None = None
        self._last: FrameReady | None = None
        self._end_s: float | None = None

    @classmethod
    def open(cls, opening: SinkOpening) -> CaptionSink:
        """Open the sink of a run."""
        return cls(opening.path, resume=opening.resume)

    def write(self, event: Event) -> None:
        if self._tail is None:
            header = "WEBVTT\n\n" if self._webvtt else ""
            self._file.replace_tail(0, header)
            self._tail = len(header)
        if isinstance(event, FrameReady):
            if self._last is None:
                self._end_s = None  # a still picture has no end
            elif event.duration_s is None:
                self._end_s = event.pts_s + max(0.0, event.pts_s - self._last.pts_s)
            else:
                self._end_s = event.pts_s + max(0.0, event.duration_s)
            self._last = event
        elif isinstance(event, Answer):
            cue = self._track.answer(event.pts_s, caption_text(event.text))
            if cue is not None:
                self._complete(cue)
            self._show_open()
        elif isinstance(event, Summary):
            self._end()
            if event.ended == "finished":
                self._file.catch_up()

    def close(self) -> None:
        try:
            self._end()
        finally:
            self._tail = None
            self._file.close()

    def _end(self) -> None:
        """End the last cue with the last frame."""
        if self._tail is not None:
            self._track.finish(self._end_s)
            self._show_open()

    def _complete(self, cue: Cue) -> None:
        text = self._format(cue)
        self._file.replace_tail(self._tail or 0, text)
        self._tail = (self._tail or 0) + len(text.encode())
        self._number += 1

    def _show_open(self) -> None:
        cue = self._track.open
        self._file.replace_tail(self._tail or 0, "" if cue is None else self._format(cue))

    def _format(self, cue: Cue) -> str:
        if self._webvtt:
            text = webvtt_text(cue.text)
        else:
            text = subrip_text(cue.text)
        mark = "." if self._webvtt else ","
        return f"{self._number}\n{timestamp(cue.start_ms, mark)} --> {timestamp(cue.end_ms, mark)}\n{text}\n\n"


def timestamp(at_ms: int, mark: str) -> str:
    """Return `HH:MM:SS.mmm`, with `mark` before the milliseconds."""
    seconds, ms = divmod(at_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{mark}{ms:03}"


def caption_text(text: str) -> str:
    """Return the text as lines of a caption: printable, without blank lines, long lines wrapped, and names with their
    numbers in place of boxes."""
    if GROUNDED.search(text):
        text = words_for(text)
    lines: list[str] = []
    for line in printable_lines(text).split("\n"):
        # the usual limit of subtitle guidelines for one line
        lines += textwrap.wrap(printable(line), 42, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def webvtt_text(text: str) -> str:
    """Escape text for a WebVTT cue, so that it can contain neither tags nor an arrow."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def subrip_text(text: str) -> str:
    """Replace what players read as a time or a tag in SubRip, which has no escapes, with similar characters."""
    text = SUBRIP_TIME.sub("\\1\N{RATIO}\\2\N{RATIO}\\3", text)
    return SUBRIP_TAGS.sub(lambda match: SUBRIP_FORMS[match[0]], text.replace("-->", "→"))
