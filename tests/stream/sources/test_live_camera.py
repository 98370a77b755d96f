"""A V4L2 camera, simulated by a library between FFmpeg and the system."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.network import LIMIT_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The fake camera, to be preloaded."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler for the fake camera")
    path = tmp_path / "fake_camera.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(path), str(ROOT / "tests" / "support" / "fake_camera.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return path


@pytest.mark.slow
def test_one_command_watches_a_camera_from_an_empty_folder(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, str(ROOT / "run_stream.py"), "watch", "42", "-c", "webcam", "--max-frames", "10"],
        cwd=folder,
        env={**os.environ, "LD_PRELOAD": str(library), "FAKE_CAMERA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("\n") >= 1
    assert " frame" in ran.stderr.splitlines()[-1]
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_camera_is_read_brought_back_and_its_faults_are_named(tmp_path: Path, library: Path) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.camera"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "FAKE_CAMERA": str(faults)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["busy"].startswith("/dev/video42 is in use by another program")
    assert report["denied"].startswith("/dev/video42 may not be opened by this user")
    assert report["gone"].startswith("/dev/video42 is not there")
    assert report["mode"].startswith("/dev/video42 does not support this mode")
    assert report["hang"].startswith("/dev/video42 gives no picture within 0.3 s")
    assert report["info"] == ["/dev/video42", 640, 480, 30.0, True, "rawvideo"]
    assert report["rise"]
    assert report["outages"] == ["no picture for 1.5 s", "reconnect", "no such device", "reconnect"]
    assert ran.stderr == ""
