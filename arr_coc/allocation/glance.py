"""Glances: `GlanceOptions`, the size of an overview, and `GlancePolicy`, which says when a glance is due.

A glance reads a coarse overview of the frame with the question in mind, before it is known what to show sharp.
`docs/methods.md` has the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from arr_coc.errors import BudgetError, OptionError, counted
from arr_coc.texture.regions import overview_regions
from arr_coc.types import NS_PER_S

AUTO_TOKENS = 64
"""Most tokens of an overview of "auto"…"""

AUTO_SHARE = 0.5
"""…and at most this share of the budget."""

LEAST_REGIONS = 6
"""Fewest regions of an overview: fewer hardly distinguish places and cost more than they bring…"""

LEAST_FINE_REGIONS = 4
FINE_LEVEL = 2
"""…or this many if they are of this level or finer: 4×4 tiles still show what is asked about. Such an overview is
not shown again with later frames, because its tokens cost them more than it adds."""

EVERY_S = 60.0
"""Media time in seconds after which a glance is due again."""

UNKNOWN_SHARE = 0.5
"""Share of tiles without feedback from which a glance is due…"""

LEAST_S = 5.0
"""…but not sooner than this after the last one: answers teach about what came into view, too."""

KEEP_OVERVIEW = True
"""`overview="auto"`: whether the overview stays in the prompt."""


@dataclass(frozen=True, slots=True)
class GlanceOptions:
    """Options of glances. Raises OptionError for values out of range.

    `tokens`: the most that an overview takes; "auto" for 64, no more than half of the budget, and no overview at all
    if these make fewer than 6 regions, or 4 of 4×4 tiles. `every_s`: media time after which a glance is due again.
    `keep`: whether the overview stays in the prompt as context; the budget pays for it either way.
    """

    tokens: int | Literal["auto"] = "auto"
    every_s: float = EVERY_S
    keep: bool = KEEP_OVERVIEW

    def __post_init__(self) -> None:
        if self.tokens != "auto" and (isinstance(self.tokens, bool) or self.tokens < 1):
            raise OptionError(f'the tokens of an overview are "auto" or at least 1, got {self.tokens!r}')
        if not self.every_s > 0:
            raise OptionError(f"every_s must be above 0 seconds, got {self.every_s!r}")

    def overview(self, budget_tokens: int, shape: tuple[int, int]) -> npt.NDArray[np.int64]:
        """Return the regions [K, 3] of the overview of a tile grid that a budget has room for.

        None, [0, 3], if the budget shows all tiles, and by "auto" if there would be too few to distinguish places.
        Raises BudgetError if the requested overview leaves nothing of the budget.
        """
        if budget_tokens >= shape[0] * shape[1]:
            return overview_regions(shape, 0)
        if self.tokens == "auto":
            regions = overview_regions(shape, min(AUTO_TOKENS, int(AUTO_SHARE * budget_tokens)))
            # attention on this few regions of one level cannot locate what matters
            fine = len(regions) > 0 and regions[0, 0] <= FINE_LEVEL
            if len(regions) >= (LEAST_FINE_REGIONS if fine else LEAST_REGIONS):
                return regions
            return regions[:0]
        if self.tokens >= budget_tokens:
            raise BudgetError(
                f"an overview of {counted(self.tokens, 'token')} leaves nothing of a budget of {budget_tokens}",
                'raise the budget, or let the overview have "auto" tokens: at most half of the budget',
            )
        return overview_regions(shape, self.tokens)

    def keeps(self, overview: npt.NDArray[np.int64], *, after_glance: bool) -> bool:
        """Return True if an overview [K, 3] stands in the packet of a frame, before or `after_glance`."""
        return self.keep and (after_glance or len(overview) >= LEAST_REGIONS or self.tokens != "auto")


class GlancePolicy:
    """Policy for when a glance is due: for a new question, after a cut, after a while, and when much is unknown."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_ns = every_s * NS_PER_S
        self._done_ns: int | None = None
        self._failed = False

    def reset(self) -> None:
        """Another question, or another scene: nothing is known."""
        self._done_ns = None
        self._failed = False

    def on_glance(self, media_ns: int) -> None:
        """Record that a glance at the frame of this media time returned feedback."""
        self._done_ns = media_ns
        self._failed = False

    def on_failure(self) -> None:
        """A glance could not be made: none is due until `reset`."""
        self._failed = True

    def due(self, media_ns: int, unknown_share: float) -> bool:
        """Return True if a glance is due at a media time, given the share of tiles without feedback."""
        if self._failed or self._done_ns is None:
            return not self._failed
        since_ns = media_ns - self._done_ns
        return since_ns >= self._every_ns or (unknown_share >= UNKNOWN_SHARE and since_ns >= LEAST_S * NS_PER_S)
