"""The texture's backends as a user meets them: the same captions, whichever holds the texture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arr_coc.ops.store import Backend
from stream.cli import main
from tests.backends import BACKENDS, prepare

OPTIONS = ["--no-timing", "--every", "0.5", "--max-frames", "30", "--single-process", "--device", "cpu"]


def captions(folder: Path, source: str, backend: str, *options: str) -> tuple[bytes, list[dict[str, Any]]]:
    """The caption file, and every event of the run."""
    folder.mkdir()
    paths = [folder / "captions.vtt", folder / "captions.jsonl"]
    outputs = [argument for path in paths for argument in ("-o", str(path))]
    assert main(["caption", source, *outputs, *OPTIONS, "--backend", backend, *options]) == 0
    return paths[0].read_bytes(), [json.loads(line) for line in paths[1].read_text("utf-8").splitlines()]


@pytest.mark.parametrize("source", ["scene:demo", "scene:cuts"])
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_the_bundled_model_says_the_same_byte_for_byte(
    tmp_path: Path, backend: Backend, source: str, request: pytest.FixtureRequest
) -> None:
    prepare(backend, request)
    expected, told = captions(tmp_path / "cpu", source, "cpu")
    got, told_there = captions(tmp_path / backend, source, backend)
    assert got == expected
    assert [event["text"] for event in told if event["type"] == "answer"]
    for events, name in ((told, "cpu"), (told_there, backend)):
        assert (events[0].pop("backend"), events[-1].pop("backend")) == (name, name)
    assert told_there == told
