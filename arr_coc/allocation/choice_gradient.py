"""Gradient of a choice to the relevance that it was made by, and choices that chance has a part in.

Choosing the best tiles has no gradient. Straight through (Bengio, Léonard & Courville, 2013,
arXiv:1308.3432), each chosen tile carries one to the logarithm of its share in a softmax of relevance over the frame: a
token that helps shall be chosen more surely, at the expense of the others. Only tokens that are shown can prove
themselves. With Gumbel noise on the relevance, tiles are drawn without replacement with these shares as odds
(Gumbel-top-k: Kool, van Hoof & Welling, 2019, arXiv:1903.06059; its temperature as in Jang, Gu & Poole, 2017,
arXiv:1611.01144), so that others have their turn.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from arr_coc.errors import OptionError
from arr_coc.texture.regions import paint
from arr_coc.types import Allocation

ChoiceGradient = Literal["straight-through", "gumbel"]
CHOICE_GRADIENTS: tuple[str, ...] = get_args(ChoiceGradient)

_EDGE = 1e-4


def check_choice_gradient(gradient: str, temperature: float) -> None:
    """Raise OptionError for a gradient that does not exist, and for a temperature that is not above 0."""
    if gradient not in CHOICE_GRADIENTS:
        raise OptionError(f"gradient must be {' or '.join(CHOICE_GRADIENTS)}, got {gradient!r}")
    if not 0 < temperature < float("inf"):
        raise OptionError(f"temperature must be a number above 0, got {temperature!r}")


def logit(relevance: torch.Tensor) -> torch.Tensor:
    """Relevance in [0, 1] as a finite logit, whose gradient vanishes nowhere."""
    return torch.logit(_EDGE + (1 - 2 * _EDGE) * relevance)


def add_gumbel_noise(relevance: torch.Tensor, temperature: float) -> torch.Tensor:
    """Relevance with Gumbel noise on its logits, in [0, 1] again: its best K tiles are a draw without replacement.

    The odds are a softmax of the logits divided by `temperature`. The noise comes from torch's own generator of the
    CPU (`torch.manual_seed`), wherever the map lies. Without a gradient.
    """
    odds = logit(relevance.detach().float())
    noise = -torch.empty(odds.shape).exponential_().log()
    return torch.sigmoid(odds + temperature * noise.to(odds.device))


def token_of_tiles(allocation: Allocation, shape: tuple[int, int]) -> torch.Tensor:
    """Return the token that shows each tile of a batch: int64 [B, gh * gw], K if none does; on the CPU."""
    absent = allocation.mask.shape[1]
    rows = []
    for regions, mask in zip(allocation.regions, allocation.mask, strict=True):
        frame_regions = regions[mask].numpy()
        rows.append(
            torch.from_numpy(paint(frame_regions, torch.arange(len(frame_regions)).numpy(), shape, absent)).flatten()
        )
    return torch.stack(rows)


def log_shares(relevance: torch.Tensor, token_of: torch.Tensor, tokens: int, temperature: float) -> torch.Tensor:
    """Logarithm of each token's share of the frame: the mean over its tiles of a softmax over all of them.

    Args:
        relevance: Float [B, gh, gw] in [0, 1].
        token_of: Token of each tile, int64 [B, gh * gw], as `token_of_tiles` gives it, on the same device.
        tokens: Number of tokens K of the longest frame.
        temperature: Divisor of the logits before the softmax.

    Returns:
        Float [B, K], with a gradient to `relevance`; 0 for a token without a tile.
    """
    shares = (logit(relevance).flatten(1) / temperature).softmax(dim=1)
    total = shares.new_zeros(len(shares), tokens + 1).scatter_add(1, token_of, shares)[:, :tokens]
    tiles = torch.zeros_like(total).scatter_add(1, token_of.clamp(max=tokens - 1), (token_of < tokens).to(total))
    return torch.where(tiles > 0, total / tiles.clamp(min=1), 1).clamp(min=torch.finfo(total.dtype).tiny).log()


def straight_through(values: torch.Tensor) -> torch.Tensor:
    """Zeros of the same shape that pass their gradient on to `values`."""
    return values - values.detach()
