"""How much of what is relevant has changed since a moment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.types import TileVersions

Map = npt.NDArray[np.float32]


class ChangeSince:
    """Counts from the versions that were marked last; everything counts as changed before the first mark.

    A tile weighs as much as it is relevant now. `lasting`: as much as it ever was since the mark, so that what has
    vanished from a plain wall counts as much as what has come.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self._lasting = lasting
        self._marked: TileVersions | None = None
        self._now: Map | None = None
        self._weights: Map | None = None

    def mark(self, versions: TileVersions | None) -> None:
        """Counts from here: from the frame that was shown last."""
        self._marked, self._weights = versions, self._now

    def of(self, versions: TileVersions | None, relevance: Map) -> float:
        """Shows a frame's `relevance` [rows, cols]: the share of it that lies on tiles that have changed, in [0, 1]; of
        the tiles, where nothing is relevant."""
        if self._lasting:
            before = self._weights
            self._now = relevance
            if before is not None and before.shape == relevance.shape:
                relevance = np.maximum(before, relevance)
            self._weights = relevance
        if self._marked is None or versions is None:
            return 1.0
        if self._marked is versions:
            return 0.0
        changed = self._marked.stale(versions)
        total = float(relevance.sum())
        return float(relevance[changed].sum()) / total if total > 0 else float(changed.mean())
