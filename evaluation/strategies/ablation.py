"""Ablations of this project's way: of its scores, of their balance, and of the adaptive budget.

The scorers stay as they are, trained or not.

| name | differs from `arr-coc`, or `arr-coc-glance`, in |
| --- | --- |
| `-only-SCORE`, `-without-SCORE` | the balancer's weight of an omitted score is 0 |
| `-fixed-mean` | each weight is the mean of what the balancer gives for other pictures and questions |
| `-fixed-equal` | all weights are 1 |
| `-adaptive` | the budget follows the spread of relevance, as the budget `adaptive` |
| `-amplified` | the same, and scores that agree raise each other: 1 − ∏(1 − weight · score) in place of their mean |
| `-scaled` | the same with the sum of weight · score, up to 1; the budget is in proportion to its strongest tile, too |

A participatory score without a question or feedback counts nowhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from arr_coc.allocation.glance import GlanceOptions
from arr_coc.budget import relevance_spread
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import AdaptiveTensionBalancer, RelevanceRealiser
from arr_coc.types import SCORES
from evaluation.other_questions import other_questions
from evaluation.strategies.arr_coc import ARR_COC, ARR_COC_GLANCE, allocator_for
from evaluation.strategies.base import Ask, Budget, Reply, Strategy, stamps_of
from evaluation.strategies.session import EvalSession

OTHER_CLIPS = 48
"""Number of other clips that constants of an ablation are taken from."""

LEAST_SHARE = 0.5
"""Least share of a budget that a picture gets if it adapts."""

Map = npt.NDArray[np.float32]


class AblatedBalancer(nn.Module):
    """A balancer of which only the weights of the scores in `mask` (bool [3]) count."""

    balancer: AdaptiveTensionBalancer
    mask: torch.Tensor

    def __init__(self, balancer: AdaptiveTensionBalancer, mask: torch.Tensor) -> None:
        super().__init__()
        self.balancer = balancer
        self.register_buffer("mask", mask.float())

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        """Arguments and result as `AdaptiveTensionBalancer`: weights [B, 3]."""
        weights = self.balancer(scores, trust, query) * self.mask
        unweighted = weights.sum(dim=1, keepdim=True) <= 0
        return torch.where(unweighted, self.mask.expand_as(weights), weights)


class FixedBalancer(nn.Module):
    """A balancer whose weights (float32 [3]) are the same for every picture and question."""

    weights: torch.Tensor

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        """Arguments and result as `AdaptiveTensionBalancer`: weights [B, 3]; participation's is 0 without trust."""
        mask = torch.stack([torch.ones_like(trust), torch.ones_like(trust), (trust > 0).float()], dim=1)
        return self.weights * mask


class NotingBalancer(nn.Module):
    """A balancer whose weights [B, 3] and trust [B] are kept in `records`."""

    def __init__(self, balancer: AdaptiveTensionBalancer) -> None:
        super().__init__()
        self.balancer = balancer
        self.records: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        """Arguments and result as `AdaptiveTensionBalancer`: weights [B, 3]."""
        weights: torch.Tensor = self.balancer(scores, trust, query)
        self.records.append((weights, trust))
        return weights

    def mean(self) -> torch.Tensor:
        """Mean weights float32 [3] of all pictures, or of those with participation if there are any."""
        weights, trust = (torch.cat(parts) for parts in zip(*self.records, strict=True))
        has_trust = trust > 0
        return weights[has_trust if has_trust.any() else ~has_trust].mean(dim=0)


class AmplifiedRealiser(RelevanceRealiser):
    """Relevance to which each score adds, whatever the others are: 1 − ∏(1 − weight · score)."""

    def balance(self, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return 1 - (1 - scores * weights[:, :, None, None]).prod(dim=1)


class ScaledRealiser(RelevanceRealiser):
    """Sum of the scores by their weights, which is not divided by these: up to 1."""

    def balance(self, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bshw,bs->bhw", scores, weights).clamp(max=1)


def _own_layer(qwen: QwenVL) -> ARRCOCLayer:
    return copy.deepcopy(qwen.allocator) if qwen.allocator is not None else ARRCOCLayer().eval()


def ablate_scores(qwen: QwenVL, score_names: tuple[str, ...]) -> QwenVL:
    """The same model, with an allocator whose relevance comes from the scores in `score_names` alone."""
    layer = _own_layer(qwen)
    mask = torch.tensor([score in score_names for score in SCORES])
    layer.realiser.balancer = AblatedBalancer(layer.realiser.balancer, mask)  # type: ignore[assignment]
    return replace(qwen, allocator=layer)


def fix_weights(qwen: QwenVL, weights: torch.Tensor) -> QwenVL:
    """The same model, with an allocator of constant weights float32 [3]."""
    layer = _own_layer(qwen)
    layer.realiser.balancer = FixedBalancer(weights)  # type: ignore[assignment]
    return replace(qwen, allocator=layer)


def replace_realiser(qwen: QwenVL, kind: type[RelevanceRealiser]) -> QwenVL:
    """The same model, with an allocator that combines its scores in another way."""
    layer = _own_layer(qwen)
    config = layer.config
    realiser = kind(config.query_dim, config.trained_for, config.scorer, config.channels)
    realiser.load_state_dict(layer.realiser.state_dict())
    realiser.trained_for = layer.realiser.trained_for
    layer.realiser = realiser.eval()
    return replace(qwen, allocator=layer)


def other_asks(ask: Ask) -> Iterator[Ask]:
    """Questions about other single pictures, at the budget and encoding of `ask`."""
    for other in other_questions(OTHER_CLIPS):
        yield replace(ask, frames=other.frames[:1], times_s=other.times_s[:1], text=other.text, before=())


@dataclass(frozen=True)
class OncePerModel:
    """Constants of an ablation, made once for each model, allocator and budget."""

    make: Callable[[QwenVL, Ask], torch.Tensor]
    cache: list[tuple[QwenVL, Budget, torch.Tensor]] = field(default_factory=list)

    def of(self, qwen: QwenVL, ask: Ask) -> torch.Tensor:
        """The constants for a model at the budget of `ask`."""
        for cached_qwen, budget, constants in self.cache:
            if cached_qwen.model is qwen.model and cached_qwen.allocator is qwen.allocator and budget == ask.budget:
                return constants
        self.cache.append((qwen, ask.budget, self.make(qwen, ask)))
        return self.cache[-1][2]


def mean_weights(qwen: QwenVL, asks: Iterable[Ask], glances: bool) -> torch.Tensor:
    """Mean weights float32 [3] that the balancer gives for the pictures and questions of `asks`."""
    layer = _own_layer(qwen)
    noting = NotingBalancer(layer.realiser.balancer)
    layer.realiser.balancer = noting  # type: ignore[assignment]
    for ask in asks:
        newest_relevance(replace(qwen, allocator=layer), ask, glances)
    return noting.mean()


def newest_relevance(qwen: QwenVL, ask: Ask, glances: bool) -> Map:
    """Relevance float32 [gh, gw] of the newest frame, after a glance at each if `glances`."""
    views = ask.views(qwen)
    allocator = allocator_for(qwen, ask, views, glance=GlanceOptions() if glances else None)
    glancer = EvalSession(qwen, ask).glancer(timed=len(views) > 1)
    packets: list[Packet] = []
    for frame, stamp in zip(ask.frames, stamps_of(ask.times_s), strict=True):
        packets.append(allocator.allocate(frame, stamp, glancer.after(packets) if glances else None))
    return allocator.relevance


def _strategy(name: str, score_names: tuple[str, ...], base: Strategy) -> Strategy:
    def answer(qwen: QwenVL, ask: Ask) -> Reply:
        return base.answer(ablate_scores(qwen, score_names), ask)

    return Strategy(f"{base.name}-{name}", answer, encodes=base.encodes)


def _scores(base: Strategy) -> list[Strategy]:
    singles = [_strategy(f"only-{score}", (score,), base) for score in SCORES]
    leave_one_out = [_strategy(f"without-{score}", tuple(o for o in SCORES if o != score), base) for score in SCORES]
    return [*singles, *leave_one_out]


def _balances(base: Strategy) -> list[Strategy]:
    mean = OncePerModel(lambda qwen, ask: mean_weights(qwen, other_asks(ask), base is ARR_COC_GLANCE))

    def answer_mean(qwen: QwenVL, ask: Ask) -> Reply:
        return base.answer(fix_weights(qwen, mean.of(qwen, ask)), ask)

    def answer_equal(qwen: QwenVL, ask: Ask) -> Reply:
        return base.answer(fix_weights(qwen, torch.ones(len(SCORES))), ask)

    return [
        Strategy(f"{base.name}-fixed-mean", answer_mean, encodes=base.encodes),
        Strategy(f"{base.name}-fixed-equal", answer_equal, encodes=base.encodes),
    ]


def _spread(relevance: Map) -> float:
    return relevance_spread(torch.from_numpy(relevance))


def _spread_and_strength(relevance: Map) -> float:
    return _spread(relevance) * float(relevance.max())


def _adaptive(
    name: str, base: Strategy, kind: type[RelevanceRealiser], worth: Callable[[Map], float] = _spread
) -> Strategy:
    """Strategy whose budget of a picture is half of the usual, and the rest in proportion to the `worth` of its
    relevance: over other pictures, the mean is the usual budget."""

    def mean_worth(qwen: QwenVL, ask: Ask) -> torch.Tensor:
        of = replace_realiser(qwen, kind)
        return torch.tensor([worth(newest_relevance(of, other, glances)) for other in other_asks(ask)]).mean()

    glances = base is ARR_COC_GLANCE
    usual = OncePerModel(mean_worth)

    def answer(qwen: QwenVL, ask: Ask) -> Reply:
        of = replace_realiser(qwen, kind)
        factor = worth(newest_relevance(of, ask, glances)) / float(usual.of(qwen, ask))
        tiles = ask.views(qwen)[-1].grid.tiles
        tokens = round(ask.budget.of(tiles) * (LEAST_SHARE + (1 - LEAST_SHARE) * factor))
        return base.answer(of, replace(ask, budget=Budget(tokens=max(1, tokens))))

    return Strategy(f"{base.name}-{name}", answer, encodes=base.encodes)


def _budgets(base: Strategy) -> list[Strategy]:
    return [
        _adaptive("adaptive", base, RelevanceRealiser),
        _adaptive("amplified", base, AmplifiedRealiser),
        _adaptive("scaled", base, ScaledRealiser, _spread_and_strength),
    ]


ABLATIONS: dict[str, Strategy] = {
    strategy.name: strategy
    for base in (ARR_COC, ARR_COC_GLANCE)
    for strategy in (*_scores(base), *_balances(base), *_budgets(base))
}
"""The strategies by name; asked for by name only."""
