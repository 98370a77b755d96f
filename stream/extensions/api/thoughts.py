"""Thoughts in the text of a server's model, left out as they come."""

from __future__ import annotations

from typing import Literal

from arr_coc.qwen.checkpoint import THINKING_MARKS

BEGIN, END = THINKING_MARKS


class ThoughtFilter:
    """Text of one answer without the thoughts before it, and the space after them.

    `has_begun`: the prompt begins the thoughts, so that the text lacks their first mark. `thinks`: thoughts have come.
    """

    def __init__(self, has_begun: bool = False) -> None:
        self._state: Literal["before", "within", "after", "answer"] = "within" if has_begun else "before"
        self._rest = ""
        self.thinks = False

    def push(self, text: str) -> str:
        """Return the part of the answer that this text completes; may be empty."""
        self._rest += text
        if self._state == "before":
            beginning = self._rest.lstrip()
            if BEGIN.startswith(beginning):  # so far
                return ""
            if beginning.startswith(BEGIN):
                self._state = "within"
            else:
                self._state = "answer"
        if self._state == "within":
            self.thinks = self.thinks or bool(self._rest.strip())
            _, mark, after = self._rest.partition(END)
            self._rest = after if mark else self._rest[1 - len(END) :]
            if not mark:
                return ""
            self._state = "after"
        if self._state == "after":
            self._rest = self._rest.lstrip()
            if not self._rest:
                return ""
            self._state = "answer"
        answer = self._rest
        self._rest = ""
        return answer

    def finish(self) -> str:
        """Return the text that is still held back: the beginning of a mark that did not come."""
        if self._state == "before" and self._rest != BEGIN:
            return self._rest
        return ""
