"""Files that still grow: their writer goes on whenever the reader waits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceError, SourceNotFound
from stream.media import Source, SourceFrame
from stream.sources.factory import check_source, open_source
from stream.sources.growing import WAIT_S, GrowingReader
from tests.support.clock import FakeClock
from tests.support.video import make_video, moving_square

COUNT = 60
WAITS = 8
IDLE_S = WAITS * WAIT_S

FORMS = {
    "a.ts": {},
    "a.mkv": {"cluster_time_limit": "400"},
    "a.mp4": {"movflags": "frag_keyframe+empty_moov"},
}


class Writer:
    """Appends the next part of a recording at each wait of a reader, and nothing more after the last one."""

    def __init__(self, path: Path, data: bytes, part_bytes: int) -> None:
        path.write_bytes(b"")
        self.path, self.wait_count = path, 0
        self._parts: Iterator[bytes] = (data[at : at + part_bytes] for at in range(0, len(data), part_bytes))

    def write(self, reader: GrowingReader) -> None:
        part = next(self._parts, b"")
        self.wait_count = 0 if part else self.wait_count + 1
        with self.path.open("ab") as file:
            file.write(part)


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    """Writer whose `write` stands for the waits of readers."""

    class Following(Writer):
        def __init__(self, path: Path, data: bytes, part_bytes: int) -> None:
            super().__init__(path, data, part_bytes)
            monkeypatch.setattr(GrowingReader, "wait", lambda reader: self.write(reader))

    return Following


def followed(path: Path, **capture: object) -> Source:
    config = CaptureConfig.model_validate({"follow": True, "follow_idle_s": IDLE_S, **capture})
    check_source(str(path), config, NetworkConfig())
    return open_source(str(path), config, FakeClock())


def shown(source: Source) -> list[tuple[int, bytes]]:
    with source:
        frames = [item for item in source.frames() if isinstance(item, SourceFrame)]
        return [(frame.media_ns, frame.planes.planes[0].tobytes()) for frame in frames]


def recording(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    return make_video(folder / name, moving_square(COUNT), options={"g": "10"}, container_options=FORMS[name])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("part_bytes", [700, 5000])
def test_it_is_read_as_the_finished_file(grown: type[Writer], tmp_path: Path, name: str, part_bytes: int) -> None:
    finished = recording(tmp_path / "finished", name)
    writer = grown(tmp_path / name, finished.read_bytes(), part_bytes)
    source = followed(writer.path)
    assert not source.describe().live
    frames = shown(source)
    assert len(frames) == COUNT
    assert frames == shown(open_source(str(finished), CaptureConfig(), FakeClock()))
    assert source.trailing_skipped() == ()
    assert writer.wait_count >= WAITS, "it ends when nothing came for that long"


def test_a_finished_file_ends_after_its_idle_time(grown: type[Writer], tmp_path: Path) -> None:
    data = recording(tmp_path / "finished", "a.ts").read_bytes()
    writer = grown(tmp_path / "a.ts", b"", 1)
    writer.path.write_bytes(data)
    assert len(shown(followed(writer.path))) == COUNT
    assert writer.wait_count == WAITS


def test_a_part_of_it(grown: type[Writer], tmp_path: Path) -> None:
    data = recording(tmp_path / "finished", "a.ts").read_bytes()
    writer = grown(tmp_path / "a.ts", data, 1000)
    frames = shown(followed(writer.path, start_s=1.0, duration_s=0.4))
    assert [media_ns // 1_000_000 for media_ns, _ in frames] == list(range(1000, 1400, 40))


def test_a_stop_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.ts").write_bytes(b"a")
    reader = GrowingReader(tmp_path / "a.ts", 1e6)
    monkeypatch.setattr(GrowingReader, "wait", lambda _: setattr(reader, "should_stop", lambda: True))
    assert [reader.read(9), reader.read(9), reader.read(9)] == [b"a", b"", b""]
    assert reader.stopped
    reader.close()


def test_an_interrupt_while_it_opens_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(reader: GrowingReader) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GrowingReader, "wait", interrupt)
    (tmp_path / "a.ts").write_bytes(b"")
    with pytest.raises(KeyboardInterrupt):
        followed(tmp_path / "a.ts")


class TestErrors:
    @pytest.mark.parametrize("before_data", [b"", struct.pack(">I4sQ", 1, b"free", 20) + b"abcd"])
    def test_an_mp4_without_its_index(self, grown: type[Writer], tmp_path: Path, before_data: bytes) -> None:
        data = make_video(tmp_path / "whole.mp4", moving_square(COUNT)).read_bytes()
        writer = grown(tmp_path / "a.mp4", data, 1 << 20)
        brands_end = int.from_bytes(data[:4], "big")
        writer.path.write_bytes(data[:brands_end] + before_data + data[brands_end : data.index(b"moov") - 4])
        with pytest.raises(SourceError) as raised:
            followed(writer.path)
        assert str(raised.value) == (
            f"{writer.path} is an MP4 whose index (moov) is written when its recording ends, so it cannot be read "
            "while it grows; wait for its end and leave --follow out, or record MPEG-TS, Matroska or fragmented MP4 "
            "(ffmpeg -movflags +frag_keyframe+empty_moov)"
        )

    def test_one_with_its_index_in_front_is_read(self, grown: type[Writer], tmp_path: Path) -> None:
        path = make_video(tmp_path / "a.mp4", moving_square(COUNT), container_options={"movflags": "faststart"})
        data = path.read_bytes()
        assert len(shown(followed(grown(path, data, len(data) // 3).path))) == COUNT

    def test_a_file_that_stays_empty(self, grown: type[Writer], tmp_path: Path) -> None:
        writer = grown(tmp_path / "a.ts", b"", 1)
        with pytest.raises(SourceError, match=r"a\.ts is still empty; check that something records into it"):
            followed(writer.path)

    @pytest.mark.parametrize("data", [bytes(range(256)) * 20, b"hello, this is text\n" * 99])
    def test_a_file_that_is_no_video(self, grown: type[Writer], tmp_path: Path, data: bytes) -> None:
        writer = grown(tmp_path / "a.ts", data, 1000)
        with pytest.raises(SourceError, match=r"a\.ts is not a video that FFmpeg can read while it grows: .*; record"):
            followed(writer.path)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match="does not exist"):
            followed(tmp_path / "a.ts")

    @pytest.mark.parametrize("address", ["rtsp://me:hush@camera/1", "-", "scene:demo", "0"])
    def test_other_sources_do_not_grow(self, address: str) -> None:
        with pytest.raises(
            ConfigError, match=r"--follow \(capture.follow\) waits for more of a file on this machine, and"
        ):
            check_source(address, CaptureConfig(follow=True), NetworkConfig())
        with pytest.raises(ConfigError, match="is none; leave it out"):
            open_source(address, CaptureConfig(follow=True), FakeClock())
