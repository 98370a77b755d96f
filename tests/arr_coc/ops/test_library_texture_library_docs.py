"""The examples of docs/texture-library.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from arr_coc.ops import __all__ as public
from tests.support.video import make_video, moving_square

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "texture-library.md"


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photo = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    cv2.imwrite("photo.png", photo)
    make_video(tmp_path / "clip.mp4", moving_square(4, 320, 240))
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(example, str(DOCUMENT), "exec"), names)
    assert "100% of the tiles changed" in capsys.readouterr().out
    assert names["small"].tokens <= 60
    assert Path("small.png").is_file()
    assert names["token"].shape == (1, 3, 32, 32)
    assert names["points"].grad.abs().sum() > 0


def test_every_name_of_the_library_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    results = {"Composite", "CompositePlacement", "Foveation"}
    for name in set(public) - results - {"TextureStore", "open_store", "multiply_adds"}:
        assert name in text, name
