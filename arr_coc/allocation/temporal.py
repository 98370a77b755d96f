"""Maps over time: blending, feedback that fades, and exploration. They follow what the tiles show."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.compiled_maps import CompiledMaps
from arr_coc.allocation.warping import Warp
from arr_coc.ops.regions import paint, smooth_map, tile_counts
from arr_coc.relevance.contradiction import GLANCE_TRUST
from arr_coc.types import NS_PER_MS, NS_PER_S, Feedback

TAU_MS = 93.0
"""Time constant of blending: a = exp(−Δt/τ) is 0.7 at 30 frames a second."""

DEAD_BAND = 0.02
"""A tile's relevance moves only when it has drifted this far from what is held."""

RENEWAL = 0.25
"""A tile whose appearance changed by this much forgets its past altogether; less change, in proportion."""

_SETTLED = 1e-3

Map = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Past:
    """The frame before: `blended` and `held` [gh, gw], `appearance` [C, gh, gw]; NaN where a tile came into view."""

    blended: Map
    held: Map
    appearance: Map

    def at(self, warp: Warp | None) -> _Past:
        """The same on the grid of a later frame."""
        if warp is None:
            return self
        moved = warp.sample(np.concatenate([self.blended[None], self.held[None], self.appearance]), np.nan)
        return _Past(moved[0], moved[1], moved[2:])


class TemporalBlend:
    """blended = a·carried + (1 − a)·current, with a per tile lowered where its appearance changed.

    What is given out is `held`: blended with a dead band, the same array object as long as no tile leaves the band.
    """

    def __init__(self, tau_ms: float = TAU_MS, maps: CompiledMaps | None = None) -> None:
        """`maps`: the compiled kernel, where it blends."""
        self._tau_ns = tau_ms * NS_PER_MS
        self._maps = maps
        self._past: _Past | None = None
        self._warp: Warp | None = None
        self._current: torch.Tensor | None = None
        self._settled = False
        self._media_ns = 0

    def follow(self, warp: Warp) -> None:
        """Tiles moved so with the frame to come; those that come into view have no past."""
        if self._past is not None:
            self._past, self._warp = self._past.at(self._warp), warp
            self._settled = False

    def replace(self, relevance: torch.Tensor) -> Map:
        """The newest frame's relevance once more, as it is: the past is forgotten, and what `step` held of it."""
        if self._past is None:
            raise RuntimeError("there is no frame yet whose relevance could be replaced")
        current = relevance.numpy()
        self._past, self._warp = _Past(current, current, self._past.appearance), None
        self._current, self._settled = relevance, True
        return current

    def step(self, relevance: torch.Tensor, appearance: Map, media_ns: int) -> Map:
        """The held map of this frame: float32 [gh, gw].

        `relevance` float32 [gh, gw] of this frame alone, on the CPU; the same object as the last time means the same
        values. `appearance` float32 [C, gh, gw], in which change is measured, but for its last map, entropy. Neither
        may be written to afterwards.
        """
        past, elapsed_ns = self._past, max(media_ns - self._media_ns, 0)
        if past is None:
            current = relevance.numpy()
            self._past, self._settled = _Past(current, current, appearance), True
        elif not (self._settled and relevance is self._current):
            share = math.exp(-elapsed_ns / self._tau_ns)
            self._past = self._blended(past, relevance, appearance, share)
        self._warp, self._current, self._media_ns = None, relevance, media_ns
        assert self._past is not None
        return self._past.held

    def _blended(self, past: _Past, relevance: torch.Tensor, appearance: Map, share: float) -> _Past:
        """What the next frame is blended with; `share` is that of the past where looks did not change."""
        if self._maps is not None:
            origin = None if self._warp is None else self._warp.origin
            limits, before = (share, RENEWAL, DEAD_BAND), (past.blended, past.held, past.appearance)
            blended, moved, largest = self._maps.blend(origin, before, relevance, appearance, limits)
            held = past.held if moved is None else moved
        else:
            past, current = past.at(self._warp), relevance.numpy()
            change = np.abs(appearance[:-1] - past.appearance[:-1]).max(axis=0)
            kept = share * (1 - np.minimum(change / np.float32(RENEWAL), 1))
            blended = current + kept.astype(np.float32) * (past.blended - current)
            blended = np.where(np.isnan(blended), current, blended)
            held, largest = _within_band(past.held, blended), float(np.abs(blended - current).max())
        self._settled = largest < _SETTLED
        return _Past(relevance.numpy() if self._settled else blended, held, appearance)


def _within_band(held: Map, blended: Map) -> Map:
    """`held`, moved to `blended` where it is farther away than the dead band (or unknown)."""
    left = ~(np.abs(blended - held) <= DEAD_BAND)
    return np.where(left, blended, held) if left.any() else held


INFORMATION_BAND = 0.1
"""A tile's information counts as new only when it has moved this far; noise then does not turn the exploration."""


class ExplorationTracker:
    """Counts answers, and the last one in which each tile was shown at level 0.

    `staleness` is the number of answers since, weighted by the tile's information. It turns with answers, not with
    frames: what is explored stays put until a decoder has seen it.
    """

    def __init__(self, maps: CompiledMaps | None = None) -> None:
        """`maps`: the compiled kernel, where it compares."""
        self._maps = maps
        self._answers = 1
        self._shown_at: npt.NDArray[np.int64] | None = None
        self._information: npt.NDArray[np.float32] | None = None
        self._staleness: npt.NDArray[np.float32] | None = None

    def follow(self, step: Warp) -> None:
        """Content moved by whole tiles; those that come into view were never seen."""
        if self._shown_at is not None and self._information is not None:
            self._shown_at = step.nearest(self._shown_at, 0)
            self._information = step.nearest(self._information, np.nan)
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
            self._information = information.copy()
        drifted = self._drifted(information, self._information)
        if drifted is not None:
            self._information = drifted
            self._staleness = None
        if self._staleness is None:
            self._staleness = ((self._answers - self._shown_at) * self._information).astype(np.float32)
        return self._staleness

    def _drifted(self, information: Map, kept: Map) -> Map | None:
        """What is `kept` of a frame's information, with what left the band; None where nothing did."""
        if self._maps is not None:
            return self._maps.drift(information, kept, INFORMATION_BAND)
        moved = ~(np.abs(information - kept) <= INFORMATION_BAND)
        return np.where(moved, information, kept) if moved.any() else None


FADE_S = 5.0
"""After this much media time feedback is trusted 1/e as much."""

RENEW = 0.7
"""Share of the newest answer where an older one spoke of the same tile."""

TICK_NS = NS_PER_S // 4
"""Fading goes in steps, so that a still scene has a still prior."""

_TINY = 1e-12


def attention_of(feedback: Feedback, shape: tuple[int, int]) -> Map:
    """Attention to a tile of each region [K], by the largest, as its square root: in [0, 1]."""
    attention = np.clip(feedback.attention, 0, 1) / tile_counts(feedback.regions, shape)
    return np.sqrt(attention / attention.max(initial=_TINY)).astype(np.float32)


def maps_of(feedback: Feedback, shape: tuple[int, int], *, glance: bool) -> Map:
    """Attention and similarity of the tiles of the frame that feedback is about: [2, gh, gw], each in [0, 1].

    A `glance` reports regions of one level, which are spread smoothly; an answer's are painted, with NaN elsewhere.
    """
    reported = np.stack([attention_of(feedback, shape), np.clip(feedback.similarity, 0, 1)]).astype(np.float32)
    if glance:
        return np.stack([smooth_map(row, int(feedback.regions[0, 0]), shape) for row in reported])
    return np.stack([paint(feedback.regions, row, shape, np.nan) for row in reported])


@dataclass(frozen=True, eq=False)
class _Learned:
    """What answers taught, on the grid of one frame: `known` float32 [2, gh, gw] (attention, similarity), `learned_ns`
    [gh, gw], `confidence` [gh, gw] of what taught it, and the tiles' `appearance` [C, gh, gw] at that time; NaN where
    nothing is known of it."""

    known: Map
    learned_ns: npt.NDArray[np.float64]
    confidence: Map
    appearance: Map

    @classmethod
    def nothing(cls, shape: tuple[int, int], appearance: Map) -> _Learned:
        """Nothing of any tile of a grid, whose tiles look so."""
        known, never = np.zeros((2, *shape), np.float32), np.full(shape, -np.inf)
        return cls(known, never, np.zeros(shape, np.float32), np.full_like(appearance, np.nan))

    def at(self, warp: Warp) -> _Learned:
        """The same on the grid of a later frame; of tiles that came into view nothing is known."""
        return _Learned(
            warp.sample(self.known, 0.0),
            warp.nearest(self.learned_ns, -np.inf),
            warp.nearest(self.confidence, 0.0),
            warp.sample(self.appearance, np.nan),
        )


PriorMap = TypeVar("PriorMap")
Learned = TypeVar("Learned")


class PriorMemory(ABC, Generic[PriorMap, Learned]):
    """Memory of what answers taught about tiles, which moves along with what they show.

    It stays on the grid of the frame at which it was learned, with the warp from there to now, so that it is read
    between tiles once, however many frames ago that was.

    `answered`: an answer taught some of it. A glance alone tells where the model looks even on a picture of nothing, so
    it does not prove that there is something to see.
    """

    def __init__(self) -> None:
        self.answered = False
        self._learned: Learned | None = None
        self._warp: Warp | None = None
        self._here: Learned | None = None
        self._asked: tuple[int, PriorMap] | None = None
        self._prior: PriorMap | None = None
        self._tick: int | None = None
        self._appearance: PriorMap | None = None

    @abstractmethod
    def _carried(self, learned: Learned, warp: Warp) -> Learned:
        """The same on the grid of the newest frame, to which `warp` leads."""

    @abstractmethod
    def unknown_share(self, appearance: PriorMap) -> float:
        """Share of tiles, which look so, of which nothing is known: never spoken of, or changed altogether since."""

    def reset(self) -> None:
        """Another question: nothing is known about it."""
        self.answered = False
        self._learned = self._warp = self._here = self._prior = None
        self._tick = None

    def follow(self, warp: Warp) -> None:
        """Tiles moved so with the frame to come; of those that come into view nothing is known."""
        if self._learned is not None:
            self._warp = warp if self._warp is None else self._warp.then(warp)
            self._here = None
            self._tick = None

    def on_request(self, frame_index: int, appearance: PriorMap) -> None:
        """An answer about this frame is due, whose tiles look so: float32 [C, gh, gw]."""
        self._asked = frame_index, appearance

    def _looks_asked(self, frame_index: int) -> PriorMap | None:
        """Looks of an asked frame's tiles [C, gh, gw], as they lay there; None where they are unknown."""
        return self._asked[1] if self._asked is not None and self._asked[0] == frame_index else None

    def _learn(self, learned: Learned) -> None:
        """Another memory takes the place of this one, on the grid of the newest frame."""
        self._learned = self._here = learned
        self._warp = None
        self._tick = None

    def _now(self) -> Learned | None:
        """The memory on the grid of the newest frame."""
        if self._here is None and self._learned is not None:
            self._here = self._learned if self._warp is None else self._carried(self._learned, self._warp)
        return self._here

    def _is_still(self, media_ns: int, appearance: PriorMap) -> bool:
        """Whether the last prior holds for a media time and tiles that look so; notes both."""
        tick = media_ns // TICK_NS
        still = tick == self._tick and appearance is self._appearance and self._prior is not None
        self._tick, self._appearance = tick, appearance
        return still


class FeedbackPrior(PriorMemory[Map, _Learned]):
    """Per tile: attention and similarity, both in [0, 1], and when they were learned (media time).

    Attention is spread over the tiles of its region, and counts against the tile that has most of it: a coarse region
    is not looked at because it is large. It is heavy-tailed, so its square root is kept; of similarity, what is above
    zero. What was learned of a tile is trusted less, the more its appearance has changed since the answer's frame:
    whatever came into it has not been looked at. A glance sees coarse regions, so its attention is spread smoothly and
    trusted less from the start.
    """

    def __init__(self, maps: CompiledMaps | None = None) -> None:
        """`maps`: the compiled kernel, where it evaluates."""
        super().__init__()
        self._maps = maps

    def _carried(self, learned: _Learned, warp: Warp) -> _Learned:
        return learned.at(warp)

    def update(self, feedback: Feedback, shape: tuple[int, int], warp: Warp, *, glance: bool = False) -> None:
        """Take in the feedback of one answer, or `glance`, on a grid of `shape`, from whose frame `warp` leads to
        now."""
        self.answered |= not glance
        maps = warp.sample(maps_of(feedback, shape, glance=glance), np.nan)
        appearance = warp.sample(self.appearance_asked(feedback.stamp.frame_index, shape), np.nan)
        spoken = ~np.isnan(maps[0])
        old = self._now() or _Learned.nothing(shape, appearance)
        mixed = np.where(np.isfinite(old.learned_ns), RENEW * maps + (1 - RENEW) * old.known, maps)
        self._learn(
            _Learned(
                self._kept(np.where(spoken, mixed, old.known).astype(np.float32)),
                self._kept(np.where(spoken, float(feedback.stamp.media_ns), old.learned_ns)),
                self._kept(np.where(spoken, np.float32(GLANCE_TRUST if glance else 1), old.confidence)),
                self._kept(np.where(spoken, appearance, old.appearance)),
            )
        )

    def _kept(self, learned: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What is learned once and read for every frame, where the kernel finds it."""
        return learned if self._maps is None else self._maps.arrays.copy(learned)

    def evaluate(self, media_ns: int, appearance: Map) -> Map | None:
        """Attention, similarity and trust at a media time, where tiles look so: float32 [3, gh, gw] of [C, gh, gw];
        None while no answer taught anything.

        The same array object for a quarter of a second, unless something was learned or carried, or `appearance` is
        another.
        """
        if self._learned is None:
            return None
        if not self._is_still(media_ns, appearance):
            self._prior = self._evaluated(media_ns // TICK_NS * TICK_NS, appearance)
        return self._prior

    def _evaluated(self, media_ns: int, appearance: Map) -> Map | None:
        learned, warp = self._learned, self._warp
        if self._maps is not None and learned is not None and len(learned.appearance) == len(appearance):
            origin, limits = None if warp is None else warp.origin, (RENEWAL, FADE_S)
            known = learned.known, learned.learned_ns, learned.confidence, learned.appearance
            return self._maps.recall(origin, known, appearance, media_ns, limits)
        learned = self._now()
        assert learned is not None
        age_s = np.maximum(media_ns - learned.learned_ns, 0) / NS_PER_S
        change = np.nan_to_num(np.abs(appearance - learned.appearance).max(axis=0))
        trust = learned.confidence * np.exp(-age_s / FADE_S) * (1 - np.minimum(change / RENEWAL, 1))
        return np.concatenate([learned.known, trust[None].astype(np.float32)])

    def unknown_share(self, appearance: Map) -> float:
        """Share of tiles, which look so, of which nothing is known: never spoken of, or changed altogether since."""
        learned = self._now()
        if learned is None:
            return 1.0
        change = np.nan_to_num(np.abs(appearance - learned.appearance).max(axis=0))
        return float((~np.isfinite(learned.learned_ns) | (change >= RENEWAL)).mean())

    def appearance_asked(self, frame_index: int, shape: tuple[int, int]) -> Map:
        """Return the appearance of an asked frame's tiles, as they lay there; NaN where it is unknown."""
        looked = self._looks_asked(frame_index)
        return np.full((1, *shape), np.nan, np.float32) if looked is None else looked
