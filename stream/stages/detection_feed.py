"""Feed of detections from another program: the least relevance of the tiles under its boxes, and what is new.

A cheap detector knows where things are, and what has come into view. Its boxes draw tokens before a question is asked,
and a new thing counts as change, for answers and checks that are due on change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arr_coc.types import NS_PER_S, TILE_PX, TileGrid
from stream.clock import Clock
from stream.errors import TransportError
from stream.events import Event, Notice
from stream.protocol.detections import DetectedBoxes, read_detections
from stream.transport.links import FrameSubscriber
from stream.transport.security import ClientCurve
from stream.untrusted import MIB

OVERLAP = 0.1
"""Least intersection over union of two boxes of one thing: between two messages it may move by half of its size."""

PART_BYTES_MAX = 1 * MIB
"""Size above which a message is not received, and ends the connection; one of more than 64 KiB is not read."""

RECONNECT_NS = 1 * NS_PER_S
"""Shortest time between two connections."""

DETECTIONS_UNREADABLE, DETECTIONS_CUT, DETECTIONS_REFUSED, DETECTIONS_LOST = (
    "detections-unreadable",
    "detections-cut",
    "detections-refused",
    "detections-lost",
)
"""Codes of notices about the feed; each comes once."""


@dataclass(frozen=True, slots=True)
class DetectionAddress:
    """Address of a program that publishes detections, its ZeroMQ endpoint, and how long a box counts, in seconds."""

    name: str
    endpoint: str
    curve: ClientCurve | None
    hold_s: float


class DetectionReceiver(Protocol):
    """Interface of the socket that the feed reads."""

    @property
    def lost(self) -> bool: ...

    @property
    def refused(self) -> bool: ...

    def receive(self, timeout_ms: int) -> tuple[list[memoryview] | None, int]: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Track:
    """Thing in view: its last box, when it was captured, and whether an answer and a check were about a frame since it
    came."""

    label: str
    box: npt.NDArray[np.float64]
    seen_ns: int
    answered: bool = False
    looked: bool = False


class DetectionFeed:
    """Newest detections of another program. Belongs to the thread that calls `open`.

    The newest message counts, for `hold_s` from its capture: none queues, and the run never waits for one. `unix_ns`
    returns the time of this machine, to compare with that of a message.
    """

    def __init__(self, address: DetectionAddress, clock: Clock, unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._address = address
        self._hold_ns = round(address.hold_s * NS_PER_S)
        self._clock = clock
        self._unix_ns = unix_ns
        self._newest: DetectedBoxes | None = None
        self._newest_ns = self._connected_ns = 0
        self._tracks: list[_Track] = []
        self._reported: set[str] = set()

    def open(self, connect: Callable[[], DetectionReceiver] | None = None) -> DetectionFeed:
        """Connect to the program, by `connect` if that is given. Raises TransportError if that is impossible."""
        self._connect = connect or self._subscriber
        self._receiver = self._connect()
        return self

    def close(self) -> None:
        """Close the socket."""
        self._receiver.close()

    def receive(self) -> list[Event]:
        """Take the newest message, if one has come; return notices."""
        name, now_ns = self._address.name, self._clock.now_ns()
        notices: list[Event] = []
        if self._receiver.lost and now_ns - self._connected_ns >= RECONNECT_NS:
            text = f"{name} is gone, or has sent a message of more than {PART_BYTES_MAX >> 20} MiB; it is tried again"
            notices += self._notice(DETECTIONS_LOST, text)
            self._receiver.close()
            self._receiver, self._connected_ns = self._connect(), now_ns
        parts, _ = self._receiver.receive(0)
        self._tracks = [track for track in self._tracks if now_ns - track.seen_ns <= self._hold_ns]
        if parts is not None:
            try:
                found = read_detections(parts[-1])  # a topic may stand before it
            except TransportError as error:
                text = f"{name}: {error}; docs/boxes.md has the format; such messages are left out"
                notices += self._notice(DETECTIONS_UNREADABLE, text)
            else:
                self._take(found, now_ns)
                text = (
                    f"{name}: a message has {len(found.labels)} boxes and more; those of the lowest scores are left out"
                )
                notices += self._notice(DETECTIONS_CUT, text) if found.cut else []
        elif self._receiver.refused:
            text = f"no detections: {name} rejects the connection; its keys and those of --keys do not match"
            notices += self._notice(DETECTIONS_REFUSED, text)
        if self._newest is not None and now_ns - self._newest_ns > self._hold_ns:
            self._newest = None
        return notices

    def floor(self, grid: TileGrid) -> npt.NDArray[np.float32] | None:
        """Return the least relevance of a frame's tiles, float32 [rows, cols]: the score of a box on the tiles that it
        touches; None if no box counts."""
        if self._newest is None or not len(self._newest.boxes):
            return None
        floor = np.zeros(grid.shape, np.float32)
        tiles = self._newest.boxes * (np.array([grid.width_px, grid.height_px] * 2) / TILE_PX)
        first, end = np.floor(tiles[:, :2]).astype(int), np.ceil(tiles[:, 2:]).astype(int)
        for (left, top), (right, bottom), score in zip(first.tolist(), end.tolist(), self._newest.scores, strict=True):
            np.maximum(part := floor[top:bottom, left:right], score, out=part)
        return floor

    def changes(self, since_answer: float, since_look: float) -> tuple[float, float]:
        """Return shares of change since the last answer and the last check; 1 if a new thing has come since."""
        fresh_answer = any(not track.answered for track in self._tracks)
        fresh_look = any(not track.looked for track in self._tracks)
        return (1.0 if fresh_answer else since_answer), (1.0 if fresh_look else since_look)

    def mark_answered(self) -> None:
        """The newest frame is being answered about: the things in it are no longer new to answers."""
        for track in self._tracks:
            track.answered = True

    def mark_looked(self) -> None:
        """The newest frame is being checked: the things in it are no longer new to checks."""
        for track in self._tracks:
            track.looked = True

    def _take(self, found: DetectedBoxes, now_ns: int) -> None:
        """Take a message, unless it is stale, or older than the newest."""
        age_ns = 0 if found.unix_ns is None else max(0, self._unix_ns() - found.unix_ns)
        captured_ns = now_ns - age_ns
        if age_ns > self._hold_ns or captured_ns < self._newest_ns:
            return
        self._newest, self._newest_ns = found, captured_ns
        free = [*self._tracks]
        for label, box in zip(found.labels, found.boxes, strict=True):
            track = _nearest([one for one in free if one.label == label], box)
            if track is None:
                self._tracks.append(_Track(label, box, captured_ns))
            else:
                free.remove(track)
                track.box, track.seen_ns = box, captured_ns

    def _subscriber(self) -> FrameSubscriber:
        return FrameSubscriber(self._address.endpoint, curve=self._address.curve, part_bytes_max=PART_BYTES_MAX)

    def _notice(self, code: str, message: str) -> list[Event]:
        if code in self._reported:
            return []
        self._reported.add(code)
        return [Notice(code=code, message=message)]


def _nearest(tracks: list[_Track], box: npt.NDArray[np.float64]) -> _Track | None:
    """Return the thing whose box overlaps most with this one; None if none does by OVERLAP."""
    if not tracks:
        return None
    boxes = np.array([track.box for track in tracks])
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    shared = np.maximum(sides, 0).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
    overlaps = shared / (areas - shared)
    at = int(overlaps.argmax())
    return tracks[at] if overlaps[at] >= OVERLAP else None
