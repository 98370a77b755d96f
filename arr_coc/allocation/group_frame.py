"""A frame in a group of pictures, and the group up to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from arr_coc.allocation.group_areas import Flags, Regions
from arr_coc.allocation.tile_news import TileNews
from arr_coc.types import FrameStamp, GroupPlace, TileVersions

TokenState = Literal["new", "shown", "superseded"]

GroupReason = Literal[
    "", "first", "epoch", "failed", "lost", "age", "full", "superseded", "changed", "outdated", "rebuilt"
]
"""Why a group begins with a frame: there was none; a cut, a seek or another size; the frame is shown whole because its
allocation failed; the model holds another one; its age, its tokens, or those that were superseded exceed a limit; what
changed costs about as much as a key frame; something changed, and what stays was computed beside it; it was written
anew in idle time.
Empty if the group goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupFrame:
    """A frame in its group, and the group up to it.

    `place` is None for a frame that alone exceeds the group's limit: its packet is complete in itself. `reason`:
    why the group begins with it. `regions` int32 [N, 3] are all tokens of the group, in the order in which they were
    appended, or those of the frames that it shows, the last `appended_tokens` with this frame; `relevance` float32
    [appended_tokens]. The `overview` tokens from `overview_begin` on are the newest overview. `lengths`: of several
    frames, the tokens of each. `shown_ns` int64 [N]: media time of the frame that each shows; `superseded` bool [N]:
    some tile of it has changed since, or smaller ones show all of it; `dropped` int32 [M]: which of them with this
    frame. Of all superseded tokens, `changed_tokens` showed what is no longer there. `is_complete`: an idle packet had
    nothing left to refine. The group began at `begun_ns`. `news`: what was learnt of the stream's light and unrest.
    `areas` int8 [gh, gw]: log2 of the area of the smallest token that shows each tile as it is, or STALE, NEWS or
    NEVER, of several frames always NEVER; by the tiles' `versions`, and by `picture` uint8 [8 gh, 8 gw, 3], level 2 of
    each tile as it was shown, or was when it was noted that it had changed.
    """

    stamp: FrameStamp
    place: GroupPlace | None
    reason: GroupReason
    regions: Regions
    relevance: npt.NDArray[np.float32]
    shown_ns: npt.NDArray[np.int64]
    superseded: Flags
    dropped: npt.NDArray[np.int32]
    overview: int
    begun_ns: int
    areas: npt.NDArray[np.int8]
    versions: TileVersions
    picture: npt.NDArray[np.uint8]
    news: TileNews
    overview_begin: int = 0
    lengths: tuple[int, ...] = ()
    changed_tokens: int = 0
    is_complete: bool = False

    @property
    def appended_tokens(self) -> int:
        """Number of tokens that this frame appends."""
        return len(self.relevance)

    @property
    def held_tokens(self) -> int:
        """Number of tokens that the group shows."""
        return len(self.regions) - self.superseded_tokens

    @property
    def superseded_tokens(self) -> int:
        """Number of tokens that were superseded since the group began."""
        return int(np.count_nonzero(self.superseded))

    @property
    def is_patched(self) -> bool:
        """True if tokens were appended to the key frame, or have left it."""
        is_later = self.place is not None and self.place.frame > 0
        return is_later and (len(self.regions) > self.lengths[0] or bool(self.superseded.any()))

    @property
    def next_place(self) -> GroupPlace | None:
        """Place of the next frame; this one's if it appends nothing, and None if there is no group."""
        if self.place is None:
            return None
        return replace(self.place, frame=self.place.frame + bool(self.appended_tokens or len(self.dropped)))

    @property
    def states(self) -> list[TokenState]:
        """State of each token."""
        older = self.superseded[: len(self.regions) - self.appended_tokens].tolist()
        states: list[TokenState] = ["superseded" if is_superseded else "shown" for is_superseded in older]
        return states + ["new"] * self.appended_tokens
