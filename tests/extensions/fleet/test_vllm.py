"""Fleets that a vLLM server answers for: a command in its place is started, watched and ended with them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from stream.cli import main
from stream.config import AnswerConfig, Config, NetworkConfig
from stream.control import RunControl
from stream.errors import ConfigError, StageDied
from stream.extensions.api.section import ApiSection
from stream.extensions.fleet import vllm
from stream.extensions.fleet.vllm import VllmPlace, VllmServer, VllmSettings
from tests.support.children import own_children
from tests.support.fake_vllm import write_command
from tests.support.network import fetched, until

SLEEP = "import time; time.sleep(600)"

CAMERA = """
[cameras.{name}]
source = "scene:demo"
capture.max_frames = 24
capture.open_timeout_s = 600
answer.query = "is there a green star?"
answer.every_s = 0.25
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[str]:
    yield write_command(tmp_path / "vllm")
    assert own_children() == []


def written(tmp_path: Path, command: str, *options: str, header: str = "") -> str:
    """A fleet file of two cameras, whose server notes its starts."""
    option_list = json.dumps(["--note", str(tmp_path / "starts"), *options])
    path = tmp_path / "cameras.toml"
    cameras = "".join(CAMERA.format(name=name) for name in ("door", "yard"))
    path.write_text(f"{header}\n[vllm]\ncommand = {json.dumps(command)}\noptions = {option_list}\n{cameras}")
    return str(path)


def starts(tmp_path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (tmp_path / "starts").read_text().splitlines()]


def answers(path: Path) -> dict[str, set[str]]:
    texts: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        if (event := json.loads(line))["type"] == "answer":
            texts.setdefault(event["camera"], set()).add(event["text"])
    return texts


def test_two_cameras_are_answered_for_by_one_server_that_ends_with_them(tmp_path: Path, command: str) -> None:
    out = tmp_path / "all.jsonl"
    file = written(tmp_path, command, header='answer.model = "my-model"\nanswer.memory.frames = 4')
    assert main(["fleet", file, "--engine", "vllm", "-o", str(out)]) == 0
    assert answers(out) == {"door": {"a red circle"}, "yard": {"a red circle"}}
    ((pid, *arguments),) = starts(tmp_path)
    assert arguments[:4] == ["serve", "my-model", "--host", "127.0.0.1"]
    assert json.loads(arguments[arguments.index("--limit-mm-per-prompt") + 1]) == {"image": 4}
    assert "--data-parallel-backend" not in arguments
    assert not Path(f"/proc/{pid}").exists()


def test_a_missing_command_is_one_line_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", written(tmp_path, "/nowhere/vllm"), "--engine", "vllm"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--engine vllm finds no command '/nowhere/vllm'; install vllm and arr-coc-vllm" in line


def test_a_server_that_cannot_start_is_one_line_with_its_reason(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", written(tmp_path, command, "--refuse", "no such model"), "--engine", "vllm"]) != 0
    assert "the vllm stage died: ValueError: no such model" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("header", "arguments", "message"),
    [
        ("", ("--engine", "sglang"), "--engine sglang is none of transformers, vllm"),
        ("", ("--engine", "vllm", "--dtype", "float32"), "answer.dtype = float32 has no effect with --api"),
        ("", ("--engine", "vllm", "--memory"), "give --memory-frames N in place of --memory"),
        ("", ("--engine", "vllm", "--ray", "auto"), "set [vllm] host to this machine's address"),
        (
            "vllm = 3",
            ("--engine", "vllm"),
            '[vllm] should be a table, such as [vllm] with command = "/opt/vllm/bin/vllm"',
        ),
        ("vllm.comand = 'a'", (), "unknown key comand; did you mean command?"),
        ("vllm.start_s = 0", (), "[vllm]: start_s should be greater than 0, got 0"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(
    tmp_path: Path, header: str, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cameras.toml"
    path.write_text(header + CAMERA.format(name="door"))
    assert main(["fleet", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err


def served(place: VllmPlace, **answer: Any) -> Config:
    api = ApiSection(url=place.url, picture="tokens")
    return Config(source="scene:demo", answer=AnswerConfig(**{"model": "a", **answer}), api=api)


def test_a_camera_of_another_model_needs_its_own_server(command: str) -> None:
    place = VllmPlace("127.0.0.1", 1)
    with pytest.raises(ConfigError, match="serves one model, and the cameras have a, b; give -m"):
        VllmServer([served(place), served(place, model="b")], VllmSettings(command=command), place)


def test_a_server_is_open_to_other_machines_only_if_that_is_allowed(command: str) -> None:
    place = VllmPlace("10.0.0.5", 1)
    camera_config = served(place)
    with pytest.raises(ConfigError, match=r"could ask vLLM there; .* --plain-tcp"):
        VllmServer([camera_config], VllmSettings(command=command), place)
    plain = camera_config.model_copy(update={"network": NetworkConfig(plain_tcp=True)})
    VllmServer([plain], VllmSettings(command=command), place)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"vLLM cannot listen at 192\.0\.2\.1"):
        VllmPlace.of(VllmSettings(host="192.0.2.1"), None, 1)


def test_a_cluster_has_an_engine_on_each_of_its_nodes() -> None:
    arguments = vllm.serve_arguments("m", 1, VllmPlace("10.0.0.5", 8000, "10.0.0.1:6379", 3))
    at = arguments.index("--data-parallel-backend")
    assert arguments[at:] == ["--data-parallel-backend", "ray", "--data-parallel-size", "3"]


def test_a_server_that_dies_again_and_again_ends_its_cameras(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "DEATHS_MAX", 1)
    monkeypatch.setattr(vllm.Backoff, "next_s", lambda self: 0.0)
    place, control, notes = VllmPlace.of(VllmSettings(), None, 1), RunControl(), list[str]()
    settings = VllmSettings(command=command, options=["--note", str(tmp_path / "starts")])
    with VllmServer([served(place)], settings, place).running([control], notes.append):
        until(lambda: len(starts(tmp_path)) == 1)
        os.kill(starts(tmp_path)[0][0], 9)
        until(lambda: len(starts(tmp_path)) == 2)
        os.kill(starts(tmp_path)[1][0], 9)
        until(lambda: control.failure is not None)
    assert isinstance(control.failure, StageDied)
    assert notes[0].startswith("starting vLLM at http://127.0.0.1:")
    assert [note.partition(" (")[0] for note in notes[1:]] == ["vLLM ended"]


def test_a_server_that_lists_no_model_in_time_is_ended(tmp_path: Path) -> None:
    silent = tmp_path / "vllm"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    place = VllmPlace.of(VllmSettings(), None, 1)
    server = VllmServer([served(place)], VllmSettings(command=str(silent), start_s=0.01), place)
    with pytest.raises(StageDied, match=r"lists no model within 0\.01 s"), server.running([], lambda _: None):
        raise AssertionError("it never begins")
    assert own_children() == []


def test_the_server_gets_the_key_and_the_cluster_of_the_command(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARR_COC_API_KEY", "secret")
    environment: dict[str, str] = {}
    real = vllm.subprocess.Popen

    def noted(*arguments: Any, env: dict[str, str], **options: Any) -> Any:
        environment.update(env)
        return real(*arguments, env=env, **options)

    monkeypatch.setattr(vllm.subprocess, "Popen", noted)
    place = replace(VllmPlace.of(VllmSettings(), None, 1), ray="10.0.0.1:6379", engines=2)
    settings = VllmSettings(command=command, options=["--note", str(tmp_path / "starts")])
    with VllmServer([served(place)], settings, place).running([], lambda _: None):
        assert fetched((place.host, place.port), "/v1/models")[0] == 200
    assert (environment["VLLM_API_KEY"], environment["RAY_ADDRESS"]) == ("secret", "10.0.0.1:6379")
    assert "--data-parallel-backend" in starts(tmp_path)[0]
    with socket.socket() as closed:
        assert closed.connect_ex((place.host, place.port)) != 0


def test_a_server_ends_with_a_command_that_is_killed() -> None:
    follow = [sys.executable, "-c", vllm.FOLLOW_PARENT, sys.executable, "-c", SLEEP]
    starts_it = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", starts_it, *follow], stdout=subprocess.PIPE, text=True) as command:
        try:
            assert command.stdout is not None
            child = psutil.Process(int(command.stdout.readline()))
            until(lambda: child.cmdline()[2:] == [SLEEP])
        finally:
            command.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
