"""95 % intervals of a mean of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964
"""Standard normal deviate of a two-sided 95 % interval."""

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `count` scores with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int


def estimate(scores: Sequence[float]) -> Estimate:
    """The mean of scores in [0, 1]: Wilson's interval where each is right or wrong, else the bootstrap's.

    Raises ValueError where there are none.
    """
    if not scores:
        raise ValueError("there is no score to take the mean of")
    if all(score in (0.0, 1.0) for score in scores):
        low, high = wilson(sum(scores), len(scores))
    else:
        low, high = bootstrap(scores)
    return Estimate(float(np.mean(scores)), low, high, len(scores))


def wilson(right: float, count: int) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927, J. Am. Stat. Assoc. 22, 209)."""
    share, spread = right / count, Z * Z / count
    middle = share + spread / 2
    reach = Z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, (middle - reach) / (1 + spread)), min(1.0, (middle + reach) / (1 + spread))


def bootstrap(scores: Sequence[float]) -> tuple[float, float]:
    """The percentile interval of the mean over 2000 resamples (Efron 1979, Ann. Stat. 7, 1); the same on every call."""
    values = np.asarray(scores, np.float64)
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
