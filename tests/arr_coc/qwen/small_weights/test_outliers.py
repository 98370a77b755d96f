"""Channels that stand out in rows: which they are, errors of products and of whole models that have them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.quantisation import SMALL_DTYPES, SmallDtype
from arr_coc.qwen.small_weights.layers import Int4Linear, Int8Linear, SmallLinear
from arr_coc.qwen.small_weights.outliers import CheckpointWeight, checkpoint_weights, most_channels
from tests.arr_coc.qwen.small_weights.test_layers import DENSE, error, family_folder, linear_of, logits
from tests.support.models import tiny_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.usefixtures("multiplier"),
]

INPUTS = 1024
OUTPUTS = 192
Kind = Callable[[nn.Linear], SmallLinear]
KINDS: list[tuple[Kind, float]] = [
    (Int8Linear, 0.03),
    (partial(Int8Linear, many_rows=True), 0.03),
    (Int4Linear, 0.12),
]
"""Layers, and what they may be off by."""


def checkpoint_of(linear: nn.Linear, folder: Path) -> CheckpointWeight:
    """Where the weight lies in a file of its own."""
    save_file({"layer.weight": linear.weight}, folder / "model.safetensors")
    return checkpoint_weights(folder, ["layer.weight"])["layer.weight"]


def rows_with(channels: list[int], size: float, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in which some channels stand out, and the rows without these."""
    torch.manual_seed(1)
    rows = torch.randn(count, INPUTS)
    ordinary = rows.index_fill(1, torch.tensor(channels), 0)
    return ordinary + size * (rows - ordinary), ordinary


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("size", [50, 200, 1000])
@pytest.mark.parametrize("channels", [[77], [5, 64, 65, 66, 300, 511, 512, 700, 1000, 1023]])
@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_the_ordinary_signal_stays(
    tmp_path: Path, kind: Kind, most: float, channels: list[int], size: int, count: int
) -> None:
    linear = linear_of(INPUTS, OUTPUTS, bias=False)
    small = kind(linear)
    small.outliers.source = checkpoint_of(linear, tmp_path)
    rows, ordinary = rows_with(channels, size, count)
    off = small(rows) - linear(rows)
    assert float(off.norm() / linear(ordinary).norm()) < most


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_a_product_does_not_depend_on_the_rows_before_it(kind: Kind, most: float, gated: bool) -> None:
    """Although a layer whose last rows had channels that stand out looks for them first."""
    small = kind(linear_of(INPUTS, OUTPUTS))
    rows, ordinary = rows_with([3, 400], 200)
    gates = torch.randn(rows.shape) if gated else None
    first = [small.after_activation(part, gates) for part in (ordinary, rows)]
    again = [small.after_activation(part, gates) for part in (rows, ordinary, ordinary)]
    assert all(map(torch.equal, first, (again[1], again[0])))
    assert torch.equal(first[0], again[2])


@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_massive_tokens_leave_the_others_alone(tmp_path: Path, kind: Kind, most: float) -> None:
    linear = linear_of(INPUTS, OUTPUTS)
    small = kind(linear)
    small.outliers.source = checkpoint_of(linear, tmp_path)
    rows = torch.randn(9, INPUTS)
    rows[2] *= 1000
    rows[4, 30], rows[4, 31] = 1000.0, -2000.0
    for row, output in zip(rows, small(rows), strict=True):
        assert error(output, linear(row)) < most


@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_channels_that_are_not_kept_have_the_small_weights(tmp_path: Path, kind: Kind, most: float) -> None:
    linear = linear_of(INPUTS, OUTPUTS)
    small = kind(linear)
    expanded = small(torch.eye(INPUTS)).t() - small.bias[:, None]  # type: ignore[index]
    rows, ordinary = rows_with([3, 400], 200)
    expected = nn.functional.linear(rows, expanded, linear.bias)
    assert float((small(rows) - expected).norm() / linear(ordinary).norm()) < most / 2
    # a file that was written since is another one
    small.outliers.source = checkpoint_of(linear, tmp_path)
    without = small(rows[:, :]) - linear(rows)
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    unread = kind(linear)
    unread.outliers.source = CheckpointWeight(tmp_path / "model.safetensors", "layer.weight", 2)
    assert error(unread(rows), expected) < 1e-2
    assert unread.outliers.source is None
    assert float(without.norm()) < float((unread(rows) - linear(rows)).norm())


@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_a_layer_keeps_so_many_columns(tmp_path: Path, kind: Kind, most: float) -> None:
    linear = linear_of(INPUTS, OUTPUTS)
    small = kind(linear)
    small.outliers.source = checkpoint_of(linear, tmp_path)
    for first in range(0, 60, 10):
        rows, _ = rows_with(list(range(first, first + 10)), 200)
        rows_before = rows.clone()
        assert error(small(rows), linear(rows)) < 2 * most
        assert torch.equal(rows, rows_before)
    assert len(small.outliers._channels) == most_channels(INPUTS)


@pytest.mark.parametrize(("size", "kept"), [(15.0, 0), (40.0, 1)])
@pytest.mark.parametrize(("kind", "most"), KINDS)
def test_columns_are_read_if_what_stands_out_outweighs_the_rest(
    tmp_path: Path, kind: Kind, most: float, size: float, kept: int
) -> None:
    linear = linear_of(INPUTS, OUTPUTS)
    small = kind(linear)
    small.outliers.source = checkpoint_of(linear, tmp_path)
    rows = torch.randn(3, INPUTS)
    rows[1, 30] = size  # its square is 225 or 1600, that of the rest about 1024
    assert error(small(rows), linear(rows)) < most
    assert len(small.outliers._channels) == kept


def test_what_stands_out() -> None:
    outliers = Int8Linear(linear_of(INPUTS, 64)).outliers
    torch.manual_seed(0)
    rows = torch.randn(20, INPUTS)
    assert len(outliers.find(rows)) == 0
    assert len(outliers.find(torch.zeros(2, INPUTS))) == 0
    rows[3, 900], rows[5, 7], rows[6, 500] = 9.0, -50.0, 50.0
    # 9 is less than 12 times the mean size, which is 0.8
    assert outliers.find(rows).tolist() == [7, 500]
    # a few very large values do not hide a smaller one
    rows[6, :8] = 1e4
    assert outliers.find(rows[6:7]).tolist() == [*range(8), 500]
    rows[7, 1], rows[8, 2] = float("nan"), float("inf")
    assert len(outliers.find(rows[7:9])) == 0
    assert outliers.find(rows).tolist() == [*range(8), 500]


def test_the_most_important_of_too_many() -> None:
    outliers = Int8Linear(linear_of(INPUTS, 64)).outliers
    rows = torch.ones(3, INPUTS)
    rows[:, :20] = 40.0
    rows[0, 100:104] = torch.tensor([60.0, 200.0, 300.0, 30.0])
    assert outliers.find(rows).tolist() == [*range(most_channels(INPUTS) - 2), 101, 102]


def test_weights_are_found_by_their_names(tmp_path: Path) -> None:
    names = ("model.layers.0.a.weight", "visual.b.weight", "model.embed_tokens.weight")
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "model.safetensors")
    asked = ["model.language_model.layers.0.a.weight", "model.visual.b.weight", "lm_head.weight", "other.weight"]
    found = checkpoint_weights(tmp_path, asked)
    assert {name: weight.key for name, weight in found.items()} == dict(zip(asked[:3], names, strict=True))
    assert found["lm_head.weight"].read([1], (2, 3)) is None


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("family", DENSE)
def test_every_layer_knows_its_weight(
    tmp_path: Path, family: str, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = family_folder(tmp_path, family, True, monkeypatch)
    if cached:
        load_qwen(folder, dtype="int4", cache_weights=True)
    original = load_qwen(folder, dtype="float32").model
    for name, module in load_qwen(folder, dtype="int4", cache_weights=cached).model.named_modules():
        if isinstance(module, SmallLinear):
            weight = original.get_submodule(name).weight
            source = module.outliers.source
            assert source is not None
            column = source.read([5], (module.out_features, module.in_features))
            assert column is not None
            assert torch.equal(column[0], weight[:, 5])


SIZE = 200.0


def make_outliers(weights: dict[str, torch.Tensor]) -> None:
    """Multiply channels of activations by SIZE, and divide the weights that take them, so that the function stays."""

    def scale(channel: int, makers: list[str], takers: list[str]) -> None:
        for name in makers:
            weights[name][channel] *= SIZE
        for name in takers:
            weights[name][:, channel] /= SIZE

    text, tower = "model.language_model.layers", "model.visual.blocks"
    numbers = {name.split(".")[3] for name in weights if name.startswith(f"{text}.")}
    for at in (f"{text}.{number}" for number in numbers):
        projections = [f"{at}.self_attn.{part}_proj.weight" for part in "qkv"]
        scale(11, [f"{at}.input_layernorm.weight"], projections)
        scale(
            20, [f"{at}.post_attention_layernorm.weight"], [f"{at}.mlp.{part}_proj.weight" for part in ("gate", "up")]
        )
        scale(30, [f"{at}.mlp.up_proj.weight"], [f"{at}.mlp.down_proj.weight"])
    blocks = {name.split(".")[3] for name in weights if name.startswith(f"{tower}.")}
    for at in (f"{tower}.{number}" for number in blocks):
        scale(9, [f"{at}.norm1.weight", f"{at}.norm1.bias"], [f"{at}.attn.qkv.weight"])
        scale(13, [f"{at}.norm2.weight", f"{at}.norm2.bias"], [f"{at}.mlp.linear_fc1.weight"])
    scale(17, ["model.language_model.norm.weight"], ["lm_head.weight"])


@pytest.mark.parametrize("dtype", SMALL_DTYPES)
def test_a_model_with_outliers_is_as_near_as_one_without(tmp_path: Path, dtype: SmallDtype) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=False)
    expected = logits(load_qwen(folder, dtype="float32"))
    without = error(logits(load_qwen(folder, dtype=dtype)), expected)
    path = folder / "model.safetensors"
    weights = load_file(path)
    make_outliers(weights)
    save_file(weights, path, metadata={"format": "pt"})
    # the function is the same
    assert error(logits(load_qwen(folder, dtype="float32")), expected) < 1e-4
    qwen = load_qwen(folder, dtype=dtype)
    assert error(logits(qwen), expected) < 1.3 * without
    layers: dict[str, Any] = {n: m for n, m in qwen.model.named_modules() if isinstance(m, SmallLinear)}
    for name, channel in (("blocks.1.attn.qkv", 9), ("blocks.0.mlp.linear_fc1", 13), ("layers.1.mlp.down_proj", 30)):
        (layer,) = (module for full, module in layers.items() if full.endswith(name))
        assert channel in layer.outliers._channels
