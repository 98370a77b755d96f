"""`ChangeMeter`: how much changed since a frame was marked."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.allocation.compiled_maps import CompiledMaps
from arr_coc.types import TileVersions


class ChangeMeter:
    """Counts from the versions that were marked last; everything counts as changed before the first mark.

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
        """Counts from here: from the frame that was shown last."""
        self._marked, self._weights = versions, self._now

    def measure(self, versions: TileVersions | None, relevance: torch.Tensor) -> torch.Tensor | float:
        """Shows a frame's `relevance` [rows, cols]: the share of it that lies on tiles that have changed, in [0, 1]; of
        the tiles, if nothing is relevant. A scalar on a device, unless it is known without asking that."""
        relevance = self._weighed(relevance)
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

    def _weighed(self, relevance: torch.Tensor) -> torch.Tensor:
        """The weights of a frame's tiles, whose relevance is noted."""
        if not self._keep_vanished:
            return relevance
        before, self._now = self._weights, relevance
        if before is None or (before.shape, before.device) != (relevance.shape, relevance.device):
            self._weights = relevance
        else:
            self._weights = torch.maximum(before, relevance)
        return self._weights
