"""Weights of 8 and 4 bits: products against the expanded weights, loading, what is refused."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from arr_coc.errors import ModelError, OptionError
from arr_coc.finetune.module import TrainableQwen
from arr_coc.qwen import loading
from arr_coc.qwen.batching.packed import PromptToPrefill, prefill_packed
from arr_coc.qwen.cache import SlotBlock, empty_cache
from arr_coc.qwen.decode import PromptPart, decode_one_token, prefill
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.flops import Costs
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from arr_coc.qwen.quantisation import SMALL_DTYPES, SmallDtype, check_small_dtype
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.small_weights import layers, shrinker
from arr_coc.qwen.small_weights.feed_forward import GatedFeedForward, GeluFeedForward
from arr_coc.qwen.small_weights.layers import GROUP, Int4Linear, Int8Linear, SmallLinear
from arr_coc.qwen.small_weights.norms import SmallNorm
from arr_coc.types import FrameStamp
from evaluation.strategies.base import TiledFrame
from evaluation.strategies.session import EvalPrompt
from stream.config import Config
from stream.extensions.doctor import model_fit
from tests.support.evaluation import picture
from tests.support.models import FAMILIES, tiny_folder

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")

ROWS = (1, 3, 130)
DENSE = [family for family in FAMILIES if not family.endswith("moe")]


def linear_of(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    nn.init.normal_(linear.weight, std=0.05)
    return linear


def expanded(small: SmallLinear) -> torch.Tensor:
    """Weights [out_features, in_features] that the integers stand for: products with rows of a one and zeros."""
    products = small(torch.eye(small.in_features))
    return (products if small.bias is None else products - small.bias).t()


def error(output: torch.Tensor, expected: torch.Tensor) -> float:
    return float((output - expected).norm() / expected.norm())


KINDS = [(Int8Linear, 96), (partial(Int8Linear, many_rows=True), 96), (Int4Linear, 192)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("kind", "outputs"), KINDS)
@pytest.mark.usefixtures("multiplier")
def test_a_product_is_that_of_the_expanded_weights(
    kind: Callable[[nn.Linear], SmallLinear], outputs: int, rows: int, bias: bool
) -> None:
    linear = linear_of(3 * GROUP, outputs, bias=bias)
    before = linear.weight.clone()
    small, values = kind(linear), torch.randn(1, rows, 3 * GROUP)
    output = small(values)
    assert (output.shape, output.dtype) == ((1, rows, outputs), torch.float32)
    assert error(output, nn.functional.linear(values, expanded(small), linear.bias)) < 0.03
    assert torch.equal(linear.weight, before)


@pytest.mark.parametrize(("kind", "most"), [(Int8Linear, 0.01), (Int4Linear, 0.11)])
@pytest.mark.usefixtures("multiplier")
def test_weights_are_close_to_the_original(kind: type[SmallLinear], most: float) -> None:
    linear = linear_of(2 * GROUP, 128)
    assert error(expanded(kind(linear)), linear.weight) < most


@pytest.mark.parametrize(
    ("kind", "outputs"), [(Int8Linear, 100), (partial(Int8Linear, many_rows=True), 100), (Int4Linear, 128)]
)
@pytest.mark.usefixtures("multiplier")
def test_outputs_are_quantised_in_parts(
    kind: Callable[[nn.Linear], SmallLinear], outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, values = linear_of(GROUP, outputs), torch.randn(64, GROUP)
    reference = kind(linear)
    monkeypatch.setattr(layers, "PART_OUTPUTS", 64)
    torch.testing.assert_close(kind(linear)(values), reference(values), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.usefixtures("multiplier")
def test_every_row_has_its_own_scale(many_rows: bool) -> None:
    small = Int8Linear(linear_of(64, 32, bias=False), many_rows=many_rows)
    faint = torch.randn(1, 64)
    output = small(torch.cat([faint, 1e4 * torch.randn(1, 64), torch.zeros(1, 64)]))
    assert error(output[:1], small(faint)) < 0.03
    assert output[2].abs().max() < 1e-30


@pytest.mark.usefixtures("multiplier")
def test_no_rows_and_weights_of_zero() -> None:
    linear = linear_of(64, 64, bias=False)
    linear.weight.zero_()
    for kind in (Int8Linear, Int4Linear):
        assert kind(linear)(torch.empty(2, 0, 64)).shape == (2, 0, 64)
        assert not kind(linear)(torch.randn(1, 64)).any()


def test_training_is_refused() -> None:
    small = Int8Linear(linear_of(64, 64))
    assert small(torch.randn(1, 64)).requires_grad is False
    with pytest.raises(OptionError, match="int8 or int4 cannot be trained; load it in float32 or bfloat16"):
        small(torch.randn(1, 64, requires_grad=True))


def logits(qwen: QwenVL) -> torch.Tensor:
    """Logits after a prompt with a picture, and after one more token."""
    view = TiledFrame.fit(qwen.preprocessing, picture(), FrameStamp(0, 0, 0))
    frame = encode_packet(qwen, view.frame_packet(np.ones(view.grid.shape, bool)), "full")
    part, _ = EvalPrompt(qwen, [view], "What is it?").with_frames([frame])
    cache = empty_cache(qwen)
    first = prefill(qwen, part, cache)
    return torch.stack([first, decode_one_token(qwen, torch.tensor(9), part.position, cache.kv)])


def expand(model: nn.Module, stock: nn.Module) -> None:
    """Give a model its small weights in floating point, and the feed-forward layers and norms of a stock one."""
    for name, module in list(model.named_modules()):
        if isinstance(module, SmallLinear):
            linear = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            linear.load_state_dict(
                {"weight": expanded(module)} | ({} if module.bias is None else {"bias": module.bias})
            )
            model.set_submodule(name, linear.requires_grad_(False))
        elif isinstance(module, (GatedFeedForward, GeluFeedForward, SmallNorm)):
            module.__class__ = type(stock.get_submodule(name))


def family_folder(tmp_path: Path, family: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model of a family; with `large`, in bfloat16 and loaded as a large one is."""
    folder = tiny_folder(tmp_path / "tiny", family, tie_word_embeddings=family == "qwen3_vl")
    if large:
        load_qwen(folder, dtype="bfloat16").model.save_pretrained(folder)
        monkeypatch.setattr(loading, "LARGE_PARAMETERS", 0)
    return folder


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("dtype", SMALL_DTYPES)
@pytest.mark.parametrize("family", DENSE)
def test_a_model_of_every_family(
    tmp_path: Path, family: str, dtype: SmallDtype, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = family_folder(tmp_path, family, large, monkeypatch)
    plain = load_qwen(folder, dtype="float32")
    small = load_qwen(folder, dtype=dtype)
    assert (small.small, small.weights_dtype, small.dtype) == (dtype, dtype, torch.float32)
    kinds = {type(module) for module in small.model.modules() if isinstance(module, (nn.Linear, SmallLinear))}
    assert kinds == ({Int8Linear} if dtype == "int8" else {Int8Linear, Int4Linear})
    assert small.model.get_input_embeddings().weight.dtype == (torch.bfloat16 if large else torch.float32)
    assert small.embed([5]).dtype == torch.float32
    assert small.decodes_plainly
    assert vars(Costs(small)) == vars(Costs(plain))
    small_logits = logits(small)
    expand(small.model, plain.model)
    assert error(small_logits, logits(small)) < 0.1
    assert error(small_logits, logits(plain)) < (0.1 if dtype == "int8" else 0.4)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("family", DENSE)
def test_keys_and_values_have_the_dtype_of_attention(
    tmp_path: Path, family: str, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stock forward pass as in the project's own, whatever this processor multiplies."""
    monkeypatch.setattr(layers, "multiplies_bfloat16", lambda: narrow)
    qwen = load_qwen(tiny_folder(tmp_path / "tiny", family), dtype="int8")
    dtype = torch.bfloat16 if narrow else torch.float32
    part = PromptPart(qwen, 0, 0)
    part.text(qwen.token_ids("two green squares on a grey table"))
    stock, slot = empty_cache(qwen), SlotBlock(qwen, 2).caches[1]
    expected = prefill(qwen, part, stock)
    assert error(prefill_packed(qwen, [PromptToPrefill(part, slot)])[0], expected) < 0.02
    for layer, slot_layer in zip(stock.attention_layers, slot.attention_layers, strict=True):
        assert {layer.keys.dtype, layer.values.dtype, slot_layer.keys.dtype, slot_layer.values.dtype} == {dtype}
        assert error(slot_layer.keys.float(), layer.keys.float()) < 0.02


def test_one_layer_at_a_time_is_there_in_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "tiny", tie_word_embeddings=False)
    stock_init, alive = Int8Linear.__init__, list[int]()
    originals: list[weakref.ref[Any]] = []
    shrink = layers.shrink_weights

    def noted(self: Int8Linear, *arguments: Any, **options: Any) -> None:
        stock_init(self, *arguments, **options)
        alive.append(sum(original() is not None for original in originals))

    def counted(model: nn.Module, *arguments: Any) -> None:
        originals.extend(weakref.ref(part) for part in model.modules() if isinstance(part, nn.Linear))
        shrink(model, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Int8Linear, "__init__", noted)
    monkeypatch.setattr(shrinker, "shrink_weights", counted)
    load_qwen(folder, dtype="int8")
    # the layer before is let go when the next one is taken
    assert alive == list(range(len(originals), 0, -1))


@pytest.mark.parametrize("name", ["model.language_model.embed_tokens", "model.language_model.layers.1.mlp.up_proj"])
@pytest.mark.parametrize("dtype", SMALL_DTYPES)
def test_weights_that_are_no_numbers(tmp_path: Path, dtype: str, name: str) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    weights[f"{name}.weight"][7, 3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"hold NaN or infinity, such as {name}"):
        load_qwen(folder, dtype=dtype)


def test_a_small_model_is_not_saved(tmp_path: Path) -> None:
    model = TrainableQwen.from_pretrained(tiny_folder(tmp_path / "tiny"), dtype="int8")
    with pytest.raises(ModelError, match="a model in int8 cannot be saved"):
        model.save_pretrained(tmp_path / "saved")


def test_layers_that_cannot_be_made_smaller(tmp_path: Path) -> None:
    mixture = tiny_folder(tmp_path / "moe", "qwen3_vl_moe")
    with pytest.raises(ModelError, match="moe is a mixture of experts, whose weights dtype int4 does not quantise"):
        load_qwen(mixture, dtype="int4")
    answer = {"model": str(mixture), "device": "cpu", "dtype": "int4"}
    check = model_fit.model(Config.model_validate({"source": "x.mp4", "answer": answer}))
    assert (check.state, check.found.partition(",")[0]) == ("broken", "moe is a mixture of experts")
    with pytest.raises(ModelError, match="dtype int8 is for a CPU; add --device cpu, or take a model"):
        check_small_dtype("int8", None, "m", experts=0, cuda=True)
    with pytest.raises(ModelError, match="are quantised already, by fp8; leave dtype at auto"):
        check_small_dtype("int8", "fp8", "m", experts=0, cuda=False)
    with pytest.raises(ModelError, match="there are auto, float32, bfloat16, float16, int8, int4"):
        load_qwen(mixture, dtype="int2")


def test_the_estimate_knows_the_sizes(tmp_path: Path) -> None:
    facts = ModelSpec.read(tiny_folder(tmp_path / "tiny"), "tiny")
    single, int8, int4 = (MemoryEstimate.of(facts, dtype, Workload(64, 16)) for dtype in ("float32", *SMALL_DTYPES))
    assert single.weights == 4 * int8.weights
    assert int8.weights // 2 < int4.weights < int8.weights
    assert (single.cache, single.activations) == (int8.cache, int8.activations) == (int4.cache, int4.activations)
    answer = {"model": str(tmp_path / "tiny"), "device": "cpu", "dtype": "int8"}
    config = Config.model_validate({"source": "x.mp4", "answer": answer})
    assert "loading" in model_fit.memory(config, lambda: 10**12).found
    assert model_fit.cards(config).found == "no estimate, because dtype int8 is for a CPU"
