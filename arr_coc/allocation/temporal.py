"""Blending over time and motion compensation of maps."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.types import TILE_PX

CARRY_AT_TILES = 0.6
"""How far content must have moved before maps follow it: a little over half a tile, so that a shaking hand at the
border does not carry them to and fro."""

_REMEMBERED_MOVES = 1024


def shift_map(values: npt.NDArray[Any], dy_tiles: int, dx_tiles: int, entering: float) -> npt.NDArray[Any]:
    """A map [gh, gw] (or [C, gh, gw]) moved down and right; tiles that come into view hold `entering`."""
    rows, cols = values.shape[-2:]
    moved = np.full_like(values, entering)
    if abs(dy_tiles) < rows and abs(dx_tiles) < cols:
        to = slice(max(dy_tiles, 0), rows + min(dy_tiles, 0)), slice(max(dx_tiles, 0), cols + min(dx_tiles, 0))
        source = slice(max(-dy_tiles, 0), rows - max(dy_tiles, 0)), slice(max(-dx_tiles, 0), cols - max(dx_tiles, 0))
        moved[..., to[0], to[1]] = values[..., source[0], source[1]]
    return moved


class MotionCompensator:
    """Adds up an epoch's camera motion, gives it out in whole tiles, and remembers where the camera was."""

    def __init__(self, frame_index: int) -> None:
        """`frame_index`: the frame with which the epoch begins."""
        self._left_px = np.zeros(2)
        self._position = (0, 0)
        self._moves = deque([(frame_index, self._position)], maxlen=_REMEMBERED_MOVES)

    def move(self, frame_index: int, dy_px: float, dx_px: float) -> tuple[int, int]:
        """Content moved by so many pixels with this frame; by how many tiles (down, right) maps are to follow now."""
        if dy_px == 0 and dx_px == 0:
            return 0, 0
        self._left_px += dy_px, dx_px
        tiles = self._left_px / TILE_PX
        if np.abs(tiles).max() < CARRY_AT_TILES:
            return 0, 0
        whole = np.rint(tiles).astype(int)
        self._left_px -= whole * TILE_PX
        dy, dx = int(whole[0]), int(whole[1])
        self._position = self._position[0] + dy, self._position[1] + dx
        self._moves.append((frame_index, self._position))
        return dy, dx

    def since(self, frame_index: int) -> tuple[int, int] | None:
        """By how many tiles maps have moved since that frame; None where that is no longer known."""
        for moved_at, (row, col) in reversed(self._moves):
            if moved_at <= frame_index:
                return self._position[0] - row, self._position[1] - col
        return None


TAU_MS = 93.0
"""Time constant of blending: a = exp(−Δt/τ) is 0.7 at 30 frames a second."""

DEAD_BAND = 0.02
"""A tile's relevance moves only when it has drifted this far from what is held."""

RENEWAL = 0.25
"""A tile whose appearance changed by this much forgets its past altogether; less change, in proportion."""

_SETTLED = 1e-3
_NS_PER_MS = 1e6

Map = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Past:
    """The frame before: `blended` and `held` [gh, gw], `appearance` [C, gh, gw]; NaN where a tile came into view."""

    blended: Map
    held: Map
    appearance: Map


class TemporalBlend:
    """blended = a·carried + (1 − a)·current, with a per tile lowered where its appearance changed.

    What is given out is `held`: blended with a dead band, the same array object as long as no tile leaves the band.
    """

    def __init__(self, tau_ms: float = TAU_MS) -> None:
        self._tau_ns = tau_ms * _NS_PER_MS
        self._past: _Past | None = None
        self._current: torch.Tensor | None = None
        self._settled = False
        self._media_ns = 0

    def shift(self, dy_tiles: int, dx_tiles: int) -> None:
        """Content moved by whole tiles; tiles that come into view have no past."""
        past = self._past
        if past is not None:
            maps = (shift_map(of, dy_tiles, dx_tiles, np.nan) for of in (past.blended, past.held, past.appearance))
            self._past = _Past(*maps)
            self._settled = False

    def step(self, relevance: torch.Tensor, appearance: torch.Tensor, media_ns: int) -> Map:
        """The held map of this frame: float32 [gh, gw].

        `relevance` float32 [gh, gw] of this frame alone, on the CPU; the same object as the last time means the same
        values. `appearance` float32 [C, gh, gw], in which change is measured. Neither may be written to afterwards.
        """
        current, features = relevance.numpy(), appearance.numpy()
        past, elapsed_ns = self._past, max(media_ns - self._media_ns, 0)
        if past is None:
            past, self._settled = _Past(current, current, features), True
        elif not (self._settled and relevance is self._current):
            change = np.abs(features - past.appearance).max(axis=0)
            share = math.exp(-elapsed_ns / self._tau_ns) * (1 - np.minimum(change / np.float32(RENEWAL), 1))
            blended = current + share.astype(np.float32) * (past.blended - current)
            blended = np.where(np.isnan(blended), current, blended)
            self._settled = float(np.abs(blended - current).max()) < _SETTLED
            past = _Past(current if self._settled else blended, _within_band(past.held, blended), features)
        self._past, self._current, self._media_ns = past, relevance, media_ns
        return past.held


def _within_band(held: Map, blended: Map) -> Map:
    """`held`, moved to `blended` where it is farther away than the dead band (or unknown)."""
    left = ~(np.abs(blended - held) <= DEAD_BAND)
    return np.where(left, blended, held) if left.any() else held
