"""Captions of scenes and clips and events of lockstep runs, equal to the golden files.

Texts and counts are equal. Measured numbers may differ as much as the arithmetic of another processor makes them, and
so may counts of a clip, in which regions of nearly equal relevance may change places.
"""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import Any

import pytest

from tests.golden import record

FILES = Path(__file__).parent / "files"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the golden files are of an x86-64 processor")


def is_alike(value: Any, golden: Any, count_share: float) -> bool:
    """Whether a JSON value is the golden one, but for numbers: counts may differ by a share of the golden count."""
    if isinstance(golden, dict):
        return golden.keys() == value.keys() and all(is_alike(value[key], golden[key], count_share) for key in golden)
    if isinstance(golden, list):
        return len(golden) == len(value) and all(map(is_alike, value, golden, [count_share] * len(golden)))
    if isinstance(golden, float):
        return math.isclose(value, golden, rel_tol=max(1e-4, count_share), abs_tol=1e-6)
    if type(golden) is int:
        return math.isclose(value, golden, rel_tol=count_share)
    return bool(value == golden)


def compare(folder: Path, golden_folder: Path, count_share: float = 0.0) -> None:
    """Assert that the files of a folder are the golden ones."""
    names = sorted(file.name for file in golden_folder.iterdir())
    assert sorted(file.name for file in folder.iterdir()) == names
    for name in names:
        lines, golden = ((part / name).read_text(encoding="utf-8").splitlines() for part in (folder, golden_folder))
        assert len(lines) == len(golden), name
        for number, (line, golden_line) in enumerate(zip(lines, golden, strict=True), 1):
            if name.endswith(".jsonl") and is_alike(json.loads(line), json.loads(golden_line), count_share):
                continue
            assert line == golden_line, f"{name}, line {number}"


def test_captions_of_scenes(tmp_path: Path) -> None:
    record.scene_captions(tmp_path)
    compare(tmp_path, FILES / "scenes")


def test_captions_of_clips(tmp_path: Path, clips: Path) -> None:
    record.clip_captions(tmp_path, clips)
    compare(tmp_path, FILES / "clips", count_share=0.05)


def test_events(tmp_path: Path) -> None:
    record.lockstep_events(tmp_path)
    compare(tmp_path, FILES / "events")
