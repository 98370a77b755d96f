"""Node that publishes what a run says, and passes questions on to it.

ros2 run arr_coc_stream_ros node --ros-args -p events:=tcp://127.0.0.1:5556 -p frame_id:=front_camera
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import rclpy
import zmq
from builtin_interfaces.msg import Time
from rclpy.node import Node
from sensor_msgs.msg import Image
from std_msgs.msg import Header, String
from vision_msgs.msg import (
    BoundingBox2D,
    Detection2D,
    Detection2DArray,
    ObjectHypothesis,
    ObjectHypothesisWithPose,
    Point2D,
    Pose2D,
)

from arr_coc_stream_ros import messages

TYPES = SimpleNamespace(
    BoundingBox2D=BoundingBox2D,
    Detection2D=Detection2D,
    Detection2DArray=Detection2DArray,
    Header=Header,
    Image=Image,
    ObjectHypothesis=ObjectHypothesis,
    ObjectHypothesisWithPose=ObjectHypothesisWithPose,
    Point2D=Point2D,
    Pose2D=Pose2D,
    Time=Time,
)

REPLY_MS = 1000

FRAMES_KEPT = 1000
"""Frames whose capture times are kept: half a minute, in which an answer about one of them comes."""


class ArrCocNode(Node):
    """Publishes /answer, /detections, /regions and /relevance, and takes /question."""

    def __init__(self) -> None:
        super().__init__("arr_coc_stream")
        self.frame_id = self.declare_parameter("frame_id", "camera").value
        self.control = self.declare_parameter("control", "tcp://127.0.0.1:5557").value
        self.answers = self.create_publisher(String, "answer", 5)
        self.detections = self.create_publisher(Detection2DArray, "detections", 5)
        self.regions = self.create_publisher(Detection2DArray, "regions", 5)
        self.relevance = self.create_publisher(Image, "relevance", 5)
        self.create_subscription(String, "question", self.ask, 5)
        self.status: dict[str, Any] | None = None
        self.captured: dict[int, dict[str, Any]] = {}
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.rcvhwm = 8  # newer messages are worth more than old ones
        for topic in ("answer", "detections", "frame", "status"):
            self.events.subscribe(topic)
        self.events.connect(self.declare_parameter("events", "tcp://127.0.0.1:5556").value)
        self.create_timer(0.005, self.receive)

    def receive(self) -> None:
        """Publish all that has come."""
        while self.events.poll(0):
            topic, body = self.events.recv_multipart()
            event = msgspec.msgpack.decode(body)
            if topic == b"answer":
                self.answers.publish(String(data=event["text"]))
            elif topic == b"status":
                self.status = event
            elif topic == b"detections" and event["frame_index"] in self.captured:
                head = messages.header(self.captured[event["frame_index"]], self.frame_id, TYPES)
                self.detections.publish(messages.located(event, head, TYPES))
            elif topic == b"frame":
                self.publish_frame(event)

    def publish_frame(self, event: dict[str, Any]) -> None:
        """Publish the map of a frame, if it has one, and keep its time for an answer about it."""
        self.captured[event["frame_index"]] = {"capture_unix_ns": event["capture_unix_ns"]}
        while len(self.captured) > FRAMES_KEPT:
            del self.captured[next(iter(self.captured))]
        if event["relevance"] is not None:
            head = messages.header(event, self.frame_id, TYPES)
            self.regions.publish(messages.detections(event, head, TYPES, messages.scale(self.status)))
            self.relevance.publish(messages.relevance(event, head, TYPES))

    def ask(self, question: String) -> None:
        """Let the run answer another question from now on."""
        with self.context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(self.control)
            socket.send(msgspec.json.encode({"v": 1, "ask": question.data}))
            reply = msgspec.json.decode(socket.recv()) if socket.poll(REPLY_MS) else {"error": "no reply"}
        if not reply.get("ok"):
            self.get_logger().warning(f"the question was not taken: {reply.get('error')}")

    def destroy_node(self) -> None:
        """Let go of the sockets as well."""
        self.context.destroy(linger=0)
        super().destroy_node()


def main() -> None:
    """Run the node until it is interrupted."""
    rclpy.init()
    node = ArrCocNode()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
