"""Questions of one run, as they change while it goes on: its own, those that features ask between its answers, and
watches.

The answer server embeds a question before it is asked, and tokens are chosen for it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Protocol

from arr_coc.types import QueryEmbedding
from stream.answer.client import AnswerClient
from stream.answer.embeddings import EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.model import Doubt, doubt_about
from stream.answer.triggers import AnswerTriggers, WatchList
from stream.config import WatchConfig
from stream.control import Ask, Command
from stream.errors import ConfigError
from stream.events import Event, QueryChanged
from stream.protocol.messages import ServerHello

WATCHES_ONLY = "this run has only watches; give -q beside them to ask other questions"


class QuestionObserver(Protocol):
    """Stage that chooses tokens for the questions of a run, and emits its events."""

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding, *others: QueryEmbedding) -> None:
        """A question is in force, beside `others` of watches; its model may have changed."""
        ...

    def on_event(self, event: Event) -> None:
        """An event is to be emitted."""
        ...


class Asker:
    """A feature's part in the questions of one run. Each method does nothing until a feature has its own.

    A run calls its askers in one order, from the thread that allocates.
    """

    question = ""
    """Question that is asked in the place of the run's own, while this feature is the one `asking`."""
    is_sent = False
    """It was sent, and its answer is awaited."""
    waiting: Sized = ()
    """What is to begin when no request is in flight."""

    def __init__(self, questions: RunQuestions) -> None:
        self.questions = questions

    def follow(self, command: Command) -> None:
        """Follow a command to the run, if it is one of this feature."""

    def begin(self, *, has_frame: bool) -> None:
        """Begin with what is `waiting`. `has_frame`: there is a frame to ask about."""

    def take(self, outcome: EmbeddedQuestion | RefusedQuestion) -> None:
        """Take the server's reply to a question, which may be another one than this feature's."""

    def on_ready(self) -> None:
        """Begin with a server, whose model may be another one, before the watches are evaluated with it."""

    def on_event(self, event: Event) -> None:
        """Take a piece of the answer to `question`, or the whole, or that a cut has made it stale: it is asked again if
        it is not sent any more."""

    def on_lost(self) -> None:
        """Note that the answer to `question` was lost."""

    def finish(self) -> None:
        """Note that the run ends: no more questions are asked."""


class RunQuestions:
    """Questions of one run. `query`: its own, which is in force; `text`: the one for which tokens are chosen, which is
    that of the asker which is `asking`. `watches_only`: nothing else is asked than watches, of which `query` is one.
    `is_fixed`: the questions stay as they are; `finishing`: the run ends."""

    def __init__(
        self,
        query: str,
        client: AnswerClient,
        observer: QuestionObserver,
        triggers: AnswerTriggers,
        watches: WatchList,
        askers: Callable[[RunQuestions], Iterable[Asker]],
        *,
        watches_only: bool,
        knows_source: bool,
    ) -> None:
        """Begin with the run's own question.

        Args:
            query: the run's own question.
            client: client of its answer server.
            observer: stage that chooses the tokens.
            triggers: triggers of the run's own answers.
            watches: watches of the run, which may change.
            askers: returns the parts of the run's features, in order.
            watches_only: nothing else is asked; then its own question is that of a watch.
            knows_source: the source shows the world of a model of drawn scenes.
        """
        self.query = self.text = query
        self.client = client
        self.watches = watches
        self.watches_only = watches_only
        self.is_fixed = any(each.fixes_questions for each in client.options.filters)
        self.finishing = False
        self._next_query: str | None = None
        self._observer = observer
        self._triggers = triggers
        self._knows_source = knows_source
        self.asking: Asker | None = None
        self.askers = tuple(askers(self))

    def follow(self, command: Command) -> None:
        """Follow a command to the run; others than those about questions are ignored."""
        if isinstance(command, Ask) and self.watches_only:
            self.emit(QueryChanged(query=command.query, error=WATCHES_ONLY))
        elif isinstance(command, Ask):
            self._change(command.query)
        for asker in self.askers:
            asker.follow(command)

    def go_on(self, *, has_frame: bool) -> None:
        """Begin with what waits, or return to the run's own question; nothing is in flight."""
        for asker in self.askers:
            asker.begin(has_frame=has_frame)
        if self.asking is None and self.text != self.query:
            self.allocate_for(self.query)

    def on_ready(self) -> None:
        """Begin with a server, whose model may be another one. Raises ConfigError for a watch that it cannot
        evaluate."""
        for asker in self.askers:
            asker.on_ready()
        for watch in self.watches:
            doubt = self.doubt(watch.options)
            watch.warning = None if doubt is None else doubt.warning
            if doubt is not None and not watch.options.force:
                raise ConfigError(doubt.refusal)
        self._require()
        self.allocate_for(self.query)
        if self._next_query is not None:
            self.embed(QuestionKey(self._next_query))
        if self.asking is not None:
            self.embed(QuestionKey(self.asking.question))

    def on_outcome(self, outcome: EmbeddedQuestion | RefusedQuestion) -> None:
        """Ask a question that the server can be asked now, or report one that it cannot."""
        key = outcome.key
        if self._next_query is not None and key == QuestionKey(self._next_query):
            self._next_query = None
            if isinstance(outcome, RefusedQuestion):
                self.emit(QueryChanged(query=key.text, error=outcome.error))
            else:
                self.query = key.text
                self._require()
                self.emit(QueryChanged(query=key.text))
                if self.asking is None:
                    self.allocate_for(key.text)
                self._triggers.ask()
        for asker in self.askers:
            asker.take(outcome)

    def on_watches_changed(self) -> None:
        """Let the watches share the tokens as they are now; the server is ready. If nothing else is asked, the
        question of a watch that was removed is followed by that of another one."""
        self._require()
        self.allocate_for(self.text)
        questions = self.watches.questions
        if self.watches_only and self.query not in questions:
            self._change(questions[0])

    def embed(self, key: QuestionKey) -> None:
        """Ask for the embedding of a question, or go on with it if that is there already."""
        embedded = self.client.embed(key)
        if embedded is not None and self.client.ready:
            self.on_outcome(embedded)

    def allocate_for(self, text: str) -> None:
        """Let the watches and the question `text`, which is embedded, share the tokens from now on."""
        hello = self.client.hello
        assert hello is not None
        self.text = text
        embeddings = self.client.embeddings
        checks = [QuestionKey(other, is_check=True) for other in dict.fromkeys(self.watches.questions) if other != text]
        others = [embeddings[key].embedding for key in checks]
        self._observer.on_model(hello, embeddings[QuestionKey(text)].embedding, *others)

    def doubt(self, watch: WatchConfig) -> Doubt | None:
        """Return the objection to a watch with the server's model, None without one."""
        hello = self.client.hello
        assert hello is not None
        unknown_words = self.client.embeddings[QuestionKey(watch.question, is_check=True)].unseen_words
        return doubt_about(hello.model_id, hello.known_world, unknown_words, knows_source=self._knows_source)

    def finish(self) -> None:
        """End with the run: no more questions are asked."""
        self.finishing = True
        for asker in self.askers:
            asker.finish()
        # the last answer is to the run's own question, also if a turn was granted for another one
        if self.asking is None and self.text != self.query and self.client.ready:
            self.allocate_for(self.query)

    def emit(self, event: Event) -> None:
        """Emit an event of the run."""
        self._observer.on_event(event)

    def _change(self, query: str) -> None:
        """Change the run's own question, once it is embedded."""
        self._next_query = query
        self.embed(QuestionKey(query))

    def _require(self) -> None:
        """Note the questions that another server has to embed first."""
        self.client.embeddings.require(self.query, self.watches.questions)
