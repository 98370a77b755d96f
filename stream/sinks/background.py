"""Sender in a separate thread: a bounded outbox, growing waits after failures, each problem reported once."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from stream import logs

Item = TypeVar("Item")

log = logging.getLogger(__name__)


class Unreachable(Exception):
    """The target takes nothing at present; the message is the reason, and empty if there is nothing to report."""


class Outbox(Generic[Item]):
    """Items that wait for a sender, which calls it with its lock held.

    An item with a `key` replaces an older one with it. Of those without, which come after the others, the newest
    `limit` wait; `trim` is another rule, which drops the oldest of them and returns their number.
    """

    def __init__(
        self,
        key: Callable[[Item], Hashable | None] = lambda _: None,
        limit: int = 0,
        trim: Callable[[deque[Item]], int] | None = None,
    ) -> None:
        self.dropped = 0
        """Items that were replaced, or dropped by the rule."""
        self._key = key
        self._limit = limit
        self._trim = self._drop_oldest if trim is None else trim
        self._keyed: dict[Hashable, Item] = {}
        self._others: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._keyed) + len(self._others)

    def replaces(self, item: Item) -> bool:
        """Return True if a newer item with this one's key waits."""
        return self._key(item) in self._keyed

    def put(self, item: Item) -> None:
        """Add an item at the end."""
        key = self._key(item)
        if key is None:
            self._others.append(item)
            self.dropped += self._trim(self._others)
        else:
            self.dropped += self._keyed.pop(key, None) is not None
            self._keyed[key] = item

    def put_first(self, items: list[Item]) -> None:
        """Add items before all others, which are newer: of one key, the newer takes the place of the added one."""
        keyed = {key: item for item in items if (key := self._key(item)) is not None}
        self._keyed = {**keyed, **self._keyed}
        self._others.extendleft(item for item in reversed(items) if self._key(item) is None)
        self.dropped += self._trim(self._others)

    def take(self, limit: int) -> list[Item]:
        """Remove and return the first items, at most `limit`."""
        items = [self._keyed.pop(key) for key in list(self._keyed)[:limit]]
        while self._others and len(items) < limit:
            items.append(self._others.popleft())
        return items

    def _drop_oldest(self, items: deque[Item]) -> int:
        count = max(0, len(items) - self._limit)
        for _ in range(count):
            items.popleft()
        return count


class BackgroundSender(ABC, Generic[Item]):
    """Thread that calls `serve` until it returns, again after each failure. The run waits for it only in `end`.

    Args:
        name: Name of the thread, and of the event in the log.
        outbox: Outbox of the items.
        loss_text: Text of a problem, with the fields `reason` and those of `place`.
        return_text: Text of its end.
        retry_s: First and longest wait before another attempt; each is twice the one before.
        retry_at_end: Whether, at the end, what could not be sent is tried once more, and a problem is still reported.
        place: Address of the target, as a field of the log.
    """

    def __init__(
        self,
        name: str,
        outbox: Outbox[Item],
        loss_text: str,
        return_text: str,
        retry_s: tuple[float, float] = (0.0, 0.0),
        *,
        retry_at_end: bool = False,
        **place: str,
    ) -> None:
        self.outbox = outbox
        self.failures = 0
        """Failed attempts in a row, with which the waits grow."""
        self.ending = False
        self._loss_text = loss_text
        self._return_text = return_text
        self._place = place
        self._retry_s = retry_s
        self._retry_at_end = retry_at_end
        self._problem: str | None = None
        self._is_last = False
        self._end_s = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    @property
    def overdue(self) -> bool:
        """True once the time limit of `end` has passed."""
        return self.ending and time.monotonic() >= self._end_s

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Add an item to the outbox without waiting; after `stop` it is ignored."""
        with self._changed:
            if not self.ending:
                self.outbox.put(item)
                self._changed.notify_all()

    def stop(self) -> None:
        """Let the thread end once the waiting items are sent."""
        with self._changed:
            self.ending = True
            self._changed.notify_all()

    def end(self, limit_s: float) -> bool:
        """Stop, and return True once the thread has ended, or False after a time limit. Thread-safe.

        A thread that still waits for its target ends with the program.
        """
        self._end_s = time.monotonic() + limit_s
        self.stop()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Serve until the end: the whole of the thread."""
        is_over = False
        while not is_over:
            self._is_last = self.ending
            try:
                self.serve()
                return
            except Unreachable as error:
                reason = str(error)
            except Exception as error:
                log.debug("the sender %s failed", self._thread.name, exc_info=True)
                reason = f"unexpected {type(error).__name__}"
            if reason:
                self.lost(reason)
            wait_s = min(self._retry_s[1], self._retry_s[0] * 2 ** min(self.failures, 16))
            self.failures += 1
            self.wait(lambda: False, wait_s)
            is_over = self.ending and (not self._retry_at_end or self._is_last or not len(self.outbox))

    @abstractmethod
    def serve(self) -> None:
        """Connect, and send what `take` returns, until the end. Raises Unreachable. For the thread, as all below."""

    def take(self, limit: int = 1, wait_s: float | None = None, gather_s: float = 0.0) -> list[Item]:
        """Wait for an item, then `gather_s` for others up to `limit`; remove and return them.

        Returns none after `wait_s`, or at the end if nothing waits.
        """
        with self._changed:
            if self._changed.wait_for(lambda: len(self.outbox) or self.ending, wait_s):
                self._changed.wait_for(lambda: len(self.outbox) >= limit or self.ending, gather_s)
            return self.outbox.take(limit)

    def put_first(self, items: list[Item]) -> None:
        """Add items before those that wait."""
        with self._changed:
            self.outbox.put_first(items)

    def wait(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Wait until a condition of the outbox holds or the end comes; return False after a time limit."""
        with self._changed:
            return self._changed.wait_for(lambda: until() or self.ending, limit_s)

    def reached(self, *, steady: bool = True) -> None:
        """Note that the target takes items; the waits start anew if that is `steady`."""
        if steady:
            self.failures = 0
        self._is_last = False
        if self._problem is not None:
            self._problem = None
            self.report_return()

    def lost(self, reason: str, *, each_reason: bool = False) -> None:
        """Report that the target takes nothing: once until `reached`, or with `each_reason` for another one."""
        is_news = self._problem is None or (each_reason and reason != self._problem)
        if is_news and (self._retry_at_end or not self.ending):
            self._problem = reason
            text = f"note: {self._loss_text.format(**self._place, reason=reason)}"
            logs.say(text, "warning", event=self._thread.name, **self._place, reason=reason)

    def report_return(self) -> None:
        """Report that items are taken again."""
        logs.say(self._return_text.format(**self._place), event=self._thread.name, **self._place)
