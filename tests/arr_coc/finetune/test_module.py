"""`TrainableQwen` as a PyTorch module: parameters, modes, state, and folders that it is saved to."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from arr_coc import ARRCOCLayer
from arr_coc.errors import ModelError
from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen
from arr_coc.layer_weights import fingerprint
from tests.arr_coc.finetune.test_forward import examples
from tests.support.models import tiny_folder, tiny_qwen

QUESTION = "Is the cat sleeping?"


@pytest.fixture
def model() -> TrainableQwen:
    model = TrainableQwen(tiny_qwen(tie_word_embeddings=True))
    model.new_allocator(seed=1, budget=8)
    return model


def picture() -> np.ndarray:
    return examples()[0]["image"]


def test_its_parts_are_submodules_in_eval_mode_that_may_be_trained(model: TrainableQwen) -> None:
    assert {name for name, _ in model.named_children()} == {"model", "allocator"}
    assert isinstance(model.allocator, ARRCOCLayer)
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(module.training for module in model.train().modules())
    assert model.get_input_embeddings() is model.model.get_input_embeddings()
    assert (model.device.type, model.dtype) == ("cpu", torch.float32)
    assert model.config is model.model.config


def test_state_comes_back(model: TrainableQwen, tmp_path: Path) -> None:
    state = model.state_dict()
    assert not any("lm_head" in name for name in state)  # its weights are the embeddings'
    save_file(state, tmp_path / "state.safetensors")
    other = TrainableQwen(tiny_qwen(tie_word_embeddings=True, seed=5))
    other.new_allocator(seed=2, budget=8)
    assert other.load_state_dict(state).missing_keys == []
    batch = AnswerCollator(model.qwen)(examples())
    with torch.no_grad():
        assert torch.equal(other(**batch).logits, model(**batch).logits)


def test_another_dtype_goes_to_both_parts(model: TrainableQwen) -> None:
    batch = AnswerCollator(model.qwen)(examples())
    out = model.to(torch.bfloat16)(**batch)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert (out.logits.dtype, out.arr_coc_info.relevance[0].dtype) == (torch.bfloat16, torch.float32)
    out.loss.backward()
    assert model.generate(picture(), QUESTION, max_tokens=2, budget=8).tokens_used == 8


def test_autocast_leaves_relevance_exact(model: TrainableQwen) -> None:
    batch = AnswerCollator(model.qwen)(examples())
    expected = model(**batch).arr_coc_info
    with torch.autocast("cpu", torch.bfloat16):
        out = model(**batch)
    assert torch.equal(out.arr_coc_info.relevance[0], expected.relevance[0])
    out.loss.backward()


def test_a_copy_is_independent(model: TrainableQwen) -> None:
    twin = copy.deepcopy(model)
    assert twin.qwen.model is twin.model
    with torch.no_grad():
        twin.model.lm_head.weight.zero_()
    assert model.model.lm_head.weight.any()
    assert twin.generate(picture(), QUESTION, max_tokens=2, budget=8).tokens_used == 8


def test_answers_follow_the_weights(model: TrainableQwen) -> None:
    """A prompt's cache, kept from answer to answer, must not outlive the weights that it was made with."""
    model.generate(picture(), QUESTION, max_tokens=8, budget=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    second = model.generate(picture(), QUESTION, max_tokens=8, budget=8)
    fresh = TrainableQwen(model.qwen).generate(picture(), QUESTION, max_tokens=8, budget=8)
    assert second.text == fresh.text
    np.testing.assert_array_equal(second.heatmap, fresh.heatmap)


def test_answers_between_steps_disturb_no_training(model: TrainableQwen) -> None:
    batch = AnswerCollator(model.qwen)(examples())
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model.train()(**batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        model.generate(picture(), QUESTION, max_tokens=2, budget=8)
        assert model.training
        assert model.allocator.training


def test_gradient_checkpointing_changes_no_gradient(model: TrainableQwen) -> None:
    batch = AnswerCollator(model.qwen)(examples())

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model.train()(**batch).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    model.activation_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(gradients(), plain)
    assert model.qwen.language_model.gradient_checkpointing
    model.activation_checkpointing_disable()
    assert not model.qwen.language_model.gradient_checkpointing


def test_a_saved_model_comes_back_with_its_allocator(model: TrainableQwen, tmp_path: Path) -> None:
    model.allocator.configure(strategy="foveated", gradient="gumbel", temperature=0.5)
    model.save_pretrained(tmp_path / "new" / "saved")
    copy = TrainableQwen.from_pretrained(tmp_path / "new" / "saved")
    assert copy.allocator.config == model.allocator.config
    assert copy.qwen.preprocessing == model.qwen.preprocessing
    assert copy.qwen.realiser is not None
    assert copy.qwen.realiser.knows("saved")
    batch = AnswerCollator(copy.qwen)(examples())
    with torch.no_grad():
        assert torch.equal(copy(**batch).logits, model(**batch).logits)
    assert not list((tmp_path / "new").glob(".saved-*"))


def test_an_allocator_belongs_to_the_embeddings_that_it_is_saved_with(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    model = TrainableQwen.from_pretrained(folder)
    model.new_allocator(budget=8)
    model.save_pretrained(folder)  # over the folder that it was loaded from
    before = json.loads((folder / "arr_coc" / "config.json").read_text())["trained_for"]
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.1)
    model.save_pretrained(folder)
    after = json.loads((folder / "arr_coc" / "config.json").read_text())["trained_for"]
    assert before != after == fingerprint(model.get_input_embeddings().weight)
    assert TrainableQwen.from_pretrained(folder).qwen.allocator is not None


def test_an_untrained_allocator_hears_no_question_and_is_saved_too(tmp_path: Path) -> None:
    model = TrainableQwen.from_pretrained(tiny_folder(tmp_path / "tiny"))
    assert model.qwen.allocator is None
    assert model.allocator.config.query_dim == 0
    before = model.generate(picture(), QUESTION, max_tokens=2, budget=8).heatmap
    assert model.to("cpu").qwen.allocator is None
    with torch.no_grad():
        model.allocator.realiser.information.gate.bias.fill_(-2.0)
    after = model.generate(picture(), QUESTION, max_tokens=2, budget=8).heatmap
    assert not np.allclose(before, after, atol=1e-3)
    model.save_pretrained(tmp_path / "saved")
    copy = TrainableQwen.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(copy.generate(picture(), QUESTION, max_tokens=2, budget=8).heatmap, after)


def test_an_earlier_model_s_weights_and_preprocessing_do_not_stay(model: TrainableQwen, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", shard_size="300KB")
    (folder / "notes.txt").write_text("mine")
    (folder / "processor_config.json").write_text('{"image_processor": {"min_pixels": 7}}')
    assert len(list(folder.glob("*.safetensors"))) > 1
    model.save_pretrained(folder)
    assert [path.name for path in folder.glob("*.safetensors*")] == ["model.safetensors"]
    assert (folder / "notes.txt").read_text() == "mine"
    copy = TrainableQwen.from_pretrained(folder)
    assert copy.model.config.tie_word_embeddings
    assert copy.qwen.preprocessing == model.qwen.preprocessing


def test_the_saved_model_stays_if_saving_fails(
    model: TrainableQwen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save_pretrained(tmp_path / "saved")
    before = {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(model.qwen.preprocessing), "write", full)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.1)
    with pytest.raises(ModelError, match=r"cannot be saved to .*No space left on device.*make room"):
        model.save_pretrained(tmp_path / "saved")
    assert {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == ["saved"]


def test_a_file_is_no_folder_to_save_to(model: TrainableQwen, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ModelError, match=r"cannot be saved to .*name another folder"):
            model.save_pretrained(target)
    assert (tmp_path / "file").read_text() == "mine"
