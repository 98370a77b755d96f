"""Several sources in one command: one model, outputs named after each, and a status for all."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from stream.cli import main
from stream.commands.run import configs_of, run_each
from stream.config import AnswerConfig, Config, OutputConfig, PipelineConfig
from stream.errors import ConfigError, NothingToContinue, OutputError, ReaderGone, ResumeError, SourceError
from stream.events import Answer, Summary
from stream.runtime.answer_service import AnswerService
from stream.runtime.frame_stages import run_in_threads
from tests.support.events import summary
from tests.support.models import tiny_folder
from tests.support.network import until
from tests.support.sections import sections
from tests.support.video import make_video, moving_square


@pytest.fixture
def clips(tmp_path: Path) -> list[str]:
    return [str(make_video(tmp_path / f"{name}.mp4", moving_square(6), fps=10)) for name in ("one", "two")]


def test_each_source_has_its_own_outputs_and_one_that_fails_stops_none(
    clips: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_folder(tmp_path_factory.mktemp("model")))
    out = tmp_path / "out"
    out.mkdir()
    outputs = ["-o", f"{out}/", "-o", f"{out}/{{name}}.jsonl"]
    options = ["-m", model, "--single-process", "--set", "answer.max_tokens=2"]
    missing = str(tmp_path / "missing.mp4")
    assert main(["caption", clips[0], missing, clips[1], *options, *outputs]) == 1
    err = capsys.readouterr().err
    assert f"error: {missing} does not exist" in err
    assert f"{clips[1]} (3 of 3)" in err
    assert {path.name for path in out.iterdir()} == {"one.vtt", "one.jsonl", "two.vtt", "two.jsonl"}
    for clip in clips:
        first = json.loads((out / f"{Path(clip).stem}.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert first["source"] == clip
    assert main(["watch", *clips, *options, "--stats-every", "none"]) == 0


def test_one_process_answers_for_all_and_another_after_it_died(clips: list[str]) -> None:
    config = Config(answer=AnswerConfig(every_s=1.0))
    shared = AnswerService(config, restart=False, model_loader="tests.support.answer_models:FakeAnswerModel")
    pids: list[int] = []

    def run(clip: str) -> list[Answer]:
        pipeline = run_in_threads(config.model_copy(update={"source": clip}), answers=shared)
        events = list(pipeline.run())
        pids.append(shared.pid or 0)
        return [event for event in events if isinstance(event, Answer)]

    with shared.hold():
        answers = [run(clip) for clip in clips]
        os.kill(pids[0], signal.SIGKILL)
        assert shared._supervisor is not None
        until(shared._supervisor.child.exit_error)
        answers.append(run(clips[0]))
    assert [len(run_answers) for run_answers in answers] == [2, 2, 2]
    assert pids[0] == pids[1]
    assert pids[2] != pids[0]


def config(*paths: str, **values: object) -> Config:
    return Config(output=OutputConfig(paths=paths), pipeline=PipelineConfig(single_process=True), **sections(**values))


def test_names_are_those_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    configs = configs_of(
        config(
            f"{tmp_path}",
            "x/",
            "{name}.srt",
            "-",
            heatmap__file="{name}-seen.mp4",
            why__file="why-{name}.jsonl",
            record__folder="{name}",
            clips__folder="of-{name}",
        ),
        ["a.b.mp4", "scene:demo", "rtsp://me@cam/live"],
    )
    assert [source_config.source for source_config in configs] == ["a.b.mp4", "scene:demo", "rtsp://me@cam/live"]
    assert configs[0].output.paths == (f"{tmp_path}/a.b.vtt", "x/a.b.vtt", "a.b.srt", "-")
    assert (configs[1].value("heatmap.file"), configs[1].value("why.file")) == (
        "scene_demo-seen.mp4",
        "why-scene_demo.jsonl",
    )
    assert (configs[2].value("record.folder"), configs[2].value("clips.folder")) == ("me_cam_live", "of-me_cam_live")


@pytest.mark.parametrize(
    ("configuration", "sources", "problem"),
    [
        (
            config("a.vtt"),
            ["a.mp4", "b.mp4"],
            r"-o 'a\.vtt' names one place for several sources; write -o '\{name\}\.vtt', or",
        ),
        (config(heatmap__file="h.mp4"), ["a.mp4", "b.mp4"], r"--heatmap 'h\.mp4' names one place for several sources"),
        (config("{name}.vtt"), ["x/a.mp4", "y/a.mp4"], r"output 'a\.vtt' is given twice"),
        (config(heatmap__file="{name}.mp4"), ["b/a.mp4", "a.mp4"], r"output 'a\.mp4' is the input"),
        (config("absent/"), ["a.mp4", "b.mp4"], r"cannot write 'absent/a\.vtt': there is no folder 'absent'; make it"),
        (config("old.rosbag"), ["a.mp4", "b.mp4"], r"-o 'old\.rosbag' names one place for several sources"),
        (config("{name}.txt"), ["a.mp4", "b.mp4"], r"output 'a\.txt' has suffix '\.txt'; captions can be"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_anything_is_read(
    configuration: Config, sources: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.rosbag").mkdir()
    with pytest.raises(OutputError, match=problem):
        configs_of(configuration, sources)


def ended(reason: str, is_found: bool | None = None) -> Summary:
    from msgspec.structs import replace

    return replace(summary(), ended=reason, found=is_found)


def test_an_interruption_ends_all() -> None:
    sources: list[str] = []

    def run_source(config: Config, shared: object) -> Summary:
        sources.append(config.source)
        return ended("interrupted" if config.source == "b" else "finished")

    assert run_each(configs_of(config(), ["a", "b", "c"]), run_source) == 130
    assert sources == ["a", "b"]


@pytest.mark.parametrize(("matches", "status"), [((False, True, False), 0), ((False, False, False), 3)])
def test_a_match_may_be_in_any_source(matches: tuple[bool, ...], status: int) -> None:
    from stream.config import WatchConfig

    watching = config().model_copy(update={"watch": (WatchConfig(question="is it here?"),)})
    remaining_matches = list(matches)
    assert (
        run_each(configs_of(watching, ["a", "b", "c"]), lambda *_: ended("finished", remaining_matches.pop(0)))
        == status
    )


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [(SourceError("x"), True), (ConfigError("x"), False), (ResumeError("x"), False), (ReaderGone("x"), False)],
)
def test_a_problem_of_all_ends_all(error: Exception, goes_on: bool) -> None:
    sources: list[str] = []

    def run_source(config: Config, shared: object) -> Summary:
        sources.append(config.source)
        raise error

    if goes_on:
        assert run_each(configs_of(config(), ["a", "b"]), run_source) == 1
        assert sources == ["a", "b"]
    else:
        with pytest.raises(type(error)):
            run_each(configs_of(config(), ["a", "b"]), run_source)
        assert sources == ["a"]


def test_resume_leaves_alone_what_is_finished_and_goes_on_with_the_others(
    clips: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_folder(tmp_path_factory.mktemp("model")))
    options = ["-m", model, "--single-process", "--set", "answer.max_tokens=2"]
    finished, other = tmp_path / "one.vtt", tmp_path / "two.vtt"
    assert main(["caption", clips[0], *options, "-o", str(finished)]) == 0
    before = finished.read_bytes()
    capsys.readouterr()
    assert main(["caption", *clips, *options, "-o", str(tmp_path / "{name}.vtt"), "--resume"]) == 0
    assert f"note: {clips[0]} was finished before" in capsys.readouterr().err
    assert finished.read_bytes() == before
    assert other.exists()


def test_one_that_is_finished_is_none_that_failed() -> None:
    left: list[Exception | None] = [NothingToContinue("x"), None]

    def run_source(config: Config, shared: object) -> Summary:
        if (error := left.pop(0)) is not None:
            raise error
        return ended("finished")

    assert run_each(configs_of(config(), ["a", "b"]), run_source) == 0
