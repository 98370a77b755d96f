"""Many readers or one writer, every wait with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from arr_coc.errors import LeaseTimeout


class Leases:
    """A readers-writer lock that says who kept whom waiting.

    A waiting writer goes before new readers, so that readers cannot starve it; a thread that already reads may read
    again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[int, tuple[str, int]] = {}
        self._writer: str | None = None
        self._waiting_writers = 0

    @property
    def writer_waits(self) -> bool:
        """Whether a writer is kept waiting, and new readers with it."""
        return self._waiting_writers > 0

    @contextmanager
    def reading(self, timeout_ms: int) -> Iterator[None]:
        """Raises LeaseTimeout where the writer does not finish within `timeout_ms`."""
        me = threading.get_ident()
        with self._changed:
            if not self._changed.wait_for(lambda: self._may_read(me), timeout_ms / 1e3):
                raise LeaseTimeout(
                    f"{_name()} waited {timeout_ms} ms to read the texture, while {self._writer or 'a writer'} "
                    "waited or wrote; raise texture.lease_timeout_ms"
                )
            name, depth = self._readers.get(me, (_name(), 0))
            self._readers[me] = (name, depth + 1)
        try:
            yield
        finally:
            with self._changed:
                name, depth = self._readers.pop(me)
                if depth > 1:
                    self._readers[me] = (name, depth - 1)
                self._changed.notify_all()

    @contextmanager
    def writing(self, timeout_ms: int) -> Iterator[None]:
        """Raises LeaseTimeout where the readers do not let go within `timeout_ms`."""
        with self._changed:
            self._waiting_writers += 1
            try:
                if not self._changed.wait_for(self._may_write, timeout_ms / 1e3):
                    holders = ", ".join(name for name, _ in self._readers.values()) or self._writer
                    raise LeaseTimeout(
                        f"{_name()} waited {timeout_ms} ms to write the texture, which {holders} still read; "
                        "release leases sooner or raise texture.lease_timeout_ms"
                    )
                self._writer = _name()
            finally:
                self._waiting_writers -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writer = None
                self._changed.notify_all()

    def _may_read(self, me: int) -> bool:
        return self._writer is None and (not self.writer_waits or me in self._readers)

    def _may_write(self) -> bool:
        return self._writer is None and not self._readers


def _name() -> str:
    return f"thread {threading.current_thread().name!r}"
