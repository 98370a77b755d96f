"""What a file lost, held back until the frame that is shown after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stream.sources.base import SkippedItem


@dataclass(frozen=True, slots=True)
class _Loss:
    first: int
    last: int
    reason: str
    pts: int | None
    media_ns: int | None
    exact: bool

    def item(self) -> SkippedItem:
        count = self.last - self.first + 1
        span = f"packet {self.first}" if count == 1 else f"packets {self.first}-{self.last}"
        return SkippedItem(span if self.exact else f"{span} or one just before", self.reason, self.media_ns, count)


class LossLedger:
    """Packets that failed, in file order, given out in the order in which they would have been shown.

    A decoder meets packets before it shows their pictures, so a failure is known a few frames too early. Neighbouring
    packets become one item, with the first one's reason and time; one that fails again counts once.
    """

    def __init__(self) -> None:
        self._waiting: list[_Loss] = []

    def lost(self, number: int, reason: str, pts: int | None, media_ns: int | None, *, exact: bool = True) -> None:
        """Notes that packet `number` (1-based) failed. `exact` is False where a decoder with threads told it late."""
        if self._waiting and number - 1 <= self._waiting[-1].last <= number:
            self._waiting[-1] = replace(self._waiting[-1], last=number)
        else:
            self._waiting.append(_Loss(number, number, reason, pts, media_ns, exact))

    def before(self, pts: int | None) -> tuple[SkippedItem, ...]:
        """Takes out what lies before a frame with this PTS; all of it where a PTS is missing."""
        due = [loss for loss in self._waiting if pts is None or loss.pts is None or loss.pts < pts]
        self._waiting = [loss for loss in self._waiting if loss not in due]
        return tuple(loss.item() for loss in due)

    def rest(self) -> tuple[SkippedItem, ...]:
        """Takes out everything that is left."""
        return self.before(None)
