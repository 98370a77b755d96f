"""Questions of one run, as they change while it goes on: its own, side questions between its answers, and watches.

The answer server embeds a question before it is asked, and tokens are chosen for it from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from arr_coc.types import QueryEmbedding
from stream.answer.client import AnswerClient
from stream.answer.embeddings import EmbeddedQuestion, QuestionKey, RefusedQuestion
from stream.answer.side import RUN_OVER, SideQuestions
from stream.answer.standing import WatchChanges
from stream.answer.triggers import AnswerTriggers, WatchList
from stream.control import AddWatch, Ask, AskAside, Command, RemoveWatch
from stream.events import Event, QueryChanged, SideRefused, WatchesChanged
from stream.protocol.messages import ServerHello

NO_SIDE_QUESTIONS = "this run keeps its answers to be continued, and takes no side questions; leave --resume out"

WATCHES_ONLY = "this run has only watches; give -q beside them to ask other questions"


class QuestionObserver(Protocol):
    """Stage that chooses tokens for the questions of a run, and emits its events."""

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding, *others: QueryEmbedding) -> None:
        """A question is in force, beside `others` of watches; its model may have changed."""
        ...

    def on_event(self, event: Event) -> None:
        """An event is to be emitted."""
        ...


class RunQuestions:
    """Questions of one run. `query`: its own, which is in force; `text`: the one for which tokens are chosen, which is
    that of a side question meanwhile. `sides` and `changes`: those that wait. `finishing`: the run ends."""

    def __init__(
        self,
        query: str,
        client: AnswerClient,
        observer: QuestionObserver,
        triggers: AnswerTriggers,
        watches: WatchList,
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
            watches_only: as in `WatchChanges`; then its own question is that of a watch.
            knows_source: as in `WatchChanges`.
        """
        self.query = self.text = query
        self.sides = SideQuestions()
        self._fixed = any(each.fixes_questions for each in client.options.filters)
        self.changes = WatchChanges(
            watches, client, watches_only=watches_only, knows_source=knows_source, fixed=self._fixed
        )
        self.finishing = False
        self._next_query: str | None = None
        self._client = client
        self._observer = observer
        self._triggers = triggers
        self._watches_only = watches_only

    def follow(self, command: Command) -> None:
        """Follow a command to the run; others than those about questions are ignored."""
        match command:
            case Ask(query=query) if self._watches_only:
                self._emit([QueryChanged(query=query, error=WATCHES_ONLY)])
            case Ask(query=query):
                self._change(query)
            case AskAside() if self.finishing or self._fixed:
                reason = RUN_OVER if self.finishing else NO_SIDE_QUESTIONS
                self._emit([SideRefused(question=command.number, error=reason)])
            case AskAside():
                self._emit(self.sides.add(command))
            case AddWatch() | RemoveWatch():
                self._emit(self.changes.add(command))

    def change_watches(self) -> None:
        """Begin the changes of watches that wait; none of their questions is in a request."""
        self._on_changes(self.changes.begin())

    def go_on(self) -> None:
        """Begin with the next side question, or return to the run's own after the last one; nothing is in flight."""
        if (text := self.sides.begin()) is not None:
            self._embed(text)
        elif self.sides.current is None and self.text != self.query:
            self._allocate_for(self.query)

    def on_ready(self) -> None:
        """Begin with a server, whose model may be another one."""
        hello = self._client.hello
        assert hello is not None
        self._emit(self.changes.check_model(hello))
        self._require()
        self._allocate_for(self.query)
        if self._next_query is not None:
            self._embed(self._next_query)
        if self.sides.current is not None:
            self._embed(self.sides.current.query)

    def on_embedded(self, embedded: EmbeddedQuestion) -> None:
        """Ask a question that the server can be asked now."""
        text = embedded.key.text
        if embedded.key.is_check:
            self._on_changes(self.changes.take(embedded))
            return
        if text == self._next_query:
            self._next_query = None
            self.query = text
            self._require()
            self._emit([QueryChanged(query=text)])
            if self.sides.current is None:
                self._allocate_for(text)
            self._triggers.ask()
        if self.sides.accept(text):
            self._allocate_for(text)

    def on_refused(self, refused: RefusedQuestion) -> None:
        """Report a question that the server cannot be asked."""
        text = refused.key.text
        if refused.key.is_check:
            self._on_changes(self.changes.take(refused))
            return
        if text == self._next_query:
            self._next_query = None
            self._emit([QueryChanged(query=text, error=refused.error)])
        self._emit(self.sides.refuse(text, refused.error))

    def _on_changes(self, changes: list[WatchesChanged]) -> None:
        """Let the watches share the tokens as they are after these changes, and report them."""
        self._require()
        if any(change.error is None for change in changes) and self._client.ready:
            self._allocate_for(self.text)
            if (query := self.changes.missing_query(self.query)) is not None:
                self._change(query)
        self._emit(changes)

    def _change(self, query: str) -> None:
        """Change the run's own question, once it is embedded."""
        self._next_query = query
        self._embed(query)

    def _embed(self, text: str) -> None:
        """Ask for the embedding of a question, or go on with it if that is there already."""
        embedded = self._client.embed(QuestionKey(text))
        if embedded is not None and self._client.ready:
            self.on_embedded(embedded)

    def _allocate_for(self, text: str) -> None:
        """Let the watches and the question `text`, which is embedded, share the tokens from now on."""
        hello = self._client.hello
        assert hello is not None
        self.text = text
        embedding = self._client.embeddings[QuestionKey(text)].embedding
        self._observer.on_model(hello, embedding, *self.changes.other_embeddings(embedding))

    def _require(self) -> None:
        """Note the questions that another server has to embed first."""
        self._client.embeddings.require(self.query, self.changes.questions)

    def _emit(self, events: Iterable[Event]) -> None:
        for event in events:
            self._observer.on_event(event)
