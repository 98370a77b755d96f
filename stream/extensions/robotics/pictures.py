"""Times of events, and pictures with their regions and heat maps, for outputs to robotics tools."""

from __future__ import annotations

import time
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.texture.regions import region_mean, tile_boxes
from arr_coc.types import NS_PER_S, REGION_SHAPES, TILE_PX
from stream.events import AskedPicture, Event, FrameMap, FrameReady
from stream.protocol.picture_files import encode_jpeg
from stream.sinks.drawing import draw_heat

US_PER_S = 1_000_000


class EventClock:
    """Clock of events in nanoseconds: media time, or with `unix` wall-clock time.

    Media time is the `pts_s` of a .jsonl. Unix time adds one constant to it for the whole run: the time at which the
    first frame was captured. An event without a time gets the time of the newest event before it.
    """

    def __init__(self, *, unix: bool = False) -> None:
        self._base_ns: int | None = None if unix else 0
        self._newest_ns = 0

    def time_ns(self, event: Event) -> int:
        """Return the time of an event, 0 or more."""
        pts_s = getattr(event, "pts_s", None)
        if self._base_ns is None and isinstance(event, FrameReady):
            wall_ns = time.time_ns() - time.monotonic_ns() + event.capture_ns
            self._base_ns = wall_ns - _media_ns(event.pts_s)
        if self._base_ns is None:
            return time.time_ns()
        if pts_s is None:
            return max(self._newest_ns, self._base_ns)
        at_ns = max(0, self._base_ns + _media_ns(pts_s))
        self._newest_ns = max(self._newest_ns, at_ns)
        return at_ns


def _media_ns(pts_s: float) -> int:
    """Return media time rounded to microseconds, as in a .jsonl."""
    return round(pts_s * US_PER_S) * (NS_PER_S // US_PER_S)


@dataclass(frozen=True, slots=True)
class RegionBox:
    """Chosen region of a picture, in its pixels; `shape` is its code, `level` the level of its longer side, `relevance`
    its mean in [0, 1]."""

    shape: int
    level: int
    left: float
    top: float
    right: float
    bottom: float
    relevance: float


class ShownPicture:
    """Picture of an answer's frame, decoded for drawing."""

    def __init__(self, event: AskedPicture) -> None:
        assert event.map is not None
        grey = cv2.imdecode(np.frombuffer(event.jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
        self._grey = np.asarray(grey, np.uint8)
        self._level = event.level
        self._map: FrameMap = event.map

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self._grey.shape[1], self._grey.shape[0]

    @property
    def relevance(self) -> npt.NDArray[np.uint8]:
        """Relevance of each tile, uint8 [rows, cols]: 255 is 1."""
        return np.frombuffer(self._map.relevance, np.uint8).reshape(self._map.rows, self._map.cols)

    def boxes(self) -> list[RegionBox]:
        """Return the chosen regions in token order, clipped to the picture, without the regions of an overview."""
        regions = np.frombuffer(self._map.regions, "<i2").reshape(-1, 3)[self._map.overview :].astype(np.int64)
        if not len(regions):
            return []
        shape = self._map.rows, self._map.cols
        means = region_mean(regions, np.asarray(self.relevance / 255, np.float32))
        tile_px = TILE_PX / (1 << self._level)
        width, height = self.size
        limits = np.array([height, width, height, width], np.float64)
        edges = np.minimum(tile_boxes(regions, shape) * tile_px, limits)
        return [
            RegionBox(code, max(REGION_SHAPES[code]), left, top, right, bottom, mean)
            for code, (top, left, bottom, right), mean in zip(
                regions[:, 0].tolist(), edges.tolist(), means.tolist(), strict=True
            )
        ]

    def heat_map(self) -> bytes:
        """Return relevance in colours over the darkened picture, as JPEG."""
        width, height = self.size
        scale = min(1.0, 480 / width)  # greatest width of a heat map's picture
        small = cv2.resize(
            self._grey, (max(1, round(width * scale)), max(1, round(height * scale))), interpolation=cv2.INTER_AREA
        )
        ground = np.asarray(cv2.cvtColor(small, cv2.COLOR_GRAY2RGB), np.uint8)
        frame = (height << self._level, width << self._level)
        return encode_jpeg(draw_heat(ground, self.relevance / 255, frame))


class PictureSequence:
    """Filter of a run's pictures: each frame's picture is written once, its map again if it has changed."""

    def __init__(self) -> None:
        self._newest: tuple[int, FrameMap] | None = None

    def take(self, event: AskedPicture) -> tuple[ShownPicture, bool] | None:
        """Return a picture, and whether its frame is new; None without a map, or if nothing has changed."""
        if event.map is None or self._newest == (event.frame_index, event.map):
            return None
        new = self._newest is None or self._newest[0] != event.frame_index
        self._newest = event.frame_index, event.map
        return ShownPicture(event), new
