"""`StreamAllocator`: the allocator of one stream, texture to relevance to regions, frame after frame."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.evs import ComparedPicture
from arr_coc.allocation.frame import FrameAllocation, FrameMaps, RegionSelector, SelectorOptions
from arr_coc.allocation.glance import EVERY_S, GlanceOptions, GlancePolicy
from arr_coc.allocation.group import GroupOfPictures, GroupOptions
from arr_coc.allocation.history import HistoryTracker
from arr_coc.allocation.strategies import COMPARING, STRATEGIES_ON_DEVICE, Magnification, check_strategy
from arr_coc.allocation.temporal import TAU_MS, ChangeMeter, ExplorationTracker, FeedbackPrior, TemporalBlend
from arr_coc.allocation.text_lines import line_strength
from arr_coc.allocation.warping import CompiledMaps, MotionHistory, Warp, WholeTileSteps, maps_or_none
from arr_coc.budget import (
    ADAPTIVE,
    AUTO,
    DEFAULT_BUDGET,
    DEFAULT_LIMITS,
    Budget,
    TokenLimits,
    check_budget,
    requested_tokens,
)
from arr_coc.errors import counted
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import (
    TextureArray,
    TextureArrayCache,
    device_texture_array,
    load_profile,
    texture_array,
)
from arr_coc.relevance.gaze import GazeWeights
from arr_coc.relevance.union import UnitedQuestions
from arr_coc.texture.kernels import ArrayPool
from arr_coc.texture.polygons import Polygon
from arr_coc.texture.store.base import TextureView
from arr_coc.types import Feedback, QueryEmbedding, TileGrid, TileMotion

log = logging.getLogger(__name__)


class ZoneMaps(Protocol):
    """Maps of zones on the tile grids of one stream."""

    def within(self, grid: TileGrid) -> torch.Tensor | None:
        """Return the tiles that questions are about, bool [rows, cols] in host memory; None for all."""
        ...

    def weigh(self, values: torch.Tensor, grid: TileGrid, name: str = "relevance") -> torch.Tensor:
        """Return a map float32 [rows, cols] times the weights of its tiles; 0 outside of what questions are about.

        The same map under the same name gives the same tensor as before, so that what follows from it is kept.
        """
        ...


class Zones(Protocol):
    """Parts of a picture, as polygons with corners (x, y) in shares of it (`arr_coc.allocation.zones`)."""

    @property
    def weights(self) -> tuple[tuple[Polygon, float], ...]:
        """Each polygon with the factor of the relevance of its tiles, 0 or more."""

    @property
    def focus(self) -> tuple[Polygon, ...]:
        """The polygons that questions are about; none for the whole picture."""

    def maps(self) -> ZoneMaps:
        """Return the zones as maps, for one stream."""
        ...


@dataclass(frozen=True, slots=True)
class AllocatorOptions:
    """`wide`: whether wide and tall tokens show lines of text; None:
    if the model knows them, by `for_model`. `tau_ms`: time constant of blending. `on_device`: frames are allocated on
    the texture's device, if it has one and the options suit one (`suits_device`; else, channels and scores only), and
    differ a little from another backend's. `glance`: frames have an overview, which a glance looks at; None for none.
    `channels`: the texture's profile; `auto` is the one that the allocator's weights were trained on, which wins over
    another name, and `core13` if nothing was trained. `memory`: the model has a visual memory, and packets hold what
    is new in their group of pictures; None: each is complete in itself. `zones`: parts of the picture with a weight,
    and the one that the question is about; None for none. The others are those of `allocate` and `Tensions`, `limits`
    for the budgets "auto" and "adaptive".
    """

    strategy: str = "auto"
    budget: Budget = DEFAULT_BUDGET
    explore: float = 0.10
    coverage: float = 0.25
    tau_ms: float = TAU_MS
    seed: int = 0
    wide: bool | None = None
    on_device: bool = False
    glance: GlanceOptions | None = None
    channels: str = AUTO
    limits: TokenLimits = DEFAULT_LIMITS
    memory: GroupOptions | None = None
    zones: Zones | None = None
    magnification: Magnification | None = None

    @property
    def tensions(self) -> Tensions:
        """Raise ValueError for shares outside [0, 1]."""
        return Tensions(self.budget, self.explore, self.coverage, self.limits)

    def for_model(self, *, wide: bool) -> AllocatorOptions:
        """Return the options for a model that knows wide and tall tokens, or not."""
        return replace(self, wide=wide if self.wide is None else self.wide)


@dataclass(frozen=True, slots=True)
class _EpochMemory:
    """All that is remembered of one epoch."""

    epoch: int
    motions: MotionHistory
    steps: WholeTileSteps
    blend: TemporalBlend
    prior: FeedbackPrior
    exploration: ExplorationTracker
    selector: RegionSelector
    history: HistoryTracker | None
    picture: ComparedPicture | None
    gaze: GazeWeights

    def follow(self, frame_index: int, motion: TileMotion, maps: CompiledMaps | None) -> None:
        """Carry along with the picture all that belongs to content, not to places."""
        warp = Warp.of(motion, maps)
        self.motions.add(frame_index, warp)
        self.blend.follow(warp)
        self.prior.follow(warp)
        step = self.steps.step(warp)
        if step is not None:  # maps whose values do not mix go in whole tiles
            self.exploration.follow(step)
            self.selector.follow(step)
        if self.history is not None:
            self.history.follow(motion, warp, step)


class StreamAllocator:
    """Allocator of one stream's frames; used by one thread.

    The same frames, options and feedback give the same allocations. A new epoch (cut, seek, another size) forgets
    everything but the question.

    Frames of a texture on a device are allocated there, if the options ask for it and suit a device (`suits_device`);
    results differ a little from the host's. Per frame, at most three numbers come to the host: with `measures_change`
    the change since the last answer and since the last look, and with the budget `adaptive` the budget. Regions and
    relevance follow once a frame is asked about. After a device has failed, views in host memory are allocated there.

    Raises BudgetError, StrategyError, ProfileError, and ValueError for shares outside [0, 1].
    """

    def __init__(
        self,
        options: AllocatorOptions | None = None,
        realiser: RelevanceRealiser | None = None,
        *,
        measures_change: bool = True,
    ) -> None:
        self.options = options or AllocatorOptions()
        self._tensions = self.options.tensions
        self._measures_change = measures_change
        arrays = ArrayPool()
        self._maps = maps_or_none(arrays)
        self._since_answer, self._since_look = ChangeMeter(self._maps), ChangeMeter(self._maps, keep_vanished=True)
        check_strategy(self.options.strategy)
        check_budget(self.options.budget)
        if realiser is None:
            realiser = RelevanceRealiser(channels="core13" if self.options.channels == AUTO else self.options.channels)
        self.channels = realiser.channels
        """Profile of the texture's channels that the scorers read."""
        load_profile(self.channels)
        if self.options.channels not in (AUTO, self.channels):
            log.warning(
                "the model's allocator was trained on the channels %s; it is given these, not %s",
                *(self.channels, self.options.channels),
            )
        self.on_device = self.options.on_device and suits_device(self.options, self.channels)
        """True if frames of a texture on a device are allocated there."""
        self._relevance = CachedRelevance(realiser, arrays, stays=self.on_device)
        self._questions = UnitedQuestions()
        self._texture = TextureArrayCache(arrays)
        self._glances = GlancePolicy(self.options.glance.every_s if self.options.glance else EVERY_S)
        self._queries: tuple[QueryEmbedding, ...] = ()
        self._memory: _EpochMemory | None = None
        self._last: FrameAllocation | None = None
        self._change = 1.0
        self._floor: torch.Tensor | None = None
        self._warned = False
        if self.options.zones is None:
            self._zones = None
        else:
            self._zones = self.options.zones.maps()
        if self.options.memory is None:
            self.group = None
        else:
            self.group = GroupOfPictures(self.options.memory)
        """State of the model's memory of this stream; None if it has none."""

    @property
    def question(self) -> str:
        """The question, as text, or the first of several; empty before there is one."""
        return self._queries[0].text if self._queries else ""

    @property
    def newest(self) -> FrameAllocation | None:
        """The frame that was allocated last; None before the first one of an epoch."""
        return self._last

    @property
    def change(self) -> float:
        """Relevance-weighted share of tiles that changed since the last answer, in [0, 1]; 1 before the first one."""
        return self._change

    def set_query(self, query: QueryEmbedding, *others: QueryEmbedding) -> None:
        """Ask another question, or several about the same picture, of which each has a share of the tokens
        (`united_relevance`): what answers to the old ones taught is forgotten. The same ones again change nothing, as
        when the model that was asked died and its successor gets the questions."""
        queries = (query, *others)
        if len(queries) == len(self._queries) and all(map(_is_same, self._queries, queries)):
            return
        self._queries = queries
        self._measures_change = self._measures_change or bool(others)  # one that is checked on change
        self._glances.reset()
        self._relevance.set_query(query)
        self._questions = UnitedQuestions()
        for other in others:
            if self._relevance.hears(other):  # to any other question the relevance is the same
                self._questions.others.append(self._relevance.copy_for(other))
        if self.group is not None:
            self.group.ask_anew()
        if self._memory is not None:
            self._memory.prior.reset()
            if self._memory.history is not None:
                self._memory.history.forget_question()

    def within(self, grid: TileGrid) -> torch.Tensor | None:
        """Return the tiles that the question is about, bool [gh, gw] in host memory; None for all."""
        if self._zones is None:
            return None
        return self._zones.within(grid)

    def set_floor(self, floor: npt.NDArray[np.float32] | None) -> None:
        """Set the least relevance of tiles, float32 [gh, gw] from 0 to 1, for the frames from the next one on.

        It is what others know of a frame, such as a detector: it counts at once, and leaves no trace once it is None.
        """
        self._floor = None if floor is None else torch.from_numpy(floor)

    def apply_feedback(self, feedback: Feedback) -> None:
        """Learn from an answer about an earlier frame of this epoch; feedback about another epoch is ignored."""
        self._learn(feedback, glance=False)

    @torch.inference_mode()
    def glance_due(self, media_ns: int) -> bool:
        """Return True if it is time to glance at the newest frame before it is answered about.

        That is so if frames have an overview, for a new question, in a new epoch, after a while, and if much came into
        view that nothing is known of; until `apply_glance`.
        """
        if self._memory is None or self._last is None or not self._last.glance_tokens:
            return False
        return self._glances.due(media_ns, self._memory.prior.unknown_share(_looks_of(self._last)))

    def on_glance(self) -> None:
        """A glance at the newest frame was requested: `apply_glance` gets its result."""
        if self._memory is not None and self._last is not None:
            self._memory.prior.on_request(self._last.stamp.frame_index, _looks_of(self._last))

    def apply_glance(self, feedback: Feedback | None) -> None:
        """Learn from a glance at a frame of this epoch, as from an answer; None if none could be made. `reallocate`
        then chooses from the newest frame once more."""
        if feedback is None:
            self._glances.on_failure()
        elif self._memory is not None and feedback.stamp.epoch == self._memory.epoch:
            self._glances.on_glance(feedback.stamp.media_ns)
            self._learn(feedback, glance=True)

    @torch.inference_mode()
    def mark_answered(self) -> None:
        """The newest allocation was given to a decoder: change counts from here, and what it showed counts as seen, if
        its regions were asked for."""
        memory = self._memory
        frame = self._last
        if memory is None or frame is None:
            return
        self._change = 0.0
        self._since_answer.mark(self._texture.versions)
        if frame.is_chosen:
            memory.exploration.mark_shown(frame.selection.choice.levels)
        memory.prior.on_request(frame.stamp.frame_index, _looks_of(frame))
        self.mark_shown()

    def mark_shown(self) -> None:
        """The newest frame's tokens are shown to a model: the strategies `evs` and `querystream` compare later
        frames with it."""
        if self._memory is not None and self._memory.picture is not None:
            self._memory.picture.mark()

    def mark_looked(self) -> None:
        """The newest allocation was looked at for a standing question: `change_since_look` counts from here."""
        self._since_look.mark(self._texture.versions)
        self.mark_shown()

    def allocate(
        self,
        view: TextureView,
        motion: TileMotion | None = None,
        budget: Budget | None = None,
        at_most: int | None = None,
    ) -> FrameAllocation:
        """Allocate a frame, and choose its regions at once.

        Args:
            view: Texture of the frame.
            motion: Movement of its tiles since the frame before; None: nothing moved.
            budget: In place of the options' for this frame.
            at_most: Limit of the budget, in tokens.

        Raises:
            BudgetError: A wrong budget.
            NonFiniteError: Broken weights; on a device, once the regions come to the host.
            DeviceLost: The device failed.
        """
        frame = self.observe(view, motion, budget, at_most)
        _ = frame.selection
        return frame

    @torch.inference_mode()
    def observe(
        self,
        view: TextureView,
        motion: TileMotion | None = None,
        budget: Budget | None = None,
        at_most: int | None = None,
    ) -> FrameAllocation:
        """Take in a frame, and leave the choice of its regions until they are asked for.

        For streams of which few frames are viewed or answered about: a frame changes relevance and memory at once, and
        its choice builds on the last choice made before the next frame came.

        Args:
            view: Texture of the frame.
            motion: Movement of its tiles since the frame before; None: nothing moved.
            budget: In place of the options' for this frame.
            at_most: Limit of the budget, in tokens.

        Raises:
            BudgetError, NonFiniteError, DeviceLost: As `allocate`.
        """
        memory = self._memory_of(view)
        last = self._last
        if last is not None and last.is_chosen:
            memory.selector.note(last.inputs, last.selection)
        if motion is not None:
            memory.follow(view.stamp.frame_index, motion, self._maps)
        if self.options.on_device:
            make = device_texture_array
        else:
            make = texture_array
        texture = make(view, self.channels, self._texture)
        same_picture = last is not None and last.maps is not None and last.maps.texture is texture
        if last is not None and same_picture:
            last_inputs = last.inputs
        else:
            last_inputs = None
        lines = None
        if self.options.wide:
            if last_inputs is None:
                lines = line_strength(view)
            else:
                lines = last_inputs.lines
        if memory.history is not None:
            memory.history.observe(view.versions, motion, view.stamp.media_ns)
        maps = self._realise(memory, view, texture, None if last_inputs is None else last_inputs.appearance)
        relevance = self._with_floor(memory.blend.step(maps.realised.relevance, maps.looks, view.stamp.media_ns))
        if memory.picture is None:
            change = None
        else:
            change = memory.picture.change(view)
        return self._plan(memory, view, maps, relevance, lines, change, (budget, at_most), after_glance=False)

    @torch.inference_mode()
    def reallocate(
        self, view: TextureView, budget: Budget | None = None, at_most: int | None = None
    ) -> FrameAllocation:
        """Allocate the frame that was allocated last once more, after a glance at it or at an earlier one.

        What is known now counts at once: its relevance is not blended with the past, nor with what was chosen before.
        Raises as `allocate`, and ValueError for another frame than the last.
        """
        memory = self._memory
        last = self._last
        if memory is None or last is None or last.maps is None or last.stamp != view.stamp:
            raise ValueError("only the frame that was allocated last can be allocated once more")
        maps = self._realise(memory, view, last.maps.texture, last.maps.looks)
        if last.is_chosen:
            memory.selector.note_judgement(last.inputs, last.selection)
        relevance = self._with_floor(memory.blend.replace(maps.realised.relevance))
        seen = last.inputs
        frame = self._plan(memory, view, maps, relevance, seen.lines, seen.change, (budget, at_most), after_glance=True)
        _ = frame.selection
        return frame

    def copy_for_thread(self) -> StreamAllocator:
        """Return another allocator in host memory with the same options, weights and question, which knows nothing of
        this stream. For another thread, too."""
        options = replace(self.options, on_device=False, memory=None)
        copy = StreamAllocator(options, self._relevance.copy_of_realiser())
        if self._queries:
            copy.set_query(*self._queries)
        return copy

    @torch.inference_mode()
    def _learn(self, feedback: Feedback, *, glance: bool) -> None:
        """Take feedback in, if it is about this epoch, and its frame is remembered."""
        memory = self._memory
        frame = self._last
        if memory is None or frame is None or feedback.stamp.epoch != memory.epoch:
            return
        rows, cols = frame.relevance.shape
        warp = memory.motions.since(feedback.stamp.frame_index, (rows, cols))
        if warp is None:
            return
        looks = _looks_of(frame)
        if memory.history is not None:
            appearance = memory.prior.requested_appearance(feedback.stamp.frame_index, looks)
            memory.history.update(feedback, (rows, cols), warp, appearance.numpy())
        memory.prior.update(feedback, looks, warp, glance=glance)

    def _memory_of(self, view: TextureView) -> _EpochMemory:
        """Return the memory of a frame's epoch, which is a new one if the epoch is."""
        epoch = view.versions.epoch
        options = self.options
        if self._memory is None or self._memory.epoch != epoch:
            selector = SelectorOptions(
                options.strategy, self._tensions, options.seed, options.glance, options.magnification
            )
            weight = COMPARING.get(options.strategy)
            self._last, self._memory = (
                None,
                _EpochMemory(
                    epoch=epoch,
                    motions=MotionHistory(view.stamp.frame_index),
                    steps=WholeTileSteps(),
                    blend=TemporalBlend(options.tau_ms, self._maps),
                    prior=FeedbackPrior(self._maps),
                    exploration=ExplorationTracker(self._maps),
                    selector=RegionSelector(selector),
                    history=None if self.channels == "core13" else HistoryTracker(),
                    picture=None if weight is None else ComparedPicture(weight),
                    gaze=GazeWeights(trained=self._relevance.trained, on_device=options.on_device),
                ),
            )
            self._glances.reset()
        return self._memory

    def _realise(
        self, memory: _EpochMemory, view: TextureView, texture: TextureArray, looks: torch.Tensor | None
    ) -> FrameMaps:
        """Return the relevance of the frame in `view`, by its texture and the knowledge at its time; its `looks`, if
        known already."""
        media_ns = view.stamp.media_ns
        if looks is None:
            if self.on_device:
                looks = texture.looks
            else:
                looks = texture.looks.cpu()
        prior = memory.prior.evaluate(media_ns, looks)
        scored = texture
        if memory.history is not None:
            prior_map = None if prior is None else prior.numpy()
            scored = memory.history.fill(texture, media_ns, looks.numpy(), prior_map, self._relevance.question)
        realised = self._relevance.compute(scored, prior)
        if self._questions.others:
            realised = self._questions.unite(realised, scored, prior)
        realised = memory.gaze.weigh(realised, view, texture)
        return FrameMaps(texture, scored, self._texture.versions, looks, prior, realised)

    def _with_floor(self, relevance: torch.Tensor) -> torch.Tensor:
        """Return the relevance of a frame, or the floor of a tile if that is higher."""
        if self._floor is None:
            return relevance
        return torch.maximum(relevance, self._floor.to(relevance.device))

    def _plan(
        self,
        memory: _EpochMemory,
        view: TextureView,
        maps: FrameMaps,
        relevance: torch.Tensor,
        lines: npt.NDArray[np.float32] | None,
        change: torch.Tensor | None,
        limits: tuple[Budget | None, int | None],
        *,
        after_glance: bool,
    ) -> FrameAllocation:
        zones = self._zones
        within = None
        if zones is not None:
            relevance = zones.weigh(relevance, view.grid)
            within = zones.within(view.grid)
        if memory.history is not None:
            memory.history.remember(relevance.numpy())
        budget, at_most = limits
        if budget is None:
            budget = self._tensions.budget
        self._warn_clamped(budget, relevance.numel())
        plan = memory.selector.plan(relevance, budget, at_most, after_glance=after_glance, within=within)
        realised = maps.realised
        if self._tensions.explore:
            staleness = memory.exploration.staleness(realised.scores[0])
        else:
            staleness = None
        if zones is not None and staleness is not None:
            staleness = zones.weigh(staleness, view.grid, "staleness")
        answered = maps.prior if memory.prior.answered else None
        self._change, since_look = self._numbers(
            self._since_answer.measure(maps.versions, relevance), self._since_look.measure(maps.versions, relevance)
        )
        self._last = FrameAllocation(
            stamp=view.stamp,
            relevance=relevance,
            scores=realised.scores,
            weights=realised.weights,
            inputs=memory.selector.inputs(relevance, plan, staleness, maps.looks, answered, lines, within, change),
            change_since=self._change,
            change_since_look=since_look,
            maps=maps,
        )
        return self._last

    def _numbers(self, *shares: torch.Tensor | float) -> list[float]:
        """Numbers of which a device has some, in one copy; 1 for these if nothing is to come from there."""
        tensors = [share for share in shares if isinstance(share, torch.Tensor)]
        if not tensors:
            return list(shares)  # type: ignore[arg-type]
        numbers = iter(
            torch.stack(tensors).cpu().tolist() if self._measures_change or tensors[0].is_cpu else [1.0] * len(tensors)
        )
        return [next(numbers) if isinstance(share, torch.Tensor) else share for share in shares]

    def _warn_clamped(self, budget: Budget, tiles: int) -> None:
        least = requested_tokens(budget, self._tensions.limits)
        if self._warned or least <= tiles:
            return
        self._warned = True
        tokens = counted(least, "token")
        if budget in (AUTO, ADAPTIVE):
            size = f"of at least {tokens}"
        else:
            size = f"of {tokens}"
        log.warning("a budget %s is more than the frame's %s: all of them are shown", size, counted(tiles, "tile"))


def suits_device(options: AllocatorOptions, channels: str) -> bool:
    """Return True if frames with these options can be allocated on a device.

    The host's own are: channels of the past (`full40`), wide tokens, the strategies `fixation`, `evs` and
    `querystream`, and questions about a part of the picture.
    """
    if options.zones is not None and options.zones.focus:
        return False
    return channels == "core13" and not options.wide and options.strategy in STRATEGIES_ON_DEVICE


def _looks_of(frame: FrameAllocation) -> torch.Tensor:
    assert frame.maps is not None, "the allocator's own frames have them"
    return frame.maps.looks


def _is_same(query: QueryEmbedding, other: QueryEmbedding) -> bool:
    """Return True if two embeddings are of the same question by the same model."""
    return (query.text, query.model_id) == (other.text, other.model_id) and np.array_equal(query.tokens, other.tokens)
