"""Runs with `--strategy evs` and `querystream`: changes are shown, a cut begins anew, a recording answers the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.allocation.evs import even_lattice
from stream.cli import main

GRID = (12, 20)


def reasons(folder: Path, *options: str, strategy: str = "evs") -> list[dict[str, Any]]:
    """The `why` lines of the demo, one an answer."""
    path = folder / "why.jsonl"
    run = ["caption", "scene:demo", "--strategy", strategy, "--max-frames", "120", "--every", "2", "--why", str(path)]
    assert main([*run, *options]) == 0
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def shown(reason: dict[str, Any]) -> np.ndarray:
    tiles = np.zeros(GRID, bool)
    for token in reason["tokens"]:
        assert token["level"] == 0
        tiles[token["row"], token["col"]] = True
    return tiles


def test_the_demo_shows_what_changed_since_the_last_answer_and_covers_a_cut(tmp_path: Path) -> None:
    answered = reasons(tmp_path, "--no-memory")
    assert [reason["frame_index"] for reason in answered][:4] == [0, 48, 96, 108]
    assert {reason["strategy"] for reason in answered} == {"evs"}
    first, *others = (shown(reason) for reason in answered)
    budget = int(first.sum())
    assert all(tiles.sum() == budget for tiles in others)
    lattice = even_lattice(GRID, budget)
    assert np.array_equal(first, lattice)
    assert not np.array_equal(others[0], lattice)
    assert np.array_equal(others[2], lattice), "the first frame after the cut"


def test_querystream_shows_relevant_news(tmp_path: Path) -> None:
    answered = reasons(tmp_path, "--no-memory", strategy="querystream")
    assert {reason["strategy"] for reason in answered} == {"querystream"}
    tiles = [shown(reason) for reason in answered]
    assert len({int(mask.sum()) for mask in tiles}) == 1
    assert not np.array_equal(tiles[0], tiles[1])


@pytest.mark.parametrize("strategy", ["evs", "querystream"])
def test_a_recording_gives_the_same_answers(tmp_path: Path, strategy: str) -> None:
    recording = tmp_path / "recording"
    options = ("--until", "is there a green star?", "--go-on", "--record", str(recording))
    reasons(tmp_path, *options, strategy=strategy)
    assert main(["replay", str(recording)]) == 0
