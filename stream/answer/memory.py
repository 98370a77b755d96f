"""Groups of pictures: for each client of an answer server, the packets that its next packets build on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from arr_coc.errors import counted
from arr_coc.types import GROUP_GROWTH, FramePacket, GroupPlace, TokenPacket, shown_tokens
from stream.errors import TransportError
from stream.untrusted import GROUP_TOKENS_MAX


def _visible_tokens(packets: Sequence[TokenPacket], frames: int) -> Iterator[int]:
    """Yield the number of tokens that a group of `frames` frames shows after each packet. Raises TransportError if a
    packet supersedes tokens that are not shown."""
    visible = np.zeros(sum(len(packet.regions) for packet in packets), bool)
    end = 0
    lengths: deque[int] = deque(maxlen=frames)
    for packet in packets:
        superseded = packet.superseded
        begin = end
        if len(superseded):
            valid = frames == 1 and superseded.min() >= 0 and superseded.max() < begin
            valid = valid and len(np.unique(superseded)) == len(superseded)
            if not valid or not visible[superseded].all():
                raise TransportError("a frame supersedes tokens that its group of pictures does not have")
            visible[superseded] = False
        end += len(packet.regions)
        visible[begin:end] = True
        lengths.append(end - begin)
        yield int(np.count_nonzero(visible[:end])) if frames == 1 else sum(lengths)


def _place(packet: TokenPacket) -> GroupPlace:
    assert packet.place is not None
    return packet.place


class GroupMemory:
    """Memory of the clients' groups of pictures, which show at most `tokens` tokens each.

    A packet with a place continues its client's group, or begins a new one in place of it. Packets before the frame
    from which the group is read are dropped. `idle_share`: largest share of the time in which the model reads ahead;
    0 if it does not. `evictions`: number of groups dropped because another client got their slot.
    """

    def __init__(self, tokens: int, idle_share: float = 0.0) -> None:
        self.tokens = tokens
        self.idle_share = idle_share
        self.evictions = 0
        self._groups: dict[bytes, list[TokenPacket]] = {}

    @property
    def groups(self) -> int:
        """Number of groups kept."""
        return len(self._groups)

    @property
    def visual_tokens(self) -> int:
        """Number of visual tokens of all groups kept."""
        return sum(map(shown_tokens, self._groups.values()))

    def next_place(self, client: bytes) -> GroupPlace | None:
        """Return the place of the next frame in a client's group; None if none of it is kept."""
        packets = self._groups.get(client)
        if not packets:
            return None
        place = _place(packets[-1])
        return replace(place, frame=place.frame + 1)

    def before(self, client: bytes, place: GroupPlace) -> list[TokenPacket]:
        """Return the packets of a client's group before a place in it. Raises TransportError if one is not kept."""
        next_place = self.next_place(client)
        if not place.frame:
            return []
        if next_place is None or next_place != replace(place, frame=next_place.frame) or next_place.frame < place.frame:
            raise TransportError(f"{place} builds on {counted(place.frame, 'frame')}, and the memory has {next_place}")
        packets = [other for other in self._groups[client] if _place(other).frame < place.frame]
        if not packets or _place(packets[0]).frame > place.first:
            raise TransportError(f"{place} is read from frame {place.first} on, which the memory has dropped")
        return packets

    def add(self, client: bytes, packet: TokenPacket, earlier_packets: Sequence[TokenPacket] = ()) -> None:
        """Keep a packet with a place, and the packets of `earlier_packets` before it.

        A packet in the place of the newest one replaces it; an empty one is not kept. Raises TransportError if packets
        before it are neither kept nor in `earlier_packets` or are on another grid, if it supersedes tokens that the
        group does not have, or if the group would show more than `tokens`.
        """
        new = [*earlier_packets, *([] if packet.is_empty else [packet])]
        start = _place(new[0] if new else packet)
        if new and start.frame == _place(new[-1]).first:
            kept_packets = []
        else:
            kept_packets = self.before(client, start)
        packets = [*kept_packets, *new]
        if any(other.grid != packet.grid for other in packets):
            raise TransportError("the frames of a group of pictures have one size")
        for tokens in _visible_tokens(packets, start.frames) if packets else [0]:
            if not 0 < tokens <= self.tokens:
                raise TransportError(f"a group of pictures shows {counted(tokens, 'token')}, of at most {self.tokens}")
        appended_tokens = sum(len(other.regions) for other in packets)
        if start.frames == 1 and appended_tokens > GROUP_GROWTH * self.tokens:
            raise TransportError(
                f"a group of pictures was given {counted(appended_tokens, 'token')} to show {self.tokens}"
            )
        first = _place(packets[-1]).first
        self._groups[client] = [other for other in packets if _place(other).frame >= first]

    def drop(self, client: bytes) -> None:
        """Drop a client's group, if it has one."""
        self._groups.pop(client, None)

    def evict(self, client: bytes) -> None:
        """Drop a client's group because another client got its slot, and count it."""
        self.evictions += self._groups.pop(client, None) is not None


class Reading(Protocol):
    """Reading of a packet into a client's group of pictures. Nothing changes before `commit`."""

    @property
    def tokens(self) -> int:
        """Number of tokens that it reads."""
        ...

    @property
    def is_key_frame(self) -> bool:
        """True if it begins a new group, beside which the old one still serves."""
        ...

    @property
    def fits(self) -> bool:
        """True if the model still holds what it builds on."""
        ...

    def steps(self) -> Generator[None, None, None]:
        """Read, in short steps."""
        ...

    def wait(self) -> None:
        """Wait until the device has done the steps so far."""
        ...

    def commit(self) -> None:
        """Take what was read into the group."""
        ...


def remember(memory: GroupMemory | None, client: bytes, packets: Sequence[TokenPacket]) -> TokenPacket:
    """Keep a client's packets if they are of a group of pictures; return the last one.

    A packet without an answer is kept until the next one. Raises TransportError if the packets cannot be kept.
    """
    *earlier_packets, packet = packets
    if packet.place is not None:
        if memory is None:
            raise TransportError("this answer server keeps no visual memory; start it with --memory")
        memory.add(client, packet, earlier_packets)
    return packet


def kept_place(memory: GroupMemory | None, client: bytes) -> GroupPlace | None:
    """Return the place of the next frame in a client's group; None without a memory, or a group."""
    if memory is None:
        return None
    return memory.next_place(client)


OWN = b""
"""Name under which a client keeps its own packets."""


class SentGroup:
    """Sent part of one client's group of pictures.

    `server_place`: the frames that the server had at the last turn, as the place of the next frame. `resends`: packets
    are sent again after a loss, together with the earlier packets that the server lacks, so that the answers stay the
    same.
    """

    def __init__(self, *, resends: bool) -> None:
        self.server_place: GroupPlace | None = None
        self._resends = resends
        self._memory = GroupMemory(GROUP_TOKENS_MAX)
        self._tokens = 0

    @property
    def next_place(self) -> GroupPlace | None:
        """Place of the next packet that continues the group; None if no group can be continued."""
        if self._resends:
            return self._memory.next_place(OWN)
        return self.server_place

    def add(self, packet: TokenPacket | FramePacket | None) -> list[TokenPacket]:
        """Add a packet that is sent, or was sent before the run was continued; return the earlier packets that the
        server lacks."""
        if not self._resends or not isinstance(packet, TokenPacket) or packet.place is None:
            return []
        self._memory.add(OWN, packet)
        place = self.server_place
        if place is not None and place.group == packet.place.group:
            server_frame = place.frame
        else:
            server_frame = 0
        return [other for other in self._memory.before(OWN, packet.place) if _place(other).frame >= server_frame]

    def objection(self, tokens: int) -> str | None:
        """Return why the group cannot be sent to a server with `tokens` tokens of memory; None if it can be."""
        if self._resends and self.next_place is not None and tokens < self._tokens:
            if tokens:
                remedy = f"--set answer.memory.tokens={self._tokens}"
            else:
                remedy = "--memory"
            return (
                f"it keeps {counted(tokens, 'token')} of visual memory, and the server before it {self._tokens}; start "
                f"it with {remedy}"
            )
        self._tokens = tokens
        return None
