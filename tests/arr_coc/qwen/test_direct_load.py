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


def own_output(folder: Path, scale: float) -> None:
    """Add an output to the weights of a folder whose configuration ties it: the embeddings times `scale`."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    embeddings = next(weight for name, weight in weights.items() if name.endswith("embed_tokens.weight"))
    weights["lm_head.weight"] = embeddings.flip(0) * scale if scale != 1 else embeddings.clone()
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "qwen3_5"])
def test_tied_weights_with_an_output_of_their_own(tmp_path: Path, family: str, dtype: str) -> None:
    folder = tiny_folder(tmp_path / "tiny", family, tie_word_embeddings=True)
    own_output(folder, 0.5)
    model = loading.load_qwen(folder, dtype=dtype).model
    expected = stock(folder, getattr(torch, dtype))
    assert_same_model(model, expected)
    ids = torch.tensor([[5, 30, 7]])
    torch.testing.assert_close(model(input_ids=ids).logits, expected(input_ids=ids).logits, atol=0, rtol=0)


def test_an_output_that_equals_the_embeddings_is_tied_to_them(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=True)
    own_output(folder, 1)
    model = load_directly(folder, "tiny", torch.float32)
    assert model is not None
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert_same_model(model.eval(), stock(folder, torch.float32))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_small_weights_of_an_output_of_its_own(tmp_path: Path, dtype: str, cached: bool) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=True)
    own_output(folder, 0.5)
    hidden = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    expected = stock(folder, torch.float32).lm_head(hidden)
    for _ in range(1 + cached):  # the second one reads the cache
        logits = loading.load_qwen(folder, dtype=dtype, cache_weights=cached).model.lm_head(hidden)
        assert (logits - expected).norm() < 0.05 * expected.norm()


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
