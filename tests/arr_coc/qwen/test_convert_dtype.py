"""Conversion of loaded weights: exact, and without the stored form in memory beside the converted one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arr_coc.qwen import convert_dtype, loading
from arr_coc.qwen.convert_dtype import MAPS, MappedWeights
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.memory_estimate import ModelSpec
from tests.support.models import FAMILIES, tiny_folder

SMAPS = MAPS.with_name("smaps")


def resident_kb(path: Path) -> int:
    """Return the resident memory of all mappings of a file."""
    resident, of_file = 0, False
    for line in SMAPS.read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            of_file = line.endswith(str(path))
        elif of_file and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return resident


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux lists a process's mappings")
def test_pages_of_a_converted_weight_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weights = {name: torch.full((1024, 1024), 1.5, dtype=torch.bfloat16) for name in ("a", "b")}
    save_file(weights, path)
    loaded = load_file(path)
    assert all(weight.sum() > 0 for weight in loaded.values())
    assert resident_kb(path) >= 4096
    converted = MappedWeights().convert(loaded["a"], torch.float32)
    assert resident_kb(path) < 3072
    torch.testing.assert_close(converted, torch.full((1024, 1024), 1.5))
    torch.testing.assert_close(loaded["b"], weights["b"])
    torch.testing.assert_close(loaded["a"], weights["a"])  # the file is read again


def test_without_a_list_of_mappings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(convert_dtype, "MAPS", tmp_path / "absent")
    weight = torch.ones(4096, dtype=torch.bfloat16)
    torch.testing.assert_close(MappedWeights().convert(weight, torch.float32), torch.ones(4096))


def test_the_memory_of_loading(tmp_path: Path) -> None:
    dense = ModelSpec.read(tiny_folder(tmp_path / "dense"), "tiny")
    mixed = ModelSpec.read(tiny_folder(tmp_path / "moe", "qwen3_vl_moe"), "tiny")
    assert (dense.stored_dtype, mixed.stored_dtype) == ("float32", "float32")
    size = dense.checkpoint_bytes
    assert [dense.loading_bytes(weights) for weights in (size // 2, 2 * size)] == [size, 2 * size]
    assert mixed.loading_bytes(100) == 100 + mixed.checkpoint_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_model_is_the_one_that_transformers_converts(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForImageTextToText

    folder = tiny_folder(tmp_path / "tiny", family, tie_word_embeddings=family == "qwen3_vl")
    load_qwen(folder, dtype="bfloat16").model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    expected = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    monkeypatch.setattr(loading, "LARGE_PARAMETERS", 0)
    model = load_qwen(folder, dtype="float32").model
    for kind in ("named_parameters", "named_buffers"):
        values = dict(getattr(model, kind)())
        for name, value in getattr(expected, kind)():
            assert values[name].dtype == value.dtype
            torch.testing.assert_close(values[name], value, atol=0, rtol=0, msg=name)
    assert model.config.to_dict() == expected.config.to_dict()
