"""Films: captions where and when they should be, sound and times of the source, and a playable file however it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from stream.config import CaptureConfig, Config, OutputConfig, PipelineConfig
from stream.errors import OutputError, OutputFailed
from stream.events import Event
from stream.extensions.film.sink import FilmSink
from tests.support.events import answer, frame, summary
from tests.support.full_disk import room_for
from tests.support.sections import opened_sinks, sections
from tests.support.video import make_video

GREY = 120
FPS = 10
FRAMES = 20
SIZE = 320, 240


def clip(
    path: Path,
    *,
    codec: str = "libx264",
    audio: str = "aac",
    pts: Sequence[int] = range(FRAMES),
    rotation: int = 0,
    size: tuple[int, int] = SIZE,
) -> Path:
    """A grey video of `FRAMES` frames, with a tone of the same length unless `audio` is empty."""
    width, height = size
    picture = np.full((height, width, 3), GREY, np.uint8)
    silent = path.with_name(f"silent-{path.name}") if audio else path
    make_video(silent, [picture] * len(pts), FPS, codec=codec, pts=pts, rotation=rotation)
    if not audio:
        return path
    with av.open(str(silent)) as source, av.open(str(path), "w") as container:
        video = container.add_stream_from_template(source.streams.video[0])
        sound = container.add_stream(audio, rate=48_000)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = video
                container.mux(packet)
        tone = np.sin(np.arange(48_000 * (pts[-1] + 1) // FPS) / 20).astype(np.float32)
        for start in range(0, len(tone) - 1023, 1024):
            samples = av.AudioFrame.from_ndarray(np.stack([tone[start : start + 1024]] * 2), "fltp", "stereo")
            samples.sample_rate, samples.pts = 48_000, start
            container.mux(sound.encode(samples))
        container.mux(sound.encode(None))
    silent.unlink()
    return path


def config_of(source: Path | str, film: Path, *, soft: bool = False, **values: Any) -> Config:
    return Config(source=str(source), output=OutputConfig(paths=(str(film),)), **sections(film__soft=soft), **values)


def times_of(path: Path | str) -> list[float]:
    with av.open(str(path)) as container:
        return [picture.time for picture in container.decode(video=0) if picture.time is not None]


def length_of(path: Path) -> int | None:
    with av.open(str(path)) as container:
        return container.duration


def events_of(times: Sequence[float], answers: dict[float, str], *, ended: str | None = "finished") -> list[Event]:
    """Events of a run in lockstep: each frame, and the answer about it before the next one."""
    events: list[Event] = []
    for index, at_s in enumerate(times):
        events.append(frame(index, at_s, duration_s=1 / FPS))
        events += [answer(at_s, text) for about_s, text in answers.items() if about_s == at_s]
    return [*events, *([summary(ended=ended)] if ended else [])]


def filmed(config: Config, events: Sequence[Event]) -> Path:
    (sink,) = opened_sinks(config)
    with closing(sink):
        for event in events:
            sink.write(event)
    return Path(config.output.paths[0])


def pictures(path: Path) -> list[npt.NDArray[np.int16]]:
    """Luma of each picture, int16 [height, width]."""
    with av.open(str(path)) as container:
        return [picture.to_ndarray(format="gray").astype(np.int16) for picture in container.decode(video=0)]


def packets(path: Path, kind: str) -> list[av.Packet]:
    with av.open(str(path)) as container:
        return [packet for packet in container.demux(**{kind: 0}) if packet.size]


def spans(path: Path, kind: str) -> list[tuple[Fraction, Fraction]]:
    """Time and duration of each packet, in the order of their times."""
    return sorted(
        ((packet.pts or 0) * packet.time_base, (packet.duration or 0) * packet.time_base)
        for packet in packets(path, kind)
        if packet.time_base is not None
    )


def has_caption(picture: npt.NDArray[np.int16]) -> bool:
    """Return whether white letters on a dark ground stand near the lower edge, and nothing elsewhere."""
    height = picture.shape[0]
    assert np.abs(picture[: height // 3] - picture[0, 0]).max() < 12
    lower = picture[height // 2 :]
    return bool(lower.max() > 200 and lower.min() < 70)


TIMES = [index / FPS for index in range(FRAMES)]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm"])
def test_a_caption_stands_from_its_frame_to_the_next_answer(tmp_path: Path, suffix: str) -> None:
    source = clip(tmp_path / "clip.mp4", audio="")
    answers = {0.3: "a red square moves", 0.8: "a blue circle", 1.2: "", 1.6: "the end"}
    film = filmed(config_of(source, tmp_path / f"film{suffix}"), events_of(TIMES, answers))
    shown = [has_caption(picture) for picture in pictures(film)]
    assert shown == [0.3 <= at_s < 1.2 or at_s >= 1.6 for at_s in TIMES]
    before, after = (pictures(film)[number] for number in (7, 8))
    assert np.abs(before - after).max() > 100, "the words change with the answer"
    assert times_of(film) == pytest.approx(TIMES, abs=0.001)


def test_sound_is_copied_and_times_are_those_of_the_source(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4")
    film = filmed(config_of(source, tmp_path / "film.mp4"), events_of(TIMES, {0.0: "a tone"}))
    assert [bytes(packet) for packet in packets(film, "audio")] == [
        bytes(packet) for packet in packets(source, "audio")
    ]
    assert spans(film, "audio") == spans(source, "audio")
    assert times_of(film) == times_of(source)
    assert length_of(film) == length_of(source)
    with av.open(str(film)) as container:
        assert container.streams.video[0].average_rate == FPS


@pytest.mark.parametrize("soft", [False, True])
def test_a_variable_frame_rate_is_kept(tmp_path: Path, soft: bool) -> None:
    source = clip(tmp_path / "clip.mp4", codec="mpeg4", audio="", pts=[0, 1, 5, 6, 20, 21])
    times = times_of(source)
    film = filmed(config_of(source, tmp_path / "film.mp4", soft=soft), events_of(times, {0.5: "five"}))
    assert times_of(film) == times
    assert length_of(film) == length_of(source)


def test_frames_that_come_before_their_answer_get_it_too(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4", audio="")
    late = [*(frame(index, at_s) for index, at_s in enumerate(TIMES)), answer(0.5, "late")]
    config = config_of(source, tmp_path / "film.mp4", pipeline=PipelineConfig(answers="newest"))
    film = filmed(config, [*late, summary()])
    assert [has_caption(picture) for picture in pictures(film)] == [at_s >= 0.5 for at_s in TIMES]


@pytest.mark.parametrize("size", [(64, 48), (161, 121), (120, 400), (1280, 96)])
def test_captions_fit_into_pictures_of_any_size(tmp_path: Path, size: tuple[int, int]) -> None:
    source = clip(tmp_path / "clip.mkv", codec="ffv1", audio="", size=size, pts=[0, 1])
    film = filmed(config_of(source, tmp_path / "film.mp4"), events_of([0.0, 0.1], {0.0: "many words " * 40}))
    (picture, _) = pictures(film)
    assert picture.shape == (size[1] // 2 * 2, size[0] // 2 * 2)
    assert picture.max() > 180
    covered = np.abs(picture - GREY).max(axis=1) > 40
    assert covered.mean() <= 0.65
    side = np.abs(picture[:, : max(1, size[0] // 40)] - GREY)
    assert side.max() < 40, "the sides stay free"


def test_a_turned_video_is_drawn_upright_and_copied_turned(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4", rotation=90)
    drawn = filmed(config_of(source, tmp_path / "drawn.mp4"), events_of(TIMES, {0.0: "upright"}))
    assert pictures(drawn)[0].shape == (SIZE[0], SIZE[1])
    assert has_caption(pictures(drawn)[3])
    copied = filmed(config_of(source, tmp_path / "soft.mp4", soft=True), events_of(TIMES, {0.0: "turned"}))
    with av.open(str(copied)) as container:
        assert next(container.decode(video=0)).rotation == 90


def test_a_part_begins_at_0(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4")
    config = config_of(source, tmp_path / "film.mp4", capture=CaptureConfig(start_s=1.0, duration_s=0.5))
    film = filmed(config, events_of(TIMES[10:15], {1.2: "in the part"}))
    assert times_of(film) == pytest.approx(TIMES[:5])
    assert [has_caption(picture) for picture in pictures(film)] == [False, False, True, True, True]
    sound = spans(film, "audio")
    assert 0 <= sound[0][0] < 0.05
    assert sound[-1][0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("suffix", "codec", "audio"),
    [
        (".mp4", "libx264", "aac"),
        (".mov", "libx264", "aac"),
        (".mkv", "libx264", "aac"),
        (".webm", "libvpx", "libopus"),
    ],
)
def test_a_subtitle_track_is_read_back_beside_copied_packets(
    tmp_path: Path, suffix: str, codec: str, audio: str
) -> None:
    source = clip(tmp_path / f"clip{suffix}", codec=codec, audio=audio)
    answers = {0.2: "a <red> square & more", 0.9: "", 1.0: "ein Kreis läuft"}
    film = filmed(config_of(source, tmp_path / f"film{suffix}", soft=True), events_of(times_of(source), answers))
    for kind in ("video", "audio"):
        assert [bytes(packet) for packet in packets(film, kind)] == [bytes(packet) for packet in packets(source, kind)]
        assert spans(film, kind)[0][0] == spans(source, kind)[0][0]
    cues = [packet for packet in packets(film, "subtitles") if bytes(packet) != b"\0\0"]
    origin = spans(film, "video")[0][0] * 1000
    found = [((packet.pts or 0) * packet.time_base * 1000 - origin, (packet.duration or 0)) for packet in cues]
    assert found == [(200, 700), (1000, 1000)]
    first, second = (bytes(packet).decode("utf-8", "ignore") for packet in cues)
    assert "red" in first
    assert second.endswith("ein Kreis läuft")


def test_a_film_that_cannot_hold_the_sound_gets_it_in_another_codec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = clip(tmp_path / "clip.mp4")
    film = filmed(config_of(source, tmp_path / "film.webm"), events_of(TIMES, {}))
    assert f".webm cannot hold sound as aac; it is encoded as Opus in {film}" in capsys.readouterr().err
    with av.open(str(film)) as container:
        (sound,) = container.streams.audio
        assert sound.codec_context.name == "opus"
        seconds = [(samples.time or 0.0) + samples.samples / samples.sample_rate for samples in container.decode(sound)]
    assert seconds[-1] == pytest.approx(FRAMES / FPS, abs=0.05)


def test_a_run_that_is_interrupted_leaves_what_was_filmed(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4")
    config = config_of(source, tmp_path / "film.mp4")
    film = filmed(config, events_of(TIMES[:7], {0.0: "seven"}, ended=None))
    assert times_of(film) == pytest.approx(TIMES[:7])
    assert spans(film, "audio")[-1][0] < 0.7


def test_a_film_can_be_played_while_it_grows(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4", pts=range(200), size=(64, 48))
    times = times_of(source)
    (sink,) = opened_sinks(config_of(source, tmp_path / "film.mp4"))
    with closing(sink):
        for event in events_of(times, {}, ended=None)[:190]:
            sink.write(event)
        assert len(times_of(tmp_path / "film.mp4")) >= 100


@pytest.mark.parametrize("soft", [False, True])
def test_a_run_that_fails_before_its_first_frame_destroys_nothing(tmp_path: Path, soft: bool) -> None:
    source = clip(tmp_path / "clip.mp4")
    film = tmp_path / "film.mp4"
    filmed(config_of(source, film, soft=soft), [])
    assert not film.exists()
    film.write_bytes(b"precious")
    filmed(config_of(source, film, soft=soft), [])
    assert film.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("frames", "ended", "replaced"),
    [(5, "interrupted", False), (FRAMES, "interrupted", True), (5, "finished", True)],
)
def test_a_resumed_film_replaces_a_shorter_or_an_unfinished_one(
    tmp_path: Path, frames: int, ended: str, replaced: bool
) -> None:
    source = clip(tmp_path / "clip.mp4")
    config = config_of(source, tmp_path / "film.mp4")
    film = filmed(config, events_of(TIMES[:12], {0.0: "first"}, ended="interrupted"))
    with closing(FilmSink(str(film), config, resume=True)) as sink:
        for event in events_of(TIMES[:frames], {0.0: "first"}, ended=ended):
            sink.write(event)
    assert len(times_of(film)) == (frames if replaced else 12)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "film.mp4"]


@pytest.mark.parametrize("soft", [False, True])
def test_a_full_disk_is_reported_and_keeps_what_was_there(tmp_path: Path, soft: bool) -> None:
    source = tmp_path / "clip.mkv"
    noise = np.random.default_rng(0)
    make_video(
        source, [noise.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(100)], FPS, options={"g": "5"}
    )
    film = tmp_path / "film.mkv"
    if soft:
        film.write_bytes(b"precious")
    config = config_of(source, film, soft=soft)
    with room_for(400_000), pytest.raises(OutputFailed, match=r"cannot write .*film\.mkv.*: File too large"):
        filmed(config, events_of(times_of(source), {0.0: "full"}))
    if soft:
        assert film.read_bytes() == b"precious"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mkv", "film.mkv"]
    else:
        assert film.stat().st_size <= 400_000


@pytest.mark.parametrize(
    ("source", "values", "message"),
    [
        ("rtsp://camera/1", {}, "rtsp://camera/1 is neither; save it in a file first"),
        ("0", {}, "0 is neither"),
        ("-", {}, "- is neither"),
        ("https://host/a.mp4", {}, "is neither"),
        ("clip.mp4", {"capture": CaptureConfig(follow=True)}, "still grows; leave --follow out"),
        ("scene:demo", {"soft": True}, "copies a video file, and scene:demo is none; leave --soft out"),
        (
            "clip.mp4",
            {"soft": True, "zones": {"door": {"box": (0.0, 0.0, 0.5, 1.0), "mask": True}}},
            "would show the masked zones",
        ),
    ],
)
def test_films_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, values: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    clip(tmp_path / "clip.mp4", audio="", pts=[0, 1])
    with pytest.raises(OutputError, match=message):
        opened_sinks(config_of(source, Path("film.mp4"), **values))
    assert not (tmp_path / "film.mp4").exists()


def raw(path: Path) -> Path:
    return clip(path.with_suffix(".h264"), audio="", pts=[0, 1])


def vp8(path: Path) -> Path:
    return clip(path.with_suffix(".webm"), codec="libvpx", audio="", pts=[0, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [(raw, "have none; leave --soft out"), (vp8, r"\.mp4 cannot hold vp8; name an \.mkv, or leave --soft out")],
)
def test_pictures_that_cannot_be_copied_are_refused(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    source = make(tmp_path / "clip")
    with pytest.raises(OutputError, match=message):
        opened_sinks(config_of(source, tmp_path / "film.mp4", soft=True))
    assert os.listdir(tmp_path) == [source.name]


def test_a_place_that_cannot_be_written_or_is_the_source_is_refused(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4", audio="", pts=[0, 1])
    for film, message in ((source, "is the input"), (tmp_path / "no/film.mp4", "there is no folder")):
        with pytest.raises(OutputError, match=message):
            opened_sinks(config_of(source, film))
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="not a regular file"):
        FilmSink(str(pipe), config_of(source, pipe))


def test_masked_zones_are_black(tmp_path: Path) -> None:
    source = clip(tmp_path / "clip.mp4", audio="", pts=[0, 1])
    zones = {"left": {"box": (0.0, 0.0, 0.5, 1.0), "mask": True}}
    film = filmed(config_of(source, tmp_path / "film.mp4", zones=zones), events_of([0.0, 0.1], {}))
    picture = pictures(film)[0]
    assert picture[:, :140].max() < 30
    assert picture[:, 180:].min() > 90


def test_a_scene_is_filmed_without_sound(tmp_path: Path) -> None:
    film = filmed(config_of("scene:demo", tmp_path / "film.mp4"), events_of([0.0, 1 / 24], {0.0: "a circle"}))
    with av.open(str(film)) as container:
        assert [stream.type for stream in container.streams] == ["video"]
        assert container.streams.video[0].frames == 2
