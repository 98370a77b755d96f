"""Latency target: the times of answers set the budget of the frames that follow."""

from stream.extension import Extension

EXTENSION = Extension(
    name="latency",
    section="stream.extensions.latency.section:LatencySection",
    budget="stream.extensions.latency.budget:LatencyController.of",
    notices="stream.extensions.latency.budget:notices",
)
