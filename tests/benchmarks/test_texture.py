"""The texture benchmarks: that peers do the same work, that the verdicts follow from the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from arr_coc.backends.registry import open_store
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import LEVELS, FramePlanes, FrameStamp, TileGrid
from benchmarks import precision, texture
from benchmarks.support.texture_frames import (
    CASES,
    SIZES,
    TextureCase,
    changing_tiles,
    make_frames,
    peers,
    planes_of,
    rgb_of,
)
from benchmarks.support.texture_report import plot, summary, table, target_rows
from benchmarks.texture import crosses_at, crossing, one_by_one
from tests.support.stores import require
from tests.support.video import expected_levels

SMALL = TileGrid.of(180, 320)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_just_the_wanted_share_of_tiles_changes(case: TextureCase) -> None:
    for grid, tolerance in (*((grid, 0.01) for grid in SIZES.values()), (SMALL, 0.04)):
        assert changing_tiles(case, grid).mean() == pytest.approx(case.share, abs=tolerance)
    frames = [planes_of(frame) for frame in make_frames(case, SMALL)]
    store = open_store(PlaneFormat.of(frames[0]), "cpu")
    store.update(frames[0], FrameStamp(0, 0, 0))
    np.testing.assert_array_equal(store.compare(frames[1]).dirty, changing_tiles(case, SMALL))


def test_noise_stays_below_the_thresholds() -> None:
    first, second, *_ = (planes_of(frame) for frame in make_frames(TextureCase(0.0, noise=2.0), SMALL))
    store = open_store(PlaneFormat.of(first), "cpu")
    store.update(first, FrameStamp(0, 0, 0))
    assert store.compare(second).dirty_share == 0
    exact = open_store(PlaneFormat.of(first), "cpu", thresholds=Thresholds(0, 0))
    exact.update(first, FrameStamp(0, 0, 0))
    assert exact.compare(second).dirty_share == 1


def test_every_peer_builds_a_pyramid_of_the_same_picture() -> None:
    require("gl")
    # so smooth that it hardly matters how wide the filter is
    level0 = cv2.GaussianBlur(texture.pad_frame(make_frames(TextureCase(0.0), SMALL)[0], SMALL), (0, 0), 40)
    expected, names = expected_levels(level0), set()
    for peer in peers(SMALL):
        for _ in range(2):
            peer.run(level0)
        levels = peer.levels()
        names.add(peer.name.partition(" (")[0])
        assert [level.shape for level in levels] == [level.shape for level in expected]
        for level, reference in zip(levels, expected, strict=True):
            difference = np.abs(level.astype(int) - reference)
            assert (difference.mean() <= 3, difference.max() <= 15) == (True, True), peer.name
    assert {"cv2 buildPyramid", "torch avg_pool2d", "glGenerateMipmap"} <= names


def test_tiles_that_are_done_one_by_one_have_the_same_bytes() -> None:
    first, second, *_ = (rgb_of(frame) for frame in make_frames(TextureCase(1.0), SMALL))
    dirty = Difference(changing_tiles(TextureCase(0.5, scattered=True), SMALL))
    stores = [open_store(PlaneFormat.of(first), "cpu") for _ in range(2)]
    for store in stores:
        store.update(first, FrameStamp(0, 0, 0))
    stores[0].write(second, dirty, FrameStamp(1, 0, 0))
    with one_by_one(stores[1]):
        stores[1].write(second, dirty, FrameStamp(1, 0, 0))
    with stores[0].lease() as view, stores[1].lease() as other:
        for level in range(LEVELS):
            np.testing.assert_array_equal(view.read(level), other.read(level))


def ways(*times: tuple[float, float, float]) -> list[dict[str, float]]:
    return [{"share": share, "one by one": part, "whole frame": full} for share, part, full in times]


def test_the_crossing_lies_between_the_shares_where_the_order_changes() -> None:
    assert crosses_at(ways((0.01, 1, 4), (0.1, 2, 4), (0.4, 8, 4), (1.0, 16, 4))) == pytest.approx(0.2)
    assert crosses_at(ways((0.01, 1, 4), (1.0, 3, 4))) is None
    assert crosses_at(ways((0.01, 5, 4), (1.0, 9, 4))) == 0.01


def test_targets_are_judged_by_the_figures() -> None:
    def row(case: TextureCase, mips_ms: float, **changes: Any) -> dict[str, Any]:
        labels = {"case": case.name, "size": "1080p", "store": "cpu", "share": case.share, "mips_ms": {"p50": mips_ms}}
        targets = {"target_times_reading": None, "target_times_faster": None}
        figures = {"update_ms": {"p50": 0.5}, "times_faster": 8.0, "times_reading": 1.3, "gather_ms": {"p50": 0.1}}
        return {**labels, **targets, **figures, **changes}

    rows = [
        row(TextureCase(0.0), 0.1, target_times_reading=1.15),
        row(TextureCase(0.1), 0.25, target_times_faster=4),
        row(TextureCase(0.5, scattered=True), 2.6),
        row(TextureCase(1.0), 2.0, update_ms={"p50": 2.0}),
    ]
    verdicts = {entry["what"]: (entry["measured"], entry["met"]) for entry in target_rows({"cases": rows})}
    assert verdicts == {
        "cpu, 1080p, 0 %: update, times reading both frames": (1.3, False),
        "cpu, 1080p, 10 %, one block: update, times faster": (8.0, True),
        "cpu, 1080p: update at 10 % in one block, of 100 %": (0.25, False),
        "cpu, 1080p: gather, ms": (0.1, True),
        "cpu, 1080p, 10 %, one block: upload and mipmaps, ms": (0.25, True),
        "cpu, 1080p: upload and mipmaps at any share, of everything": (1.3, False),
    }


def test_a_whole_report_is_written_as_table_json_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "1080p", SMALL)
    cases = [entry for case in CASES[2:] for entry in texture.measure_stores("1080p", case, ("cpu",), 1)]
    crossing_row = crossing(
        "cpu", [rgb_of(frame) for frame in make_frames(TextureCase(1.0), SMALL)], texture.finisher, 2
    )
    report: dict[str, Any] = {"cases": cases, "peers": texture.measure_peers("1080p", 1), "crossing": [crossing_row]}
    report["targets"] = target_rows(report)
    text = table(json.loads(json.dumps(report)))
    assert all(case.name in text for case in CASES[2:])
    assert "torch avg_pool2d" in text
    plot(report, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert all(set(row["update_ms"]) == {"min", "p50", "p95"} for row in cases)


def test_a_summary_has_its_quantiles() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"min": 1.0, "p50": 2.0, "p95": 2.9}


class TestPrecision:
    picture = np.random.default_rng(0).integers(0, 256, (100, 150, 3), dtype=np.uint8)
    grid = TileGrid.of(100, 150)

    def test_bytes_are_those_of_the_texture(self) -> None:
        planes = FramePlanes("rgb", (self.picture,))
        store = open_store(PlaneFormat.of(planes), "cpu")
        store.update(planes, FrameStamp(0, 0, 0))
        levels = precision.byte_levels(self.picture, self.grid)
        regions = np.array([(0, 3, 4), (1, 1, 2), (2, 0, 1), (5, 0, 0)])
        with store.lease() as view:
            np.testing.assert_array_equal(precision.gather_pixels(levels, regions), view.gather(regions))

    def test_floats_keep_what_bytes_round(self) -> None:
        level0 = precision.byte_levels(self.picture, self.grid)[0]
        exact, half = (precision.float_levels(level0, dtype) for dtype in (np.float32, np.float16))
        assert exact[5][0, 0] == pytest.approx(level0[:32, :32].mean(axis=(0, 1)) / 255, abs=1e-6)
        assert 0 < np.abs(half[5].astype(np.float32) - exact[5]).max() < 1e-3

    def test_a_relative_error_is_of_each_row(self) -> None:
        expected = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
        errors = precision.relative_errors(expected + torch.tensor([[0.0, 1.0], [0.0, 0.0]]), expected)
        assert errors.tolist() == pytest.approx([0.2, 0.0])
