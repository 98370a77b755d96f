"""Changes of a run's watches while it goes on: one at a time, between two requests, and a new watch is checked once the
answer server has accepted its question."""

from __future__ import annotations

from collections import deque

from msgspec.structs import asdict

from stream.answer.embeddings import EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.questions import Asker, RunQuestions
from stream.config import WatchConfig
from stream.control import WATCH_CHANGES_MAX, AddWatch, Command, RemoveWatch, WatchChange
from stream.events import StandingQuestion, WatchesChanged
from stream.untrusted import WATCHES_MAX

INVALID = "its settings are not valid: a name of letters, digits, _ and -, a threshold up to 1, and times in seconds"

CROWDED = f"{WATCH_CHANGES_MAX} changes of watches wait already; try again in a moment"

LAST_WATCH = "this run has only watches, and this is the last; add another one first"

MOST_WATCHES = f"this run has {WATCHES_MAX} watches, the most of a camera; remove one first"

MEANS_NOTHING = "its yes {warning}; ask for what the model knows"

NO_WATCH_CHANGES = "this run keeps its answers to be continued, so its watches stay as they are; leave --resume out"


class WatchChanges(Asker):
    """Changes of the watches of one run: those that wait, and the new one whose question was sent to the server.

    In a run with a forced watch (`--force`) new ones are forced too.
    """

    def __init__(self, questions: RunQuestions) -> None:
        super().__init__(questions)
        self._watches = questions.watches
        self._forces = any(watch.options.force for watch in self._watches)
        self._new: WatchConfig | None = None
        self._added_names: set[str] = set()
        self.waiting: deque[WatchChange] = deque()

    def follow(self, command: Command) -> None:
        if not isinstance(command, AddWatch | RemoveWatch):
            return
        question = command.question if isinstance(command, AddWatch) else ""
        if self.questions.is_fixed:
            self._emit(command.name, question, NO_WATCH_CHANGES)
        elif len(self.waiting) >= WATCH_CHANGES_MAX:
            self._emit(command.name, question, CROWDED)
        else:
            self.waiting.append(command)

    def begin(self, *, has_frame: bool) -> None:
        """Begin the changes that wait, up to the next new question."""
        while self.waiting and self._new is None:
            change = self.waiting.popleft()
            if isinstance(change, RemoveWatch):
                self._remove(change.name)
            else:
                self._ask(change)

    def take(self, outcome: EmbeddedQuestion | RefusedQuestion) -> None:
        new = self._new
        if new is None or outcome.key != QuestionKey(new.question, is_check=True):
            return
        self._new = None
        if isinstance(outcome, RefusedQuestion):
            self._emit(new.name, new.question, outcome.error)
            return
        doubt = self.questions.doubt(new)
        if doubt is not None and not self._forces:
            self._emit(new.name, new.question, MEANS_NOTHING.format(warning=doubt.warning))
            return
        watch = self._watches.add(new.model_copy(update={"force": self._forces}))
        watch.warning = None if doubt is None else doubt.warning
        self._added_names.add(new.name)
        self.questions.on_watches_changed()
        self._emit(new.name, new.question)

    def on_ready(self) -> None:
        """Remove the watches that were added and that this model cannot evaluate, unless they are forced."""
        for watch in tuple(self._watches):
            name = watch.options.name
            doubt = self.questions.doubt(watch.options)
            if doubt is None or watch.options.force or name not in self._added_names:
                continue
            self._forget(name)
            self._emit(name, watch.options.question, MEANS_NOTHING.format(warning=doubt.warning))

    def _ask(self, change: AddWatch) -> None:
        try:
            new = WatchConfig(**asdict(change))
        except ValueError:  # of another program; the page's are checked before
            self._emit(change.name, change.question, INVALID)
            return
        if any(watch.options.name == new.name for watch in self._watches):
            self._emit(new.name, new.question, f"a watch is named {new.name!r} already; give another name")
        elif len(self._watches) >= WATCHES_MAX:
            self._emit(new.name, new.question, MOST_WATCHES)
        else:
            self._new = new
            self.questions.embed(QuestionKey(new.question, is_check=True))

    def _remove(self, name: str) -> None:
        questions = {watch.options.name: watch.options.question for watch in self._watches}
        if name not in questions:
            if questions:
                choices = f"; there are: {', '.join(questions)}"
            else:
                choices = "; there is none"
            self._emit(name, "", f"no watch is named {name!r}{choices}")
        elif self.questions.watches_only and len(questions) == 1:
            self._emit(name, questions[name], LAST_WATCH)
        else:
            self._forget(name)
            self.questions.on_watches_changed()
            self._emit(name, questions[name])

    def _forget(self, name: str) -> None:
        self._watches.remove(name)
        self._added_names.discard(name)

    def _emit(self, name: str, question: str, error: str | None = None) -> None:
        """Emit what became of a change."""
        present = [StandingQuestion.of(watch.options) for watch in self._watches]
        self.questions.emit(WatchesChanged(watch=name, watches=present, error=error, question=question))
