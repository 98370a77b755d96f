"""The presets in configs/ hold only keys that exist, and state their purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.resources import preset_folder, presets
from stream.config_loading import build_config, layer_from_file


def test_the_documented_presets_are_there() -> None:
    assert presets() == ["demo", "file", "gpu", "robot", "webcam"]


@pytest.mark.parametrize("name", presets())
def test_a_preset_builds_a_configuration_and_explains_itself(name: str) -> None:
    build_config([layer_from_file(name)])
    assert (preset_folder() / f"{name}.toml").read_text(encoding="utf-8").startswith("# ")


def test_presets_of_cameras_let_the_newest_frame_win() -> None:
    for name in ("webcam", "robot"):
        pipeline = build_config([layer_from_file(name)]).pipeline
        assert (pipeline.frames, pipeline.answers) == ("newest", "newest")


def test_the_preset_for_files_loses_nothing() -> None:
    pipeline = build_config([layer_from_file("file")]).pipeline
    assert (pipeline.frames, pipeline.answers) == ("lossless", "lockstep")


def test_a_folder_of_the_same_name_does_not_hide_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the folder `demo` of `make demo`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert layer_from_file("demo").values
