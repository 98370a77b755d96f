"""Damaged media: reading ends in frames or one error, never in a crash, a hang, a traceback or without bound."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.damaged import LIMIT_S
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[2]
MUTATIONS = 200
BATCH = 50
BATCH_LIMIT_S = 1200
PEAK_MAX_BYTES = 3 << 30
"""Limit of a reader's peak memory: some decoded frames of the largest size that a damaged header may claim."""

MADE = {
    "square.mp4": {},
    "square.mkv": {"codec": "ffv1", "pixel_format": "yuv444p"},
    "square.avi": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "square.webm": {"codec": "libvpx-vp9"},
    "square.gif": {"codec": "gif", "pixel_format": "rgb8"},
    "square.ts": {},
}


def read_all(path: Path, seeds: Sequence[int]) -> Counter[str]:
    """Counts of the outcomes of reading copies of `path` with the damage of each seed."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.damaged", str(path), *map(str, seeds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BATCH_LIMIT_S,
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    last = lines[-1]["seed"] if lines else None
    assert process.returncode == 0, (
        f"seed {last} of {path.name}: status {process.returncode} (hung: {LIMIT_S} s)\n{process.stderr}"
    )
    results = [line for line in lines if "outcome" in line]
    faults = [(line["seed"], line["outcome"]) for line in results if line["outcome"].startswith("fault")]
    assert not faults, (path.name, faults)
    assert results[-1]["peak_bytes"] < PEAK_MAX_BYTES
    assert len(results) == len(seeds)
    return Counter(line["outcome"] for line in results)


@pytest.mark.parametrize("name", ["square.mp4", "square.mkv", "square.gif"])
def test_damaged_small_clips_are_read_or_refused(tmp_path: Path, name: str) -> None:
    path = make_video(tmp_path / name, moving_square(12), **MADE[name])  # type: ignore[arg-type]
    assert read_all(path, range(14)).total() == 14


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_many_damaged_small_clips_are_read_or_refused(tmp_path: Path, name: str) -> None:
    path = make_video(tmp_path / name, moving_square(12), **MADE[name])  # type: ignore[arg-type]
    outcomes = read_all(path, range(MUTATIONS))
    assert set(outcomes) == {"read", "refused"}


@pytest.mark.slow
def test_damaged_real_clips_are_read_or_refused(clips: Path) -> None:
    outcomes: Counter[str] = Counter()
    names = [entry["file"] for entry in json.loads((clips / "manifest.json").read_text("utf-8"))]
    for name in names:
        for first in range(0, MUTATIONS, BATCH):
            outcomes += read_all(clips / name, range(first, first + BATCH))
    assert set(outcomes) == {"read", "refused"}
    assert outcomes.total() == MUTATIONS * len(names)
