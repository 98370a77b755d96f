"""Fragments of small videos, as a run's events bring them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import av

from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.events import VideoFragment
from stream.media import FragmentBytes, MediaSegment, SourceFrame
from stream.sources.factory import open_source
from stream.sources.segments import SegmentRecorder
from stream.stages.frame_events import segment_event
from tests.support.video import make_video, moving_square

GOPS = {"bf": "2", "g": "50", "sc_threshold": "0", "preset": "ultrafast"}
"""B-frames, and a key frame every two seconds."""


def video_file(path: Path, seconds: int = 12, options: dict[str, str] = GOPS) -> Path:
    """Make a video of 25 frames a second."""
    return make_video(path, moving_square(25 * seconds, 25 * seconds * 2 + 40), options=options)


@dataclass(frozen=True)
class RecordedSegment(MediaSegment):
    """A segment with the bytes that lay in its slot."""

    data: bytes = b""
    init: bytes = b""


def _recorded(recorder: SegmentRecorder, address: str, **capture: object) -> Iterator[MediaSegment]:
    config = CaptureConfig.model_validate(capture)
    with open_source(address, config, MonotonicClock(), segments=recorder) as source:
        for frame in source.frames():
            assert isinstance(frame, SourceFrame)
            yield from recorder.attach(frame, wait=True).segments
        yield from recorder.finish()


def segments_of(
    address: str, folder: Path | None = None, *, copies: bool = True, **capture: object
) -> Iterator[RecordedSegment]:
    """Yield the segments of a source that is read to its end, in memory; `folder`: as files, too."""
    recorder = SegmentRecorder(None if folder is None else str(folder), 2.0, in_memory=True, copies=copies)
    for segment in _recorded(recorder, address, **capture):
        part = FragmentBytes(b"", b"") if segment.slot is None else recorder.fragments.take(segment.slot)
        values = {field.name: getattr(segment, field.name) for field in fields(segment)}
        yield RecordedSegment(**values, data=part.data, init=part.init)


def fragments_of(address: str, *, copies: bool = True, **capture: object) -> list[VideoFragment]:
    """Return the fragments of a source that is read to its end."""
    recorder = SegmentRecorder(None, 2.0, in_memory=True, copies=copies)
    events = [segment_event(segment, recorder.fragments) for segment in _recorded(recorder, address, **capture)]
    return [event for event in events if isinstance(event, VideoFragment)]


def fragment(start_s: float, duration_s: float = 1.0, *, key: bool = True, init: bytes = b"i", size: int = 10,
             track_s: float | None = None) -> VideoFragment:  # fmt: skip
    """Return a fragment without real video."""
    return VideoFragment(
        data=bytes(size),
        init=init,
        start_s=start_s,
        duration_s=duration_s,
        track_s=start_s if track_s is None else track_s,
        key=key,
    )


def packets_of(video: Path | bytes) -> list[bytes]:
    """Return the packets of a video as they are stored."""
    with av.open(str(video) if isinstance(video, Path) else io.BytesIO(video)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def times_of(video: Path) -> list[float]:
    """Return the times of a video's decoded pictures, in seconds; fails if its first packet is no key frame."""
    with av.open(str(video)) as container:
        times = []
        for number, packet in enumerate(container.demux(video=0)):
            assert number or packet.is_keyframe
            times += [float(frame.pts * frame.time_base) for frame in packet.decode()]  # type: ignore[union-attr,operator]
    return times
