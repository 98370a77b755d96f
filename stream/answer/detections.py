"""Detections: the events of an answer that locates things in its frame."""

from __future__ import annotations

from arr_coc.qwen.grounding import GROUNDED, THINGS_MAX, LocatedThing, located_things
from arr_coc.types import TileGrid
from stream.answer.filters import AnswerFilter, FinishedAnswer
from stream.events import Answer, Detection, Detections, Event, NoticesOnce
from stream.protocol.messages import AnswerReply

BOXES_CUT = "boxes-cut"
BOXES_NOWHERE = "boxes-nowhere"
"""Codes of the notices that an answer has too many places, and that places cannot be related to the frame."""

NOWHERE = (
    "the answer has boxes or points, and the model was not shown the whole frame alone, so they cannot be placed; "
    "give api.picture = scaled"
)


class DetectionReader(AnswerFilter):
    """Reader of the places in answers; each notice comes once.

    `source_px`: width and height of the source's picture if frames are scaled; None to place things in pixels of the
    frame.
    """

    def __init__(self, source_px: tuple[int, int] | None) -> None:
        self._source_px = source_px
        self._notices = NoticesOnce()

    def on_answer(self, answer: FinishedAnswer) -> None:
        """Add the detections of an answer that has places."""
        if isinstance(answer.event, Answer) and GROUNDED.search(answer.reply.text):
            answer.events += self._read(answer.event, answer.reply, answer.packet.grid)

    def _read(self, answer: Answer, reply: AnswerReply, grid: TileGrid) -> list[Event]:
        """Return the detections of an answer about a frame of this grid, and notices."""
        if reply.extent is None:
            return [*self._notices.take(BOXES_NOWHERE, NOWHERE)]
        grounding = located_things(reply.text, reply.extent)
        size = self._source_px or (grid.width_px, grid.height_px)
        event = Detections(
            frame_index=answer.frame_index,
            pts_s=answer.pts_s,
            answer=answer.answer,
            width_px=size[0],
            height_px=size[1],
            objects=[_detection(thing, size) for thing in grounding.things],
        )
        notices = []
        if grounding.cut:
            text = f"an answer has more than {THINGS_MAX} boxes and points, or is too long; the others are left out"
            notices = self._notices.take(BOXES_CUT, text)
        return [event, *notices]


def _detection(thing: LocatedThing, size: tuple[int, int]) -> Detection:
    """Return a thing in pixels of a picture of `size` (width, height)."""
    if thing.box is None:
        box = None
    else:
        box = _in_pixels(thing.box, (*size, *size))
    if thing.point is None:
        point = None
    else:
        point = _in_pixels(thing.point, size)
    return Detection(label=thing.label, box=box, point=point, score=thing.score)


def _in_pixels(shares: tuple[float, ...], sides: tuple[int, ...]) -> list[float]:
    """Return shares of sides in pixels, to a hundredth: models locate things no more exactly than to a pixel."""
    return [round(share * side, 2) for share, side in zip(shares, sides, strict=True)]
