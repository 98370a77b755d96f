"""What every strategy is asked, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from arr_coc.qwen.flops import Flops
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import NS_PER_S, Encode, FrameStamp, TileGrid
from evaluation.budgets import Budget
from evaluation.views import View


@dataclass(frozen=True, slots=True)
class Ask:
    """A question about frames uint8 [H, W, 3] at `times_s`, each to be shown at `budget`.

    `before`: frames that a stream would have seen before, at `before_s`; they are not asked about.
    """

    frames: tuple[Rgb, ...]
    times_s: tuple[float, ...]
    text: str
    budget: Budget
    encode: Encode
    seed: int = 0
    max_tokens: int = 64
    before: tuple[Rgb, ...] = ()
    before_s: tuple[float, ...] = ()

    def views(self, qwen: QwenVL) -> list[View]:
        """The frames as the model's processor fits them. Raises ShapeError where one is too narrow."""
        shown = zip(self.frames, stamps_of(self.times_s), strict=True)
        return [View.fit(qwen.preprocessing, frame, stamp) for frame, stamp in shown]


def stamps_of(times_s: Sequence[float]) -> list[FrameStamp]:
    """The stamps of frames that are captured when they are shown."""
    times_ns = [round(at_s * NS_PER_S) for at_s in times_s]
    return [FrameStamp(index, at_ns, at_ns) for index, at_ns in enumerate(times_ns)]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and its cost.

    `tokens`: visual tokens of all frames that the answer's last layer saw, of the `of_tokens` that there are.
    `regions` int32 [K, 3] on `grid`: those of the newest frame. `ttft_ms`: from the frames to the first token.
    """

    text: str
    tokens: int
    of_tokens: int
    regions: npt.NDArray[np.int32]
    grid: TileGrid
    flops: Flops
    ttft_ms: float


Answer: TypeAlias = Callable[[QwenVL, Ask], Reply]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to spend a budget: its name, how it answers, and the encodings that it knows (the first is its own).

    `seeded`: its answers depend on a seed, so it is run with several. `budgeted`: it spends a budget; else it is run
    once.
    """

    name: str
    answer: Answer
    encodes: tuple[Encode, ...] = ("sparse", "incremental", "prune")
    seeded: bool = False
    budgeted: bool = True
