"""The command as a user meets it: help, documentation, one-line errors, exit statuses."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
import webvtt

from arr_coc.errors import BackendMissing
from stream.cli import application, main
from stream.commands.help import EXAMPLES, GROUPS, MOST_USED
from stream.config import DEFAULT_QUERY
from stream.config_loading import known_keys
from tests.support.models import tiny_folder
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[str, Any] = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
OPTIONS = [(name, option) for name, command in COMMANDS.items() for option in command.params]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def clip(tmp_path: Path) -> str:
    return str(make_video(tmp_path / "clip.mp4", moving_square(12), fps=10))


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status and the error, which is the last line and the only one that reports it."""
    status = main(list(arguments))
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in lines].count(True) == 1, lines
    assert not any("Traceback" in line for line in lines)
    return status, lines[-1]


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda item: getattr(item, "name", item))
def test_every_option_has_help_that_fits(command: str, option: Any) -> None:
    assert option.help, f"{command} {option.name}"
    assert len(option.help) <= 100


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        assert f"## {name}" in text
        assert command.help


def test_alone_it_explains_itself_in_a_screenful(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(any(f" {name} " in f"{line} " for line in lines) for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("arr-coc-stream 0.")


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_list_of_commands_is_cut_off_nowhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    command_list = capsys.readouterr().out.partition("Commands:")[2]
    assert all(f"  {name} " in command_list for name in COMMANDS)
    assert "..." not in command_list


def sections_of(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The lines of a command's help by the title above them."""
    assert main([command, "--help"]) == 0
    sections: dict[str, list[str]] = {"": []}
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            sections[line[:-1]] = []
        else:
            list(sections.values())[-1].append(line)
    return sections


@pytest.mark.parametrize("command", MOST_USED)
def test_help_begins_with_the_ten_most_used_options_and_ends_with_two_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = sections_of(command, capsys)
    titles = list(sections)[1:]
    assert titles[:2] == ["Arguments", "Most used options"]
    assert titles[2:-1] == [group for group in GROUPS if group in titles]
    assert titles[-1] == "Examples"
    params = {param.name: param for param in COMMANDS[command].params}
    ten = [params[name] for name in MOST_USED[command].split()]
    option_names = [line.split()[0].rstrip(",") for line in sections["Most used options"] if line.startswith("  -")]
    assert (len(ten), option_names) == (10, [(param.opts[1:] or param.opts)[0] for param in ten])


@pytest.mark.parametrize("command", MOST_USED)
def test_help_lists_every_option_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for section in sections_of(command, capsys).values() for line in section]
    option_names = [word.rstrip(",") for line in lines if line.startswith("  -") for word in line[:24].split()]
    for option in COMMANDS[command].params:
        if option.param_type_name == "option":
            assert option_names.count(option.opts[0]) == 1, option.name


@pytest.mark.parametrize(
    ("option", "group"),
    [
        ("--stream", "Source"),
        ("--realtime", "Source"),
        ("--memory-frames", "Question"),
        ("--strategy", "Tokens"),
        ("--heatmap", "Outputs"),
        ("--web-rate", "Page"),
        ("--webhook", "Servers"),
        ("--server", "Servers"),
        ("--debug", "Behaviour"),
    ],
)
def test_an_option_stands_in_the_group_of_its_key(option: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert any(line.startswith(f"  {option} ") for line in sections_of("watch", capsys)[group])


def test_groups_name_keys_that_exist() -> None:
    keys, names = set(known_keys()), {option.name for _, option in OPTIONS}
    for key_prefix in (key for group in GROUPS.values() for key in group):
        assert (
            any(key.startswith(key_prefix) for key in keys) if key_prefix[-1] in "._" else key_prefix in keys | names
        ), key_prefix


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_are_commands(command: str) -> None:
    assert len(EXAMPLES[command]) == 2
    for arguments in EXAMPLES[command]:
        assert len(f"  python run_stream.py {command} {arguments}") <= 80
        assert COMMANDS[command].make_context(command, shlex.split(arguments)).params


def test_help_lists_realtime_wherever_it_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """`watch` and `fleet` play a file at its own pace in any case."""
    accepting = {name for name, option in OPTIONS if "--realtime" in option.opts}
    assert accepting == {"caption", "watch", "fleet", "bench"}
    for command in accepting:
        source = " ".join(" ".join(sections_of(command, capsys)["Source"]).split())
        assert "--realtime Play a file at its own pace" in source
        assert ("[always]" in source) == (command in ("watch", "fleet"))
    assert "no SOURCE to watch" in error_of(capsys, "watch", "--realtime")[1]


def test_help_shows_the_default_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caption", "--help"]) == 0
    assert f"The question. [{DEFAULT_QUERY}]" in " ".join(capsys.readouterr().out.split())


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; sys.argv = ['run_stream.py', 'caption', '--help']; from stream.cli import main; main();"
        "heavy = {'torch', 'transformers', 'cv2', 'av', 'zmq', 'matplotlib', 'rich', 'numpy'} & set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capton"], "no such command 'capton'. Did you mean 'caption'? (see "),
        (["caption", "x.mp4", "--bugdet", "3"], "no such option: --bugdet; did you mean --budget? (see "),
        (
            ["caption", "x.mp4", "--for", "3s"],
            "no such option: --for; it is an option of `watch`, `fleet`, `bench` (see ",
        ),
        (["watch", "x.mp4", "--window", "3"], "no such option: --window; did you mean --memory-frames? (see "),
        (["caption", "-o"], "ption '-o' requires an argument"),
        (["demo", "b.mp4"], "too many arguments: 'b.mp4' (see "),
        (["caption"], "no FILE to caption"),
        (["demo", "--stream", "1"], "no such option: --stream"),
        (["demo", "--realtime"], "no such option: --realtime"),
        (["watch", "0", "--server", "tcp://127.0.0.1:5555", "-m", "tiny"], "-m tiny has no effect with --server: the "),
        (["caption", "x.mp4", "--device", "cpu", "--server", "ipc:///s"], "out, or give it to `serve-answers` there"),
        (["bench"], "no SOURCE to measure"),
        (["watch"], "no SOURCE to watch"),
        (["bench", "x.mp4", "--record", "r", "--runs", "2"], "a folder takes the recording of one run, not of 2"),
        (["bench", "x.mp4", "--record", "r", "--against-set", "allocate.budget=64"], "not of 10; leave --record out"),
        (["caption", "x.mp4", "--record", "/no/such/r"], "cannot record into '/no/such/r': No such file or directory"),
        (["watch", "x.mp4", "--for", "0s"], "--for needs a length of time above 0"),
        (["watch", "x.mp4", "--stats-every", "often"], "--stats-every needs a length of time above 0"),
        (["watch", "-", "--ask-stdin"], "the source reads it"),
        (["caption", "x.mp4", "--budget", "0"], "--budget should be 1 or more"),
        (["caption", "x.mp4", "--budget", "many"], "or be a share up to 100%, such as 27%, got 'many'"),
        (["caption", "x.mp4", "--strategy", "best"], "should be 'auto', 'topk', 'mixed', "),
        (
            ["caption", "x.mp4", "--encode", "none"],
            "should be 'sparse', 'incremental', 'prune', 'weighted', 'full' or 'picture'",
        ),
        (["caption", "x.mp4", "--every", "0"], "should be more than 0, or be none"),
        (["caption", "x.mp4", "--max-frames", "-1"], "should be 1 or more, or be none"),
        (["caption", "x.mp4", "--query", "x" * 10_000], "at most 4000 characters, got 10000 characters"),
        (["caption", "x.mp4", "--set", "allocate"], "--set needs KEY=VALUE"),
        (["caption", "x.mp4", "--set", "capture.fits=pad"], "did you mean capture.fit?"),
        (["caption", "x.mp4", "--config", "absent.toml"], "no configuration file 'absent.toml'"),
        (["caption", "x.mp4", "-o", "x.txt"], "captions can be .vtt, .srt, .jsonl"),
        (["caption", "x.mp4", "-o", "/no/such/x.vtt"], "there is no folder '/no/such'"),
        (["caption", "x.mp4", "--heatmap", "x.avi"], "the heat map can be .mp4"),
        (["caption", "scene:demo", "-m", "/no/such/model"], "/no/such/model"),
        (["bench", "x.mp4", "--json", "/no/such/x.json"], "there is no folder '/no/such'"),
        (["demo", "-o", "/dev/null/x"], "cannot make the folder"),
    ],
)
def test_errors_are_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = error_of(capsys, *arguments)
    assert status == 2
    assert message in error


def test_sources_that_are_none_are_reported(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    empty, text = tmp_path / "empty.mp4", tmp_path / "text.mp4"
    empty.touch()
    text.write_text("no video", encoding="utf-8")
    for source in (tmp_path / "absent.mp4", empty, text):
        status, error = error_of(capsys, "caption", str(source), "-m", model)
        assert status == 2
        assert str(source) in error


def test_a_texture_store_that_cannot_run_here_is_reported_with_the_remedy(
    clip: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(backend: str) -> str:
        raise BackendMissing(f"no {backend} here; install it")

    monkeypatch.setattr("stream.runtime.frame_stages.probe_backend", missing)
    for command in ("caption", "watch", "bench"):
        assert error_of(capsys, command, clip, "--backend", "gl", "--no-restart") == (
            2,
            "error: no gl here; install it",
        )


def test_a_model_folder_without_weights_is_reported(
    tmp_path: Path, clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3_vl"}', encoding="utf-8")
    status, error = error_of(capsys, "caption", clip, "-m", str(tmp_path / "model"))
    assert status == 2
    assert str(tmp_path / "model") in error


def test_the_input_is_never_overwritten(clip: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(clip).read_bytes()
    for arguments in (["caption", clip, "--heatmap", clip], ["bench", clip, "--png", clip]):
        status, error = error_of(capsys, *arguments)
        assert status == 2
        assert "is the input" in error
    assert Path(clip).read_bytes() == before


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caption", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: no FILE")


def test_a_fault_of_the_program_is_one_line_too(
    clip: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.runtime.session.run_session", Mock(side_effect=KeyError("oops")))
    status, error = error_of(capsys, "caption", clip)
    assert status == 1
    assert "unexpected KeyError: 'oops'" in error


def test_ctrl_c_before_the_run_has_a_status_and_no_traceback(
    clip: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.runtime.session.run_session", Mock(side_effect=KeyboardInterrupt))
    assert main(["caption", clip]) == 130
    assert capsys.readouterr().err == ""


def test_captions_of_two_runs_are_the_same_bytes(tmp_path: Path, clip: str, model: str) -> None:
    runs = []
    for number in range(2):
        paths = [tmp_path / f"{number}.{suffix}" for suffix in ("jsonl", "vtt", "srt")]
        outputs = [argument for path in paths for argument in ("-o", str(path))]
        options = ["-m", model, "--no-timing", "--single-process", "--every", "0.5", "--set", "answer.max_tokens=8"]
        assert main(["caption", clip, *outputs, *options]) == 0
        runs.append([path.read_bytes() for path in paths])
    assert runs[0] == runs[1]
    lines = [json.loads(line) for line in runs[0][0].splitlines()]
    assert lines[0]["type"] == "started"
    assert lines[-1]["type"] == "summary"
    assert sum(line["type"] == "answer" for line in lines) >= 3
    webvtt.read(str(tmp_path / "0.vtt"))


def test_demo_leaves_captions_summary_and_video(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    options = ["-m", model, "--max-frames", "8", "--single-process", "--set", "answer.max_tokens=4"]
    assert main(["demo", "-o", str(folder), *options]) == 0
    names = [".arr-coc-demo", "captions.jsonl", "captions.vtt", "heatmap.mp4", "summary.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["frames"] == 8
    messages = capsys.readouterr().err
    assert all(str(folder / name) in messages for name in names[1:])
    assert main(["demo", "-o", str(folder), *options]) == 0, "its own results it writes anew"


def test_demo_overwrites_no_file_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file = tmp_path / "summary.json"
    user_file.write_text("mine")
    status, error = error_of(capsys, "demo", "-o", str(tmp_path))
    assert (status, user_file.read_text()) == (2, "mine")
    assert "summary.json' exists already and was not written by demo; name another folder with -o" in error
    assert list(tmp_path.iterdir()) == [user_file]


def test_bench_measures_and_writes(tmp_path: Path, clip: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    report_path, chart_path = tmp_path / "b.json", tmp_path / "b.png"
    options = ["-m", model, "--single-process", "--set", "answer.max_tokens=4"]
    assert main(["bench", clip, "--json", str(report_path), "--png", str(chart_path), *options]) == 0
    (series,) = json.loads(report_path.read_text(encoding="utf-8"))["series"]
    assert series["runs"][0]["figures"]["fps"]["value"] > 0
    assert chart_path.stat().st_size > 1000
    assert "fps" in capsys.readouterr().out
