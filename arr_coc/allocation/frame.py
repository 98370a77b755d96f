"""`FrameAllocation`: decision for one frame, whose regions are chosen once they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.selection import Selection, SelectionInputs
from arr_coc.relevance.balancing import RelevanceMaps
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import Allocation, FrameStamp, TileVersions


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
    """Decision for one frame, with its reasons. It lies where the frame was allocated: in host memory, or on a device.

    `relevance` float32 [gh, gw], as blended over time; `scores` float32 [3, gh, gw] (information, perspective,
    participation) and their `weights` float32 [3], of this frame alone; `inputs`, all that its regions follow from,
    which are chosen once they are asked for. `change_since`, the relevance-weighted share of tiles that changed since
    the last answer, and `change_since_look`, since the last look, where what has vanished counts too.
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

    @property
    def levels(self) -> npt.NDArray[np.int8]:
        """The shape of the region that shows each tile (the level, of squares), −1 where none does: int8 [gh, gw]."""
        return self.selection.choice.levels.cpu().numpy()

    @property
    def strategy(self) -> str:
        """What `auto` meant. Raises as `allocation`."""
        return self.selection.strategy

    @property
    def jitter_share(self) -> float | None:
        """Share of tiles whose shape differs from the choice before, carried along with motion; None before its own is
        made, and while that is on a device."""
        if not self._is_known:
            return None
        return 0.0 if self.selection is self.inputs.memory.selection else self.selection.jitter_share

    @property
    def overview(self) -> int:
        """Number of leading regions of the allocation that are an overview."""
        return len(self.inputs.plan.shown)

    @property
    def glance_tokens(self) -> int:
        """Number of tokens of the overview that a glance at it would take, 0 if none would be of use."""
        return len(self.inputs.plan.overview)

    @property
    def tokens(self) -> int:
        """Number of regions; before they are known in host memory, of those that are planned: a quadtree may leave two
        of them, and the grid of a void some."""
        return self.allocation.tokens if self._is_known else self.inputs.plan.left + self.overview

    @property
    def tiles(self) -> int:
        """Number of tiles of the frame."""
        return self.relevance.numel()

    @property
    def _is_known(self) -> bool:
        return self.is_chosen and self.selection.is_on_host
