"""Exploration: what the decoder has not been shown in full detail for longest deserves a look."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.carrying import carried

INFORMATION_BAND = 0.1
"""A tile's information counts as new only when it has moved this far; noise then does not turn the exploration."""


class Exploration:
    """Counts answers, and the last one in which each tile was shown at level 0.

    `neglect` is the number of answers since, weighted by the tile's information. It turns with answers, not with
    frames: what is explored stays put until a decoder has seen it.
    """

    def __init__(self) -> None:
        self._answers = 1
        self._seen: npt.NDArray[np.int64] | None = None
        self._information: npt.NDArray[np.float32] | None = None
        self._neglect: npt.NDArray[np.float32] | None = None

    def carry(self, dy_tiles: int, dx_tiles: int) -> None:
        """Content moved by whole tiles; those that come into view were never seen."""
        if self._seen is not None and self._information is not None:
            self._seen = carried(self._seen, dy_tiles, dx_tiles, 0)
            self._information = carried(self._information, dy_tiles, dx_tiles, np.nan)
            self._neglect = None

    def shown(self, levels: npt.NDArray[np.int8]) -> None:
        """A decoder was shown the frame with this level map [gh, gw]."""
        if self._seen is not None:
            self._seen = np.where(levels == 0, self._answers, self._seen)
            self._answers += 1
            self._neglect = None

    def neglect(self, information: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32 [gh, gw], the same array object while neither answers nor information (beyond the band) moved."""
        if self._seen is None or self._information is None:
            self._seen = np.zeros(information.shape, np.int64)
            self._information = information
        moved = ~(np.abs(information - self._information) <= INFORMATION_BAND)
        if moved.any():
            self._information = np.where(moved, information, self._information)
            self._neglect = None
        if self._neglect is None:
            self._neglect = ((self._answers - self._seen) * self._information).astype(np.float32)
        return self._neglect
