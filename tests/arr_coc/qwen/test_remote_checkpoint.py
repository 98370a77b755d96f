"""Checkpoint of a model on the hub before it is downloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from arr_coc.bounded_json import FILE_BYTES_MAX
from arr_coc.errors import HubUnreachable, ModelError, ModelNotFound
from arr_coc.hub import bundled_model_path, cached_folder
from arr_coc.qwen.memory_estimate import ModelSpec
from arr_coc.qwen.remote_checkpoint import remote_checkpoint
from tests.support.hub_server import HubServer, use_hub
from tests.support.models import tiny_folder
from tests.support.network import free_port


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({"own/scenes": bundled_model_path(), "own/gated": "GatedRepo"}) as server:
        use_hub(monkeypatch, server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def test_it_equals_the_folders_checkpoint_and_downloads_no_weights(hub: HubServer) -> None:
    spec = ModelSpec.of(remote_checkpoint("own/scenes"), "own/scenes")
    assert spec == ModelSpec.read(bundled_model_path(), "scenes-tiny")
    weights = (bundled_model_path() / "model.safetensors").stat().st_size
    assert hub.sent_bytes < weights / 50
    assert cached_folder("own/scenes") is None, "it does not look as if it were downloaded"


def test_weights_in_several_files_are_counted_together(hub: HubServer, tmp_path: Path) -> None:
    hub.models["own/shards"] = tiny_folder(tmp_path / "shards", shard_size="100KB")
    spec = ModelSpec.of(remote_checkpoint("own/shards"), "own/shards")
    assert spec == ModelSpec.read(tmp_path / "shards", "own/shards")
    assert not (tmp_path / "cache").exists(), "a part of a model in the cache would look like all of it"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("own/gated", ModelError, "own/gated is gated: accept its terms at"),
        ("own/none", ModelNotFound, "no public model of this name on the hub; check the spelling"),
        ("own/--bad", ModelNotFound, "no public model of this name on the hub"),
        ("own/empty", ModelError, "own/empty on the hub has no config.json with safetensors weights; take another"),
        ("own/bare", ModelError, "own/bare on the hub has no config.json with safetensors weights; take another"),
        ("own/page", ModelError, "the config.json of own/page on the hub is not usable JSON (Expecting value"),
        (
            "own/deep",
            ModelError,
            "config.json of own/deep on the hub is not usable JSON (nested deeper than 64 levels)",
        ),
        ("own/long", ModelError, "the config.json of own/long on the hub has no end; take another model"),
        ("own/list", ModelError, "the config.json of own/list on the hub holds no JSON object"),
        ("own/strange", ModelError, "model.safetensors.index.json of own/strange on the hub lists no usable weight"),
        ("own/unlisted", ModelError, "model.safetensors.index.json of own/unlisted on the hub lists no usable"),
        ("own/other", ModelError, "own/other is a model of type 'llama', which is not supported"),
    ],
)
def test_unusable_checkpoints_are_refused_in_one_line(
    hub: HubServer, tmp_path: Path, name: str, kind: type[Exception], message: str
) -> None:
    configs = {
        "empty": None,
        "bare": "{}",
        "page": "<html>",
        "deep": "[" * 10**6,
        "long": " " * (FILE_BYTES_MAX + 1),
        "list": "[]",
        "other": json.dumps({"model_type": "llama"}),
    }
    for model, config in configs.items():
        hub.models[f"own/{model}"] = folder = tmp_path / model
        folder.mkdir()
        if config is not None:
            (folder / "config.json").write_text(config)
    for model, index in (("strange", {"weight_map": {"a": "../b"}}), ("unlisted", {})):
        hub.models[f"own/{model}"] = folder = tmp_path / model
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for model in ("list", "other", "page"):
        shutil.copy(bundled_model_path() / "model.safetensors", tmp_path / model)
    with pytest.raises(kind) as caught:
        remote_checkpoint(name)
    assert message in str(caught.value)
    assert type(caught.value) is kind


def test_an_unreachable_hub_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(HubUnreachable, match="the hub cannot be reached to look for it; check the network"):
        remote_checkpoint("own/scenes")
    assert capfd.readouterr().err == ""


def test_in_offline_mode_the_hub_is_not_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachable):
        remote_checkpoint("own/scenes")
    assert hub.requests == []
