"""Reads a live source in tests, with a limit, and looks at what came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.sources.base import Source, SourceFrame, SourceOutage
from stream.sources.open import open_source
from tests.waiting import LIMIT_S

Item = SourceFrame | SourceOutage


def opened(address: str, **capture: object) -> Source:
    """Opens a source. Its time limits are those of a hang, unless the test names its own."""
    limits = {"open_timeout_s": LIMIT_S, "stall_s": LIMIT_S}
    return open_source(address, CaptureConfig.model_validate({**limits, **capture}), MonotonicClock())


class Reading:
    """One pass over a source's frames."""

    def __init__(self, source: Source) -> None:
        self.stop = False
        self._items: Iterator[Item] = source.frames(self._should_stop)
        self._limit_s = time.monotonic() + LIMIT_S

    def _should_stop(self) -> bool:
        assert time.monotonic() < self._limit_s, "nothing came in time"
        return self.stop

    def until(self, enough: Callable[[list[Item]], bool]) -> list[Item]:
        """What comes until that is enough."""
        items: list[Item] = []
        while not enough(items):
            items.append(next(self._items))
        return items

    def frames(self, count: int) -> list[SourceFrame]:
        return frames_of(self.until(lambda items: len(frames_of(items)) == count))

    def lost(self) -> SourceOutage:
        """The next outage that begins."""
        return self._outage(lambda outage: outage.lasted_s is None)

    def back(self) -> SourceOutage:
        """The next outage that ends."""
        return self._outage(lambda outage: outage.lasted_s is not None)

    def _outage(self, wanted: Callable[[SourceOutage], bool]) -> SourceOutage:
        return outages_of(self.until(lambda items: any(map(wanted, outages_of(items[-1:])))))[-1]


def frames_of(items: list[Item]) -> list[SourceFrame]:
    return [item for item in items if isinstance(item, SourceFrame)]


def outages_of(items: list[Item]) -> list[SourceOutage]:
    return [item for item in items if isinstance(item, SourceOutage)]
