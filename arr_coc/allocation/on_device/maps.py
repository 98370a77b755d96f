"""Maps of one stream as tensors: warps, blending over time, what answers taught, exploration.

They compute what `arr_coc.allocation.temporal` computes in host memory, and ask the device for nothing: whether a scene
has settled follows from how long nothing has changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from arr_coc.allocation.temporal import (
    DEAD_BAND,
    FADE_S,
    INFORMATION_BAND,
    RENEW,
    RENEWAL,
    TAU_MS,
    TICK_NS,
    PriorMemory,
    maps_of,
)
from arr_coc.allocation.warping import KNOWN, Warp
from arr_coc.relevance.contradiction import GLANCE_TRUST
from arr_coc.types import NS_PER_MS, NS_PER_S, Feedback

PLACE_STEPS = 32
"""Places between tiles are rounded to so many steps, as OpenCV does on the host."""

SETTLED_SHARE = 1e-4
"""A past that counts no more than this is left out."""


class DeviceWarp:
    """A warp's map of places on a device; see `arr_coc.allocation.warping.Warp`."""

    def __init__(self, warp: Warp, device: torch.device) -> None:
        rows, cols = warp.origin.shape[1:]
        origin, limits = warp.origin, np.array([rows - 1, cols - 1], np.float32)[:, None, None]
        nearest = np.clip(np.rint(origin), 0, limits).astype(np.int64)
        between = np.clip(np.rint(origin * PLACE_STEPS) / PLACE_STEPS, 0, limits).astype(np.float32)
        first = np.floor(between)
        second = np.minimum(first + 1, limits)
        corners = np.stack([row * cols + col for row in (first[0], second[0]) for col in (first[1], second[1])])
        places = np.concatenate([corners.astype(np.int64), (nearest[0] * cols + nearest[1])[None]])
        weights = np.concatenate([between - first, warp.inside[None].astype(np.float32)])
        self._places = torch.from_numpy(places).to(device).flatten(1)
        down, across, inside = torch.from_numpy(weights).to(device).unbind()
        self.inside = inside > 0
        self._shares = torch.stack(
            [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across]
        ).flatten(1)

    def sample(self, values: torch.Tensor, entering: float) -> torch.Tensor:
        """A map [gh, gw] or [C, gh, gw] of the earlier frame, as it lies now: float32, read between tiles.

        Tiles that came into view hold `entering`, and so do those that lie mostly between unknown ones (NaN).
        """
        maps = values.reshape(-1, *values.shape[-2:]).float()
        unknown = maps.isnan()
        known = self._read((~unknown).float())
        read = self._read(maps.masked_fill(unknown, 0)) / known.clamp(min=1e-6)
        there = self.inside & (known >= KNOWN)
        return torch.where(there, read, entering).reshape(values.shape)

    def nearest(self, values: torch.Tensor, entering: float) -> torch.Tensor:
        """The same for values that do not mix: those of the nearest tile, in their own dtype."""
        taken = values.flatten(-2)[..., self._places[4]].reshape(values.shape)
        return torch.where(self.inside, taken, torch.full((), entering, dtype=values.dtype, device=values.device))

    def _read(self, maps: torch.Tensor) -> torch.Tensor:
        flat = maps.flatten(1)
        read = sum(flat[:, self._places[corner]] * self._shares[corner] for corner in range(4))
        assert isinstance(read, torch.Tensor)
        return read.reshape(maps.shape)


@dataclass(frozen=True, slots=True)
class _Past:
    """The frame before: `blended` and `held` [gh, gw], `appearance` [C, gh, gw]; NaN where a tile came into view."""

    blended: torch.Tensor
    held: torch.Tensor
    appearance: torch.Tensor


class DeviceBlend:
    """blended = a·carried + (1 − a)·current, with a per tile lowered where its appearance changed.

    See `arr_coc.allocation.temporal.TemporalBlend`.
    """

    def __init__(self, tau_ms: float = TAU_MS) -> None:
        self._tau_ns = tau_ms * NS_PER_MS
        self._past: _Past | None = None
        self._current: torch.Tensor | None = None
        self._kept_share = 0.0
        self._media_ns = 0

    def follow(self, warp: DeviceWarp) -> None:
        """Tiles moved so with the frame to come; those that come into view have no past."""
        past = self._past
        if past is not None:
            nan = math.nan
            self._past = _Past(
                warp.sample(past.blended, nan), warp.sample(past.held, nan), warp.sample(past.appearance, nan)
            )
            self._kept_share = 1.0

    def replace(self, relevance: torch.Tensor) -> torch.Tensor:
        """The newest frame's relevance once more, as it is: the past is forgotten, and what `step` held of it."""
        if self._past is None:
            raise RuntimeError("there is no frame yet whose relevance could be replaced")
        self._past = _Past(relevance, relevance, self._past.appearance)
        self._current, self._kept_share = relevance, 0.0
        return relevance

    def step(self, relevance: torch.Tensor, appearance: torch.Tensor, media_ns: int) -> torch.Tensor:
        """The held map of this frame, float32 [gh, gw]: the same object once the same relevance has settled.

        `relevance` float32 [gh, gw] of this frame alone, `appearance` float32 [C, gh, gw], in which change is measured.
        """
        past, elapsed_ns = self._past, max(media_ns - self._media_ns, 0)
        share = math.exp(-elapsed_ns / self._tau_ns)
        same = relevance is self._current
        if past is None:
            past, self._kept_share = _Past(relevance, relevance, appearance), 0.0
        elif not same or self._kept_share > SETTLED_SHARE:
            change = (appearance - past.appearance).abs().amax(dim=0)
            kept = share * (1 - (change / RENEWAL).clamp(max=1))
            blended = relevance + kept * (past.blended - relevance)
            blended = torch.where(blended.isnan(), relevance, blended)
            held = torch.where((past.held - blended).abs() <= DEAD_BAND, past.held, blended)
            past = _Past(blended, held, appearance)
            self._kept_share = self._kept_share * share if same else share
        self._past, self._current, self._media_ns = past, relevance, media_ns
        return past.held


class DeviceExploration:
    """Counts answers, and the last one in which each tile was shown at level 0.

    See `arr_coc.allocation.temporal.ExplorationTracker`.
    """

    def __init__(self) -> None:
        self._answers = 1
        self._shown_at: torch.Tensor | None = None
        self._information: torch.Tensor | None = None

    def follow(self, step: DeviceWarp) -> None:
        """Content moved by whole tiles; those that come into view were never seen."""
        if self._shown_at is not None and self._information is not None:
            self._shown_at = step.nearest(self._shown_at, 0)
            self._information = step.nearest(self._information, math.nan)

    def mark_shown(self, levels: torch.Tensor) -> None:
        """A decoder was shown the frame with this level map [gh, gw]."""
        if self._shown_at is not None:
            self._shown_at = torch.where(levels == 0, self._answers, self._shown_at)
            self._answers += 1

    def staleness(self, information: torch.Tensor) -> torch.Tensor:
        """Number of answers since, weighted by the tile's information: float32 [gh, gw]."""
        if self._shown_at is None or self._information is None:
            self._shown_at = torch.zeros_like(information, dtype=torch.int64)
            self._information = information
        near = (information - self._information).abs() <= INFORMATION_BAND
        self._information = torch.where(near, self._information, information)
        return (self._answers - self._shown_at) * self._information


@dataclass(frozen=True, slots=True)
class _Learned:
    """What answers taught, on the grid of one frame: `known` float32 [2, gh, gw] (attention, similarity), `learned_s`
    [gh, gw] (media time, −inf for never), `confidence` [gh, gw], and the tiles' `appearance` [C, gh, gw] then."""

    known: torch.Tensor
    learned_s: torch.Tensor
    confidence: torch.Tensor
    appearance: torch.Tensor

    @classmethod
    def nothing(cls, appearance: torch.Tensor) -> _Learned:
        blank = torch.zeros_like(appearance[0])
        never = torch.full_like(blank, -math.inf, dtype=torch.float64)
        return cls(torch.stack([blank, blank]), never, blank, torch.full_like(appearance, math.nan))

    def at(self, warp: DeviceWarp) -> _Learned:
        """The same on the grid of a later frame; of tiles that came into view nothing is known."""
        return _Learned(
            warp.sample(self.known, 0.0),
            warp.nearest(self.learned_s, -math.inf),
            warp.nearest(self.confidence, 0.0),
            warp.sample(self.appearance, math.nan),
        )


class DevicePrior(PriorMemory[torch.Tensor, _Learned]):
    """Per tile: attention and similarity, both in [0, 1], and when they were learned (media time).

    See `arr_coc.allocation.temporal.FeedbackPrior`. What an answer taught comes from the host, once an answer.
    """

    def _carried(self, learned: _Learned, warp: Warp) -> _Learned:
        return learned.at(DeviceWarp(warp, learned.known.device))

    def update(self, feedback: Feedback, appearance: torch.Tensor, warp: Warp, *, glance: bool = False) -> None:
        """Take in the feedback of one answer, or `glance`, from whose frame `warp` leads to now.

        `appearance` [C, gh, gw] is the newest frame's, where tiles of the asked frame are not known any more.
        """
        self.answered |= not glance
        shape = (int(appearance.shape[1]), int(appearance.shape[2]))
        maps = maps_of(feedback, shape, glance=glance)
        here = torch.from_numpy(warp.sample(maps, np.nan)).to(appearance.device)
        asked = self._looks_asked(feedback.stamp.frame_index)
        looked = torch.full_like(appearance, math.nan) if asked is None else asked
        looked = DeviceWarp(warp, appearance.device).sample(looked, math.nan)
        old = self._now() or _Learned.nothing(looked)
        spoken, seconds = ~here[0].isnan(), feedback.stamp.media_ns / NS_PER_S
        mixed = torch.where(old.learned_s.isfinite(), RENEW * here + (1 - RENEW) * old.known, here)
        self._learn(
            _Learned(
                torch.where(spoken, mixed, old.known),
                torch.where(spoken, seconds, old.learned_s),
                torch.where(spoken, GLANCE_TRUST if glance else 1.0, old.confidence),
                torch.where(spoken, looked, old.appearance),
            )
        )

    def evaluate(self, media_ns: int, appearance: torch.Tensor) -> torch.Tensor | None:
        """Attention, similarity and trust at a media time, where tiles look so: float32 [3, gh, gw] of [C, gh, gw];
        None while no answer taught anything.

        The same tensor for a quarter of a second, unless something was learned or carried, or `appearance` is another.
        """
        learned = self._now()
        if learned is None:
            return None
        if not self._is_still(media_ns, appearance):
            age_s = (media_ns // TICK_NS * TICK_NS / NS_PER_S - learned.learned_s).clamp(min=0)
            change = _change(appearance, learned)
            trust = learned.confidence * torch.exp(-age_s / FADE_S) * (1 - (change / RENEWAL).clamp(max=1))
            self._prior = torch.cat([learned.known, trust.float()[None]])
        return self._prior

    def unknown_share(self, appearance: torch.Tensor) -> float:
        """Share of tiles, which look so, of which nothing is known. One number comes to the host."""
        learned = self._now()
        if learned is None:
            return 1.0
        unknown = ~learned.learned_s.isfinite() | (_change(appearance, learned) >= RENEWAL)
        return float(unknown.float().mean())


def _change(appearance: torch.Tensor, learned: _Learned) -> torch.Tensor:
    """By how much tiles look different from when they were learned about; 0 where that is unknown."""
    return (appearance - learned.appearance).abs().amax(dim=0).nan_to_num()
