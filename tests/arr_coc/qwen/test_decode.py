"""Choice of tokens, and one step of the decoder."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen import decode
from arr_coc.qwen.batching.step import DecodeRow, DecodeStep
from arr_coc.qwen.cache import SlotBlock, empty_cache
from arr_coc.qwen.decode import PromptPart, choose, decode_one_token, linear_rows, prefill
from arr_coc.qwen.options import Decoding
from tests.support.models import FAMILIES, tiny_qwen

LOGITS = torch.tensor([0.0, 3.0, 2.0, -1.0])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_temperature_zero_takes_the_likeliest() -> None:
    assert choose(LOGITS, Decoding(), None) == 1


def test_a_small_nucleus_holds_the_likeliest_alone() -> None:
    options = Decoding(temperature=2.0, top_p=0.01)
    assert {int(choose(LOGITS, options, seeded(seed))) for seed in range(20)} == {1}


def test_a_nucleus_ends_once_its_mass_is_reached() -> None:
    """Probabilities 0.70, 0.26, 0.03, 0.01: of 0.9 the first two."""
    options = Decoding(temperature=1.0, top_p=0.9)
    assert {int(choose(LOGITS, options, seeded(seed))) for seed in range(60)} == {1, 2}


def test_sampling_follows_the_probabilities() -> None:
    generator, options = seeded(0), Decoding(temperature=1.0)
    shares = torch.stack([choose(LOGITS, options, generator) for _ in range(2000)]).bincount(minlength=4) / 2000
    torch.testing.assert_close(shares, torch.softmax(LOGITS, 0), atol=0.03, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@torch.inference_mode()
def test_a_step_gives_the_logits_of_the_stock_model(family: str, dtype: torch.dtype, tolerance: float) -> None:
    """A bfloat16 matrix times a vector is summed in float32, so products differ in the last bit at most."""
    qwen = tiny_qwen(family)
    qwen.model.to(dtype)
    block = SlotBlock(qwen, 2)
    part, stock = PromptPart(qwen, 0, 0), empty_cache(qwen)
    part.text(qwen.token_ids("Say what happens."))
    prefill(qwen, part, stock)
    prefill(qwen, part, block.caches[1])
    step, row = DecodeStep(qwen, block), DecodeRow(1, part.tokens, part.position, 70)
    for index in range(70 if dtype is torch.float32 else 8):
        row.token = 20 + index
        expected = decode_one_token(qwen, torch.tensor(row.token), part.position + index, stock.kv)
        torch.testing.assert_close(step([row])[0], expected, atol=tolerance, rtol=tolerance)
        assert (row.cached_tokens, row.remaining) == (part.tokens + index + 1, 69 - index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("amx", [True, False])
@torch.inference_mode()
def test_a_product_of_one_row_is_the_linear_layers(
    amx: bool, dtype: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "has_amx", lambda: amx)
    torch.manual_seed(0)
    linear, row = torch.nn.Linear(96, 80, bias=bias).to(dtype), torch.randn(1, 96).to(dtype)
    exact = row.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    torch.testing.assert_close(linear_rows(linear, row).double(), exact, atol=1e-3, rtol=2**-7)


@torch.inference_mode()
def test_a_changed_linear_layer_is_called() -> None:
    """An adapter's output is not the product with its weight."""

    class Doubled(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(rows)

    linear = Doubled(8, 4, bias=False).bfloat16()
    row = torch.ones(1, 8).bfloat16()
    assert torch.equal(linear_rows(linear, row), linear(row))


@pytest.mark.parametrize(
    "options", [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_values_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        Decoding(**options)  # type: ignore[arg-type]
