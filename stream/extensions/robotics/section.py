"""Section `[robotics]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection
from stream.options.option import Option


class RoboticsSection(ExtensionSection):
    """Foxglove, MCAP files and ROS 2 bags (docs/ros2.md)."""

    section: ClassVar[str] = "robotics"

    def for_camera(self, name: str) -> Self:
        """Return the section with a frame that is named after the camera, unless another one is configured."""
        if "frame_id" in self.model_fields_set:
            return self
        return self.model_copy(update={"frame_id": name})

    foxglove: Annotated[
        str | None,
        Option("--foxglove [HOST:]PORT", "Let the Foxglove app connect, on this machine. [off]", without="demo"),
    ] = Field(default=None, min_length=1, examples=['"127.0.0.1:8765"'])
    """"[HOST:]PORT" at which the Foxglove app connects to the run, on this machine unless HOST says otherwise; then
    `network.plain_tcp` must admit every program. docs/ros2.md lists the topics."""
    log_time: Literal["media", "unix"] = "media"
    """Times in .mcap, .rosbag and Foxglove: media time, or Unix time, to be shown beside other recordings."""
    frame_id: str = Field(default="camera", max_length=256)
    """Name of the camera's coordinate frame in .mcap, .rosbag and Foxglove."""
