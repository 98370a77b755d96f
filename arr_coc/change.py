"""How much of what is relevant has changed since a moment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.types import TileVersions


class ChangeSince:
    """Counts from the versions that were marked last; everything counts as changed before the first mark."""

    def __init__(self) -> None:
        self._marked: TileVersions | None = None

    def mark(self, versions: TileVersions | None) -> None:
        """Counts from here."""
        self._marked = versions

    def of(self, versions: TileVersions | None, relevance: npt.NDArray[np.float32]) -> float:
        """Share of `relevance` [rows, cols] that lies on tiles that have changed, in [0, 1]; of the tiles, where
        nothing is relevant."""
        if self._marked is None or versions is None:
            return 1.0
        if self._marked is versions:
            return 0.0
        changed = self._marked.stale(versions)
        total = float(relevance.sum())
        return float(relevance[changed].sum()) / total if total > 0 else float(changed.mean())
