"""Scene cuts, judged on the frame itself, without looking ahead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arr_coc.motion import Shift
from arr_coc.thumbnail import Thumbnail


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """`is_cut`, and `score` in [0, 1]: how unlike the frame before this one is."""

    is_cut: bool = False
    score: float = 0.0


NO_CUT = CutVerdict()


class SceneCutDetector:
    """Says of each frame whether it begins a new shot."""

    def judge(self, before: Thumbnail, after: Thumbnail, dirty_share: float, shift: Shift) -> CutVerdict:
        old, new = before.glance[..., 0], after.glance[..., 0]
        a, b = old - old.mean(), new - new.mean()
        energy = float(np.sqrt((a * a).sum() * (b * b).sum()))
        score = min(1.0, max(0.0, 1 - float((a * b).sum()) / energy)) if energy > 0 else 0.0
        return CutVerdict(score > 0.6 and dirty_share > 0.5 and not shift, score)
