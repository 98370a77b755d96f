"""Embeddings of the questions of one client, from its present answer server: each text is asked for once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arr_coc.types import QueryEmbedding
from stream.protocol.messages import Embed

KEPT = 16
"""Number of embeddings kept of questions that are no longer asked, the newest."""


@dataclass(frozen=True, slots=True)
class QuestionKey:
    """Text of a question, and whether it is a yes/no check."""

    text: str
    is_check: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddedQuestion:
    """Question that the server can be asked; `unseen_words` as in `Embedded`."""

    key: QuestionKey
    embedding: QueryEmbedding
    unseen_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedQuestion:
    """Question that the server cannot be asked, and why."""

    key: QuestionKey
    error: str


class QuestionEmbeddings:
    """Embeddings of one client. `required`: the questions without which it is not ready; those of its Connect have
    `schema`, the schema of their answers."""

    def __init__(self, query: str, checks: Iterable[str], schema: str | None = None) -> None:
        self._schema = schema
        self._embedded: dict[QuestionKey, EmbeddedQuestion] = {}
        self._awaited: dict[QuestionKey, None] = {}
        self.require(query, checks)

    def require(self, query: str, checks: Iterable[str]) -> None:
        """Set the questions that are asked from now on."""
        self.required = tuple(
            dict.fromkeys((QuestionKey(query), *(QuestionKey(check, is_check=True) for check in checks)))
        )

    def __getitem__(self, key: QuestionKey) -> EmbeddedQuestion:
        question = self._embedded.pop(key)
        self._embedded[key] = question  # used last, so it is forgotten last
        return question

    @property
    def is_complete(self) -> bool:
        """True if the required questions are embedded."""
        return all(key in self._embedded for key in self.required)

    @property
    def is_any_awaited(self) -> bool:
        """True while the server owes a reply."""
        return bool(self._awaited)

    @property
    def others(self) -> list[EmbeddedQuestion]:
        """Embedded questions that are not required."""
        return [question for key, question in self._embedded.items() if key not in self.required]

    def restart(self) -> list[Embed]:
        """Begin anew with another server; return the messages that ask for what is required or awaited."""
        self._embedded.clear()
        newest = list(self._awaited)[-KEPT:]  # of many questions typed meanwhile
        self._awaited = dict.fromkeys((*self.required, *newest))
        return [
            Embed(text=key.text, is_check=key.is_check, schema=None if key.is_check else self._schema)
            for key in self._awaited
        ]

    def get(self, key: QuestionKey) -> EmbeddedQuestion | None:
        """Return a question if it is embedded."""
        return self[key] if key in self._embedded else None

    def ask(self, key: QuestionKey) -> Embed | None:
        """Return the message that asks for an embedding; None if it is known or awaited."""
        if key in self._embedded or key in self._awaited:
            return None
        self._awaited[key] = None
        return Embed(text=key.text, is_check=key.is_check)

    def settle(self, key: QuestionKey) -> bool:
        """Note a reply; return whether it was awaited."""
        is_awaited = key in self._awaited
        self._awaited.pop(key, None)
        return is_awaited

    def add(self, question: EmbeddedQuestion) -> None:
        """Keep an embedding, and forget the oldest ones that are not required."""
        self._embedded[question.key] = question
        for other in self.others[:-KEPT]:
            del self._embedded[other.key]
