"""Questions that are typed or piped in while a run goes on."""

from __future__ import annotations

import codecs
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from stream import logs
from stream.events import Event, QueryChanged, Summary
from stream.monitor.health import RunHandle
from stream.sinks.base import Display
from stream.untrusted import QUERY_LIMIT_CHARS, printable

READ_BYTES = 4096

KEPT_CHARS = 16_384
"""Of a longer line the rest is left out; it is far beyond any question, and is refused for its length."""

WAITING_MAX = 100
"""Questions that wait at most; of more, the oldest are forgotten."""

JOIN_LIMIT_S = 1.0


HELP = "Enter asks, from the next answer on · arrow up: earlier questions · Ctrl-C ends"
"""Reply to a line of HELP_WORDS; fits into a line of the live view."""

HELP_WORDS = ("/help", "/?", "help", "?")


def refusal_reason(text: str) -> str | None:
    """The reason why `text` is no question to ask, None where it is one."""
    if not text.strip():
        return "the question is empty"
    if len(text) > QUERY_LIMIT_CHARS:
        return f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(text)}"
    return None


class PendingQuestions:
    """Questions that were put to a run with `ask` and wait until it takes them. For any thread.

    A run takes the newest of several that came between two of its looks, and passes over the others.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque(maxlen=WAITING_MAX)

    @property
    def newest(self) -> str:
        """The last one that waits, "" where none does."""
        with self._lock:
            return self._waiting[-1] if self._waiting else ""

    def put(self, line: str, refuse: Callable[[str], None]) -> None:
        """Ask what was typed; `refuse` gets a line if it is no question, and the help if that is wanted."""
        question = printable(line)
        if question.strip().lower() in HELP_WORDS:
            refuse(HELP)
            return
        reason = refusal_reason(question)
        if reason is not None:
            refuse(f"not asked: {reason}")
            return
        with self._lock:
            self._waiting.append(question)
        self._ask(question)

    def settle(self, event: QueryChanged) -> list[str]:
        """This question waits no longer. Returns a line on each that waited before it: it will not be asked."""
        passed: list[str] = []
        with self._lock:
            while event.query in self._waiting:
                question = self._waiting.popleft()
                if question != event.query:
                    passed.append(f"not asked, because another question followed: {question}")
        return passed


class QuestionTaker(Protocol):
    """Taker of typed lines, such as `PendingQuestions` of one run."""

    def put(self, line: str, refuse: Callable[[str], None]) -> None: ...


class QuestionReader:
    """Reads lines from a descriptor in a thread of its own, and puts each as a question.

    `refuse` gets a line for each that is none. It ends at the end of what is read, or with `close`; the
    descriptor stays open.
    """

    def __init__(self, descriptor: int, questions: QuestionTaker, refuse: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._questions = questions
        self._refuse = refuse
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line = ""
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
            self._take(data or (b"\n" if self._line else b""))
            if not data:
                return

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._line + self._decoder.decode(data)).split("\n")
        self._line = rest[:KEPT_CHARS]
        for line in lines:
            self._questions.put(line, self._refuse)


class AskingDisplay(Display):
    """Shows a run on `display`, and asks each line that is read from `descriptor` until the run ends."""

    def __init__(self, display: Display, descriptor: int) -> None:
        self._display = display
        self._descriptor = descriptor
        self._questions: PendingQuestions | None = None
        self._reader: QuestionReader | None = None

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._display.attach(run, frames)
        self._questions = PendingQuestions(run.ask)
        self._reader = QuestionReader(self._descriptor, self._questions, logs.say)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler where `display` is."""
        self._display.show_message(message)

    def write(self, event: Event) -> None:
        if isinstance(event, Summary):
            self._stop_asking()
        elif isinstance(event, QueryChanged) and self._questions is not None:
            for line in self._questions.settle(event):
                logs.say(line)
        self._display.write(event)

    def close(self) -> None:
        self._stop_asking()
        self._display.close()

    def _stop_asking(self) -> None:
        if self._reader is not None:
            self._reader.close()
