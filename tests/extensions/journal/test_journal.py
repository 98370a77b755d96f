"""Journal of a run: recorded answers are read back exactly, and nothing else."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from arr_coc.types import Feedback, FrameStamp
from stream.answer.filters import PriorGlance, RecalledAnswer
from stream.cli import main
from stream.config import (
    AnswerConfig,
    CaptureConfig,
    Config,
    MemoryConfig,
    OutputConfig,
    PipelineConfig,
    WatchConfig,
)
from stream.control import INTERRUPTED, RunControl
from stream.errors import ResumeError
from stream.events import Answer, Glance
from stream.extensions.api.section import ApiSection
from stream.extensions.journal.journal import MAGIC, Journal, could_continue, journal_for, journal_path
from stream.recording.log import FRAMING
from stream.runtime.frame_stages import run_in_threads
from tests.support.events import answer
from tests.support.network import LIMIT_S
from tests.support.video import make_video, moving_square

IDENTITY = {"source": "clip.mp4 (12 bytes, 00)", "answer.query": '"What?"', "program": "1"}


def numbered(number: int) -> Answer:
    return msgspec.structs.replace(answer(number / 3, f"ünsaid {number}", frame_index=10 * number), answer=number)


def feedback(number: int) -> Feedback:
    rng = np.random.default_rng(number)
    regions = rng.integers(0, (6, 9, 9), (5, 3), dtype=np.int32)
    scores = rng.random((2, 5), dtype=np.float32)
    embedding = rng.random((5, 16), dtype=np.float32) if number % 4 == 1 else None
    return Feedback(FrameStamp(10 * number, 7, 8, 1 << 40), regions, scores[0], scores[1], embedding)


def stamp(frame_index: int) -> FrameStamp:
    return FrameStamp(frame_index, 0, 0, 1)


GLANCE = Glance(frame_index=0, pts_s=0.0, query="What?", tokens_used=15, tokens_total=240)


def begun(path: Path) -> Journal:
    journal = Journal(path, IDENTITY)
    journal.open()
    return journal


def kept(path: Path, count: int = 3) -> Path:
    """Write a journal with `count` answers; every other one has feedback."""
    journal = begun(path)
    for number in range(count):
        journal.append(RecalledAnswer(numbered(number), feedback(number) if number % 2 else None))
    journal.close(is_finished=False)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_path(str(tmp_path / "out.vtt"))


def test_a_glance_comes_back_with_its_answer(path: Path) -> None:
    journal = begun(path)
    journal.append(RecalledAnswer(numbered(0), None, PriorGlance(GLANCE, feedback(3))))
    journal.append(RecalledAnswer(numbered(1), feedback(1), PriorGlance(GLANCE, None)))
    journal.close(is_finished=False)
    reader = Journal.continued(path, IDENTITY)
    first, second = reader.recall(0, stamp(0)), reader.recall(1, stamp(10))
    assert first is not None
    assert second is not None
    assert first.feedback is None
    assert first.glance is not None
    assert first.glance.event == GLANCE
    assert first.glance.feedback is not None
    np.testing.assert_array_equal(first.glance.feedback.attention, feedback(3).attention)
    assert first.glance.feedback.stamp == feedback(3).stamp
    assert second.glance == PriorGlance(GLANCE, None)


def test_kept_events_are_read_back_exactly(path: Path) -> None:
    journal = Journal.continued(kept(path), IDENTITY)
    assert (journal.earlier_answers, journal.count) == (3, 3)
    for number in range(3):
        recalled = journal.recall(number, stamp(10 * number))
        assert recalled is not None
        assert recalled.event == numbered(number)
        if not number % 2:
            assert recalled.feedback is None
            continue
        was, now = feedback(number), recalled.feedback
        assert now is not None
        assert now.stamp == was.stamp
        for name in ("regions", "attention", "similarity"):
            original, copy = getattr(was, name), getattr(now, name)
            assert original.dtype == copy.dtype
            assert np.array_equal(original, copy)
        assert now.embedding is not None
        np.testing.assert_array_equal(now.embedding, was.embedding)
    assert journal.recall(3, stamp(30)) is None


def test_a_fresh_run_recalls_nothing_and_replaces_what_lay_there(path: Path) -> None:
    kept(path)
    journal = Journal(path, IDENTITY)
    assert Journal.continued(path, IDENTITY).earlier_answers == 3, "nothing is lost before the run begins"
    journal.open()
    assert journal.recall(0, stamp(0)) is None
    assert Journal.continued(path, IDENTITY).earlier_answers == 0
    journal.close(is_finished=False)


def test_a_continued_journal_goes_on_at_its_end(path: Path) -> None:
    journal = Journal.continued(kept(path), IDENTITY)
    journal.open()
    journal.open()
    journal.append(RecalledAnswer(numbered(2), None))
    journal.append(RecalledAnswer(numbered(3), feedback(3)))
    journal.close(is_finished=False)
    reader = Journal.continued(path, IDENTITY)
    assert reader.earlier_answers == 4
    assert path.read_bytes() == kept(path.with_name("unbroken"), 4).read_bytes()


def test_each_answer_is_on_the_disk_before_the_next_is_asked(path: Path) -> None:
    journal = begun(path)
    for number in range(3):
        journal.append(RecalledAnswer(numbered(number), None))
        assert Journal.continued(path, IDENTITY).earlier_answers == number + 1
    journal.close(is_finished=False)


def test_an_incomplete_end_of_any_length_is_dropped(path: Path) -> None:
    content = kept(path, 2).read_bytes()
    record_bytes = len(kept(path, 1).read_bytes())
    for length in range(record_bytes, len(content)):
        path.write_bytes(content[:length])
        assert Journal.continued(path, IDENTITY).earlier_answers == 1
    journal = Journal.continued(path, IDENTITY)
    journal.open()
    journal.append(RecalledAnswer(numbered(1), feedback(1)))
    journal.close(is_finished=False)
    assert path.read_bytes() == content


def test_a_damaged_record_and_what_follows_it_is_dropped(path: Path) -> None:
    record_bytes = len(kept(path, 1).read_bytes())
    data = bytearray(kept(path).read_bytes())
    data[record_bytes + FRAMING.size + 2] ^= 1
    assert Journal.continued(path, IDENTITY).damaged_bytes == 0
    path.write_bytes(data)
    journal = Journal.continued(path, IDENTITY)
    assert journal.earlier_answers == 1
    assert journal.damaged_bytes == len(data) - record_bytes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"some text",
        MAGIC,
        MAGIC + FRAMING.pack(4_000_000_000, 0),
        MAGIC + FRAMING.pack(1, 3963480197) + b"\xc1",
    ],
)
def test_a_file_that_is_no_journal_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ResumeError, match="not a journal of a run; leave --resume out"):
        Journal.continued(path, IDENTITY)


@pytest.mark.parametrize("broken", ["feedback", "glance_feedback"])
def test_an_answer_that_cannot_be_read_is_refused(path: Path, broken: str) -> None:
    wrong = {"stamp": [0, 0, 0, 0], "regions": b"x", "attention": b"", "similarity": b""}
    record = {"answer": numbered(0), "glance": GLANCE, broken: wrong}
    payload = msgspec.msgpack.encode(msgspec.to_builtins(record))
    kept(path, 0)
    path.write_bytes(path.read_bytes() + FRAMING.pack(len(payload), zlib.crc32(payload)) + payload)
    with pytest.raises(ResumeError, match="not a journal"):
        Journal.continued(path, IDENTITY)


def test_one_that_cannot_be_opened_is_refused(path: Path) -> None:
    with pytest.raises(ResumeError, match=r"No such file.*leave --resume out"):
        Journal.continued(path, IDENTITY)
    path.mkdir()
    with pytest.raises(ResumeError, match="not a file"):
        Journal.continued(path, IDENTITY)


def test_another_run_is_named_by_what_differs(path: Path) -> None:
    kept(path)
    before = path.read_bytes()
    with pytest.raises(ResumeError, match=r"a run with answer.query \"What\?\", and this one has \"Who\?\"; give"):
        Journal.continued(path, {**IDENTITY, "answer.query": '"Who?"'})
    with pytest.raises(ResumeError, match=r"source clip.mp4 .* has other.mp4 \(and 1 more differ\)"):
        Journal.continued(path, {**IDENTITY, "source": "other.mp4", "program": "2"})
    with pytest.raises(ResumeError, match="a run with seed unset, and this one has 3"):
        Journal.continued(path, {**IDENTITY, "seed": "3"})
    with pytest.raises(ResumeError, match="program 1, and this one has unset"):
        Journal.continued(path, {key: value for key, value in IDENTITY.items() if key != "program"})
    assert path.read_bytes() == before


def test_an_answer_about_another_frame_is_no_answer(path: Path) -> None:
    journal = Journal.continued(kept(path), IDENTITY)
    with pytest.raises(ResumeError, match="answer 1 about frame 10, and this run about frame 11"):
        journal.recall(1, stamp(11))


def test_two_runs_cannot_write_one_journal(path: Path) -> None:
    first, second = Journal(path, IDENTITY), Journal(path, IDENTITY)
    first.open()
    first.append(RecalledAnswer(numbered(0), None))
    with pytest.raises(ResumeError, match="another run is writing"):
        second.open()
    second.close(is_finished=True)
    assert Journal.continued(path, IDENTITY).earlier_answers == 1
    first.close(is_finished=False)


def test_a_finished_run_leaves_none(path: Path) -> None:
    journal = begun(path)
    journal.append(RecalledAnswer(numbered(0), None))
    journal.close(is_finished=True)
    assert not path.exists()
    journal.append(RecalledAnswer(numbered(1), None))
    journal.close(is_finished=True)


def test_a_file_that_took_its_place_meanwhile_stays(path: Path, tmp_path: Path) -> None:
    journal = begun(path)
    replacement = tmp_path / "mine"
    replacement.write_text("mine")
    replacement.rename(path)
    journal.close(is_finished=True)
    assert path.read_text() == "mine"


def test_a_file_of_that_name_which_is_something_else_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("my notes on the journal", encoding="utf-8")
    journal = Journal(path, IDENTITY)
    with caplog.at_level(logging.WARNING):
        journal.open()
    journal.append(RecalledAnswer(numbered(0), None))
    journal.close(is_finished=True)
    assert path.read_text(encoding="utf-8") == "my notes on the journal"
    assert "something else of that name" in caplog.text
    assert "cannot be resumed" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = begun(tmp_path / "absent" / "out.resume")
    journal.append(RecalledAnswer(numbered(0), None))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_full_disk_is_reported_once_and_what_was_kept_is_still_good(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = begun(path)
    journal.append(RecalledAnswer(numbered(0), None))
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 4:
            return write(fd, data[:4])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    journal.append(RecalledAnswer(numbered(1), feedback(1)))
    journal.append(RecalledAnswer(numbered(2), None))
    monkeypatch.undo()
    journal.close(is_finished=False)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert Journal.continued(path, IDENTITY).earlier_answers == 1


ROOT = Path(__file__).resolve().parents[3]
FRAMES = 30


SEVERAL_PICTURES = {
    "answer": AnswerConfig(encode="picture", memory=MemoryConfig(frames=2)),
    "api": ApiSection(url="http://127.0.0.1:1/v1"),
}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    frames = list(moving_square(FRAMES, 192, 128))
    return str(make_video(tmp_path_factory.mktemp("video") / "square.mp4", frames, 10))


def config(source: str, *outputs: Path, **sections: object) -> Config:
    paths = tuple(map(str, outputs))
    return Config.model_validate({"source": source, "output": OutputConfig(paths=paths), **sections})


def test_a_run_without_files_has_no_journal(video: str) -> None:
    assert journal_for(config(video), resume=False) is None


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"capture": CaptureConfig(realtime=True)}, "--resume is incompatible with --realtime"),
        ({"capture": CaptureConfig(follow=True)}, "cannot continue a run with --follow: its file has grown since"),
        ({"pipeline": PipelineConfig(answers="newest")}, "drops nothing: set pipeline.frames=lossless"),
        ({"pipeline": PipelineConfig(frames="newest")}, "drops nothing: set pipeline.frames=lossless"),
        ({"answer": AnswerConfig(encode="incremental")}, "give --encode sparse instead of incremental"),
        (SEVERAL_PICTURES, "--api: leave answer.memory.frames at 1"),
        ({"watch": (WatchConfig(question="is it?"),)}, "a journal has no yes/no checks"),
        ({"source": "-"}, "cannot read standard input twice"),
        ({"source": "rtsp://user:secret@camera/1"}, "cannot read a live source twice"),
        ({"source": "0"}, "cannot read a live source twice"),
        ({"source": "/dev/null"}, "cannot read a live source twice"),
    ],
)
def test_runs_that_differ_each_time_cannot_be_continued(
    video: str, tmp_path: Path, sections: dict[str, object], message: str
) -> None:
    run_config = Config.model_validate({**config(video, tmp_path / "a.vtt").model_dump(), **sections})
    assert journal_for(run_config, resume=False) is None
    with pytest.raises(ResumeError, match=message) as error:
        journal_for(run_config, resume=True)
    assert "secret" not in str(error.value)


def test_outputs_are_needed_and_they_must_be_files(video: str, tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="name it with -o"):
        journal_for(config(video), resume=True)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ResumeError, match="ordinary files"):
        journal_for(config(video, tmp_path / "pipe.jsonl"), resume=True)


def test_a_missing_file_is_reported_by_the_source(tmp_path: Path) -> None:
    assert journal_for(config(str(tmp_path / "absent.mp4"), tmp_path / "a.vtt"), resume=True) is None


def test_a_finished_output_has_nothing_to_continue(video: str, tmp_path: Path) -> None:
    (tmp_path / "b.vtt").write_text("WEBVTT\n\n", encoding="utf-8")
    with pytest.raises(ResumeError, match=r"'.*b.vtt' has no 'a.vtt.resume' beside it.*leave --resume out"):
        journal_for(config(video, tmp_path / "a.vtt", tmp_path / "b.vtt"), resume=True)


def test_without_outputs_a_continued_run_is_a_fresh_one(video: str, tmp_path: Path) -> None:
    (tmp_path / "a.vtt").touch()
    journal = journal_for(config(video, tmp_path / "a.vtt"), resume=True)
    assert journal is not None
    assert journal.earlier_answers == 0


def test_whether_a_fresh_run_replaces_something_of_use(video: str, tmp_path: Path) -> None:
    run_config = config(video, tmp_path / "a.vtt")
    journal = journal_for(run_config, resume=False)
    assert journal is not None
    assert not could_continue(journal)
    journal.open()
    assert not could_continue(journal), "it holds no answer"
    journal.close(is_finished=False)


class Runs:
    """Runs of `caption` on one clip with a fake answer model, each in a separate folder."""

    def __init__(self, video: str, folder: Path) -> None:
        self.video, self.folder = video, folder

    def arguments(self, name: str, *options: str) -> list[str]:
        (self.folder / name).mkdir(exist_ok=True)
        outputs = [part for suffix in ("vtt", "srt", "jsonl") for part in ("-o", str(self.path(name, suffix)))]
        return ["caption", self.video, *outputs, "--every", "0.5", "--budget", "12", "--no-timing", *options]

    def path(self, name: str, suffix: str) -> Path:
        return self.folder / name / f"out.{suffix}"

    def journal(self, name: str) -> Path:
        return journal_path(str(self.path(name, "vtt")))

    def run(self, name: str, *options: str) -> int:
        return main(self.arguments(name, "--single-process", *options))

    def killed(self, name: str, at_frame: int, *options: str) -> None:
        """Run in a process that is killed while it answers about that frame."""
        arguments = self.arguments(name, "--single-process", *options)
        process = subprocess.run(
            [sys.executable, "-m", "tests.support.fake_command", str(at_frame), *arguments],
            cwd=ROOT,
            capture_output=True,
            timeout=LIMIT_S,
        )
        assert process.returncode == -signal.SIGKILL, process.stderr.decode()

    def files(self, name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / name).iterdir()}


@pytest.fixture
def runs(video: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:FakeAnswerModel")
    return Runs(video, tmp_path)


def test_a_run_that_was_killed_twice_ends_as_one_that_was_not(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.run("whole") == 0
    reference = runs.files("whole")
    assert set(reference) == {"out.vtt", "out.srt", "out.jsonl"}
    runs.killed("broken", 10)
    first = runs.files("broken")
    assert reference["out.jsonl"].startswith(first["out.jsonl"])
    runs.killed("broken", 20, "--resume")
    second = runs.files("broken")
    assert len(second["out.jsonl"]) > len(first["out.jsonl"])
    assert reference["out.jsonl"].startswith(second["out.jsonl"])
    with runs.journal("broken").open("ab") as journal:
        journal.write(b"\x05\x00\x00")
    frames: list[int] = []
    monkeypatch.setattr("tests.support.answer_models.on_packet", frames.append)
    capsys.readouterr()
    assert runs.run("broken", "--resume") == 0
    assert runs.files("broken") == reference
    assert frames == [20, 25, 29], "what was answered is not asked again"
    note = f"note: taking 4 answers from {runs.journal('broken')}; what follows (3 bytes) is damaged and answered again"
    assert note in capsys.readouterr().err


def failing(runs: Runs, monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> dict[str, bytes]:
    """Remains of a run that fails while it answers about frame 15."""
    with monkeypatch.context() as patch:
        patch.setattr("tests.support.answer_models.on_packet", fail)
        assert runs.run(name, *options) == 1
    return runs.files(name)


def fail(frame_index: int) -> None:
    if frame_index == 15:
        raise ArithmeticError("the spoon is bent")


def test_a_failed_run_reports_that_it_can_be_continued(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(runs, monkeypatch, "a")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "not finished: the same command with --resume continues from here"
    assert lines[-1].startswith("error: the answer stage died")
    assert runs.run("a", "--resume") == 0
    assert runs.run("b") == 0
    assert runs.files("a") == runs.files("b")


def test_with_timing_recalled_answers_keep_theirs(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> list[dict[str, object]]:
        lines = runs.path("a", "jsonl").read_text(encoding="utf-8").splitlines()
        return [line for line in map(json.loads, lines) if line["type"] == "answer"]

    failing(runs, monkeypatch, "a", "--timing")
    before = answers()
    assert runs.run("a", "--timing", "--resume") == 0
    assert answers()[: len(before)] == before
    assert len(answers()) == 7


def test_a_fresh_run_says_that_it_could_have_gone_on(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(runs, monkeypatch, "a")
    capsys.readouterr()
    assert runs.run("a") == 0
    assert "note: starting afresh; --resume would have continued" in capsys.readouterr().err
    assert not runs.journal("a").exists()


def test_an_interrupted_run_can_be_continued(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(frame_index: int) -> None:
        if frame_index == 15:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("tests.support.answer_models.on_packet", interrupt)
    assert runs.run("a") == 130
    assert "not finished: the same command with --resume continues from here" in capsys.readouterr().err
    interrupted = runs.files("a")
    assert runs.run("a", "--resume", "--max-frames", "7") == 2
    assert runs.files("a") == interrupted
    monkeypatch.setattr("tests.support.answer_models.on_packet", lambda frame_index: None)
    assert runs.run("a", "--resume") == 0
    assert runs.run("b") == 0
    assert runs.files("a") == runs.files("b")


def test_a_continued_run_that_is_interrupted_early_loses_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    before = failing(runs, monkeypatch, "a")
    recall, end = Journal.recall, RunControl.end
    ended = threading.Event()

    def note_end(self: RunControl, outcome: str = INTERRUPTED) -> None:
        end(self, outcome)
        ended.set()

    def interrupt(self: Journal, number: int, stamp: FrameStamp) -> object:
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(LIMIT_S)
        return recall(self, number, stamp)

    monkeypatch.setattr(RunControl, "end", note_end)
    monkeypatch.setattr(Journal, "recall", interrupt)
    assert runs.run("a", "--resume") == 130
    assert runs.files("a") == before
    monkeypatch.undo()


def as_it_is(runs: Runs) -> None:
    """The same clip and its journal."""


def other_clip(runs: Runs) -> None:
    runs.video = str(make_video(runs.folder / "square.mp4", list(moving_square(FRAMES, 160, 128)), 10))


def other_journal(runs: Runs) -> None:
    runs.journal("a").write_bytes(b"of something else")


def no_journal(runs: Runs) -> None:
    runs.journal("a").unlink()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (as_it_is, ["-q", "Where?"], 'answer.query "Say what happens.", and this one has "Where?"'),
        (as_it_is, ["--budget", "13"], "allocate.budget 12, and this one has 13"),
        (as_it_is, ["--max-frames", "9"], "capture.max_frames null, and this one has 9"),
        (as_it_is, ["--realtime"], "--resume is incompatible with --realtime"),
        (as_it_is, ["--follow"], "--resume cannot continue a run with --follow"),
        (other_clip, [], "is of a run with source "),
        (other_journal, [], "is not a journal"),
        (no_journal, [], "nothing to continue"),
    ],
)
def test_another_run_source_or_journal_is_refused_and_touches_nothing(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Runs], None],
    options: list[str],
    message: str,
) -> None:
    failing(runs, monkeypatch, "a")
    change(runs)
    before = runs.files("a")
    capsys.readouterr()
    assert runs.run("a", "--resume", *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert runs.files("a") == before
