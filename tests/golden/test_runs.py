"""Captions of scenes and clips and events of lockstep runs, equal to the golden files byte for byte."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.golden import record

FILES = Path(__file__).parent / "files"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the golden files are of an x86-64 processor")


def contents(folder: Path) -> dict[str, str]:
    """The text of every file of a folder."""
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.iterdir()) if file.is_file()}


def test_captions_of_scenes(tmp_path: Path) -> None:
    record.scene_captions(tmp_path)
    assert contents(tmp_path) == contents(FILES / "scenes")


def test_captions_of_clips(tmp_path: Path, clips: Path) -> None:
    record.clip_captions(tmp_path, clips)
    assert contents(tmp_path) == contents(FILES / "clips")


def test_events(tmp_path: Path) -> None:
    record.lockstep_events(tmp_path)
    golden = contents(FILES / "events")
    for name, text in contents(tmp_path).items():
        assert text.splitlines() == golden[name].splitlines(), name
    assert sorted(file.name for file in tmp_path.glob("*.jsonl")) == sorted(golden)
