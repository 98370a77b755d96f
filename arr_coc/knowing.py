"""Three ways of knowing: information (what is there), perspective (what stands out), participation (what was asked).

Each scores every tile in [0, 1], absolutely: nothing is normalised by the frame, so a dull frame scores low.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.texture import SALIENCY, TextureArray

CHANNELS = 13
HIDDEN = 32
NARROW = 16

_LEAST, _MOST = 0.005, 0.995
_OPEN_GATE = 5.0  # sigmoid(5) = 0.993


def centre_surround_saliency(channels: torch.Tensor) -> torch.Tensor:
    """The three centre–surround channels of [B, C, gh, gw], added and limited to 1: [B, gh, gw]."""
    return channels[:, SALIENCY].sum(dim=1).clamp(max=1)


class InformationScorer(nn.Module):
    """Propositional knowing: the tile's luma entropy, gated by learnable weights of its channels.

    Untrained the gate stands open. A flat tile scores exactly 0 whatever the weights are.
    """

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.gate = nn.Conv2d(channels, 1, kernel_size=1)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(_bias(self.gate), _OPEN_GATE)

    def forward(self, texture: TextureArray) -> torch.Tensor:
        """Batched texture (channels [B, C, gh, gw], entropy [B, gh, gw]) → [B, gh, gw]."""
        return texture.entropy * torch.sigmoid(self.gate(texture.channels)[:, 0])


class PerspectivalScorer(nn.Module):
    """Perspectival knowing: what stands out, by a convolutional net 13 → 32 → 16 → 1.

    Untrained it reproduces `centre_surround_saliency` within 0.02: sixteen hidden units are the knots of a piecewise
    linear inverse of the sigmoid, the others are free to learn.
    """

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, HIDDEN, kernel_size=3, padding=1, padding_mode="replicate")
        self.narrow = nn.Conv2d(HIDDEN, NARROW, kernel_size=1)
        self.out = nn.Conv2d(NARROW, 1, kernel_size=1)
        with torch.no_grad():
            self._begin_as_saliency()

    def forward(self, texture: TextureArray) -> torch.Tensor:
        """Batched texture → [B, gh, gw]."""
        hidden = F.relu(self.wide(texture.channels))
        return torch.sigmoid(self.out(F.relu(self.narrow(hidden))))[:, 0]

    def _begin_as_saliency(self) -> None:
        heights = torch.cat([torch.linspace(_LEAST, 0.12, 8), torch.linspace(0.2, 0.9, 6), torch.tensor([0.96, _MOST])])
        logits, knots = torch.logit(heights), heights - _LEAST
        knots[-1] = 1.0
        slopes = torch.diff(logits) / torch.diff(knots)
        bends = torch.diff(slopes, prepend=torch.zeros(1), append=torch.zeros(1))
        self.wide.weight[:NARROW].zero_()
        self.wide.weight[:NARROW, SALIENCY, 1, 1] = 1
        _bias(self.wide)[:NARROW] = -knots
        self.narrow.weight.zero_()
        self.narrow.weight[:, :NARROW, 0, 0] = torch.eye(NARROW)
        _bias(self.narrow).zero_()
        self.out.weight[0, :, 0, 0] = bends
        _bias(self.out).fill_(float(logits[0]))


class ParticipatoryScorer(nn.Module):
    """Participatory knowing: what the question asks for.

    The learned part attends from each tile to the question's tokens and pools the attention by a learned mix of
    maximum, mean and sum; it speaks only where `query` is given, which callers do only for the model that it was
    trained for. The fed-back part is what answers taught (attention history and similarity), and needs no training.
    Where neither is known the score is 0 and `trust` is 0, so that balancing leaves it out.
    """

    def __init__(self, channels: int = CHANNELS, query_dim: int = 0, width: int = HIDDEN) -> None:
        super().__init__()
        self.width = width
        self.tile = nn.Conv2d(channels, width, kernel_size=1)
        self.token = nn.Linear(query_dim, width) if query_dim else None
        self.pool = nn.Parameter(torch.zeros(3))
        self.offset = nn.Parameter(torch.zeros(()))
        self.recall = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(
        self, texture: TextureArray, query: torch.Tensor | None = None, prior: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Batched texture, `query` [B, Lq, D] and `prior` [B, 3, gh, gw] (attention and similarity in [0, 1], trust
        in [0, 1]).

        Returns the score [B, gh, gw] and how far to trust it, [B].
        """
        batch, _, rows, cols = texture.channels.shape
        learned = None if query is None or self.token is None else self._learned(texture.channels, query)
        if prior is None:
            if learned is None:
                return texture.channels.new_zeros(batch, rows, cols), texture.channels.new_zeros(batch)
            return learned, torch.ones_like(learned[:, 0, 0])
        recalled, trust = self._recalled(prior)
        if learned is None:
            return recalled, trust.amax(dim=(1, 2))
        return learned + trust * (recalled - learned) / 2, torch.ones_like(learned[:, 0, 0])

    def _learned(self, channels: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        assert self.token is not None
        tiles = self.tile(channels).flatten(2).transpose(1, 2)
        attention = tiles @ self.token(query).transpose(1, 2) / self.width**0.5
        pooled = torch.stack([attention.amax(dim=2), attention.mean(dim=2), attention.sum(dim=2)], dim=-1)
        score = torch.sigmoid(pooled @ self.pool.softmax(dim=0) + self.offset)
        return score.unflatten(1, channels.shape[2:])

    def _recalled(self, prior: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The prior as a score; where little is known, the mean of what is known."""
        trust = prior[:, 2]
        share = self.recall.softmax(dim=0)
        score = share[0] * prior[:, 0] + share[1] * prior[:, 1]
        known = (score * trust).sum(dim=(1, 2), keepdim=True) / trust.sum(dim=(1, 2), keepdim=True).clamp(min=1e-6)
        return known + trust * (score - known), trust


def _bias(layer: nn.Conv2d) -> torch.Tensor:
    assert layer.bias is not None
    return layer.bias
