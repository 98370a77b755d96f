"""Reading a source that may block in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from stream.sources.base import SkippedItem, Source, SourceFrame, SourceInfo, SourceOutage, never
from stream.sources.handover import Handover
from stream.sources.threaded import CLOSE_S, WAIT_S

AHEAD = 2
"""Frames that may have been decoded and not yet been taken."""


class ReadAhead:
    """A file that comes over a network: every frame in order, and a reader that can stop while the network is silent.

    The source is read, and closed, by one thread, which waits where it is `AHEAD` frames ahead.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._handover = Handover(AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)

    def describe(self) -> SourceInfo:
        return self._source.describe()

    def frames(self, should_stop: Callable[[], bool] = never) -> Iterator[SourceFrame | SourceOutage]:
        """The frames of the source; to be called once. Raises what the source raises."""
        self._thread.start()
        while not should_stop():
            items = self._handover.take()
            if items is None:
                return
            yield from items
            self._handover.wait(WAIT_S)

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        return self._source.trailing_skipped()

    def repaired_pts(self) -> tuple[int, int]:
        return self._source.repaired_pts()

    def close(self) -> None:
        """Ends the thread, at once or when the network's time limit is over; it closes the source."""
        self._stop.set()
        if self._thread.ident is None:
            self._source.close()
        else:
            self._thread.join(CLOSE_S)
        self._handover.close()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        error: Exception | None = None
        try:
            with self._source:
                for item in self._source.frames(self._stop.is_set):
                    while not self._handover.put_when_free(item, WAIT_S):
                        if self._stop.is_set():
                            return
                    if self._stop.is_set():
                        return
        except Exception as caught:
            error = caught
        finally:
            self._handover.finish(error)
