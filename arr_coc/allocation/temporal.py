"""Maps over time: blending, feedback that fades, exploration, change. They follow what the tiles show.

Maps are tensors on one device. In host memory the compiled kernel blends, recalls and compares, if there is one; the
tensor operations beside it serve every device. A device is never asked for a value: what the host would look at is
known from time alone, or stays a tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.warping import CompiledMaps, Warp
from arr_coc.relevance.contradiction import GLANCE_TRUST
from arr_coc.texture.regions import overview_regions, paint, smooth_map, tile_counts
from arr_coc.types import NS_PER_MS, NS_PER_S, Feedback, TileVersions

TAU_MS = 93.0
"""Time constant of blending: a = exp(−Δt/τ) is 0.7 at 30 frames a second."""

DEAD_BAND = 0.02
"""A tile's relevance moves only when it has drifted this far from the output."""

RENEWAL = 0.25
"""A tile whose appearance changed by this much forgets its past altogether; less change, in proportion."""

SETTLED = 1e-3
"""Distance of blended from current relevance below which a scene has settled, if the host can look at it…"""

_SETTLED_SHARE = 1e-4
"""…and the past's share below which it has, on a device."""

Map = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Past:
    """The frame before: `blended`, `output` [gh, gw], `appearance` [C, gh, gw]; NaN for tiles that came into view."""

    blended: torch.Tensor
    output: torch.Tensor
    appearance: torch.Tensor

    def at(self, warp: Warp | None) -> _Past:
        """Return the same on the grid of a later frame."""
        if warp is None:
            return self
        maps = warp.sample(torch.cat([self.blended[None], self.output[None], self.appearance]), math.nan)
        return _Past(maps[0], maps[1], maps[2:])


class TemporalBlend:
    """blended = a·carried + (1 − a)·current, with a per tile lowered if its appearance changed.

    The output is the blended map with a dead band; in host memory, the same tensor as long as no tile leaves the band.
    """

    def __init__(self, tau_ms: float = TAU_MS, maps: CompiledMaps | None = None) -> None:
        """`maps`: the compiled kernel, if it blends in host memory."""
        self._tau_ns = tau_ms * NS_PER_MS
        self._maps = maps
        self._past: _Past | None = None
        self._warp: Warp | None = None
        self._current: torch.Tensor | None = None
        self._is_settled = False
        self._kept_share = 0.0
        self._media_ns = 0

    def follow(self, warp: Warp) -> None:
        """Motion of tiles with the next frame; tiles that come into view have no past."""
        if self._past is not None:
            self._past = self._past.at(self._warp)
            self._warp = warp
            self._is_settled = False
            self._kept_share = 1.0

    def replace(self, relevance: torch.Tensor) -> torch.Tensor:
        """Return the newest frame's relevance as it is: the past is forgotten, including the dead band of `step`."""
        if self._past is None:
            raise RuntimeError("there is no frame yet whose relevance could be replaced")
        self._past = _Past(relevance, relevance, self._past.appearance)
        self._warp = None
        self._current = relevance
        self._is_settled = True
        return relevance

    def step(self, relevance: torch.Tensor, appearance: torch.Tensor, media_ns: int) -> torch.Tensor:
        """Return the output map of a frame, float32 [gh, gw].

        Args:
            relevance: Relevance of this frame alone, float32 [gh, gw]; the same object as the last time means the same
                values. Not to be written to afterwards.
            appearance: Appearance of the tiles, float32 [C, gh, gw], in which change is measured, but for its last map,
                entropy. Not to be written to afterwards.
            media_ns: Media time of the frame.
        """
        past = self._past
        elapsed_ns = max(media_ns - self._media_ns, 0)
        if past is None:
            self._past = _Past(relevance, relevance, appearance)
            self._is_settled = True
        elif not (self._is_settled and relevance is self._current):
            share = math.exp(-elapsed_ns / self._tau_ns)
            self._kept_share = share * (self._kept_share if relevance is self._current else 1)
            self._past = self._blend(past, relevance, appearance, share)
        self._warp = None
        self._current = relevance
        self._media_ns = media_ns
        assert self._past is not None
        return self._past.output

    def _blend(self, past: _Past, relevance: torch.Tensor, appearance: torch.Tensor, share: float) -> _Past:
        """Return the state that the next frame is blended with; `share` is the past's on tiles of unchanged
        appearance."""
        if self._maps is not None and relevance.is_cpu:
            origin = None if self._warp is None else self._warp.origin
            limits = (share, RENEWAL, DEAD_BAND)
            before = (past.blended, past.output, past.appearance)
            blended, new_output, largest = self._maps.blend(origin, before, relevance, appearance, limits)
            output = past.output if new_output is None else new_output
            self._is_settled = largest < SETTLED
        else:
            past = past.at(self._warp)
            change = (appearance[:-1] - past.appearance[:-1]).abs().amax(dim=0)
            past_share = share * (1 - (change / RENEWAL).clamp(max=1))
            blended = relevance + past_share * (past.blended - relevance)
            blended = torch.where(blended.isnan(), relevance, blended)
            output = torch.where((blended - past.output).abs() <= DEAD_BAND, past.output, blended)
            self._is_settled = self._kept_share <= _SETTLED_SHARE
            if relevance.is_cpu:
                if output.equal(past.output):
                    output = past.output
                self._is_settled = float((blended - relevance).abs().max()) < SETTLED
        return _Past(relevance if self._is_settled else blended, output, appearance)


INFORMATION_BAND = 0.1
"""A tile's information counts as new only when it has moved this far; noise then does not turn the exploration."""


class ExplorationTracker:
    """Numbers of answers: in all, and of the last one in which each tile was shown at level 0.

    `staleness` is the number of answers since, weighted by the tile's information. It turns with answers, not with
    frames: what is explored stays put until a decoder has seen it.
    """

    def __init__(self, maps: CompiledMaps | None = None) -> None:
        """`maps`: the compiled kernel, if it compares in host memory."""
        self._maps = maps
        self._answers = 1
        self._shown_at: torch.Tensor | None = None
        self._information: torch.Tensor | None = None
        self._staleness: torch.Tensor | None = None

    def follow(self, step: Warp) -> None:
        """Motion of content by whole tiles; tiles that come into view were never seen."""
        if self._shown_at is not None and self._information is not None:
            self._shown_at = step.nearest(self._shown_at, 0)
            self._information = step.nearest(self._information, math.nan)
            self._staleness = None

    def mark_shown(self, levels: torch.Tensor) -> None:
        """A decoder was shown the frame with this level map [gh, gw]."""
        if self._shown_at is not None:
            self._shown_at = torch.where(levels == 0, self._answers, self._shown_at)
            self._answers += 1
            self._staleness = None

    def staleness(self, information: torch.Tensor) -> torch.Tensor:
        """Return float32 [gh, gw]; in host memory, the same tensor while neither answers nor information (beyond the
        band) moved."""
        if self._shown_at is None or self._information is None:
            self._shown_at = torch.zeros_like(information, dtype=torch.int64)
            self._information = information.clone()
        drifted = self._drift(information, self._information)
        if drifted is not None:
            self._information = drifted
            self._staleness = None
        if self._staleness is None:
            self._staleness = (self._answers - self._shown_at) * self._information
        return self._staleness

    def _drift(self, information: torch.Tensor, reference: torch.Tensor) -> torch.Tensor | None:
        """Return the `reference` information, updated by values that left the band; None if the host sees none of
        them."""
        if self._maps is not None and information.is_cpu:
            return self._maps.drift(information, reference, INFORMATION_BAND)
        in_band = (information - reference).abs() <= INFORMATION_BAND
        if in_band.is_cpu and in_band.all():
            return None
        return torch.where(in_band, reference, information)


FADE_S = 5.0
"""After this much media time feedback is trusted 1/e as much."""

RENEW = 0.7
"""Share of the newest answer on tiles that an older one covered, too."""

TICK_NS = NS_PER_S // 4
"""Fading goes in steps, so that a still scene has a still prior."""

_TINY = 1e-12


def attention_of(feedback: Feedback, shape: tuple[int, int]) -> Map:
    """Return the attention to a tile of each region [K], by the largest, as its square root: in [0, 1]."""
    attention = np.clip(feedback.attention, 0, 1) / tile_counts(feedback.regions, shape)
    return np.sqrt(attention / attention.max(initial=_TINY)).astype(np.float32)


def _maps_of(feedback: Feedback, shape: tuple[int, int], *, glance: bool) -> Map:
    """Return the attention and similarity of the tiles of the frame that feedback is about: [2, gh, gw], each in [0,
    1].

    A `glance` at an overview reports regions of one level, which are spread smoothly; an answer's are painted, with NaN
    elsewhere, and those of a glance at a group of pictures.
    """
    reported = np.stack([attention_of(feedback, shape), np.clip(feedback.similarity, 0, 1)]).astype(np.float32)
    if glance and np.array_equal(feedback.regions, overview_regions(shape, len(feedback.regions))):
        return np.stack([smooth_map(row, int(feedback.regions[0, 0]), shape) for row in reported])
    return np.stack([paint(feedback.regions, row, shape, np.nan) for row in reported])


@dataclass(frozen=True, eq=False)
class _FeedbackMaps:
    """Feedback of answers, on the grid of one frame: `values` float32 [2, gh, gw] (attention, similarity), `learned_ns`
    float64 [gh, gw] (−inf for never), `confidence` [gh, gw] of what taught it, and the tiles' `appearance` [C, gh, gw]
    at that time; NaN if nothing is known of it."""

    values: torch.Tensor
    learned_ns: torch.Tensor
    confidence: torch.Tensor
    appearance: torch.Tensor

    @classmethod
    def empty(cls, appearance: torch.Tensor) -> _FeedbackMaps:
        """Nothing of any tile of a grid, whose tiles look so."""
        values = torch.zeros_like(appearance[:1]).repeat(2, 1, 1)
        never = torch.full_like(values[0], -math.inf, dtype=torch.float64)
        return cls(values, never, values[0], torch.full_like(appearance, math.nan))

    def at(self, warp: Warp) -> _FeedbackMaps:
        """Return the same on the grid of a later frame; of tiles that came into view nothing is known."""
        return _FeedbackMaps(
            warp.sample(self.values, 0.0),
            warp.nearest(self.learned_ns, -math.inf),
            warp.nearest(self.confidence, 0.0),
            warp.sample(self.appearance, math.nan),
        )


class FeedbackPrior:
    """Per tile: attention and similarity, both in [0, 1], and when they were learned (media time).

    Attention is spread over the tiles of its region, and counts against the tile that has most of it: a coarse region
    is not looked at because it is large. It is heavy-tailed, so its square root is kept; of similarity, what is above
    zero. What was learned of a tile is trusted less, the more its appearance has changed since the answer's frame:
    whatever came into it has not been looked at. A glance sees coarse regions, so its attention is spread smoothly and
    trusted less from the start.

    What was learned stays on the grid of the frame at which it was, with the warp from there to now, so that it is read
    between tiles once, however many frames ago that was.

    `answered`: an answer taught some of it. A glance alone has the model's attention even on an empty picture, so it
    does not prove that there is something to see.
    """

    def __init__(self, maps: CompiledMaps | None = None) -> None:
        """`maps`: the compiled kernel, if it evaluates in host memory."""
        self.answered = False
        self._maps = maps
        self._feedback: _FeedbackMaps | None = None
        self._warp: Warp | None = None
        self._newest: _FeedbackMaps | None = None
        self._request: tuple[int, torch.Tensor] | None = None
        self._prior: torch.Tensor | None = None
        self._evaluated_for: tuple[int, torch.Tensor] | None = None

    def reset(self) -> None:
        """Another question: nothing is known about it."""
        self.answered = False
        self._feedback = self._warp = self._newest = self._evaluated_for = None

    def follow(self, warp: Warp) -> None:
        """Motion of tiles with the next frame; of tiles that come into view nothing is known."""
        if self._feedback is not None:
            if self._warp is None:
                self._warp = warp
            else:
                self._warp = self._warp.then(warp)
            self._newest = self._evaluated_for = None

    def on_request(self, frame_index: int, appearance: torch.Tensor) -> None:
        """An answer about this frame is due, whose tiles look so: float32 [C, gh, gw]."""
        self._request = frame_index, appearance

    def requested_appearance(self, frame_index: int, like: torch.Tensor) -> torch.Tensor:
        """Return the appearance of an asked frame's tiles, as they lay there; NaN, `like` another one, if it is
        unknown."""
        if self._request is not None and self._request[0] == frame_index:
            return self._request[1]
        return torch.full_like(like, math.nan)

    def update(self, feedback: Feedback, appearance: torch.Tensor, warp: Warp, *, glance: bool = False) -> None:
        """Take in the feedback of one answer or glance.

        Args:
            feedback: Attention and similarity of the tokens of the answer's frame.
            appearance: Appearance of the newest frame's tiles, float32 [C, gh, gw].
            warp: Warp from the newest frame to the answer's.
            glance: Whether it is a glance's, which is trusted less.
        """
        self.answered |= not glance
        rows, cols = appearance.shape[1:]
        frame_maps = torch.from_numpy(_maps_of(feedback, (rows, cols), glance=glance)).to(appearance.device)
        maps = warp.sample(frame_maps, math.nan)
        asked_appearance = warp.sample(self.requested_appearance(feedback.stamp.frame_index, appearance), math.nan)
        is_reported = ~maps[0].isnan()
        old = self._now() or _FeedbackMaps.empty(asked_appearance)
        mixed = torch.where(old.learned_ns.isfinite(), RENEW * maps + (1 - RENEW) * old.values, maps)
        self._feedback = self._newest = _FeedbackMaps(
            torch.where(is_reported, mixed, old.values),
            torch.where(is_reported, float(feedback.stamp.media_ns), old.learned_ns),
            torch.where(is_reported, GLANCE_TRUST if glance else 1.0, old.confidence),
            torch.where(is_reported, asked_appearance, old.appearance),
        )
        self._warp = self._evaluated_for = None

    def evaluate(self, media_ns: int, appearance: torch.Tensor) -> torch.Tensor | None:
        """Attention, similarity and trust at a media time, for tiles of this appearance: float32 [3, gh, gw] of
        [C, gh, gw]; None before the first feedback.

        The same tensor for a quarter of a second, unless something was learned or carried, or `appearance` is another.
        """
        if self._feedback is None:
            return None
        tick = media_ns // TICK_NS
        key = self._evaluated_for
        if key is None or key[0] != tick or key[1] is not appearance:
            self._prior = self._evaluate(self._feedback, tick * TICK_NS, appearance)
            self._evaluated_for = tick, appearance
        return self._prior

    def _evaluate(self, feedback: _FeedbackMaps, media_ns: int, appearance: torch.Tensor) -> torch.Tensor:
        if self._maps is not None and appearance.is_cpu:
            origin = None if self._warp is None else self._warp.origin
            limits = (RENEWAL, FADE_S)
            maps = feedback.values, feedback.learned_ns, feedback.confidence, feedback.appearance
            return self._maps.recall(origin, maps, appearance, media_ns, limits)
        newest = self._now()
        assert newest is not None
        age_s = (media_ns - newest.learned_ns).clamp(min=0) / NS_PER_S
        fade = torch.exp(-age_s / FADE_S)
        trust = newest.confidence * fade * (1 - (_change(appearance, newest) / RENEWAL).clamp(max=1))
        return torch.cat([newest.values, trust.float()[None]])

    def unknown_share(self, appearance: torch.Tensor) -> float:
        """Return the share of tiles without feedback, given their `appearance` now: never part of an answer, or changed
        altogether since. One number comes to the host."""
        feedback = self._now()
        if feedback is None:
            return 1.0
        unknown = ~feedback.learned_ns.isfinite() | (_change(appearance, feedback) >= RENEWAL)
        return float(unknown.double().mean())

    def _now(self) -> _FeedbackMaps | None:
        """Return the feedback, on the grid of the newest frame."""
        if self._newest is None and self._feedback is not None:
            if self._warp is None:
                self._newest = self._feedback
            else:
                self._newest = self._feedback.at(self._warp)
        return self._newest


def _change(appearance: torch.Tensor, feedback: _FeedbackMaps) -> torch.Tensor:
    """By how much tiles look different from when they were learned about; 0 if that is unknown."""
    return (appearance - feedback.appearance).abs().amax(dim=0).nan_to_num()


class ChangeMeter:
    """Share of change since the versions that were marked last; everything counts as changed before the first mark.

    A tile weighs as much as it is relevant now; with `keep_vanished`, as much as it ever was since the mark, so that
    what has vanished from a plain wall counts as much as what has come. `maps`: the compiled kernel, if it measures in
    host memory.
    """

    def __init__(self, maps: CompiledMaps | None = None, *, keep_vanished: bool = False) -> None:
        self._maps = maps
        self._keep_vanished = keep_vanished
        self._marked: TileVersions | None = None
        self._now: torch.Tensor | None = None
        self._weights: torch.Tensor | None = None

    def mark(self, versions: TileVersions | None) -> None:
        """Count from here: from the last frame that was shown."""
        self._marked = versions
        self._weights = self._now

    def measure(self, versions: TileVersions | None, relevance: torch.Tensor) -> torch.Tensor | float:
        """Return the share of a frame's `relevance` [rows, cols] that lies on tiles that have changed, in [0, 1]; of
        the tiles, if nothing is relevant. A scalar on a device, unless it is known without asking that."""
        if self._keep_vanished:
            before = self._weights
            self._now = relevance
            if before is None or (before.shape, before.device) != (relevance.shape, relevance.device):
                self._weights = relevance
            else:
                self._weights = torch.maximum(before, relevance)
            relevance = self._weights
        if self._marked is None or versions is None:
            return 1.0
        if self._marked is versions:
            return 0.0
        if self._maps is not None and relevance.is_cpu and self._marked.is_comparable(versions):
            return self._maps.changed_share(self._marked.frame, versions.frame, relevance)
        stale = self._marked.stale(versions)
        if not stale.any():
            return 0.0
        changed = torch.from_numpy(stale.astype(np.float32)).to(relevance.device)
        total = relevance.sum()
        return torch.where(total > 0, (relevance * changed).sum() / total, changed.mean())
