"""Detections of another program, over ZeroMQ: their boxes draw tokens, and a new thing counts as change."""

from stream.extension import Extension

EXTENSION = Extension(
    name="detections",
    section="stream.extensions.detections.section:DetectionsSection",
    boxes="stream.extensions.detections.feed:address_of",
)
