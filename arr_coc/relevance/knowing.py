"""Information, perspectival and participatory scorers.

Each scores every tile in [0, 1], absolutely: nothing is normalised by the frame, so a dull frame scores low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.errors import OptionError
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.history import HISTORY
from arr_coc.relevance.profiles import CORE, FULL_SALIENCY, SALIENCY

HIDDEN = 32
NARROW = 16

_LEAST = 0.005
_MOST = 0.995
_OPEN_GATE = 5.0  # sigmoid(5) = 0.993
_WORD_WIDTH = 64
_HEADS = 4
_CROSS_HEADS = 16
_CROSS_WIDTH = 13
_NO_WORD = -1e9
_TINY = 1e-8
FAINT = 1e-3  # what was hardly looked at is no proof

WEAK_SALIENCY = 0.3
"""If the strongest saliency of a frame is below this, saliency is weak evidence, and information counts instead."""

DOUBT = 1e-3
"""Before what answers taught moves it, a relevance is held this far from 0 and 1."""

ALONE = 2.5
"""Factor of trust in a look that is the only guide; the product never exceeds the trust in an answer at first."""


def saliency_channels(channels: int) -> slice:
    """Return the centre–surround channels of a profile of `channels` channels: three, or their sum."""
    return SALIENCY if channels == CORE else FULL_SALIENCY


def centre_surround_saliency(channels: torch.Tensor) -> torch.Tensor:
    """Return the centre–surround channels of [B, C, gh, gw], added and limited to 1: [B, gh, gw]."""
    return channels[:, saliency_channels(channels.shape[1])].sum(dim=1).clamp(max=1)


def silence_history(layer: nn.Conv2d) -> None:
    """Set the weights of the channels of the past to 0: one that training never showed then says nothing."""
    if layer.in_channels > CORE + 1:
        with torch.no_grad():
            layer.weight[:, list(HISTORY)] = 0


class InformationScorer(nn.Module):
    """Propositional knowing: the tile's luma entropy, gated by learnable weights of its channels.

    Untrained the gate stands open. A flat tile scores exactly 0 whatever the weights are.
    """

    def __init__(self, channels: int = CORE) -> None:
        super().__init__()
        self.gate = nn.Conv2d(channels, 1, kernel_size=1)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(_bias(self.gate), _OPEN_GATE)

    def forward(self, texture: TextureArray) -> torch.Tensor:
        """Batched texture (channels [B, C, gh, gw], entropy [B, gh, gw]) → [B, gh, gw]."""
        return texture.entropy * torch.sigmoid(self.gate(texture.channels)[:, 0])


class PerspectivalScorer(nn.Module):
    """Perspectival knowing: what stands out, by a convolutional net C → 32 → 16 → 1.

    Untrained it reproduces `centre_surround_saliency` within 0.02: sixteen hidden units are the knots of a piecewise
    linear inverse of the sigmoid, the others are free to learn.
    """

    def __init__(self, channels: int = CORE) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, HIDDEN, kernel_size=3, padding=1, padding_mode="replicate")
        self.narrow = nn.Conv2d(HIDDEN, NARROW, kernel_size=1)
        self.out = nn.Conv2d(NARROW, 1, kernel_size=1)
        silence_history(self.wide)
        with torch.no_grad():
            self._begin_as_saliency()

    def forward(self, texture: TextureArray) -> torch.Tensor:
        """Batched texture → [B, gh, gw]."""
        hidden = F.relu_(self.wide(texture.channels))
        return torch.sigmoid(self.out(F.relu_(self.narrow(hidden))))[:, 0]

    def _begin_as_saliency(self) -> None:
        heights = torch.cat([torch.linspace(_LEAST, 0.12, 8), torch.linspace(0.2, 0.9, 6), torch.tensor([0.96, _MOST])])
        logits = torch.logit(heights)
        knots = heights - _LEAST
        knots[-1] = 1.0
        slopes = torch.diff(logits) / torch.diff(knots)
        bends = torch.diff(slopes, prepend=torch.zeros(1), append=torch.zeros(1))
        self.wide.weight[:NARROW].zero_()
        self.wide.weight[:NARROW, saliency_channels(self.wide.in_channels), 1, 1] = 1
        _bias(self.wide)[:NARROW] = -knots
        self.narrow.weight.zero_()
        self.narrow.weight[:, :NARROW, 0, 0] = torch.eye(NARROW)
        _bias(self.narrow).zero_()
        self.out.weight[0, :, 0, 0] = bends
        _bias(self.out).fill_(float(logits[0]))


class QueryEncoder(nn.Module):
    """A question's token embeddings [B, Lq, D] → what it asks for, [B, heads · 64].

    Each word is read with its two neighbours, and each head attends to the words that matter to it. Rows of zeros pad
    shorter questions of a batch and are not attended to; a question without words is one such row.
    """

    def __init__(self, query_dim: int) -> None:
        super().__init__()
        self.words = nn.Conv1d(query_dim, _WORD_WIDTH, kernel_size=3, padding=1)
        self.heads = nn.Conv1d(_WORD_WIDTH, _HEADS, kernel_size=1)

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        if not query.shape[1]:
            query = query.new_zeros(len(query), 1, query.shape[2])
        # models differ in how large their embeddings are
        embeddings = F.layer_norm(query, query.shape[2:], eps=_TINY)
        words = F.relu(self.words(embeddings.transpose(1, 2)))
        padding = ~query.any(dim=2)[:, None]
        attention = self.heads(words).masked_fill(padding, torch.finfo(words.dtype).min).softmax(dim=2)
        return (attention @ words.transpose(1, 2)).flatten(1)


@dataclass(frozen=True, slots=True)
class FilmWeights:
    """Weights of one layer as the questions set them: its weight [B, W, W] and bias [B, W, 1]."""

    weight: torch.Tensor
    bias: torch.Tensor


class QueryAttention(nn.Module):
    """Learned relevance of each tile to a question: [B, gh, gw] in [0, 1].

    Features of a tile among its eight neighbours are scaled and shifted by what the question says (FiLM: Perez et
    al., 2018, arXiv:1709.07871), so that "red" brings out red tiles and "word" those with strokes; then each tile is
    seen among its neighbours again, because things are larger than tiles.
    """

    def __init__(self, query_dim: int, channels: int = CORE, width: int = HIDDEN) -> None:
        super().__init__()
        self.question = QueryEncoder(query_dim)
        self.near = nn.Conv2d(channels + 1, width, kernel_size=3, padding=1, padding_mode="replicate")
        silence_history(self.near)
        self.tile = nn.Conv1d(width, width, kernel_size=1)
        self.wide = nn.Linear(_HEADS * _WORD_WIDTH, 2 * width)
        self.film = nn.Linear(2 * width, 2 * width)
        half = width // 2
        self.narrow = nn.Conv1d(width, half, kernel_size=1)
        self.around = nn.Conv2d(half, half, kernel_size=3, padding=1, padding_mode="replicate", groups=half)
        self.out = nn.Conv2d(half, 1, kernel_size=1)

    def encode_query(self, query: torch.Tensor) -> FilmWeights:
        """Return the weights that the question [B, Lq, D] gives to the layer that follows."""
        scale, shift = self.film(F.relu(self.wide(self.question(query))))[..., None].chunk(2, dim=1)
        scale = 1 + scale
        # scaling the layer's weights costs less than scaling what it gives for every tile
        return FilmWeights(self.tile.weight[..., 0] * scale, _bias(self.tile)[:, None] * scale + shift)

    def forward(self, texture: TextureArray, query_weights: FilmWeights) -> torch.Tensor:
        inputs = torch.cat([texture.channels, texture.entropy[:, None]], dim=1)
        hidden = F.relu_(self.near(inputs)).flatten(2)
        hidden = torch.baddbmm(query_weights.bias, query_weights.weight, hidden)
        features = F.relu_(self.narrow(F.relu_(hidden))).unflatten(2, texture.entropy.shape[1:])
        return torch.sigmoid(self.out(F.relu_(self.around(features) + features)))[:, 0]


@dataclass(frozen=True, slots=True)
class WordKeys:
    """A question's words as tiles are compared with them.

    `keys` [B, heads · Lq, W] and `bias` [B, heads · Lq, 1] for each word; `mixed_keys` [B, heads, W] and `mixed_bias`
    [B, heads, 1] for their mean and sum, which are comparisons with one vector each.
    """

    keys: torch.Tensor
    bias: torch.Tensor
    mixed_keys: torch.Tensor
    mixed_bias: torch.Tensor


class QueryCrossAttention(nn.Module):
    """Learned relevance of each tile to a question: [B, gh, gw] in [0, 1].

    Features of a tile among its eight neighbours are compared with each word of the question, by several heads (scaled
    dot products: Vaswani et al., 2017, arXiv:1706.03762). A head's likenesses to the words are pooled by a learned mix
    of their maximum, mean and sum; what the heads found scales and shifts the tile's features, and each tile is seen
    among its neighbours again.
    """

    def __init__(self, query_dim: int, channels: int = CORE, width: int = HIDDEN) -> None:
        super().__init__()
        self.words = nn.Conv1d(query_dim, _WORD_WIDTH, kernel_size=3, padding=1)
        self.key = nn.Linear(_WORD_WIDTH, _CROSS_HEADS * _CROSS_WIDTH)
        self.near = nn.Conv2d(channels + 1, width, kernel_size=3, padding=1, padding_mode="replicate")
        silence_history(self.near)
        self.query = nn.Linear(width, _CROSS_HEADS * _CROSS_WIDTH)
        self.pooling = nn.Parameter(torch.zeros(_CROSS_HEADS, 3))
        self.gate = nn.Conv1d(_CROSS_HEADS, 2 * width, kernel_size=1)
        half = width // 2
        self.narrow = nn.Conv1d(width, half, kernel_size=1)
        self.around = nn.Conv2d(half, half, kernel_size=3, padding=1, padding_mode="replicate", groups=half)
        self.out = nn.Conv2d(half, 1, kernel_size=1)

    def encode_query(self, query: torch.Tensor) -> WordKeys:
        """Return the words of the question [B, Lq, D], each ready to be compared with tiles."""
        if not query.shape[1]:
            query = query.new_zeros(len(query), 1, query.shape[2])
        embeddings = F.layer_norm(query, query.shape[2:], eps=_TINY)
        words = F.relu(self.words(embeddings.transpose(1, 2))).transpose(1, 2)
        keys = self.key(words).unflatten(2, (_CROSS_HEADS, _CROSS_WIDTH)).transpose(1, 2) * _CROSS_WIDTH**-0.5
        # the tiles' projection is folded into the keys: a question's words are fewer than a frame's tiles
        bias = torch.einsum("bhld,hd->bhl", keys, self.query.bias.unflatten(0, (_CROSS_HEADS, _CROSS_WIDTH)))[..., None]
        keys = keys @ self.query.weight.unflatten(0, (_CROSS_HEADS, _CROSS_WIDTH))
        present = query.any(dim=2)
        present[:, 0] |= ~present.any(dim=1)  # a question without words is one word of zeros
        present = present[:, None, :, None]
        _, mean, total = self.pooling.softmax(dim=1)[:, :, None, None].unbind(dim=1)
        mix = present * (mean / present.sum(dim=2, keepdim=True) + total)
        return WordKeys(
            keys.flatten(1, 2),
            bias.masked_fill(~present, _NO_WORD).flatten(1, 2),
            (keys * mix).sum(dim=2),
            (bias * mix).sum(dim=2),
        )

    def forward(self, texture: TextureArray, query_weights: WordKeys) -> torch.Tensor:
        inputs = torch.cat([texture.channels, texture.entropy[:, None]], dim=1)
        hidden = F.relu_(self.near(inputs)).flatten(2)
        scale, shift = self.gate(self.likeness(hidden, query_weights)).chunk(2, dim=1)
        features = F.relu(self.narrow(F.relu(hidden * (1 + scale) + shift)))
        features = features.unflatten(2, texture.entropy.shape[1:])
        return torch.sigmoid(self.out(F.relu(self.around(features) + features)))[:, 0]

    def likeness(self, hidden: torch.Tensor, words: WordKeys) -> torch.Tensor:
        """Return the tiles [B, W, tiles] compared with words, pooled: [B, heads, tiles]."""
        scores = torch.baddbmm(words.bias, words.keys, hidden).unflatten(1, (_CROSS_HEADS, -1))
        largest = self.pooling.softmax(dim=1)[:, :1] * scores.amax(dim=2)
        return largest + torch.baddbmm(words.mixed_bias, words.mixed_keys, hidden)


QueryScorer: TypeAlias = Literal["film", "cross"]
"""Learned part of participation: `QueryAttention` or `QueryCrossAttention`."""

DEFAULT_SCORER: QueryScorer = "cross"
"""It finds more in equal steps with as many weights (`training/results/adapt.json`)."""

QueryWeights: TypeAlias = FilmWeights | WordKeys
"""A question as either of them takes it."""

_SCORERS: dict[str, Callable[[int, int], QueryAttention | QueryCrossAttention]] = {
    "film": QueryAttention,
    "cross": QueryCrossAttention,
}


class ParticipatoryScorer(nn.Module):
    """Participatory knowing: what the question asks for.

    The learned part, `QueryAttention` or `QueryCrossAttention`, counts only if `query` is given, which callers do
    only for the model that it was trained for. The fed-back part is the feedback of answers (attention history and
    similarity), and needs no training. If neither is known the score is 0 and `trust` is 0, so that balancing leaves
    it out. Feedback is the score if nothing is learned; in any case it is `evidence` about the relevance
    that comes of all scores.
    """

    def __init__(self, channels: int = CORE, query_dim: int = 0, scorer: str = DEFAULT_SCORER) -> None:
        """Raise OptionError for a scorer that there is not."""
        super().__init__()
        if scorer not in _SCORERS:
            raise OptionError(f"unknown query scorer {scorer!r}; there are {', '.join(_SCORERS)}")
        self.asked = _SCORERS[scorer](query_dim, channels) if query_dim else None
        self.recall = nn.Parameter(torch.tensor([1.0, 0.0]))

    def encode_query(self, query: torch.Tensor | None) -> QueryWeights | None:
        """Return the weights that a question gives to the learned part, if there are both."""
        if query is None or self.asked is None:
            return None
        if query.ndim == 2:
            query = query[:, None]
        return self.asked.encode_query(query)

    def forward(
        self,
        texture: TextureArray,
        query: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
        query_weights: QueryWeights | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score batched pictures.

        Args:
            texture: Channels of the pictures [B, C, gh, gw].
            query: Embeddings of the question, [B, Lq, D], padded by rows of zeros, or pooled, [B, D]; None without one.
            prior: Attention, as its square root, similarity and trust, [B, 3, gh, gw] in [0, 1]; None before the first
                answer.
            query_weights: Result of `encode_query(query)`, if known.

        Returns:
            The score [B, gh, gw] and the trust in it [B], both in [0, 1].
        """
        batch, _, rows, cols = texture.channels.shape
        query_weights = query_weights or self.encode_query(query)
        if query_weights is not None and self.asked is not None:
            learned_score: torch.Tensor = self.asked(texture, query_weights)
            return learned_score, torch.ones_like(learned_score[:, 0, 0])
        if prior is None:
            return texture.channels.new_zeros(batch, rows, cols), texture.channels.new_zeros(batch)
        score, usual, trust = self._recall(prior)
        return usual + trust * (score - usual), trust.amax(dim=(1, 2))

    def evidence(self, prior: torch.Tensor, doubt: torch.Tensor | None = None) -> torch.Tensor:
        """Return the feedback as log odds [B, gh, gw]: how many times the usual attention it is, as far as it is
        trusted.

        0 on tiles looked at as usual, and if nothing is known of a tile. `doubt` [B], in [0, 1], is how far what
        stands out is no guide: attention, which then is the only one, is trusted more.
        """
        score, usual, trust = self._recall(prior)
        if doubt is not None:
            trust = torch.lerp(trust, (ALONE * trust).clamp(max=1), doubt[:, None, None])
        return 2 * trust * torch.log((score + FAINT) / (usual + FAINT))  # twice, for a prior holds square roots

    def _recall(self, prior: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a prior's score and trust [B, gh, gw], and the usual score: the mean [B, 1, 1] of the known ones."""
        trust = prior[:, 2]
        share = self.recall.softmax(dim=0)
        score = share[0] * prior[:, 0] + share[1] * prior[:, 1]
        total_trust = trust.sum(dim=(1, 2), keepdim=True).clamp(min=1e-6)
        return score, (score * trust).sum(dim=(1, 2), keepdim=True) / total_trust, trust


def _bias(layer: nn.Conv1d | nn.Conv2d) -> torch.Tensor:
    assert layer.bias is not None
    return layer.bias
