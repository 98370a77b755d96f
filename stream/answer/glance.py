"""Glances of a client: the one that is in flight, and the events and feedback that its replies become.

Before an answer of which nothing is known yet, the model reads a coarse overview of the frame with the question. Where
it looked is the feedback that the frame's tokens are then chosen by.
"""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.types import NS_PER_MS, NS_PER_S, Feedback, FrameStamp, TokenPacket
from stream.clock import Clock
from stream.errors import TransportError
from stream.events import Glance, GlanceTiming
from stream.protocol.codec import feedback_on
from stream.protocol.messages import GlanceReply
from stream.transport import Envelope


@dataclass(frozen=True, slots=True)
class GlanceRequest:
    """An overview of a frame that was sent, or is to be sent again, at `sent_ns`."""

    number: int
    packet: TokenPacket
    sent_ns: int


@dataclass(frozen=True, slots=True)
class GlanceOutcome:
    """A glance that has ended. `feedback` is None where it was unusable."""

    event: Glance
    stamp: FrameStamp
    feedback: Feedback | None


@dataclass(frozen=True, slots=True)
class GlanceCosts:
    """Costs of the glances before one answer."""

    glances: int = 0
    tokens: int = 0
    ms: float = 0.0
    flops: int = 0


class GlanceTracker:
    """The open glance, at most one, and the costs of those since the last answer.

    `request` is the open one; `lost` counts glances that were lost with a server, or came too late for their turn.
    """

    def __init__(self, clock: Clock, *, resends: bool) -> None:
        self._clock = clock
        self._resends = resends
        self._next_number = 0
        self._outcome: GlanceOutcome | None = None
        self._costs = GlanceCosts()
        self.request: GlanceRequest | None = None
        self.last: GlanceOutcome | None = None
        self.lost = 0

    def open(self, packet: TokenPacket) -> None:
        """Take the overview of a new glance."""
        self.request = GlanceRequest(self._next_number, packet, self._clock.now_ns())
        self._next_number += 1

    def drop(self) -> None:
        """Drop the open glance, unless it is to be sent again."""
        if not self._resends and self.request is not None:
            self.lost += 1
            self.request = None

    def is_open(self, number: int) -> bool:
        """Return whether the glance of this number is awaited."""
        return self.request is not None and self.request.number == number

    def on_reply(self, reply: GlanceReply, received: Envelope) -> TransportError | None:
        """Take the reply to the open glance; returns why its feedback is unusable, where that is so.

        Raises TransportError where it is no reply to that.
        """
        request = self.request
        if request is None or request.number != reply.glance:
            raise TransportError(f"the answer server refers to glance {reply.glance}, which was not asked for")
        self.request = None
        feedback, error = None, None
        try:
            feedback = feedback_on(reply, received.parts, request.packet.stamp, request.packet.grid)
        except TransportError as unusable:
            error = unusable
        ms = (self._clock.now_ns() - request.sent_ns) / NS_PER_MS
        before = self._costs
        self._costs = GlanceCosts(
            before.glances + 1, before.tokens + reply.tokens_used, before.ms + ms, before.flops + reply.flops
        )
        self._end(GlanceOutcome(_event_of(request, reply, ms), request.packet.stamp, feedback))
        return error

    def recall(self, outcome: GlanceOutcome) -> None:
        """Take a glance that the journal holds: what it cost is told by the answer that the journal holds, too."""
        self._end(outcome)

    def take_outcome(self) -> GlanceOutcome | None:
        """Return the glance that has ended since the last call."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def on_answer(self) -> GlanceCosts:
        """Return the costs of the glances since the last answer, and begin anew."""
        costs, self._costs, self.last = self._costs, GlanceCosts(), None
        return costs

    def _end(self, outcome: GlanceOutcome) -> None:
        self._outcome = self.last = outcome


def _event_of(request: GlanceRequest, reply: GlanceReply, total_ms: float) -> Glance:
    stamp = request.packet.stamp
    return Glance(
        frame_index=stamp.frame_index,
        pts_s=stamp.media_ns / NS_PER_S,
        query=reply.query,
        tokens_used=reply.tokens_used,
        tokens_total=request.packet.grid.tiles,
        timing=GlanceTiming(encode_ms=reply.encode_ms, prefill_ms=reply.prefill_ms, total_ms=total_ms),
    )
