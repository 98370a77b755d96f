"""Work in short steps, between which other work may run: a generator that yields after each step.

The same generator serves an answer, which runs it to its end at once, and idle work, which pauses.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

import torch

Result = TypeVar("Result")

Steps: TypeAlias = Generator[None, None, Result]
"""Work that returns a result after its last step."""

CPU_TOKENS, GPU_TOKENS = 32, 1024
"""Tokens of one step. On a CPU a step of Qwen3-VL-2B's dimensions then takes 10 to 40 ms. A constant, as the size of a
step changes the rounding of its result, which must not depend on the machine's load."""


def step_tokens(device: torch.device) -> int:
    """Return the number of tokens of one step on a device."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


def finish(steps: Steps[Result]) -> Result:
    """Run all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
