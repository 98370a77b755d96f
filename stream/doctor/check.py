"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["works", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing: whether it `works`, is `absent` (runs go without it), or `broken` (runs need it), and the remedy."""

    part: str
    state: State
    found: str
    remedy: str | None = None
