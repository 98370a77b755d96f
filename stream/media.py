"""Value types of input: source information, frames, skipped items, outages, and the source protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePlanes
from stream.untrusted import replace_surrogates


@dataclass(frozen=True, slots=True)
class LabelledBox:
    """Box of a thing in a picture, in parts of the picture's width and height; one without an area is a point."""

    label: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class MapLayer:
    """A map beside an allocation: `values` float32 [rows, cols], 0 or more; `weight` of a score in the balance, None
    for others."""

    name: str
    values: npt.NDArray[np.float32]
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class AllocationOverlay:
    """One frame and its allocation.

    `image` uint8 RGB [H, W, 3], without padding; `regions` int [K, 3] (shape, row, col) on the tile grid, of which
    `overview` from `overview_begin` on are an overview of the whole frame; `relevance` float [rows, cols] in [0, 1].
    `layers` are shown below it; `boxes`, of things that are really there, and `detections`, of an answer, over it. With
    a visual memory `regions` are all that it holds, and `states` has the state of each.
    """

    image: npt.NDArray[np.uint8]
    regions: npt.NDArray[np.integer]
    relevance: npt.NDArray[np.floating]
    overview: int = 0
    layers: tuple[MapLayer, ...] = ()
    boxes: tuple[LabelledBox, ...] = ()
    detections: tuple[LabelledBox, ...] = ()
    states: tuple[str, ...] | None = None
    overview_begin: int = 0

    @property
    def is_overview(self) -> npt.NDArray[np.bool_]:
        """Mask of the regions of the overview, bool [K]."""
        numbers = np.arange(len(self.regions)) - self.overview_begin
        return (numbers >= 0) & (numbers < self.overview)


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something of the source that could not be used.

    `what` names it ("packet 31", 1-based in file order; "packets 31-45"), `reason` is FFmpeg's error text, `media_ns`
    the media time at which it would have been shown, if known, `count` how many of them in a row.
    """

    what: str
    reason: str
    media_ns: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        # both may hold the name of a file
        object.__setattr__(self, "what", replace_surrogates(self.what))
        object.__setattr__(self, "reason", replace_surrogates(self.reason))


@dataclass(frozen=True, slots=True)
class MediaSegment:
    """A segment of the source's video as fragmented MP4: a file, or bytes in memory.

    `file` and `header` (initialization section) are names in the folder of the segments. A segment in memory has none:
    its bytes lie in `slot` of the run's table of fragments, and `key` is True if it begins with a key frame, as a file
    does. Times are in nanoseconds: `start_ns` is the media time of its first frame, `track_ns` the
    presentation time of that frame in the track, which restarts with every header. `codec` is named as in RFC 6381.
    `error`: why nothing more can be written; the other fields then mean nothing.
    """

    file: str = ""
    header: str = ""
    start_ns: int = 0
    duration_ns: int = 0
    track_ns: int = 0
    size_bytes: int = 0
    codec: str = ""
    width_px: int = 0
    height_px: int = 0
    error: str | None = None
    slot: int | None = None
    key: bool = True


@dataclass(frozen=True, slots=True)
class FragmentBytes:
    """Bytes of a segment in memory: its `data`, and `init`, its initialization section."""

    data: bytes
    init: bytes

    def __len__(self) -> int:
        return len(self.data) + len(self.init)


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One decoded frame with its place in the source.

    `frame_index` counts decoded frames from 0; `media_ns` is media time; `capture_ns` the monotonic time at which the
    frame left the decoder. `discontinuity` is set if the picture cannot be compared with the one before: "start",
    "resolution" (another size), "format" (other planes or another colour encoding) or "reconnect" (a live source that
    was lost is back, and its pictures are of the same size and form). `skipped` is what was lost since the previous
    good frame. `duration_ns`: how long the frame is shown, if the source knows that before the next one comes.
    `segments` are those of the video that were completed since the frame before, for an output that uses them.
    """

    frame_index: int
    media_ns: int
    capture_ns: int
    planes: FramePlanes
    discontinuity: str | None = None
    skipped: tuple[SkippedItem, ...] = ()
    duration_ns: int | None = None
    segments: tuple[MediaSegment, ...] = ()


def merge_metadata(old: SourceFrame, new: SourceFrame) -> SourceFrame:
    """The newer frame, with the losses and marks of the older one that it replaces."""
    return replace(
        new,
        discontinuity=new.discontinuity or old.discontinuity,
        skipped=old.skipped + new.skipped,
        segments=old.segments + new.segments,
    )


@dataclass(frozen=True, slots=True)
class SourceOutage:
    """A live source was lost, or (with `lasted_s`) is back after `lasted_s` seconds and `attempts` attempts.

    `frame_index` and `media_ns` are those of the last frame before it; `reason` holds no credentials.
    """

    frame_index: int
    media_ns: int
    reason: str
    lasted_s: float | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Properties of a source, known before its first frame. Bytes of `name` that are not UTF-8 become `\\xe9`.

    `width_px` and `height_px` are those of the picture as shown (rotated, in square pixels), before `capture.fit`.
    `fps`, `duration_ns` and `frames` are what the container declares, None if it does not. `rotation` is in degrees
    counterclockwise, after the frame was `mirrored` left to right; both are already applied to the frames.
    """

    name: str
    width_px: int
    height_px: int
    fps: float | None
    duration_ns: int | None
    frames: int | None
    live: bool
    codec: str
    pixel_format: str
    rotation: int = 0
    mirrored: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", replace_surrogates(self.name))


def never_stop() -> bool:
    """Default stop callback: never stop."""
    return False


SourceType = TypeVar("SourceType", bound="Source")


class VideoSegments(Protocol):
    """Segments of a source's video, as the capture stage sees them."""

    @property
    def dropped_frames(self) -> int:
        """Frames that were not encoded, because there was no time."""
        ...

    @property
    def dropped_fragments(self) -> int:
        """Fragments in memory that are missing, because those before had not been taken."""
        ...

    def attach(self, frame: SourceFrame, *, wait: bool) -> SourceFrame:
        """Return the next frame with the segments that were completed since the one before. `wait`: to encode the
        video, no frame is left out."""
        ...

    def finish(self) -> tuple[MediaSegment, ...]:
        """End the video; return the segments that are left."""
        ...


class Source(Protocol):
    """Open source of frames, and a context manager. One thread reads it once and closes it.

    A class that derives from it inherits the answers of a source that loses nothing and holds nothing.
    """

    def describe(self) -> SourceInfo:
        """Return the properties that are known before the first frame."""
        ...

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame | SourceOutage]:
        """The frames in the order in which they are shown, and the outages of a live source between them.

        A live source looks at `should_stop` at least every 100 ms while it waits, and ends when that says so. Raises
        SourceError if nothing can be decoded, and if a live source is lost that may not be tried again.
        """
        ...

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """Return the losses after the last good frame; known once `frames` has ended."""
        return ()

    def repaired_pts(self) -> tuple[int, int]:
        """Return how many PTS were missing and made from the rate, and how many went backward and were clamped."""
        return 0, 0

    def close(self) -> None:
        """Close the file and the decoder; frames that were handed out stay valid. May be called twice."""
        return

    def __enter__(self: SourceType) -> SourceType:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class PollableSource(Protocol):
    """A source that can be waited for beside other things: its frames come at their own pace, read or not."""

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to give."""
        ...

    def poll(self) -> list[SourceFrame | SourceOutage] | None:
        """Return the items since the last call, without waiting; None after the end. Raises as `Source.frames`."""
        ...

    @property
    def dropped_frames(self) -> int:
        """Frames that were not read in time."""
        ...
