"""Folder of a stream: listed files exist, captions match their pictures, and every end leaves the folder complete."""

from __future__ import annotations

import errno
import os
import re
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import av
import pytest

from stream.config import AnswerConfig, Config, OutputConfig
from stream.display.progress import ProgressDisplay
from stream.errors import OutputError, OutputFailed, ResumeError
from stream.events import Outage
from stream.extensions.hls.folder import MARK
from stream.extensions.hls.section import HlsSection
from stream.extensions.hls.sink import HlsSink
from stream.extensions.journal.journal import journal_for
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.session import run_session
from stream.sinks.checks import check_outputs
from stream.sinks.output_file import check_distinct
from tests.support.events import answer, frame, segment, summary
from tests.support.full_disk import room_for
from tests.support.video import make_video, moving_square

FAKE = "tests.support.answer_models:FakeAnswerModel"


class Stream:
    """Sink, with the segments that a frame process would write for it."""

    def __init__(self, folder: Path, *, live: bool = False, **config: object) -> None:
        self.folder = folder
        self.sink = HlsSink(str(folder / "master.m3u8"), HlsSection.model_validate(config), live=live)
        self._files = 0

    def show(self, start_s: float, duration_s: float = 2.0, header: str = "a", **fields: object) -> None:
        """Write a segment and its event, and the frame after it."""
        names = f".segment-1-{self._files}.m4s", f".segment-1-{ord(header)}.mp4"
        self._files += 1
        for name in names:
            (self.folder / name).write_bytes(name.encode())
        self.sink.write(segment(start_s, duration_s, file=names[0], header=names[1], **fields))
        self.sink.write(frame(0, start_s + duration_s))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def listed(self, name: str = "video.m3u8") -> list[str]:
        return [line for line in self.read(name).splitlines() if not line.startswith("#")]

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {MARK}


def test_a_segment_is_held_until_its_captions_are_known(tmp_path: Path) -> None:
    stream = Stream(tmp_path, hold_s=3.0)
    with closing(stream.sink):
        stream.sink.write(frame(0, 0.0))
        stream.show(0.0)
        assert not (tmp_path / "master.m3u8").exists()
        stream.sink.write(answer(1.0, "a cat"))
        stream.show(2.0)
        assert not (tmp_path / "master.m3u8").exists()
        stream.sink.write(frame(1, 5.0))
        assert stream.listed() == ["segment-00000.m4s"]
        assert stream.listed("captions.m3u8") == ["segment-00000.vtt"]
        assert stream.listed("master.m3u8") == ["video.m3u8"]
        assert "00:00:01.000 --> 00:00:02.000\na cat" in stream.read("segment-00000.vtt")
        assert "ENDLIST" not in stream.read("video.m3u8")


def test_old_segments_of_a_live_stream_go_and_all_that_is_listed_is_there_after_every_event(tmp_path: Path) -> None:
    stream = Stream(tmp_path, live=True, keep_s=4.0, hold_s=0.0)
    with closing(stream.sink):
        for number in range(12):
            stream.show(number * 2.0, header="a" if number < 6 else "b")
            for playlist in ("master.m3u8", "video.m3u8", "captions.m3u8"):
                assert set(stream.listed(playlist)) <= stream.names()
            headers = re.findall('#EXT-X-MAP:URI="(.*)"', stream.read("video.m3u8"))
            assert headers
            assert set(headers) <= stream.names()
        assert stream.listed() == ["segment-00010.m4s", "segment-00011.m4s"]
        assert "#EXT-X-MEDIA-SEQUENCE:10\n" in stream.read("video.m3u8")
        assert "#EXT-X-DISCONTINUITY-SEQUENCE:1\n" in stream.read("video.m3u8")
        assert {name for name in stream.names() if name.endswith(".m4s")} == {
            f"segment-000{number:02}.m4s" for number in (8, 9, 10, 11)
        }
        assert {name for name in stream.names() if name.startswith("header")} == {"header-00006.mp4"}


def test_a_file_is_kept_as_a_whole_and_a_live_source_for_a_minute(tmp_path: Path) -> None:
    for live, count in ((False, 100), (True, 30)):
        stream = Stream(tmp_path / str(live), live=live, hold_s=0.0)
        with closing(stream.sink):
            for number in range(100):
                stream.show(number * 2.0)
        assert len(stream.listed()) == count
        assert ("PLAYLIST-TYPE:EVENT" in stream.read("video.m3u8")) == (not live)


@pytest.mark.parametrize("with_summary", [True, False])
def test_every_end_gives_out_what_there_is(tmp_path: Path, with_summary: bool) -> None:
    stream = Stream(tmp_path)
    stream.sink.write(answer(0.0, "a cat"))
    stream.show(0.0)
    if with_summary:
        stream.sink.write(summary())
    stream.sink.close()
    stream.sink.close()
    for playlist in ("video.m3u8", "captions.m3u8"):
        assert stream.read(playlist).endswith("#EXT-X-ENDLIST\n")
    assert stream.listed() == ["segment-00000.m4s"]
    assert not [name for name in stream.names() if name.startswith(".")]


def test_late_captions_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(tmp_path, hold_s=0.0)
    stream.sink.write(answer(0.0, "a cat"))
    stream.show(0.0)
    stream.sink.write(answer(1.0, "a dog"))
    stream.sink.close()
    assert caplog.messages == [
        f"{tmp_path}/master.m3u8: 1 of 2 captions came later than the stream, by up to 1.0 s; set hls.hold_s above that"
    ]


def test_the_first_segment_removes_only_the_files_of_an_earlier_run(tmp_path: Path) -> None:
    first = Stream(tmp_path)
    for number in range(3):
        first.show(number * 2.0)
    first.sink.close()
    (tmp_path / "index.html").write_text("mine", encoding="utf-8")
    (tmp_path / ".segment-9-1.m4s").write_text("of a run that was killed", encoding="utf-8")
    before = first.names() - {".segment-9-1.m4s"}
    second = Stream(tmp_path, hold_s=0.0)
    with closing(second.sink):
        assert second.names() == before
        second.show(0.0)
        assert {name for name in second.names() if name.startswith("segment")} == {
            "segment-00000.m4s",
            "segment-00000.vtt",
        }
        assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize("name", ["segment-00000.m4s", "header-00000.mp4", "captions.m3u8", "video.m3u8"])
def test_files_of_another_program_are_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=rf"holds '{name}', which no run has written"):
        Stream(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_without_video_is_removed_and_that_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "live"
    stream = Stream(folder)
    assert folder.is_dir()
    stream.sink.write(frame(7, 0.5))
    stream.sink.close()
    assert not folder.exists()
    assert caplog.messages == [f"{folder}/master.m3u8 was not written: no video arrived that a stream could hold"]


def test_two_runs_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with closing(Stream(tmp_path).sink), pytest.raises(OutputError, match="another run is writing into the folder"):
        Stream(tmp_path)
    Stream(tmp_path).sink.close()


def test_a_disk_that_is_full_ends_the_run_and_leaves_what_is_listed(tmp_path: Path) -> None:
    stream = Stream(tmp_path, hold_s=0.0)
    stream.show(0.0)
    with room_for(20), pytest.raises(OutputFailed, match=r"master.m3u8': File too large; what it lists can be played"):
        stream.show(2.0)
    stream.sink.close()
    assert stream.listed() == ["segment-00000.m4s"]
    assert set(stream.listed()) <= stream.names()
    assert not [name for name in stream.names() if name.startswith(".")]


def test_unlisted_segments_make_room_for_the_end_of_the_playlists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk that has room only after the segments that no playlist lists are removed."""
    stream = Stream(tmp_path, hold_s=2.0)
    stream.show(0.0)
    stream.show(2.0)
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        if any(name.startswith(".segment") for name in stream.names()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, **options)

    stream.show(4.0)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputFailed, match="No space left"):
        stream.sink.write(segment(error="No space left on device"))
    stream.sink.close()
    assert stream.listed() == ["segment-00000.m4s", "segment-00001.m4s"]
    for playlist in ("video.m3u8", "captions.m3u8"):
        assert stream.read(playlist).endswith("#EXT-X-ENDLIST\n")
    assert not [name for name in stream.names() if name.startswith(".")]


def test_an_outage_holds_nothing_back_and_a_frame_process_that_cannot_write_ends_the_run(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.show(0.0)
    stream.sink.write(Outage(frame_index=3, pts_s=2.0, reason="timed out"))
    assert stream.listed() == ["segment-00000.m4s"]
    with closing(stream.sink), pytest.raises(OutputFailed, match="No space left"):
        stream.sink.write(segment(error="No space left on device"))


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["none/of/these/master.m3u8"], "there is no folder"),
        (["video.m3u8"], "the name of a playlist beside it; name it master.m3u8"),
        (["captions.m3u8"], "the name of a playlist beside it"),
        (["a/master.m3u8", "b/master.m3u8"], "two streams; a run writes one"),
        (["file/master.m3u8"], "'file' is no folder"),
        (["taken/master.m3u8"], "the folder of 'taken/master.m3u8' holds 'video.m3u8', which no run has written"),
    ],
)
def test_sources_that_cannot_be_a_stream_are_refused(
    paths: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("taken").mkdir()
    Path("taken/video.m3u8").touch()
    output = OutputConfig(paths=tuple(paths))
    with pytest.raises(OutputError, match=problem):
        check_outputs(Config(source="scene:demo", output=output))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_a_stream_cannot_be_continued(tmp_path: Path) -> None:
    config = Config(source="scene:demo", output=OutputConfig(paths=(str(tmp_path / "master.m3u8"),)))
    assert journal_for(config, resume=False) is None
    with pytest.raises(ResumeError, match="--resume needs outputs that are ordinary files"):
        journal_for(config, resume=True)


def test_streams_of_several_sources_need_separate_folders() -> None:
    with pytest.raises(OutputError, match=r"'live/a\.m3u8' and 'live/b\.m3u8' are two streams in one folder"):
        check_distinct(["live/a.m3u8", "live/b.m3u8"], "scene:demo")
    check_distinct(["a/master.m3u8", "b/master.m3u8"], "scene:demo")


def test_nothing_is_claimed_if_folders_have_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Mock(side_effect=OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP)))
    monkeypatch.setattr("stream.sinks.output_file.fcntl.flock", refused)
    Stream(tmp_path).sink.close()


def test_a_run_writes_all_frames_of_its_source_and_its_answers(tmp_path: Path) -> None:
    source = make_video(tmp_path / "a.mp4", moving_square(75), options={"g": "25", "bf": "2", "sc_threshold": "0"})
    config = Config(
        source=str(source),
        answer=AnswerConfig(every_s=1.0),
        output=OutputConfig(paths=(str(tmp_path / "live" / "master.m3u8"),)),
        hls=HlsSection(segment_s=1.0),
    )
    run_session(
        config,
        ProgressDisplay(captions=False),
        make_run=lambda run_config: run_in_threads(run_config, model_loader=FAKE),
    )
    folder = tmp_path / "live"
    captions = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.vtt"))]
    assert len(captions) == 3
    assert [text.count("-->") for text in captions] == [1, 1, 2]  # the last frame is answered about, too
    options = {"allowed_extensions": "ALL", "allowed_segment_extensions": "ALL"}
    with av.open(str(folder / "video.m3u8"), options=options) as container:
        assert len(list(container.decode(video=0))) == 75


def test_a_playlist_is_not_written_through_a_link(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    (tmp_path / "letter.txt").write_text("of the user")
    os.link(tmp_path / "letter.txt", tmp_path / f".video.m3u8.{os.getpid()}.new")
    with closing(stream.sink):
        stream.show(0.0)
        stream.sink.write(summary())
    assert stream.listed() == ["segment-00000.m4s"]
    assert (tmp_path / "letter.txt").read_text() == "of the user"
