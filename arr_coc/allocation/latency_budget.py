"""Budget controller that holds p95 of time to first token."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from arr_coc.budget import DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits, fixed_tokens
from arr_coc.errors import BudgetError

Verdict = Literal["missed", "met"]

AIM = 0.93
"""A budget is chosen so that p95 comes to this share of the target: noise of the estimate is about as much."""

LOW = 0.82
"""Below this share of the target the budget is raised; between it and the target, nothing moves."""

SETTLING = 8
EARLY_LOW = 0.88
EARLY_HIGH = 0.97
"""For the first answers under a load the band is narrower: what is nearly right then would be put right late."""

ANSWERS = 30
"""Answers that the line is fitted to, at most."""

STREAK = 3
"""Answers observed before the budget moves; this many in a row beyond the usual mean another load."""

NARROW = 0.12
WIDE = 2.0
"""Beyond the usual is what is off by more than NARROW, and by more than WIDE deviations."""

LEAST_DEVIATION = 0.02
"""Clocks and schedulers scatter that much by themselves."""

STEP = 2.0
"""A budget at most doubles or halves between two answers."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Milliseconds to the first token: `base_ms + per_token_ms` x tokens, for the answer in the middle."""

    base_ms: float
    per_token_ms: float

    def at(self, tokens: float) -> float:
        return self.base_ms + self.per_token_ms * tokens

    def tokens_for(self, ttft_ms: float) -> float:
        """Return the tokens that take `ttft_ms`; infinitely many, of either sign, if tokens cost nothing."""
        left = ttft_ms - self.base_ms
        if self.per_token_ms > 0:
            return left / self.per_token_ms
        return math.copysign(math.inf, left)


class BudgetController:
    """Controller of the budget, from each answer's time to its first token and the tokens it was shown.

    A self-tuning regulator (Åström and Wittenmark, Adaptive Control, chapter 3): a model of the plant is fitted to
    what has been seen, and the budget is what would bring the model to its aim. The model is a line, ttft = a + b·K, by
    least squares with Huber's weights (Huber, Robust Estimation of a Location Parameter, 1964), drawn towards the slope
    known before, because steady budgets do not reveal it. p95 lies above the line by the 95th percentile of recent
    ratios of an answer's time to what the line predicted. Because the tokens of each answer are given, answers
    in flight when the budget moved do not bias the fit.

    Three answers in a row beyond the usual are another load: those before them are forgotten, and the slope is scaled
    as the times are. One that is alone is an outlier. No clock, no I/O; the same answers give the same budgets.
    """

    def __init__(self, target_ms: float, start: Budget = DEFAULT_BUDGET, limits: TokenLimits = DEFAULT_LIMITS) -> None:
        """`start` is the first budget, a number or a share, brought within `limits` as all that follow.

        Raises BudgetError for an invalid target or start.
        """
        if not (math.isfinite(target_ms) and target_ms > 0):
            raise BudgetError(f"a latency target is a number of milliseconds above 0; got {target_ms!r}")
        self.target_ms = target_ms
        fixed_tokens(start, tiles=1)
        self._start = start
        self.limits = limits
        self._budget: int | None = None
        self._samples: deque[tuple[int, float]] = deque(maxlen=ANSWERS)
        # ratios whose tail is p95: three of sixty answers lie above it
        self._ratios: deque[float] = deque(maxlen=60)
        self._line: LatencyModel | None = None
        self._known_slope = 0.0
        self._streak = 0
        self._at_least = 0
        self._target_missed = False

    def budget_for(self, tiles: int) -> int:
        """Tokens for the next frame of `tiles` tiles: within the limits, and never more than there are tiles."""
        if self._budget is None:
            budget = fixed_tokens(self._start, tiles, self.limits)
        else:
            budget = self._budget
        return self.limits.bound(budget, tiles)

    def p95_ms(self, tokens: int) -> float | None:
        """Return the estimated p95 for `tokens` tokens; None before the first answer."""
        if self._line is None:
            return None
        return self._line.at(tokens) * self._above()

    def observe(self, ttft_ms: float, tokens: int, tiles: int) -> Verdict | None:
        """Take in an answer.

        Args:
            ttft_ms: Its time to the first token. An invalid one, as between two clocks that differ, is left out.
            tokens: Tokens of its frame.
            tiles: Tiles of its frame.

        Returns:
            "missed" if the target cannot be met even with the fewest tokens, "met" if it can again; each once, else
            None.
        """
        if not (math.isfinite(ttft_ms) and ttft_ms > 0):
            return None
        least = min(self.limits.min_tokens, tiles)
        most = min(self.limits.max_tokens, tiles)
        self._learn(ttft_ms, tokens)
        if len(self._samples) >= STREAK:
            self._steer(least, most, self.budget_for(tiles))
        self._at_least = self._at_least + 1 if tokens <= least else 0
        return self._verdict(least)

    def _learn(self, ttft_ms: float, tokens: int) -> None:
        if self._line is None:
            # share of the time to the first token that grows with tokens, until answers show it
            self._known_slope = 0.7 * ttft_ms / tokens
        else:
            self._detect_load_change(ttft_ms / self._line.at(tokens))
        self._samples.append((tokens, ttft_ms))
        if abs(self._streak) >= STREAK:
            # start over under another load: earlier answers count only for the scatter
            assert self._line is not None
            before = self._line
            recent = list(self._samples)[-STREAK:]
            for _ in range(min(STREAK, len(self._ratios))):
                self._ratios.pop()
            self._known_slope = before.per_token_ms * float(np.median([ms / before.at(k) for k, ms in recent]))
            self._samples = deque(recent, maxlen=ANSWERS)
            self._streak = 0
        self._line = _fit(self._samples, self._known_slope)
        # by this share the known slope moves with each answer towards the one that is seen
        self._known_slope += 0.1 * (self._line.per_token_ms - self._known_slope)

    def _detect_load_change(self, ratio: float) -> None:
        usual = np.array(self._ratios or [1.0])
        side = 0
        if abs(ratio - 1) > max(NARROW, WIDE * _deviation(usual)):
            side = 1 if ratio > 1 else -1
        if self._streak * side > 0:
            self._streak = self._streak + side
        else:
            self._streak = side
        self._ratios.append(ratio)

    def _steer(self, least: int, most: int, current_tokens: int) -> None:
        assert self._line is not None
        above = self._above()
        p95 = self._line.at(current_tokens) * above
        low, high = (LOW, 1.0) if len(self._samples) > SETTLING else (EARLY_LOW, EARLY_HIGH)
        if low * self.target_ms <= p95 <= high * self.target_ms:
            return
        target_tokens = self._line.tokens_for(AIM * self.target_ms / above)
        bounded = min(max(target_tokens, current_tokens / STEP, least), current_tokens * STEP, most)
        self._budget = max(self.limits.min_tokens, round(bounded))

    def _above(self) -> float:
        """Return the ratio of p95 to the line."""
        count = len(self._ratios)
        if count < STREAK:
            return 1 / AIM
        usual = np.array(self._ratios)
        # In deviations: p95 is not sought farther out, among outliers. That of exponential scatter is at 3.2.
        farthest = float(np.median(usual)) + 3.5 * max(_deviation(usual), LEAST_DEVIATION)
        rank = math.ceil(0.95 * count) - 1
        return max(1.0, min(float(np.sort(usual)[rank]), farthest))

    def _verdict(self, least: int) -> Verdict | None:
        p95 = self.p95_ms(least)
        assert p95 is not None
        if not self._target_missed and self._at_least >= STREAK and p95 > self.target_ms:
            self._target_missed = True
            return "missed"
        if self._target_missed and p95 < LOW * self.target_ms:
            self._target_missed = False
            return "met"
        return None


def _fit(samples: deque[tuple[int, float]], known_slope: float) -> LatencyModel:
    """Return the line through the answers, neither falling nor below 0 at no tokens."""
    tokens, ttft = (np.array(column, dtype=np.float64) for column in zip(*samples, strict=True))
    slope = known_slope
    base = float(np.median(ttft - known_slope * tokens))
    for _ in range(4):  # rounds of weighting anew; later ones move a line by less than it is known
        off = ttft - base - slope * tokens
        # in deviations: beyond it an answer pulls the line by its sign, no longer by its size (Huber)
        limit = 2.0 * max(_deviation(off), LEAST_DEVIATION * float(np.median(ttft)))
        weights = limit / np.maximum(np.abs(off), limit)
        middle = np.average(tokens, weights=weights)
        height = np.average(ttft, weights=weights)
        # the slope that was known counts as much as answers whose budgets differ by this share
        pull = weights.sum() * (0.25 * middle) ** 2 / len(samples)
        offsets = weights * (tokens - middle)
        slope = float((offsets @ (ttft - height) + pull * known_slope) / (offsets @ (tokens - middle) + pull))
        slope = min(max(slope, 0.0), float(height / middle))
        base = float(height - slope * middle)
    return LatencyModel(max(base, 0.0), slope)


def _deviation(values: Values) -> float:
    """Standard deviation, estimated from the median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
