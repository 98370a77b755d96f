"""Questions that are typed or piped in while a run goes on."""

from __future__ import annotations

import codecs
import enum
import os
import re
import select
import threading
from collections.abc import Callable, Iterator

from stream import logs
from stream.config import QUERY_LIMIT_CHARS
from stream.events import Event, Summary
from stream.monitor.health import RunHandle
from stream.sinks.base import Display

KEPT_CHARS = 16_384
"""Of a longer line the rest is left out; it is far beyond any question, and is refused for its length."""

_ESCAPE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|[^\\[O])?", re.DOTALL)
_UNFINISHED = re.compile("\x1b(?:\\[[0-?]*[ -/]*|O)?\\Z", re.DOTALL)


class Key(enum.Enum):
    """Keys that mean something else than text."""

    SUSPEND = "Ctrl-Z"
    REDRAW = "Ctrl-L"


class LineEditor:
    """Backspace, Ctrl-W (a word), Ctrl-U (all) and Enter; arrows and the like do nothing."""

    def __init__(self) -> None:
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes) -> Iterator[str | Key]:
        """Takes what was typed; yields every line that Enter completed, and keys for others to act on."""
        typed = self._rest + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(typed)
        # A lone escape that nothing follows is the Esc key; one at the end of a read may be the start of an arrow.
        self._rest = unfinished[0] if unfinished and typed != "\x1b" else ""
        typed = typed[: len(typed) - len(self._rest)]
        for char in _ESCAPE.sub("", typed):
            if char in "\r\n":
                line, self.text = self.text, ""
                yield line
            elif char == "\x1a":
                yield Key.SUSPEND
            elif char == "\x0c":
                yield Key.REDRAW
            else:
                self._edit(char)

    def _edit(self, char: str) -> None:
        if char in "\x7f\x08":
            self.text = self.text[:-1]
        elif char == "\x15":
            self.text = ""
        elif char == "\x17":
            self.text = self.text.rstrip().rpartition(" ")[0]
            self.text += " " if self.text else ""
        elif char.isprintable() and len(self.text) < KEPT_CHARS:
            self.text += char
        elif char == "\t":
            self.text += " "


READ_BYTES = 4096

JOIN_LIMIT_S = 1.0


def refusal(text: str) -> str | None:
    """Why `text` is no question to ask, None where it is one."""
    if not text.strip():
        return "an empty line is no question"
    if len(text) > QUERY_LIMIT_CHARS:
        return f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(text)}"
    return None


class QuestionReader:
    """Reads lines from a descriptor in a thread of its own, and asks each.

    `ask` gets every question, `tell` the reason for each line that is none. It ends at the end of what is read, or with
    `close`; the descriptor stays open.
    """

    def __init__(self, descriptor: int, ask: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._ask = ask
        self._tell = tell
        self._editor = LineEditor()
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read, name="questions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading. May be called twice."""
        if self._wake < 0:
            return
        os.close(self._wake)
        self._wake = -1
        self._thread.join(JOIN_LIMIT_S)
        os.close(self._woken)

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._descriptor, self._woken], [], [])
            if self._woken in ready:
                return
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except OSError:
                return
            self._take(data or (b"\n" if self._editor.text else b""))
            if not data:
                return

    def _take(self, data: bytes) -> None:
        for line in self._editor.feed(data):
            if isinstance(line, str):
                put_question(line, self._ask, self._tell)


def put_question(line: str, ask: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Asks what was typed, or tells why not."""
    reason = refusal(line)
    if reason is None:
        ask(line.strip())
    else:
        tell(f"not asked: {reason}")


class AskingDisplay(Display):
    """Shows a run on `shown`, and asks each line that is read from `descriptor` until the run ends."""

    def __init__(self, shown: Display, descriptor: int) -> None:
        self._shown = shown
        self._descriptor = descriptor
        self._reader: QuestionReader | None = None

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._shown.attach(run, frames)
        self._reader = QuestionReader(self._descriptor, run.ask, logs.say)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler where `shown` is."""
        self._shown.show_message(message)

    def write(self, event: Event) -> None:
        if isinstance(event, Summary):
            self._stop_asking()
        self._shown.write(event)

    def close(self) -> None:
        self._stop_asking()
        self._shown.close()

    def _stop_asking(self) -> None:
        if self._reader is not None:
            self._reader.close()
