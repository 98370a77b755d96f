"""The examples in deploy/: options, ports, files and metrics are those of the program, and the tools accept them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tomllib
import typer
import yaml

from stream.answer.server_statistics import ServerStatistics
from stream.cli import application
from stream.config import Config
from stream.config_loading import build_config, layer_from_file
from stream.control import RunControl
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.metrics.sink import ServerMetrics
from tests.deploy.files import DEPLOY, ROOT, containers, copied_to_the_image, documents, program_of
from tests.support.network import LIMIT_S, fetched, free_port

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/arr-coc-stream/bin/arr-coc-stream"


def commands() -> Iterator[list[str]]:
    """Each command line, without the program."""
    for _, container in containers():
        yield container["args"]
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text("utf-8"), re.MULTILINE)
        program, *arguments = shlex.split(line)
        assert program == PROGRAM
        yield arguments


@pytest.mark.parametrize("line", list(commands()), ids=" ".join)
def test_the_program_takes_each_command_line(line: list[str]) -> None:
    name, *arguments = line
    command = typer.main.get_command(application()).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, arguments)
    assert context.params["metrics_port"] in ("9109", "9110", None)
    for setting in context.params.get("set") or context.params.get("set_") or ():
        assert setting == "metrics.host=0.0.0.0"


@pytest.mark.parametrize(
    "path", [path for path in sorted(DEPLOY.rglob("*.toml")) if path.parent != DEPLOY], ids=lambda path: path.name
)
def test_the_settings_are_valid(path: Path) -> None:
    config = build_config([layer_from_file(str(path))])
    assert config.answer.model is not None or config.answer.server == "tcp://127.0.0.1:5555"


def test_probes_and_ports_are_those_of_the_program() -> None:
    for name, container in containers():
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        line = " ".join(container["args"])
        assert f"--metrics-port={ports['metrics']}" in line
        assert "answers" not in ports or f"tcp://0.0.0.0:{ports['answers']}" in line
        probes = [value["httpGet"] for key, value in container.items() if key.endswith("Probe")]
        assert {probe["path"] for probe in probes} == {"/healthz", "/readyz"}
        assert {probe["port"] for probe in probes} == {"metrics"}
        services = [document for document in documents(DEPLOY / "kubernetes" / name) if document["kind"] == "Service"]
        assert {port["port"] for port in services[0]["spec"]["ports"]} == set(ports.values())
        assert services[0]["spec"]["clusterIP"] == "None"


def test_the_metric_that_scales_is_served() -> None:
    (scaled,) = documents(DEPLOY / "kubernetes" / "keda.yaml")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    (metric,) = re.findall(r"arr_coc_\w+", query)
    config = Config(metrics=MetricsSection(port=free_port()))
    with closing(ServerMetrics(config, ServerStatistics(), RunControl())) as served:
        page = fetched(served.address, "/metrics")[1]
    assert f"\n{metric} " in page
    assert scaled["spec"]["minReplicaCount"] >= 1


def test_the_image_is_built_of_what_is_there() -> None:
    lines = (DEPLOY / "Dockerfile").read_text("utf-8")
    copied = copied_to_the_image()
    assert all((ROOT / name).exists() for name in copied)
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split()
    assert set(copied) == {name[1:] for name in allowed if name.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", lines, re.MULTILINE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert f'ENTRYPOINT ["{PROGRAM}"]' in lines
    assert Path(PROGRAM).name in project["scripts"]


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    program = program_of("systemd-analyze", "apt-get install systemd")
    names = []
    for unit in UNITS:
        name = tmp_path / unit.name.replace("@", "@door")
        text = unit.read_text("utf-8")
        assert "Type=notify" in text
        assert "WatchdogSec=" in text
        name.write_text(text.replace(PROGRAM, "/bin/true"), encoding="utf-8")
        names.append(str(name))
    process = subprocess.run([program, "verify", *names], capture_output=True, text=True, timeout=LIMIT_S)
    about = [line for line in process.stderr.splitlines() if "arr-coc" in line]
    assert (process.returncode, about) == (0, [])


def test_kustomize_takes_the_manifests() -> None:
    program = program_of("kubectl", "it is installed from kubernetes.io")
    process = subprocess.run(
        [program, "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert process.returncode == 0, process.stderr
    kinds = [document["kind"] for document in yaml.safe_load_all(process.stdout)]
    assert sorted(kinds) == [
        *("ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "Service", "Service", "StatefulSet"),
    ]
