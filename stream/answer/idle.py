"""Idle exchange of a client with its answer server: packets that the model reads ahead, between answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from arr_coc.types import NS_PER_S, GroupPlace, TokenPacket
from stream.answer.memory import SentGroup
from stream.clock import Clock
from stream.errors import TransportError
from stream.protocol.messages import IdleGrant, IdleReply, IdleRequest

if TYPE_CHECKING:
    from arr_coc.allocation.frame import FrameAllocation
    from arr_coc.allocation.group import GroupOfPictures
    from arr_coc.texture.store.base import TextureView


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

    @property
    def is_granted(self) -> bool:
        """True if a packet was permitted."""
        return self.phase is IdlePhase.GRANTED

    def request(self, *, in_lockstep: bool = False) -> IdleRequest:
        """Return the request for the permission to send a packet."""
        self.phase = IdlePhase.REQUESTED
        return IdleRequest(in_lockstep=in_lockstep)

    def on_grant(self, grant: IdleGrant) -> None:
        """Note a permission; one that is no longer wanted is ignored."""
        if self.phase is IdlePhase.REQUESTED:
            self.phase = IdlePhase.GRANTED
        self.grant = grant

    def send(self, *, is_beside: bool) -> None:
        """Note that the packet is sent; `is_beside`: the next one may be requested at once."""
        self.phase = IdlePhase.NONE if is_beside else IdlePhase.SENT

    def on_reply(self, reply: IdleReply) -> IdleOutcome:
        """Note the end of a reading. Raises TransportError for one that was not permitted."""
        if reply.number > self.grant.number:
            raise TransportError("it reports idle work that was not asked for")
        if reply.number == self.grant.number and self.phase is IdlePhase.SENT:  # not if another one was requested
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
        costs = self._costs
        self._costs = IdleCosts()
        return costs


class RequestGroup(Protocol):
    """Part of a client's requests that idle work needs: the sent part of its group of pictures, and the exchange."""

    group: SentGroup
    idle: IdleExchange


IDLE_EVERY_NS = NS_PER_S // 5
"""Time from one packet that is read ahead to the next."""

LATE_PAUSE_NS = NS_PER_S
"""Time without idle work after a frame that missed its deadline."""

LOCKSTEP_TOKENS_PER_S = 64
LOCKSTEP_TOKENS_MIN = 16
"""Tokens that a model reads ahead in a second of media time at a share of 1, in place of a measured speed, and the
least that it reads at once."""

T = TypeVar("T")


class IdleFrames:
    """The newest frame of a run, as far as it is to be read ahead.

    `with_view` calls a function with the texture's view; `newest` returns the newest frame, and the group of pictures
    if there is one.
    """

    def __init__(
        self,
        with_view: Callable[[Callable[[TextureView], T]], T],
        newest: Callable[[], tuple[FrameAllocation | None, GroupOfPictures | None]],
        clock: Clock,
    ) -> None:
        self._with_view: Callable[[Callable[[TextureView], Any]], Any] = with_view
        self._newest = newest
        self._clock = clock
        self._captured_ns = 0
        self._late_until_ns = 0

    def note_deadline(self, capture_ns: int, done_ns: int) -> None:
        """Have nothing to read ahead for a while if a live frame was later than one period."""
        if done_ns - capture_ns > capture_ns - self._captured_ns:
            self._late_until_ns = done_ns + LATE_PAUSE_NS
        self._captured_ns = capture_ns

    def has_work(self) -> bool:
        """Return whether the model may read something ahead, and frames come in time."""
        frame, group = self._newest()
        if frame is None or group is None or self._clock.now_ns() < self._late_until_ns:
            return False
        return bool(self._with_view(lambda view: view.stamp == frame.stamp and group.has_idle_work(view)))

    def make_packet(self, next_place: GroupPlace | None, tokens: int) -> TokenPacket | None:
        """Return a packet of the newest frame with up to `tokens` tokens of detail; None if there is none, or the
        texture no longer holds that frame. `next_place` as in `AnswerObserver.make_packet`."""
        frame, group = self._newest()
        if frame is None or group is None:
            return None

        def make(view: TextureView) -> TokenPacket | None:
            if view.stamp == frame.stamp:
                return group.idle_packet(view, frame, next_place, tokens)
            return None

        packet: TokenPacket | None = self._with_view(make)
        return packet

    def on_end(self, next_place: GroupPlace | None, *, rebuilt: bool) -> None:
        """Take what the model has read ahead as shown; `rebuilt`: it began a new group."""
        _, group = self._newest()
        if group is not None:
            group.on_idle_end(next_place, rebuilt=rebuilt)


class IdleReader:
    """Reader of the frames of one run ahead of its answers: when to ask for an exchange, and with which packet.

    `share`: 0 to read nothing ahead; in lockstep the share of media time that pays for it.
    """

    def __init__(self, share: float, requests: RequestGroup, frames: IdleFrames, clock: Clock) -> None:
        self._share = share
        self._requests = requests
        self._frames = frames
        self._clock = clock
        self._read_ns = 0

    def is_due(self) -> bool:
        """Return whether an exchange is to be requested for the newest live frame."""
        has_waited = self._clock.now_ns() - self._read_ns >= IDLE_EVERY_NS
        return self._share > 0 and has_waited and self._frames.has_work()

    def lockstep_tokens(self, time_ns: int) -> int:
        """Return how many tokens the frames up to this media time pay for; 0 if too few, or there is nothing to
        read."""
        tokens = int(self._share * LOCKSTEP_TOKENS_PER_S * max(0, time_ns - self._read_ns) / NS_PER_S)
        if tokens < LOCKSTEP_TOKENS_MIN:
            return 0
        self._read_ns = time_ns
        return tokens if self._frames.has_work() else 0

    def make_packet(self, tokens: int | None = None) -> TokenPacket | None:
        """Return the packet to send, of a live frame with as many tokens as were granted; None if there is none."""
        if tokens is None:
            self._read_ns = self._clock.now_ns()
            tokens = self._requests.idle.grant.tokens
        return self._frames.make_packet(self._requests.group.next_place, tokens)

    def recall(self, tokens: int) -> None:
        """Go on with the group of pictures as it did when the answers of the journal were given."""
        packet = self.make_packet(tokens)
        self._requests.group.add(packet)
        self._frames.on_end(self._requests.group.next_place, rebuilt=begins_group(packet))


def begins_group(packet: TokenPacket | None) -> bool:
    """Return whether a packet is the key frame of a group of pictures."""
    return packet is not None and packet.place is not None and not packet.place.frame
