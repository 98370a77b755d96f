"""`GroupPackets`: packets of a group of pictures, kept by the program that shows them to a session."""

from __future__ import annotations

from dataclasses import replace

from arr_coc.types import GroupPlace, TokenPacket


class GroupPackets:
    """Packets of one stream's group of pictures, which a session is given with each question; empty without a group."""

    def __init__(self) -> None:
        self._packets: list[TokenPacket] = []

    @property
    def next_place(self) -> GroupPlace | None:
        """Place of the next frame in the group; None without one."""
        place = self._packets[-1].place if self._packets else None
        if place is None:
            return None
        return replace(place, frame=place.frame + 1)

    def up_to(self, packet: TokenPacket) -> list[TokenPacket]:
        """Return the packets of a packet's group, up to this one."""
        count = 0 if packet.place is None else packet.place.frame
        return [*self._packets[:count], packet]

    def keep(self, packet: TokenPacket) -> None:
        """Keep a packet for those that go on with its group; one that appends nothing is not needed."""
        if packet.place is None:
            self._packets = []
        elif not packet.is_empty:
            self._packets = self.up_to(packet)
