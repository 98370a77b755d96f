"""Robotics tools: recordings as MCAP files and ROS 2 bags, and a live connection for Foxglove."""

from stream.extension import Extension, SinkType
from stream.options.extra import Extra

FOXGLOVE = Extra("foxglove", "foxglove", ".mcap and no --foxglove", ("foxglove-sdk",), ("foxglove",))
ROS2 = Extra("ros2", "ros2 bags", ".rosbag", ("rosbags",))

MCAP_SUFFIX = ".mcap"

EXTENSION = Extension(
    name="robotics",
    section="stream.extensions.robotics.section:RoboticsSection",
    sinks=(
        SinkType(
            help="recording for Foxglove and ROS 2 (docs/ros2.md)",
            suffixes=(MCAP_SUFFIX,),
            extra=FOXGLOVE,
            pictures="every",
            open="stream.extensions.robotics.mcap_file:McapSink.open",
        ),
        SinkType(
            help="ROS 2 bag (docs/ros2.md)",
            suffixes=(".rosbag",),
            form="new folder",
            extra=ROS2,
            pictures="every",
            check="stream.extensions.robotics.bag_folder:check",
            open="stream.extensions.robotics.rosbag:RosbagSink.open",
        ),
        SinkType(
            key="robotics.foxglove",
            place="address",
            option="--foxglove",
            extra=FOXGLOVE,
            pictures="every",
            check="stream.extensions.robotics.address:foxglove_address",
            open="stream.extensions.robotics.foxglove_server:FoxgloveSink.open",
        ),
    ),
)
