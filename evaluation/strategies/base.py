"""`Ask`, `Reply`, `Strategy`, budgets, views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.flops import Flops
from arr_coc.qwen.preprocess import Preprocessing, Rgb, to_tiles
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import NS_PER_S, Encode, FramePacket, FrameStamp, TileGrid, TokenPacket
from evaluation.errors import ChoiceError


@dataclass(frozen=True, slots=True)
class Budget:
    """`tokens` a frame, or if that is 0, `percent` of its tiles."""

    percent: float = 100.0
    tokens: int = 0

    @classmethod
    def parse(cls, text: str) -> Budget:
        """From "27%" or "64". Raises ChoiceError."""
        text = text.strip()
        try:
            percent = float(text[:-1]) if text.endswith("%") else 0.0
            tokens = 0 if percent else int(text)
        except ValueError:
            percent, tokens = 0.0, 0
        if not (0 < percent <= 100 or tokens > 0):
            raise ChoiceError(
                f"a budget is a share of the tokens such as 27%, or a number of tokens such as 64; got {text!r}"
            )
        return cls(percent, tokens)

    def of(self, tiles: int) -> int:
        """Tokens for a frame of `tiles` tiles: at least 1, at most all."""
        tokens = self.tokens or round(self.percent / 100 * tiles)
        return max(1, min(tokens, tiles))

    def __str__(self) -> str:
        return str(self.tokens) if self.tokens else f"{self.percent:g}%"


EVERYTHING = Budget()
"""All tokens."""


Chosen = npt.NDArray[np.bool_]
"""Tiles that are shown: bool [rows, cols]."""


@dataclass(frozen=True, slots=True)
class TiledFrame:
    """`image` uint8 [rows * tile_px, cols * tile_px, 3] on `grid`, at the time that `stamp` says."""

    image: Rgb
    grid: TileGrid
    tile_px: int
    stamp: FrameStamp

    @classmethod
    def fit(cls, prep: Preprocessing, frame: Rgb, stamp: FrameStamp) -> TiledFrame:
        """Fit a frame as the model's processor does.

        Args:
            prep: Sizes that the model takes.
            frame: uint8 RGB [H, W, 3].
            stamp: Number and times of the frame.

        Raises:
            ShapeError: The frame is too narrow.
        """
        image, grid = prep.fit(frame)
        return cls(image, grid, prep.tile_px, stamp)

    def tiles(self) -> npt.NDArray[np.uint8]:
        """Every tile in token order: [rows * cols, 3, tile_px, tile_px]."""
        return to_tiles(torch.from_numpy(np.array(self.image)), self.tile_px).numpy()

    def token_packet(self, mask: Chosen) -> TokenPacket:
        """The chosen tiles alone, for the FLOPs of the sparse encoder."""
        regions = regions_of(mask)
        worth = np.ones(len(regions), np.float32)
        return TokenPacket(self.stamp, self.grid, regions, worth, self.tiles()[mask.ravel()])

    def frame_packet(self, mask: Chosen) -> FramePacket:
        """The whole frame and the chosen tiles, for the FLOPs of encoders of the whole frame."""
        return FramePacket(self.stamp, self.grid, regions_of(mask), mask.astype(np.float32), self.image)


def regions_of(mask: Chosen) -> npt.NDArray[np.int32]:
    """The chosen tiles as regions of level 0, in token order: int32 [K, 3] (level, row, col)."""
    rows, cols = np.nonzero(mask)
    return np.stack([np.zeros_like(rows), rows, cols], axis=1).astype(np.int32)


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

    def views(self, qwen: QwenVL) -> list[TiledFrame]:
        """The frames as the model's processor fits them. Raises ShapeError if one is too narrow."""
        pairs = zip(self.frames, stamps_of(self.times_s), strict=True)
        return [TiledFrame.fit(qwen.preprocessing, frame, stamp) for frame, stamp in pairs]


def stamps_of(times_s: Sequence[float]) -> list[FrameStamp]:
    """The stamps of frames that are captured when they are shown."""
    times_ns = [round(at_s * NS_PER_S) for at_s in times_s]
    return [FrameStamp(index, at_ns, at_ns) for index, at_ns in enumerate(times_ns)]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and its cost.

    `tokens`: visual tokens of all frames that the answer's last layer saw, of the `of_tokens` that there are;
    `cached_tokens` of them were in the cache since an earlier answer, the others were appended. `prefilled`: tokens of
    the prompt, text and visual ones, that were computed for it.
    `regions` int32 [K, 3] on `grid`: those of the newest frame. `ttft_ms`: from the frames to the first token.
    """

    text: str
    tokens: int
    of_tokens: int
    regions: npt.NDArray[np.int32]
    grid: TileGrid
    flops: Flops
    ttft_ms: float
    prefilled: int
    cached_tokens: int = 0


Answer: TypeAlias = Callable[[QwenVL, Ask], Reply]

Stream: TypeAlias = Callable[[Ask], Reply]
"""Answers the questions of one clip in turn, `Ask.frames` being the newest frame; may keep state between them."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to spend a budget: its name, how it answers, and the encodings that it knows (the first is its own).

    `seeded`: its answers depend on a seed, so it is run with several. `budgeted`: it spends a budget; else it is run
    once. `begin`: of a strategy that keeps something from answer to answer, makes the stream of a clip;
    `stream_strategy` derives the answer to a lone question from it.
    """

    name: str
    answer: Answer
    encodes: tuple[Encode, ...] = ("sparse", "incremental", "prune")
    seeded: bool = False
    budgeted: bool = True
    begin: Callable[[QwenVL], Stream] | None = None

    def stream(self, qwen: QwenVL) -> Stream:
        """Return what answers the questions of one clip."""
        return self.begin(qwen) if self.begin is not None else partial(self.answer, qwen)


def stream_strategy(
    name: str, begin: Callable[[QwenVL], Stream], encodes: tuple[Encode, ...] = ("sparse",), *, budgeted: bool = True
) -> Strategy:
    """Return a strategy whose stream of a clip keeps something from answer to answer.

    Args:
        name: Name of the strategy.
        begin: Makes the stream of a clip.
        encodes: Encodings that it knows, its own first.
        budgeted: Whether it follows a budget.
    """
    return Strategy(name, lambda qwen, ask: begin(qwen)(ask), encodes, budgeted=budgeted, begin=begin)
