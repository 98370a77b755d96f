"""Cameras by name, and the checks across them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from stream.config import AnswerConfig, Config, OutputConfig, PipelineConfig
from stream.errors import ConfigError, OutputError
from stream.events import Cut
from stream.extensions.fleet.cameras import (
    NamedCamera,
    answering_options,
    check_camera,
    check_together,
    is_named,
    name_problem,
    read_named,
)
from stream.extensions.fleet.outputs import CameraLines, without_shared
from stream.extensions.web.section import WebSection
from tests.support.sections import sections


def camera(name: str, *paths: str, **values: object) -> NamedCamera:
    return NamedCamera(name, Config(source="scene:demo", output=OutputConfig(paths=paths), **sections(**values)))


def test_a_name_stands_before_a_source_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"door": "0", "yard": "rtsp://u:p=q@h/s?a=b", "köln.2": "scene:demo"}
    assert read_named([f"{name}={source}" for name, source in sources.items()]) == sources
    assert not any(map(is_named, ["0", "scene:demo", "rtsp://h/s?a=b", "clips/a=b.mp4", "=a", "a="]))
    monkeypatch.chdir(tmp_path)
    assert is_named("a=b.mp4")
    Path("a=b.mp4").touch()
    assert not is_named("a=b.mp4"), "a file of that name is a file"


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ("a=3", "^'a=3': another camera is called 'a'; give each a different name$"),
        ("-x=4", "^a camera cannot be called '-x'; take letters"),
        (f"{'n' * 41}=5", "^a camera cannot be called 'nnn"),
    ],
)
def test_a_name_that_cannot_be_used_or_comes_twice_is_refused(second: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_named(["a=1", second])
    assert name_problem("front-door_2.b") is None


def test_either_all_have_names_or_none() -> None:
    with pytest.raises(ConfigError, match=r"^'scene:demo' has no name, and other sources have one; name all of them"):
        read_named(["a=1", "scene:demo"])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Config(), "it has no source; give for example"),
        (Config(source="-"), "the source '-' is watched alone"),
        (Config(source="browser:"), "the source 'browser:' is watched alone"),
        (Config(source="0", web=WebSection(camera="tcp://127.0.0.1:5")), "web.camera is for the page"),
        (Config(source="0", pipeline=PipelineConfig(single_process=True)), "--single-process is for one camera"),
    ],
)
def test_options_of_one_camera_alone(config: Config, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_camera(config)


def test_two_cameras_write_one_file_only_if_its_lines_name_them(tmp_path: Path) -> None:
    check_together([camera("a", "all.jsonl", "-", "a.vtt"), camera("b", "all.jsonl", "-", "b.vtt")])
    twice = "the cameras a and b both write '.*one.vtt'; put .camera. into its name, such as '.camera.\\.vtt'"
    with pytest.raises(ConfigError, match=twice):
        check_together([camera("a", f"{tmp_path}/one.vtt"), camera("b", f"{tmp_path}/../{tmp_path.name}/one.vtt")])
    for key in ("heatmap__file", "why__file", "overlay__file", "record__folder"):
        with pytest.raises(ConfigError, match="both write"):
            check_together([camera("a", **{key: "one"}), camera("b", **{key: "one"})])


def test_two_cameras_serve_no_address_together() -> None:
    place = "tcp://127.0.0.1:5556"
    check_together([camera("a", zeromq__publish=place), camera("b", zeromq__publish="tcp://127.0.0.1:5557")])
    for key in ("zeromq.publish", "zeromq.control", "robotics.foxglove"):
        value = {key.replace(".", "__"): place}
        with pytest.raises(ConfigError, match=f"the cameras a and b both serve {key} at {place}; give each"):
            check_together([camera("a", **value), camera("b", **value)])
    check_together([camera("a", web__address="8080"), camera("b", web__address="8080")])
    with pytest.raises(ConfigError, match=r"^--web 0\.0\.0\.0:8080 can be reached from other machines"):
        check_together([camera("a", web__address="0.0.0.0:8080"), camera("b", web__address="0.0.0.0:8080")])
    with pytest.raises(ConfigError, match="both have the MQTT name 'x'; leave mqtt"):
        check_together([camera("a", mqtt__name="x"), camera("b", mqtt__name="x")])


def test_two_cameras_remember_in_one_file_with_the_same_limits() -> None:
    check_together([camera("a", past__file="past.sqlite"), camera("b", past__file="past.sqlite"), camera("c")])
    check_together([camera("a", past__file="a.sqlite"), camera("b", past__file="b.sqlite", past__max_mib=1)])
    for limit in ({"past__max_mib": 1}, {"past__max_days": None}):
        with pytest.raises(ConfigError, match=r"a and b both remember in './past.sqlite', with different limits; give"):
            check_together([camera("a", past__file="past.sqlite"), camera("b", past__file="./past.sqlite", **limit)])


def test_one_process_answers_for_cameras_whose_model_and_options_are_equal() -> None:
    def options(**answer: object) -> str | None:
        return answering_options(Config(answer=AnswerConfig(**answer)))  # type: ignore[arg-type]

    assert options(query="a", every_s=1.0, same_above=0.6) == options(query="b") is not None
    assert options(max_tokens=5) != options()
    assert options(thinking="hide") != options()
    assert options(model="m") != options()
    assert options(server="tcp://h:1") is None


def test_events_of_several_cameras_in_one_output_carry_their_name(tmp_path: Path) -> None:
    path = str(tmp_path / "all.jsonl")
    cameras = [camera("door", path, webhook__url="http://127.0.0.1:9/"), camera("yard", path)]
    with closing(CameraLines(cameras)) as lines:
        door, yard = (lines.sinks(named_camera) for named_camera in cameras)
        door[0].write(Cut(frame_index=1, pts_s=0.5, score=1.0))
        yard[0].write(Cut(frame_index=2, pts_s=0.5, score=1.0))
        door[0].close()
        yard[0].write(Cut(frame_index=3, pts_s=0.5, score=1.0))
        with pytest.raises(OutputError, match="another run is writing"):
            CameraLines(cameras)
    entries = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    assert [(entry["camera"], entry["frame_index"]) for entry in entries] == [("door", 1), ("yard", 2), ("yard", 3)]
    assert without_shared(cameras[0].config).output.paths == ()
