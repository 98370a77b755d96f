"""Events of a run as ROS messages. Imports no ROS: `types` has the message classes, by their names."""

from __future__ import annotations

import struct
from array import array
from typing import Any

TILE_PX = 32

SHAPES = (
    *((1 << level, 1 << level) for level in range(6)),
    *((1, 2), (1, 4), (2, 4), (1, 8)),
    *((2, 1), (4, 1), (4, 2), (8, 1)),
)
"""Rows and columns of tiles of a region, by the code of its shape."""

Box = tuple[int, float, float, float, float, float]
"""Shape, mean relevance, and centre x, centre y, width and height in pixels."""


def header(event: dict[str, Any], frame_id: str, types: Any) -> Any:
    """Return the std_msgs/Header of a `frame` event: when the frame was captured, and by which camera."""
    seconds, nanoseconds = divmod(event["capture_unix_ns"], 1_000_000_000)
    return types.Header(stamp=types.Time(sec=seconds, nanosec=nanoseconds), frame_id=frame_id)


def scale(status: dict[str, Any] | None) -> float:
    """Return how many pixels of the source one pixel of the grid's resolution is, by the newest `status` event."""
    if status is None or not status["width_px"] or not status["work_width_px"]:
        return 1.0
    return float(status["width_px"] / status["work_width_px"])


def boxes(event: dict[str, Any], scale: float = 1.0) -> list[Box]:
    """Return the regions of a `frame` event that show a part of it, without those of an overview of the whole."""
    rows, cols, relevance = event["rows"], event["cols"], event["relevance"]
    regions = list(struct.iter_unpack("<3h", event["regions"]))
    region_boxes = []
    for shape, row, col in regions[event["overview"] :]:
        down, across = SHAPES[shape]
        top, left = row * down, col * across
        bottom, right = min(top + down, rows), min(left + across, cols)
        values = [value for at in range(top, bottom) for value in relevance[at * cols + left : at * cols + right]]
        side = TILE_PX * scale
        place = ((left + right) / 2 * side, (top + bottom) / 2 * side, (right - left) * side, (bottom - top) * side)
        region_boxes.append((shape, sum(values) / len(values) / 255, *place))
    return region_boxes


def detections(event: dict[str, Any], head: Any, types: Any, scale: float = 1.0) -> Any:
    """Return the vision_msgs/Detection2DArray of a `frame` event: a region's shape is its class."""
    entries = []
    for shape, score, x, y, width, height in boxes(event, scale):
        centre = types.Pose2D(position=types.Point2D(x=x, y=y), theta=0.0)
        guess = types.ObjectHypothesis(class_id=str(shape), score=score)
        entries.append(
            types.Detection2D(
                header=head,
                results=[types.ObjectHypothesisWithPose(hypothesis=guess)],
                bbox=types.BoundingBox2D(center=centre, size_x=width, size_y=height),
            )
        )
    return types.Detection2DArray(header=head, detections=entries)


def located(event: dict[str, Any], head: Any, types: Any) -> Any:
    """Return the vision_msgs/Detection2DArray of a `detections` event: a label is a class, a point has no size."""
    entries = []
    for detection in event["objects"]:
        left, top, right, bottom = detection.get("box") or 2 * detection["point"]
        middle = types.Point2D(x=(left + right) / 2, y=(top + bottom) / 2)
        guess = types.ObjectHypothesis(class_id=detection["label"], score=detection.get("score", 1.0))
        entries.append(
            types.Detection2D(
                header=head,
                results=[types.ObjectHypothesisWithPose(hypothesis=guess)],
                bbox=types.BoundingBox2D(
                    center=types.Pose2D(position=middle, theta=0.0), size_x=right - left, size_y=bottom - top
                ),
            )
        )
    return types.Detection2DArray(header=head, detections=entries)


def relevance(event: dict[str, Any], head: Any, types: Any) -> Any:
    """Return the sensor_msgs/Image of a `frame` event: mono8, one pixel a tile, 255 is 1."""
    return types.Image(
        header=head,
        height=event["rows"],
        width=event["cols"],
        encoding="mono8",
        is_bigendian=0,
        step=event["cols"],
        data=array("B", event["relevance"]),
    )
