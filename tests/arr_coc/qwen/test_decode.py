"""Choice of the next token."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.decode import choose
from arr_coc.qwen.options import Decoding

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


@pytest.mark.parametrize(
    "options", [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_values_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        Decoding(**options)  # type: ignore[arg-type]
