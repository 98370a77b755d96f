"""Questions that are typed or piped in while a run goes on."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from stream import logs
from stream.control import Ask
from stream.events import QueryChanged
from stream.untrusted import QUERY_LIMIT_CHARS, printable

KEPT_CHARS = 16_384
"""Of a longer line the rest is left out; it is far beyond any question, and is refused for its length."""


HELP = "Enter asks, from the next answer on · arrow up: earlier questions · /quit ends"
"""Reply to a line of HELP_WORDS; fits into a line of the live view."""

HELP_WORDS = ("/help", "/?", "help", "?")
QUIT_WORDS = ("/quit", "/exit", "/q")

COMMAND = re.compile(r"/[\w?]*")
"""First word of a line that is no question. A path has another slash, or a dot."""


def refusal_reason(text: str) -> str | None:
    """The reason why `text` cannot be asked, None if it can."""
    if not text.strip():
        return "the question is empty"
    if len(text) > QUERY_LIMIT_CHARS:
        return f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(text)}"
    return None


class PendingQuestions:
    """Questions that were sent to a run and wait until it takes them. For any thread.

    A run takes the newest of several that came between two of its looks, and passes over the others.
    """

    def __init__(self, send: Callable[[Ask], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._queue: deque[str] = deque(maxlen=100)  # questions that wait at most; of more, the oldest are forgotten

    @property
    def newest(self) -> str:
        """The newest waiting question, "" if none waits."""
        with self._lock:
            return self._queue[-1] if self._queue else ""

    def put(self, line: str, refuse: Callable[[str], None]) -> None:
        """Ask the typed question; `refuse` gets a line if it cannot be asked."""
        question = printable(line)
        reason = refusal_reason(question)
        if reason is not None:
            refuse(f"not asked: {reason}")
            return
        with self._lock:
            self._queue.append(question)
        self._send(Ask(question))

    def settle(self, event: QueryChanged) -> list[str]:
        """This question waits no longer. Returns a line on each that waited before it: it will not be asked."""
        lines: list[str] = []
        with self._lock:
            while event.query in self._queue:
                question = self._queue.popleft()
                if question != event.query:
                    lines.append(f"not asked, because another question followed: {question}")
        return lines


class QuestionReader:
    """Reads lines from a descriptor in a separate thread, and passes each to `take`.

    It ends at the end of what is read, or with `close`; the descriptor stays open.
    """

    def __init__(self, descriptor: int, take: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line = ""
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        self._thread = threading.Thread(target=self._read, name="questions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading. May be called twice."""
        if self._wake_write_fd < 0:
            return
        os.close(self._wake_write_fd)
        self._wake_write_fd = -1
        self._thread.join(1.0)
        os.close(self._wake_read_fd)

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._descriptor, self._wake_read_fd], [], [])
            if self._wake_read_fd in ready:
                return
            try:
                data = os.read(self._descriptor, 4096)
            except OSError:
                return
            *lines, rest = (self._line + self._decoder.decode(data or (b"\n" if self._line else b""))).split("\n")
            self._line = rest[:KEPT_CHARS]
            for line in lines:
                self._take(line)
            if not data:
                return


NAME = re.compile(r"[^\W_][\w.-]*")
"""A camera's name: letters of any script, digits, and what may stand in a file's name, but not at its beginning."""


class Questions:
    """Questions of a person to the cameras of a display: `NAME: question` to one, any other line to all.

    A camera can be asked from `add` to `remove`; from the first one on, lines are read from the descriptor
    `questions_fd`, if that is given, and `reply` gets a line for each that is not asked. For any thread.
    """

    def __init__(
        self, names: Sequence[str], questions_fd: int | None = None, reply: Callable[[str], None] = logs.say
    ) -> None:
        self._names = names
        self._questions_fd = questions_fd
        self._reply = reply
        self._reader: QuestionReader | None = None
        self._lock = threading.Lock()
        self._cameras: dict[str, PendingQuestions] = {}

    def add(self, camera: str, send: Callable[[Ask], None]) -> PendingQuestions:
        """Let a camera be asked from here on, with `send`; returns its questions."""
        pending = PendingQuestions(send)
        with self._lock:
            self._cameras[camera] = pending
            if self._questions_fd is not None and self._reader is None:
                self._reader = QuestionReader(self._questions_fd, partial(self.put, reply=self._reply))
        return pending

    def settle(self, camera: str, event: QueryChanged) -> list[str]:
        """Take note that a camera has this question now, as `PendingQuestions.settle`."""
        with self._lock:
            pending = self._cameras.get(camera)
        return [] if pending is None else pending.settle(event)

    def remove(self, camera: str) -> None:
        """Forget a camera that has ended."""
        with self._lock:
            self._cameras.pop(camera, None)

    def close(self) -> None:
        """Stop reading. May be called twice."""
        if self._reader is not None:
            self._reader.close()

    def put(self, line: str, reply: Callable[[str], None]) -> None:
        """Ask the typed question, or follow the command; `reply` gets a line if it cannot be asked, and the help. A
        command to quit does what Ctrl-C does."""
        command = printable(line).strip().lower()
        word, *_ = command.split() or [""]
        if command in HELP_WORDS:
            reply(HELP)
            return
        if word in QUIT_WORDS:
            os.kill(os.getpid(), signal.SIGINT)
            return
        if COMMAND.fullmatch(word):
            reply(f"not asked: there is no command {word}; /help lists them")
            return
        with self._lock:
            cameras = dict(self._cameras)
        if not cameras:
            reply("not asked: no camera runs")
            return
        name, question = self._addressed(line)
        if name in cameras:
            cameras[name].put(question, reply)
        elif name in self._names:
            reply(f"not asked: {name} does not run; running: {', '.join(cameras)}")
        elif name is not None:
            reply(f"not asked: no camera is called {name!r}; there are {', '.join(self._names)}")
        else:
            replies: list[str] = []
            for pending in cameras.values():
                pending.put(question, replies.append)
            for text in dict.fromkeys(replies):
                reply(text)

    def _addressed(self, line: str) -> tuple[str | None, str]:
        """Return the camera that a line is for, None for all, and the question. A word of a name's letters with a colon
        and a space after it is meant as a name, also if no camera has it."""
        name, colon, question = line.partition(":")
        name = name.strip()
        if "" in self._names or not colon:
            return None, line
        if name in self._names or (NAME.fullmatch(name) and not question[:1].strip()):
            return name, question
        return None, line
