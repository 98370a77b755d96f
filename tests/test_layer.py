from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from arr_coc.errors import BudgetError, ModelError, ModelNotFound, NonFiniteError, ShapeError, StrategyError
from arr_coc.layer import ARRCOCConfig, ARRCOCLayer

ROWS, COLS, WIDTH = 8, 10, 16


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings, a question and two pictures: dull ground with one striking patch."""
    generator = torch.Generator().manual_seed(0)
    image = torch.full((2, 3, ROWS * 32, COLS * 32), 0.3)
    image[0, :, 64:96, 96:160:6] = 1.0
    image[1, 0, 128:192, 32:64] = 1.0
    embeds = torch.randn(2, ROWS * COLS, WIDTH, generator=generator)
    return embeds, torch.randn(2, 5, WIDTH, generator=generator), image


def test_chosen_tokens_are_the_encoder_s_own(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=12))(embeds, query, image)
    assert out.tokens.shape == (2, 12, WIDTH)
    assert out.mask.all()
    for picture in range(2):
        row, col = out.positions[picture].long().T
        assert torch.equal(out.tokens[picture], embeds[picture, row * COLS + col])
    assert (out.budgets == 1024).all()


def test_with_every_tile_nothing_is_lost(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(budget=ROWS * COLS))(embeds, query, image)
    assert torch.equal(out.tokens, embeds)


def test_coarse_tokens_are_means_at_their_middles(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(strategy="foveated", budget=24))(embeds, query, image)
    grid = embeds.unflatten(1, (ROWS, COLS))
    for index, (level, row, col) in enumerate(out.allocation.regions[0].tolist()):
        if not out.mask[0, index]:
            continue
        side = 1 << level
        tiles = grid[0, row * side : (row + 1) * side, col * side : (col + 1) * side]
        assert torch.allclose(out.tokens[0, index], tiles.mean(dim=(0, 1)), atol=1e-5)
        assert out.budgets[0, index] == 1024 // 4**level
        assert out.positions[0, index].tolist() == [row * side + (side - 1) / 2, col * side + (side - 1) / 2]
    assert out.budgets[0].unique().numel() > 1


def test_unequal_budgets_are_masked(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    image = image.clone()
    image[0] = 0.3
    out = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget="adaptive"))(embeds, query[:, :, :4], image)
    first, second = out.mask.sum(dim=1).tolist()
    assert first != second
    longest = max(first, second)
    assert out.tokens.shape[1] == longest
    shorter = 0 if first < second else 1
    rest = slice(min(first, second), longest)
    for tensor in (out.tokens, out.positions, out.budgets):
        assert not tensor[shorter, rest].any()


def test_the_question_draws_tokens_without_training(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    embeds = embeds.clone()
    embeds[:, 7 * COLS + 9] = query.mean(dim=1) * 3
    layer = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=4))
    asked, unasked = layer(embeds, query, image), layer(embeds, None, image)
    wanted = torch.tensor([7.0, 9.0])
    assert (asked.positions == wanted).all(dim=2).any(dim=1).all()
    assert not (unasked.positions == wanted).all(dim=2).any()


def test_gradients_reach_embeddings_and_scorers(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    embeds.requires_grad_()
    layer = ARRCOCLayer(ARRCOCConfig(strategy="foveated", budget=24, query_dim=WIDTH))
    layer(embeds, query, image).tokens.square().sum().backward()
    assert embeds.grad is not None
    assert embeds.grad.any()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_bfloat16_stays_bfloat16(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    out = ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=9))(embeds.bfloat16(), query.bfloat16(), image)
    assert out.tokens.dtype == torch.bfloat16
    assert out.positions.dtype == torch.float32


def test_what_was_saved_comes_back(inputs: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    layer = ARRCOCLayer(ARRCOCConfig(strategy="mixed", budget=20, query_dim=WIDTH, trained_for="tiny"))
    torch.nn.init.normal_(layer.realiser.information.gate.weight)
    layer.save_pretrained(tmp_path / "new" / "folder")
    again = ARRCOCLayer.from_pretrained(tmp_path / "new" / "folder")
    assert again.config == layer.config
    assert torch.equal(again(*inputs).tokens, layer(*inputs).tokens)


def test_a_layer_on_the_hub_is_fetched_by_its_name(
    inputs: tuple[torch.Tensor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ARRCOCLayer(ARRCOCConfig(strategy="topk", budget=7)).save_pretrained(tmp_path)
    asked: dict[str, Any] = {}

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    layer = ARRCOCLayer.from_pretrained("someone/allocator", token="hf_secret")
    assert layer(*inputs).mask.sum(dim=1).tolist() == [7, 7]
    assert (asked["name"], asked["token"]) == ("someone/allocator", "hf_secret")
    assert asked["allow_patterns"] == ["config.json", "model.safetensors"]


def test_folders_that_hold_no_layer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        ARRCOCLayer.from_pretrained(tmp_path)
    ARRCOCLayer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "query_dim": 7}))
    with pytest.raises(ModelError, match="does not fit"):
        ARRCOCLayer.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**settings, "budge": 7}))
    with pytest.raises(ModelError, match="unknown keys: budge"):
        ARRCOCLayer.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        ARRCOCLayer.from_pretrained(tmp_path)


def test_shapes_that_do_not_fit(inputs: tuple[torch.Tensor, ...]) -> None:
    embeds, query, image = inputs
    layer = ARRCOCLayer(ARRCOCConfig(query_dim=WIDTH))
    with pytest.raises(ShapeError, match="image must be"):
        layer(embeds, query, image[0])
    with pytest.raises(ShapeError, match=r"\[2, 8 \* 10, D\]"):
        layer(embeds[:, 1:], query, image)
    with pytest.raises(ShapeError, match=r"\[2, Lq, Dq\]"):
        layer(embeds, query[:1], image)
    with pytest.raises(ShapeError, match="width 16, got 4"):
        layer(embeds, query[..., :4], image)


@pytest.mark.parametrize("broken", ["vision_embeds", "query_embeds", "images"])
def test_what_is_not_finite_is_named(inputs: tuple[torch.Tensor, ...], broken: str) -> None:
    tensors = dict(zip(("vision_embeds", "query_embeds", "images"), (t.clone() for t in inputs), strict=True))
    tensors[broken].view(-1)[5] = float("nan")
    with pytest.raises(NonFiniteError, match=broken):
        ARRCOCLayer()(*tensors.values())


def test_settings_that_do_not_hold(inputs: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(StrategyError):
        ARRCOCLayer(ARRCOCConfig(strategy="best"))
    with pytest.raises(ValueError, match="coverage"):
        ARRCOCLayer(ARRCOCConfig(coverage=-1))
    with pytest.raises(BudgetError):
        ARRCOCLayer(ARRCOCConfig(budget=0))(*inputs)
