"""Choice of the stream, and start and end of its time, from the container's declarations."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest
from av.stream import Disposition

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem
from stream.sources import decoder
from stream.sources.decoder import (
    LARGE_PICTURE_THREADS,
    MAX_READ_ERRORS,
    LossTracker,
    VideoDecoder,
    declared_end_ns,
    duration_ns_of,
    origin_of,
    rate_of,
    video_stream,
)
from stream.sources.file import FileSource
from stream.sources.timing import MediaTimeline
from tests.support.clock import FakeClock
from tests.support.video import make_video, moving_square, overwrite_packet

MS = 1_000_000


def container(start_ms: int | None = 0, duration_ms: int | None = None, streams: int = 1) -> Any:
    def microseconds(value_ms: int | None) -> int | None:
        return None if value_ms is None else value_ms * 1000

    return SimpleNamespace(
        start_time=microseconds(start_ms), duration=microseconds(duration_ms), streams=[object()] * streams
    )


def stream(start_ms: int | None = 0, duration_ms: int | None = None, tag: str = "") -> Any:
    metadata = {"DURATION": tag} if tag else {}
    return SimpleNamespace(start_time=start_ms, duration=duration_ms, time_base=Fraction(1, 1000), metadata=metadata)


@pytest.mark.parametrize(
    ("container_ms", "stream_ms", "origin_ms"),
    [
        (0, 0, 0),
        (0, 3, 0),
        (None, None, 0),
        (1400, 1400, 1400),
        (1400, 1480, 1400),
        (-21, 0, 0),
        (-80, -80, -80),
    ],
)
def test_origin(container_ms: int | None, stream_ms: int | None, origin_ms: int) -> None:
    assert origin_of(container(container_ms), stream(stream_ms)) == Fraction(origin_ms, 1000)


def test_origin_is_the_streams_exact_start_if_only_rounding_differs() -> None:
    video = stream()
    video.start_time, video.time_base = 1, Fraction(1, 3)
    file = container()
    file.start_time = 333_333
    assert origin_of(file, video) == Fraction(1, 3)


@pytest.mark.parametrize(
    ("file", "video", "end_ms", "duration_ms"),
    [
        (container(0, 9000), stream(100, 2000), 2100, 2100),
        (container(1400, 9000), stream(1400, 2000), 2000, 2000),
        (container(0, 9000, streams=2), stream(tag="00:01:02.500000000"), 62_500, 62_500),
        (container(0, 9000), stream(), 9000, 9000),
        (container(0, 9000, streams=2), stream(), None, 9000),
        (container(0, None), stream(), None, None),
        (container(0, 9000, streams=2), stream(tag="soon"), None, 9000),
        (container(0, 9000, streams=2), stream(0, 2000), 2000, 2000),
    ],
)
def test_the_end_is_the_streams_own_or_that_of_a_stream_alone_and_a_duration_falls_back_on_the_containers(
    file: Any, video: Any, end_ms: int | None, duration_ms: int | None
) -> None:
    assert declared_end_ns(file, video) == (None if end_ms is None else end_ms * MS)
    assert duration_ns_of(file, video) == (None if duration_ms is None else duration_ms * MS)


def test_rate_is_the_average_else_the_guessed_one() -> None:
    assert rate_of(SimpleNamespace(average_rate=Fraction(24), guessed_rate=Fraction(25))) == 24
    assert rate_of(SimpleNamespace(average_rate=None, guessed_rate=Fraction(25))) == 25
    assert rate_of(SimpleNamespace(average_rate=None, guessed_rate=None)) is None


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three video streams of different sizes; the last one is the default."""
    path = tmp_path_factory.mktemp("streams") / "several.mkv"
    with av.open(str(path), "w") as container:
        streams = []
        for number, tags in enumerate(({"language": "eng"}, {"title": "from behind"}, {})):
            stream = container.add_stream("ffv1", rate=25)
            stream.width, stream.height, stream.pix_fmt = 64 + 32 * number, 48, "yuv420p"
            stream.metadata.update(tags)
            stream.disposition = Disposition.default if number == 2 else Disposition(0)
            streams.append(stream)
        for number, stream in enumerate(streams):
            for image in moving_square(3, 64 + 32 * number, 48):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        for stream in streams:
            container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("number", "width_px"), [(None, 128), (0, 64), (1, 96), (2, 128)])
def test_the_stream_asked_for_is_read_else_the_default_one(several: Path, number: int | None, width_px: int) -> None:
    with FileSource(several, CaptureConfig(stream=number), FakeClock()) as source:
        assert source.describe().width_px == width_px
        assert {frame.planes.width_px for frame in source.frames()} == {width_px}


def test_a_missing_stream_names_the_existing_ones(several: Path) -> None:
    with pytest.raises(SourceError) as raised:
        FileSource(several, CaptureConfig(stream=3), FakeClock())
    assert str(raised.value).endswith(
        "several.mkv has no video stream 3; there is 0: ffv1 64x48 eng; 1: ffv1 96x48 'from behind'; 2: ffv1 128x48"
    )


def test_a_stream_without_a_decoder_is_listed_and_refused() -> None:
    unknown = SimpleNamespace(disposition=Disposition.default, codec_context=None, metadata={"language": "und"})
    file: Any = SimpleNamespace(streams=SimpleNamespace(video=[unknown]))
    with pytest.raises(SourceError, match=r"no video stream 1; there is 0: undecodable$"):
        video_stream(file, "a.mkv", 1)
    with pytest.raises(SourceError, match="this FFmpeg has no decoder for"):
        video_stream(file, "a.mkv", 0)


class FailingReads:
    """Container whose reads fail at given places between the packets of a real one."""

    def __init__(self, container: Any, failures_before: dict[int, int]) -> None:
        self._packets = iter(container.demux(video=0))
        self._failures_before = dict(failures_before)
        self._packet_index = 0
        self.failures = 0

    def demux(self, stream: object) -> Iterator[av.Packet]:
        while True:
            if self._failures_before.get(self._packet_index, 0) > 0:
                self._failures_before[self._packet_index] -= 1
                self.failures += 1
                raise av.error.InvalidDataError(1, "the disk is tired")
            packet = next(self._packets, None)
            if packet is None:
                return
            self._packet_index += 1
            yield packet


def decoder_for(container: Any, reads: Any = None) -> VideoDecoder:
    stream = container.streams.video[0]
    return VideoDecoder(reads or container, stream, MediaTimeline(stream.time_base, Fraction(25)), CaptureConfig())


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_video(tmp_path / "clip.mp4", moving_square(10), options={"bf": "0"})


@pytest.mark.parametrize(
    ("failures", "frames", "failed"),
    [
        ({4: 2}, 10, 2),
        ({4: 1000}, 4, MAX_READ_ERRORS),  # endless ones end the file
        ({2: MAX_READ_ERRORS - 1, 6: MAX_READ_ERRORS - 1}, 10, 2 * MAX_READ_ERRORS - 2),  # counted in a row
    ],
)
def test_a_failed_read_is_recorded_and_reading_goes_on(
    clip: Path, failures: dict[int, int], frames: int, failed: int
) -> None:
    with av.open(str(clip)) as container:
        reads = FailingReads(container, failures)
        videos = decoder_for(container, reads)
        assert len(list(videos.frames())) == frames
        losses = videos.lost_after_last()
    assert reads.failures == failed
    assert losses[0].what == f"packet {min(failures) + 1} or one just before"
    assert losses[0].reason == "the disk is tired"


def test_one_thread_up_to_full_hd(clip: Path) -> None:
    with av.open(str(clip)) as container:
        decoder_for(container)
        assert container.streams.video[0].codec_context.thread_count == 1


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "ONE_THREAD_MAX_PX", 0)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("damaged", [2, 3, 5, 7])
def test_with_threads_every_good_frame_but_those_at_the_end_still_comes(clip: Path, damaged: int) -> None:
    overwrite_packet(clip, damaged)
    with av.open(str(clip)) as container:
        videos = decoder_for(container)
        frames = list(videos.frames())
        (loss,) = videos.lost_after_last()
    assert len(frames) == 9 if damaged < 7 else 10 - LARGE_PICTURE_THREADS <= len(frames) <= 9
    assert [frame.pts for frame in frames] == sorted(frame.pts for frame in frames)
    assert (loss.count, loss.media_ns) == (1, None)
    assert loss.what.endswith("or one just before")
    assert damaged <= int(loss.what.split()[1]) <= damaged + LARGE_PICTURE_THREADS


def test_a_loss_waits_for_the_frame_that_is_shown_after_it() -> None:
    ledger = LossTracker()
    ledger.lost(31, "bad", 300, 3_000)
    assert ledger.before(290) == ()
    assert ledger.before(300) == ()
    assert ledger.before(310) == (SkippedItem("packet 31", "bad", 3_000),)
    assert ledger.before(320) == ()


def test_neighbours_are_one_item_with_the_first_ones_time() -> None:
    ledger = LossTracker()
    for number in (4, 5, 6, 9):
        ledger.lost(number, f"reason {number}", number * 10, number)
    assert ledger.rest() == (SkippedItem("packets 4-6", "reason 4", 4, 3), SkippedItem("packet 9", "reason 9", 9))
    assert ledger.rest() == ()


def test_a_packet_that_fails_twice_counts_once() -> None:
    ledger = LossTracker()
    ledger.lost(5, "bad", None, None)
    ledger.lost(5, "bad again", None, None)
    assert ledger.rest() == (SkippedItem("packet 5", "bad"),)


def test_without_pts_a_loss_comes_with_the_next_frame() -> None:
    ledger = LossTracker()
    ledger.lost(1, "bad", None, None)
    assert ledger.before(0) == (SkippedItem("packet 1", "bad"),)
    ledger.lost(3, "bad", 50, 5)
    assert ledger.before(None) == (SkippedItem("packet 3", "bad", 5),)


def test_a_packet_reported_late_is_named_with_its_doubt() -> None:
    ledger = LossTracker()
    ledger.lost(33, "bad", None, None, exact=False)
    assert ledger.rest()[0].what == "packet 33 or one just before"
