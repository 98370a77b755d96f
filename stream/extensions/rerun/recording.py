"""A run's events as a Rerun recording: pictures, regions, relevance, text and figures, on two timelines.

| entity | holds |
| --- | --- |
| `frame` | the frame of an answer, as JPEG |
| `frame/tokens` | its regions as boxes; the class is their size |
| `frame/boxes`, `frame/points` | places that its answer names |
| `relevance` | its relevance, a value for each tile |
| `answer` | question and newest answer |
| `text` | answers, notices, cuts, outages, one line each |
| `figures/…` | figures of all frames, and of answers |

The timelines are `media`, the source's time, and `frame`, the number of the frame.
"""

from __future__ import annotations

import io
from collections import deque

import numpy as np
from PIL import Image

from arr_coc.texture.regions import tile_boxes
from arr_coc.types import NS_PER_MS, NS_PER_S, REGION_SHAPES, TILE_PX
from stream.events import (
    Answer,
    AnswerDeltaEvent,
    AskedPicture,
    Cut,
    Detections,
    Event,
    FrameReady,
    Match,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Restarted,
    Skipped,
    Started,
    Summary,
    VerdictChanged,
    YesNoResult,
)
from stream.extensions.rerun.library import rr, rrb
from stream.monitor.metrics import frames_per_second
from stream.sinks.detections import placed
from stream.sinks.drawing import FOUND
from stream.untrusted import printable

APPLICATION = "arr-coc-stream"

COLOURS = ((255, 226, 92), (150, 190, 255), (120, 220, 160), (240, 150, 110), (200, 140, 230), (150, 150, 150))
"""RGB of boxes, by the level of a region's longer side."""


def blueprint() -> rrb.Blueprint:
    """Return the initial layout of a recording in the viewer."""
    return rrb.Blueprint(
        rrb.Horizontal(
            rrb.Vertical(
                rrb.Spatial2DView(origin="frame", name="Frame and tokens"),
                rrb.Spatial2DView(origin="relevance", name="Relevance"),
                row_shares=[3, 2],
            ),
            rrb.Vertical(
                rrb.TextDocumentView(origin="answer", name="Answer"),
                rrb.TimeSeriesView(origin="figures/latency_ms", name="Latency, ms"),
                rrb.TimeSeriesView(origin="figures/tokens", name="Tokens"),
                rrb.TimeSeriesView(origin="figures/fps", name="Frames per second"),
                rrb.TextLogView(origin="text", name="Text"),
                row_shares=[2, 2, 1, 1, 2],
            ),
            column_shares=[3, 2],
        ),
        collapse_panels=True,
    )


class RunRecording:
    """Logger of a run's events to `stream`, after its layout and classes. Not thread-safe."""

    def __init__(self, stream: rr.RecordingStream, name: str) -> None:
        self._stream = stream
        self._frame_index = 0
        self._pts_s = 0.0
        self._waiting: list[FrameReady] = []
        self._ready_ns: deque[int] = deque()
        self._query = ""
        self._picture_key: tuple[int, bytes] | None = None
        self._size: tuple[int, int] | None = None
        self._boxed = False
        stream.set_log_tick_enabled(False)
        stream.send_recording_name(name)
        classes = [
            rr.AnnotationInfo(code, label=f"{TILE_PX << cols}×{TILE_PX << rows} px", color=COLOURS[max(rows, cols)])
            for code, (rows, cols) in enumerate(REGION_SHAPES)
        ]
        stream.log("frame/tokens", rr.AnnotationContext(classes), static=True)

    def write(self, event: Event) -> None:
        """Log an event. Events without a time are logged at the newest frame's time."""
        if isinstance(event, FrameReady):
            self._frame_index = event.frame_index
            self._pts_s = event.pts_s
            self._waiting.append(event)
            if len(self._waiting) >= 64:  # figures are sent in batches of 64 frames, and with each answer
                self.send_figures()
        if isinstance(event, (FrameReady, AnswerDeltaEvent)):
            return
        self._stream.set_time("media", duration=getattr(event, "pts_s", self._pts_s))
        self._stream.set_time("frame", sequence=getattr(event, "frame_index", self._frame_index))
        if isinstance(event, AskedPicture):
            self._log_picture(event)
        elif isinstance(event, Answer):
            text = printable(event.text)
            self._clear_detections()
            self._query = event.query
            self._log_document(text)
            self._stream.log("text", rr.TextLog(text, level="INFO"))
            self._stream.log("figures/answer/tokens", rr.Scalars(event.tokens_used))
            if event.timing is not None:
                self._stream.log("figures/latency_ms/first_text", rr.Scalars(event.timing.ttft_ms))
                self._stream.log("figures/latency_ms/answer", rr.Scalars(event.timing.total_ms))
        elif isinstance(event, Detections):
            self._log_detections(event)
        elif isinstance(event, YesNoResult):
            self._stream.log(f"figures/yes/{event.watch}", rr.Scalars(event.yes))
        elif (line := _line_of(event)) is not None:
            level, text = line
            self._stream.log("text", rr.TextLog(printable(text), level=level))
        if isinstance(event, Started) or (isinstance(event, QueryChanged) and event.error is None):
            self._query = event.query
            self._log_document("")
        if isinstance(event, (Answer, Outage, Summary)):
            self.send_figures()

    def send_figures(self) -> None:
        """Send the waiting figures."""
        frames = self._waiting
        self._waiting = []
        if not frames:
            return
        figures = {
            "figures/latency_ms/frame": [(frame.ready_ns - frame.capture_ns) / NS_PER_MS for frame in frames],
            "figures/tokens": [frame.tokens for frame in frames],
            "figures/fps": [self._rate(frame.ready_ns) for frame in frames],
        }
        indexes = [
            rr.TimeColumn("media", duration=[frame.pts_s for frame in frames]),
            rr.TimeColumn("frame", sequence=[frame.frame_index for frame in frames]),
        ]
        for entity, values in figures.items():
            self._stream.send_columns(entity, indexes, rr.Scalars.columns(scalars=values))

    def _rate(self, ready_ns: int) -> float:
        """Return the frame rate of the last two seconds; 0 for a single frame."""
        self._ready_ns.append(ready_ns)
        # the same window as in `stats`
        while self._ready_ns[0] < ready_ns - 2 * NS_PER_S:
            self._ready_ns.popleft()
        return frames_per_second(np.array(self._ready_ns, np.int64)) or 0.0

    def _log_picture(self, picture: AskedPicture) -> None:
        """Log a picture with its map, once: the same frame may be used for an answer and a look."""
        key = picture.frame_index, picture.map.regions if picture.map is not None else b""
        if key == self._picture_key:
            return
        self._picture_key = key
        self._stream.log("frame", rr.EncodedImage(contents=picture.jpeg, media_type="image/jpeg"))
        frame_map = picture.map
        if frame_map is None:
            return
        regions = np.frombuffer(frame_map.regions, "<i2").reshape(-1, 3).astype(np.int64)
        boxes = tile_boxes(regions, (frame_map.rows, frame_map.cols))[:, [1, 0, 3, 2]] * (TILE_PX >> picture.level)
        with Image.open(io.BytesIO(picture.jpeg)) as image:
            self._size = image.size
            boxes = np.minimum(boxes, [*image.size, *image.size])
        self._stream.log(
            "frame/tokens",
            rr.Boxes2D(array=boxes, array_format=rr.Box2DFormat.XYXY, class_ids=regions[:, 0], show_labels=False),
        )
        relevance = np.frombuffer(frame_map.relevance, np.uint8).reshape(frame_map.rows, frame_map.cols)
        heat = rr.DepthImage(relevance / np.float32(255), meter=1.0, depth_range=(0.0, 1.0), colormap="inferno")
        self._stream.log("relevance", heat)

    def _log_detections(self, event: Detections) -> None:
        """Log the places that an answer names, in pixels of the picture of its frame."""
        if self._size is None:
            return
        self._clear_detections()
        detections = placed(event, *self._size)
        boxes = [detection for detection in detections if not detection.is_point]
        points = [detection for detection in detections if detection.is_point]
        if boxes:
            edges = [detection[1:5] for detection in boxes]
            names = [detection.caption for detection in boxes]
            archetype = rr.Boxes2D(array=edges, array_format=rr.Box2DFormat.XYXY, labels=names, colors=FOUND.line)
            self._stream.log("frame/boxes", archetype)
        if points:
            places = [detection[1:3] for detection in points]
            names = [detection.caption for detection in points]
            self._stream.log("frame/points", rr.Points2D(places, labels=names, colors=FOUND.line, radii=3.0))
        self._boxed = bool(detections)

    def _clear_detections(self) -> None:
        """Clear the places of the answer before."""
        if self._boxed:
            self._boxed = False
            for entity in ("frame/boxes", "frame/points"):
                self._stream.log(entity, rr.Clear(recursive=False))

    def _log_document(self, text: str) -> None:
        document = f"{printable(self._query)}\n\n{text}".rstrip()
        self._stream.log("answer", rr.TextDocument(document, media_type="text/plain"))


def _line_of(event: Event) -> tuple[str, str] | None:
    """Return level and text of an event's line, or None."""
    if isinstance(event, Started):
        return "INFO", f"{event.model} · {event.source}"
    if isinstance(event, Notice):
        return "WARN", event.message
    if isinstance(event, Cut):
        return "INFO", f"cut ({event.score:.2f})"
    if isinstance(event, PictureChanged):
        return "INFO", f"the picture changed its {event.reason}: {event.width_px}×{event.height_px}"
    if isinstance(event, Skipped):
        return "WARN", f"skipped: {event.what}, {event.reason}"
    if isinstance(event, Outage):
        if event.lasted_s is None:
            back = ""
        else:
            back = f", back after {event.lasted_s:.1f} s"
        return "WARN", f"source lost: {event.reason}{back}"
    if isinstance(event, Restarted):
        return "WARN", f"{event.process} restarted: {event.cause}"
    if isinstance(event, QueryChanged):
        if event.error is None:
            return ("INFO", f"question: {event.query}")
        return ("WARN", event.error)
    if isinstance(event, VerdictChanged):
        return "INFO", f"{event.question} {event.to}"
    if isinstance(event, Match):
        return "INFO", f"match {event.match}: {event.watch}"
    if isinstance(event, Summary):
        return "INFO", f"end: {event.error or event.ended}"
    return None
