"""Cameras on the command line: the message about those that cannot be watched, and the exit status of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stream.cli import main
from stream.config import Config
from stream.errors import SourceError, StageDied
from stream.extensions.fleet import run as fleet_run
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.run import CameraOutcome
from tests.support.events import summary

Watched = Callable[..., dict[str, Config]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    """Runs a command in an empty folder with cameras that end as given; returns what was to be watched."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, status: int, **ends: str | Exception | None) -> dict[str, Config]:
        configs: dict[str, Config] = {}

        class Scripted:
            def __init__(self, cameras: list[NamedCamera], display: object, **options: object) -> None:
                configs.update({camera.name: camera.config for camera in cameras})

            def run(self) -> list[CameraOutcome]:
                return [outcome(name, ends.get(name, "finished")) for name in configs]

        monkeypatch.setattr(fleet_run, "Fleet", Scripted)
        assert main(list(arguments)) == status
        return configs

    return run


def outcome(name: str, end: str | Exception | None) -> CameraOutcome:
    if isinstance(end, Exception):
        return CameraOutcome(name, error=end)
    return CameraOutcome(name, None if end is None else summary(ended=end, found=end == "found"))


A, B = "a=scene:demo", "b=scene:street"


def test_cameras_with_names_are_watched_at_once(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ("-o", "all.jsonl", "-o", "{camera}.vtt", "--heatmap", "{name}.mp4")
    configs = watched("watch", A, B, "-q", "What?", *outputs, "--remember", "{camera}.sqlite", status=0)
    assert [config.source for config in configs.values()] == ["scene:demo", "scene:street"]
    assert configs["b"].output.paths == ("all.jsonl", "b.vtt")
    assert configs["b"].value("heatmap.file") == "b.mp4"
    assert [config.value("robotics.frame_id") for config in configs.values()] == ["a", "b"]
    assert [config.value("past.file") for config in configs.values()] == ["a.sqlite", "b.sqlite"]
    assert [config.value("past.camera") for config in configs.values()] == ["a", "b"]
    assert all(config.answer.query == "What?" and config.capture.realtime for config in configs.values())
    assert capsys.readouterr().err.splitlines() == ["2 cameras: 2 finished"]


def test_a_folder_takes_the_captions_of_each_and_a_broker_their_names(watched: Watched) -> None:
    Path("out").mkdir()
    configs = watched("watch", "köln.2=scene:demo", B, "-o", "out", "--mqtt", "mqtt://127.0.0.1", status=0)
    assert configs["köln.2"].output.paths == ("out/köln.2.vtt",)
    assert [config.value("mqtt.name") for config in configs.values()] == ["k_ln_2", "b"]


@pytest.mark.parametrize(("folder", "clips_folder"), [("clips", "clips/b"), ("of-{camera}", "of-b")])
def test_each_camera_has_a_folder_of_clips(watched: Watched, folder: str, clips_folder: str) -> None:
    configs = watched("watch", A, B, "--until", "is it red?", "--go-on", "--force", "--clips", folder, status=3)
    assert configs["b"].value("clips.folder") == clips_folder
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("ends", "status", "last_line"),
    [
        ({"a": "finished", "b": "interrupted"}, 130, "1 finished, 1 interrupted"),
        ({"a": "elapsed", "b": None}, 130, "1 ended after --for, 1 interrupted"),
        ({"a": StageDied("frame", "x"), "b": "interrupted"}, 1, "1 failed (a), 1 interrupted"),
        ({"a": SourceError("x"), "b": "finished"}, 1, "1 failed (a), 1 finished"),
        ({"a": SourceError("x"), "b": SourceError("x")}, 2, "2 failed (a, b)"),
        ({"a": SourceError("x"), "b": StageDied("frame", "x")}, 1, "2 failed (a, b)"),
    ],
)
def test_the_exit_status_and_the_last_line_report_how_each_ended(
    watched: Watched,
    capsys: pytest.CaptureFixture[str],
    ends: dict[str, str | Exception | None],
    status: int,
    last_line: str,
) -> None:
    watched("watch", A, B, status=status, **ends)
    assert capsys.readouterr().err.splitlines()[-1] == f"2 cameras: {last_line}"


def test_with_a_standing_query_one_camera_that_found_it_is_enough(watched: Watched) -> None:
    until = ("--until", "is there a red circle?")
    watched("watch", A, B, *until, status=0, a="found", b="finished")
    watched("watch", A, B, *until, status=3)


def test_a_camera_that_cannot_be_watched_is_reported_in_a_line_and_the_others_are_watched(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched("watch", A, B, "--server", "tcp://10.0.0.1:5", status=2) == {}
    assert capsys.readouterr().err.count("leaves this machine without keys: make some with `keys FOLDER`") == 2
    configs = watched("watch", A, "b=gone.mp4", "c=-", status=1)
    assert set(configs) == {"a"}
    assert capsys.readouterr().err.splitlines() == [
        "error: b: gone.mp4 does not exist; check the name, or use scene:NAME for a generated clip",
        "error: c: the source '-' is watched alone; take it out, and watch it in another run",
        "3 cameras: 1 finished, 2 not begun",
    ]


def test_options_of_one_camera_are_refused_for_several_before_anything_begins(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ((A, "scene:demo"), (A, B, "-o", "x.vtt"), (A, B, "--publish", "tcp://127.0.0.1:5556"), (A, A)):
        assert watched("watch", *arguments, status=2) == {}
        assert capsys.readouterr().err.startswith("error: ")


def test_a_file_names_cameras_and_options_win_over_it(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.toml").write_text(
        "answer.every_s = 4\n[cameras.a]\nsource = 'scene:demo'\nanswer.query = 'What?'\nallocate.budget = 40\n"
        "[cameras.b]\nsource = 'scene:street'\nanswer.qery = 'x'\n[cameras.c]\nsource = 'scene:street'\n",
        encoding="utf-8",
    )
    configs = watched("fleet", "f.toml", "--budget", "50", status=1)
    assert set(configs) == {"a", "c"}
    assert (configs["a"].answer.query, configs["a"].answer.every_s, configs["a"].allocate.budget) == ("What?", 4.0, 50)
    assert configs["c"].capture.realtime
    assert capsys.readouterr().err.splitlines() == [
        "error: f.toml: camera b: unknown key answer.qery; did you mean answer.query?",
        "3 cameras: 2 finished, 1 not begun",
    ]
    assert watched("fleet", "f.toml", "--go-on", status=2) == {}
    assert watched("fleet", "f.toml", "--web-rate", "5", status=2) == {}
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "error: --web-rate needs --web; give for example --web 127.0.0.1:8090"
    )
    configs = watched("fleet", "f.toml", "--web", "8080", "--web-rate", "5", status=1)
    assert {(config.value("web.address"), config.value("web.rate")) for config in configs.values()} == {("8080", 5.0)}
    assert watched("fleet", "f.toml", "--web", "0.0.0.0:8080", status=2) == {}
    assert "error: --web 0.0.0.0:8080 can be reached from other machines" in capsys.readouterr().err
    watched("fleet", "gone.toml", status=2)
