"""The probe of a checkpoint in small weights: what it finds, and which models are probed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stream.config import Config
from stream.extensions.doctor import precision
from stream.extensions.doctor.examination import examine
from tests.support.models import tiny_folder

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")


def config_of(folder: Path | str | None, device: str = "cpu") -> Config:
    return Config.model_validate(
        {"source": "scene:demo", "answer": {"model": folder and str(folder), "device": device}}
    )


def test_a_model_is_compared_with_itself(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=False)
    *_, check = examine(config_of(folder))
    assert (check.part, check.state, check.remedy) == ("precision", "works", None)
    found = re.findall(
        r"(int\d) is off by ([\d.]+)% of float32's logits.* at (\d+) of (\d+) places", check.found.replace(";", "\n")
    )
    (eight, error8, same8, places), (four, error4, _, _) = found
    assert (eight, four) == ("int8", "int4")
    assert 0 < float(error8) < 5
    assert float(error8) < float(error4) < 40
    assert int(same8) > int(places) / 2


def test_what_is_too_far_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    monkeypatch.setitem(precision.LARGEST_ERROR, "int4", 0.001)
    check = precision.precision(folder)
    assert (check.state, check.remedy) == ("absent", "do not use --dtype int4 with this model")


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.language_model.norm.weight"][0] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})
    check = precision.precision(folder)
    assert check.state == "broken"
    assert "NaN" in check.found


def test_which_models_are_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    assert precision.folder_to_probe(config_of(folder)) == folder
    assert precision.folder_to_probe(config_of(folder, "cuda")) is None
    assert precision.folder_to_probe(config_of(None)) is None
    monkeypatch.setattr(precision, "free_memory_bytes", lambda: 1000)
    assert precision.folder_to_probe(config_of(folder)) is None
    (folder / "model.safetensors").unlink()
    monkeypatch.undo()
    assert precision.folder_to_probe(config_of(folder)) is None
