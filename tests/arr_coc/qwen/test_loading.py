"""Loading: every kind of folder that works, and a one-line error for each that does not."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from arr_coc import hub
from arr_coc.errors import ModelError, ModelNotFound, OptionError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen import loading
from arr_coc.qwen.loading import load_qwen
from tests.support.models import CHAT_TEMPLATE, FAMILIES, tiny_folder

OTHER_VISION_MODELS = ("gemma3", "internvl", "smolvlm", "lfm2_vl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path / "tiny")


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_each_family(tmp_path: Path, family: str) -> None:
    qwen = load_qwen(tiny_folder(tmp_path / "tiny", family))
    assert qwen.family.model_type == family
    assert qwen.model_id == "tiny"
    assert qwen.model.dtype == torch.float32
    assert not qwen.model.training
    assert qwen.max_context_tokens == 4096
    assert qwen.eos_ids == {0, 2}
    assert qwen.preprocessing.patch_px == (14 if family.startswith("qwen2") else 16)
    assert not qwen.knows_levels
    assert qwen.known_world is None


def test_shards(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 5
    qwen = load_qwen(tiny_folder(tmp_path / "one"))
    for name, weight in load_qwen(folder).model.state_dict().items():
        torch.testing.assert_close(weight, qwen.model.state_dict()[name], atol=0, rtol=0)


def test_arr_coc_keys_of_the_config(tmp_path: Path) -> None:
    qwen = load_qwen(tiny_folder(tmp_path / "tiny", arr_coc_levels=True, arr_coc_world="drawn scenes"))
    assert qwen.knows_levels
    assert qwen.known_world == "drawn scenes"


def test_tied_output_weights_are_not_missing(tmp_path: Path) -> None:
    qwen = load_qwen(tiny_folder(tmp_path / "tiny", tie_word_embeddings=True))
    assert qwen.model.lm_head.weight is qwen.language_model.embed_tokens.weight


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        (torch.bfloat16, torch.bfloat16),
        ("torch.float16", torch.float16),
    ],
)
def test_dtypes(folder: Path, dtype: str | torch.dtype, expected: torch.dtype) -> None:
    assert load_qwen(folder, dtype=dtype).model.dtype == expected
    assert ARRCOCQwen.from_pretrained(folder, torch_dtype=dtype).dtype == expected


def test_two_dtypes_that_differ_are_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"dtype=torch\.float16 and torch_dtype=float32 are the same; give one"):
        ARRCOCQwen.from_pretrained(folder, dtype=torch.float16, torch_dtype="float32")


def test_the_options_of_from_pretrained_are_named() -> None:
    parameters = inspect.signature(ARRCOCQwen.from_pretrained).parameters
    assert {"dtype", "torch_dtype", "device_map", "device", "token", "allocator"} < parameters.keys()
    assert all(
        parameter.kind != parameter.VAR_KEYWORD and parameter.annotation is not parameter.empty
        for parameter in parameters.values()
    )


@pytest.mark.parametrize("device_map", ["cpu", torch.device("cpu"), {"": "cpu"}, {"": torch.device("cpu")}])
def test_a_device_map_of_one_device_is_that_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device_map: Any
) -> None:
    without_accelerate(monkeypatch)
    assert load_qwen(folder, device="meta", device_map=device_map).device == torch.device("cpu")


@pytest.mark.parametrize("device_map", [7, "cuda:7", {"": 7}])
def test_a_device_map_of_a_device_that_is_not_there(folder: Path, device_map: Any) -> None:
    with pytest.raises(ModelError, match="device 'cuda:7' cannot be used on this machine"):
        load_qwen(folder, device_map=device_map)


def test_a_bfloat16_checkpoint_runs_in_float32_on_the_cpu(folder: Path) -> None:
    load_qwen(folder, dtype="bfloat16").model.save_pretrained(folder)
    assert load_qwen(folder, device="cpu").model.dtype == torch.float32


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize(
    "device_map", ["auto", {"model.visual": "cpu", "model.language_model": "cpu", "lm_head": "cpu"}]
)
def test_a_device_map_changes_no_answer(folder: Path, device_map: Any) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    plain, mapped = (
        ARRCOCQwen(load_qwen(folder, device_map=placement)).generate(picture, "Say what happens.", max_tokens=8)
        for placement in (None, device_map)
    )
    assert mapped.text == plain.text


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_a_vision_tower_off_its_device_is_refused(folder: Path, tmp_path: Path) -> None:
    spread = {"model.visual": "meta", "model.language_model": "cpu", "lm_head": "cpu"}
    with pytest.raises(ModelError, match="vision tower of tiny must lie on one device"):
        load_qwen(folder, device_map=spread)


def test_a_device_map_without_accelerate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_accelerate(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert load_qwen(folder, device_map="auto").device == load_qwen(folder).device
    with pytest.raises(ModelError, match=r"pip install accelerate"):
        load_qwen(folder, device_map={"model": "cpu", "lm_head": "cpu"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match=r"pip install accelerate"):
        load_qwen(folder, device_map="auto")


def without_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        loading.importlib.util, "find_spec", lambda name: None if name == "accelerate" else find_spec(name)
    )


def test_the_question_as_the_embedding_table_sees_it(folder: Path) -> None:
    qwen = load_qwen(folder)
    query = qwen.embed_query("Say what happens.")
    assert query.tokens.shape == (len(qwen.token_ids("Say what happens.")), 64)
    assert query.tokens.dtype == np.float32
    assert (query.text, query.model_id) == ("Say what happens.", "tiny")


def test_an_old_chat_template_file(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    assert load_qwen(folder).tokenizer.chat_template == CHAT_TEMPLATE


def test_loading_is_quiet(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging as library_logging

    before = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as caught:
        load_qwen(folder)
    assert capfd.readouterr() == ("", "")
    assert not caught
    assert (library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()) == before


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"is empty; give the folder of a model"):
        load_qwen(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelNotFound, match=r"has no config\.json; give the folder of a model"):
        load_qwen(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 10**6, '{"a": ' * 500 + "7" + "}" * 500, " " * (1 << 25)])
def test_a_damaged_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json (is not usable JSON|holds no JSON object)"):
        load_qwen(folder)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        *((other, f"of type '{other}'") for other in OTHER_VISION_MODELS),
        ("llama", "of type 'llama'"),
        (None, r"names no model_type in its config\.json"),
        (7, "7"),
    ],
)
def test_another_architecture(folder: Path, model_type: Any, message: str) -> None:
    edit(folder / "config.json", model_type=model_type)
    with pytest.raises(
        ModelError, match=rf"{message}, which is not supported; give .* types: Qwen3\.5 \(qwen3_5\), .*\(--api\)$"
    ):
        load_qwen(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"has no weights.*download the model again"):
        load_qwen(folder)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelNotFound, match=r"convert its pytorch_model\.bin to safetensors"):
        load_qwen(folder)


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", shard_size="100KB")
    shard = sorted(folder.glob("*.safetensors"))[3]
    shard.unlink()
    with pytest.raises(ModelNotFound, match=rf"lacks 1 of \d+ weight files \({shard.name}\)"):
        load_qwen(folder)


def test_weights_that_lack_some(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.visual.merger.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"tiny lacks 1 weight, such as model\.visual\.merger\.norm\.weight"):
        load_qwen(folder)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.language_model.embed_tokens.weight"][7, 3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"hold NaN or infinity, such as model\.language_model\.embed_tokens"):
        load_qwen(folder)


def test_large_weights_are_finite(folder: Path) -> None:
    """Weights that are finite although their sum is infinite."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][:] = 3e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_qwen(folder, dtype="float32")


def test_another_models_tokenizer(folder: Path) -> None:
    edit(folder / "config.json", vision_start_token_id=6)
    with pytest.raises(
        ModelError, match=r"the tokenizer of tiny is another model's: .*; take the tokenizer files from"
    ):
        load_qwen(folder)


def test_a_tokenizer_with_more_ids_than_the_weights_know(folder: Path) -> None:
    tokens = json.loads((folder / "tokenizer.json").read_text())
    last = tokens["added_tokens"][-1]
    size = len(tokens["model"]["vocab"])
    tokens["added_tokens"] += [{**last, "id": size + number, "content": f"<|more {number}|>"} for number in range(300)]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ModelError, match=r"its ids go up to 6.., and the weights know 512 tokens; take the tokenizer"):
        load_qwen(folder)


def test_a_tokenizer_that_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tiny has no usable tokenizer: .*; download the model again"):
        load_qwen(folder)


@pytest.mark.parametrize("text", ["{% for %}", "{{ raise_exception('no') }}"])
def test_a_chat_template_that_cannot_be_used(folder: Path, text: str) -> None:
    (folder / "chat_template.jinja").write_text(text + "<|image_pad|>")
    with pytest.raises(ModelError, match=r"the chat template of tiny cannot be used .*; download the model again"):
        ARRCOCQwen(load_qwen(folder))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "200000 steps"),
        (
            "{% set n = namespace(x='x' * 1000) %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "1024 MiB",
        ),
    ],
)
def test_a_chat_template_without_end(folder: Path, text: str, limit: str) -> None:
    (folder / "chat_template.jinja").write_text(text + "<|image_pad|>")
    trace = sys.gettrace()
    with pytest.raises(ModelError, match=rf"the chat template of tiny cannot be used \(it takes more than {limit}"):
        ARRCOCQwen(load_qwen(folder))
    assert sys.gettrace() is trace


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        (
            "text_config",
            {"intermediate_size": 128},
            r"of another shape .* such as .*mlp.*: \[64, 96\], not \[64, 128\]",
        ),
        ("vision_config", {"out_hidden_size": 32}, "of another shape than its config.json says"),
        ("text_config", {"hidden_act": "wow"}, "cannot be loaded: 'wow' is not known"),
    ],
)
def test_a_config_that_does_not_fit_the_weights(
    folder: Path, section: str, change: dict[str, Any], message: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    edit(folder / "config.json", **{section: config[section] | change})
    with pytest.raises(ModelError, match=message):
        load_qwen(folder)


def test_weights_that_the_config_does_not_describe(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.visual.blocks.0.attn.extra"] = torch.zeros(3)
    weights["model.visual.rotary_pos_emb.inv_freq"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"tiny has 1 weight that its config.json does not describe, .*attn\.extra"):
        load_qwen(folder)
    del weights["model.visual.blocks.0.attn.extra"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_qwen(folder)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("section", [None, "text_config"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
@pytest.mark.parametrize("value", ["owner/kernel", "flash_attention_2", {"": "owner/kernel", "text_config": "o/k"}])
def test_a_config_fetches_no_code(
    folder: Path, section: str | None, key: str, value: Any, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (config[section] if section else config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    fetched = []
    for name in ("kernels.get_kernel", "transformers.modeling_utils.lazy_import_flash_attention"):
        with contextlib.suppress(ImportError, AttributeError):
            monkeypatch.setattr(name, lambda *names, **_: fetched.append(names))
    if not direct:
        monkeypatch.setattr(loading, "load_directly", lambda *_: None)
    model = load_qwen(folder).model
    for part in (model.config, model.config.text_config, model.config.vision_config):
        assert part._attn_implementation == "sdpa"
    assert not fetched


def test_a_config_may_choose_an_implementation_that_is_known(folder: Path) -> None:
    edit(folder / "config.json", attn_implementation="eager")
    assert load_qwen(folder).model.config.text_config._attn_implementation == "eager"


def test_a_package_that_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(*_: Any, **__: Any) -> None:
        raise ImportError("needs something")

    monkeypatch.setattr(loading, "load_directly", lack)
    monkeypatch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", lack)
    with pytest.raises(ModelError, match="because a package is missing: needs something; install it"):
        load_qwen(folder)


@pytest.mark.parametrize("text", ["[]", '{"size": 5}', '{"image_mean": "x"}', '{"min_pixels": "few"}'])
def test_a_damaged_preprocessor_config(folder: Path, text: str) -> None:
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"preprocessor_config\.json holds .*; download the model again"):
        load_qwen(folder)


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(loading, "load_directly", full)
    monkeypatch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", full)
    with pytest.raises(ModelError, match="does not fit into the memory of cpu"):
        load_qwen(folder, device="cpu")


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_a_device_that_is_not_there(folder: Path, device: str) -> None:
    with pytest.raises(ModelError, match=f"device '{device}' cannot be used on this machine"):
        load_qwen(folder, device=device)


def test_an_unknown_dtype(folder: Path) -> None:
    with pytest.raises(ModelError, match="unknown dtype 'int3'; there are auto, float32"):
        load_qwen(folder, dtype="int3")


def test_a_model_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(name: str, token: str | None = None, files: tuple[str, ...] = hub.WANTED_FILES) -> Path:
        fetched.append((name, token, files))
        return folder

    monkeypatch.setattr(loading, "download", fetch)
    assert load_qwen("owner/tiny", token="secret").model_id == "owner/tiny"
    assert fetched == [("owner/tiny", "secret", ("config.json",)), ("owner/tiny", "secret", hub.WANTED_FILES)]


def test_another_architecture_on_the_hub_is_not_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(folder / "config.json", model_type="llama")
    monkeypatch.setattr(loading, "download", lambda name, token, files: folder)
    with pytest.raises(ModelError, match="owner/llama is a model of type 'llama'"):
        load_qwen("owner/llama")


def test_no_name_is_the_bundled_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "bundled_model_path", lambda: folder)
    assert load_qwen().model_id == "tiny"
