"""Budget of a run's frames, which a latency target and shadow checks move."""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.allocation.frame import FrameAllocation
from stream.answer.latency import LatencyController
from stream.answer.quality import QualityController
from stream.events import AnswerPoint, Event, ShadowCheck


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Controllers of one run's budget, for the thread that allocates. With both, the latency target sets the budget,
    and shadow checks how many tokens it may have at most."""

    latency: LatencyController | None = None
    quality: QualityController | None = None

    def limits(self, tiles: int) -> tuple[int | None, int | None]:
        """Return the budget of a frame of `tiles` tiles and its most tokens; None for those of the options."""
        if self.latency is None:
            if self.quality is None:
                return (None, None)
            return self.quality.limits(tiles)
        if self.quality is not None:
            self.latency.set_most_tokens(self.quality.most_tokens)
        return self.latency.limits(tiles)

    def on_request(self, frame: FrameAllocation, appended_tokens: int | None) -> None:
        """Note the frame that is answered about; `appended_tokens` as in LatencyController."""
        if self.latency is not None:
            self.latency.on_request(frame, appended_tokens)

    def on_event(self, event: Event, tiles: int) -> list[Event]:
        """Return an event of the scheduler, with what it changes for frames of `tiles` tiles."""
        if self.quality is not None and isinstance(event, ShadowCheck):
            return self.quality.on_check(event, tiles)
        if self.latency is not None and isinstance(event, AnswerPoint):
            return self.latency.on_answer(event)
        return [event]
