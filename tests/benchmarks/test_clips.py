"""Clips that are absent are left out, and named once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.incremental import SCENES, drift_sources
from benchmarks.support.clips import clips_here, described_clips


def folder_of(tmp_path: Path, described: list[str], files: list[str]) -> Path:
    (tmp_path / "manifest.json").write_text(json.dumps([{"file": name, "frames": 9} for name in described]))
    for name in files:
        (tmp_path / name).touch()
    return tmp_path


def test_an_absent_folder_leaves_everything_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = tmp_path / "nowhere"
    assert clips_here(nowhere, ["a.mp4", "b.mkv"]) == []
    assert described_clips(nowhere) == []
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"real clips are left out: {nowhere} has no a.mp4, b.mkv",
        f"real clips are left out: {nowhere} has no manifest.json",
    ]


def test_a_clip_that_the_folder_lacks_is_left_out_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, ["a.mp4", "b.mkv"], ["b.mkv"])
    assert described_clips(folder) == [{"file": "b.mkv", "frames": 9}]
    assert "has no a.mp4 (" in capsys.readouterr().out


def test_nothing_is_printed_if_no_clip_is_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, ["a.mp4"], ["a.mp4"])
    assert clips_here(folder, ["a.mp4"]) == [folder / "a.mp4"]
    assert len(described_clips(folder)) == 1
    assert capsys.readouterr().out == ""


def test_drift_is_measured_on_scenes_alone_without_clips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.incremental.CLIPS", tmp_path)
    assert drift_sources() == list(SCENES)
