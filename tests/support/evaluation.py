"""Questions, suites and rows for the tests of the evaluation, made in code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from evaluation.questions import EvalQuestion
from evaluation.runner import Suite
from evaluation.strategies.base import Ask, Budget


def picture(seed: int = 0, height_px: int = 160, width_px: int = 224) -> Any:
    """Noise, uint8 [H, W, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)


def question(number: int = 0, frames: int = 1, **changes: Any) -> EvalQuestion:
    """One about frames of noise."""
    pictures = tuple(picture(10 * number + index) for index in range(frames))
    times_s = tuple(index / 2 for index in range(frames))
    fields = {"id": str(number), "kind": "colour", "text": "What is it?", "answers": ("red",)} | changes
    return EvalQuestion(frames=pictures, times_s=times_s, **fields)


def suite(count: int = 3, name: str = "small", frames: int = 1) -> Suite:
    """So many questions."""

    def questions() -> Iterator[EvalQuestion]:
        return (question(number, frames) for number in range(count))

    return Suite(name, "hash", questions)


def ask(budget: str = "40%", frames: int = 1, **changes: Any) -> Ask:
    """One question, as a strategy gets it."""
    of = question(frames=frames)
    fields: dict[str, Any] = {"budget": Budget.parse(budget), "encode": "sparse", "max_tokens": 6} | changes
    return Ask(of.frames, of.times_s, of.text, **fields)


def row(**changes: Any) -> dict[str, Any]:
    """One answer, as the journal keeps it."""
    return {
        **{"model": "m", "dtype": "float32", "suite": "still", "suite_hash": "h", "strategy": "grid"},
        **{"budget": "27%", "encode": "sparse", "seed": 0, "max_tokens": 64, "id": "0"},
        **{"kind": "colour", "group": "", "question": "What is it?", "answers": ["red"], "text": "red", "score": 1.0},
        **{"tokens": 16, "of_tokens": 64, "kept": 0, "prefilled": 30, "stale": None},
        **{"flops": {"choose": 0, "encode": 60, "prefill": 30, "decode": 10, "total": 100}},
        **{"ttft_ms": 10.0, "peak_bytes": 2_000_000},
        **{"iou": None, "covered": None, "on_asked": None, "on_distractor": None},
    } | changes
