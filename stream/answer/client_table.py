"""Clients that are connected to an answer server, their turns, and who is admitted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from arr_coc.errors import OptionError, counted
from stream.answer.model import AnswerModel
from stream.answer.server_statistics import ServerStatistics
from stream.errors import TransportError
from stream.protocol.messages import PROTOCOL, UNSEEN_MAX, Connect, ServerHello
from stream.transport.security import ServerCurve
from stream.untrusted import CLIENTS_MAX, REASON_CHARS_MAX, cut_to

PENALTY_MAX = 6
"""A client that lets turn after turn expire has a sixty-fourth of the time in the end: 16 ms of a second."""

PENALTY_PER_EXPIRY = 2
"""Turns that must be used before one that expired is forgotten."""

UNSEEN_CHARS = 40
"""Of a word that a model has never seen, so much is sent."""


@dataclass(slots=True)
class ClientState:
    """State of one client: its query, and its standing query, if any.

    `penalty` rises with every turn that expired, and falls with those that were used.
    """

    query: str
    standing_query: str | None = None
    penalty: int = 0


class ClientTable:
    """Table of the clients, and queue of those that wait for a turn, longest first.

    A client that had a turn waits behind all others for the next one, so none waits for more than one answer of each.
    `statistics` is told of clients and waits.
    """

    def __init__(self, statistics: ServerStatistics | None = None) -> None:
        self._statistics = statistics or ServerStatistics()
        self._clients: dict[bytes, ClientState] = {}
        self._waiting: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._clients))

    @property
    def full(self) -> bool:
        """True if no other client may connect."""
        return len(self._clients) >= CLIENTS_MAX

    def add(self, client: bytes, query: str, standing_query: str | None = None) -> None:
        """Add a client, or replace the queries of one that is known."""
        known = self._clients.get(client)
        self._clients[client] = ClientState(query, standing_query, 0 if known is None else known.penalty)
        self._statistics.clients_are(len(self._clients))

    def get(self, client: bytes) -> ClientState | None:
        """Return the state of a client; None where it is not connected."""
        return self._clients.get(client)

    def remove(self, client: bytes) -> None:
        """Remove a client; it may be unknown."""
        self._clients.pop(client, None)
        self._statistics.clients_are(len(self._clients))
        self.dequeue(client)

    def enqueue(self, client: bytes) -> None:
        """Let a client wait for a turn, in its old place where it waits already. Unknown ones get none."""
        if client in self._clients:
            self._waiting.setdefault(client, None)
            self._statistics.turn_requested(client)

    def dequeue(self, client: bytes) -> None:
        """Take a client out of the queue; it need not wait."""
        self._waiting.pop(client, None)
        self._statistics.turn_withdrawn(client)

    def pop_next(self, busy: Collection[bytes] = ()) -> bytes | None:
        """Take out the client that has waited longest, but for those that are `busy` with an answer."""
        client = next((client for client in self._waiting if client not in busy), None)
        if client is not None:
            del self._waiting[client]
            self._statistics.turn_granted(client)
        return client

    def turn_limit_ns(self, client: bytes, limit_ns: int) -> int:
        """Return how long the client may take to use a turn, of at most `limit_ns`: less, the higher its penalty."""
        state = self._clients.get(client)
        return limit_ns >> (0 if state is None else state.penalty)

    def turn_expired(self, client: bytes) -> None:
        """Note that the client let a turn expire, while others may have waited."""
        if (state := self._clients.get(client)) is not None:
            state.penalty = min(PENALTY_MAX, state.penalty + PENALTY_PER_EXPIRY)

    def turn_used(self, client: bytes) -> None:
        """Note that the client used its turn."""
        if (state := self._clients.get(client)) is not None:
            state.penalty = max(0, state.penalty - 1)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of an answer server. `shared`: it serves clients of several runs, and outlives the failure of one answer.

    `encode` is what it encodes, where its clients may expect otherwise. `on_ready` is called once the model has been
    loaded; `provenance` returns from then on the model and settings that answers depend on. `statistics` are told of
    all that it does.
    """

    endpoint: str
    encode: str | None = None
    curve: ServerCurve | None = None
    shared: bool = False
    on_ready: Callable[[], None] = lambda: None
    provenance: Callable[[], str] = lambda: ""
    statistics: ServerStatistics = field(default_factory=ServerStatistics)


def check_admission(message: Connect, options: ServerOptions, clients: ClientTable) -> None:
    """Raises TransportError or OptionError where the sender cannot be admitted, saying what to do about it."""
    if message.protocol != PROTOCOL:
        raise TransportError(
            f"the answer server uses version {PROTOCOL} of the protocol, and the client version "
            f"{message.protocol}; install the same version at both ends"
        )
    if clients.full:
        raise TransportError(f"the answer server has {counted(len(clients), 'client')}, its maximum; try another")
    if options.encode not in (None, message.encode):
        raise OptionError(
            f"the answer server encodes {options.encode}, not {message.encode}; give --encode {options.encode} here, "
            f"or start it with --encode {message.encode}"
        )


def server_hello(
    model: AnswerModel, provenance: str, unseen_words: tuple[str, ...] = (), pixels_refused: str | None = ""
) -> ServerHello:
    """Return the first message to a client: the model, and words of its standing query that are unknown to it.

    `pixels_refused`: why its pixels do not stay on their device, None where they do.
    """
    return ServerHello(
        model_id=model.model_id,
        knows_levels=model.knows_levels,
        knows_wide=model.knows_wide,
        known_world=model.known_world,
        allocator=model.allocator,
        can_glance=model.can_glance,
        attention_readable=model.attention_readable,
        provenance=provenance,
        unseen_words=tuple(word[:UNSEEN_CHARS] for word in unseen_words[:UNSEEN_MAX]),
        takes_device_pixels=pixels_refused is None,
        pixels_refused=cut_to(pixels_refused or "", REASON_CHARS_MAX),
        notice=cut_to(model.notice, REASON_CHARS_MAX),
    )
