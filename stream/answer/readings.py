"""Readings of idle packets by a Qwen model: into the cache of a client's slot, and into the memory of its packets."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from arr_coc.types import TokenPacket
from stream.answer.memory import GroupMemory, remember

if TYPE_CHECKING:
    from arr_coc.qwen.read_ahead import ReadAhead


class SlotReading:
    """Reading of a packet into the cache of the client's slot."""

    def __init__(self, memory: GroupMemory, client: bytes, packet: TokenPacket, reading: ReadAhead) -> None:
        self._memory = memory
        self._client = client
        self._packet = packet
        self._reading = reading
        self._place = memory.next_place(client)
        self.tokens = len(packet.regions)

    @property
    def is_key_frame(self) -> bool:
        """True if a new group begins, beside which the old one still serves."""
        return self._reading.is_key_frame

    @property
    def fits(self) -> bool:
        """True if the client still has the group that the packet goes on with, or is to replace."""
        place = self._memory.next_place(self._client)
        if self._place is None or place is None:
            return False
        if self.is_key_frame:
            is_same = place.group == self._place.group
        else:
            is_same = place == self._place
        return is_same and self._reading.fits

    def steps(self) -> Generator[None, None, None]:
        """Encode and prefill the packet."""
        return self._reading.steps()

    def wait(self) -> None:
        """Wait until the device has done the steps so far."""
        self._reading.wait()

    def commit(self) -> None:
        """Keep the packet, and write what was read into the cache."""
        self._memory.add(self._client, self._packet)
        self._reading.commit()


class KeptReading:
    """Packets that are kept at once, and read with the next answer."""

    is_key_frame = False
    fits = True

    def __init__(self, memory: GroupMemory, client: bytes, packets: Sequence[TokenPacket]) -> None:
        self._memory = memory
        self._client = client
        self._packets = packets
        self.tokens = len(packets[-1].regions)

    def steps(self) -> Generator[None, None, None]:
        """Nothing is read yet."""
        yield from ()

    def wait(self) -> None:
        """Nothing runs on a device."""

    def commit(self) -> None:
        """Keep the packets."""
        remember(self._memory, self._client, self._packets)
