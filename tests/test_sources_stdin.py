"""Standard input: the same frames as the file, however the writer behaves, and an end when one is asked for."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from video_maker import make_audio, make_video, moving_square

from stream.clock import FakeClock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources import Source, SourceFrame
from stream.sources import stdin as module
from stream.sources.file import FileSource
from stream.sources.stdin import PipeReader, StdinSource

CONFIG = CaptureConfig()


@contextmanager
def pipe_of(write: Callable[[int], None]) -> Iterator[int]:
    """The reading end of a pipe whose writing end `write` gets in a thread, and which is closed after it."""
    reading, writing = os.pipe()

    def run() -> None:
        try:
            write(writing)
        except BrokenPipeError:
            pass
        finally:
            os.close(writing)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield reading
    finally:
        os.close(reading)
        thread.join(10)
        assert not thread.is_alive()


def piped(data: bytes, chunk: int = 1 << 20) -> Callable[[int], None]:
    def write(descriptor: int) -> None:
        for start in range(0, len(data), chunk):
            part = data[start : start + chunk]
            while part:
                part = part[os.write(descriptor, part) :]

    return write


def read_whole(source: Source) -> list[tuple[int, list[bytes]]]:
    with source:
        return [(frame.media_ns, [p.tobytes() for p in frame.planes.planes]) for frame in frames_of(source)]


def frames_of(source: Source) -> Iterator[SourceFrame]:
    for frame in source.frames():
        assert isinstance(frame, SourceFrame)
        yield frame


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        (".ts", "libx264"),
        (".mkv", "ffv1"),
        (".h264", "libx264"),
        (".mjpeg", "mjpeg"),
        (".avi", "mjpeg"),
        (".gif", "gif"),
    ],
)
def test_it_gives_the_frames_of_the_file(tmp_path: Path, suffix: str, codec: str) -> None:
    pixel_format = {"mjpeg": "yuvj420p", "gif": "rgb8"}.get(codec, "yuv420p")
    path = make_video(tmp_path / f"clip{suffix}", moving_square(12), codec=codec, pixel_format=pixel_format)
    with pipe_of(piped(path.read_bytes())) as descriptor:
        through_pipe = read_whole(StdinSource(CONFIG, FakeClock(), descriptor))
    assert len(through_pipe) == 12
    assert through_pipe == read_whole(FileSource(path, CONFIG, FakeClock()))


def test_a_writer_that_gives_little_at_a_time_is_waited_for(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.ts", moving_square(5))
    with pipe_of(piped(path.read_bytes(), chunk=97)) as descriptor:
        source = StdinSource(CONFIG, FakeClock(), descriptor)
        assert source.describe().name == "standard input"
        assert not source.describe().live
        assert len(read_whole(source)) == 5


def test_a_redirected_file_may_have_its_index_at_the_end(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mp4", moving_square(5))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert len(read_whole(StdinSource(CONFIG, FakeClock(), descriptor))) == 5
    finally:
        os.close(descriptor)


def test_a_wait_for_the_writer_ends_when_asked(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", moving_square(50), codec="ffv1")
    data, ended = path.read_bytes(), threading.Event()

    def half_and_then_nothing(descriptor: int) -> None:
        piped(data[: len(data) // 2])(descriptor)
        ended.wait(10)

    with pipe_of(half_and_then_nothing) as descriptor, StdinSource(CONFIG, FakeClock(), descriptor) as source:
        asked = []
        count = sum(1 for _ in source.frames(lambda: bool(asked.append(1) or len(asked) > 1)))
        ended.set()
        assert 5 < count < 50
        assert len(asked) == 2
        assert source.trailing_skipped() == ()


def test_a_writer_that_dies_loses_the_rest_and_says_so(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", moving_square(50), codec="ffv1")
    data = path.read_bytes()
    with pipe_of(piped(data[: len(data) // 2])) as descriptor, StdinSource(CONFIG, FakeClock(), descriptor) as source:
        assert 5 < sum(1 for _ in source.frames()) < 50
        assert "the file ends early" in source.trailing_skipped()[-1].reason


def test_a_long_silence_at_the_start_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SAY_WAITING_S", -1.0)
    monkeypatch.setattr(module, "WAIT_MS", 1)
    told = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    def write(descriptor: int) -> None:
        assert told.wait(10)
        os.write(descriptor, b"x")

    handler = Heard()
    module.log.addHandler(handler)
    try:
        with pipe_of(write) as descriptor:
            reader = PipeReader(descriptor)
            assert reader.read(10) == b"x"
            assert reader.read(10) == b""
    finally:
        module.log.removeHandler(handler)
    assert caplog.messages == ["waiting for a video on standard input"]


class TestWhatIsNoVideo:
    def fails(self, descriptor: int, pattern: str) -> None:
        with pytest.raises(SourceError, match=pattern):
            StdinSource(CONFIG, FakeClock(), descriptor)

    def test_nothing(self) -> None:
        with pipe_of(piped(b"")) as descriptor:
            self.fails(descriptor, "ended without any data")

    def test_noise(self) -> None:
        with pipe_of(piped(np.random.default_rng(0).bytes(50_000))) as descriptor:
            self.fails(descriptor, r"no video that FFmpeg can read from a pipe: .*; send MPEG-TS or Matroska")

    def test_text(self) -> None:
        with pipe_of(piped(b"\x1b[1mno video at all\n" * 400)) as descriptor:
            self.fails(descriptor, "no video that FFmpeg can read from a pipe")

    def test_an_mp4_with_its_index_at_the_end(self, tmp_path: Path) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (8, 192, 256, 3), np.uint8)
        path = make_video(tmp_path / "clip.mp4", noise)
        assert path.stat().st_size > 1 << 16, "FFmpeg seeks within what it holds already"
        with pipe_of(piped(path.read_bytes())) as descriptor:
            self.fails(descriptor, "with its index in front")

    def test_sound(self, tmp_path: Path) -> None:
        path = make_audio(tmp_path / "song.ts")
        with pipe_of(piped(path.read_bytes())) as descriptor:
            self.fails(descriptor, "standard input has no video stream")

    def test_a_terminal(self) -> None:
        controller, terminal = pty.openpty()
        try:
            self.fails(terminal, "standard input is the terminal; pipe a video into it")
        finally:
            os.close(controller)
            os.close(terminal)

    def test_a_folder(self, tmp_path: Path) -> None:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            self.fails(descriptor, "is a folder; pipe a video into it")
        finally:
            os.close(descriptor)

    def test_a_closed_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails(10_000, "standard input is closed; pipe a video into it")
        monkeypatch.setattr(sys, "stdin", None)
        self.fails(0, "standard input is closed; pipe a video into it")


def test_the_address_is_a_dash(tmp_path: Path) -> None:
    """In a process of its own, because this one's standard input is the test runner's."""
    path = make_video(tmp_path / "clip.ts", moving_square(12))
    code = (
        "from stream.sources.open import open_source; from stream.config import CaptureConfig;"
        "from stream.clock import FakeClock;"
        "source = open_source('-', CaptureConfig(), FakeClock()); print(len(list(source.frames()))); source.close()"
    )
    with path.open("rb") as clip, subprocess.Popen(["cat"], stdin=clip, stdout=subprocess.PIPE) as cat:
        done = subprocess.run([sys.executable, "-c", code], stdin=cat.stdout, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"12\n", b"")
