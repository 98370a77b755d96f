"""When to speak: which frames are answer points. Pure logic; times come from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Trigger = Literal["start", "asked", "cut", "discontinuity", "change", "every", "end"]

_URGENCY: dict[Trigger, int] = {
    "start": 5, "asked": 4, "cut": 3, "discontinuity": 3, "change": 2, "every": 1, "end": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """`every_ns` and `on_change` are off where None; `on_change` is a share of the relevance, in (0, 1].

    `on_cut`: at scene cuts, and wherever else a frame cannot be compared with the one before.
    """

    every_ns: int | None = None
    on_change: float | None = None
    on_cut: bool = True


class Triggers:
    """Decides frame by frame whether an answer is due, and remembers it until the answer stage is free.

    Times are nanoseconds of media time (file) or capture time (live). Each frame is shown to `observe`; when its
    packet has been sent, `fire` says so. A trigger that comes while another one still waits does not queue up: the
    more urgent of the two waits on, and the other one counts as missed.
    """

    def __init__(self, rules: TriggerRules) -> None:
        self._rules = rules
        self._pending: Trigger | None = None
        self._next_ns: int | None = None
        self._seen_ns: int | None = None
        self._fired_last_frame = False
        self._missed = 0

    @property
    def due(self) -> Trigger | None:
        """The trigger that waits for the answer stage."""
        return self._pending

    @property
    def missed(self) -> int:
        """Triggers that came while another one was waiting."""
        return self._missed

    def observe(
        self, time_ns: int, *, change: float = 0.0, cut: bool = False, discontinuity: bool = False
    ) -> Trigger | None:
        """Shows the next frame; `change` is the relevance-weighted change since the last answer. Returns `due`."""
        new = self._new_trigger(time_ns, change, cut, discontinuity)
        self._seen_ns = time_ns
        self._fired_last_frame = False
        if new is not None:
            self._missed += self._pending is not None
            if self._pending is None or _URGENCY[new] > _URGENCY[self._pending]:
                self._pending = new
        return self._pending

    def ask(self) -> None:
        """Somebody wants an answer now: about the next frame that is sent. Before the first frame that one is it."""
        if self._seen_ns is None:
            return
        if self._pending is None or _URGENCY["asked"] > _URGENCY[self._pending]:
            self._missed += self._pending is not None
            self._pending = "asked"

    def finish(self) -> Trigger | None:
        """No frame comes after the last one observed: it gets an answer unless it already was an answer point."""
        if self._seen_ns is None or self._fired_last_frame:
            return None
        self._pending = self._pending or "end"
        return self._pending

    def fire(self) -> Trigger:
        """The packet of the last observed frame has been sent. Raises LookupError where nothing was due."""
        if self._pending is None or self._seen_ns is None:
            raise LookupError("no trigger is due")
        fired, self._pending = self._pending, None
        self._fired_last_frame = True
        if fired != "every" and self._rules.every_ns is not None:
            self._next_ns = self._seen_ns + self._rules.every_ns
        return fired

    def _new_trigger(self, time_ns: int, change: float, cut: bool, discontinuity: bool) -> Trigger | None:
        every = self._period_over(time_ns)
        if self._seen_ns is None:
            return "start"
        if (cut or discontinuity) and self._rules.on_cut:
            return "cut" if cut else "discontinuity"
        if self._rules.on_change is not None and change >= self._rules.on_change and self._pending is None:
            return "change"
        return "every" if every else None

    def _period_over(self, time_ns: int) -> bool:
        """Whether a period has ended; moves on to the end of the one that `time_ns` lies in."""
        period_ns = self._rules.every_ns
        if period_ns is None:
            return False
        if self._next_ns is None or self._seen_ns is None or time_ns < self._seen_ns:
            self._next_ns = time_ns + period_ns
            return False
        if time_ns < self._next_ns:
            return False
        self._next_ns += period_ns * (1 + (time_ns - self._next_ns) // period_ns)
        return True
