"""One line that a person types, from the bytes that a terminal sends. Pure."""

from __future__ import annotations

import codecs
import enum
import re
from collections.abc import Iterator

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
