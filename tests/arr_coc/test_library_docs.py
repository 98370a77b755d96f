"""The examples of docs/library.md and of the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "library.md"


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    picture = np.full((240, 320, 3), 128, np.uint8)
    cv2.circle(picture, (80, 60), 30, (0, 0, 255), -1)
    cv2.imwrite("picture.png", picture)
    cv2.imwrite("other.png", picture[:, ::-1])
    frames = [picture, picture[::-1], picture]
    camera = SimpleNamespace(read=lambda: (True, frames.pop()) if frames else (False, None))
    monkeypatch.setattr(cv2, "VideoCapture", lambda number: camera)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, str(DOCUMENT), "exec"), names)
    assert len(names["results"]) == 2
    assert len(names["answers"]) == 1
    assert names["out"].relevance.shape == (1, 32, 32)
    output = capsys.readouterr().out
    assert not frames
    assert output.startswith("Generation('")
    assert re.search(r"Timings\(allocate_ms=\d+\.\d, ", output)


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("Generation('a ") for line in lines), lines
