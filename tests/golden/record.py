"""Recorder of the golden files: `python -m tests.golden.record tests/golden/files CLIPS`.

Captions of every scene and clip, all events of runs in lockstep, help texts, topics and exit statuses. With
`FIXED_ARITHMETIC` in its environment, the libraries compute the same numbers on every x86-64 processor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from stream.extensions.robotics.rosbag import TOPICS as ROS_TOPICS
from stream.monitor.schema import TOPICS
from stream.scenes.catalogue import SCENE_NAMES
from tests.golden.events import stable_line

ROOT = Path(__file__).resolve().parents[2]
FIXED_ARITHMETIC = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OPENCV_CPU_DISABLE": "AVX2,AVX512-SKX",
    "OPENCV_IPP": "disabled",
    "OPENCV_LOG_LEVEL": "ERROR",
}
CLIP_SUFFIXES = {".mp4", ".mkv", ".webm", ".gif", ".h264"}
CLIP_FRAMES = 150
COMMANDS = (
    *("caption", "watch", "fleet", "web", "demo", "bench", "adapt"),
    *("ask", "replay", "search", "recap", "devices", "doctor", "serve-answers", "keys"),
)
FAILURES = {
    "missing file": ["caption", "nosuch.mp4"],
    "unknown scene": ["caption", "scene:dmo"],
    "unknown option": ["caption", "scene:demo", "--nosuch"],
    "bad budget": ["caption", "scene:demo", "--budget", "0"],
    "unknown key": ["caption", "scene:demo", "--set", "answer.nosuch=1"],
    "verdict not reached": ["caption", "scene:static", "--max-frames", "3", "--until", "Is there a green cross?"],
    "plain tcp": ["serve-answers", "tcp://0.0.0.0:5555"],
    "no server": ["ask", "tcp://127.0.0.1:1", "What?"],
    "no recording": ["replay", "nosuch"],
    "no camera": ["watch", "/dev/video99", "--max-frames", "1"],
}


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with fixed arithmetic and 80 columns."""
    environment = {**os.environ, **FIXED_ARITHMETIC, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return run(str(ROOT / "run_stream.py"), *arguments, folder=folder)


def captions(folder: Path, sources: list[str], *options: str) -> None:
    """Write NAME.jsonl and NAME.vtt of every source into the folder. Raises RuntimeError if the command fails."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = ("-o", "{name}.jsonl", "-o", "{name}.vtt", "--no-timing")
    process = command("caption", *sources, *outputs, *options, folder=folder)
    if process.returncode:
        raise RuntimeError(process.stderr)
    for file in folder.glob("*.jsonl"):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        file.write_text("".join(f"{stable_line(record)}\n" for record in records), encoding="utf-8")


def scene_captions(folder: Path) -> None:
    """Write the captions of every drawn scene."""
    captions(folder, [f"scene:{name}" for name in SCENE_NAMES])


def clip_captions(folder: Path, clips: Path) -> None:
    """Write the captions of the first `CLIP_FRAMES` frames of every clip of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    links = [folder / file.name for file in sorted(clips.iterdir()) if file.suffix in CLIP_SUFFIXES]
    for link in links:
        link.symlink_to(clips / link.name)
    captions(folder, [link.name for link in links], "--max-frames", str(CLIP_FRAMES))
    for link in links:
        link.unlink()


def lockstep_events(folder: Path) -> None:
    """Write all events of the runs of `tests.golden.events`. Raises RuntimeError if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    process = run("-m", "tests.golden.events", str(folder), folder=folder)
    if process.returncode:
        raise RuntimeError(process.stderr)


def help_texts(folder: Path) -> None:
    """Write the help of every command, 80 columns wide."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("", *COMMANDS):
        text = command(*name.split(), "--help", folder=ROOT).stdout
        (folder / f"{name or 'run_stream'}.txt").write_text(text, encoding="utf-8")


def exit_statuses(folder: Path) -> None:
    """Write the status and the last line on stderr of commands that cannot work."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, arguments in FAILURES.items():
        process = command(*arguments, folder=folder)
        last_line = re.sub(r"\d+ frames a second", "N frames a second", process.stderr.strip().splitlines()[-1])
        results[name] = {"status": process.returncode, "line": last_line}
    (folder / "exit_statuses.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def topics(folder: Path) -> None:
    """Write the names under which other programs see a run."""
    names = {"zeromq": sorted(TOPICS), "ros2": sorted(ROS_TOPICS)}
    (folder / "topics.json").write_text(json.dumps(names, indent=1) + "\n")


def record(folder: Path, clips: Path) -> None:
    """Write all golden files into a folder."""
    scene_captions(folder / "scenes")
    clip_captions(folder / "clips", clips)
    lockstep_events(folder / "events")
    help_texts(folder / "help")
    exit_statuses(folder)
    topics(folder)


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
