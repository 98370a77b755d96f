"""Clients that are connected to an answer server, their turns, and who is admitted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from arr_coc.errors import OptionError, counted
from stream.answer.model import AnswerModel
from stream.config import CLIENTS_MAX
from stream.errors import TransportError
from stream.protocol.messages import PROTOCOL, UNSEEN_MAX, Connect, ServerHello
from stream.transport.security import ServerCurve

DAWDLING_MAX = 6
"""Whoever lets turn after turn lapse has a sixty-fourth of the time in the end: 16 ms of a second."""

LAPSE_COSTS = 2
"""Turns that must be used before one that lapsed is forgotten."""


@dataclass(slots=True)
class ClientState:
    """One frame process: its question, the standing one, if any, and how many of its packets were answered.

    `dawdling` rises with every turn that it let lapse, and falls with those that it used.
    """

    query: str
    standing_query: str | None = None
    answers: int = 0
    dawdling: int = 0


class ClientTable:
    """The frame processes at one answer stage, and those that wait for a turn, longest first.

    Whoever had a turn waits behind all others for the next one, so nobody waits for more than one answer of each.
    """

    def __init__(self) -> None:
        self._guests: dict[bytes, ClientState] = {}
        self._waiting: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._guests))

    @property
    def full(self) -> bool:
        """Nobody else may join."""
        return len(self._guests) >= CLIENTS_MAX

    def join(self, client: bytes, query: str, standing_query: str | None = None) -> None:
        """Takes a client in, or notes its other questions."""
        known = self._guests.get(client)
        self._guests[client] = ClientState(query, standing_query, dawdling=0 if known is None else known.dawdling)

    def find(self, client: bytes) -> ClientState | None:
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

    def patience_ns(self, client: bytes, limit_ns: int) -> int:
        """How long the client may take to use a turn, of at most `limit_ns`: less, the more turns it let lapse."""
        guest = self._guests.get(client)
        return limit_ns >> (0 if guest is None else guest.dawdling)

    def dawdled(self, client: bytes) -> None:
        """The client let a turn lapse, while others may have waited."""
        if (guest := self._guests.get(client)) is not None:
            guest.dawdling = min(DAWDLING_MAX, guest.dawdling + LAPSE_COSTS)

    def hurried(self, client: bytes) -> None:
        """The client used its turn."""
        if (guest := self._guests.get(client)) is not None:
            guest.dawdling = max(0, guest.dawdling - 1)

    def next(self) -> bytes | None:
        """Takes out the client that has waited longest."""
        return self._waiting.popitem(last=False)[0] if self._waiting else None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the stage is reached. `shared`: it serves whoever comes, and outlives the failure of one answer.

    `encode` is what it encodes, where its guests may think otherwise. `ready` is called once the model has been loaded;
    `answering` says from then on what it answers by.
    """

    endpoint: str
    encode: str | None = None
    curve: ServerCurve | None = None
    shared: bool = False
    ready: Callable[[], None] = lambda: None
    answering: Callable[[], str] = lambda: ""


def check_admission(message: Connect, place: ServerOptions, guests: ClientTable) -> None:
    """Raises TransportError or OptionError where the sender cannot be taken in, saying what to do about it."""
    if message.protocol != PROTOCOL:
        raise TransportError(
            f"the answer stage speaks version {PROTOCOL} of the protocol, and was spoken to in version "
            f"{message.protocol}; install the same version at both ends"
        )
    if guests.full:
        raise TransportError(f"the answer stage serves {counted(len(guests), 'other')} already; try another one")
    if place.encode not in (None, message.encode):
        raise OptionError(
            f"the answer stage encodes {place.encode}, not {message.encode}; give --encode {place.encode} here, or "
            f"start it with --encode {message.encode}"
        )


UNSEEN_CHARS = 40
"""Of a word that a model has never seen, so much is told."""


def server_hello(speaker: AnswerModel, answering: str, unseen: tuple[str, ...] = ()) -> ServerHello:
    """What a guest is told first: whom it talks to, and which words of its standing question that has never seen."""
    return ServerHello(
        model_id=speaker.model_id,
        knows_levels=speaker.knows_levels,
        known_world=speaker.known_world,
        allocator=speaker.allocator,
        provenance=answering,
        unseen_words=tuple(word[:UNSEEN_CHARS] for word in unseen[:UNSEEN_MAX]),
    )
