"""A stage of the pipeline, the thread that runs it, and the names of the links between stages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stream.control import CancelledError, RunControl, failure_of

CAPTURE_TEXTURE = "inproc://capture-texture"
TEXTURE_ALLOCATE = "inproc://texture-allocate"
ALLOCATE_ANSWER = "inproc://allocate-answer"
EVENTS = "inproc://events"

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from arr_coc.allocation.allocator import Zones
    from arr_coc.allocation.frame import FrameAllocation
    from arr_coc.types import FrameStamp, TileGrid
    from stream.clock import Clock
    from stream.events import Event

log = logging.getLogger(__name__)


class Stage(Protocol):
    """A step of the pipeline; `run` makes, uses and closes the stage's links, and returns after End or Cancel."""

    name: str

    @property
    def drops(self) -> dict[str, int]:
        """Number of dropped items by queue and cause."""
        ...

    def run(self) -> None: ...


class BoxFeed(Protocol):
    """Boxes from outside, as the allocate stage uses them. Belongs to the thread that calls `open`."""

    def open(self) -> BoxFeed:
        """Connect to what gives boxes. Raises TransportError."""
        ...

    def close(self) -> None: ...

    def receive(self, stamp: FrameStamp) -> list[Event]:
        """Take the newest boxes with the frame of this stamp; return notices."""
        ...

    def floor(self, grid: TileGrid) -> npt.NDArray[np.float32] | None:
        """Return the least relevance of a frame's tiles, float32 [rows, cols]; None if no box counts."""
        ...

    def changes(self, since_answer: float, since_look: float) -> tuple[float, float]:
        """Return shares of change since the last answer and the last check; 1 if a new thing has come since."""
        ...

    def mark_answered(self) -> None: ...

    def mark_looked(self) -> None: ...


class BoxFeeder(Protocol):
    """Maker of the feed of a run."""

    def make_feed(self, clock: Clock, zones: Zones | None) -> BoxFeed:
        """Return the feed, not yet open."""
        ...


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of a frame's tokens; None for those of the configuration."""

    budget: int | None = None
    most_tokens: int | None = None
    """Most tokens of a budget that adapts."""


class BudgetSetter:
    """A feature that moves the budget of a run's frames, for the thread that allocates."""

    def limits(self, tiles: int, limits: FrameLimits) -> FrameLimits:
        """Return the limits of a frame of `tiles` tiles, given those of the setters before."""
        return limits

    def on_request(self, frame: FrameAllocation, appended_tokens: int | None) -> None:
        """Note the frame that is answered about. `appended_tokens`: number of its tokens that are new to the model's
        memory; None without memory."""

    def on_event(self, event: Event, tiles: int) -> list[Event]:
        """Return an event of the run, with what it changes for frames of `tiles` tiles."""
        return [event]


class RunBudget:
    """Budget of one run's frames, which each of its setters may move in turn."""

    def __init__(self, setters: Sequence[BudgetSetter] = ()) -> None:
        self.setters = tuple(setters)

    def limits(self, tiles: int) -> FrameLimits:
        """Return the limits of a frame of `tiles` tiles."""
        limits = FrameLimits()
        for setter in self.setters:
            limits = setter.limits(tiles, limits)
        return limits

    def on_request(self, frame: FrameAllocation, appended_tokens: int | None) -> None:
        """Note the frame that is answered about; `appended_tokens` as in BudgetSetter."""
        for setter in self.setters:
            setter.on_request(frame, appended_tokens)

    def on_event(self, event: Event, tiles: int) -> list[Event]:
        """Return an event of the run, with what it changes for frames of `tiles` tiles."""
        events = [event]
        for setter in self.setters:
            events = [result for each in events for result in setter.on_event(each, tiles)]
        return events


class StageThread(threading.Thread):
    """Thread that runs one stage and reports its error."""

    def __init__(self, stage: Stage, control: RunControl) -> None:
        super().__init__(name=stage.name, daemon=True)
        self._stage = stage
        self._control = control

    def run(self) -> None:
        """Runs the stage; an error fails the run."""
        try:
            self._stage.run()
        except CancelledError:
            log.debug("the %s stage was cancelled", self._stage.name)
        except Exception as error:
            log.debug("the %s stage failed", self._stage.name, exc_info=True)
            self._control.fail(failure_of(self._stage.name, error))
        finally:
            self._control.stage_ended()
