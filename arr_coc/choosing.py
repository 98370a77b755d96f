"""Choosing regions frame after frame: steady where near-equals compete, and not at all where nothing moved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from arr_coc.attending import Memory, Request, Tensions, allocate_frame, settled
from arr_coc.budget import ADAPTIVE, Budget, tokens_for
from arr_coc.carrying import carried
from arr_coc.ops.regions import level_map
from arr_coc.structure import VOID_STRUCTURE, picture_structure, structure
from arr_coc.types import LEVELS, Allocation

UNKNOWN = LEVELS
"""In a carried level map: a tile that was not in view before."""

VOID_HYSTERESIS = 0.05
"""The semantic-void guard sets in this far below its threshold, and lets go this far above."""

BUDGET_HYSTERESIS = 0.05
"""An adaptive budget moves only by more than this share."""

Map = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    """The regions of one frame.

    `levels` int8 [gh, gw]: each tile's level, −1 where it is not shown. `jitter_share`: share of tiles whose level
    differs from the frame before, carried along with motion. `strategy`: what `auto` meant.
    """

    allocation: Allocation
    levels: npt.NDArray[np.int8]
    jitter_share: float
    strategy: str


class RegionChooser:
    """Chooses the regions of one epoch's frames, each in the light of the frame before."""

    def __init__(self, strategy: str, tensions: Tensions, *, levels: bool = False, seed: int = 0) -> None:
        self._strategy, self._tensions, self._levels, self._seed = strategy, tensions, levels, seed
        self._previous: npt.NDArray[np.int8] | None = None
        self._choice: Choice | None = None
        self._relevance: Map | None = None
        self._neglect: Map | None = None
        self._looks: Map | None = None
        self._void: bool | None = None
        self._tokens = self._spread_tokens = 0
        self._spread: Map | None = None

    def carry(self, dy_tiles: int, dx_tiles: int) -> None:
        """Content moved by whole tiles: what was shown moves with it."""
        if self._previous is not None:
            self._previous = carried(self._previous, dy_tiles, dx_tiles, UNKNOWN)
            self._relevance = None

    def choose(
        self,
        relevance: Map,
        budget: Budget,
        neglect: Map | None,
        at_most: int | None = None,
        looks: Map | None = None,
        prior: Map | None = None,
    ) -> Choice:
        """Return the regions for a finite map [gh, gw]; `at_most` limits what `budget` means.

        `looks` [7, gh, gw], as `picture_structure` takes it, is what the semantic-void guard judges; without it, the
        map. Its last map, entropy, tells `fixation` what there is to look at. `prior` [3, gh, gw] is what answers
        taught: attention, similarity and trust. Maps are compared by identity: the same
        objects and the same budget keep the choice that there is. Raises BudgetError.
        """
        tokens = self._steady_tokens(relevance, budget)
        if at_most is not None:
            tokens = min(tokens, tokens_for(at_most, relevance))
        unmoved = relevance is self._relevance and neglect is self._neglect and tokens == self._tokens
        if unmoved and self._choice is not None:
            return self._choice
        void = self._is_void(relevance, looks) and not _is_known(prior)
        strategy = settled(self._strategy, void, tokens, self._levels)
        memory = Memory(self._previous, neglect, self._tensions.explore)
        entropy = None if looks is None else looks[-1]
        request = Request(relevance, tokens, self._tensions.coverage, self._seed, memory, entropy)
        allocation = allocate_frame(request, strategy)
        levels = level_map(allocation.regions.numpy(), relevance.shape)
        choice = Choice(allocation, levels, jitter_share(self._previous, levels), strategy)
        self._relevance, self._neglect, self._tokens, self._previous = relevance, neglect, tokens, levels
        self._choice = replace(choice, jitter_share=0.0)
        return choice

    def _steady_tokens(self, relevance: Map, budget: Budget) -> int:
        if budget != ADAPTIVE:
            return tokens_for(budget, relevance)
        if relevance is not self._spread:
            tokens, self._spread = tokens_for(budget, relevance), relevance
            if abs(tokens - self._spread_tokens) > BUDGET_HYSTERESIS * tokens:
                self._spread_tokens = tokens
        return self._spread_tokens

    def _is_void(self, relevance: Map, looks: Map | None) -> bool:
        """Whether `auto` finds nothing to choose by; judged anew only where the picture is another."""
        if self._strategy != "auto":
            return False
        if looks is None or looks is not self._looks or self._void is None:
            self._looks = looks
            found = structure(relevance) if looks is None else picture_structure(looks)
            self._void = found < self._void_threshold()
        return self._void

    def _void_threshold(self) -> float:
        if self._void is None:
            return VOID_STRUCTURE
        return VOID_STRUCTURE + (VOID_HYSTERESIS if self._void else -VOID_HYSTERESIS)


def _is_known(prior: Map | None) -> bool:
    """Whether answers looked at some tiles more than at others, which tells more than how the picture looks."""
    return prior is not None and structure(prior[0] * prior[2]) >= VOID_STRUCTURE


def jitter_share(previous: npt.NDArray[np.int8] | None, levels: npt.NDArray[np.int8]) -> float:
    """Share of tiles whose level (or absence) is another than in `previous`, among those that were in view; 0 without
    it.

    Both int8 [gh, gw]; `previous` is the frame before, carried along with motion, `UNKNOWN` where a tile came into
    view.
    """
    if previous is None:
        return 0.0
    seen = previous != UNKNOWN
    return float((previous[seen] != levels[seen]).mean()) if seen.any() else 0.0
