"""Letterbox bars: flat borders that two pictures share, of which nothing may be concluded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FLAT = 6
"""Range of values, of 255, within which a border row or column is a letterbox bar."""

LEAST_SHOWN = 0.25
"""Least share of a picture between the bars; a picture that shows less has no bars but is dark."""

Luma = npt.NDArray[np.uint8]


def without_bars(old: Luma, new: Luma) -> tuple[slice, slice]:
    """Return the rows and columns between the bars that both pictures uint8 [h, w] have; all of them where hardly any
    would be left."""
    rows, cols = (_between_bars(old, new, axis) for axis in (1, 0))
    small = (rows.stop - rows.start) * (cols.stop - cols.start) < old.size * LEAST_SHOWN
    return (slice(None), slice(None)) if small else (rows, cols)


def _between_bars(old: Luma, new: Luma, axis: int) -> slice:
    size = old.shape[1 - axis]
    busy = np.flatnonzero((np.ptp(old, axis=axis) > FLAT) | (np.ptp(new, axis=axis) > FLAT))
    first, last = (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, 0)
    # Where there is a bar, the texels at its edge mix it with the picture.
    return slice(first + (first > 0), last - (last < size))
