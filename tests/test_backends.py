"""The texture's backends as a user meets them: the same captions, whichever holds the texture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import StoreError
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.store import Backend, TextureStore, open_store
from arr_coc.types import TileGrid
from arr_coc.updater import TextureOptions, TextureUpdater
from stream.cli import main
from tests import backends
from tests.backends import BACKENDS, prepare, require
from tests.plane_maker import expected_levels, random_planes, stamp

OPTIONS = [
    "--no-timing",
    "--every",
    "0.5",
    "--budget",
    "64",
    "--max-frames",
    "30",
    "--single-process",
    "--device",
    "cpu",
]


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_that_changes_its_size_stays_where_it_is(
    backend: Backend, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(backend, request)
    opened: list[TextureStore] = []

    def open_one(fmt: PlaneFormat, name: Backend, **options: Any) -> TextureStore:
        opened.append(open_store(fmt, name, **options))
        return opened[-1]

    monkeypatch.setattr("arr_coc.updater.open_store", open_one)
    updater = TextureUpdater(TextureOptions(backend=backend))
    rng = np.random.default_rng(0)
    for index, size in enumerate(((96, 160), (64, 96), (200, 33))):
        planes = random_planes(rng, *size)
        updater.process(planes, stamp(index))
        with updater.lease() as view:
            assert view.grid == TileGrid.of(*size)
            np.testing.assert_array_equal(view.read(5), expected_levels(view.read(0))[5])
    updater.close()
    assert [store.backend for store in opened] == [backend] * 3
    for store in opened:
        with pytest.raises(StoreError, match="closed"), store.lease():
            pass


def test_where_a_store_is_missing_its_tests_are_skipped_but_fail_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "_problem", lambda backend: "no EGL; install it")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="the gl store must work in CI: no EGL; install it"):
        require("gl")
    with pytest.raises(pytest.skip.Exception, match="no cuda store here"):
        require("cuda")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no gl store here: no EGL; install it"):
        require("gl")
