"""Slots of a model that answers several clients at once, and who holds them."""

from __future__ import annotations


class ClientSlots:
    """Slots by number, and the clients that hold them. A client gets the one that it had before, whose prompt may
    still be of use, else the lowest one."""

    def __init__(self, slots: int) -> None:
        self._holders: list[bytes | None] = [None] * slots
        self._last: list[bytes | None] = [None] * slots

    def __getitem__(self, client: bytes) -> int:
        """The slot that a client holds. Raises KeyError where it holds none."""
        if client not in self._holders:
            raise KeyError(client)
        return self._holders.index(client)

    def __contains__(self, client: bytes) -> bool:
        return client in self._holders

    def hold(self, client: bytes) -> int:
        """Take a slot for a client, which may hold one already; returns it. One is free."""
        if client not in self._holders:
            free = [slot for slot, holder in enumerate(self._holders) if holder is None]
            mine = [slot for slot in free if self._last[slot] == client]
            unused = [slot for slot in free if self._last[slot] is None]
            slot = (mine or unused or free)[0]
            self._holders[slot] = self._last[slot] = client
        return self._holders.index(client)

    def release(self, client: bytes) -> None:
        """Give a client's slot back; it may hold none."""
        if client in self._holders:
            self._holders[self._holders.index(client)] = None

    def drop(self, client: bytes) -> list[int]:
        """Forget a client; returns the slots that were last its own."""
        self.release(client)
        mine = [slot for slot, last in enumerate(self._last) if last == client]
        for slot in mine:
            self._last[slot] = None
        return mine
