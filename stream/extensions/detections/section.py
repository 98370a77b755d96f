"""Section `[detections]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option


class DetectionsSection(ExtensionSection):
    """Boxes of a detector (docs/boxes.md)."""

    section: ClassVar[str] = "detections"
    switch: ClassVar[str] = "address"
    changes_answers: ClassVar[bool] = True

    address: Annotated[
        str | None,
        Option(
            "--detections ADDRESS",
            "Detector whose boxes draw tokens: zmq+tcp://HOST:PORT. [off]",
            without="fleet demo bench",
            group="Tokens",
        ),
    ] = Field(default=None, pattern=r"^zmq\+(tcp|ipc)://.+", examples=['"zmq+tcp://127.0.0.1:5559"'])
    """Address of a program that publishes detections over ZeroMQ: their boxes raise the relevance of tiles, and a new
    thing counts as change (docs/boxes.md). For sources in real time."""
    hold_s: float = Field(default=2.0, gt=0, le=3600)
    """Time for which a box counts, in seconds from the capture of its picture."""
