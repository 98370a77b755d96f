"""ROS 2 messages of a run as CDR, without ROS: pictures, answers, their boxes, regions and relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from arr_coc.types import NS_PER_S
from stream.extensions.robotics.pictures import RegionBox
from stream.sinks.detections import PlacedDetection

PICTURE = "sensor_msgs/msg/CompressedImage"
TEXT = "std_msgs/msg/String"
DETECTIONS = "vision_msgs/msg/Detection2DArray"
GRID = "sensor_msgs/msg/Image"

VISION_MSGS = {
    "Point2D": "float64 x\nfloat64 y",
    "Pose2D": "vision_msgs/Point2D position\nfloat64 theta",
    "BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "ObjectHypothesis": "string class_id\nfloat64 score",
    "ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose",
    "Detection2D": (
        "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nstring id"
    ),
    "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections",
}
"""Messages of vision_msgs 4 in use: their fields as in a .msg file."""


class RosMessages:
    """Builder of messages of the camera `frame_id`, with the times of their pictures in the headers."""

    def __init__(self, frame_id: str) -> None:
        self.store = get_typestore(Stores.ROS2_HUMBLE)
        types: dict[str, Any] = {}
        for name, fields in VISION_MSGS.items():
            types.update(get_types_from_msg(fields, f"vision_msgs/msg/{name}"))
        self.store.register(types)
        self._frame_id = frame_id
        point = self._new("geometry_msgs/msg/Point", x=0.0, y=0.0, z=0.0)
        turn = self._new("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
        pose = self._new("geometry_msgs/msg/Pose", position=point, orientation=turn)
        self._unknown_pose = self._new("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=np.zeros(36))

    def picture(self, jpeg: bytes, at_ns: int) -> bytes:
        """Return a sensor_msgs/CompressedImage."""
        message = self._new(PICTURE, header=self._header(at_ns), format="jpeg", data=np.frombuffer(jpeg, np.uint8))
        return self._serialize(message, PICTURE)

    def text(self, text: str) -> bytes:
        """Return a std_msgs/String."""
        return self._serialize(self._new(TEXT, data=text), TEXT)

    def grid(self, relevance: npt.NDArray[np.uint8], at_ns: int) -> bytes:
        """Return a sensor_msgs/Image, mono8, of a map uint8 [rows, cols]: one pixel per tile."""
        rows, cols = relevance.shape
        message = self._new(
            GRID,
            header=self._header(at_ns),
            height=rows,
            width=cols,
            encoding="mono8",
            is_bigendian=0,
            step=cols,
            data=relevance.reshape(-1),
        )
        return self._serialize(message, GRID)

    def detections(self, boxes: Sequence[RegionBox], at_ns: int) -> bytes:
        """Return a vision_msgs/Detection2DArray: a region's shape is its class, its mean relevance its score."""
        header = self._header(at_ns)
        detections = [self._box(box, str(box.shape), box.relevance, header) for box in boxes]
        return self._serialize(self._new(DETECTIONS, header=header, detections=detections), DETECTIONS)

    def things(self, things: Sequence[PlacedDetection], at_ns: int) -> bytes:
        """Return a vision_msgs/Detection2DArray: a label is a class, a point a box without an area, and the score of a
        thing without one is 1."""
        header = self._header(at_ns)
        detections = [
            self._box(thing, thing.label, 1.0 if thing.score is None else thing.score, header) for thing in things
        ]
        return self._serialize(self._new(DETECTIONS, header=header, detections=detections), DETECTIONS)

    def _box(self, box: RegionBox | PlacedDetection, name: str, score: float, header: Any) -> Any:
        middle = self._new("vision_msgs/msg/Point2D", x=(box.left + box.right) / 2, y=(box.top + box.bottom) / 2)
        centre = self._new("vision_msgs/msg/Pose2D", position=middle, theta=0.0)
        bounds = self._new(
            "vision_msgs/msg/BoundingBox2D", center=centre, size_x=box.right - box.left, size_y=box.bottom - box.top
        )
        guess = self._new("vision_msgs/msg/ObjectHypothesis", class_id=name, score=score)
        result = self._new("vision_msgs/msg/ObjectHypothesisWithPose", hypothesis=guess, pose=self._unknown_pose)
        return self._new("vision_msgs/msg/Detection2D", header=header, results=[result], bbox=bounds, id="")

    def _header(self, at_ns: int) -> Any:
        stamp = self._new("builtin_interfaces/msg/Time", sec=at_ns // NS_PER_S, nanosec=at_ns % NS_PER_S)
        return self._new("std_msgs/msg/Header", stamp=stamp, frame_id=self._frame_id)

    def _new(self, name: str, **fields: Any) -> Any:
        return self.store.types[name](**fields)

    def _serialize(self, message: Any, name: str) -> bytes:
        return bytes(self.store.serialize_cdr(message, name))
