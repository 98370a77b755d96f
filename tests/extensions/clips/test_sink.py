"""Pictures and videos of matches, written from events made by hand around a real video."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from stream.config import Config
from stream.errors import OutputError
from stream.events import AskedPicture, ClipWritten, Event, FrameMap, Outage, Restarted, VideoFragment
from stream.extensions.clips import picture as clip_picture
from stream.extensions.clips import sink as module
from stream.extensions.clips.folder import CLIP_NAME, MANIFEST, ClipFile
from stream.extensions.clips.picture import match_picture
from stream.extensions.clips.section import ClipsSection
from stream.extensions.clips.sink import ClipSink
from stream.extensions.clips.video import ClipVideo
from stream.media import AllocationOverlay
from stream.protocol.picture_files import encode_jpeg
from tests.support.events import frame, match, summary
from tests.support.fragments import fragment, fragments_of, packets_of, times_of, video_file
from tests.support.full_disk import room_for

NO_VIDEO = "no video of that time arrived"


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve seconds, a key frame every two."""
    return video_file(tmp_path_factory.mktemp("video") / "a.mp4")


@pytest.fixture(scope="module")
def fragments(video: Path) -> list[VideoFragment]:
    return fragments_of(str(video))


class FedSink:
    """A sink as a session feeds it."""

    def __init__(self, folder: Path, source: str = "street.mp4", **output: Any) -> None:
        section = ClipsSection(folder=str(folder), **{"before_s": 1.5, "after_s": 1.5, **output})
        config = Config(source=source, clips=section)
        self.folder = folder
        self.now_s = 1_000_000.0
        self.sink = ClipSink(config, lambda: self.now_s)
        self.clips: list[ClipWritten] = []

    def feed(self, *events: Event) -> FedSink:
        for event in events:
            self.clips += self.sink.take_events(event)  # type: ignore[arg-type]
            self.sink.write(event)
        return self

    def end(self) -> list[ClipWritten]:
        self.feed(summary())
        self.sink.close()
        return self.clips

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name != MANIFEST)


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[FedSink]:
    fed_sink = FedSink(tmp_path / "clips")
    with closing(fed_sink.sink):
        yield fed_sink


def picture(index: int = 0, level: int = 0, jpeg: bytes | None = None) -> AskedPicture:
    image = np.full((64 >> level, 96 >> level, 3), (90, 120, 60), np.uint8)
    frame_map = FrameMap(
        rows=2, cols=3, relevance=bytes([0, 255, 0, 0, 0, 0]), regions=np.array([[0, 0, 1]], "<i2").tobytes()
    )
    return AskedPicture(
        frame_index=index,
        pts_s=index / 25,
        jpeg=encode_jpeg(image) if jpeg is None else jpeg,
        level=level,
        map=frame_map,
    )


def test_a_match_has_its_picture_at_once_and_its_video_later(
    fed: FedSink, fragments: list[VideoFragment], video: Path
) -> None:
    fed.feed(picture(125), *fragments[:5], match(5.0, frame_index=125), frame(126, 5.1))
    (first,) = fed.clips
    assert (first.picture, first.video, first.error) == ("street-00005.00s-here-0001.jpg", None, None)
    assert (fed.folder / "street-00005.00s-here-0001.jpg").stat().st_size > 1000
    fed.feed(*fragments[5:])
    second = fed.feed(frame(300, 12.0)).clips[1]
    assert second.video == "street-00005.00s-here-0001.mp4"
    assert second.picture == first.picture
    assert (second.start_s, second.end_s) == (pytest.approx(2.0), pytest.approx(7.0, abs=0.1))
    times = times_of(fed.folder / second.video)
    assert len(times) == pytest.approx(125, abs=2)
    assert times[0] < 0.1
    assert times[-1] == pytest.approx(5.0, abs=0.15)
    copied, source = packets_of(fed.folder / second.video), packets_of(video)
    at = source.index(copied[0])
    assert copied == source[at : at + len(copied)]


def test_every_sink_gets_the_events_before_the_summary(fed: FedSink, fragments: list[VideoFragment]) -> None:
    fed.feed(*fragments[:5], match(5.0))
    assert [clip.video for clip in fed.end()] == [None, "street-00005.00s-here-0001.mp4"]
    assert len(times_of(fed.folder / "street-00005.00s-here-0001.mp4")) == pytest.approx(75, abs=3)


@pytest.mark.parametrize(("at_s", "span"), [(0.0, (0, 2)), (0.5, (0, 2)), (11.9, (10, 12))])
def test_a_match_at_an_end_of_the_video_has_a_shorter_clip(
    fed: FedSink, fragments: list[VideoFragment], at_s: float, span: tuple[int, int]
) -> None:
    fed.feed(*(fragment for fragment in fragments if fragment.end_s <= at_s), match(at_s))
    fed.feed(*(fragment for fragment in fragments if fragment.end_s > at_s))
    clip = fed.end()[-1]
    assert clip.video is not None
    assert (round(clip.start_s), round(clip.end_s)) == span
    assert times_of(fed.folder / clip.video)


def test_a_late_match_finds_its_time_in_the_ring(fed: FedSink, fragments: list[VideoFragment]) -> None:
    fed.feed(*fragments, match(5.0), frame(0, 12.0))
    clip = fed.clips[-1]
    assert (round(clip.start_s), round(clip.end_s)) == (2, 7)


def test_matches_close_to_each_other_share_a_video(fed: FedSink, fragments: list[VideoFragment]) -> None:
    fed.feed(picture(0), *fragments[:5], match(5.0, 1, watch="door"), *fragments[5:6], match(6.0, 2, watch="car"))
    fed.feed(*fragments[6:])
    clips = [clip for clip in fed.end() if clip.video is not None]
    assert [(clip.match, clip.watch) for clip in clips] == [(1, "door"), (2, "car")]
    assert len({clip.video for clip in clips}) == 1
    assert len({clip.picture for clip in clips}) == 2
    assert {round(clip.end_s) for clip in clips} == {8}
    assert len([name for name in fed.names if name.endswith(".mp4")]) == 1


def test_a_video_does_not_grow_without_end(
    fed: FedSink, fragments: list[VideoFragment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClipVideo, "longest_s", 5.0)
    for number, part in enumerate(fragments):
        fed.feed(part, match(part.start_s + 0.5, number + 1))
    videos = {clip.video: clip.end_s - clip.start_s for clip in fed.end() if clip.video is not None}
    assert len(videos) >= 3
    assert max(videos.values()) < 7.0
    assert all(times_of(fed.folder / name) for name in videos)


@pytest.mark.parametrize(
    "interruption",
    [
        Outage(frame_index=150, pts_s=6.0, reason="gone"),
        Restarted(process="frames", cause="died", count=1),
        fragment(6.0, init=b"another size", track_s=0.0),
        fragment(6.0, key=False, track_s=50.0),
    ],
    ids=["outage", "restart", "size", "gap"],
)
def test_an_interruption_ends_a_clip_well(fed: FedSink, fragments: list[VideoFragment], interruption: Event) -> None:
    fed.feed(*fragments[:5], match(5.0), fragments[5], interruption, frame(0, 6.1))
    clip = fed.clips[-1]
    assert clip.video is not None
    assert (round(clip.start_s), round(clip.end_s)) == (2, 6)
    assert len(times_of(fed.folder / clip.video)) == pytest.approx(100, abs=2)


def test_a_clip_does_not_wait_for_ever(fed: FedSink, fragments: list[VideoFragment]) -> None:
    fed.feed(*fragments[:5], match(5.0), frame(0, 6.0), frame(0, 16.0))
    assert len(fed.clips) == 1
    fed.feed(frame(0, 17.0), frame(0, 17.1))
    assert fed.clips[-1].video is not None


def test_without_video_there_is_the_picture_alone(fed: FedSink) -> None:
    fed.feed(picture(3), match(1.0, frame_index=3), fragment(1.0, key=False))
    clip = fed.end()[-1]
    assert clip.picture is not None
    assert (clip.video, clip.error) == (None, NO_VIDEO)
    assert fed.names == [clip.picture]


def test_the_picture_is_that_of_the_checked_frame(fed: FedSink) -> None:
    for index in range(40):
        fed.feed(picture(index, jpeg=b"" if index != 30 else None))
    fed.feed(match(1.0, 1, frame_index=31), match(1.0, 2, frame_index=2))
    fed.feed(match(1.0, 3, frame_index=30))
    first, second, third = (clip for clip in fed.end() if clip.error != NO_VIDEO)
    assert first.error == "the picture of the frame cannot be decoded"
    assert (second.picture, second.error) == (None, None)  # too old: its picture is gone
    assert third.picture is not None


@pytest.mark.parametrize("level", [0, 1])
def test_a_picture_shows_the_regions_and_the_question(tmp_path: Path, level: int) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(match_picture(picture(level=level), match(1.0), "yard"))
    image = np.asarray(Image.open(path)).astype(int)
    assert image.shape[1] == 672
    scale = 672 / 96
    region, other = (image[round(16 * scale), round(x * scale)] for x in (48, 16))
    assert np.abs(region - other).max() < 12  # the picture itself is as the camera saw it
    edge = image[round(16 * scale), round(32 * scale) - 3 : round(32 * scale) + 4]
    assert np.ptp(edge.sum(axis=1)) > 150
    assert image[round(64 * scale) + 10 :].max() > 200  # text below


NOON = "2026-11-28T12:00:09.250+05:30"


def test_a_live_source_names_files_by_local_time_and_camera(tmp_path: Path, fragments: list[VideoFragment]) -> None:
    fed = FedSink(tmp_path / "clips", "rtsp://user:secret@camera/live")
    fed.feed(picture(), *fragments, replace(match(5.0, watch="../at the door"), time=NOON))
    assert fed.end()[-1].video == "20261128-120009-camera_live-at_the_door-0001.mp4"
    assert {clip.time for clip in fed.clips} == {NOON}


def test_a_name_without_letters_is_still_a_name(tmp_path: Path, fragments: list[VideoFragment]) -> None:
    fed = FedSink(tmp_path / "clips", "---.mp4")
    fed.feed(*fragments, match(5.0))
    video = fed.end()[-1].video
    assert video == "_-00005.00s-here-0001.mp4"
    assert CLIP_NAME.fullmatch(video)


def test_a_picture_of_a_live_source_names_date_time_and_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[tuple[str, str]] = []

    def draw(overlay: AllocationOverlay, caption: str, note: str, **_: bool) -> Any:
        texts.append((caption, note))
        return overlay.image

    monkeypatch.setattr(clip_picture, "draw", draw)
    match_picture(picture(), replace(match(1.0), time=NOON), "porch")
    match_picture(picture(), match(1.0), "street.mp4")
    assert texts == [("porch: is it here?", "2026-11-28 12:00:09 · 97 % yes"), ("is it here?", "0:01.0 · 97 % yes")]


def test_a_second_run_overwrites_nothing(tmp_path: Path, fragments: list[VideoFragment]) -> None:
    names = []
    for _ in range(2):
        fed = FedSink(tmp_path / "clips")
        fed.feed(picture(), *fragments, match(5.0))
        names.append(fed.end()[-1].video)
    assert names == ["street-00005.00s-here-0001.mp4", "street-00005.00s-here-0001-2.mp4"]


def test_a_full_disk_is_reported_once_and_the_run_goes_on(
    fed: FedSink, fragments: list[VideoFragment], capsys: pytest.CaptureFixture[str]
) -> None:
    with room_for(2 * len(fragments[2].data)):
        fed.feed(*fragments[:5], match(5.0), *fragments[5:8], picture(200), match(8.0, 2), *fragments[8:])
        fed.feed(frame(0, 12.0))
    assert [clip.match for clip in fed.clips if clip.error == "File too large"]
    assert capsys.readouterr().err.count("a clip cannot be written") == 1
    for clip in fed.clips:
        if clip.video is not None:
            assert times_of(fed.folder / clip.video)
    fed.feed(replace(fragments[0], start_s=20.0), match(20.0, 3))
    assert fed.end()[-1].error is None
    assert not [name for name in fed.names if name.startswith(".")]


@pytest.mark.parametrize("call", ["create", "free_stem"])
def test_a_folder_that_is_gone_is_reported(
    fed: FedSink, fragments: list[VideoFragment], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fed.sink._folder, call, fail)
    fed.feed(picture(), *fragments, match(5.0))
    assert {clip.error for clip in fed.end()} == {"No space left on device"}


def test_a_video_that_cannot_be_named_is_reported(
    fed: FedSink, fragments: list[VideoFragment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ClipFile) -> str:
        raise OSError(5, "Input/output error")

    fed.feed(*fragments[:5], match(5.0))
    monkeypatch.setattr(ClipFile, "finish", fail)
    assert fed.end()[-1].error == "Input/output error"


def test_the_limits_of_the_configuration_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIB", 1000)
    big = [fragment(second, size=300, key=second % 2 == 0) for second in range(40)]
    monkeypatch.setattr("stream.extensions.clips.video.begin_ticks", lambda _: 0)
    fed = FedSink(tmp_path / "clips", max_mib=2, max_days=1.0)
    for number, big_fragment in enumerate(big):
        fed.feed(big_fragment)
        if number % 10 == 5:
            fed.feed(match(float(number), number))
        assert sum(path.stat().st_size for path in fed.folder.glob("*.mp4*")) <= 2000
    assert fed.names == ["street-00035.00s-here-0035.mp4"]
    fed.now_s += 3 * 86400
    fed.feed(frame(0, 40.0))
    assert fed.names == []
    fed.sink.close()


def test_a_folder_that_cannot_be_written_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="it is a file"):
        FedSink(tmp_path / "file")
