"""`caption --resume`: a run that was killed ends with the same bytes as one that was not, or says why it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stream.cli import main
from stream.config import AnswerConfig, CaptureConfig, Config, OutputConfig, PipelineConfig, UntilConfig, WindowConfig
from stream.errors import ResumeError
from stream.journal import Journal, journal_path
from stream.resume import could_continue, journal_for
from stream.runtime.pipeline import Pipeline
from tests.video_maker import make_video, moving_square
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parent.parent
FRAMES = 30


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
        ({"capture": CaptureConfig(realtime=True)}, "--resume and --realtime do not go together"),
        ({"pipeline": PipelineConfig(answers="newest")}, "drops nothing: set pipeline.frames=lossless"),
        ({"pipeline": PipelineConfig(frames="newest")}, "drops nothing: set pipeline.frames=lossless"),
        ({"answer": AnswerConfig(encode="incremental")}, "give --encode sparse instead of incremental"),
        ({"answer": AnswerConfig(window=WindowConfig(frames=2))}, "leave answer.window.frames at 1"),
        ({"answer": AnswerConfig(until=UntilConfig(question="is it?"))}, "a journal holds no looks"),
        ({"source": "-"}, "cannot read standard input twice"),
        ({"source": "rtsp://user:secret@camera/1"}, "cannot read a live picture twice"),
        ({"source": "0"}, "cannot read a live picture twice"),
        ({"source": "/dev/null"}, "cannot read a live picture twice"),
    ],
)
def test_what_is_different_each_time_cannot_be_continued(
    video: str, tmp_path: Path, sections: dict[str, object], message: str
) -> None:
    asked = Config.model_validate({**config(video, tmp_path / "a.vtt").model_dump(), **sections})
    assert journal_for(asked, resume=False) is None
    with pytest.raises(ResumeError, match=message) as error:
        journal_for(asked, resume=True)
    assert "secret" not in str(error.value)


def test_outputs_are_needed_and_they_must_be_files(video: str, tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="name it with -o"):
        journal_for(config(video), resume=True)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ResumeError, match="ordinary files"):
        journal_for(config(video, tmp_path / "pipe.jsonl"), resume=True)


def test_a_file_that_is_not_there_is_for_the_source_to_tell(tmp_path: Path) -> None:
    assert journal_for(config(str(tmp_path / "absent.mp4"), tmp_path / "a.vtt"), resume=True) is None


def test_a_finished_output_has_nothing_to_continue(video: str, tmp_path: Path) -> None:
    (tmp_path / "b.vtt").write_text("WEBVTT\n\n", encoding="utf-8")
    with pytest.raises(ResumeError, match=r"'.*b.vtt' has no 'a.vtt.resume' beside it.*leave --resume out"):
        journal_for(config(video, tmp_path / "a.vtt", tmp_path / "b.vtt"), resume=True)


def test_where_nothing_was_written_yet_a_continued_run_is_a_fresh_one(video: str, tmp_path: Path) -> None:
    (tmp_path / "a.vtt").touch()
    journal = journal_for(config(video, tmp_path / "a.vtt"), resume=True)
    assert journal is not None
    assert journal.recalls == 0


def test_whether_a_fresh_run_replaces_something_of_use(video: str, tmp_path: Path) -> None:
    asked = config(video, tmp_path / "a.vtt")
    journal = journal_for(asked, resume=False)
    assert journal is not None
    assert not could_continue(journal)
    journal.begin()
    assert not could_continue(journal), "it holds no answer"
    journal.close()


class Runs:
    """Runs of `caption` on one clip with a speaker that needs no model, each in a folder of its own."""

    def __init__(self, video: str, folder: Path) -> None:
        self.video, self.folder = video, folder

    def arguments(self, name: str, *more: str) -> list[str]:
        (self.folder / name).mkdir(exist_ok=True)
        outputs = [part for suffix in ("vtt", "srt", "jsonl") for part in ("-o", str(self.path(name, suffix)))]
        return ["caption", self.video, *outputs, "--every", "0.5", "--budget", "12", "--no-timing", *more]

    def path(self, name: str, suffix: str) -> Path:
        return self.folder / name / f"out.{suffix}"

    def journal(self, name: str) -> Path:
        return journal_path(str(self.path(name, "vtt")))

    def run(self, name: str, *more: str) -> int:
        return main(self.arguments(name, "--single-process", *more))

    def killed(self, name: str, at_frame: int, *more: str) -> None:
        """In a process that is killed while it speaks about that frame."""
        arguments = self.arguments(name, "--single-process", *more)
        done = subprocess.run(
            [sys.executable, "-m", "tests.fake_caption", str(at_frame), *arguments],
            cwd=ROOT,
            capture_output=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    def files(self, name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / name).iterdir()}


@pytest.fixture
def runs(video: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setitem(Pipeline.__init__.__kwdefaults__, "speaker", "tests.fake_speaker:FakeSpeaker")
    return Runs(video, tmp_path)


def test_a_run_that_was_killed_twice_ends_as_one_that_was_not(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.run("whole") == 0
    whole = runs.files("whole")
    assert set(whole) == {"out.vtt", "out.srt", "out.jsonl"}
    runs.killed("broken", 10)
    first = runs.files("broken")
    assert whole["out.jsonl"].startswith(first["out.jsonl"])
    runs.killed("broken", 20, "--resume")
    second = runs.files("broken")
    assert len(second["out.jsonl"]) > len(first["out.jsonl"])
    assert whole["out.jsonl"].startswith(second["out.jsonl"])
    with runs.journal("broken").open("ab") as journal:
        journal.write(b"\x05\x00\x00")
    asked: list[int] = []
    monkeypatch.setattr("tests.fake_speaker.heard", asked.append)
    capsys.readouterr()
    assert runs.run("broken", "--resume") == 0
    assert runs.files("broken") == whole
    assert asked == [20, 25, 29], "what was answered is not asked again"
    assert "note: taking 4 answers from" in capsys.readouterr().err


def failing(runs: Runs, monkeypatch: pytest.MonkeyPatch, name: str, *more: str) -> dict[str, bytes]:
    """A run that fails while it speaks about frame 15; what it leaves."""
    with monkeypatch.context() as patch:
        patch.setattr("tests.fake_speaker.heard", fail)
        assert runs.run(name, *more) == 1
    return runs.files(name)


def fail(frame_index: int) -> None:
    if frame_index == 15:
        raise ArithmeticError("the spoon is bent")


def test_a_run_that_failed_tells_and_can_be_continued(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(runs, monkeypatch, "a")
    told = capsys.readouterr().err.splitlines()
    assert told[-2] == "not finished: the same command with --resume goes on from here"
    assert told[-1].startswith("error: the answer stage died")
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

    monkeypatch.setattr("tests.fake_speaker.heard", interrupt)
    assert runs.run("a") == 130
    assert "not finished: the same command with --resume goes on from here" in capsys.readouterr().err
    interrupted = runs.files("a")
    assert runs.run("a", "--resume", "--max-frames", "7") == 2
    assert runs.files("a") == interrupted
    monkeypatch.setattr("tests.fake_speaker.heard", lambda frame_index: None)
    assert runs.run("a", "--resume") == 0
    assert runs.run("b") == 0
    assert runs.files("a") == runs.files("b")


def test_a_continued_run_that_is_interrupted_early_loses_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    before = failing(runs, monkeypatch, "a")
    recall = Journal.recall

    def interrupt(self: Journal, number: int, frame_index: int) -> object:
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return recall(self, number, frame_index)

    monkeypatch.setattr(Journal, "recall", interrupt)
    assert runs.run("a", "--resume") == 130
    assert runs.files("a") == before
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-q", "Where?"], 'answer.query "Say what happens.", and this one has "Where?"'),
        (["--budget", "13"], "allocate.budget 12, and this one has 13"),
        (["--max-frames", "9"], "capture.max_frames null, and this one has 9"),
        (["--realtime"], "--resume and --realtime do not go together"),
    ],
)
def test_another_run_is_refused_and_touches_nothing(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    before = failing(runs, monkeypatch, "a")
    capsys.readouterr()
    assert runs.run("a", "--resume", *more) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert runs.files("a") == before


def other_clip(runs: Runs) -> None:
    runs.video = str(make_video(runs.folder / "square.mp4", list(moving_square(FRAMES, 160, 128)), 10))


def other_journal(runs: Runs) -> None:
    runs.journal("a").write_bytes(b"of something else")


def no_journal(runs: Runs) -> None:
    runs.journal("a").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [(other_clip, "is of a run with source "), (other_journal, "is no journal"), (no_journal, "nothing to continue")],
)
def test_another_source_or_journal_is_refused_and_touches_nothing(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Runs], None],
    message: str,
) -> None:
    failing(runs, monkeypatch, "a")
    change(runs)
    before = runs.files("a")
    capsys.readouterr()
    assert runs.run("a", "--resume") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert runs.files("a") == before
