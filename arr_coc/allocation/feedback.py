"""Memory of answers: the prior that their feedback gives, and the tiles that no answer has shown for long."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.allocation.temporal import RENEWAL, shift_map
from arr_coc.ops.regions import paint, tile_counts
from arr_coc.types import NS_PER_S, Feedback

INFORMATION_BAND = 0.1
"""A tile's information counts as new only when it has moved this far; noise then does not turn the exploration."""


class ExplorationTracker:
    """Counts answers, and the last one in which each tile was shown at level 0.

    `staleness` is the number of answers since, weighted by the tile's information. It turns with answers, not with
    frames: what is explored stays put until a decoder has seen it.
    """

    def __init__(self) -> None:
        self._answers = 1
        self._shown_at: npt.NDArray[np.int64] | None = None
        self._information: npt.NDArray[np.float32] | None = None
        self._staleness: npt.NDArray[np.float32] | None = None

    def shift(self, dy_tiles: int, dx_tiles: int) -> None:
        """Content moved by whole tiles; those that come into view were never seen."""
        if self._shown_at is not None and self._information is not None:
            self._shown_at = shift_map(self._shown_at, dy_tiles, dx_tiles, 0)
            self._information = shift_map(self._information, dy_tiles, dx_tiles, np.nan)
            self._staleness = None

    def mark_shown(self, levels: npt.NDArray[np.int8]) -> None:
        """A decoder was shown the frame with this level map [gh, gw]."""
        if self._shown_at is not None:
            self._shown_at = np.where(levels == 0, self._answers, self._shown_at)
            self._answers += 1
            self._staleness = None

    def staleness(self, information: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32 [gh, gw], the same array object while neither answers nor information (beyond the band) moved."""
        if self._shown_at is None or self._information is None:
            self._shown_at = np.zeros(information.shape, np.int64)
            self._information = information
        moved = ~(np.abs(information - self._information) <= INFORMATION_BAND)
        if moved.any():
            self._information = np.where(moved, information, self._information)
            self._staleness = None
        if self._staleness is None:
            self._staleness = ((self._answers - self._shown_at) * self._information).astype(np.float32)
        return self._staleness


FADE_S = 5.0
"""After this much media time feedback is trusted 1/e as much."""

RENEW = 0.7
"""Share of the newest answer where an older one spoke of the same tile."""

_TICK_NS = NS_PER_S // 4  # fading goes in steps, so that a still scene has a still prior
_TINY = 1e-12

Map = npt.NDArray[np.float32]


class FeedbackPrior:
    """Per tile: attention and similarity, both in [0, 1], and when they were learned (media time).

    Attention is spread over the tiles of its region, and counts against the tile that has most of it: a coarse region
    is not looked at because it is large. It is heavy-tailed, so its square root is kept; of similarity, what is above
    zero. What was learned of a tile is trusted less, the more its appearance has changed since the answer's frame:
    whatever came into it has not been looked at.
    """

    def __init__(self) -> None:
        self._known: Map | None = None
        self._learned_ns = np.zeros((0, 0))
        self._learned_appearance = np.zeros((0, 0, 0), np.float32)
        self._asked: tuple[int, Map] | None = None
        self._prior: Map | None = None
        self._tick: int | None = None
        self._appearance: Map | None = None

    def reset(self) -> None:
        """Another question: nothing is known about it."""
        self._known = None
        self._tick = None

    def shift(self, dy_tiles: int, dx_tiles: int) -> None:
        """Content moved by whole tiles; of those that come into view nothing is known."""
        if self._known is not None:
            self._known = shift_map(self._known, dy_tiles, dx_tiles, 0)
            self._learned_ns = shift_map(self._learned_ns, dy_tiles, dx_tiles, -np.inf)
            self._learned_appearance = shift_map(self._learned_appearance, dy_tiles, dx_tiles, np.nan)
            self._tick = None
        if self._asked is not None:
            frame_index, appearance = self._asked
            self._asked = frame_index, shift_map(appearance, dy_tiles, dx_tiles, np.nan)

    def on_request(self, frame_index: int, appearance: Map) -> None:
        """An answer about this frame is due, whose tiles look so: float32 [C, gh, gw]."""
        self._asked = frame_index, appearance

    def update(self, feedback: Feedback, shape: tuple[int, int], moved_tiles: tuple[int, int]) -> None:
        """Take in one answer's feedback on a grid of `shape`; content has moved by `moved_tiles` since its frame."""
        attention = np.clip(feedback.attention, 0, 1) / tile_counts(feedback.regions, shape)
        attention /= attention.max(initial=_TINY)
        told = np.stack([np.sqrt(attention), np.clip(feedback.similarity, 0, 1)])
        maps = np.stack([paint(feedback.regions, row.astype(np.float32), shape, np.nan) for row in told])
        maps = shift_map(maps, *moved_tiles, np.nan)
        spoken = ~np.isnan(maps[0])
        appearance = self._appearance_of(feedback.stamp.frame_index, shape)
        if self._known is None:
            self._known = np.zeros((2, *shape), np.float32)
            self._learned_ns = np.full(shape, -np.inf)
            self._learned_appearance = np.full_like(appearance, np.nan)
        mixed = np.where(np.isfinite(self._learned_ns), RENEW * maps + (1 - RENEW) * self._known, maps)
        self._known = np.where(spoken, mixed, self._known).astype(np.float32)
        self._learned_ns = np.where(spoken, float(feedback.stamp.media_ns), self._learned_ns)
        self._learned_appearance = np.where(spoken, appearance, self._learned_appearance)
        self._tick = None

    def evaluate(self, media_ns: int, appearance: Map) -> Map | None:
        """Attention, similarity and trust at a media time, where tiles look so: float32 [3, gh, gw] of [C, gh, gw];
        None while no answer taught anything.

        The same array object for a quarter of a second, unless something was learned or carried, or `appearance` is
        another.
        """
        if self._known is None:
            return None
        tick = media_ns // _TICK_NS
        if tick != self._tick or appearance is not self._appearance or self._prior is None:
            self._tick, self._appearance = tick, appearance
            age_s = np.maximum(tick * _TICK_NS - self._learned_ns, 0) / NS_PER_S
            change = np.nan_to_num(np.abs(appearance - self._learned_appearance).max(axis=0))
            trust = np.exp(-age_s / FADE_S) * (1 - np.minimum(change / RENEWAL, 1))
            self._prior = np.concatenate([self._known, trust[None].astype(np.float32)])
        return self._prior

    def _appearance_of(self, frame_index: int, shape: tuple[int, int]) -> Map:
        """Return the appearance of a frame's tiles, shifted with the camera since; NaN where it is unknown."""
        if self._asked is not None and self._asked[0] == frame_index:
            return self._asked[1]
        return np.full((1, *shape), np.nan, np.float32)
