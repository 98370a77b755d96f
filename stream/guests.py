"""Who is joined to an answer stage, and whose turn it is. Pure logic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

GUESTS_MAX = 64
"""More than this many frame processes at one answer stage are turned away."""


@dataclass(slots=True)
class Guest:
    """One frame process: its question, the standing one, if any, and how many of its packets were answered."""

    query: str
    until: str | None = None
    answers: int = 0


class Guests:
    """The frame processes at one answer stage, and those that wait for a turn, longest first.

    Whoever had a turn waits behind all others for the next one, so nobody waits for more than one answer of each.
    """

    def __init__(self) -> None:
        self._guests: dict[bytes, Guest] = {}
        self._waiting: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._guests))

    @property
    def full(self) -> bool:
        """Nobody else may join."""
        return len(self._guests) >= GUESTS_MAX

    def join(self, client: bytes, query: str, until: str | None = None) -> None:
        """Takes a client in, or notes its other questions."""
        self._guests[client] = Guest(query, until)

    def find(self, client: bytes) -> Guest | None:
        return self._guests.get(client)

    def leave(self, client: bytes) -> None:
        """Forgets a client; it may be unknown."""
        self._guests.pop(client, None)
        self.forgo(client)

    def want(self, client: bytes) -> None:
        """The client waits for a turn, in its old place where it waits already. Strangers get none."""
        if client in self._guests:
            self._waiting.setdefault(client, None)

    def forgo(self, client: bytes) -> None:
        """The client does not want a turn any more."""
        self._waiting.pop(client, None)

    def next(self) -> bytes | None:
        """Takes out the client that has waited longest."""
        return self._waiting.popitem(last=False)[0] if self._waiting else None
