"""Loops in the text of a server's model: the answer ends at its second repetition, as that of a model here."""

from __future__ import annotations

import re

from arr_coc.qwen.loops import LoopDetector

WORD = re.compile(
    r"\d|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # scripts without spaces, sign by sign
    r"| ?(?:(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])[^\W\d]){1,16}| ?[^\w\s]{1,16}|\s{1,16}"
)
"""Parts of a text that stand for tokens, since pieces of a reply may hold several or half of one. Every character is
of a part, and none is longer than 17, so that a word without an end has parts that come again."""


class LoopFilter:
    """Text of one answer up to the second repetition of a loop, as it comes.

    What may belong to a third copy is held back until the answer goes on with something else. `has_looped`: the answer
    repeats itself, and no text follows.
    """

    def __init__(self) -> None:
        self._detector = LoopDetector[str]()
        self._held: list[str] = []
        self._tail = ""  # the last part, which more text may make longer
        self._shown = 0  # characters of the tail that were returned

    @property
    def has_looped(self) -> bool:
        """True if the answer repeats itself, and ends."""
        return self._detector.has_looped

    @property
    def holds(self) -> bool:
        """True while text is held back, or dropped at the end of a loop."""
        return self.has_looped or len(self._tail) > self._shown or bool(self._held)

    def push(self, text: str) -> str:
        """Return the text that may be shown with this text; may be empty."""
        *parts, tail = WORD.findall(self._tail + text) or [""]
        ready = ""
        for part in parts:
            if self.has_looped:
                break
            self._detector.push(part, is_word=any(map(str.isalpha, part)))
            self._held.append(part)
            free = len(self._held) - (self._detector.count - self._detector.held_from)
            ready += "".join(self._held[:free])
            del self._held[:free]
        if self.has_looped:
            self._held.clear()
            self._tail = ""
            return ready[self._shown :]
        self._tail = tail
        if self._held or any(part.startswith(tail) for part in self._detector.third_copies()):
            shown = 0
        else:
            shown = len(tail)
        ready = (ready + tail[:shown])[self._shown :]
        self._shown = shown
        return ready

    def finish(self) -> str:
        """Return the text that is still held back at the end, but that of a loop."""
        return "".join([*self._held, self._tail])[self._shown :]
