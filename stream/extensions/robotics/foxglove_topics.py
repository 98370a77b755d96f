"""Topics of a run for Foxglove: its events as messages that the Foxglove app draws, on one context of its SDK."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from foxglove import Channel, Context, Schema
from foxglove.channels import CompressedImageChannel, ImageAnnotationsChannel, LogChannel, RawImageChannel
from foxglove.messages import (
    CircleAnnotation,
    Color,
    CompressedImage,
    ImageAnnotations,
    Log,
    LogLevel,
    Point2,
    PointsAnnotation,
    PointsAnnotationType,
    RawImage,
    TextAnnotation,
    Timestamp,
)

from arr_coc.qwen.grounding import GROUNDED, words_for
from arr_coc.types import NS_PER_S
from stream.events import (
    Answer,
    AskedPicture,
    Detections,
    Event,
    FrameReady,
    Match,
    Notice,
    Outage,
    QueryChanged,
    Restarted,
    VerdictChanged,
    encode_event,
)
from stream.extensions.robotics.event_schemas import LOGGED, schema_text, topic_of
from stream.extensions.robotics.pictures import EventClock, PictureSequence, RegionBox
from stream.sinks.detections import PlacedDetection, placed
from stream.sinks.drawing import FOUND, OUTLINES
from stream.sinks.output_file import without_timing
from stream.untrusted import printable

OUTLINE_COLOURS = [Color(r=red / 255, g=green / 255, b=blue / 255, a=1.0) for red, green, blue in OUTLINES]
BOX_COLOUR = Color(r=FOUND.line[0] / 255, g=FOUND.line[1] / 255, b=FOUND.line[2] / 255, a=1.0)
TEXT_COLOUR = Color(r=1.0, g=1.0, b=1.0, a=1.0)
TEXT_GROUND = Color(r=0.05, g=0.06, b=0.09, a=0.8)

CAPTION_SHARE = 1 / 24
"""Height of a caption's letters as a share of the picture's height."""

LABEL_SHARE = 1 / 36
"""The same for the label of a box."""

LETTER_PX_MIN = 8.0

LETTER_SHARE = 0.55
"""Width of a letter as a share of its height; a usual mean of sans-serif fonts."""

PICTURE = "/picture"
RELEVANCE = "/relevance"
HEAT_MAP = "/heatmap"
REGIONS = "/regions"
CAPTION = "/caption"
BOXES = "/boxes"
LOG = "/log"


class FoxgloveTopics:
    """Writer of events to `context`, from which its sinks (a file or a server) read the messages.

    Every message has its event's time by `clock`. Without `timing`, nothing that depends on the machine's speed is
    written, as in a .jsonl. `frame_id` names the camera.
    """

    def __init__(self, context: Context, clock: EventClock, frame_id: str, *, timing: bool = True) -> None:
        self._context = context  # its channels close with it
        self._clock = clock
        self._frame_id = frame_id
        self._timing = timing
        self._picture = CompressedImageChannel(PICTURE, context=context)
        self._relevance = RawImageChannel(RELEVANCE, context=context)
        self._heat_map = CompressedImageChannel(HEAT_MAP, context=context)
        self._regions = ImageAnnotationsChannel(REGIONS, context=context)
        self._caption = ImageAnnotationsChannel(CAPTION, context=context)
        self._boxes = ImageAnnotationsChannel(BOXES, context=context)
        self._boxed = False
        self._log = LogChannel(LOG, context=context)
        self._events = {
            kind: Channel(
                topic_of(kind),
                message_encoding="json",
                schema=Schema(name=f"arr_coc.{kind.__name__}", encoding="jsonschema", data=schema_text(kind)),
                context=context,
            )
            for kind in LOGGED
        }
        self._size = (0, 0)
        self._pictures = PictureSequence()

    def write(self, event: Event) -> None:
        """Write the messages of an event."""
        at_ns = self._clock.time_ns(event)
        if isinstance(event, AskedPicture):
            self._show(event, at_ns)
        if isinstance(event, Answer):
            self._caption_answer(words_for(event.text), at_ns)
            if self._boxed and not GROUNDED.search(event.text):
                self._boxed = False
                self._boxes.log(ImageAnnotations(timestamp=_stamp(at_ns)), log_time=at_ns)
        if isinstance(event, Detections) and all(self._size):
            self._boxed = True
            self._boxes.log(_annotations(placed(event, *self._size), self._size[1], _stamp(at_ns)), log_time=at_ns)
        for level, name, text in _log_lines(event):
            message = Log(timestamp=_stamp(at_ns), level=level, message=printable(text), name=name)
            self._log.log(message, log_time=at_ns)
        channel = self._events.get(type(event))
        if channel is not None and (self._timing or not isinstance(event, FrameReady)):
            record = encode_event(event if self._timing else without_timing(event))
            channel.log(record.encode(), log_time=at_ns)

    def _show(self, event: AskedPicture, at_ns: int) -> None:
        """Write a frame's picture and its map, if they are new."""
        update = self._pictures.take(event)
        if update is None:
            return
        stamp, (picture, new) = _stamp(at_ns), update
        self._size = picture.size
        if new:
            image = CompressedImage(timestamp=stamp, frame_id=self._frame_id, data=event.jpeg, format="jpeg")
            self._picture.log(image, log_time=at_ns)
        rows, cols = picture.relevance.shape
        grid = RawImage(
            timestamp=stamp,
            frame_id=self._frame_id,
            width=cols,
            height=rows,
            encoding="mono8",
            step=cols,
            data=picture.relevance.tobytes(),
        )
        self._relevance.log(grid, log_time=at_ns)
        heat = CompressedImage(timestamp=stamp, frame_id=self._frame_id, data=picture.heat_map(), format="jpeg")
        self._heat_map.log(heat, log_time=at_ns)
        outlines = [_loop(box, OUTLINE_COLOURS[box.level], 1.0, stamp) for box in picture.boxes()]
        self._regions.log(ImageAnnotations(timestamp=stamp, points=outlines), log_time=at_ns)

    def _caption_answer(self, text: str, at_ns: int) -> None:
        """Write an answer's text over the picture of its frame."""
        width, height = self._size
        if not height:
            return
        letter = max(LETTER_PX_MIN, height * CAPTION_SHARE)
        stamp = _stamp(at_ns)
        chars = max(8, int((width - letter) / (letter * LETTER_SHARE)))
        lines = textwrap.wrap(printable(text), chars, max_lines=4, placeholder="…")
        texts = [
            TextAnnotation(
                timestamp=stamp,
                position=Point2(x=letter / 2, y=height - letter * (0.5 + 1.3 * (len(lines) - 1 - at))),
                text=line,
                font_size=letter,
                text_color=TEXT_COLOUR,
                background_color=TEXT_GROUND,
            )
            for at, line in enumerate(lines)
        ]
        self._caption.log(ImageAnnotations(timestamp=stamp, texts=texts), log_time=at_ns)


def _stamp(at_ns: int) -> Timestamp:
    return Timestamp(sec=at_ns // NS_PER_S, nsec=at_ns % NS_PER_S)


def _annotations(things: Sequence[PlacedDetection], height: int, stamp: Timestamp) -> ImageAnnotations:
    """Return the boxes, points and labels of detections over a picture of this height, in its pixels."""
    letter = max(LETTER_PX_MIN, height * LABEL_SHARE)
    return ImageAnnotations(
        timestamp=stamp,
        points=[_loop(thing, BOX_COLOUR, 2.0, stamp) for thing in things if not thing.is_point],
        circles=[
            CircleAnnotation(
                timestamp=stamp,
                position=Point2(x=thing.left, y=thing.top),
                diameter=letter / 2,
                thickness=1.0,
                fill_color=BOX_COLOUR,
                outline_color=TEXT_GROUND,
            )
            for thing in things
            if thing.is_point
        ],
        texts=[
            TextAnnotation(
                timestamp=stamp,
                position=Point2(x=thing.left, y=thing.top if thing.top > 1.5 * letter else thing.bottom + 1.3 * letter),
                text=thing.caption,
                font_size=letter,
                text_color=BOX_COLOUR,
                background_color=TEXT_GROUND,
            )
            for thing in things
            if thing.caption
        ],
    )


def _loop(box: RegionBox | PlacedDetection, colour: Color, thickness: float, stamp: Timestamp) -> PointsAnnotation:
    corners = ((box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom))
    return PointsAnnotation(
        timestamp=stamp,
        type=PointsAnnotationType.LineLoop,
        points=[Point2(x=x, y=y) for x, y in corners],
        outline_color=colour,
        thickness=thickness,
    )


def _log_lines(event: Event) -> Iterator[tuple[LogLevel, str, str]]:
    """Yield level, name and text of an event's log messages."""
    if isinstance(event, Answer):
        yield LogLevel.Info, "answer", event.text
    elif isinstance(event, VerdictChanged):
        yield LogLevel.Info, event.watch, f"{event.question} {event.to}"
    elif isinstance(event, Match):
        yield LogLevel.Info, event.watch, f"match {event.match}: {event.question}"
    elif isinstance(event, QueryChanged):
        if event.error is None:
            refused = ""
        else:
            refused = f" (refused: {event.error})"
        yield LogLevel.Info, "question", f"{event.query}{refused}"
    elif isinstance(event, Notice):
        yield (LogLevel.Info if event.code == "loading" else LogLevel.Warning), "notice", event.message
    elif isinstance(event, Outage):
        back = event.lasted_s is not None
        yield (LogLevel.Info, "source", "the source is back") if back else (LogLevel.Warning, "source", event.reason)
    elif isinstance(event, Restarted):
        yield LogLevel.Warning, "restart", f"{event.process}: {event.cause}"
