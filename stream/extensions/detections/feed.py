"""Feed of detections from another program: the least relevance of the tiles under its boxes, and what is new.

A cheap detector knows where things are, and what has come into view. Its boxes draw tokens before a question is asked,
and a new thing counts as change, for answers and checks that are due on change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from arr_coc.texture.polygons import points_inside
from arr_coc.types import NS_PER_S, TILE_PX, FrameStamp, TileGrid
from stream.clock import Clock
from stream.config import Config
from stream.errors import ConfigError, TransportError
from stream.events import Event, NoticesOnce
from stream.extensions.detections.message import DetectedBoxes, read_detections
from stream.extensions.detections.section import DetectionsSection
from stream.sources.address import ZMQ_PREFIX
from stream.transport.links import FrameSubscriber
from stream.transport.security import ClientCurve, client_curve
from stream.untrusted import MIB

if TYPE_CHECKING:
    from arr_coc.allocation.allocator import Zones

OVERLAP = 0.1
"""Least intersection over union of two boxes of one thing: between two messages it may move by half of its size."""

TRACKS_MAX = 512
"""Things that are kept in mind; of more, those that were not seen for longest count as new when they return."""

PART_BYTES_MAX = 1 * MIB
"""Size above which a message is not received, and ends the connection; one of more than 64 KiB is not read."""

RECONNECT_NS = 1 * NS_PER_S
"""Shortest time between two connections."""

DETECTIONS_UNREADABLE = "detections-unreadable"
DETECTIONS_CUT = "detections-cut"
DETECTIONS_REFUSED = "detections-refused"
DETECTIONS_LOST = "detections-lost"
"""Codes of notices about the feed; each comes once."""


@dataclass(frozen=True, slots=True)
class DetectionAddress:
    """Address of a program that publishes detections, its ZeroMQ endpoint, and how long a box counts, in seconds."""

    name: str
    endpoint: str
    curve: ClientCurve | None
    hold_s: float

    def make_feed(self, clock: Clock, zones: Zones | None) -> DetectionFeed:
        """Return the feed, not yet open."""
        return DetectionFeed(self, clock, zones=zones)


def address_of(config: Config, *, paced: bool) -> DetectionAddress | None:
    """Return the configured address; None without one. Raises ConfigError for a file that is read frame by frame."""
    section = DetectionsSection.of(config)
    if section.address is None:
        return None
    if not paced:
        raise ConfigError(
            f"--detections {section.address} needs a live source: a file that is read frame by frame has no clock to "
            "match boxes against; give --realtime"
        )
    endpoint = section.address.removeprefix(ZMQ_PREFIX)
    return DetectionAddress(section.address, endpoint, client_curve(config.network, endpoint), section.hold_s)


class DetectionReceiver(Protocol):
    """Interface of the socket that the feed reads."""

    @property
    def is_lost(self) -> bool: ...

    @property
    def is_refused(self) -> bool: ...

    def receive(self, timeout_ms: int) -> tuple[list[memoryview] | None, int]: ...

    def close(self) -> None: ...


class ThingTracker:
    """Tracker of things in view, by label and place: at most TRACKS_MAX, those that were seen last. `answered` and
    `checked`, bool [N]: an answer, and a check, was about a frame since the thing came."""

    def __init__(self) -> None:
        self._boxes = np.zeros((0, 4))
        self._labels = np.zeros(0, np.int64)
        self._seen_ns = np.zeros(0, np.int64)
        self._numbers: dict[str, int] = {}
        self.answered = np.zeros(0, bool)
        self.checked = np.zeros(0, bool)

    def forget(self) -> None:
        """Forget all things: the next ones are new."""
        self._choose(np.zeros(0, np.intp))

    def keep_since(self, first_ns: int) -> None:
        """Forget things that were last seen before this time."""
        survivors = (self._seen_ns >= first_ns).nonzero()[0]
        if len(survivors) < len(self._seen_ns):
            self._choose(survivors)

    def update(self, detections: DetectedBoxes, captured_ns: int) -> None:
        """Move each known thing to its newest box, the one that overlaps most, and add the others as new."""
        # each label has a number; labels that are gone lose theirs once there are many
        if len(self._numbers) > 2 * TRACKS_MAX:
            live_numbers = set(self._labels.tolist())
            self._numbers = {label: number for label, number in self._numbers.items() if number in live_numbers}
        first = max(self._numbers.values(), default=-1) + 1
        for label in detections.labels:
            first += self._numbers.setdefault(label, first) == first
        labels = np.array([self._numbers[label] for label in detections.labels], np.int64)
        overlaps = _overlaps(detections.boxes, self._boxes) * (labels[:, None] == self._labels)
        new = []
        for at, row in enumerate(overlaps):
            track = int(row.argmax()) if len(row) else 0
            if not len(row) or row[track] < OVERLAP:
                new.append(at)
                continue
            overlaps[:, track] = 0.0
            self._boxes[track], self._seen_ns[track] = detections.boxes[at], captured_ns
        self._boxes = np.concatenate([self._boxes, detections.boxes[new]])
        self._labels = np.concatenate([self._labels, labels[new]])
        self._seen_ns = np.concatenate([self._seen_ns, np.full(len(new), captured_ns)])
        self.answered = np.concatenate([self.answered, np.zeros(len(new), bool)])
        self.checked = np.concatenate([self.checked, np.zeros(len(new), bool)])
        if len(self._seen_ns) > TRACKS_MAX:
            self._choose(np.sort(np.argsort(self._seen_ns, kind="stable")[-TRACKS_MAX:]))

    def _choose(self, indices: npt.NDArray[np.intp]) -> None:
        self._boxes = self._boxes[indices]
        self._labels = self._labels[indices]
        self._seen_ns = self._seen_ns[indices]
        self.answered, self.checked = self.answered[indices], self.checked[indices]


class DetectionFeed:
    """Newest detections of another program. Belongs to the thread that calls `open`.

    The newest message counts, for `hold_s` from its capture, and within the epoch of its picture: none queues, and the
    run never waits for one. `unix_ns` returns the time of this machine, to compare with that of a message. With `zones`
    a thing is new only if the middle of its box is in no zone of weight 0, and in that of the question.
    """

    def __init__(
        self,
        address: DetectionAddress,
        clock: Clock,
        unix_ns: Callable[[], int] = time.time_ns,
        zones: Zones | None = None,
    ) -> None:
        self._address = address
        self._zones = zones
        self._hold_ns = round(address.hold_s * NS_PER_S)
        self._clock = clock
        self._unix_ns = unix_ns
        self._newest: DetectedBoxes | None = None
        self._newest_ns = self._connected_ns = 0
        self._epoch: int | None = None
        self._epoch_ns = 0
        self._tracker = ThingTracker()
        self._notices = NoticesOnce()

    def open(self, connect: Callable[[], DetectionReceiver] | None = None) -> DetectionFeed:
        """Connect to the program, by `connect` if that is given. Raises TransportError if that is impossible."""
        self._connect = connect or partial(
            FrameSubscriber, self._address.endpoint, curve=self._address.curve, part_bytes_max=PART_BYTES_MAX
        )
        self._receiver = self._connect()
        return self

    def close(self) -> None:
        """Close the socket."""
        self._receiver.close()

    def receive(self, stamp: FrameStamp) -> list[Event]:
        """Take the newest message, if one has come, with the frame of this stamp; return notices."""
        name = self._address.name
        now_ns = self._clock.now_ns()
        notices: list[Event] = []
        is_new_epoch = self._epoch is not None and stamp.epoch != self._epoch
        if is_new_epoch:
            self._newest = None
            self._epoch_ns = stamp.capture_ns
            self._tracker.forget()  # what has the same label in the same place is another thing
        self._epoch = stamp.epoch
        if self._receiver.is_lost and now_ns - self._connected_ns >= RECONNECT_NS:
            text = f"{name} is gone, or has sent a message of more than {PART_BYTES_MAX >> 20} MiB; it is tried again"
            notices += self._notices.take(DETECTIONS_LOST, text)
            self._receiver.close()
            self._receiver = self._connect()
            self._connected_ns = now_ns
        parts, _ = self._receiver.receive(0)
        self._tracker.keep_since(now_ns - self._hold_ns)
        if parts is not None:
            try:
                detections = read_detections(parts[-1])  # a topic may stand before it
            except TransportError as error:
                text = f"{name}: {error}; docs/boxes.md has the format; such messages are left out"
                notices += self._notices.take(DETECTIONS_UNREADABLE, text)
            else:
                # what came until this frame and has no time is of a picture before it
                if detections.unix_ns is not None or not is_new_epoch:
                    self._take(detections, now_ns)
                count = len(detections.labels)
                text = f"{name}: a message has {count} boxes and more; those of the lowest scores are left out"
                notices += self._notices.take(DETECTIONS_CUT, text) if detections.cut else []
        elif self._receiver.is_refused:
            text = f"no detections: {name} rejects the connection; its keys and those of --keys do not match"
            notices += self._notices.take(DETECTIONS_REFUSED, text)
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
        first = np.floor(tiles[:, :2]).astype(int)
        end = np.ceil(tiles[:, 2:]).astype(int)
        for (left, top), (right, bottom), score in zip(first.tolist(), end.tolist(), self._newest.scores, strict=True):
            np.maximum(part := floor[top:bottom, left:right], score, out=part)
        return floor

    def changes(self, since_answer: float, since_look: float) -> tuple[float, float]:
        """Return shares of change since the last answer and the last check; 1 if a new thing has come since."""
        tracker = self._tracker
        return (since_answer if tracker.answered.all() else 1.0), (since_look if tracker.checked.all() else 1.0)

    def mark_answered(self) -> None:
        """The newest frame is being answered about: the things in it are no longer new to answers."""
        self._tracker.answered[:] = True

    def mark_looked(self) -> None:
        """The newest frame is being checked: the things in it are no longer new to checks."""
        self._tracker.checked[:] = True

    def _take(self, detections: DetectedBoxes, now_ns: int) -> None:
        """Take a message, unless it is stale, older than the newest, or of an earlier epoch."""
        if detections.unix_ns is None:
            age_ns = 0
        else:
            age_ns = max(0, self._unix_ns() - detections.unix_ns)
        captured_ns = now_ns - age_ns
        if age_ns > self._hold_ns or captured_ns < max(self._newest_ns, self._epoch_ns):
            return
        self._newest = detections
        self._newest_ns = captured_ns
        self._tracker.update(detections.select(self._in_zones(detections.boxes)), captured_ns)

    def _in_zones(self, boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return which boxes [N, 4] are of things that may be new: bool [N]."""
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        counts = np.ones(len(boxes), bool)
        if self._zones is None:
            return counts
        for polygon, weight in self._zones.weights:
            if weight == 0:
                counts &= ~points_inside(polygon, middles)
        masks = [points_inside(polygon, middles) for polygon in self._zones.focus]
        if masks:
            return counts & np.any(masks, axis=0)
        return counts


def _overlaps(boxes: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return intersection over union of boxes [N, 4] with others [M, 4], each with an area: [N, M]."""
    ends = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    intersection = np.maximum(ends - np.maximum(boxes[:, None, :2], others[None, :, :2]), 0).prod(axis=2)
    areas = [(corners[:, 2:] - corners[:, :2]).prod(axis=1) for corners in (boxes, others)]
    return np.asarray(intersection / (areas[0][:, None] + areas[1] - intersection), np.float64)
