"""Relevance over time: blended by media time, carried along with the camera, and held still against noise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from arr_coc.carrying import carried

TAU_MS = 93.0
"""Time constant of blending: a = exp(−Δt/τ) is 0.7 at 30 frames a second."""

DEAD_BAND = 0.02
"""A tile's relevance moves only when it has drifted this far from what is held."""

RENEWAL = 0.25
"""A tile whose colour or edges changed by this much forgets its past altogether; less change, in proportion."""

_SETTLED = 1e-3
_NS_PER_MS = 1e6

Map = npt.NDArray[np.float32]


class RelevanceBlend:
    """blended = a·carried + (1 − a)·current, with a per tile lowered where its appearance changed.

    What is given out is `held`: blended with a dead band, the same array object as long as no tile leaves the band.
    """

    def __init__(self, tau_ms: float = TAU_MS) -> None:
        self._tau_ns = tau_ms * _NS_PER_MS
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next frame stands for itself."""
        self._blended: Map | None = None
        self._held: Map | None = None
        self._appearance: Map | None = None
        self._current: Map | None = None
        self._media_ns = 0

    def carry(self, dy_tiles: int, dx_tiles: int) -> None:
        """Content moved by whole tiles; tiles that come into view have no past."""
        if self._blended is None or self._held is None or self._appearance is None:
            return
        self._blended = carried(self._blended, dy_tiles, dx_tiles, np.nan)
        self._held = carried(self._held, dy_tiles, dx_tiles, np.nan)
        self._appearance = carried(self._appearance, dy_tiles, dx_tiles, np.nan)
        self._current = None

    def step(self, current: Map, appearance: Map, media_ns: int) -> Map:
        """The held map of this frame.

        `current` float32 [gh, gw]; `appearance` float32 [C, gh, gw] in [0, 1], in which change is measured; `media_ns`
        the frame's media time. Arrays are kept, not copied: do not write to them afterwards.
        """
        if self._blended is None or self._held is None or self._appearance is None:
            self._blended = self._held = current
        elif current is not self._current or self._blended is not current:
            self._blend(current, appearance, self._share_of_past(media_ns))
        self._appearance, self._current, self._media_ns = appearance, current, media_ns
        return self._held

    def _share_of_past(self, media_ns: int) -> float:
        return math.exp(-max(media_ns - self._media_ns, 0) / self._tau_ns)

    def _blend(self, current: Map, appearance: Map, share: float) -> None:
        assert self._blended is not None
        assert self._held is not None
        assert self._appearance is not None
        past: Map | np.float32 = np.float32(share)
        if appearance is not self._appearance:
            change = np.abs(appearance - self._appearance).max(axis=0)
            past = np.float32(share) * (1 - np.minimum(change / np.float32(RENEWAL), 1))
        difference = self._blended - current
        blended = current + past * difference
        entered = np.isnan(blended)
        if entered.any():
            blended = np.where(entered, current, blended)
        self._blended = current if np.abs(blended - current).max() < _SETTLED else blended
        left = ~(np.abs(blended - self._held) <= DEAD_BAND)
        if left.any():
            self._held = np.where(left, blended, self._held)
