"""What a picture of one frame's allocation is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Overlay:
    """One frame and its allocation.

    `image` uint8 RGB [H, W, 3], without padding; `regions` int [K, 3] (level, row, col) on the tile grid; `relevance`
    float [rows, cols] in [0, 1].
    """

    image: npt.NDArray[np.uint8]
    regions: npt.NDArray[np.integer]
    relevance: npt.NDArray[np.floating]
