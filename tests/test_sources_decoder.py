"""Reading and decoding past errors, with threads and without."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from video_maker import make_video, moving_square, overwrite_packet

from stream.config import MAX_PIXELS
from stream.sources import decoder
from stream.sources.decoder import LARGE_PICTURE_THREADS, MAX_READ_ERRORS, VideoDecoder
from stream.sources.timeline import MediaTimeline


class FailingReads:
    """A container whose reads fail as told, in between the packets of a real one."""

    def __init__(self, container: Any, failures_before: dict[int, int]) -> None:
        self._packets = iter(container.demux(video=0))
        self._failures_before = dict(failures_before)
        self._read = 0
        self.failures = 0

    def demux(self, stream: object) -> Iterator[av.Packet]:
        while True:
            if self._failures_before.get(self._read, 0) > 0:
                self._failures_before[self._read] -= 1
                self.failures += 1
                raise av.error.InvalidDataError(1, "the disk is tired")
            packet = next(self._packets, None)
            if packet is None:
                return
            self._read += 1
            yield packet


def decoder_for(container: Any, reads: Any = None) -> VideoDecoder:
    stream = container.streams.video[0]
    return VideoDecoder(reads or container, stream, MediaTimeline(stream.time_base, Fraction(25)), MAX_PIXELS)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_video(tmp_path / "clip.mp4", moving_square(10), options={"bf": "0"})


def test_a_failed_read_is_noted_and_reading_goes_on(clip: Path) -> None:
    with av.open(str(clip)) as container:
        videos = decoder_for(container, FailingReads(container, {4: 2}))
        assert len(list(videos.frames())) == 10
        (lost,) = videos.lost_after_last()
    assert lost.what == "packet 5 or one just before"
    assert lost.reason == "the disk is tired"


def test_endless_failures_end_the_file(clip: Path) -> None:
    with av.open(str(clip)) as container:
        reads = FailingReads(container, {4: 1000})
        assert len(list(decoder_for(container, reads).frames())) == 4
        assert reads.failures == MAX_READ_ERRORS


def test_failures_are_counted_in_a_row(clip: Path) -> None:
    with av.open(str(clip)) as container:
        reads = FailingReads(container, {2: MAX_READ_ERRORS - 1, 6: MAX_READ_ERRORS - 1})
        assert len(list(decoder_for(container, reads).frames())) == 10


def test_one_thread_up_to_full_hd(clip: Path) -> None:
    with av.open(str(clip)) as container:
        decoder_for(container)
        assert container.streams.video[0].codec_context.thread_count == 1


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "ONE_THREAD_MAX_PX", 0)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("damaged", [2, 3, 5])
def test_with_threads_every_good_frame_still_comes(clip: Path, damaged: int) -> None:
    overwrite_packet(clip, damaged)
    with av.open(str(clip)) as container:
        videos = decoder_for(container)
        frames = list(videos.frames())
        (lost,) = videos.lost_after_last()
    assert len(frames) == 9
    assert [frame.pts for frame in frames] == sorted(frame.pts for frame in frames)
    assert (lost.count, lost.media_ns) == (1, None)
    assert lost.what.endswith("or one just before")
    assert damaged <= int(lost.what.split()[1]) <= damaged + LARGE_PICTURE_THREADS


@pytest.mark.usefixtures("threads")
def test_with_threads_damage_near_the_end_is_noted(clip: Path) -> None:
    overwrite_packet(clip, 7)
    with av.open(str(clip)) as container:
        videos = decoder_for(container)
        frames = list(videos.frames())
        (lost,) = videos.lost_after_last()
    assert 10 - LARGE_PICTURE_THREADS <= len(frames) <= 9
    assert lost.what == "packet 10 or one just before"
