"""The texture's backends as a user meets them: the same captions, whichever holds the texture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.backends.registry import open_store
from arr_coc.errors import StoreError, StoreReplaced
from arr_coc.texture.store.base import Backend, TextureStore
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import TileGrid
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from stream.cli import main
from tests.support import stores as backends
from tests.support.stores import BACKENDS, prepare, require
from tests.support.video import expected_level0, expected_levels, random_planes, stamp

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
def test_the_bundled_model_answers_the_same_byte_for_byte(
    tmp_path: Path, backend: Backend, source: str, request: pytest.FixtureRequest
) -> None:
    prepare(backend, request)
    expected, on_cpu = captions(tmp_path / "cpu", source, "cpu")
    lines, on_backend = captions(tmp_path / backend, source, backend)
    assert lines == expected
    assert [event["text"] for event in on_cpu if event["type"] == "answer"]
    for events, name in ((on_cpu, "cpu"), (on_backend, backend)):
        assert (events[0].pop("backend"), events[-1].pop("backend")) == (name, name)
    assert on_backend == on_cpu


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_that_changes_its_size_stays_in_its_store(
    backend: Backend, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(backend, request)
    opened: list[TextureStore] = []

    def open_one(fmt: PlaneFormat, name: Backend, **options: Any) -> TextureStore:
        opened.append(open_store(fmt, name, **options))
        return opened[-1]

    monkeypatch.setattr("arr_coc.video.texture_updater.open_store", open_one)
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


def test_if_a_store_is_missing_its_tests_are_skipped_but_fail_in_continuous_integration(
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


@pytest.mark.parametrize("while_reading", [False, True])
def test_a_stream_outlives_its_graphics_device(monkeypatch: pytest.MonkeyPatch, while_reading: bool) -> None:
    """The real store, whose device is lost as a driver would report it; `auto` means OpenGL here."""
    require("gl")
    opened: list[TextureStore] = []

    def open_one(fmt: PlaneFormat, name: Backend, **options: Any) -> TextureStore:
        opened.append(open_store(fmt, "gl" if name == "auto" else name, **options))
        return opened[-1]

    monkeypatch.setattr("arr_coc.video.texture_updater.open_store", open_one)
    rng = np.random.default_rng(0)
    first, second = (random_planes(rng, 96, 160, layout="rgb") for _ in range(2))
    updater = TextureUpdater()
    updater.process(first, stamp(0))
    opened[0].device.mark_lost("the cable was pulled")  # type: ignore[attr-defined]
    if while_reading:
        with pytest.raises(StoreReplaced, match="the cable was pulled"), updater.lease() as view:
            view.read(3)
        with updater.lease() as view:
            np.testing.assert_array_equal(view.read(0), expected_level0(first))
    assert (updater.process(second, stamp(1)).fallback is None) == while_reading
    with updater.lease() as view:
        np.testing.assert_array_equal(view.read(0), expected_level0(second))
    updater.close()
    assert ([store.backend for store in opened], updater.fallbacks) == (["gl", "cpu"], 1)
