"""Allocator of one stream: texture to relevance to regions, frame after frame; selection with hysteresis, change
meter."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.attending import (
    VOID_STRUCTURE,
    AllocationHistory,
    AllocationRequest,
    Tensions,
    allocate_frame,
    check_strategy,
    map_structure,
    picture_structure,
    resolve_strategy,
)
from arr_coc.allocation.compiled_maps import CompiledMaps, maps_or_none
from arr_coc.allocation.epochs import ChangeMarks, EpochAllocator, carry_along
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.history import HistoryTracker
from arr_coc.allocation.inspection import AllocationMaps
from arr_coc.allocation.temporal import (
    TAU_MS,
    ExplorationTracker,
    FeedbackPrior,
    TemporalBlend,
)
from arr_coc.allocation.text_lines import line_strength, line_tiles
from arr_coc.allocation.warping import MotionHistory, Warp, WholeTileSteps
from arr_coc.budget import (
    ADAPTIVE,
    AUTO,
    DEFAULT_BUDGET,
    DEFAULT_LIMITS,
    Budget,
    TokenLimits,
    check_budget,
    least_tokens_wanted,
    tokens_for,
)
from arr_coc.errors import counted
from arr_coc.ops.kernels import ArrayPool
from arr_coc.ops.regions import UNKNOWN, region_mean, shape_map
from arr_coc.ops.store.base import TextureView
from arr_coc.relevance.balancing import RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import (
    TextureArray,
    TextureArrayCache,
    device_texture_array,
    load_profile,
    texture_array,
)
from arr_coc.types import Allocation, Feedback, FrameStamp, QueryEmbedding, TileMotion, TileVersions

log = logging.getLogger(__name__)

Map = npt.NDArray[np.float32]


class ChangeMeter(ChangeMarks[Map]):
    """Counts from the versions that were marked last; everything counts as changed before the first mark.

    A tile weighs as much as it is relevant now; see `ChangeMarks`. `maps`: the compiled kernel, where it measures.
    """

    def __init__(self, maps: CompiledMaps | None = None, *, keep_vanished: bool = False) -> None:
        super().__init__(keep_vanished=keep_vanished)
        self._maps = maps

    def measure(self, versions: TileVersions | None, relevance: Map) -> float:
        """Shows a frame's `relevance` [rows, cols]: the share of it that lies on tiles that have changed, in [0, 1]; of
        the tiles, where nothing is relevant."""
        relevance = self._weighed(relevance)
        if self._marked is None or versions is None:
            return 1.0
        if self._marked is versions:
            return 0.0
        if self._maps is not None and self._marked.is_comparable(versions):
            return self._maps.changed_share(self._marked.frame, versions.frame, relevance)
        changed = self._marked.stale(versions)
        total = float(relevance.sum())
        return float(relevance[changed].sum()) / total if total > 0 else float(changed.mean())

    def _larger(self, before: Map, now: Map) -> Map:
        return np.maximum(before, now) if before.shape == now.shape else now


VOID_HYSTERESIS = 0.05
"""The semantic-void guard sets in this far below its threshold, and lets go this far above."""

BUDGET_HYSTERESIS = 0.05
"""An adaptive budget moves only by more than this share."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The regions of one frame.

    `levels` int8 [gh, gw]: the shape of the region that shows each tile (the level, of squares), −1 where none does.
    `jitter_share`: share of tiles whose shape differs from the frame before, carried along with motion. `strategy`:
    what `auto` meant. `glance_tokens`: how many tokens its overview has, shown or not; 0 without one.
    """

    allocation: Allocation
    levels: npt.NDArray[np.int8]
    jitter_share: float
    strategy: str
    glance_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Division of a frame's `tokens` before regions are chosen: the regions [N, 3] of the `overview` that they have
    room for, those of them that are `shown`, and how many tokens are `left` to choose."""

    tokens: int
    overview: npt.NDArray[np.int64]
    shown: npt.NDArray[np.int64]
    left: int


class RegionSelector:
    """Chooses the regions of one epoch's frames, each in the light of the choice before."""

    def __init__(
        self,
        strategy: str,
        tensions: Tensions,
        *,
        levels: bool = False,
        seed: int = 0,
        glance: GlanceOptions | None = None,
    ) -> None:
        self._strategy, self._tensions, self._levels, self._seed = strategy, tensions, levels, seed
        self._glance = glance
        self._previous: npt.NDArray[np.int8] | None = None
        self._before: npt.NDArray[np.int8] | None = None
        self._lines: npt.NDArray[np.bool_] | None = None
        self._selection: Selection | None = None
        self._relevance: Map | None = None
        self._staleness: Map | None = None
        self._appearance: Map | None = None
        self._void: bool | None = None
        self._tokens = self._spread_tokens = 0
        self._spread: Map | None = None

    def follow(self, step: Warp) -> None:
        """Content moved by whole tiles: what was shown moves with it."""
        if self._previous is not None:
            self._previous = step.nearest(self._previous, UNKNOWN)
            self._relevance = None
        if self._lines is not None:
            self._lines = step.nearest(self._lines, False)

    def forget_choice(self) -> None:
        """The newest frame is chosen from once more, in the light of the choice before it."""
        self._previous, self._selection = self._before, None

    def plan(self, relevance: Map, budget: Budget, at_most: int | None = None, *, glanced: bool = False) -> TokenPlan:
        """Return how many tokens a frame gets, and for what; arguments are those of `choose`. Raises BudgetError."""
        tokens = self._steady_tokens(relevance, budget)
        if at_most is not None:
            tokens = min(tokens, tokens_for(at_most, relevance))
        overview = self._overview_of(tokens, relevance)
        keeps = self._glance is not None and self._glance.keeps(overview, glanced=glanced)
        shown = overview if keeps else overview[:0]
        return TokenPlan(tokens, overview, shown, tokens - (len(overview) if glanced else len(shown)))

    def choose(
        self,
        relevance: Map,
        budget: Budget,
        staleness: Map | None,
        at_most: int | None = None,
        appearance: Map | None = None,
        prior: Map | None = None,
        *,
        glanced: bool = False,
        lines: Map | None = None,
    ) -> Selection:
        """Return the regions for a finite map [gh, gw]; `at_most` limits what `budget` means. Where frames have an
        overview, it comes first; where it is not shown, a frame that was `glanced` at has paid for it all the same.

        `appearance` [7, gh, gw], as `picture_structure` takes it, is what the semantic-void guard judges; without it,
        the
        map. Its last map, entropy, tells `fixation` what there is to look at. `prior` [3, gh, gw] is what answers
        taught: attention, similarity and trust. `lines` [2, gh, gw], as `line_strength` gives it, lets wide and tall
        regions show lines of text. Maps are compared by identity: the same
        objects and the same budget keep the choice that there is. Raises BudgetError.
        """
        plan = self.plan(relevance, budget, at_most, glanced=glanced)
        unmoved = relevance is self._relevance and staleness is self._staleness and plan.tokens == self._tokens
        if unmoved and self._selection is not None:
            return self._selection
        void = self._is_void(relevance, appearance) and not _is_known(prior)
        left, shown = plan.left, plan.shown
        strategy = resolve_strategy(self._strategy, void, left, self._levels, glances=self._glance is not None)
        memory = AllocationHistory(self._previous, staleness, self._tensions.explore)
        entropy = None if appearance is None else appearance[-1]
        self._lines = None if lines is None else line_tiles(lines, self._lines)
        request = AllocationRequest(relevance, left, self._tensions.coverage, self._seed, memory, entropy, self._lines)
        chosen = allocate_frame(request, strategy)
        levels = shape_map(chosen.regions.numpy(), relevance.shape)
        jitter = jitter_share(self._previous, levels)
        allocation = after_overview(shown, chosen, relevance)
        selection = Selection(allocation, levels, jitter, strategy, len(plan.overview))
        if len(shown):
            selection = replace(selection, levels=shape_map(allocation.regions.numpy(), relevance.shape))
        self._relevance, self._staleness, self._tokens = relevance, staleness, plan.tokens
        self._before, self._previous = self._previous, levels
        self._selection = replace(selection, jitter_share=0.0)
        return selection

    def _overview_of(self, tokens: int, relevance: Map) -> npt.NDArray[np.int64]:
        """The regions [K, 3] of the overview that a budget has room for; none without glances."""
        rows, cols = relevance.shape
        return np.zeros((0, 3), np.int64) if self._glance is None else self._glance.overview(tokens, (rows, cols))

    def _steady_tokens(self, relevance: Map, budget: Budget) -> int:
        if budget != ADAPTIVE:
            return tokens_for(budget, relevance, self._tensions.limits)
        if relevance is not self._spread:
            tokens, self._spread = tokens_for(budget, relevance, self._tensions.limits), relevance
            if abs(tokens - self._spread_tokens) > BUDGET_HYSTERESIS * tokens:
                self._spread_tokens = tokens
        return self._spread_tokens

    def _is_void(self, relevance: Map, appearance: Map | None) -> bool:
        """Whether `auto` finds nothing to choose by; judged anew only where the picture is another."""
        if self._strategy != "auto":
            return False
        if appearance is None or appearance is not self._appearance or self._void is None:
            self._appearance = appearance
            found = map_structure(relevance) if appearance is None else picture_structure(appearance)
            self._void = found < self._void_threshold()
        return self._void

    def _void_threshold(self) -> float:
        if self._void is None:
            return VOID_STRUCTURE
        return VOID_STRUCTURE + (VOID_HYSTERESIS if self._void else -VOID_HYSTERESIS)


def after_overview(overview: npt.NDArray[np.int64], chosen: Allocation, relevance: Map) -> Allocation:
    """An allocation behind the regions of an overview [N, 3], which may be none."""
    if not len(overview):
        return chosen
    return Allocation(
        regions=torch.cat([torch.from_numpy(overview), chosen.regions]),
        relevance=torch.cat([torch.from_numpy(region_mean(overview, relevance)), chosen.relevance]),
        mask=torch.cat([torch.ones(len(overview), dtype=torch.bool), chosen.mask]),
        overview=len(overview),
    )


def _is_known(prior: Map | None) -> bool:
    """Whether answers looked at some tiles more than at others, which tells more than how the picture looks."""
    return prior is not None and map_structure(prior[0] * prior[2]) >= VOID_STRUCTURE


def jitter_share(previous: npt.NDArray[np.int8] | None, levels: npt.NDArray[np.int8]) -> float:
    """Share of tiles whose shape (or absence) is another than in `previous`, among those that were in view; 0 without
    it.

    Both int8 [gh, gw]; `previous` is the frame before, carried along with motion, `UNKNOWN` where a tile came into
    view.
    """
    if previous is None:
        return 0.0
    seen = previous != UNKNOWN
    return float((previous[seen] != levels[seen]).mean()) if seen.any() else 0.0


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """`levels`: whether the model knows coarse tokens. `wide`: whether wide and tall tokens show lines of text; None:
    if the model knows them, by `suiting`. `tau_ms`: time constant of blending. `on_device`: frames are allocated where
    the texture is, if it is a device that can (`DeviceAllocator`; here, channels and scores only); allocations then
    differ a little from another backend's. `glance`: frames have an overview, which a glance looks at; None for none.
    `channels`: the texture's profile; `auto` is the one that the allocator's weights were trained on, which wins over
    another name, and `core13` where nothing was trained. The others are those of `allocate` and `Tensions`, `limits`
    for the budgets "auto" and "adaptive".
    """

    strategy: str = "auto"
    budget: Budget = DEFAULT_BUDGET
    explore: float = 0.10
    coverage: float = 0.25
    tau_ms: float = TAU_MS
    seed: int = 0
    levels: bool = False
    wide: bool | None = None
    on_device: bool = False
    glance: GlanceOptions | None = None
    channels: str = AUTO
    limits: TokenLimits = DEFAULT_LIMITS

    @property
    def tensions(self) -> Tensions:
        """Raises ValueError for shares outside [0, 1]."""
        return Tensions(self.budget, self.explore, self.coverage, self.limits)

    def suiting(self, *, levels: bool, wide: bool) -> AllocatorOptions:
        """The options for a model that knows coarse tokens, and wide ones, or not."""
        return replace(self, levels=levels, wide=wide if self.wide is None else self.wide)


@dataclass(frozen=True, slots=True)
class FrameAllocation:
    """Decision for one frame, with its reasons.

    `relevance` float32 [gh, gw], as blended over time; `scores` float32 [3, gh, gw] (information, perspective,
    participation) and their `weights` float32 [3], of this frame alone; `levels` int8 [gh, gw], the shape of the region
    that shows each tile (the level, of squares), −1 where none does; `jitter_share`, the share of tiles whose shape
    differs from the frame before, carried along with motion; `change_since`, the relevance-weighted share of tiles that
    changed since the last answer, and
    `change_since_look`, since the last look, where what has vanished counts too; `strategy`, what `auto` meant;
    `glance_tokens`, the tokens of the overview that a glance at this frame would take, 0 where none would be of use.
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
    change_since_look: float = 1.0
    glance_tokens: int = 0

    @property
    def overview(self) -> int:
        """Number of leading regions of the allocation that are an overview."""
        return self.allocation.overview

    @property
    def chosen(self) -> Allocation:
        """The allocation; see `DeviceFrameAllocation`, whose regions come to the host once they are asked for."""
        return self.allocation

    @property
    def tokens(self) -> int:
        """Number of regions."""
        return self.allocation.tokens

    @property
    def tiles(self) -> int:
        """Number of tiles of the frame."""
        return self.levels.size

    def on_host(self) -> FrameAllocation:
        """Itself: it lies in host memory."""
        return self


@dataclass(eq=False)
class PlannedFrame:
    """Decision for one frame whose regions are chosen once they are asked for, which may be never.

    It can be asked while it is the newest frame; what was chosen is kept. `relevance` float32 [gh, gw], as blended
    over time; `plan` says for what there are tokens; the others are those of `FrameAllocation`. A frame that was
    `glanced` at is chosen from as `RegionSelector.choose` says.
    """

    stamp: FrameStamp
    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    plan: TokenPlan
    change_since: float
    change_since_look: float
    glanced: bool
    allocator: StreamAllocator
    _chosen: FrameAllocation | None = None

    @property
    def is_chosen(self) -> bool:
        """True once its regions were asked for."""
        return self._chosen is not None

    @property
    def glance_tokens(self) -> int:
        """Number of tokens of the overview that a glance at it would take."""
        return len(self.plan.overview)

    @property
    def tokens(self) -> int:
        """Number of regions; before they are chosen, of those that are planned."""
        return self.plan.left + len(self.plan.shown) if self._chosen is None else self._chosen.tokens

    @property
    def tiles(self) -> int:
        """Number of tiles of the frame."""
        return self.relevance.numel()

    @property
    def jitter_share(self) -> float | None:
        """Share of tiles whose shape differs from the choice before; None before its own is made."""
        return None if self._chosen is None else self._chosen.jitter_share

    @property
    def chosen(self) -> Allocation:
        """The allocation. Raises as `on_host`."""
        return self.on_host().allocation

    def on_host(self) -> FrameAllocation:
        """The whole of it, with its regions. Raises ValueError where a later frame has come before they were asked
        for."""
        if self._chosen is None:
            self._chosen = self.allocator.choose(self)
        return self._chosen


@dataclass(frozen=True, slots=True)
class _EpochState:
    """All that is remembered of one epoch."""

    epoch: int
    maps: CompiledMaps | None
    motions: MotionHistory
    steps: WholeTileSteps
    blend: TemporalBlend
    prior: FeedbackPrior
    exploration: ExplorationTracker
    selector: RegionSelector
    history: HistoryTracker | None

    def follow(self, frame_index: int, motion: TileMotion) -> None:
        """Carry along with the picture all that belongs to content, not to places."""
        warp = Warp.of(motion, self.maps)
        step = carry_along(self, frame_index, warp, lambda placed: placed)
        if self.history is not None:
            self.history.follow(motion, warp, step)


class StreamAllocator(EpochAllocator[_EpochState, PlannedFrame, Map]):
    """Allocates the frames of one stream; used by one thread.

    The same frames, options and feedback give the same allocations. A new epoch (cut, seek, another size) forgets
    everything but the question. Raises BudgetError, StrategyError, ProfileError, and ValueError for shares outside
    [0, 1].
    """

    def __init__(self, options: AllocatorOptions | None = None, realiser: RelevanceRealiser | None = None) -> None:
        self.options = options or AllocatorOptions()
        self._arrays = ArrayPool()
        self._maps = maps_or_none(self._arrays)
        self._since_answer, self._since_look = ChangeMeter(self._maps), ChangeMeter(self._maps, keep_vanished=True)
        tensions = self.options.tensions
        super().__init__(tensions, self.options.glance, self._since_answer, self._since_look)
        check_strategy(self.options.strategy)
        check_budget(self.options.budget)
        realiser = realiser or RelevanceRealiser(channels=_untrained_profile(self.options.channels))
        self._channels = realiser.channels
        load_profile(self._channels)
        if self.options.channels not in (AUTO, self._channels):
            log.warning(
                "the model's allocator was trained on the channels %s; it is given these, not %s",
                *(self._channels, self.options.channels),
            )
        self._relevance = CachedRelevance(realiser, self._arrays)
        self._texture = TextureArrayCache(self._arrays)
        self._budget: tuple[Budget, int | None] = self.options.budget, None
        self._held: Map
        self._staleness: Map | None = None
        self._answered: Map | None = None
        self._change = 1.0
        self._scored_texture: TextureArray | None = None
        self._appearance = np.zeros((0, 0, 0), np.float32)
        self._prior: npt.NDArray[np.float32] | None = None
        self._realised: RelevanceMaps
        self._lines: npt.NDArray[np.float32] | None = None
        self._warned = False

    @property
    def change(self) -> float:
        """Relevance-weighted share of tiles that changed since the last answer, in [0, 1]; 1 before the first one."""
        return self._change

    def _ask(self, query: QueryEmbedding) -> None:
        self._relevance.set_query(query)
        if self._state is not None and self._state.history is not None:
            self._state.history.forget_question()

    def _teach(self, memory: _EpochState, feedback: Feedback, warp: Warp, *, glance: bool) -> None:
        rows, cols = warp.origin.shape[1:]
        if memory.history is not None:
            appearance = memory.prior.appearance_asked(feedback.stamp.frame_index, (rows, cols))
            memory.history.update(feedback, (rows, cols), warp, appearance)
        memory.prior.update(feedback, (rows, cols), warp, glance=glance)

    def _mark_shown(self, memory: _EpochState, frame: PlannedFrame) -> None:
        self._change = 0.0
        if frame.is_chosen:
            memory.exploration.mark_shown(frame.on_host().levels)

    @torch.inference_mode()
    def allocate(
        self,
        view: TextureView,
        motion: TileMotion | None = None,
        budget: Budget | None = None,
        at_most: int | None = None,
    ) -> FrameAllocation:
        """Allocate the frame in `view`, whose tiles moved by `motion` since the frame before; None: nothing moved.

        `budget` overrides the options' for this frame, `at_most` limits it. Raises BudgetError, and NonFiniteError
        where weights are broken.
        """
        return self.observe(view, motion, budget, at_most).on_host()

    @torch.inference_mode()
    def observe(
        self,
        view: TextureView,
        motion: TileMotion | None = None,
        budget: Budget | None = None,
        at_most: int | None = None,
    ) -> PlannedFrame:
        """Take in the frame in `view`, and leave the choice of its regions until they are asked for.

        For streams of whose frames few are shown to anyone: what a frame changes of relevance and memory counts at
        once, and a choice is made in the light of the last one that was made. Arguments and errors are those of
        `allocate`.
        """
        state = self._memory_of(view.versions.epoch, view.stamp.frame_index)
        if motion is not None:
            state.follow(view.stamp.frame_index, motion)
        make = device_texture_array if self.options.on_device else texture_array
        texture = make(view, self._channels, self._texture)
        if self.options.wide and texture is not self._shown_texture:
            self._lines = line_strength(view)
        if state.history is not None:
            state.history.observe(view.versions, motion, view.stamp.media_ns)
        self._realise(state, texture, view.stamp)
        relevance = state.blend.step(self._realised.relevance, self._appearance, view.stamp.media_ns)
        return self._plan(state, view.stamp, relevance, budget, at_most, glanced=False)

    @torch.inference_mode()
    def reallocate(
        self, view: TextureView, budget: Budget | None = None, at_most: int | None = None
    ) -> FrameAllocation:
        """Allocate the frame that was allocated last once more, after a glance at it or at an earlier one.

        What is known now counts at once: its relevance is not blended with the past, nor with what was chosen before.
        Raises as `allocate`, and ValueError for another frame than the last.
        """
        state, texture = self._newest(view.stamp)
        self._realise(state, texture, view.stamp)
        if self._last is not None and self._last.is_chosen:
            state.selector.forget_choice()
        relevance = state.blend.replace(self._realised.relevance)
        return self._plan(state, view.stamp, relevance, budget, at_most, glanced=True).on_host()

    def _realise(self, state: _EpochState, texture: TextureArray, stamp: FrameStamp) -> None:
        """The frame's own relevance, by its texture and by what is known at its time."""
        self._versions = self._texture.versions
        appearance = self._appearance_of(texture)
        self._prior = state.prior.evaluate(stamp.media_ns, appearance)
        if state.history is not None:
            question = self._relevance.question
            texture = state.history.fill(texture, stamp.media_ns, appearance, self._prior, question)
        self._scored_texture = texture
        self._realised = self._relevance.compute(texture, self._prior)

    def _plan(
        self,
        state: _EpochState,
        stamp: FrameStamp,
        relevance: Map,
        budget: Budget | None,
        at_most: int | None,
        *,
        glanced: bool,
    ) -> PlannedFrame:
        if state.history is not None:
            state.history.remember(relevance)
        wanted = self._tensions.budget if budget is None else budget
        self._warn_clamped(wanted, relevance.size)
        plan = state.selector.plan(relevance, wanted, at_most, glanced=glanced)
        realised, explores = self._realised, self._tensions.explore
        self._staleness = state.exploration.staleness(realised.scores[0].numpy()) if explores else None
        self._answered = self._prior if state.prior.answered else None
        self._held, self._budget = relevance, (wanted, at_most)
        self._change = self._since_answer.measure(self._versions, relevance)
        self._last = PlannedFrame(
            stamp=stamp,
            relevance=torch.from_numpy(relevance),
            scores=realised.scores,
            weights=realised.weights,
            plan=plan,
            change_since=self._change,
            change_since_look=self._since_look.measure(self._versions, relevance),
            glanced=glanced,
            allocator=self,
        )
        return self._last

    def choose(self, frame: PlannedFrame) -> FrameAllocation:
        """Choose the regions of the newest frame, once; its `on_host` keeps them.

        Raises ValueError for a frame after which another one came.
        """
        if self._state is None or frame is not self._last:
            raise ValueError("another frame came before the regions of this one were asked for, and it is too late now")
        selection = self._state.selector.choose(
            self._held,
            self._budget[0],
            self._staleness,
            self._budget[1],
            self._appearance,
            self._answered,
            glanced=frame.glanced,
            lines=self._lines,
        )
        return FrameAllocation(
            stamp=frame.stamp,
            allocation=selection.allocation,
            relevance=frame.relevance,
            scores=frame.scores,
            weights=frame.weights,
            levels=selection.levels,
            jitter_share=selection.jitter_share,
            change_since=frame.change_since,
            strategy=selection.strategy,
            change_since_look=frame.change_since_look,
            glance_tokens=frame.glance_tokens,
        )

    def inspect(self, stamp: FrameStamp) -> AllocationMaps | None:
        """Return copies of the maps that a frame was allocated from; None unless it is the newest one."""
        texture, frame = self._scored_texture, self._last
        if texture is None or frame is None or frame.stamp != stamp:
            return None
        return AllocationMaps(
            profile=self._channels,
            channels=texture.channels.numpy(force=True).copy(),
            entropy=texture.entropy.numpy(force=True).copy(),
            scores=self._realised.scores.numpy().copy(),
            weights=self._realised.weights.numpy().copy(),
            own=self._realised.relevance.numpy().copy(),
            blended=self._held.copy(),
            prior=None if self._prior is None else self._prior.copy(),
            staleness=None if self._staleness is None else self._staleness.copy(),
        )

    def sibling(self) -> StreamAllocator:
        """Return another allocator with the same options, weights and question, which knows nothing of this stream.

        For another thread, too.
        """
        made = StreamAllocator(replace(self.options, on_device=False), self._relevance.copy_of_realiser())
        if self._query is not None:
            made.set_query(self._query)
        return made

    def _begin_epoch(self, epoch: int, frame_index: int) -> _EpochState:
        options = self.options
        return _EpochState(
            epoch=epoch,
            maps=self._maps,
            motions=MotionHistory(frame_index),
            steps=WholeTileSteps(),
            blend=TemporalBlend(options.tau_ms, self._maps),
            prior=FeedbackPrior(self._maps),
            exploration=ExplorationTracker(self._maps),
            selector=RegionSelector(
                options.strategy, self._tensions, levels=options.levels, seed=options.seed, glance=options.glance
            ),
            history=None if self._channels == "core13" else HistoryTracker(),
        )

    def _appearance_of(self, texture: TextureArray) -> npt.NDArray[np.float32]:
        """The newest picture's appearance and, last, its entropy [C, gh, gw]; the same array object while nothing
        moves."""
        if texture is not self._shown_texture:
            self._shown_texture = texture
            self._appearance = texture.looks(self._arrays)
        return self._appearance

    def _warn_clamped(self, budget: Budget, tiles: int) -> None:
        least = least_tokens_wanted(budget, self._tensions.limits)
        if self._warned or least <= tiles:
            return
        self._warned = True
        tokens = counted(least, "token")
        named = f"of at least {tokens}" if budget in (AUTO, ADAPTIVE) else f"of {tokens}"
        there = counted(tiles, "tile")
        log.warning("a budget %s is more than the frame's %s: all of them are shown", named, there)


def _untrained_profile(channels: str) -> str:
    return "core13" if channels == AUTO else channels
