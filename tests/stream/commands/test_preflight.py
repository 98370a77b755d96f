"""Mistakes in a command line are reported before anything heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stream.commands.run import check_run
from stream.config import CaptureConfig, Config, NetworkConfig, OutputConfig
from stream.errors import ConfigError, OutputError, SourceError, SourceNotFound
from stream.extensions.zeromq.section import ZeromqSection
from stream.sources.factory import check_source

ROOT = Path(__file__).resolve().parents[3]

HEAVY = ("torch", "transformers", "cv2", "av", "PIL", "zmq")

LOADED = """
import json, sys
from stream.cli import main
status = main(sys.argv[2:])
print(json.dumps({"status": status, "loaded": sorted(set(sys.modules) & set(json.loads(sys.argv[1])))}))
"""

WRONG = {
    "caption nosuch.mp4": "nosuch.mp4 does not exist",
    "caption --every soon x.mp4": "--every: answer.every_s should be",
    "caption --every 1e308 x.mp4": "--every should be at most 31536000, or be none, got 1e+308",
    "caption empty.mp4": "empty.mp4 is empty",
    "caption list.m3u8": "list.m3u8 is an HLS playlist",
    "caption clip.mp4 -o nosuch/a.vtt": "there is no folder 'nosuch'",
    "caption clip.mp4 -o a.txt": "suffix '.txt'",
    "caption clip.mp4 -o clip.mp4": "suffix '.mp4'",
    "caption clip.mp4 --heatmap clip.mp4": "is the input",
    "caption clip.mp4 -m ./nosuch": "there is no folder ./nosuch",
    "caption clip.mp4 --until x? --target-ms 5": "is about answers",
    "caption clip.mp4 --stream -1": "capture.stream should be",
    "caption scene:demo --stream 7": "scene:demo has no video stream 7, only stream 0; leave --stream",
    "watch nosuch.mp4": "nosuch.mp4 does not exist",
    "watch rtsp://": "names no host",
    "watch /dev/video99": "/dev/video99 is not there",
    "watch onvif://": "names no host",
    "watch screen:nowhere+1": "screen:nowhere+1 names no screen",
    "caption lerobot:shots": "shots has no meta/info.json; give the folder of a LeRobot dataset",
    "watch nothing": "nothing does not exist",
    "watch shots": "shots is an empty folder",
    "watch shots/*.png": "no file matches shots/*.png",
    "watch zmq+tcp://127.0.0.1:0": "is not a valid address",
    "watch clip.mp4 --publish tcp://127.0.0.1": "is not a socket address",
    "watch clip.mp4 --control tcp://10.0.0.1:5": "leaves this machine without keys",
    "watch clip.mp4 --server tcp://127.0.0.1:99999": "is not a valid address",
    "watch clip.mp4 --metrics-port 99999": "metrics.port should be",
    "watch clip.mp4 --mqtt home": "needs an address such as",
    "watch clip.mp4 --mqtt-ask": "--mqtt-ask needs --mqtt",
    "watch clip.mp4 --mqtt-name door": "--mqtt-name needs --mqtt",
    "watch clip.mp4 --webhook home": "is no address",
    "watch clip.mp4 --foxglove 0.0.0.0:8765": "can be reached from other machines",
    "watch clip.mp4 -o shots.rosbag": "exists already, and a bag is never overwritten",
    "watch clip.mp4 --otlp desk:4318": "--otlp needs an address such as",
    "watch clip.mp4 --rerun desk": "--rerun needs",
    "watch clip.mp4 --overlay a.vtt": "the overlay can be .txt",
    "watch clip.mp4 --for never": "--for needs a length of time",
    "bench nosuch.mp4": "nosuch.mp4 does not exist",
    "bench clip.mp4 --json nosuch/a.json": "there is no folder 'nosuch'",
    "caption clip.mp4 --allocator nosuch": "no allocator: there is no folder nosuch",
    "caption clip.mp4 --allocator shots": "shots holds no config.json; an allocator's folder",
    "watch clip.mp4 --server tcp://127.0.0.1:5 --allocator shots": "--allocator shots has no effect with --server",
    "adapt nosuch.mp4 -o made": "nosuch.mp4 does not exist",
    "adapt clip.mp4 -o made --question empty.mp4": "empty.mp4 holds no question",
    "adapt clip.mp4 -o made -m ./nosuch": "there is no folder ./nosuch",
    "serve-answers tcp://127.0.0.1:5 --max-tokens none": "--max-tokens: answer.max_tokens should be",
    "doctor --budget much": "--budget: allocate.budget should be",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clip.mp4").write_bytes(b"whatever it is")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n", encoding="utf-8")
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots.rosbag").mkdir()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("line", WRONG)
def test_it_is_reported_before_anything_heavy_is_imported(folder: Path, line: str) -> None:
    refused_without_loading(folder, line)


@pytest.mark.parametrize("line", ["caption nosuch.mp4", "watch clip.mp4 --control tcp://10.0.0.1:5"])
def test_a_mistyped_name_costs_no_libraries(folder: Path, line: str) -> None:
    refused_without_loading(folder, line)


def refused_without_loading(folder: Path, line: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(HEAVY), *line.split()],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert process.returncode == 0, process.stderr[-2000:]
    (message,) = process.stderr.splitlines()
    assert message.startswith("error: ")
    assert WRONG[line] in message
    assert json.loads(process.stdout) == {"status": 2, "loaded": []}


def test_valid_options_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "shots" / "a.png").touch()
    outputs = OutputConfig(paths=("a.vtt", "shots/a.jsonl"))
    sockets = ZeromqSection(publish="tcp://127.0.0.1:*", control="ipc:///tmp/x")
    for source in ("clip.mp4", "shots", "shots/*.png", "-", "scene:demo", "rtsp://cam/x", "udp://:5000"):
        check_run(Config(source=source, output=outputs, zeromq=sockets))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("nosuch.mp4", SourceNotFound),
        ("rtsp:cam", SourceNotFound),
        ("shots", SourceError),
        ("empty.mp4", SourceError),
        ("list.m3u8", SourceError),
        ("udp://127.0.0.1", SourceError),
        ("zmq+tcp://127.0.0.1", ConfigError),
        ("zmq+tcp://10.0.0.1:5", ConfigError),
        ("/dev/video99", SourceNotFound),
        ("screen:nowhere+1", SourceError),
        ("lerobot:shots", SourceNotFound),
    ],
)
def test_sources_that_cannot_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: type[Exception]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(kind):
        check_source(source, CaptureConfig(), NetworkConfig())


def test_outputs_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "dir.vtt").mkdir()
    for path, reason in (("nosuch/a.vtt", "there is no folder 'nosuch'; make it first"), ("dir.vtt", "it is a folder")):
        with pytest.raises(OutputError, match=reason):
            check_run(Config(source="clip.mp4", output=OutputConfig(paths=(path,))))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OutputError, match=r"cannot write 'a\.vtt': Permission denied"):
        check_run(Config(source="clip.mp4", output=OutputConfig(paths=("a.vtt",))))
    assert not (folder / "a.vtt").exists()
