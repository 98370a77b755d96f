"""Zones of a configuration: what is accepted, and one line for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.allocation.zones import ZoneOptions
from stream.config import Config
from stream.config_loading import build_config, layer_from_assignment, layer_from_file
from stream.errors import ConfigError
from stream.extensions.fleet.file import read_fleet
from stream.media import SourceInfo
from stream.runtime.plan import RunPlan

ROOT = Path(__file__).resolve().parents[2]
FILE = SourceInfo("a.mp4", 64, 48, 25.0, None, None, live=False, codec="h264", pixel_format="yuv420p")
BOX = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))

A = "[zones.a]\nbox = [0, 0, 0.5, 1]\n"


def built(tmp_path: Path, text: str, *assignments: str) -> Config:
    path = tmp_path / "zones.toml"
    path.write_text(text, encoding="utf-8")
    return build_config([layer_from_file(str(path)), *map(layer_from_assignment, assignments)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[zones.a]\nweight = 2\n", "zones.a needs `points` or `box`"),
        (A + "points = [[0, 0], [1, 0], [1, 1]]\n", "zones.a has both `points` and `box`; leave one of them out"),
        ("[zones.a]\npoints = [[0, 0], [1, 1]]\n", "zones.a has 2 points; a polygon has 3 to 256"),
        (f"[zones.a]\npoints = {[[0.5, 0.5]] * 257}\n", "zones.a has 257 points; a polygon has 3 to 256"),
        (
            "[zones.a]\npoints = [[0, 0], [1, 0], [1, 1.5]]\n",
            "zones.a.points should be at most 1, or be none, got 1.5",
        ),
        (
            "[zones.a]\nbox = [-0.1, 0, 1, 1]\n",
            "zones.a.box should be 0 or more, or be none, got -0.1",
        ),
        ("[zones.a]\nbox = [0.5, 0, 0.5, 1]\n", "zones.a has a `box` without an inside"),
        (A + "weight = 5\n", "zones.a.weight should be at most 4, got 5"),
        (A + "weight = -1\n", "zones.a.weight should be 0 or more, got -1"),
        (A + "mask = 1\n", "zones.a.mask should be on or off, got 1"),
        (A + "weigth = 1\n", "unknown key zones.a.weigth; did you mean zones.a.weight?"),
        ("zones = 3\n", "zones is a section, not a value; its keys are NAME.points, NAME.box"),
        ("[zones]\na = 3\n", "unknown key zones.a"),
        (A.replace(".a", '."a b"'), "the zone 'a b' needs another name: 1 to 64 letters, digits, _ or -"),
        (A + "[answer]\nzone = 'b'\n", "answer.zone = b is no zone; zones has a"),
        ("[answer]\nzone = 'b'\n", "answer.zone = b is no zone; the configuration has no zones"),
        (A + "mask = true\n[answer]\nzone = 'a'\n", "answer.zone = a is masked"),
        (A + "[answer]\nzone = 'a'\nencode = 'full'\n", "answer.zone limits the tokens, and answer.encode = full"),
        (A + "[[watch]]\nquestion = '?'\nname = 'w'\nzone = 'b'\n", "watch 'w': zone = b is no zone; zones has a"),
        (A + "mask = true\n[[watch]]\nquestion = '?'\nname = 'w'\nzone = 'a'\n", "watch 'w': zone = a is masked"),
    ],
)
def test_invalid_zones_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_zone_can_be_changed_by_an_option(tmp_path: Path) -> None:
    config = built(tmp_path, A, "zones.a.weight=2", "zones.b.points=[[0, 0], [1, 0], [0.5, 1]]", "answer.zone=a")
    assert config.zones["a"].polygon == BOX
    assert config.zones["a"].weight == 2
    assert config.zones["b"].polygon == ((0, 0), (1, 0), (0.5, 1))
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_a_polygon_that_crosses_itself_is_accepted(tmp_path: Path) -> None:
    config = built(tmp_path, "[zones.bow]\npoints = [[0, 0], [1, 1], [1, 0], [0, 1]]\nmask = true\n")
    assert config.masks == (((0, 0), (1, 1), (1, 0), (0, 1)),)


def test_only_zones_that_change_something_reach_the_allocator(tmp_path: Path) -> None:
    assert RunPlan.of(Config(), FILE).allocator.zones is None
    assert RunPlan.of(built(tmp_path, A), FILE).allocator.zones is None
    weighed = built(tmp_path, A + "weight = 2\n[zones.m]\nbox = [0, 0, 0.5, 1]\nmask = true\nweight = 3\n")
    assert RunPlan.of(weighed, FILE).allocator.zones == ZoneOptions(((BOX, 2.0), (BOX, 0.0)))
    config = built(tmp_path, A, "answer.zone=a")
    assert RunPlan.of(config, FILE).allocator.zones == ZoneOptions((), (BOX,))


def test_the_example_of_the_documents_is_valid() -> None:
    config = build_config([layer_from_file(str(ROOT / "examples" / "zones.toml"))])
    assert list(config.zones) == ["porch", "tree", "neighbour"]
    assert len(config.masks) == 1


def test_a_camera_of_a_file_has_its_own_zones(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[cameras.yard]\nsource = 'scene:demo'\n[cameras.yard.zones.a]\nbox = [0, 0, 0.5, 1]\nmask = true\n"
        "[cameras.door]\nsource = 'scene:demo'\n",
        encoding="utf-8",
    )
    yard, door = (build_config(layers) for layers in read_fleet(str(path)).cameras.values())
    assert yard.masks == (BOX,)
    assert door.masks == ()


def test_masked_zones_take_no_part_in_cuts(tmp_path: Path) -> None:
    config = built(tmp_path, A + "mask = true\n[zones.b]\nbox = [0, 0, 1, 1]\nweight = 2\n")
    assert RunPlan.of(config, FILE).texture.masks == (BOX,)
