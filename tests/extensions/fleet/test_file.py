"""Files of cameras: common keys, keys of one camera, and each mistake with its file, camera and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.config import Config
from stream.config_loading import build_config
from stream.errors import ConfigError
from stream.extensions.fleet.file import read_fleet


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> str:
    Path("f.toml").write_text(text, encoding="utf-8")
    return "f.toml"


def configs(text: str) -> tuple[dict[str, Config], dict[str, str]]:
    fleet = read_fleet(written(text))
    return {name: build_config([*fleet.common, *layers]) for name, layers in fleet.cameras.items()}, fleet.problems


def test_a_camera_has_the_common_keys_and_its_own() -> None:
    Path("night.toml").write_text("answer.every_s = 9\nanswer.seed = 3\n", encoding="utf-8")
    cameras, problems = configs(
        """
        config = "webcam"
        answer.every_s = 4
        output.paths = ["all.jsonl"]
        [cameras.door]
        source = "0"
        answer.query = "Is anybody there?"
        [cameras.yard]
        source = "rtsp://h/1"
        config = ["night.toml"]
        [cameras.yard.answer]
        seed = 5
        """
    )
    assert problems == {}
    door, yard = cameras["door"], cameras["yard"]
    assert (door.source, door.answer.query, door.answer.every_s) == ("0", "Is anybody there?", 4.0)
    assert (yard.source, yard.answer.every_s, yard.answer.seed) == ("rtsp://h/1", 9.0, 5)
    assert door.output.paths == yard.output.paths == ("all.jsonl",)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("source = '0'\nanswer.querry = 'x'", "unknown key answer.querry; did you mean answer.query?"),
        ("source = '0'\nanswer.every_s = 'x'", "answer.every_s should be a number, or be none, got 'x'"),
        ("surce = '0'", "unknown key surce; did you mean source?"),
        ("source = '0'\nqestion = 'x'", "unknown key qestion; did you mean answer.query?"),
        ("answer.seed = 1", "it has no source; give for example source = 'rtsp"),
        ("source = '0'\nconfig = 'webcm'", "no preset 'webcm'; there are"),
        ("source = '0'\nconfig = 3", "config should be a preset or file, or a list of them, got 3"),
        ("source = '0'\nmetrics.port = 1", "metrics.port is one port for all cameras; put it before"),
        ("source = '0'\nweb.address = '8081'", "web.address is for the one page of all cameras; put it before their"),
        ("source = '0'\nweb.token = 'secret'", "web.token is for the one page of all cameras; put it"),
    ],
)
def test_a_mistake_in_one_camera_is_reported_with_file_and_camera_and_the_others_stay(table: str, problem: str) -> None:
    cameras, problems = configs(f"[cameras.yard]\nsource = 'scene:demo'\n[cameras.door]\n{table}\n")
    assert set(cameras) == {"yard"}
    assert problems["door"].startswith(f"f.toml: camera door: {problem}")


def test_a_name_that_cannot_be_taken_and_a_camera_that_is_no_table() -> None:
    _, problems = configs("[cameras]\ndoor = '0'\n[cameras.'a b']\nsource = '0'\n")
    assert "camera door: it should be a table, such as [cameras.door]" in problems["door"]
    assert "a camera cannot be called 'a b'; take letters" in problems["a b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("answer.qery = 'x'\n[cameras.a]\nsource = '0'", "f.toml: unknown key answer.qery; did you mean answer.query?"),
        ("x = 1", "f.toml: it has no cameras; write a table for each, such as [cameras.door]"),
        ("cameras = 1", "f.toml: it has no cameras"),
        ("[camera.a]\nsource = '0'", "f.toml: unknown key camera; did you mean cameras?"),
        ("[cameras.a]\nsource='0'\n[cameras.a]\nsource='1'", "Cannot declare ('cameras', 'a') twice (at line 3"),
        ("[cameras", "f.toml: not valid TOML"),
    ],
)
def test_a_mistake_that_is_no_cameras_ends_it(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_fleet(written(text))
    assert problem in str(refused.value)
    assert "twice" not in problem or str(refused.value).endswith("; give each camera a different name")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"^no configuration file 'gone.toml'; check the path$"):
        read_fleet("gone.toml")
