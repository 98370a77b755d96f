"""The frames of a measured run in little memory: a long measurement must not look like a leak of what it measures."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, MutableSequence
from typing import overload

from stream.events import FrameReady

_RECORD = struct.Struct("<qdqqdddqqdd")
"""The numbers of a FrameReady in their order, but `slot` and `map`; a duration that is not known is NaN."""

_NAMES = (
    "frame_index",
    "pts_s",
    "capture_ns",
    "ready_ns",
    "texture_ms",
    "allocate_ms",
    "dirty_share",
    "tokens",
    "tiles",
    "jitter_share",
    "duration_s",
)

RECORD_BYTES = _RECORD.size


class KeptFrames(MutableSequence[FrameReady]):
    """A list of frames at 88 bytes each, a sixth of what the objects take. Their `slot` and `map` are not kept."""

    def __init__(self) -> None:
        self._records = bytearray()

    def __len__(self) -> int:
        return len(self._records) // RECORD_BYTES

    @overload
    def __getitem__(self, index: int) -> FrameReady: ...
    @overload
    def __getitem__(self, index: slice) -> list[FrameReady]: ...
    def __getitem__(self, index: int | slice) -> FrameReady | list[FrameReady]:
        if isinstance(index, slice):
            return [self._read(one) for one in range(*index.indices(len(self)))]
        return self._read(self._position(index))

    @overload
    def __setitem__(self, index: int, value: FrameReady) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[FrameReady]) -> None: ...
    def __setitem__(self, index: int | slice, value: FrameReady | Iterable[FrameReady]) -> None:
        if isinstance(index, slice) or not isinstance(value, FrameReady):
            raise TypeError("frames are replaced one by one")
        at = self._position(index) * RECORD_BYTES
        self._records[at : at + RECORD_BYTES] = _packed(value)

    def __delitem__(self, index: int | slice) -> None:
        positions = range(*index.indices(len(self))) if isinstance(index, slice) else [self._position(index)]
        for one in sorted(positions, reverse=True):
            del self._records[one * RECORD_BYTES : (one + 1) * RECORD_BYTES]

    def insert(self, index: int, value: FrameReady) -> None:
        at = slice(index, None).indices(len(self))[0] * RECORD_BYTES
        self._records[at:at] = _packed(value)

    def _position(self, index: int) -> int:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"no frame {index} of {len(self)}")
        return position

    def _read(self, position: int) -> FrameReady:
        values = dict(zip(_NAMES, _RECORD.unpack_from(self._records, position * RECORD_BYTES), strict=True))
        if math.isnan(values["duration_s"]):
            values["duration_s"] = None
        return FrameReady(**values)


def _packed(frame: FrameReady) -> bytes:
    values = [getattr(frame, name) for name in _NAMES]
    if values[-1] is None:
        values[-1] = math.nan
    return _RECORD.pack(*values)
