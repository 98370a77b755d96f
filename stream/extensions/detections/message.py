"""Messages with detections of another program, and the boxes in them. docs/boxes.md has the format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from stream.errors import TransportError
from stream.untrusted import KIB, SIDE_PX_MAX, Share, TimeNs

DETECTION_BYTES_MAX = 64 * KIB
"""Longest message: some 600 boxes as JSON."""

OBJECTS_MAX = 256
"""Boxes of one message, those with the highest scores; a detector gives 300 at most, nearly all of them doubtful."""

Coordinate = Annotated[float, Meta(ge=-1e6, le=1e6)]
PictureSide = Annotated[int, Meta(ge=1, le=SIDE_PX_MAX)]


class OutsideObject(msgspec.Struct, frozen=True):
    """Thing that another program has detected: `box` (left, top, right, bottom)."""

    box: tuple[Coordinate, Coordinate, Coordinate, Coordinate]
    label: Annotated[str, Meta(max_length=256)] = ""
    score: Share | None = None


class OutsideDetections(msgspec.Struct, frozen=True):
    """Detections in one picture of `width_px` × `height_px`; without these, boxes are in shares of its sides.

    `unix_ns`: when the picture was captured.
    """

    objects: list[OutsideObject]
    unix_ns: TimeNs | None = None
    width_px: PictureSide | None = None
    height_px: PictureSide | None = None


@dataclass(frozen=True, slots=True)
class DetectedBoxes:
    """Boxes of one message: float64 [N, 4] (left, top, right, bottom) in shares of the picture, each with an area;
    `labels` and `scores` of them. `unix_ns`: as in the message; `cut`: there were more than OBJECTS_MAX."""

    boxes: npt.NDArray[np.float64]
    labels: tuple[str, ...]
    scores: tuple[float, ...]
    unix_ns: int | None
    cut: bool

    def select(self, flags: npt.NDArray[np.bool_]) -> DetectedBoxes:
        """Return the boxes of these flags, bool [N]."""
        at = flags.nonzero()[0].tolist()
        labels = tuple(self.labels[index] for index in at)
        scores = tuple(self.scores[index] for index in at)
        return replace(self, boxes=self.boxes[at], labels=labels, scores=scores)


_json = msgspec.json.Decoder(OutsideDetections)
_msgpack = msgspec.msgpack.Decoder(OutsideDetections)


def read_detections(data: bytes | memoryview) -> DetectedBoxes:
    """Return the boxes of a message in JSON, or in msgpack if it does not begin like JSON.

    Inverted boxes are turned, and boxes beyond the picture clipped or left out. Raises TransportError if the message is
    too long or invalid.
    """
    if len(data) > DETECTION_BYTES_MAX:
        raise TransportError(f"a message has {len(data)} bytes; at most {DETECTION_BYTES_MAX} are read")
    try:
        message = (_json if bytes(data[:16]).lstrip()[:1] == b"{" else _msgpack).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"a message cannot be read: {error}") from error
    if (message.width_px is None) != (message.height_px is None):
        raise TransportError("a message has one of width_px and height_px; give both for pixels, none for shares")
    objects = sorted(message.objects, key=_score, reverse=True)[:OBJECTS_MAX]
    corners = np.array([item.box for item in objects], np.float64).reshape(-1, 2, 2)
    corners /= message.width_px or 1, message.height_px or 1
    boxes = np.clip(np.sort(corners, axis=1), 0.0, 1.0).reshape(-1, 4)
    usable = ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])).nonzero()[0].tolist()
    return DetectedBoxes(
        boxes[usable],
        tuple(objects[at].label for at in usable),
        tuple(_score(objects[at]) for at in usable),
        message.unix_ns,
        cut=len(message.objects) > OBJECTS_MAX,
    )


def _score(thing: OutsideObject) -> float:
    return 1.0 if thing.score is None else thing.score
