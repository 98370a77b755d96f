"""`DeviceAllocator`: the frames of one stream allocated where their texture lies; `DeviceFrameAllocation`, what it
decides.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import (
    AllocatorOptions,
    FrameAllocation,
    PlannedFrame,
    StreamAllocator,
)
from arr_coc.allocation.attending import check_strategy
from arr_coc.allocation.epochs import ChangeMarks, EpochAllocator, carry_along
from arr_coc.allocation.inspection import AllocationMaps
from arr_coc.allocation.on_device.choice import STRATEGIES_ON_DEVICE, DeviceChoice, DeviceSelector
from arr_coc.allocation.on_device.maps import DeviceBlend, DeviceExploration, DevicePrior, DeviceWarp
from arr_coc.allocation.warping import MotionHistory, Warp, WholeTileSteps
from arr_coc.budget import ADAPTIVE, Budget, check_budget, fixed_tokens
from arr_coc.errors import DeviceLost, NonFiniteError
from arr_coc.ops.store.base import TextureView
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import DeviceChannels, TextureArray, TextureArrayCache, device_texture_array
from arr_coc.relevance.knowing import QueryWeights
from arr_coc.types import Allocation, Feedback, FrameStamp, QueryEmbedding, TileMotion, TileVersions


@dataclass(frozen=True)
class DeviceFrameAllocation:
    """Decision for one frame, on its texture's device; `on_host` brings it over whole, `chosen` the regions alone.

    `relevance` float32 [gh, gw], as blended over time; `scores` float32 [3, gh, gw] and their `weights` float32 [3], of
    this frame alone; `jitter`, a scalar; `void`, a scalar bool: the picture is one, and `grid` was chosen. The others
    are those of `FrameAllocation`; `tokens` is how many were planned, of which a quadtree may leave two and the grid of
    a void some.
    """

    stamp: FrameStamp
    choice: DeviceChoice
    overview: int
    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    jitter: torch.Tensor
    void: torch.Tensor | None
    strategy: str
    change_since: float
    change_since_look: float
    glance_tokens: int

    jitter_share = None
    """It is not brought over for each frame; see `on_host`."""

    @property
    def tokens(self) -> int:
        """Number of regions that were planned."""
        return self.choice.tokens

    @property
    def tiles(self) -> int:
        """Number of tiles of the frame."""
        return self.relevance.numel()

    @cached_property
    def chosen(self) -> Allocation:
        """The regions in host memory, in one copy of 20 bytes a token.

        Raises NonFiniteError where weights are broken: a frame is not looked at before it is asked about; DeviceLost.
        """
        choice, count = self.choice, self.tokens
        parts = [choice.regions.int().flatten(), choice.relevance.view(torch.int32), choice.mask.int()]
        try:
            together = torch.cat(parts).cpu()
        except torch.AcceleratorError as error:
            raise DeviceLost(f"the GPU failed while a frame was chosen from ({str(error).splitlines()[0]})") from error
        regions, relevance, mask = together.split((3 * count, count, count))
        kept = int(mask.sum())
        shown = relevance.view(torch.float32)[:kept]
        if not torch.isfinite(shown).all():
            raise NonFiniteError("the relevance of the chosen regions holds NaN or Inf")
        return Allocation(
            regions.view(-1, 3)[:kept].long(), shown, torch.ones(kept, dtype=torch.bool), overview=self.overview
        )

    def on_host(self) -> FrameAllocation:
        """The whole of it in host memory. Raises as `chosen`."""
        return self._host

    @cached_property
    def _host(self) -> FrameAllocation:
        void = self.void is not None and bool(self.void)
        return FrameAllocation(
            stamp=self.stamp,
            allocation=self.chosen,
            relevance=self.relevance.cpu(),
            scores=self.scores.cpu(),
            weights=self.weights.cpu(),
            levels=self.choice.levels.cpu().numpy(),
            jitter_share=float(self.jitter),
            change_since=self.change_since,
            strategy="grid" if void else self.strategy,
            change_since_look=self.change_since_look,
            glance_tokens=self.glance_tokens,
        )


class _DeviceChangeMeter(ChangeMarks[torch.Tensor]):
    """Counts from the versions that were marked last, weighted by relevance; see `ChangeMeter`.

    Versions are the host's; where nothing moved, nothing is asked of the device.
    """

    def measure(self, versions: TileVersions, relevance: torch.Tensor) -> torch.Tensor | float:
        """The share of a frame's relevance [rows, cols] on tiles that changed, a scalar on the device, or a number that
        is known without it."""
        relevance = self._weighed(relevance)
        if self._marked is None:
            return 1.0
        stale = self._marked.stale(versions)
        if not stale.any():
            return 0.0
        changed = torch.from_numpy(stale.astype(np.float32)).to(relevance.device)
        total = relevance.sum()
        return torch.where(total > 0, (relevance * changed).sum() / total, changed.mean())

    def _larger(self, before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        return torch.maximum(before, now) if before.shape == now.shape else now


class DeviceRelevance:
    """The relevance of one stream's pictures on their device, made again where texture, prior or question moved."""

    def __init__(self, realiser: RelevanceRealiser, device: torch.device) -> None:
        self._realiser, self._device = realiser.eval().to(device), device
        self._query: torch.Tensor | None = None
        self._query_weights: QueryWeights | None = None
        self._made: tuple[object, object, torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def set_query(self, query: QueryEmbedding | None) -> None:
        """Ask another question; only learned parts that know its model's embeddings hear it."""
        known = query is not None and self._realiser.knows(query.model_id)
        if known and query is not None:
            self._query = torch.from_numpy(query.tokens.astype(np.float32))[None].to(self._device)
        else:
            self._query = None
        with torch.inference_mode():
            self._query_weights = self._realiser.participation.encode_query(self._query)
        self._made = None

    @property
    def newest(self) -> torch.Tensor | None:
        """Relevance [gh, gw] that was computed last."""
        return None if self._made is None else self._made[2]

    def compute(
        self, texture: TextureArray, prior: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Relevance [gh, gw], scores [3, gh, gw] and weights [3]; the same objects for the same arguments.

        Raises DeviceLost where the device has no memory left.
        """
        done = self._made
        if done is not None and done[0] is texture and done[1] is prior:
            return done[2:]
        picture_scores = done[3][None, :2] if done is not None and done[0] is texture else None
        batch = TextureArray(texture.channels[None], texture.entropy[None])
        asked = None if prior is None else prior[None]
        try:
            maps = self._realiser(batch, self._query, asked, picture_scores, self._query_weights, checked=False)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            raise DeviceLost(f"no memory is left on {self._device} to score frames: {reason}") from error
        self._made = (texture, prior, maps.relevance[0], maps.scores[0], maps.weights[0])
        return self._made[2:]


@dataclass(frozen=True, slots=True)
class _DeviceEpoch:
    """All that is remembered of one epoch."""

    epoch: int
    motions: MotionHistory
    steps: WholeTileSteps
    blend: DeviceBlend
    prior: DevicePrior
    exploration: DeviceExploration
    selector: DeviceSelector

    def follow(self, frame_index: int, motion: TileMotion, device: torch.device) -> None:
        """Carry along with the picture all that belongs to content, not to places."""
        carry_along(self, frame_index, Warp.of(motion), lambda warp: DeviceWarp(warp, device))


def suits_device(options: AllocatorOptions, channels: str) -> bool:
    """Return True if frames with these options can be allocated on a device.

    The host's own are: channels of the past (`full40`), wide tokens, the budget `adaptive` and the strategy `fixation`.
    """
    return (
        channels == "core13"
        and not options.wide
        and options.budget != ADAPTIVE
        and options.strategy in STRATEGIES_ON_DEVICE
    )


class _DeviceStream(EpochAllocator[_DeviceEpoch, DeviceFrameAllocation, torch.Tensor]):
    """Allocates the frames of one stream whose views are all of one device; see `DeviceAllocator`."""

    def __init__(self, options: AllocatorOptions, realiser: RelevanceRealiser, *, measures_change: bool) -> None:
        self._since_answer, self._since_look = _DeviceChangeMeter(), _DeviceChangeMeter(keep_vanished=True)
        super().__init__(options.tensions, options.glance, self._since_answer, self._since_look)
        self._options = options
        self._realiser = realiser
        self._measures_change = measures_change
        self._relevance: DeviceRelevance | None = None
        self._texture = TextureArrayCache()
        self._prior: torch.Tensor | None = None

    @torch.inference_mode()
    def glance_due(self, media_ns: int) -> bool:
        """Return True if it is time to glance at the newest frame; see `EpochAllocator.glance_due`."""
        return super().glance_due(media_ns)

    @torch.inference_mode()
    def mark_answered(self) -> None:
        """The newest allocation was given to a decoder; see `EpochAllocator.mark_answered`."""
        super().mark_answered()

    @torch.inference_mode()
    def allocate(
        self, view: TextureView, motion: TileMotion | None, budget: Budget | None, at_most: int | None
    ) -> DeviceFrameAllocation:
        """Allocate a frame; see `DeviceAllocator.allocate`."""
        assert isinstance(view, DeviceChannels)
        texture = device_texture_array(view, "core13", self._texture)
        self._follow_device(texture.channels.device)
        state = self._memory_of(view.versions.epoch, view.stamp.frame_index)
        if motion is not None:
            state.follow(view.stamp.frame_index, motion, texture.channels.device)
        self._versions = self._texture.versions
        current, scores, weights = self._realise(state, texture, view.stamp)
        relevance = state.blend.step(current, self._appearance[:-1], view.stamp.media_ns)
        return self._select(state, view.stamp, (relevance, scores, weights), budget, at_most, glanced=False)

    @torch.inference_mode()
    def reallocate(self, view: TextureView, budget: Budget | None, at_most: int | None) -> DeviceFrameAllocation:
        """Allocate the newest frame once more; see `DeviceAllocator.reallocate`."""
        state, texture = self._newest(view.stamp)
        current, scores, weights = self._realise(state, texture, view.stamp)
        state.selector.forget_choice()
        relevance = state.blend.replace(current)
        return self._select(state, view.stamp, (relevance, scores, weights), budget, at_most, glanced=True)

    def inspect(self, stamp: FrameStamp) -> AllocationMaps | None:
        """Return copies of the maps that a frame was allocated from, in host memory; None unless it is the newest."""
        texture, frame, relevance = self._shown_texture, self._last, self._relevance
        if texture is None or frame is None or relevance is None or relevance.newest is None or frame.stamp != stamp:
            return None

        def copied(map_of_tiles: torch.Tensor) -> npt.NDArray[np.float32]:
            return map_of_tiles.cpu().numpy().copy()

        return AllocationMaps(
            profile="core13",
            channels=copied(texture.channels),
            entropy=copied(texture.entropy),
            scores=copied(frame.scores),
            weights=copied(frame.weights),
            own=copied(relevance.newest),
            blended=copied(frame.relevance),
            prior=None if self._prior is None else copied(self._prior),
        )

    def host_allocator(self, *, apart: bool) -> StreamAllocator:
        """Return an allocator in host memory with the same options, weights and question. `apart`: for another thread
        beside this one, so that it has weights of its own, and channels and scores by the host; else in its place."""
        if apart:
            made = StreamAllocator(replace(self._options, on_device=False), copy.deepcopy(self._realiser).cpu())
        else:
            made = StreamAllocator(self._options, self._realiser.to("cpu"))
        if self._query is not None:
            made.set_query(self._query)
        return made

    def _ask(self, query: QueryEmbedding) -> None:
        if self._relevance is not None:
            self._relevance.set_query(query)

    @torch.inference_mode()
    def _teach(self, memory: _DeviceEpoch, feedback: Feedback, warp: Warp, *, glance: bool) -> None:
        memory.prior.update(feedback, self._appearance, warp, glance=glance)

    def _mark_shown(self, memory: _DeviceEpoch, frame: DeviceFrameAllocation) -> None:
        memory.exploration.mark_shown(frame.choice.levels)

    def _realise(
        self, state: _DeviceEpoch, texture: TextureArray, stamp: FrameStamp
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The frame's own relevance, scores and weights, by its texture and by what is known at its time."""
        if texture is not self._shown_texture:
            self._shown_texture = texture
            self._appearance = torch.cat([texture.appearance, texture.entropy[None]])
        self._prior = state.prior.evaluate(stamp.media_ns, self._appearance)
        assert self._relevance is not None
        return self._relevance.compute(texture, self._prior)

    def _select(
        self,
        state: _DeviceEpoch,
        stamp: FrameStamp,
        maps: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        budget: Budget | None,
        at_most: int | None,
        *,
        glanced: bool,
    ) -> DeviceFrameAllocation:
        relevance, scores, weights = maps
        tiles = relevance.numel()
        tokens = fixed_tokens(self._tensions.budget if budget is None else budget, tiles, self._tensions.limits)
        if at_most is not None:
            tokens = min(tokens, fixed_tokens(at_most, tiles))
        staleness = state.exploration.staleness(scores[0]) if self._tensions.explore else None
        answered = self._prior if state.prior.answered else None
        selected = state.selector.choose(relevance, tokens, staleness, self._appearance, answered, glanced=glanced)
        assert self._versions is not None
        since_answer = self._since_answer.measure(self._versions, relevance)
        since_look = self._since_look.measure(self._versions, relevance)
        change, look = self._numbers(since_answer, since_look)
        self._last = DeviceFrameAllocation(
            stamp=stamp,
            choice=selected.choice,
            overview=selected.overview,
            relevance=relevance,
            scores=scores,
            weights=weights,
            jitter=selected.jitter,
            void=selected.void,
            strategy=selected.strategy,
            change_since=change,
            change_since_look=look,
            glance_tokens=selected.glance_tokens,
        )
        return self._last

    def _numbers(self, *shares: torch.Tensor | float) -> list[float]:
        """The numbers in one copy; 1 for those that nobody asks for."""
        wanted = [share for share in shares if isinstance(share, torch.Tensor)]
        if not self._measures_change or not wanted:
            return [1.0 if isinstance(share, torch.Tensor) else share for share in shares]
        brought = iter(torch.stack(wanted).cpu().tolist())
        return [next(brought) if isinstance(share, torch.Tensor) else share for share in shares]

    def _begin_epoch(self, epoch: int, frame_index: int) -> _DeviceEpoch:
        options = self._options
        return _DeviceEpoch(
            epoch=epoch,
            motions=MotionHistory(frame_index),
            steps=WholeTileSteps(),
            blend=DeviceBlend(options.tau_ms),
            prior=DevicePrior(),
            exploration=DeviceExploration(),
            selector=DeviceSelector(
                options.strategy, self._tensions, levels=options.levels, seed=options.seed, glance=options.glance
            ),
        )

    def _follow_device(self, device: torch.device) -> None:
        """The scorers lie where the first texture lies, as all of a run's do."""
        if self._relevance is None:
            self._relevance = DeviceRelevance(self._realiser, device)
            self._relevance.set_query(self._query)


class DeviceAllocator:
    """Allocates the frames of one stream where their texture lies; used by one thread.

    It decides as `StreamAllocator` does, but for rounding, and copies nothing to the host: not for a frame, but for
    `measures_change`, which is one number each for the last answer and the last look; regions and relevance once a
    frame is asked about. Where a view is no device's (hardware that gave up), a `StreamAllocator` takes over for good;
    it begins with an epoch of its own, as the store that took over does.
    """

    def __init__(self, options: AllocatorOptions, realiser: RelevanceRealiser, *, measures_change: bool = True) -> None:
        """Raises BudgetError, StrategyError, and ValueError for shares outside [0, 1] or options that do not suit."""
        if not suits_device(options, realiser.channels):
            raise ValueError(f"{options} with channels {realiser.channels} are allocated in host memory only")
        check_strategy(options.strategy)
        check_budget(options.budget)
        self.options = options
        self._present: _DeviceStream | StreamAllocator
        self._present = _DeviceStream(options, realiser, measures_change=measures_change)

    @property
    def question(self) -> str:
        """The question, as text; empty before there is one."""
        return self._present.question

    def set_query(self, query: QueryEmbedding) -> None:
        """Ask another question; see `EpochAllocator.set_query`."""
        self._present.set_query(query)

    def apply_feedback(self, feedback: Feedback) -> None:
        """Learn from an answer; see `EpochAllocator.apply_feedback`."""
        self._present.apply_feedback(feedback)

    def glance_due(self, media_ns: int) -> bool:
        """Return True if it is time to glance at the newest frame; see `EpochAllocator.glance_due`."""
        return self._present.glance_due(media_ns)

    def on_glance(self) -> None:
        """A glance at the newest frame is asked for: `apply_glance` will tell what it saw."""
        self._present.on_glance()

    def apply_glance(self, feedback: Feedback | None) -> None:
        """Learn from a glance; see `EpochAllocator.apply_glance`."""
        self._present.apply_glance(feedback)

    def mark_answered(self) -> None:
        """The newest allocation was given to a decoder; see `EpochAllocator.mark_answered`."""
        self._present.mark_answered()

    def mark_looked(self) -> None:
        """The newest allocation was looked at for a standing question: `change_since_look` counts from here."""
        self._present.mark_looked()

    def allocate(
        self,
        view: TextureView,
        motion: TileMotion | None = None,
        budget: Budget | None = None,
        at_most: int | None = None,
    ) -> DeviceFrameAllocation | FrameAllocation:
        """Allocate the frame in `view`, whose tiles moved by `motion` since the frame before; None: nothing moved.

        `budget` overrides the options' for this frame, `at_most` limits it. Raises BudgetError, DeviceLost.
        """
        return self._suiting(view).allocate(view, motion, budget, at_most)

    def observe(
        self,
        view: TextureView,
        motion: TileMotion | None = None,
        budget: Budget | None = None,
        at_most: int | None = None,
    ) -> DeviceFrameAllocation | PlannedFrame:
        """Take in the frame in `view`; see `StreamAllocator.observe`. On the device its regions are chosen at once,
        which nobody waits for."""
        present = self._suiting(view)
        if isinstance(present, StreamAllocator):
            return present.observe(view, motion, budget, at_most)
        return present.allocate(view, motion, budget, at_most)

    def reallocate(
        self, view: TextureView, budget: Budget | None = None, at_most: int | None = None
    ) -> DeviceFrameAllocation | FrameAllocation:
        """Allocate the frame that was allocated last once more, after a glance; see `StreamAllocator.reallocate`."""
        return self._present.reallocate(view, budget, at_most)

    def inspect(self, stamp: FrameStamp) -> AllocationMaps | None:
        """Return copies of the maps that a frame was allocated from, in host memory; None unless it is the newest."""
        return self._present.inspect(stamp)

    def sibling(self) -> StreamAllocator:
        """Return an allocator in host memory with the same options, weights and question; see `StreamAllocator`."""
        present = self._present
        return present.sibling() if isinstance(present, StreamAllocator) else present.host_allocator(apart=True)

    def _suiting(self, view: TextureView) -> _DeviceStream | StreamAllocator:
        """The allocator for a view: the host's for good, once one came that is no device's."""
        if isinstance(self._present, _DeviceStream) and not isinstance(view, DeviceChannels):
            self._present = self._present.host_allocator(apart=False)
        return self._present
