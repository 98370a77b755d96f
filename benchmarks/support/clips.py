"""Folder of real clips, which a checkout may lack; absent ones are left out, with a note."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLIPS = Path(os.environ.get("ARR_COC_CLIPS", Path(__file__).resolve().parents[3] / "shared" / "clips"))
"""The folder, if no option names another one: of the environment, or beside the checkout."""

_REMEDY = "--clips or $ARR_COC_CLIPS names a folder"


def clips_here(folder: Path, names: Sequence[str]) -> list[Path]:
    """Paths of those clips that the folder holds. Prints a line with the others."""
    paths = [folder / name for name in names]
    if absent := [path.name for path in paths if not path.is_file()]:
        print(f"real clips are left out: {folder} has no {', '.join(absent)} ({_REMEDY})", flush=True)
    return [path for path in paths if path.is_file()]


def described_clips(folder: Path) -> list[dict[str, Any]]:
    """Entries of the folder's `manifest.json` whose clips it holds. Prints a line with what is absent."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        print(f"real clips are left out: {folder} has no manifest.json ({_REMEDY})", flush=True)
        return []
    clips: list[dict[str, Any]] = json.loads(manifest.read_text(encoding="utf-8"))
    names = {path.name for path in clips_here(folder, [clip["file"] for clip in clips])}
    return [clip for clip in clips if clip["file"] in names]
