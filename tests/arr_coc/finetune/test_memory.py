"""Learning in less memory gives the same gradients: checkpointing, offloading, sharding; and parts that learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.autograd.graph import saved_tensors_hooks

from arr_coc.errors import OptionError
from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen
from arr_coc.finetune.parts import LearningRates, shard
from tests.arr_coc.finetune.test_forward import examples, fresh
from tests.support.models import FAMILIES


def gradients(model: TrainableQwen) -> dict[str, torch.Tensor]:
    model.train()(**AnswerCollator(model.qwen)(examples())).loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def frugal(family: str, *, checkpointing: bool, offload: bool, **options: Any) -> TrainableQwen:
    model = fresh(family=family, **options)
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.offload_activations = offload
    return model


@pytest.mark.parametrize(("checkpointing", "offload"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("family", "encode"),
    [*((family, "sparse") for family in FAMILIES), ("qwen3_vl", "weighted"), ("qwen3_vl", "prune")],
)
def test_gradients_are_the_same(family: str, encode: str, checkpointing: bool, offload: bool) -> None:
    expected = gradients(fresh(family=family, encode=encode))
    assert any("visual" in name for name in expected)
    assert any("allocator" in name for name in expected)
    found = gradients(frugal(family, checkpointing=checkpointing, offload=offload, encode=encode))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def saved_numbers(model: TrainableQwen) -> int:
    """How many numbers a forward pass in training mode saves, besides weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.train()(**AnswerCollator(model.qwen)(examples()))
        assert out.loss.requires_grad
    return sum(saved.values())


def test_checkpointing_keeps_less_of_the_vision_tower() -> None:
    plain = saved_numbers(fresh())
    model = frugal("qwen3_vl", checkpointing=True, offload=False)
    with_checkpoints = saved_numbers(model)
    for block in model.qwen.tower.blocks:
        block.gradient_checkpointing = False
    assert with_checkpoints < 0.9 * saved_numbers(model) < 0.9 * plain


def test_activations_go_to_the_host_and_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    to_host = torch.Tensor.cpu

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.untyped_storage().data_ptr())
        return to_host(tensor)

    model = frugal("qwen3_vl", checkpointing=False, offload=True)
    batch = AnswerCollator(model.qwen)(examples())
    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    model.train()(**batch)
    assert len(moved) > 50
    assert not {weight.untyped_storage().data_ptr() for weight in model.parameters()} & set(moved)


def learning(model: TrainableQwen) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_parts_learn_at_their_own_rates() -> None:
    model = fresh()
    (only,) = LearningRates(allocator=1e-3).groups(model)
    assert (only["name"], only["lr"]) == ("allocator", 1e-3)
    assert learning(model) == {f"allocator.{name}" for name, _ in model.allocator.named_parameters()}

    allocator, language = LearningRates(language=1e-5, last_layers=1).groups(model)
    assert (allocator["lr"], language["lr"]) == (1e-4, 1e-5)
    last = len(model.qwen.language_model.layers) - 1
    assert {name for name in learning(model) if not name.startswith("allocator.")} == {
        f"model.model.language_model.layers.{last}.{name}"
        for name, _ in model.qwen.language_model.layers[-1].named_parameters()
    }
    assert gradients(model).keys() <= learning(model)

    groups = LearningRates(allocator=0, language=1e-5, vision=1e-6).groups(model)
    assert [group["name"] for group in groups] == ["language", "vision"]
    assert sum(len(group["params"]) for group in groups) == len(list(model.model.parameters()))
    assert torch.optim.AdamW(groups).param_groups[1]["lr"] == 1e-6


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"last_layers": 9}, r"has \d layers, got last_layers=9; give 1 to \d"),
        ({"last_layers": 0}, "got last_layers=0"),
        ({"allocator": 0}, "nothing would learn, because all rates are 0"),
    ],
)
def test_rates_that_do_not_suit(rates: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LearningRates(**rates).groups(fresh())


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("frugally", [False, True])
def test_a_sharded_model_learns_the_same(frugally: bool) -> None:
    model = frugal("qwen3_vl", checkpointing=frugally, offload=frugally)
    plain = fresh()
    rates = LearningRates(language=1e-3, last_layers=1, vision=1e-3)
    shard(model)
    for one in (model, plain):
        optimiser = torch.optim.AdamW(rates.groups(one))
        for _ in range(2):
            optimiser.zero_grad()
            gradients(one)
            optimiser.step()
    learned = learning(plain)
    for name, weight in model.named_parameters():
        full = weight.full_tensor()  # type: ignore[attr-defined]
        torch.testing.assert_close(full, plain.get_parameter(name).data, atol=1e-6, rtol=1e-5)
    untouched = dict(fresh().named_parameters())
    assert any(not torch.equal(plain.get_parameter(name), untouched[name]) for name in learned)
