"""Clips of whole runs, with a fake answer model that detects brightness; and of runs that are killed."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.support.rtsp_server import RtspServer, encode
from stream.config import AllocateConfig, AnswerConfig, Config, OutputConfig, PipelineConfig, WatchConfig
from stream.display.lines import LinesDisplay
from stream.errors import ConfigError
from stream.events import AskedPicture, ClipWritten, Event, Outage, VerdictChanged, VideoFragment
from stream.extensions.clips.folder import check as check_clips
from stream.extensions.clips.section import ClipsSection
from stream.runtime.frame_process import run_in_child
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from stream.runtime.session import run_session
from stream.sinks.base import Sink
from tests.support.fragments import GOPS, packets_of, times_of, video_file
from tests.support.video import Image, make_video

ROOT = Path(__file__).resolve().parents[3]
FPS, FRAMES = 10, 160
LIGHT = range(80, 110)
LIMIT_S = 600


def lamp() -> Iterator[Image]:
    """Sixteen seconds in which a lamp is lit from second 8 to second 11."""
    for index in range(FRAMES):
        frame = np.full((96, 128, 3), 60 + index % 3, np.uint8)
        if index in LIGHT:
            frame[32:64, 64:96] = 250
        yield frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lamps")


@pytest.fixture(scope="module")
def lamps(folder: Path) -> dict[str, Path]:
    """The lamp as H.264, and as MJPEG, which MP4 does not take from here."""
    return {
        "h264": make_video(folder / "lamp.mp4", lamp(), FPS, options={**GOPS, "g": "20"}),
        "mjpeg": make_video(folder / "lamp.avi", lamp(), FPS, codec="mjpeg", pixel_format="yuvj420p"),
    }


class Collector(Sink):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.react: Callable[[Event], None] = lambda event: None

    def write(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def close(self) -> None:
        pass

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def configured(source: object, clips: Path | None, *, go_on: bool = True, **extensions: Any) -> Config:
    return Config(
        source=str(source),
        allocate=AllocateConfig(budget=12),
        answer=AnswerConfig(on_cut=False),
        watch=(WatchConfig(question="is there a light?", name="until", on_cut=False, ends_run=not go_on),),
        **extensions,
        clips=ClipsSection(folder=None if clips is None else str(clips), before_s=3, after_s=2),
        pipeline=PipelineConfig(single_process=True),
    )


def run(config: Config) -> Collector:
    collector = Collector()
    run_session(
        config,
        LinesDisplay(0),
        [collector],
        lambda run_config: run_in_threads(run_config, model_loader="tests.support.answer_models:FakeAnswerModel"),
    )
    return collector


def noise(frames: int) -> Iterator[Image]:
    """Pictures that no codec makes smaller; a lamp is lit in the last half."""
    generator = np.random.default_rng(0)
    for index in range(frames):
        frame = generator.integers(0, 120, (360, 640, 3), dtype=np.uint8)
        if index >= frames // 2:
            frame[:] = frame // 2 + 190
        yield frame


@pytest.mark.parametrize("begin", [run_in_threads, run_in_child])
@pytest.mark.parametrize("key_every", [1, 600])
def test_fragments_of_any_size_travel(begin: Callable[..., Run], key_every: int, tmp_path: Path) -> None:
    options = {"preset": "ultrafast", "crf": "0", "g": str(key_every), "sc_threshold": "0"}
    video = make_video(tmp_path / "noise.mp4", noise(30), FPS, options=options)
    assert video.stat().st_size > 8 * 2**20, "more than 20 Mbit/s"
    collector = Collector()
    run_session(
        configured(video, tmp_path / "clips"),
        LinesDisplay(0),
        [collector],
        lambda config: begin(config, model_loader="tests.support.answer_models:FakeAnswerModel"),
    )
    fragments = collector.of(VideoFragment)
    assert key_every == 1 or max(len(fragment.data) for fragment in fragments) > 2**21
    assert sum(len(fragment.data) for fragment in fragments) > 8 * 2**20
    (*_, clip) = collector.of(ClipWritten)
    assert clip.error is None
    assert len(times_of(tmp_path / "clips" / clip.video)) > 20


def test_the_packets_of_a_file_are_copied(lamps: dict[str, Path], tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    collector = run(configured(lamps["h264"], tmp_path / "clips", output=OutputConfig(paths=(str(lines),))))
    first, second = collector.of(ClipWritten)
    assert (first.match, first.video, second.error) == (1, None, None)
    assert (second.start_s, second.end_s) == (4.0, pytest.approx(10.0, abs=0.11))
    clip = tmp_path / "clips" / second.video
    assert times_of(clip) == [pytest.approx(number / FPS + 0.2, abs=0.001) for number in range(60)]
    copied, source = packets_of(clip), packets_of(lamps["h264"])
    at = source.index(copied[0])
    assert at == 40
    assert copied == source[at : at + 60]
    types = [json.loads(line)["type"] for line in lines.read_text().splitlines()]
    assert (types.count("clip"), types[-1]) == (2, "summary")
    assert (tmp_path / "clips" / second.picture).stat().st_size > 2000


@pytest.mark.parametrize("kind", ["mjpeg", "folder"])
def test_video_that_cannot_be_copied_is_encoded(kind: str, lamps: dict[str, Path], tmp_path: Path) -> None:
    source = lamps["mjpeg"]
    if kind == "folder":
        source = tmp_path / "pictures"
        source.mkdir()
        from PIL import Image as PictureFile

        for number, picture in enumerate(lamp()):
            PictureFile.fromarray(picture).save(source / f"{number:04}.png")
    config = configured(source, tmp_path / "clips")
    collector = run(config.model_copy(update={"capture": config.capture.model_copy(update={"fps": float(FPS)})}))
    clip = collector.of(ClipWritten)[-1]
    assert clip.video is not None
    times = times_of(tmp_path / "clips" / clip.video)
    assert times[0] == 0
    assert clip.start_s <= 5.0
    assert len(times) == pytest.approx((clip.end_s - clip.start_s) * FPS, abs=1)


def test_the_end_of_the_run_ends_the_clip(lamps: dict[str, Path], tmp_path: Path) -> None:
    collector = run(configured(lamps["h264"], tmp_path / "clips", go_on=False))
    clip = collector.of(ClipWritten)[-1]
    assert clip.video is not None
    assert clip.start_s == 4.0
    assert 8.0 <= clip.end_s <= 10.1
    assert times_of(tmp_path / "clips" / clip.video)


def test_a_clip_and_a_stream_are_written_of_one_recording(lamps: dict[str, Path], tmp_path: Path) -> None:
    stream = tmp_path / "live" / "master.m3u8"
    collector = run(configured(lamps["h264"], tmp_path / "clips", output=OutputConfig(paths=(str(stream),))))
    assert collector.of(ClipWritten)[-1].video is not None
    segments = sorted(stream.parent.glob("segment-*.m4s"))
    assert len(segments) == 8
    data = (stream.parent / "header-00000.mp4").read_bytes() + b"".join(path.read_bytes() for path in segments)
    assert packets_of(data) == packets_of(lamps["h264"])


def test_a_camera_has_clips_through_an_outage(tmp_path: Path) -> None:
    """The frame process is another one; the packets come from the camera, whose lamp is lit again and again."""
    blink = [picture for number, picture in enumerate(lamp()) if 60 <= number < 100]
    config = configured("", tmp_path / "clips")
    config = config.with_values({"clips.before_s": 1.0, "clips.after_s": 1.0})
    config = config.model_copy(update={"pipeline": PipelineConfig()})
    collector = Collector()
    with RtspServer(encode(blink, FPS, gop=5), FPS) as server:

        def follow(run_config: Config) -> Run:
            run = run_in_child(run_config, model_loader="tests.support.answer_models:FakeAnswerModel")

            def react(event: Event) -> None:
                videos = [clip for clip in collector.of(ClipWritten) if clip.video is not None]
                if isinstance(event, ClipWritten) and len(videos) == 1 and event.video is not None:
                    server.cut()
                    server.start()
                elif len(videos) >= 2 and collector.of(Outage):
                    run.end()

            collector.react = react
            return run

        run_session(config.model_copy(update={"source": server.url}), LinesDisplay(0), [collector], follow)
    clips = [clip.video for clip in collector.of(ClipWritten) if clip.video is not None]
    assert len(clips) >= 2
    for name in clips:
        times = times_of(tmp_path / "clips" / name)
        assert times[0] < 0.2
        assert 3 <= len(times) <= 60
    assert re.fullmatch(r"\d{8}-\d{6}-127_0_0_1_\d+_live-until-0001\.mp4", clips[0])


def test_without_clips_no_packet_is_kept_and_nothing_is_imported(lamps: dict[str, Path]) -> None:
    collector = run(configured(lamps["h264"], None))
    assert collector.of(VerdictChanged)
    assert collector.of(VideoFragment) + collector.of(AskedPicture) == []
    script = (
        "import sys; from stream.sinks.factory import open_sinks; from stream.config import Config\n"
        "import stream.runtime.frame_stages, stream.extensions.web.application\n"
        "open_sinks(Config(source='scene:demo'), None)\n"
        "loaded = [name for name in sys.modules if name.startswith('stream.extensions.clips.')]\n"
        "assert not [name for name in loaded if not name.endswith('section')]\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=LIMIT_S)


def test_clips_need_a_question(tmp_path: Path) -> None:
    config = configured("scene:demo", tmp_path / "clips")
    check_clips(config)
    without = config.model_copy(update={"watch": ()})
    with pytest.raises(ConfigError, match="give one, with --watch QUESTION, or give --web"):
        check_clips(without)
    check_clips(without.with_values({"web.address": "127.0.0.1:0"}))


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_within_a_write_leaves_whole_files(tmp_path: Path, count: int) -> None:
    video = video_file(tmp_path / "a.mp4", 6)
    command = [sys.executable, "-m", "tests.support.killed_clips", str(video), str(tmp_path / "clips"), str(count)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout.split()[0]) > 1


def matches_of(lines: Path) -> int:
    return lines.read_bytes().count(b'"type":"clip"') if lines.exists() else 0


@pytest.mark.slow
def test_a_hundred_runs_that_are_killed_at_any_moment_leave_whole_files(tmp_path: Path) -> None:
    chance = random.Random(1)
    clips = tmp_path / "clips"
    for number in range(100):
        lines = tmp_path / f"{number}.jsonl"
        options = ["--until", "Is there a red circle?", "--go-on", "--clips", str(clips), "-o", str(lines)]
        limits = ["--set", "clips.after_s=1", "--set", "clips.before_s=1"]
        command = [sys.executable, "run_stream.py", "caption", "scene:moving", *options, *limits]
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not matches_of(lines) and running.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                running.wait(0.002)
        with suppress(subprocess.TimeoutExpired):
            running.wait(3 * chance.random())
        with suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(running.pid).children(recursive=True), psutil.Process(running.pid)]:
                process.kill()
        running.wait()
        for path in clips.glob("*.mp4"):
            assert times_of(path)
    assert len(list(clips.glob("*.mp4"))) > 10
