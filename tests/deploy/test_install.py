"""deploy/install.sh in an empty folder: what the image would hold draws the clips and serves the page of compose.yaml.

An image is built nowhere in the tests. Its steps are in that script, so they run here instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.deploy.files import DEPLOY, ROOT, copied_to_the_image
from tests.support.mosquitto import broker
from tests.support.network import free_port
from tests.support.web import PageClient

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-this-test"
QUESTION = "How many things are there?"

INSTALL_S = 1800
"""Only a hang takes this long: torch is downloaded and unpacked."""


def run(*words: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    process = subprocess.run(
        words, env={**environment, **options}, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of the image, made of copies of the files that the Dockerfile copies."""
    source, prefix = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("opt") / "arr-coc-stream"
    leave_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in copied_to_the_image():
        (source / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, source / name)
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    # The image compiles all modules once; here most of them are never imported.
    settings = {"PREFIX": str(prefix), "EXTRAS": extras, "PIP_NO_COMPILE": "1", "TORCH": ""}
    for step in ("torch", "program"):
        run("sh", "-c", f'cd "$1" && sh deploy/install.sh {step}', "sh", source, **settings)
    shutil.rmtree(source)
    return prefix / "bin"


def on_this_machine(folder: Path, broker_port: int, page: int, health: int) -> str:
    """cameras.toml with places of this machine. `door` is the drawn clip; `yard` is its scene, and never ends."""
    text = (DEPLOY / "cameras.toml").read_text("utf-8")
    for place, here in {
        "rtsp://mediamtx:8554/door": f"{folder}/door.mp4",
        "rtsp://mediamtx:8554/yard": "scene:moving",
        "/data/": f"{folder}/",
        "mqtt://mosquitto": f"mqtt://127.0.0.1:{broker_port}",
        r"0\.0\.0\.0:8090": f"127.0.0.1:{page}",
        "port = 9109": f"port = {health}",
    }.items():
        text, count = re.subn(place, here, text)
        assert count, place
    return f"{text}capture.loop = true\n"


@contextmanager
def viewer(port: int) -> Iterator[PageClient]:
    header = {"Authorization": f"Bearer {TOKEN}"}
    address = f"ws://127.0.0.1:{port}/live"
    with connect(address, additional_headers=header, max_size=None, compression=None) as socket:
        yield PageClient(socket)


def test_the_cameras_of_compose_are_drawn_shown_and_answered_for(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "arr-coc-stream", "--version").stdout.startswith("arr-coc-stream ")
    run(installed / "python", DEPLOY / "draw_clips.py", tmp_path)
    page, health = free_port(), free_port()
    with broker(tmp_path) as served:
        settings = tmp_path / "cameras.toml"
        settings.write_text(on_this_machine(tmp_path, served.port, page, health), "utf-8")
        command = [installed / "arr-coc-stream", "fleet", settings]
        environment = {**os.environ, "ARR_COC_WEB_TOKEN": TOKEN}
        with subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            try:
                assert child.stdout is not None
                events = iter(child.stdout)
                assert next(line for line in events if '"type":"answer"' in line)
                with viewer(page) as page_client:
                    assert page_client.next("hello")["cameras"] == ["door", "yard"]
                    page_client.send(ask=QUESTION)
                    assert next(line for line in events if '"type":"answer"' in line and QUESTION in line)
            finally:
                child.terminate()
                child.communicate(timeout=INSTALL_S)
    assert (tmp_path / "past.sqlite").is_file()


def test_the_installed_command_refuses_another_package_named_stream(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "__init__.py").touch()
    process = subprocess.run(
        [installed / "arr-coc-stream", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert "is another package named stream" in process.stderr
    assert sys.executable not in process.stderr
