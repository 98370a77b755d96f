"""Detections in a picture of another size, with their labels for people."""

from __future__ import annotations

from typing import NamedTuple

from stream.events import Detection, Detections
from stream.untrusted import cut_to, printable

LABEL_CHARS_SHOWN = 40
"""Length to which a label over a picture is cut."""


class PlacedDetection(NamedTuple):
    """Detection in a picture: its edges in pixels, and its label as one printable line. A point has no width and no
    height."""

    label: str
    left: float
    top: float
    right: float
    bottom: float
    score: float | None

    @property
    def is_point(self) -> bool:
        """True if only a point is known."""
        return self.left == self.right and self.top == self.bottom

    @property
    def caption(self) -> str:
        """Label over a picture: short, with the score if there is one."""
        label = cut_to(self.label, LABEL_CHARS_SHOWN)
        if self.score is None:
            return label
        return f"{label} {self.score:.2f}".strip()


def placed(event: Detections, width: float, height: float) -> list[PlacedDetection]:
    """Return the detections in a picture of this size, which shows the whole frame. A box goes before a point."""
    scale = width / event.width_px, height / event.height_px
    return [_place(thing, scale) for thing in event.objects]


def _place(thing: Detection, scale: tuple[float, float]) -> PlacedDetection:
    left, top, right, bottom = thing.box if thing.box is not None else [*(thing.point or (0.0, 0.0))] * 2
    edges = left * scale[0], top * scale[1], right * scale[0], bottom * scale[1]
    return PlacedDetection(printable(thing.label), *edges, thing.score)
