"""`FrameAllocation`: decision for one frame. The selection of its regions within its budget: what it follows from, and
what it leaves to the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.strategies import (
    AllocationHistory,
    AllocationRequest,
    Magnification,
    RegionChoice,
    choose,
    resolve_strategy,
)
from arr_coc.allocation.structure import VOID_STRUCTURE, map_structure, picture_structure
from arr_coc.allocation.text_lines import line_tiles
from arr_coc.allocation.warping import Warp
from arr_coc.budget import ADAPTIVE, Budget, fixed_tokens, tokens_for
from arr_coc.errors import DeviceLost, NonFiniteError
from arr_coc.relevance.balancing import RelevanceMaps
from arr_coc.relevance.channels import TextureArray
from arr_coc.texture.covers import pyramid_means
from arr_coc.texture.regions import REGION_AREAS, UNKNOWN, region_pool
from arr_coc.texture.store.base import DevicePatches, TextureView
from arr_coc.types import Allocation, FrameStamp, TileVersions

Map = npt.NDArray[np.float32]

VOID_HYSTERESIS = 0.05
"""The semantic-void guard sets in this far below its threshold, and lets go this far above."""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Division of a frame's `tokens` before regions are chosen: the regions [N, 3] of the `overview` that they have
    room for, the `packet_overview`, those of them that the packet shows, and the `choice_tokens` of all others."""

    tokens: int
    overview: npt.NDArray[np.int64]
    packet_overview: npt.NDArray[np.int64]
    choice_tokens: int


@dataclass(frozen=True, slots=True)
class SelectorOptions:
    """Options of all selections of a stream; `glance`: frames have an overview. `magnification`: of `fixation`."""

    strategy: str
    tensions: Tensions
    seed: int = 0
    glance: GlanceOptions | None = None
    magnification: Magnification | None = None


@dataclass(frozen=True)
class Selection:
    """The regions of one frame: `choice`, of which the first `overview` regions are an overview.

    `levels` int8 [gh, gw]: the shape that shows each tile, but for the overview; `jitter`, a scalar: the share of tiles
    that are shown by another shape than before, carried along with motion. `void`, a scalar bool: the picture is one
    (None if that was not judged); `uses_grid`: so `grid` was chosen in the place of `planned_strategy`,
    which on a device stays to be seen. `lines` bool [2, gh, gw]: the tiles of lines of text.
    """

    choice: RegionChoice
    overview: int
    levels: torch.Tensor
    jitter: torch.Tensor
    planned_strategy: str
    uses_grid: torch.Tensor | bool
    void: torch.Tensor | None
    lines: npt.NDArray[np.bool_] | None

    @property
    def allocation(self) -> Allocation:
        """The regions in host memory, from a device in one copy of 20 bytes a token.

        Raises DeviceLost, and NonFiniteError for a device's broken weights: a frame of it is not looked at before.
        """
        return self._on_host[0]

    @property
    def jitter_share(self) -> float:
        """`jitter` as a number. Raises as `allocation`."""
        return self._on_host[1]

    @property
    def strategy(self) -> str:
        """Strategy that `auto` meant. Raises as `allocation`."""
        return self._on_host[2]

    @property
    def is_on_host(self) -> bool:
        """True if the regions lie in host memory, or were brought there."""
        return self.levels.is_cpu or "_on_host" in self.__dict__

    @cached_property
    def _on_host(self) -> tuple[Allocation, float, str]:
        choice = self.choice
        if self.levels.is_cpu:
            allocation = Allocation(choice.regions, choice.relevance, choice.mask, overview=self.overview)
            return allocation, float(self.jitter), "grid" if self.uses_grid else self.planned_strategy
        count = len(choice.mask)
        jitter = self.jitter.float()
        if isinstance(self.uses_grid, torch.Tensor):
            uses_grid = self.uses_grid.float()
        else:
            uses_grid = torch.zeros_like(jitter)
        numbers = torch.stack([jitter, uses_grid])
        parts = [choice.regions.int().flatten(), torch.cat([choice.relevance, numbers]).view(torch.int32)]
        try:
            buffer = torch.cat([*parts, choice.mask.int()]).cpu()
        except torch.AcceleratorError as error:
            raise DeviceLost(f"the GPU failed while a frame was chosen from ({str(error).splitlines()[0]})") from error
        regions, relevance, scalars, mask = buffer.split((3 * count, count, 2, count))
        length = int(mask.sum())
        region_relevance, (jitter_share, grid) = (
            relevance.view(torch.float32)[:length],
            scalars.view(torch.float32).tolist(),
        )
        if not torch.isfinite(region_relevance).all():
            raise NonFiniteError("the relevance of the chosen regions holds NaN or Inf")
        tokens = torch.ones(length, dtype=torch.bool)
        allocation = Allocation(regions.view(-1, 3)[:length].long(), region_relevance, tokens, overview=self.overview)
        return allocation, jitter_share, "grid" if grid else self.planned_strategy


@dataclass(frozen=True, slots=True)
class SelectorMemory:
    """Memory of a choice, for the next ones: its `selection`, the shapes that were shown, carried along with motion
    (`previous` int8 [gh, gw]), the lines of text, and whether the picture that looks like `appearance` is a void.

    `made_from`: the objects that the selection was made from. The same objects keep it.
    """

    selection: Selection | None = None
    made_from: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, int] | None = None
    previous: torch.Tensor | None = None
    lines: npt.NDArray[np.bool_] | None = None
    void: torch.Tensor | None = None
    appearance: torch.Tensor | None = None

    def is_made_from(self, inputs: SelectionInputs) -> bool:
        """Return True if the selection was made from the same maps and as many tokens."""
        if self.made_from is None:
            return False
        relevance, staleness, change, tokens = self.made_from
        same_maps = relevance is inputs.relevance and staleness is inputs.staleness and change is inputs.change
        return same_maps and tokens == inputs.plan.tokens


@dataclass(frozen=True, slots=True, eq=False)
class SelectionInputs:
    """All that the regions of a frame follow from; maps are not written to any more.

    `relevance` float32 [gh, gw] is finite. `appearance` [7, gh, gw], as `picture_structure` takes it, is what the
    semantic-void guard judges; without it, the map. `fixation` looks at its last map, entropy.
    `prior` [3, gh, gw] is what answers taught: attention, similarity and trust. `lines` [2, gh, gw], as `line_strength`
    gives it, lets wide and tall regions show lines of text. `within` bool [gh, gw], in host memory: the tiles that the
    question is about, if that are not all. `change` float32 [gh, gw]: since the frame that was shown before, for `evs`
    and `querystream`.
    """

    options: SelectorOptions
    plan: TokenPlan
    relevance: torch.Tensor
    staleness: torch.Tensor | None = None
    appearance: torch.Tensor | None = None
    prior: torch.Tensor | None = None
    lines: Map | None = None
    memory: SelectorMemory = field(default_factory=SelectorMemory)
    within: torch.Tensor | None = None
    change: torch.Tensor | None = None

    def select(self) -> Selection:
        """Choose the regions; the same objects as before keep the selection before. A device is asked for nothing."""
        memory = self.memory
        options = self.options
        if memory.selection is not None and memory.is_made_from(self):
            return memory.selection
        void, uses_grid = self._void_state() if options.strategy == "auto" else (None, False)
        if self.lines is None:
            lines = None
        else:
            lines = line_tiles(self.lines, memory.lines)
        request = AllocationRequest(
            self.relevance,
            self.plan.choice_tokens,
            options.tensions.coverage,
            options.seed,
            AllocationHistory(memory.previous, self.staleness, options.tensions.explore, self.change),
            None if self.appearance is None else self.appearance[-1],
            lines,
            self.within,
            options.magnification,
        )
        strategy = resolve_strategy(options.strategy, uses_grid is True)
        choice = choose(request, strategy)
        if isinstance(uses_grid, torch.Tensor):
            choice = choose(request, "grid").or_else(choice, uses_grid)
        return Selection(
            choice=after_overview(self.plan.packet_overview, choice, self.relevance),
            overview=len(self.plan.packet_overview),
            levels=choice.levels,
            jitter=_jitter(memory.previous, choice.levels),
            planned_strategy=strategy,
            uses_grid=uses_grid,
            void=void,
            lines=lines,
        )

    def _void_state(self) -> tuple[torch.Tensor, torch.Tensor | bool]:
        """Return True if the picture is a void, judged anew only if it is another, and whether it is covered evenly
        therefore: not if answers looked at some tiles more than at others. A number only if the host may look at it."""
        memory = self.memory
        void = self.memory.void
        if void is None or self.appearance is None or self.appearance is not memory.appearance:
            limit: torch.Tensor | float = VOID_STRUCTURE
            if void is not None:
                limit = torch.where(void, VOID_STRUCTURE + VOID_HYSTERESIS, VOID_STRUCTURE - VOID_HYSTERESIS)
            if self.appearance is None:
                structure = map_structure(self.relevance)
            else:
                structure = picture_structure(self.appearance)
            void = structure < limit
        if self.prior is None or (void.is_cpu and not void):
            return void, bool(void) if void.is_cpu else void
        uses_grid = void & (map_structure(self.prior[0] * self.prior[2]) < VOID_STRUCTURE)
        return void, bool(uses_grid) if uses_grid.is_cpu else uses_grid


def after_overview(overview: npt.NDArray[np.int64], choice: RegionChoice, relevance: torch.Tensor) -> RegionChoice:
    """Return a choice with the regions of an overview before it.

    Args:
        overview: Regions of one level, int64 [N, 3]; of none, the choice is returned as it is.
        choice: The chosen regions.
        relevance: Map of the frame, float32 [gh, gw], for the means of the overview's regions.
    """
    if not len(overview):
        return choice
    level = int(overview[0, 0])
    device = relevance.device
    areas = torch.from_numpy(REGION_AREAS).to(device)
    return RegionChoice(
        torch.cat([torch.from_numpy(overview).to(device), choice.regions]),
        torch.cat([torch.ones(len(overview), dtype=torch.bool, device=device), choice.mask]),
        torch.cat([pyramid_means(relevance, level)[-1][tuple(overview[:, 1:].T)], choice.relevance]),
        torch.where(areas[choice.levels.long()] <= areas[level], choice.levels, level).to(torch.int8),
    )


def _jitter(previous: torch.Tensor | None, levels: torch.Tensor) -> torch.Tensor:
    """Return the share of tiles whose shape (or absence) is another than in `previous`, among those that were in view;
    0 without it.

    Both int8 [gh, gw]; `previous` is the frame before, carried along with motion, `UNKNOWN` for tiles that came into
    view.
    """
    if previous is None:
        return torch.zeros((), device=levels.device)
    in_view = previous != UNKNOWN
    return ((previous != levels) & in_view).sum().double() / in_view.sum().clamp(min=1)


class RegionSelector:
    """Planner of the tokens of one epoch's frames, with the memory of earlier choices for later ones."""

    def __init__(self, options: SelectorOptions) -> None:
        self._options = options
        self._memory = SelectorMemory()
        self._spread_tokens = 0
        self._spread: torch.Tensor | None = None
        self._spread_limits = options.tensions.limits

    def follow(self, step: Warp) -> None:
        """Content moved by whole tiles: what was shown moves with it."""
        previous = self._memory.previous
        lines = self._memory.lines
        if previous is not None:
            self._memory = replace(self._memory, previous=step.nearest(previous, UNKNOWN), made_from=None)
        if lines is not None:
            self._memory = replace(self._memory, lines=step.nearest(torch.from_numpy(lines), False).numpy())

    def plan(
        self,
        relevance: torch.Tensor,
        budget: Budget,
        at_most: int | None = None,
        *,
        after_glance: bool = False,
        within: torch.Tensor | None = None,
    ) -> TokenPlan:
        """Return how many tokens a frame gets, and their division between overview and choice.

        Args:
            relevance: Map of the frame, float32 [gh, gw].
            budget: Tokens, a share of the tiles, "auto" or "adaptive".
            at_most: Limit of the budget in tokens, and that of an adaptive budget if it is more than its own.
            after_glance: Whether a glance looked at the frame, which has then paid for its overview even if that is
                not shown.
            within: Tiles that the question is about, bool [gh, gw] in host memory, which limit the budget too; None
                for all.

        Raises:
            BudgetError: A wrong budget, or one that the overview would spend altogether.
        """
        tiles, (rows, cols), glance = relevance.numel(), relevance.shape, self._options.glance
        tokens = self._steady_tokens(relevance, budget, at_most)
        if at_most is not None:
            tokens = min(tokens, fixed_tokens(at_most, tiles))
        if glance is None:
            overview = np.zeros((0, 3), np.int64)
        else:
            overview = glance.overview(tokens, (rows, cols))
        if within is not None:
            tokens, all_fit = min(tokens, int(within.sum())), int(within.sum()) <= tokens
            if all_fit:
                overview = overview[:0]
            else:
                overview = overview[region_pool(overview, within.numpy(), np.logical_or)]
        if glance is not None and glance.keeps(overview, after_glance=after_glance):
            packet_overview = overview
        else:
            packet_overview = overview[:0]
        return TokenPlan(
            tokens, overview, packet_overview, tokens - (len(overview) if after_glance else len(packet_overview))
        )

    def inputs(
        self,
        relevance: torch.Tensor,
        plan: TokenPlan,
        staleness: torch.Tensor | None = None,
        appearance: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
        lines: Map | None = None,
        within: torch.Tensor | None = None,
        change: torch.Tensor | None = None,
    ) -> SelectionInputs:
        """Return the inputs of a frame's selection, with the memory of the selection that was noted last.

        Args:
            relevance: Map of the frame, float32 [gh, gw], finite.
            plan: Division of its tokens.
            staleness: How much each tile deserves a look for its own sake, float32 [gh, gw]; None: nothing is explored.
            appearance: Appearance and entropy of the tiles, float32 [7, gh, gw]; None: the void guard judges the map.
            prior: Attention, similarity and trust, float32 [3, gh, gw]; None before the first answer.
            lines: Strength of lines of text, float32 [2, gh, gw]; None: no wide and tall regions.
            within: Tiles that the question is about, bool [gh, gw] in host memory; None for all.
            change: Change of the tiles since the frame that was shown before, float32 [gh, gw], for `evs` and
                `querystream`.
        """
        memory = self._memory
        maps = staleness, appearance, prior, lines
        return SelectionInputs(self._options, plan, relevance, *maps, memory, within, change)

    def note(self, inputs: SelectionInputs, selection: Selection) -> None:
        """Record that the newest frame's regions were chosen: the next choice builds on it."""
        if selection is not self._memory.selection:
            made_from = inputs.relevance, inputs.staleness, inputs.change, inputs.plan.tokens
            self._memory = SelectorMemory(
                selection, made_from, selection.levels, selection.lines, selection.void, inputs.appearance
            )

    def note_judgement(self, inputs: SelectionInputs, selection: Selection) -> None:
        """Choose again for the newest frame, in the light of the choice before: only its picture's structure and its
        lines are known already."""
        self._memory = replace(
            self._memory,
            made_from=None,
            lines=selection.lines,
            void=selection.void,
            appearance=inputs.appearance,
        )

    def _steady_tokens(self, relevance: torch.Tensor, budget: Budget, at_most: int | None) -> int:
        limits = self._options.tensions.limits
        if budget != ADAPTIVE:
            return fixed_tokens(budget, relevance.numel(), limits)
        if at_most is not None and at_most > limits.max_tokens:
            limits = replace(limits, max_tokens=at_most)
        if relevance is not self._spread or limits != self._spread_limits:
            tokens = tokens_for(budget, relevance, limits)
            self._spread = relevance
            self._spread_limits = limits
            # an adaptive budget moves only by more than this share
            if abs(tokens - self._spread_tokens) > 0.05 * tokens:
                self._spread_tokens = tokens
        return self._spread_tokens


@dataclass(frozen=True, slots=True)
class FrameMaps:
    """Maps that a frame's relevance was made from: its `texture`, the same as it is `scored`, with what came before
    filled in, the `versions` of its tiles, how they look (float32 [7, gh, gw], appearance and entropy), what answers
    taught (`prior` [3, gh, gw]), and what was `realised` of that, before blending."""

    texture: TextureArray
    scored: TextureArray
    versions: TileVersions | None
    looks: torch.Tensor
    prior: torch.Tensor | None
    realised: RelevanceMaps


@dataclass(eq=False)
class FrameAllocation:
    """Decision for one frame, with its reasons. It is in host memory or on a device, as the frame.

    `relevance` float32 [gh, gw], as blended over time; `scores` float32 [3, gh, gw] (information, perspective,
    participation) and their `weights` float32 [3], of this frame alone; `inputs`, all that its regions follow from,
    which are chosen once they are asked for. `change_since`, the relevance-weighted share of tiles that changed since
    the last answer, and `change_since_look`, since the last look, including what has vanished.
    """

    stamp: FrameStamp
    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    inputs: SelectionInputs
    change_since: float = 1.0
    change_since_look: float = 1.0
    maps: FrameMaps | None = None

    @cached_property
    def selection(self) -> Selection:
        """The regions, chosen now if they were not; on a device they stay there."""
        with torch.inference_mode():
            return self.inputs.select()

    @property
    def is_chosen(self) -> bool:
        """True once its regions were asked for."""
        return "selection" in self.__dict__

    @property
    def allocation(self) -> Allocation:
        """The regions, in host memory. Raises as `Selection.allocation`."""
        return self.selection.allocation

    def with_regions(self) -> FrameAllocation:
        """This frame, once its regions are in host memory. Raises as `allocation`."""
        _ = self.allocation
        return self

    def went_with_device(self, view: TextureView) -> bool:
        """Return True if the device that made the maps has failed, so that `view` is in host memory."""
        return not self.relevance.is_cpu and not isinstance(view, DevicePatches)

    @property
    def levels(self) -> npt.NDArray[np.int8]:
        """The shape of the region that shows each tile (the level, of squares), −1 if none does: int8 [gh, gw]."""
        return self.selection.choice.levels.cpu().numpy()

    @property
    def strategy(self) -> str:
        """Strategy that `auto` meant. Raises as `allocation`."""
        return self.selection.strategy

    @property
    def jitter_share(self) -> float | None:
        """Share of tiles whose shape differs from the choice before, carried along with motion; None before its own is
        made, and while that is on a device."""
        if not self._is_known:
            return None
        if self.selection is self.inputs.memory.selection:
            return 0.0
        return self.selection.jitter_share

    @property
    def overview(self) -> int:
        """Number of leading regions of the allocation that are an overview."""
        return len(self.inputs.plan.packet_overview)

    @property
    def glance_tokens(self) -> int:
        """Number of tokens of the overview that a glance at it would take, 0 if none would be of use."""
        return len(self.inputs.plan.overview)

    @property
    def tokens(self) -> int:
        """Number of regions; before they are known in host memory, of those that are planned: a quadtree may leave two
        of them, and the grid of a void some."""
        if self._is_known:
            return self.allocation.tokens
        return self.inputs.plan.choice_tokens + self.overview

    @property
    def tiles(self) -> int:
        """Number of tiles of the frame."""
        return self.relevance.numel()

    @property
    def _is_known(self) -> bool:
        return self.is_chosen and self.selection.is_on_host
