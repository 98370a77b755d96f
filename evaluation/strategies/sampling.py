"""Grid, random, smaller, full, EVS.

EVS is the strategy `evs` of the product (`allocation/evs.py`) on whole clips: over all frames the tiles that
changed most are kept; the first frame is new as a whole and comes first. That needs a budget of at least one frame.
With less, each frame has its own share: of the first frame even coverage, of later ones the tiles that changed most. A
single picture has no redundancy in time: even coverage.

A strong baseline for token reduction, as several comparisons found (Wen et al. 2025, "Token Pruning in Multimodal Large
Language Models: Are We Solving the Right Problem?", arXiv:2502.11501).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from arr_coc.allocation.evs import clip_tiles, even_lattice, tile_change
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import resize_image
from evaluation.strategies.base import Ask, Chosen, Reply, Strategy, TiledFrame
from evaluation.strategies.session import answer_from


def _choose_full(views: Sequence[TiledFrame], ask: Ask) -> list[Chosen]:
    return [np.ones(view.grid.shape, bool) for view in views]


def _answer_full(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose_full, qwen, ask)


FULL = Strategy("full", _answer_full, encodes=("full",), budgeted=False)


def _choose_grid(views: Sequence[TiledFrame], ask: Ask) -> list[Chosen]:
    return [even_lattice(view.grid.shape, ask.budget.of(view.grid.tiles)) for view in views]


def _answer_grid(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose_grid, qwen, ask)


GRID = Strategy("grid", _answer_grid)


def changes(views: Sequence[TiledFrame]) -> list[npt.NDArray[np.float64]]:
    """For each frame but the first, by how much its tiles changed since the frame before: [gh, gw]."""
    return [tile_change(previous.image, current.image, current.tile_px) for previous, current in pairwise(views)]


def _choose_evs(views: Sequence[TiledFrame], ask: Ask) -> list[Chosen]:
    return clip_tiles(changes(views), views[0].grid.shape, ask.budget.of(views[0].grid.tiles))


def _answer_evs(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose_evs, qwen, ask)


EVS = Strategy("evs", _answer_evs)


def _choose_random(views: Sequence[TiledFrame], ask: Ask) -> list[Chosen]:
    rng = np.random.default_rng(ask.seed)
    masks = []
    for view in views:
        tiles = np.zeros(view.grid.tiles, bool)
        tiles[rng.permutation(tiles.size)[: ask.budget.of(tiles.size)]] = True
        masks.append(tiles.reshape(view.grid.shape))
    return masks


def _answer_random(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose_random, qwen, ask)


RANDOM = Strategy("random", _answer_random, seeded=True)


def smaller_grid(shape: tuple[int, int], tokens: int) -> tuple[int, int]:
    """(rows, cols) of about the same aspect with at most `tokens` tiles."""
    rows, cols = shape
    scale = min(1.0, math.sqrt(tokens / (rows * cols)))
    fewer_rows = max(1, round(rows * scale))
    fewer_cols = max(1, min(cols, tokens // fewer_rows))
    return min(fewer_rows, tokens), fewer_cols


def smaller_frame(frame: Rgb, view: TiledFrame, tokens: int) -> Rgb:
    """Return a frame scaled down to at most `tokens` of the model's tiles; `view` is the frame as the model fits it."""
    rows, cols = smaller_grid(view.grid.shape, tokens)
    return resize_image(frame, rows * view.tile_px, cols * view.tile_px)


def _answer_smaller(qwen: QwenVL, ask: Ask) -> Reply:
    views = ask.views(qwen)
    frames = tuple(
        smaller_frame(frame, view, ask.budget.of(view.grid.tiles))
        for frame, view in zip(ask.frames, views, strict=True)
    )
    reply = FULL.answer(qwen, replace(ask, frames=frames, encode="full"))
    sharp = np.zeros((0, 3), np.int32)
    return replace(reply, regions=sharp, grid=views[-1].grid, of_tokens=sum(view.grid.tiles for view in views))


SMALLER = Strategy("smaller", _answer_smaller, encodes=("full",))
