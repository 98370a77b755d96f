"""compose.yaml: its command lines are the program's, its files are there, and ports and addresses agree with them."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import pytest
import typer
import yaml

from stream.cli import application
from stream.config import Config
from stream.config_loading import build_config
from stream.extensions.clips.section import ClipsSection
from stream.extensions.fleet.file import read_fleet
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.mqtt.section import MqttSection
from stream.extensions.past.section import PastSection
from stream.extensions.web.access import WebAccess
from stream.extensions.web.section import WebSection
from tests.deploy.files import DEPLOY, ROOT, documents, program_of, services
from tests.support.network import LIMIT_S

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SERVICES = services()
PROGRAMS = {name: service["command"] for name, service in SERVICES.items() if "command" in service}


def fleet() -> dict[str, Config]:
    file = read_fleet(str(DEPLOY / "cameras.toml"))
    assert file.problems == {}
    return {name: build_config([*file.common, *layers]) for name, layers in file.cameras.items()}


def published(service: str) -> dict[int, str]:
    """Port in the container → address of this machine."""
    ports = [entry.rpartition(":") for entry in SERVICES[service]["ports"]]
    return {int(inside): outside for outside, _, inside in ports}


def mounted(service: str) -> dict[str, str]:
    """Path in the container → file of deploy/, or name of a volume."""
    return {entry.split(":")[1]: entry.split(":")[0] for entry in SERVICES[service].get("volumes", ())}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_takes_each_command_line(name: str) -> None:
    command, *arguments = PROGRAMS[name]
    typer.main.get_command(application()).commands[command].make_context(command, [*arguments])  # type: ignore[attr-defined]
    files = [argument for argument in arguments if argument.startswith("/")]
    assert files
    assert all(file in mounted(name) for file in files)


def test_mounted_files_and_volumes_are_there() -> None:
    volumes = set(documents(DEPLOY / "compose.yaml")[0]["volumes"])
    sources = {source for name in SERVICES for source in mounted(name).values()}
    assert {source for source in sources if not source.startswith("./")} == volumes
    assert [source for source in sources if source.startswith("./") and not (DEPLOY / source).is_file()] == []


def test_what_cameras_write_is_on_volumes() -> None:
    for config in fleet().values():
        for path in (ClipsSection.of(config).folder, PastSection.of(config).file):
            assert path is not None
            assert mounted("cameras")[str(Path(path).parent)] == "data"


def test_ports_are_those_of_the_settings_and_reach_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    common = build_config(read_fleet(str(DEPLOY / "cameras.toml")).common)
    monkeypatch.setenv("ARR_COC_WEB_TOKEN", "auto")
    access = WebAccess.of(common)
    assert access.made_token
    metrics = MetricsSection.of(common)
    assert (access.host, metrics.host) == ("0.0.0.0", "0.0.0.0")
    assert set(published("cameras")) == {access.port, metrics.port}
    assert all(
        outside.startswith("127.0.0.1:") for name in ("cameras", "mosquitto") for outside in published(name).values()
    )
    assert f"http://127.0.0.1:{metrics.port}/healthz" in SERVICES["cameras"]["healthcheck"]["test"][-1]
    (token,) = [key for key in SERVICES["cameras"]["environment"] if key.endswith("TOKEN")]
    assert token == "ARR_COC_WEB_TOKEN"
    assert access.allows_host(f"{SERVICES['cameras']['hostname']}:{access.port}")


def test_the_broker_is_the_one_that_cameras_name() -> None:
    listener = re.search(r"^listener (\d+)$", (DEPLOY / "mosquitto.conf").read_text("utf-8"), re.MULTILINE)
    assert listener is not None
    for config in fleet().values():
        url = urlsplit(MqttSection.of(config).url or "")
        assert (url.hostname, url.port or 1883) == ("mosquitto", int(listener[1]))
    assert set(published("mosquitto")) == {int(listener[1])}


def test_the_server_of_streams_offers_the_drawn_cameras() -> None:
    (server,) = documents(DEPLOY / "mediamtx.yml")
    port = int(server["rtspAddress"].strip(":"))
    assert {config.source for config in fleet().values()} == {
        f"rtsp://mediamtx:{port}/{name}" for name in server["paths"]
    }
    clips = runpy.run_path(str(DEPLOY / "draw_clips.py"))["CLIPS"]
    for name, path in server["paths"].items():
        words = path["runOnInit"].split()
        options = dict(pairwise(words))
        assert name in clips
        assert options["-i"] == f"{next(place for place in mounted('mediamtx') if place == '/clips')}/{name}.mp4"
        assert words[-1] == f"rtsp://127.0.0.1:{port}/{name}"
    drawing = SERVICES["clips"]["entrypoint"]
    assert (mounted("clips")[drawing[1]], mounted("clips")[drawing[2]]) == ("./draw_clips.py", "clips")
    assert mounted("mediamtx")["/clips"] == "clips"


def test_a_drawn_clip_can_be_played_from_any_second(tmp_path: Path) -> None:
    clip = tmp_path / "door.mp4"
    runpy.run_path(str(DEPLOY / "draw_clips.py"))["draw"](clip, "static")
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.pts is not None]
    assert all(packet.pts == packet.dts for packet in packets), "B-frames delay a stream"
    rate = round(stream.average_rate or 0)
    assert all(packet.is_keyframe for packet in packets[::rate])


def test_the_image_has_the_extras_that_the_cameras_need() -> None:
    (line,) = re.findall(r"^ARG EXTRAS=(.+)$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert WebSection.of(next(iter(fleet().values()))).address is not None
    assert {"mqtt", "web"} <= set(line.split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(line.split(",")) <= set(project["optional-dependencies"])


def test_a_gpu_changes_image_and_device_alone() -> None:
    override = documents(DEPLOY / "compose.gpu.yaml")[0]["services"]
    own = {name for name, service in SERVICES.items() if service["image"] == "arr-coc-stream:cpu"}
    assert set(override) == own
    assert {key for service in override.values() for key in service} == {"image", "build", "deploy"}
    (argument,) = override["cameras"]["build"]["args"]
    assert f"ARG {argument}=" in (DEPLOY / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]], ids=len)
def test_compose_takes_the_files(files: list[str]) -> None:
    program = program_of("docker-compose", "apt-get install docker-compose")
    file_options = [part for name in files for part in ("--file", str(DEPLOY / name))]
    process = subprocess.run(
        [program, *file_options, "config"],
        capture_output=True,
        text=True,
        env={"WEB_TOKEN": "a-secret-of-mine"},
        timeout=LIMIT_S,
    )
    assert process.returncode == 0, process.stderr
    cameras: dict[str, Any] = yaml.safe_load(process.stdout)["services"]["cameras"]
    assert cameras["environment"]["ARR_COC_WEB_TOKEN"] == "a-secret-of-mine"
    assert cameras["image"] == ("arr-coc-stream:cuda" if len(files) > 1 else "arr-coc-stream:cpu")
