"""Questions that are typed or piped in while a run goes on."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from stream.config import QUERY_LIMIT_CHARS
from stream.line_editor import LineEditor

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
