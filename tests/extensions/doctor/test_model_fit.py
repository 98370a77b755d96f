"""Memory of a model on cards of usual sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.families import DecoderLayers, family_of
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from stream.config import Config
from stream.extensions.doctor import model_fit
from stream.extensions.doctor import model_fit as cards
from tests.support.hub_server import HubServer, use_hub
from tests.support.models import tiny_folder
from tests.support.qwen_configs import write_index_folder

BUNDLED = ModelSpec.read(bundled_model_path(), "bundled")
LARGE = dataclasses.replace(
    BUNDLED,
    parameters=8_800_000_000,
    checkpoint_bytes=17_600_000_000,
    context_tokens=262_144,
    decoder=DecoderLayers(tuple(range(36))),
    kv_heads=8,
)


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


def test_a_small_model_fits_every_card() -> None:
    check = cards.cards(config())
    assert check.state == "works"
    assert (
        check.found
        == "50 MB of GPU memory for sparse, 400 visual tokens, visual memory of 2048 tokens; 8 to 80 GB fits"
    )


def test_each_stream_takes_what_it_keeps() -> None:
    configuration = config(answer={"encode": "incremental", "memory": {"enabled": False}})
    estimate = MemoryEstimate.of(BUNDLED, "auto", model_fit.load_of(configuration))
    size = model_fit.size_text(estimate.total + 7 * estimate.vision_cache)
    assert cards.cards(configuration).found.startswith("46 MB of GPU memory for incremental, 400 visual tokens; ")
    assert cards.cards(configuration, 8).found.startswith(
        f"{size} of GPU memory for incremental, 400 visual tokens, 8 streams; "
    )
    assert "caches of 8 streams " in model_fit.memory(configuration, streams=8).found
    assert "caches of frames " in model_fit.memory(configuration).found


def test_a_large_model_does_not_fit_a_small_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "facts_of", lambda config: (LARGE, "large"))
    finding = cards.cards(config(answer={"dtype": "bfloat16"})).found
    assert finding.endswith("; 8 to 16 GB too small, 24 to 80 GB fits")
    monkeypatch.setattr(cards, "facts_of", lambda config: (dataclasses.replace(LARGE, kv_heads=16), "large"))
    memory = {"enabled": True, "tokens": 60_000}
    finding = cards.cards(config(answer={"dtype": "bfloat16", "memory": memory})).found
    assert "; 8 to 16 GB too small, 24 GB up to answer.memory.tokens = " in finding
    assert finding.endswith(", 48 to 80 GB fits")


def test_cards_of_which_the_same_is_true_share_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = dataclasses.replace(LARGE, parameters=20_000_000_000, checkpoint_bytes=40_000_000_000)
    monkeypatch.setattr(cards, "facts_of", lambda config: (huge, "huge"))
    finding = cards.cards(config(answer={"dtype": "bfloat16"})).found
    assert finding.endswith("; 8 to 32 GB too small, 48 to 80 GB fits")


def test_the_largest_memory_is_the_last_that_fits() -> None:
    load = Workload(273, 200, memory_tokens=200_000)
    free_bytes = 22 << 30
    most = cards.most_memory_tokens(LARGE, "bfloat16", load, free_bytes)
    for tokens, fits in ((most, True), (most + 1, False)):
        needed_bytes = MemoryEstimate.of(LARGE, "bfloat16", dataclasses.replace(load, memory_tokens=tokens)).total
        assert (needed_bytes <= free_bytes) == fits
    assert cards.most_memory_tokens(LARGE, "bfloat16", load, 1 << 30) == 0
    assert cards.most_memory_tokens(LARGE, "bfloat16", dataclasses.replace(load, memory_tokens=300), free_bytes) == 300


def test_the_largest_memory_fits_the_context() -> None:
    load, room = Workload(273, 200, memory_tokens=200_000), LARGE.context_tokens - 200
    assert cards.most_memory_tokens(LARGE, "bfloat16", load, 1 << 60) == min(room, 200_000)
    short = dataclasses.replace(LARGE, context_tokens=4200, family=family_of("qwen3_5", "m"))
    assert cards.most_memory_tokens(short, "bfloat16", load, 1 << 60) == 4000
    several = dataclasses.replace(load, memory_frames=4)
    assert cards.most_memory_tokens(short, "bfloat16", several, 1 << 60) == 4000
    assert cards.most_memory_tokens(dataclasses.replace(short, context_tokens=400), "bfloat16", load, 1 << 60) == 0


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({"own/scenes": bundled_model_path(), "own/gated": "GatedRepo"}) as server:
        use_hub(monkeypatch, server.url)
        monkeypatch.setattr(model_fit, "cached_folder", lambda name: None)
        model_fit._on_hub.cache_clear()
        yield server
    model_fit._on_hub.cache_clear()


def test_a_model_that_cannot_be_found_is_absent(tmp_path: Path, hub: HubServer) -> None:
    assert cards.cards(config(answer={"model": str(tmp_path)})).state == "absent"
    nowhere = config(answer={"model": "absent/model"})
    assert cards.cards(nowhere).found == "neither this machine nor the hub describes absent/model"
    check = model_fit.model(nowhere)
    assert check.state == "broken"
    assert "no public model of this name on the hub" in check.found
    gated = model_fit.model(config(answer={"model": "own/gated"}))
    assert (gated.state, gated.found.partition(":")[0]) == ("broken", "own/gated is gated")


def test_a_model_on_the_hub_is_planned_for_before_it_is_downloaded(hub: HubServer) -> None:
    hub_config, local_config = config(answer={"model": "own/scenes", "device": "cpu"}), config(answer={"device": "cpu"})
    check = model_fit.model(hub_config, lambda: 10**9)
    assert check.state == "absent"
    assert check.found.startswith("own/scenes: Qwen3-VL, 5.1 M parameters, 400 visual tokens a frame, context of 8192")
    assert check.found.endswith("; not on this machine yet, 10 MB to download, 1.0 GB free on the disk")
    assert check.remedy == "the first run downloads it"
    assert cards.cards(hub_config) == cards.cards(local_config)
    assert model_fit.memory(hub_config, lambda: 10**9) == model_fit.memory(local_config, lambda: 10**9)
    assert len([line for line in hub.requests if line.endswith("config.json")]) == 1, "the hub is asked once"
    full = model_fit.model(hub_config, lambda: 10**6)
    assert (full.state, full.remedy) == ("broken", "make room, or set HF_HOME to a folder on another disk")
    long = config(answer={"model": "own/scenes"}, allocate={"budget": 9000})
    assert model_fit.model(long).remedy == "lower --budget"
    assert model_fit.free_disk_bytes() > 0


@pytest.mark.parametrize(
    ("size", "memory_text", "fits"),
    [
        ("2B", "4.9 GB", "; 8 to 80 GB fits"),
        ("4B", "9.6 GB", "; 8 GB too small, 12 to 80 GB fits"),
        ("8B", "18.4 GB", "; 8 to 16 GB too small, 24 to 80 GB fits"),
    ],
)
def test_a_folder_without_weights_is_planned_for_by_its_index(
    tmp_path: Path, size: str, memory_text: str, fits: str
) -> None:
    folder = write_index_folder(tmp_path / f"Qwen3-VL-{size}", size)
    configuration = config(answer={"model": str(folder), "dtype": "bfloat16", "device": "cpu"})
    finding = cards.cards(configuration).found
    assert finding.startswith(
        f"{memory_text} of GPU memory for sparse, 400 visual tokens, visual memory of 2048 tokens{fits}"
    )
    assert model_fit.memory(configuration, lambda: 10**12).state == "works"
    missing = model_fit.model(configuration)
    assert (missing.state, missing.remedy) == ("broken", "download the model again")
    assert missing.found.startswith(f"Qwen3-VL-{size} lacks 1 of 1 weight file")


@pytest.mark.parametrize("index", ["{}", '{"metadata": {}}', '{"metadata": {"total_size": "big"}}', "[]", None])
def test_an_index_without_a_size_allows_no_plan(tmp_path: Path, index: str | None) -> None:
    folder = write_index_folder(tmp_path / "model", "2B")
    path = folder / "model.safetensors.index.json"
    if index is None:
        path.unlink()
    else:
        path.write_text(index)
    assert cards.cards(config(answer={"model": str(folder)})).state == "absent"
    assert model_fit.model(config(answer={"model": str(folder)})).state == "broken"


def test_requirements_of_a_run() -> None:
    assert model_fit.load_of(config()).visual_tokens == 400
    small = config(capture={"size": "640x480"})
    assert model_fit.load_of(small).visual_tokens == 81
    assert model_fit.load_of(config(allocate={"budget": "50%"})).visual_tokens == 1020
    assert model_fit.load_of(config(allocate={"budget": 64})).visual_tokens == 64
    full = model_fit.load_of(config(answer={"encode": "full"}, capture={"size": "640x480"}))
    assert (full.visual_tokens, full.encoded_tokens, full.kept_vision_mb) == (300, 300, 0)
    prune = model_fit.load_of(config(answer={"encode": "prune"}))
    assert (prune.visual_tokens, prune.encoded_tokens) == (400, 2040)
    limited = model_fit.load_of(config(answer={"encode": "prune"}, capture={"max_tiles": 900}))
    assert limited.encoded_tokens == 900
    incremental = model_fit.load_of(config(answer={"encode": "incremental", "memory": {"enabled": False}}))
    assert (incremental.encoded_tokens, incremental.kept_vision_mb, incremental.memory_tokens) == (None, 1024, 0)
    assert model_fit.load_of(config(answer={"memory": {"frames": 4}})).memory_tokens == 2048


def test_a_visual_memory_takes_what_each_stream_keeps() -> None:
    configuration = config(answer={"memory": {"enabled": True, "tokens": 1000}})
    spec, _ = model_fit.facts_of(configuration)
    assert spec is not None
    load = model_fit.load_of(configuration)
    assert (load.memory_tokens, load.prompt_tokens) == (1000, 1000 + load.other_tokens)
    one_stream, three_streams = (
        MemoryEstimate.of(spec, "auto", model_fit.load_of(configuration, streams)) for streams in (1, 3)
    )
    assert three_streams.groups == 3 * one_stream.groups > 0
    assert (one_stream.vision_cache, one_stream.total - one_stream.groups) == (
        0,
        one_stream.weights + one_stream.cache + one_stream.activations,
    )
    quiet = model_fit.load_of(config(answer={"memory": {"enabled": True, "tokens": 1000, "idle": 0}}))
    written_anew = one_stream.groups - MemoryEstimate.of(spec, "auto", quiet).groups
    assert 0 < written_anew < one_stream.groups / 2, "keys and values of a second group, without its pixels"
    without = model_fit.load_of(config(answer={"memory": {"enabled": False}}))
    assert (MemoryEstimate.of(spec, "auto", without).groups, without.memory_tokens) == (0, 0)
    assert "visual memory of 1000 tokens " in model_fit.memory(configuration).found
    assert "visual memory of 3 times 1000 tokens" in model_fit.cards(configuration, 3).found
    broken = model_fit.model(config(answer={"memory": {"enabled": True, "tokens": 9000}}))
    assert (broken.state, broken.remedy) == ("broken", "lower answer.memory.tokens")


def test_superseded_tokens_of_recurrent_layers_leave_the_context(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", "qwen3_5")
    room = ModelSpec.read(folder, "tiny").context_tokens
    works, broken = "works", "broken"
    for share, frames, state in ((0.4, 1, works), (0.7, 1, works), (0.7, 4, works), (1, 1, broken), (1, 4, broken)):
        memory = {"enabled": True, "tokens": int(share * room), "frames": frames}
        assert model_fit.model(config(answer={"model": str(folder), "memory": memory})).state == state
