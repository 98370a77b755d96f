"""Direct load of small models: the same model as `from_pretrained`, or None."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from arr_coc.qwen import loading
from arr_coc.qwen.direct_load import load_directly
from tests.support.models import FAMILIES, tiny_folder

CONVERTED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl_moe", "qwen3_5_moe")
"""Families whose weights some versions of transformers store under other names than the model's."""


def stock(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()


def assert_same_model(model: Any, expected: Any) -> None:
    assert type(model) is type(expected)
    for kind in ("named_parameters", "named_buffers"):
        those = dict(getattr(model, kind)())
        assert those.keys() == dict(getattr(expected, kind)()).keys()
        for name, value in getattr(expected, kind)():
            torch.testing.assert_close(those[name], value, atol=0, rtol=0, msg=name)
    assert model.config.to_dict() == expected.config.to_dict()
    assert model.generation_config.to_dict() == expected.generation_config.to_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_model_of_from_pretrained(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    folder = tiny_folder(tmp_path / "tiny", family)
    model = load_directly(folder, "tiny", dtype)
    if model is None:
        assert family in CONVERTED
        return
    assert_same_model(model.eval(), stock(folder, dtype))


def test_shards_and_tied_weights(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", shard_size="100KB", tie_word_embeddings=True)
    model = load_directly(folder, "tiny", torch.float32)
    assert model is not None
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert_same_model(model.eval(), stock(folder, torch.float32))


@pytest.mark.parametrize("change", ["missing", "more", "shape"])
def test_weights_of_another_model_return_none(tmp_path: Path, change: str) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    if change == "missing":
        del weights[name]
    elif change == "more":
        weights["another.weight"] = torch.zeros(2)
    else:
        weights[name] = torch.zeros(3)
    save_file(weights, path, metadata={"format": "pt"})
    assert load_directly(folder, "tiny", torch.float32) is None


def test_a_small_model_is_loaded_directly_and_a_large_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loaded = tiny_folder(tmp_path / "tiny"), []

    def recorded(folder: Path, name: str, dtype: torch.dtype) -> Any:
        loaded.append(name)
        return load_directly(folder, name, dtype)

    monkeypatch.setattr(loading, "load_directly", recorded)
    small = loading.load_qwen(folder)
    assert loaded == ["tiny"]
    monkeypatch.setattr(loading, "LARGE_PARAMETERS", 1)
    assert_same_model(small.model, loading.load_qwen(folder, dtype="float32").model)
    assert loaded == ["tiny"]
