"""Result of a check of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["works", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class DiagnosticCheck:
    """Result: the part `works`, is `absent` (runs go without it) or `broken` (runs need it); and the remedy."""

    part: str
    state: State
    found: str
    remedy: str | None = None


TORCH_FOR_CUDA = "pip install torch --index-url https://download.pytorch.org/whl/cu128"
"""Remedy for torch that was built for the CPU."""
