"""Groups of pictures: for each client of an answer server the packets that its next ones build on."""

from __future__ import annotations

from collections.abc import Sequence

from arr_coc.errors import counted
from arr_coc.types import GroupPlace, TokenPacket
from stream.errors import TransportError


class GroupMemory:
    """Memory of the clients' groups of pictures, of at most `tokens` context steps each.

    A packet with a place goes on with its client's group, or begins a new one in its stead. `evictions`: groups that
    went because another client got their slot.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.evictions = 0
        self._groups: dict[bytes, list[TokenPacket]] = {}

    @property
    def groups(self) -> int:
        """Number of groups that are kept."""
        return len(self._groups)

    @property
    def visual_tokens(self) -> int:
        """Visual tokens of all groups that are kept."""
        return sum(len(packet.regions) for packets in self._groups.values() for packet in packets)

    def kept(self, client: bytes) -> GroupPlace | None:
        """Return the place of the next frame in a client's group; None if none of it is kept."""
        packets = self._groups.get(client)
        if not packets:
            return None
        place = packets[-1].place
        assert place is not None
        return GroupPlace(place.group, len(packets))

    def before(self, client: bytes, place: GroupPlace) -> list[TokenPacket]:
        """Return the packets of a client's group before a place in it. Raises TransportError if one is not kept."""
        known = self.kept(client)
        if place.frame and (known is None or known.group != place.group or known.frame < place.frame):
            raise TransportError(f"{place} builds on {counted(place.frame, 'frame')}, and the memory has {known}")
        return self._groups[client][: place.frame] if place.frame else []

    def add(self, client: bytes, packet: TokenPacket, earlier: Sequence[TokenPacket] = ()) -> None:
        """Keep a packet with a place, and those of `earlier` that lead up to it.

        One in the place of the newest packet replaces that; one that holds nothing is not kept. Raises TransportError
        if packets before it are neither kept nor in `earlier`, are on another grid, or all take more than `tokens`.
        """
        assert packet.place is not None
        first = earlier[0] if earlier else packet
        assert first.place is not None
        packets = [*self.before(client, first.place), *earlier, *([packet] if len(packet.regions) else [])]
        if any(other.grid != packet.grid for other in packets):
            raise TransportError("the frames of a group of pictures have one size")
        steps = sum(max(len(other.regions), *other.grid.shape) for other in packets)
        if steps > self.tokens:
            raise TransportError(f"a group of pictures takes {steps} context steps, and the memory holds {self.tokens}")
        self._groups[client] = packets

    def drop(self, client: bytes) -> None:
        """Forget a client's group; it may have none."""
        self._groups.pop(client, None)

    def evict(self, client: bytes) -> None:
        """Forget a client's group because its slot was given away, and count that."""
        self.evictions += self._groups.pop(client, None) is not None
