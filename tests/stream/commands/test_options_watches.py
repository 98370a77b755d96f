"""`--watch` and `--until` for a user: output, exit statuses, files, and mistakes that are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stream import cli
from stream.config import Config, WatchConfig
from stream.errors import ConfigError
from stream.runtime.frame_stages import run_in_threads
from tests.support import answer_models
from tests.support.video import make_video

QUESTION = "is there a light?"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A clip in which it gets light, and one in which it stays dark."""
    folder, paths = tmp_path_factory.mktemp("clips"), {}
    for name, lit_from in (("light", 4), ("dark", 99)):
        frames = [np.full((96, 128, 3), 250 if index >= lit_from else 60, np.uint8) for index in range(8)]
        paths[name] = str(make_video(folder / f"{name}.mp4", iter(frames), 10))
    return paths


@pytest.fixture(autouse=True)
def _fake_answer_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: None)
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:FakeAnswerModel")


def run(command: str, clip: str, *options: str) -> int:
    return cli.main([command, clip, "--single-process", "--until", QUESTION, *options])


@pytest.mark.parametrize("command", ["caption", "watch"])
def test_the_status_is_the_verdict(command: str, clips: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, clips["light"]) == 0
    second, line = capsys.readouterr().out.split("  ", 1)
    assert line == "yes (99 %): is there a light?\n"
    # the light is there from 0.4 s to 0.7 s; at its own pace a busy machine drops frames
    assert second in (["0:00.4"] if command == "caption" else ["0:00.4", "0:00.5", "0:00.6", "0:00.7"])
    assert run(command, clips["dark"]) == 3
    assert capsys.readouterr().out == ""


def test_going_on_it_reads_to_the_end(clips: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert run("caption", clips["light"], "--go-on", "-o", str(path)) == 0
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (events[-1]["ended"], events[-1]["frames"], events[-1]["found"]) == ("finished", 8, True)
    assert run("caption", clips["dark"], "--go-on", "-o", str(path)) == 3


def test_with_another_question_both_are_asked(clips: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("caption", clips["light"], "-q", "what is it?", "--set", "answer.on_cut=false") == 0
    first, turn, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("0:00.0  frame 0 sum ")
    assert turn == "0:00.4  yes (99 %): is there a light?"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--until", ""], "--until: watch 1: question should be text such as"),
        (["--until", "  "], "--until: watch 1: question should be text such as"),
        (["--until", "x" * 1001], "1001 characters"),
        (["--go-on"], "--go-on needs --until"),
        (["--until", "is it?", "--set", "latency.target_ms=100"], "latency.target_ms needs answers"),
        (["--until", "is it?", "-o", "a.vtt"], "nothing would be written to 'a.vtt'"),
        (["--set", "watch=[{question='is it?', sure=2}]"], "watch 1: sure should be at most 1"),
        (["--until", "is it?", "-o", "a.jsonl", "--resume"], "a journal has no yes/no checks"),
        (["--watch", "is it?", "--go-on"], "--go-on needs --until"),
        (["--force"], "--force needs --watch or --until"),
        (["--on-match", "true"], "--on-match needs --watch or --until"),
        (["--watch", "is it?", "--on-match", "no-such-program {watch}"], "there is no program 'no-such-program'"),
        (["--watch", "is it?", "--watch", "is it?"], "--watch: two watches are named 'is_it'; leave one of them out"),
        (["--watch", "is it?", "--until", "is it?"], "--watch, --until: two watches are named 'is_it'"),
        (["--set", "watch=5"], "--set: watch should be a list of questions or tables, got 5"),
        (["--set", "watch=[5]"], "--set: watch 1 should be a question or a table of keys, got 5"),
        (["--set", "watch=[{name='a'}]"], "--set: watch 1: it has no question; give question = 'is there a red car?'"),
        (["--set", "watch=[{question='a?', hold=5}]"], "--set: watch 1: unknown key hold; did you mean hold_s?"),
        (["--set", "watch=[{question='a?', zzz=5}]"], "--set: watch 1: unknown key zzz; its keys are question, name"),
        (["--set", "watch=['a?', {question='b?', name='x y'}]"], "watch 2: name should be text such as"),
        (["--set", "watch=[{question='a?', schedule='at night'}]"], "watch 1: schedule should be days, hours and a"),
        (
            ["--set", "watch=[{question='a?', every_s=0}]"],
            "watch 1: every_s should be more than 0, or be none, got 0",
        ),
        (["--set", "watch=[{question='a?', no_below=0.7}]"], "watch 'a': no_below = 0.7 is more than threshold = 0.6"),
        (["--set", f"watch={[f'{number}?' for number in range(65)]}"], "65 watches are more than 64"),
        (["--set", "answer.until.question=x"], "unknown key answer.until.question; did you mean answer.query?"),
        (["--set", "answer.until.captions=true"], "unknown key answer.until.captions; did you mean answer.captions?"),
    ],
)
def test_invalid_watches_are_refused(
    options: list[str], message: str, clips: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["caption", clips["dark"], *options]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("error: ")
    assert message in error[0]


def test_a_model_that_cannot_watch_is_refused(
    clips: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:WordlessAnswerModel"
    )
    assert run("caption", clips["dark"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: no single token for yes"


def watches_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str) -> Config:
    """The configuration of a command."""
    configs: list[Config] = []

    def stop(config: Config) -> None:
        configs.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr("stream.commands.run.check_run", stop)
    assert cli.main(["caption", "clip.mp4", *options]) == 2
    capsys.readouterr()
    return configs[0]


def test_options_add_to_the_watches_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[[watch]]\nquestion = "a?"\nhold_s = 2\n[[watch]]\nquestion = "b?"\n', encoding="utf-8")
    config = watches_of(
        capsys, monkeypatch, "-c", str(path), "--watch", "c?", "--watch", "d?", "--until", "e?", "--force", "-q", "x"
    )
    assert [(watch.name, watch.hold_s, watch.ends_run, watch.force) for watch in config.watch] == [
        ("a", 2.0, False, True),
        ("b", 0.0, False, True),
        ("c", 0.0, False, True),
        ("d", 0.0, False, True),
        ("e", 0.0, True, True),
    ]
    assert (config.answer.captions, config.watches_only, config.first_question) == (True, False, "x")
    config = watches_of(capsys, monkeypatch, "--watch", "c?", "--until", "e?", "--go-on")
    assert [watch.ends_run for watch in config.watch] == [False, False]
    assert (config.watches_only, config.first_question) == (True, "c?")
    assert watches_of(capsys, monkeypatch, "-q", "x").answer.captions is False


def test_several_watches_report_each_and_start_commands(
    clips: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "matches.txt"
    command = f"sh -c 'echo {{match}} {{watch}} >> {path}'"
    options = ["--single-process", "--watch", QUESTION, "--watch", "is it bright?", "--on-match", command]
    assert cli.main(["caption", clips["light"], *options]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["0:00.4  yes (99 %): is there a light?", "0:00.4  yes (99 %): is it bright?"]
    assert "match 1 at 0:00.4: is there a light?" in err
    assert sorted(path.read_text("utf-8").splitlines()) == ["1 is_there_a_light", "2 is_it_bright"]
    assert cli.main(["caption", clips["dark"], *options]) == 3


@pytest.mark.parametrize(
    ("questions", "names"),
    [
        (["Is there a CAT?", "is it 3.5 m?"], ["is_there_a_cat", "is_it_3_5_m"]),
        (["Où est-il né ?", "есть кто?", "谁?"], ["ou_est_il_ne", "watch", "watch_2"]),
        ([f"is {'very ' * 30}{end}?" for end in "ab"], ["is_" + "very_" * 7 + "ve", "is_" + "very_" * 6 + "very_2"]),
        (["a!", "a?", "a."], ["a", "a_2", "a_3"]),
    ],
)
def test_names_are_made_from_questions(questions: list[str], names: list[str]) -> None:
    config = Config.model_validate({"watch": questions})
    assert [watch.name for watch in config.watch] == names
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_a_made_name_leaves_given_ones_alone() -> None:
    config = Config.model_validate({"watch": ["is it?", {"question": "was it?", "name": "is_it"}]})
    assert [watch.name for watch in config.watch] == ["is_it_2", "is_it"]


@pytest.mark.parametrize(("threshold", "no_below"), [(0.6, 0.4), (0.3, 0.3)])
def test_the_least_no_follows_a_low_threshold(threshold: float, no_below: float) -> None:
    assert WatchConfig(question="is it?", threshold=threshold).most_of_no == no_below
