"""Idle exchange of a client with its answer server: packets that the model reads ahead, between answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from arr_coc.types import GroupPlace
from stream.errors import TransportError
from stream.protocol.messages import IdleGrant, IdleReply


class IdlePhase(Enum):
    """State of a client's idle exchange."""

    NONE = auto()
    REQUESTED = auto()
    GRANTED = auto()
    """A packet may be sent."""
    SENT = auto()
    """A packet was sent and is read in pieces."""


@dataclass(frozen=True, slots=True)
class IdleOutcome:
    """End of a reading in idle time. `place`: that of the next frame in the group of pictures that the server has now;
    `rebuilt`: the reading was of a new group."""

    place: GroupPlace | None
    rebuilt: bool


@dataclass(frozen=True, slots=True)
class IdleCosts:
    """Idle work since the last answer: tokens read, milliseconds, and groups written anew."""

    tokens: int = 0
    ms: float = 0.0
    rebuilt: int = 0


class IdleExchange:
    """Exchange of idle packets with one server, without I/O.

    A turn of the client ends it at once, and the turn's grant names what the server has read by then. `grant` is the
    newest permission. `costs` are those since `take_costs`.
    """

    def __init__(self) -> None:
        self.phase = IdlePhase.NONE
        self.grant = IdleGrant(number=0, tokens=0)
        self._costs = IdleCosts()

    @property
    def is_open(self) -> bool:
        """True while a permission or the end of a reading is awaited."""
        return self.phase is not IdlePhase.NONE

    def request(self) -> None:
        """Note that a permission was requested."""
        self.phase = IdlePhase.REQUESTED

    def on_grant(self, grant: IdleGrant) -> None:
        """Note a permission; one that is no longer wanted is ignored."""
        if self.phase is IdlePhase.REQUESTED:
            self.phase = IdlePhase.GRANTED
        self.grant = grant

    def send(self) -> None:
        """Note that the packet was sent."""
        self.phase = IdlePhase.SENT

    def on_reply(self, reply: IdleReply) -> IdleOutcome:
        """Note the end of a reading. Raises TransportError for one that was not permitted."""
        if reply.number > self.grant.number:
            raise TransportError("it reports idle work that was not asked for")
        if reply.number == self.grant.number:
            self.phase = IdlePhase.NONE
        costs = self._costs
        self._costs = IdleCosts(
            costs.tokens + reply.tokens, costs.ms + reply.took_ms, costs.rebuilt + (reply.rebuilt and reply.tokens > 0)
        )
        return IdleOutcome(reply.kept, reply.rebuilt)

    def end(self) -> None:
        """End the exchange: a turn begins, or there is nothing to read."""
        self.phase = IdlePhase.NONE

    def restart(self) -> None:
        """Begin anew with another server."""
        self.end()
        self.grant = IdleGrant(number=0, tokens=0)

    def take_costs(self) -> IdleCosts:
        """Return the costs since the last call."""
        costs, self._costs = self._costs, IdleCosts()
        return costs
