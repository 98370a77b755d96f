"""Checks of a model's folder before loading: missing, damaged and mismatched files are reported in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.hub import local_folder
from arr_coc.qwen import checkpoint
from arr_coc.qwen.checkpoint import TOKENIZER_BYTES_MAX, check_folder
from arr_coc.qwen.weight_files import INDEX, WEIGHTS, TensorInfo, check_sizes
from tests.support.models import tiny_folder

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoints")
    tiny_folder(path / "whole")
    tiny_folder(path / "sharded", shard_size="100KB")
    return path


@pytest.fixture
def folder(sources: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sources / "whole", tmp_path / "model"))


@pytest.fixture
def sharded(sources: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sources / "sharded", tmp_path / "sharded"))


def edit(folder: Path, section: str | None = None, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (config[section] if section else config).update(values)
    (folder / "config.json").write_text(json.dumps(config))


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("*.safetensors"))[number]


def refused(folder: Path) -> str:
    """Return the one-line error for the folder, with a remedy after its last semicolon."""
    with pytest.raises(ModelError) as caught:
        check_folder(folder, "tiny")
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe", "qwen2_vl", "qwen2_5_vl"])
def test_a_whole_folder_of_each_family(tmp_path: Path, family: str) -> None:
    contents = check_folder(tiny_folder(tmp_path, family), "tiny")
    assert (contents.family.model_type, contents.quantised) == (family, None)
    assert any(name.endswith("embed_tokens.weight") for name in contents.tensors)


def test_shards_are_read_together(sharded: Path, sources: Path) -> None:
    assert check_folder(sharded, "tiny").tensors == check_folder(sources / "whole", "tiny").tensors


def test_a_weight_file_that_is_not_the_models_does_not_count(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder / "consolidated.safetensors")
    before = check_folder(folder, "tiny").tensors
    (folder / "consolidated.safetensors").unlink()
    assert check_folder(folder, "tiny").tensors == before


class TestTokenizer:
    @pytest.mark.parametrize("left", [(), ("vocab.json",), ("merges.txt",)])
    def test_its_missing_files_are_named(self, folder: Path, left: tuple[str, ...]) -> None:
        (folder / "tokenizer.json").unlink()
        for name in left:
            (folder / name).touch()
        with pytest.raises(
            ModelNotFound, match=r"tiny has no tokenizer: tokenizer\.json or vocab\.json and merges\.txt"
        ):
            check_folder(folder, "tiny")
        assert "copy the tokenizer files from where the weights came from" in refused(folder)

    def test_vocabulary_and_merges_are_one(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        for name in ("vocab.json", "merges.txt"):
            (folder / name).touch()
        check_folder(folder, "tiny")

    def test_a_pointer_is_none(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text(POINTER)
        assert "tokenizer.json is a Git LFS pointer" in refused(folder)

    def test_without_a_chat_template(self, folder: Path) -> None:
        (folder / "chat_template.jinja").unlink()
        assert "the tokenizer of tiny has no chat template" in refused(folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        template = [{"name": "tools", "template": "no"}, {"name": "default", "template": "<|image_pad|>"}]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
        check_folder(folder, "tiny")

    def test_a_chat_template_for_text_only(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{{ messages }}")
        assert "the chat template of tiny is for text only: it has no <|image_pad|>" in refused(folder)

    @pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
    def test_files_without_end_are_not_parsed(self, folder: Path, file: str) -> None:
        with (folder / file).open("r+b") as sparse:
            sparse.truncate(TOKENIZER_BYTES_MAX + 1)
        assert refused(folder).startswith(f"{file} of tiny has 48 MiB, more than the ")

    def test_thoughts_are_announced(self, folder: Path) -> None:
        assert check_folder(folder, "tiny").notices == ()
        path = folder / "chat_template.jinja"
        path.write_text(path.read_text() + "<think>\n")
        (notice,) = check_folder(folder, "tiny").notices
        assert notice.startswith("the model thinks before it answers")


class TestOtherKinds:
    """Folders that users mistake for a model's."""

    def test_an_adapter(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-VL-2B-Instruct"}')
        (tmp_path / "adapter_model.safetensors").touch()
        assert "holds an adapter (LoRA) of Qwen/Qwen3-VL-2B-Instruct, not a model; merge it" in refused(tmp_path)

    def test_a_folder_of_the_cache(self, tmp_path: Path, sources: Path) -> None:
        cache = tmp_path / "models--Qwen--Qwen3-VL-2B-Instruct"
        shutil.copytree(sources / "whole", cache / "snapshots" / "abc")
        assert refused(cache) == (
            f"{cache} is a folder of the hub's cache; "
            f"give the name Qwen/Qwen3-VL-2B-Instruct, or {cache / 'snapshots' / 'abc'}"
        )

    def test_gguf_alone(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").touch()
        assert "holds a GGUF file, which is not read (0.0 GB); take the model's safetensors, or have llama" in refused(
            tmp_path
        )

    def test_the_layout_of_mlx(self, folder: Path) -> None:
        save_file({"language_model.x": torch.zeros(1)}, folder / WEIGHTS, metadata={"format": "mlx"})
        assert "model.safetensors of tiny has the layout of MLX; take the model that was not" in refused(folder)

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("qwen3-vl:8b", "--api http://127.0.0.1:11434/v1 -m qwen3-vl:8b"),
            ("hf.co/unsloth/Qwen3-VL-2B-Instruct-GGUF:Q4", "give its name, unsloth/Qwen3-VL-2B-Instruct-GGUF"),
            ("https://huggingface.co/Qwen/Qwen3-VL-2B-Instruct/tree/main", "give its name, Qwen/Qwen3-VL-2B-Instruct"),
            ("https://models.example/qwen", "or a server's address with --api"),
            ("/nowhere/qwen.gguf", "have llama.cpp serve it and give that server's address with --api"),
        ],
    )
    def test_names_of_other_programs(self, name: str, remedy: str) -> None:
        with pytest.raises(ModelNotFound) as caught:
            local_folder(name)
        assert remedy in str(caught.value)
        assert "\n" not in str(caught.value)


class TestWeights:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x01",
            (2**63).to_bytes(8, "little"),
            (4).to_bytes(8, "little") + b"{no}",
            (2).to_bytes(8, "little") + b"[]",
            (7).to_bytes(8, "little") + b'{"a":1}',
        ],
    )
    def test_damaged(self, folder: Path, data: bytes) -> None:
        (folder / WEIGHTS).write_bytes(data)
        assert refused(folder).startswith("model.safetensors of tiny is damaged or cut short (")

    @pytest.mark.parametrize("missing_bytes", [1, 1000, 100_000])
    def test_cut_short(self, folder: Path, missing_bytes: int) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(content[:-missing_bytes])
        assert refused(folder).startswith("model.safetensors of tiny is damaged or cut short (")

    def test_a_pointer_in_place_of_weights(self, folder: Path) -> None:
        (folder / WEIGHTS).write_text(POINTER)
        assert "is a Git LFS pointer and not the file itself; run git lfs pull there" in refused(folder)

    def test_a_pointer_in_place_of_a_shard(self, sharded: Path) -> None:
        shard(sharded, 2).write_text(POINTER)
        assert f"{shard(sharded, 2).name} is a Git LFS pointer" in refused(sharded)

    def test_another_format(self, folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / "model.gguf").touch()
        assert "a GGUF file is not read: take the model's safetensors" in refused(folder)

    def test_an_unreadable_weight_file(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def deny(path: Path) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("arr_coc.qwen.weight_files.refuse_pointer", deny)
        assert "config.json cannot be read (Permission denied); check its permissions" in refused(folder)
        monkeypatch.setattr(checkpoint, "read_object", lambda path: {"model_type": "qwen3_vl"})
        assert "model.safetensors cannot be read (Permission denied)" in refused(folder)


class TestIndex:
    def test_a_missing_shard_is_named(self, sharded: Path) -> None:
        missing = [shard(sharded, number) for number in range(5)]
        for path in missing:
            path.unlink()
        assert f"lacks 5 of 15 weight files ({', '.join(path.name for path in missing[:3])}, …)" in refused(sharded)

    @pytest.mark.parametrize("weight_map", [[], {}, None])
    def test_that_lists_nothing(self, sharded: Path, weight_map: Any) -> None:
        (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        assert "lists no weight files" in refused(sharded)

    @pytest.mark.parametrize("name", ["../other/model.safetensors", "/model.safetensors"])
    def test_that_leads_out_of_the_folder(self, sharded: Path, name: str) -> None:
        index = json.loads((sharded / INDEX).read_text())
        index["weight_map"]["lm_head.weight"] = name
        (sharded / INDEX).write_text(json.dumps(index))
        assert f"lists '{name}', which is no file of the folder" in refused(sharded)

    def test_that_lists_weights_which_no_file_holds(self, sharded: Path) -> None:
        shard(sharded, 2).write_bytes(shard(sharded, 3).read_bytes())
        assert "lists 1 weight that no file holds, such as model." in refused(sharded)

    def test_that_is_no_json(self, sharded: Path) -> None:
        (sharded / INDEX).write_text("{")
        assert f"{INDEX} is not usable JSON" in refused(sharded)


class TestConfig:
    @pytest.mark.parametrize(
        ("section", "change", "message"),
        [
            ("text_config", {"hidden_size": 128}, "they have a width of 64, not 128"),
            ("text_config", {"vocab_size": 300}, "they have a vocabulary of 512, not 300"),
            ("text_config", {"num_hidden_layers": 2}, "they have 3 text layers, not 2"),
            ("text_config", {"num_hidden_layers": 5, "hidden_size": 9}, "a width of 64, not 9, 3 text layers, not 5"),
            ("vision_config", {"depth": 2}, "they have 3 vision layers, not 2"),
            ("vision_config", {"hidden_size": 64}, "they have a vision width of 48, not 64"),
            ("vision_config", {"patch_size": 14}, "they have patches of 16 pixels a side, not 14"),
        ],
    )
    def test_of_another_size_than_the_weights(
        self, folder: Path, section: str, change: dict[str, int], message: str
    ) -> None:
        edit(folder, section, **change)
        assert message in refused(folder)
        assert refused(folder).endswith("; take both from the same model")

    def test_sections_that_are_none_are_left_to_others(self) -> None:
        check_sizes({"a.embed_tokens.weight": TensorInfo((2, 3), "F32")}, {"text_config": [1]}, "tiny")

    def test_a_pointer_in_its_place(self, folder: Path) -> None:
        (folder / "config.json").write_text(POINTER)
        assert "config.json is a Git LFS pointer" in refused(folder)

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert refused(tmp_path) == f"{tmp_path} is empty; give the folder of a model, or a name on the hub"

    def test_a_folder_that_cannot_be_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def deny(path: Path) -> bool:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "is_file", deny)
        assert refused(folder).endswith("cannot be read (Permission denied); check its permissions")


@pytest.mark.parametrize("name", ["", " ", "a\0b"])
def test_a_name_that_names_nothing(name: str) -> None:
    with pytest.raises(ModelNotFound, match="names no model; give the folder of a model"):
        local_folder(name)


def test_a_path_that_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def deny(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", deny)
    with pytest.raises(ModelNotFound, match=r"cannot be read .*; check its permissions"):
        local_folder(tmp_path)
