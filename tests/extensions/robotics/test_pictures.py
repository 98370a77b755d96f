"""Times of events, and places of regions in pictures."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest

from stream.events import Notice
from stream.extensions.robotics.pictures import EventClock, ShownPicture
from tests.support.events import answer, frame
from tests.support.recordings import picture

HOUR_NS = 3600 * 1_000_000_000
NOTICE = Notice(code="x", message="y")


def test_media_time_is_that_of_the_event() -> None:
    clock = EventClock()
    assert clock.time_ns(NOTICE) == 0
    assert clock.time_ns(frame(index=3, pts_s=2.5)) == 2_500_000_000
    assert clock.time_ns(answer(1 / 3, "before")) == 333_333_000
    assert clock.time_ns(NOTICE) == 2_500_000_000
    assert clock.time_ns(answer(-0.5, "before the beginning")) == 0


def test_unix_time_adds_one_constant() -> None:
    clock = EventClock(unix=True)
    assert abs(time.time_ns() - clock.time_ns(NOTICE)) < HOUR_NS
    age_ns = 24 * HOUR_NS
    captured = frame(index=3, pts_s=2.5, capture_ns=time.monotonic_ns() - age_ns)
    first_ns = clock.time_ns(captured)
    assert abs(time.time_ns() - age_ns - first_ns) < HOUR_NS
    assert clock.time_ns(frame(index=4, pts_s=3.5, capture_ns=0)) - first_ns == 1_000_000_000
    assert clock.time_ns(answer(1.5, "late")) - first_ns == -1_000_000_000
    assert clock.time_ns(NOTICE) - first_ns == 1_000_000_000


@pytest.mark.parametrize(("level", "tile_px"), [(0, 32), (1, 16)])
def test_regions_lie_where_their_tiles_are(level: int, tile_px: int) -> None:
    decoded_picture = ShownPicture(picture(0, 0.0, level=level))
    width, height = decoded_picture.size
    assert (width, height) == (190 >> level, 120 >> level)
    boxes = decoded_picture.boxes()
    assert [(box.shape, box.level) for box in boxes] == [(0, 0), (1, 1), (6, 1), (10, 1)]
    edges = [(box.left, box.top, box.right, box.bottom) for box in boxes]
    tile = [(2, 1, 3, 2), (4, 2, 6, 4), (2, 0, 4, 1), (0, 0, 1, 2)]
    limits = (width, height, width, height)
    assert edges == [
        tuple(min(edge * tile_px, most) for edge, most in zip(corners, limits, strict=True)) for corners in tile
    ]
    assert [round(box.relevance * 255) for box in boxes] == [80, (160 + 170 + 220 + 230) // 4, 25, 30]


def test_an_overview_has_no_outlines() -> None:
    assert [box.shape for box in ShownPicture(picture(0, 0.0, overview=3)).boxes()] == [10]
    assert ShownPicture(picture(0, 0.0, overview=4)).boxes() == []


def test_the_heat_map_is_brightest_where_relevance_is() -> None:
    heat = cv2.imdecode(np.frombuffer(ShownPicture(picture(0, 0.0)).heat_map(), np.uint8), cv2.IMREAD_GRAYSCALE)
    assert heat.shape == (120, 190)
    assert heat[100:116, 164:186].mean() > heat[40:60, 70:90].mean() + 40 > heat[4:28, 4:28].mean() + 60
