"""Groups of pictures that an answer server keeps: for each client the packets that its next ones build on."""

from __future__ import annotations

from arr_coc.errors import counted
from arr_coc.types import GroupPlace, TokenPacket
from stream.errors import TransportError


class GroupMemory:
    """Memory of the clients' groups of pictures, of at most `tokens` context steps each.

    A packet with a place goes on with its client's group, or begins a new one in its stead. `evictions`: memories that
    went because another client got their slot.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.evictions = 0
        self._groups: dict[bytes, list[TokenPacket]] = {}

    def kept(self, client: bytes) -> GroupPlace | None:
        """Return the place of the next frame in a client's group; None if none of it is kept."""
        frames = self._groups.get(client)
        if not frames:
            return None
        place = frames[-1].place
        assert place is not None
        return GroupPlace(place.group, len(frames))

    def add(self, client: bytes, packet: TokenPacket, earlier: tuple[TokenPacket, ...]) -> tuple[TokenPacket, ...]:
        """Keep a packet with a place, and those of `earlier` that lead up to it; returns all frames before it.

        A packet in the place of the newest frame replaces that; an empty one is not kept. Raises TransportError if
        frames before it are neither kept nor in `earlier`, are on another grid, or take more than `tokens`.
        """
        place = packet.place
        assert place is not None
        frames, known = self._groups.get(client, []), self.kept(client)
        count = place.frame - len(earlier)
        if count and (known is None or known.group != place.group or known.frame < count):
            raise TransportError(f"{place} needs {counted(count, 'frame')} before it, and the memory has {known}")
        before = (*frames[:count], *earlier)
        after = [*before, packet] if len(packet.regions) else [*before]
        if any(frame.grid != packet.grid for frame in before):
            raise TransportError("the frames of a group of pictures must have one size")
        steps = sum(max(len(frame.regions), *frame.grid.shape) for frame in after)
        if steps > self.tokens:
            raise TransportError(f"a group of pictures takes {steps} steps, and the memory holds {self.tokens}")
        self._groups[client] = after
        return before

    def drop(self, client: bytes) -> None:
        """Forget a client's group; it may have none."""
        self._groups.pop(client, None)

    def evict(self, client: bytes) -> None:
        """Forget a client's group, as its slot is given to another one, and count that."""
        self.evictions += self._groups.pop(client, None) is not None
