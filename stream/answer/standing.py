"""Changes of a run's watches while it goes on: one at a time, and a new watch is checked once the answer server has
accepted its question.

Pure logic; `stream/answer/scheduler.py` calls it between two requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from arr_coc.types import NS_PER_S, QueryEmbedding
from stream.answer.client import AnswerClient
from stream.answer.embeddings import EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.model import Doubt, doubt_about
from stream.answer.triggers import (
    VerdictThresholds,
    WatchList,
    WatchRules,
    WatchState,
    YesNoTriggerOptions,
)
from stream.config import WatchConfig
from stream.control import WATCH_CHANGES_MAX, AddWatch, RemoveWatch, WatchChange
from stream.errors import ConfigError
from stream.events import StandingQuestion, WatchesChanged
from stream.options.schedule import Schedule
from stream.protocol.messages import ServerHello
from stream.untrusted import WATCHES_MAX

INVALID = "its settings are not valid: a name of letters, digits, _ and -, a threshold up to 1, and times in seconds"

CROWDED = f"{WATCH_CHANGES_MAX} changes of watches wait already; try again in a moment"

LAST_WATCH = "this run has only watches, and this is the last; add another one first"

MOST_WATCHES = f"this run has {WATCHES_MAX} watches, the most of a camera; remove one first"

MEANS_NOTHING = "its yes {warning}; ask for what the model knows"

NO_WATCH_CHANGES = "this run keeps its answers to be continued, so its watches stay as they are; leave --resume out"


def watch_of(command: AddWatch) -> WatchConfig:
    """Return the configuration of a new watch. Raises ValueError for a value out of range."""
    return WatchConfig(
        name=command.name,
        question=command.question,
        threshold=command.threshold,
        hold_s=command.hold_s,
        cooldown_s=command.cooldown_s,
    )


def watch_rules(watch: WatchConfig, state: WatchState | None = None) -> WatchRules:
    """Return the options of a watch, which continues from `state`."""
    return WatchRules(
        name=watch.name,
        question=watch.question,
        triggers=YesNoTriggerOptions(
            every_ns=None if watch.every_s is None else round(watch.every_s * NS_PER_S),
            on_change=watch.on_change,
            on_cut=watch.on_cut,
            least_ns=round(watch.least_s * NS_PER_S),
        ),
        thresholds=VerdictThresholds(watch.threshold, watch.most_of_no, watch.sure, watch.certain),
        hold_ns=round(watch.hold_s * NS_PER_S),
        cooldown_ns=round(watch.cooldown_s * NS_PER_S),
        schedule=None if watch.schedule is None else Schedule.of(watch.schedule),
        ends_run=watch.ends_run,
        force=watch.force,
        state=state or WatchState(),
    )


class WatchChanges:
    """Changes of the watches of one run: those in `waiting`, and the new one whose question was sent to the server.

    `watches_only`: nothing else is asked, so that one watch stays; `knows_source`: the source shows the world of a
    model of drawn scenes; `fixed`: changes are refused. In a run with a forced watch (`--force`) new ones are forced
    too.
    """

    def __init__(
        self, watches: WatchList, client: AnswerClient, *, watches_only: bool, knows_source: bool, fixed: bool
    ) -> None:
        self._watches = watches
        self._client = client
        self._watches_only = watches_only
        self._knows_source = knows_source
        self._fixed = fixed
        self._forces = any(watch.options.force for watch in watches)
        self._new: WatchRules | None = None
        self._added_names: set[str] = set()
        self.waiting: deque[WatchChange] = deque()

    def add(self, change: WatchChange) -> list[WatchesChanged]:
        """Let a change wait; return its refusal if there can be none, or too many wait."""
        if self._fixed or len(self.waiting) >= WATCH_CHANGES_MAX:
            question = change.question if isinstance(change, AddWatch) else ""
            return [self._event(change.name, question, NO_WATCH_CHANGES if self._fixed else CROWDED)]
        self.waiting.append(change)
        return []

    def begin(self) -> list[WatchesChanged]:
        """Begin the changes that wait, up to the next new question; return those that are done or refused."""
        events: list[WatchesChanged] = []
        while self.waiting and self._new is None:
            change = self.waiting.popleft()
            events += self._remove(change.name) if isinstance(change, RemoveWatch) else self._ask(change)
        return events

    def take(self, outcome: EmbeddedQuestion | RefusedQuestion) -> list[WatchesChanged]:
        """Take the server's reply to a question; return the change, if it is done or refused by that."""
        new = self._new
        if new is None or outcome.key != _key(new.question):
            return []
        self._new = None
        if isinstance(outcome, RefusedQuestion):
            return [self._event(new.name, new.question, outcome.error)]
        return self._join(new)

    def check_model(self, hello: ServerHello) -> list[WatchesChanged]:
        """Remove the watches that were added and that this model cannot evaluate; forced ones have a warning. Raises
        ConfigError for another one."""
        events = []
        for watch in tuple(self._watches):
            doubt = self._doubt(hello, watch.options)
            watch.warning = None if doubt is None else doubt.warning
            if doubt is None or watch.options.force:
                continue
            if watch.options.name not in self._added_names:
                raise ConfigError(doubt.refusal)
            self._forget(watch.options.name)
            warning = MEANS_NOTHING.format(warning=doubt.warning)
            events.append(self._event(watch.options.name, watch.options.question, warning))
        return events

    def other_embeddings(self, embedding: QueryEmbedding) -> list[QueryEmbedding]:
        """Return the embeddings that share the tokens with that of the query in force."""
        questions = dict.fromkeys(self.questions)
        return [
            self._client.embeddings[_key(question)].embedding for question in questions if question != embedding.text
        ]

    def missing_query(self, query: str) -> str | None:
        """Return the question to ask in place of `query`, if that is of a watch that was removed and nothing else is
        asked."""
        questions = self.questions
        if self._watches_only and questions and query not in questions:
            return questions[0]
        return None

    def _ask(self, change: AddWatch) -> list[WatchesChanged]:
        try:
            new = watch_rules(watch_of(change))
        except (ValueError, OverflowError):  # of another program; the page's are checked before
            return [self._event(change.name, change.question, INVALID)]
        if any(watch.options.name == new.name for watch in self._watches):
            return [self._event(new.name, new.question, f"a watch is named {new.name!r} already; give another name")]
        if len(self._watches) >= WATCHES_MAX:
            return [self._event(new.name, new.question, MOST_WATCHES)]
        if self._client.embed(_key(new.question)) is not None:
            return self._join(new)
        self._new = new
        return []

    def _join(self, new: WatchRules) -> list[WatchesChanged]:
        """Add a watch whose question was accepted, unless the model cannot evaluate it."""
        assert self._client.hello is not None
        doubt = self._doubt(self._client.hello, new)
        if doubt is not None and not self._forces:
            return [self._event(new.name, new.question, MEANS_NOTHING.format(warning=doubt.warning))]
        watch = self._watches.add(replace(new, force=self._forces))
        watch.warning = None if doubt is None else doubt.warning
        self._added_names.add(new.name)
        return [self._event(new.name, new.question)]

    def _remove(self, name: str) -> list[WatchesChanged]:
        questions = {watch.options.name: watch.options.question for watch in self._watches}
        if name not in questions:
            if questions:
                choices = f"; there are: {', '.join(questions)}"
            else:
                choices = "; there is none"
            return [self._event(name, "", f"no watch is named {name!r}{choices}")]
        if self._watches_only and len(questions) == 1:
            return [self._event(name, questions[name], LAST_WATCH)]
        self._forget(name)
        return [self._event(name, questions[name])]

    def _forget(self, name: str) -> None:
        self._watches.remove(name)
        self._added_names.discard(name)

    def _doubt(self, hello: ServerHello, rules: WatchRules) -> Doubt | None:
        """Return the objection to a watch with this model."""
        unknown_words = self._client.embeddings[_key(rules.question)].unseen_words
        return doubt_about(hello.model_id, hello.known_world, unknown_words, knows_source=self._knows_source)

    @property
    def questions(self) -> list[str]:
        """Questions of the watches, in order."""
        return [watch.options.question for watch in self._watches]

    def _event(self, name: str, question: str, error: str | None = None) -> WatchesChanged:
        present = [_standing(watch.options) for watch in self._watches]
        return WatchesChanged(watch=name, watches=present, error=error, question=question)


def _key(question: str) -> QuestionKey:
    return QuestionKey(question, is_check=True)


def _standing(rules: WatchRules) -> StandingQuestion:
    thresholds = rules.thresholds
    return StandingQuestion(
        rules.name, rules.question, thresholds.yes_above, thresholds.no_below, rules.hold_ns / NS_PER_S
    )
