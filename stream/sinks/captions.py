"""WebVTT and SubRip captions, valid at every moment of the run.

Completed cues are appended; the one that is still shown is the file's tail, rewritten in place.
WebVTT: https://www.w3.org/TR/webvtt1/.
"""

from __future__ import annotations

import re
import textwrap

from stream.errors import OutputError
from stream.events import Answer, Event, FrameReady, Summary
from stream.printable import printable, printable_lines
from stream.sinks.base import Sink
from stream.sinks.cues import Cue, CueTrack
from stream.sinks.output_file import OutputFile

LINE_CHARS = 42
"""The usual limit of subtitle guidelines for one line."""

SUBRIP_TAGS = re.compile(r"<(?=[/!?A-Za-z])|\{(?=\\|[A-Za-z]:)")
"""Where players read HTML's `<b>`, SubStation's `{\\an8}` or MicroDVD's `{y:b}`."""

SUBRIP_TIME = re.compile(r"(\d):(\d{1,2}):(\d{1,2}[.,]\d)")
"""A line with two of these begins a cue for some readers, whatever is between them."""

SUBRIP_FORMS = {"<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", "{": "("}


class CaptionSink(Sink):
    """Writes answers as cues from their frame's time until the next answer, the last one until the clip's end.

    `resume`: the file is that of a run which is continued, see OutputFile.
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

    def write(self, event: Event) -> None:
        if self._tail is None:
            header = "WEBVTT\n\n" if self._webvtt else ""
            self._file.replace_tail(0, header)
            self._tail = len(header)
        if isinstance(event, FrameReady):
            self._end_s = _end_of(event, self._last)
            self._last = event
        elif isinstance(event, Answer):
            done = self._track.answer(event.pts_s, caption_text(event.text))
            if done is not None:
                self._complete(done)
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
        """The last cue stays until the last frame has been shown, and no longer."""
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
        text = webvtt_text(cue.text) if self._webvtt else subrip_text(cue.text)
        mark = "." if self._webvtt else ","
        return f"{self._number}\n{timestamp(cue.start_ms, mark)} --> {timestamp(cue.end_ms, mark)}\n{text}\n\n"


def _end_of(frame: FrameReady, before: FrameReady | None) -> float | None:
    """When a frame has been shown, as far as its source or the frame before tells; None for a still picture, which has
    no end."""
    if before is None:
        return None
    shown_s = frame.pts_s - before.pts_s if frame.duration_s is None else frame.duration_s
    return frame.pts_s + max(0.0, shown_s)


def timestamp(at_ms: int, mark: str) -> str:
    """`HH:MM:SS.mmm`, with `mark` before the milliseconds."""
    seconds, ms = divmod(at_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{mark}{ms:03}"


def caption_text(text: str) -> str:
    """The text as the lines of a caption: printable, blank lines gone, long lines wrapped."""
    lines: list[str] = []
    for line in printable_lines(text).split("\n"):
        lines += textwrap.wrap(printable(line), LINE_CHARS, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def webvtt_text(text: str) -> str:
    """Escaped for a WebVTT cue, so that neither tags nor an arrow can appear in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def subrip_text(text: str) -> str:
    """For a SubRip cue, which knows no escapes: what players take for a time or the start of a tag looks alike."""
    text = SUBRIP_TIME.sub("\\1\N{RATIO}\\2\N{RATIO}\\3", text)
    return SUBRIP_TAGS.sub(lambda found: SUBRIP_FORMS[found[0]], text.replace("-->", "→"))
