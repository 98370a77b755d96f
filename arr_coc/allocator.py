"""One stream's allocation: texture → relevance → time → regions, frame after frame, doing again only what moved."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.attending import Memory, Request, allocate_frame, check_strategy, resolve
from arr_coc.balancing import Tensions
from arr_coc.budget import DEFAULT_TOKENS, Budget, check_budget, tokens_for
from arr_coc.carrying import Carrier, carried
from arr_coc.exploration import Exploration
from arr_coc.prior import FeedbackPrior
from arr_coc.regions import level_map
from arr_coc.relevance import Realised, RelevanceRealiser
from arr_coc.structure import VOID_STRUCTURE
from arr_coc.temporal import TAU_MS, RelevanceBlend
from arr_coc.texture import MAGNITUDE, MipLevels, TextureArray, TextureArrayCache, texture_array
from arr_coc.types import LEVELS, Allocation, Feedback, FrameStamp, QueryEmbedding, TileVersions

log = logging.getLogger(__name__)

UNKNOWN = LEVELS
"""In a carried level map: a tile that was not in view before."""

VOID_HYSTERESIS = 0.05
"""The semantic-void guard sets in this far below its threshold, and lets go this far above."""

BUDGET_HYSTERESIS = 0.05
"""An adaptive budget moves only by more than this share."""

_APPEARANCE = [0, 1, 2, MAGNITUDE]


class StampedLevels(MipLevels, Protocol):
    """The part of a texture view that an allocation reads."""

    @property
    def stamp(self) -> FrameStamp: ...


class Motion(Protocol):
    """Camera motion since the frame before: content moved down and right by so many pixels."""

    @property
    def dy_px(self) -> float: ...

    @property
    def dx_px(self) -> float: ...


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """`levels`: whether the model knows coarse tokens. `tau_ms`: time constant of blending. Others: see `allocate`, `Tensions`."""

    strategy: str = "auto"
    budget: Budget = DEFAULT_TOKENS
    explore: float = 0.10
    coverage: float = 0.25
    tau_ms: float = TAU_MS
    seed: int = 0
    levels: bool = False

    @property
    def tensions(self) -> Tensions:
        """The three knobs among the options. Raises ValueError."""
        return Tensions(self.budget, self.explore, self.coverage)


@dataclass(frozen=True, slots=True)
class FrameAllocation:
    """What was decided for one frame, and why.

    `relevance` float32 [gh, gw], as blended over time; `scores` float32 [3, gh, gw] (information, perspective, participation) and
    `weights` float32 [3], of this frame alone; `levels` int8 [gh, gw], each tile's level, −1 where it is not shown; `jitter_share`, the share of
    tiles whose level differs from the frame before, carried along with motion; `change_since`, the
    relevance-weighted share of tiles that changed since the last answer; `strategy`, what `auto` meant.
    """

    stamp: FrameStamp
    allocation: Allocation
    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    levels: npt.NDArray[np.int8]
    jitter_share: float
    change_since: float
    strategy: str


class StreamAllocator:
    """Allocates the frames of one stream; used by one thread. The same frames, options and feedback give the same allocations.

    A new epoch (cut, seek, another size) forgets everything but the question. Raises BudgetError, StrategyError and ValueError for options
    that do not hold.
    """

    def __init__(self, options: AllocatorOptions | None = None, realiser: RelevanceRealiser | None = None) -> None:
        self.options = options or AllocatorOptions()
        self._tensions = self.options.tensions
        check_strategy(self.options.strategy)
        if self.options.budget != "adaptive":
            check_budget(self.options.budget, 1)
        self._realiser = (realiser or RelevanceRealiser()).eval()
        self._query: torch.Tensor | None = None
        self._texture = TextureArrayCache()
        self._carrier = Carrier()
        self._blend = RelevanceBlend(self.options.tau_ms)
        self._prior = FeedbackPrior()
        self._exploration = Exploration()
        self._epoch: int | None = None
        self._clamped = False
        self._forget_frames()

    def set_query(self, query: QueryEmbedding) -> None:
        """Ask another question: what answers to the old one taught is forgotten."""
        self._prior.reset()
        self._realised = None
        known = self._realiser.knows(query.model_id)
        self._query = torch.from_numpy(query.tokens.astype(np.float32))[None] if known else None

    def apply_feedback(self, feedback: Feedback) -> None:
        """Learn from an answer about an earlier frame of this epoch; feedback about another epoch is ignored."""
        if self._last is None or feedback.stamp.epoch != self._epoch:
            return
        moved = self._carrier.since(feedback.stamp.frame_index)
        if moved is not None:
            self._prior.learn(feedback, self._last.levels.shape, moved)

    @property
    def change(self) -> float:
        """Relevance-weighted share of tiles that changed since the last answer, in [0, 1]; 1 before the first one."""
        if self._last is None or self._answered is None or self._versions is None:
            return 1.0
        changed = self._answered.stale(self._versions)
        if not changed.any():
            return 0.0
        relevance = self._last.relevance.numpy()
        total = float(relevance.sum())
        return float(relevance[changed].sum()) / total if total > 0 else float(changed.mean())

    def mark_answered(self) -> None:
        """The newest allocation was given to a decoder: change counts from here, and what it showed counts as seen."""
        if self._last is not None:
            self._answered = self._versions
            self._exploration.shown(self._last.levels)

    @torch.inference_mode()
    def allocate(
        self, view: StampedLevels, shift: Motion | None = None, budget: Budget | None = None
    ) -> FrameAllocation:
        """Allocate the frame in `view`, whose content moved by `shift` since the frame before.

        `budget` overrides the options' for this frame. Raises BudgetError, and NonFiniteError where weights are broken.
        """
        stamp = view.stamp
        if view.versions.epoch != self._epoch:
            self._begin_epoch(view.versions.epoch, stamp)
        elif shift is not None:
            self._follow(stamp, shift)
        texture = texture_array(view, cache=self._texture)
        self._versions = self._texture.versions
        realised = self._realise(texture, stamp)
        appearance = texture.channels.numpy()[_APPEARANCE] if texture is not self._seen_texture else self._appearance
        self._seen_texture, self._appearance = texture, appearance
        held = self._blend.step(self._current, appearance, stamp.media_ns)
        tokens = self._tokens(budget, held)
        frame = self._attend(stamp, held, tokens, realised)
        self._last = replace(frame, change_since=self.change)
        return self._last

    def _begin_epoch(self, epoch: int, stamp: FrameStamp) -> None:
        self._epoch = epoch
        self._carrier.reset(stamp.frame_index)
        self._blend.reset()
        self._prior.reset()
        self._exploration.reset()
        self._forget_frames()

    def _forget_frames(self) -> None:
        self._last: FrameAllocation | None = None
        self._previous: npt.NDArray[np.int8] | None = None
        self._versions: TileVersions | None = None
        self._answered: TileVersions | None = None
        self._realised: Realised | None = None
        self._seen_texture: TextureArray | None = None
        self._seen_prior: npt.NDArray[np.float32] | None = None
        self._held: npt.NDArray[np.float32] | None = None
        self._neglect: npt.NDArray[np.float32] | None = None
        self._held_tokens = 0

    def _follow(self, stamp: FrameStamp, shift: Motion) -> None:
        """Carry along with the camera all that belongs to content, not to places."""
        moved = self._carrier.move(stamp.frame_index, shift.dy_px, shift.dx_px)
        if moved == (0, 0):
            return
        for memory in (self._blend, self._prior, self._exploration):
            memory.carry(*moved)
        if self._previous is not None:
            self._previous = carried(self._previous, *moved, UNKNOWN)
            self._held = None

    def _realise(self, texture: TextureArray, stamp: FrameStamp) -> Realised:
        """Scores and relevance of this frame alone; again only where the texture or the prior moved."""
        prior = self._prior.at(stamp.media_ns)
        same_texture = self._realised is not None and texture is self._seen_texture
        if self._realised is not None and same_texture and prior is self._seen_prior:
            return self._realised
        batch = TextureArray(texture.channels[None], texture.entropy[None])
        looked = self._realised.scores[:, :2] if self._realised is not None and same_texture else None
        prior_map = None if prior is None else torch.from_numpy(prior)[None]
        self._realised = self._realiser(batch, self._query, prior_map, looked)
        self._seen_prior = prior
        self._current = self._realised.relevance[0].numpy()
        return self._realised

    def _tokens(self, budget: Budget | None, held: npt.NDArray[np.float32]) -> int:
        wanted = self._tensions.budget if budget is None else budget
        if wanted == "adaptive" and held is self._held:
            return self._held_tokens
        tokens = tokens_for(wanted, held)
        if wanted != "adaptive":
            if tokens < wanted and not self._clamped:
                self._clamped = True
                log.warning(
                    "a budget of %s tokens is more than the frame's %d tiles; all of them are shown", wanted, tokens
                )
            return tokens
        if abs(tokens - self._held_tokens) <= BUDGET_HYSTERESIS * tokens:
            tokens = min(self._held_tokens, held.size)
        return tokens

    def _attend(
        self, stamp: FrameStamp, held: npt.NDArray[np.float32], tokens: int, realised: Realised
    ) -> FrameAllocation:
        """Choose regions, or keep the ones there are where nothing that they depend on moved."""
        neglect = self._exploration.neglect(realised.scores[0, 0].numpy()) if self._tensions.explore else None
        still = held is self._held and neglect is self._neglect and tokens == self._held_tokens
        if still and self._last is not None:
            return replace(
                self._last, stamp=stamp, scores=realised.scores[0], weights=realised.weights[0], jitter_share=0.0
            )
        memory = Memory(self._previous, neglect, self._tensions.explore)
        strategy = resolve(self.options.strategy, held, self.options.levels, self._void_threshold())
        allocation = allocate_frame(Request(held, tokens, self._tensions.coverage, self.options.seed, memory), strategy)
        levels = level_map(allocation.regions.numpy(), held.shape)
        jitter_share = _jitter_share(self._previous, levels)
        self._held, self._neglect, self._held_tokens, self._previous = held, neglect, tokens, levels
        return FrameAllocation(
            stamp=stamp,
            allocation=allocation,
            relevance=torch.from_numpy(held),
            scores=realised.scores[0],
            weights=realised.weights[0],
            levels=levels,
            jitter_share=jitter_share,
            change_since=0.0,
            strategy=strategy,
        )

    def _void_threshold(self) -> float:
        if self._last is None:
            return VOID_STRUCTURE
        return VOID_STRUCTURE + (VOID_HYSTERESIS if self._last.strategy == "grid" else -VOID_HYSTERESIS)


def _jitter_share(previous: npt.NDArray[np.int8] | None, levels: npt.NDArray[np.int8]) -> float:
    """Share of tiles whose level (or absence) is another than before, among those that were in view before."""
    if previous is None:
        return 0.0
    seen = previous != UNKNOWN
    return float((previous[seen] != levels[seen]).mean()) if seen.any() else 0.0
