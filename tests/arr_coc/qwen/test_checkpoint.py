"""Sizes from a model's folder, and estimates of memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.hub import bundled_model_path, cached_folder
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from arr_coc.qwen.vision_cache import RegionSize
from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.answer.qwen import load_qwen_model
from stream.config import Config
from tests.support.answer_models import OneClient
from tests.support.models import tiny_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundled model that may be damaged."""
    return Path(shutil.copytree(bundled_model_path(), tmp_path / "model"))


def rewrite(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["text_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_the_bundled_model() -> None:
    facts = ModelSpec.read(bundled_model_path(), "bundled")
    assert facts.family.title == "Qwen3-VL"
    assert facts.parameters * 2 == facts.checkpoint_bytes
    assert facts.checkpoint_bytes < (bundled_model_path() / "model.safetensors").stat().st_size
    assert (facts.context_tokens, len(facts.decoder.attending), facts.kv_heads, facts.head_dim) == (8192, 4, 3, 64)
    assert facts.known_world == "drawn scenes"


def test_parameters_are_those_that_are_loaded(tmp_path: Path) -> None:
    from arr_coc.qwen.loading import load_qwen

    path = tiny_folder(tmp_path)
    loaded = load_qwen(path)
    assert ModelSpec.read(path, "tiny").parameters == sum(weights.numel() for weights in loaded.model.parameters())


def test_memory_is_weights_keys_and_values_and_activations() -> None:
    facts = ModelSpec.read(bundled_model_path(), "bundled")
    exact = MemoryEstimate.of(facts, "float32", Workload(273, 100))
    assert exact.weights == facts.parameters * 4
    assert exact.cache == 2 * 4 * 3 * 64 * 373 * 4
    assert exact.total == exact.weights + exact.cache + exact.activations
    half = MemoryEstimate.of(facts, "bfloat16", Workload(273, 100))
    assert half == MemoryEstimate.of(facts, "auto", Workload(273, 100))
    assert (half.weights * 2, half.cache * 2) == (exact.weights, exact.cache)
    assert MemoryEstimate.of(facts, "float32", Workload(546, 100)).activations > exact.activations


def test_the_system_prompt_is_the_configured_one() -> None:
    model = load_qwen_model(Config.model_validate({"answer": {"system": "Answer in one word."}}))
    prompts = model._session.prompts
    assert model._session.options.system == "Answer in one word."
    assert prompts._qwen.tokenizer.decode(prompts.ids.head).count("Answer in one word.") == 1


def test_the_cache_of_incremental_encoding_has_its_estimated_size() -> None:
    facts = ModelSpec.read(bundled_model_path(), "bundled")
    a_region = RegionSize(4, 3, 64, 2, 192, 4, 4, 3 * 32 * 32)
    for limit_mb in (1000.0, 1.5 * 100 * a_region.bytes / 1e6, 0.5 * 100 * a_region.bytes / 1e6, 0.0):
        cache_bytes = MemoryEstimate.of(facts, "float32", Workload(100, 50, kept_vision_mb=limit_mb)).vision_cache
        assert cache_bytes == a_region.slots_within(limit_mb, 100) * a_region.bytes


def test_each_stream_keeps_its_own() -> None:
    facts = ModelSpec.read(bundled_model_path(), "bundled")
    single, four = (
        MemoryEstimate.of(facts, "float32", Workload(100, 50, kept_vision_mb=1000.0, streams=streams))
        for streams in (1, 4)
    )
    assert four.vision_cache == 4 * single.vision_cache
    assert (four.weights, four.cache, four.activations) == (single.weights, single.cache, single.activations)


def test_caches_of_several_streams_have_their_estimated_size(tmp_path: Path) -> None:
    """A loaded answer model that alternates between three streams, compared with the estimate from its folder."""
    path = tiny_folder(tmp_path)
    model = load_qwen_model(
        Config.model_validate({"answer": {"model": str(path), "encode": "incremental", "dtype": "float32"}})
    )
    regions = np.array([[0, row, col] for row in range(2) for col in range(3)], np.int32)
    for client in (b"a", b"b", b"c"):
        pixels = np.full((6, 3, 32, 32), client[0], np.uint8)
        packet = TokenPacket(FrameStamp(0, 0, 0, 1), TileGrid.of(64, 96), regions, np.ones(6, np.float32), pixels)
        OneClient(model, client).answer(packet)
    load = Workload(6, 0, kept_vision_mb=1024.0, streams=3)
    reckoned = MemoryEstimate.of(ModelSpec.read(path, "tiny"), "float32", load).vision_cache
    assert sum(vision.report.held_bytes for vision in model._visions.values()) == reckoned > 0


def test_all_experts_are_weights_and_those_of_a_token_are_activations(tmp_path: Path) -> None:
    facts = ModelSpec.read(tiny_folder(tmp_path, "qwen3_vl_moe"), "tiny")
    experts = 2 * 5 * 3 * 24 * 64  # two layers of five, three matrices each
    dense = ModelSpec.read(tiny_folder(tmp_path / "dense"), "tiny")
    routers, dense_mlps = 2 * 5 * 64, 2 * 3 * 96 * 64
    assert facts.parameters == dense.parameters - dense_mlps + experts + routers
    assert (facts.experts_per_token, facts.intermediate) == (2, 96)  # one layer is dense, and wider than 2 * 24
    assert (dense.experts_per_token, dense.intermediate) == (0, 96)
    long = Workload(100, 900)
    assert MemoryEstimate.of(facts, "float32", long).activations > MemoryEstimate.of(dense, "float32", long).activations


def test_only_experts_count_if_no_layer_is_dense(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "qwen3_vl_moe")
    rewrite(folder, mlp_only_layers=[])
    assert ModelSpec.read(folder, "tiny").intermediate == 2 * 24


def test_quantised_weights_take_what_is_stored(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    facts = ModelSpec.read(folder, "tiny")
    assert facts.quantised
    assert MemoryEstimate.of(facts, "float32", Workload(10, 5)).weights == facts.checkpoint_bytes
    cache = MemoryEstimate.of(facts, "auto", Workload(10, 5)).cache
    assert cache == MemoryEstimate.of(facts, "bfloat16", Workload(10, 5)).cache


def test_a_frame_that_is_encoded_whole_costs_activations_only() -> None:
    facts = ModelSpec.read(bundled_model_path(), "bundled")
    few, full = Workload(100, 50), Workload(100, 50, encoded_tokens=2040)
    of_few, of_full = (MemoryEstimate.of(facts, "float32", load) for load in (few, full))
    assert of_full.activations > 5 * of_few.activations
    assert (of_full.cache, of_full.vision_cache) == (of_few.cache, of_few.vision_cache)


def test_missing_values_are_estimated(folder: Path) -> None:
    rewrite(folder, head_dim=None, num_key_value_heads=None)
    facts = ModelSpec.read(folder, "x")
    assert (facts.kv_heads, facts.head_dim) == (3, 64)


@pytest.mark.parametrize("change", [{"hidden_size": "wide"}, {"num_attention_heads": 0, "head_dim": None}])
def test_a_config_without_its_numbers_is_refused(folder: Path, change: dict[str, object]) -> None:
    rewrite(folder, **change)
    with pytest.raises(ModelError, match=r"the config\.json of x lacks a number .*; download the model again"):
        ModelSpec.read(folder, "x")


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="has no weights"):
        ModelSpec.read(folder, "x")


def test_a_model_that_was_downloaded_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.json"
    config.touch()
    lookups = []

    def look(name: str, file: str) -> str | None:
        lookups.append((name, file))
        return str(config) if name == "owner/there" else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
    assert cached_folder("owner/there") == tmp_path
    assert cached_folder("owner/absent") is None
    assert lookups == [("owner/there", "config.json"), ("owner/absent", "config.json")]
