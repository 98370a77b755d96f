"""The benchmark of OpenGL: what it compares, and that a CPU's times are marked."""

from __future__ import annotations

import json

from arr_coc.backends.gl.device import open_device
from arr_coc.types import TileGrid
from benchmarks import opengl
from tests.support.stores import require


def test_mipmaps_and_choices_are_compared() -> None:
    require("gl")
    report = opengl.run({"small": TileGrid.of(150, 230)}, rounds=1)
    assert json.loads(json.dumps(report)) == report
    assert report["machine"]["software"] == open_device().software
    levels = report["mipmaps"]["small"]["levels"]
    assert (levels[0]["largest"], levels[0]["bytes_that_differ"]) == (0, 0)  # both have the same level 0
    assert all(0 <= level["largest"] <= 4 for level in levels)
    assert [row["share"] for row in report["mipmaps"]["small"]["times"]] == list(opengl.SHARES)
    assert list(report["cameras"]["small"]) == ["a store each", "layers one by one", "layers together"]
    assert report["choice"]["small"]["equal_choices"] == 1
    assert len(report["choice"]["small"]["milliseconds"]) == 4
