"""Heat map: the allocation drawn over frames, as a video (H.264 in MP4, at the frames' times) or the last frame as PNG.

A source that waits is drawn frame by frame. A live source does not wait: a separate thread draws the newest frame
whenever it is idle, and the other frames are counted.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

import av
import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import of_counted
from arr_coc.qwen.grounding import words_for
from stream.clock import clock_text
from stream.errors import OutputError, OutputFailed, SourceNotFound, TransportError
from stream.events import Answer, Cut, Detections, Event, FrameReady, Glance, PictureChanged
from stream.extension import SinkOpening
from stream.extensions.heatmap.section import HeatmapSection
from stream.media import AllocationOverlay, LabelledBox
from stream.protocol.inspection import POSITIVE, InspectionRequest, ReadInspection, TileMap, layers_of, read_inspection
from stream.protocol.pictures import INSPECTION, PictureEndpoints, PictureRequest
from stream.scenes import PacedScene, Scene, open_scene
from stream.sinks.base import Sink
from stream.sinks.detections import placed
from stream.sinks.drawing import draw
from stream.sinks.output_file import OutputFile
from stream.transport import Transport
from stream.untrusted import printable

CLOCK_HZ = 90_000
"""Time base of the video, as in MPEG: it represents every usual frame rate exactly."""

STILL = ".png"
"""Suffix of a picture; any other is a video."""

QUALITY = {"preset": "veryfast", "tune": "zerolatency", "crf": "22", "bf": "0", "g": "48"}
"""No frame waits in the encoder for later ones: if the program is killed, only the newest two are lost. `bf`: no
B-frames, which would shift the video's start from the source's. A key frame at least every `g` frames."""

FRAGMENTS = {"movflags": "hybrid_fragmented+frag_every_frame", "flush_packets": "1"}
"""Playable however the run ends: one fragment per frame while it is written, an ordinary MP4 once it is closed."""

log = logging.getLogger(__name__)


DETECTIONS_DRAWN = 100
"""Boxes of an answer that are drawn; more would hide the picture, and drawing them would take longer than the frame."""


class FramePictures(Protocol):
    """Interface of a run that this sink uses."""

    @property
    def picture_endpoints(self) -> PictureEndpoints: ...

    def take_overlay(self, slot: int) -> AllocationOverlay: ...


class HeatmapSink(Sink):
    """Sink that draws frames with their allocation, the `layers` of `heatmap.layers`, the newest answer with its
    boxes, and the ground-truth boxes of `scene`, the address of a drawn scene.

    Each frame is held until the next one, so that an answer stands under the frame it is about, and a frame with a new
    allocation after a glance is drawn as the model received it. `find_run` returns the run once there are events.
    """

    def __init__(
        self, path: str, find_run: Callable[[], FramePictures], layers: tuple[str, ...] = (), scene: str = ""
    ) -> None:
        self._film = _Film(path, scene)
        self._find_run = find_run
        self._layers = layers
        self._live: _LiveFrames | None = None

    @classmethod
    def open(cls, opening: SinkOpening) -> HeatmapSink:
        """Open the sink of a run."""
        section = HeatmapSection.of(opening.config)
        scene = opening.config.source if section.truth else ""
        return cls(opening.path, opening.monitor.followed_run, section.layers, scene)

    def write(self, event: Event) -> None:
        if isinstance(event, Answer):
            self._film.caption, self._film.detections = printable(words_for(event.text)), ()
        elif isinstance(event, Detections):
            detections = placed(event, 1.0, 1.0)[:DETECTIONS_DRAWN]
            self._film.detections = tuple(LabelledBox(detection.caption, *detection[1:5]) for detection in detections)
        elif isinstance(event, (Cut, PictureChanged)):
            self._film.shot_ends = True
        elif isinstance(event, FrameReady) and event.slot is not None:
            self._film.add(event, self._find_run().take_overlay(event.slot))
        elif isinstance(event, Glance) and event.slot is not None:
            self._film.replace(self._find_run().take_overlay(event.slot))
        elif isinstance(event, FrameReady):
            if self._live is None:
                endpoint = self._find_run().picture_endpoints.heatmap
                if endpoint is None:
                    return
                self._live = _LiveFrames(endpoint, self._film, self._layers)
            self._live.note(event)

    def close(self) -> None:
        live = self._live
        self._live = None
        try:
            if live is not None:
                live.close()
        finally:
            self._film.close()
        if live is not None and self._film.frames < live.frames:
            share = of_counted(self._film.frames, live.frames, "frame")
            log.warning("heat map: %s drawn; the others came while one was being drawn", share)


class _Film:
    """Sequence of drawn frames, and its file. Used by one thread, except for `caption`, `detections`, which end with
    their shot, and `shot_ends`."""

    def __init__(self, path: str, scene: str) -> None:
        self._claim = OutputFile(path)
        self._scene = _scene_of(scene)
        self._frame: tuple[FrameReady, AllocationOverlay] | None = None
        self._video: PictureFile | None = None
        self._last_pts = -1
        self.caption = ""
        self.detections: tuple[LabelledBox, ...] = ()
        self.shot_ends = False
        self.frames = 0

    def add(self, event: FrameReady, overlay: AllocationOverlay) -> None:
        """Add the next frame and draw the one before; the same frame again replaces itself."""
        if self._frame is not None and self._frame[0].frame_index != event.frame_index:
            self._draw_frame()
        if self.shot_ends:
            self.detections = ()
            self.shot_ends = False
        self._frame = event, overlay

    def replace(self, overlay: AllocationOverlay) -> None:
        """Replace the overlay of the newest frame after a new allocation."""
        if self._frame is not None:
            self._frame = self._frame[0], overlay

    def close(self) -> None:
        """Draw the last frame and complete the file."""
        try:
            self._draw_frame()
        finally:
            if self._video is not None:
                self._video.close()
                self._video = None
            self._claim.close()

    def _draw_frame(self) -> None:
        if self._frame is None:
            return
        event, overlay = self._frame
        self._frame = None
        share = of_counted(event.tokens, event.tiles, "token")
        overlay = replace(overlay, boxes=_boxes(self._scene, event.pts_s), detections=self.detections)
        picture = draw(overlay, self.caption, f"{share} · {clock_text(event.pts_s)}")
        if self._video is None:
            self._claim.keep()
            self._video = picture_file(self._claim.path, picture.shape[1], picture.shape[0])
        self._last_pts = max(self._last_pts + 1, round(event.pts_s * CLOCK_HZ))
        self._video.add(picture, self._last_pts)
        self.frames += 1


class _LiveFrames:
    """Thread that requests the next frame whenever it has drawn one. The run never waits for it."""

    def __init__(self, endpoint: str, film: _Film, layers: tuple[str, ...]) -> None:
        self._endpoint = endpoint
        self._film = film
        self._layers = layers
        self._events: OrderedDict[int, FrameReady] = OrderedDict()
        self._condition = threading.Condition()
        self.frames = 0
        self._stop = threading.Event()
        self._error: OutputError | None = None
        self._thread = threading.Thread(target=self._run, name="heat map", daemon=True)
        self._thread.start()

    def note(self, event: FrameReady) -> None:
        """Add a frame's event. Raises OutputError if drawing has failed."""
        if self._error is not None:
            raise self._error
        with self._condition:
            self._events[event.frame_index] = event
            self.frames += 1
            while len(self._events) > 256:  # newest events, kept for pictures that arrive after them
                self._events.popitem(last=False)
            self._condition.notify()

    def close(self) -> None:
        """End the thread. Raises OutputError if drawing has failed."""
        self._stop.set()
        self._thread.join(5.0)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        with closing(Transport()) as transport:
            try:
                with closing(transport.picture_receiver(self._endpoint)) as receiver:
                    request = PictureRequest(inspect=InspectionRequest(maps=bool(self._layers)))
                    receiver.request(request)
                    while not self._stop.is_set():
                        # longest single wait for a picture; after it, the request is repeated
                        message = (receiver.receive(250) or {}).get(INSPECTION)
                        if message is not None:
                            self._draw(read_inspection(message))
                        receiver.request(request)
            except (TransportError, OutputError) as error:
                if isinstance(error, OutputError):
                    self._error = error
                else:
                    self._error = OutputFailed(f"no heat map: {error}")

    def _draw(self, inspection: ReadInspection) -> None:
        index = inspection.head["frame_index"]
        with self._condition:
            # longest wait for the event of a frame whose picture has arrived
            self._condition.wait_for(lambda: index in self._events or self._stop.is_set(), 2.0)
            event = self._events.get(index)
        if event is not None:
            self._film.add(event, _overlay_of(inspection, self._layers))


def _overlay_of(inspection: ReadInspection, names: tuple[str, ...]) -> AllocationOverlay:
    """Return the overlay of an inspection, with the layers of these names."""
    image = cv2.imdecode(np.frombuffer(inspection.pictures[0], np.uint8), cv2.IMREAD_COLOR)
    shape = inspection.head["rows"], inspection.head["cols"]
    relevance = inspection.maps.get("relevance, blended", TileMap("", np.zeros(shape, np.float32), *POSITIVE))
    if inspection.tokens is None:
        overview = inspection.head["overview"]
    else:
        overview = inspection.head["group"]["overview"]
    return AllocationOverlay(
        image=np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8),
        regions=(inspection.regions if inspection.tokens is None else inspection.tokens[:, :3]).astype(np.int64),
        relevance=relevance.values,
        overview=overview,
        layers=layers_of(names, inspection.maps, inspection.head["weights"], shape),
        states=inspection.states,
    )


def _scene_of(source: str) -> Scene | PacedScene | None:
    """Return the drawn scene that a source names, if any."""
    scheme, _, name = source.partition(":")
    try:
        return open_scene(name) if scheme == "scene" else None
    except SourceNotFound:
        return None


def _boxes(scene: Scene | PacedScene | None, at_s: float) -> tuple[LabelledBox, ...]:
    """Return the ground-truth boxes at a time."""
    if scene is None:
        return ()
    facts = scene.facts(max(0, round(at_s * scene.fps)) % scene.frames)
    sides = (facts.width_px, facts.height_px) * 2
    return tuple(
        LabelledBox(label, *(edge / side for edge, side in zip(box, sides, strict=True))) for label, box in facts.labels
    )


class PictureFile(Protocol):
    """File of drawn pictures."""

    def add(self, picture: npt.NDArray[np.uint8], pts: int) -> None:
        """Add a picture, uint8 RGB [height, width, 3], at a time in units of `CLOCK_HZ`, later than the one before.

        Raises OutputFailed.
        """
        ...

    def close(self) -> None:
        """Complete the file. Raises OutputFailed."""
        ...


def picture_file(path: str, width_px: int, height_px: int) -> PictureFile:
    """Return the file at a path, which is overwritten: the last picture if it ends in `STILL`, else a video.

    Raises OutputError if a video cannot be written there.
    """
    if path.lower().endswith(STILL):
        return _Still(path)
    return _Video(path, width_px, height_px)


class _Still:
    """Picture file: the last picture, written at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._picture: npt.NDArray[np.uint8] | None = None

    def add(self, picture: npt.NDArray[np.uint8], pts: int) -> None:
        self._picture = picture

    def close(self) -> None:
        if self._picture is None:
            return
        works, data = cv2.imencode(STILL, cv2.cvtColor(self._picture, cv2.COLOR_RGB2BGR))
        assert works, "every OpenCV writes PNG"
        try:
            with open(self._path, "wb") as file:
                file.write(data.tobytes())
        except OSError as error:
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error


class _Video:
    """H.264 file of one picture size; pictures of another size are fitted into it."""

    def __init__(self, path: str, width_px: int, height_px: int) -> None:
        self._path = path
        try:
            self._container = av.open(path, "w", format="mp4", options=FRAGMENTS)
            self._stream = self._container.add_stream("libx264", options=dict(QUALITY))
        except (av.FFmpegError, ValueError) as error:
            raise OutputError(f"cannot write {path!r}: {error}") from error
        self._stream.width, self._stream.height = width_px, height_px
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, CLOCK_HZ)

    def add(self, picture: npt.NDArray[np.uint8], pts: int) -> None:
        frame = av.VideoFrame.from_ndarray(_fit(picture, self._stream.width, self._stream.height), format="rgb24")
        frame.pts = pts
        frame.time_base = Fraction(1, CLOCK_HZ)
        self._write(frame)

    def close(self) -> None:
        try:
            self._write(None)
        finally:
            with self._failing():
                self._container.close()

    def _write(self, frame: av.VideoFrame | None) -> None:
        with self._failing():
            self._container.mux(self._stream.encode(frame))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except av.FFmpegError as error:
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error


def _fit(picture: npt.NDArray[np.uint8], width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
    """Return the picture at that size, its aspect ratio kept, with black bars."""
    height, width = picture.shape[:2]
    if (width, height) == (width_px, height_px):
        return picture
    scale = min(width_px / width, height_px / height)
    small = cv2.resize(picture, (max(1, round(width * scale)), max(1, round(height * scale))))
    canvas = np.zeros((height_px, width_px, 3), dtype=np.uint8)
    y = (height_px - small.shape[0]) // 2
    x = (width_px - small.shape[1]) // 2
    canvas[y : y + small.shape[0], x : x + small.shape[1]] = small
    return canvas
