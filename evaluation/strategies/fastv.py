"""FastV: after the second decoder layer, only the visual tokens that it attended to most go on.

Chen et al. 2024, "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
Vision-Language Models" (arXiv:2403.06764), with the paper's K = 2 and the attention of the prompt's last token as
score. The budget is what is left after the cut; encoder and first two layers see everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.strategies.after_encoder import AfterEncoder
from evaluation.strategies.base import Strategy

CUT_AFTER = 2


def schedule(layers: int, tokens: int, budget: int) -> Mapping[int, int]:
    """One cut, after `CUT_AFTER` layers; none in a model that has no more."""
    return {CUT_AFTER: budget} if layers > CUT_AFTER and budget < tokens else {}


FASTV = Strategy("fastv", AfterEncoder(schedule=schedule), encodes=("prune",))
