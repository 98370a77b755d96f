"""Picture of a match: its frame with the regions that the check was given, the question and its probability."""

from __future__ import annotations

from datetime import datetime

import cv2
import numpy as np

from stream.clock import clock_text
from stream.events import AskedPicture, Match
from stream.media import AllocationOverlay
from stream.protocol.picture_files import encode_jpeg
from stream.sinks.drawing import draw

QUALITY = 85


def match_picture(picture: AskedPicture, match: Match, camera: str) -> bytes:
    """Return the JPEG of a match; `picture` is that of its frame, `camera` is named for a live source.

    Raises ValueError if the picture is damaged.
    """
    at = clock_text(match.pts_s)
    caption = match.question
    if match.time is not None:
        at = f"{datetime.fromisoformat(match.time):%Y-%m-%d %H:%M:%S}"
        caption = f"{camera}: {match.question}"
    note = f"{at} · {match.yes:.0%} yes".replace("%", " %")
    return encode_jpeg(draw(_overlay(picture), caption, note, dim=False), QUALITY)


def _overlay(picture: AskedPicture) -> AllocationOverlay:
    data = np.frombuffer(picture.jpeg, np.uint8)
    if len(data):
        bgr = cv2.imdecode(data, cv2.IMREAD_COLOR)
    else:
        bgr = None
    if bgr is None or picture.map is None:
        raise ValueError("the picture of the frame cannot be decoded")
    image = np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)
    if picture.level:  # regions are drawn at level 0
        image = np.asarray(cv2.resize(image, None, fx=1 << picture.level, fy=1 << picture.level), np.uint8)
    frame_map = picture.map
    relevance = np.frombuffer(frame_map.relevance, np.uint8).reshape(frame_map.rows, frame_map.cols)
    return AllocationOverlay(
        image=image,
        regions=np.frombuffer(frame_map.regions, "<i2").reshape(-1, 3).astype(np.int64),
        relevance=relevance.astype(np.float32) / 255,
        overview=frame_map.overview,
    )
