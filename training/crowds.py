"""Pictures packed with things, row by row: many things to see for every token that is looked at."""

from __future__ import annotations

import numpy as np

from stream.scenes.drawing import SHAPE_NAMES
from training.cast import Player
from training.casting import COLOUR_NAMES, ClipOptions, faint, one, shape_player, text_player
from training.scenes import Plan
from training.words import random_number, random_word

_OPTIONS = ClipOptions(clutter=0.0)
_TEXT_ROWS = 0.6
_FAINT_SHARE = 0.1
_GAPS_PX = (2.0, 14.0)
_WORD_SHARE = 0.7


def random_crowd(rng: np.random.Generator, size_px: tuple[int, int]) -> Plan:
    """Rows of words and numbers, and rows of shapes, in training's fonts, over a picture of (width, height) pixels."""
    width_px, height_px = size_px
    cast: list[Player] = []
    top = float(rng.uniform(*_GAPS_PX))
    while top < height_px:
        text = rng.random() < _TEXT_ROWS
        row: list[Player] = []
        left = float(rng.uniform(*_GAPS_PX))
        while left < width_px:
            player = _text(rng) if text else shape_player(rng, one(rng, SHAPE_NAMES), one(rng, COLOUR_NAMES), _OPTIONS)
            x0, y0, x1, _ = player.box_px(0)
            row.append(player.placed(left - x0, top - y0))
            left += x1 - x0 + float(rng.uniform(*_GAPS_PX))
        bottom = max(player.box_px(0)[3] for player in row)
        cast += row
        top = bottom + float(rng.uniform(*_GAPS_PX))
    return Plan(size_px, (0.0,), tuple(cast), _OPTIONS, None, (0, 0), int(rng.integers(2**62)))


def _text(rng: np.random.Generator) -> Player:
    text = random_word(rng, "train") if rng.random() < _WORD_SHARE else random_number(rng, "train")
    player = text_player(rng, text, one(rng, COLOUR_NAMES), "train", _OPTIONS)
    return faint(rng, player) if rng.random() < _FAINT_SHARE else player
