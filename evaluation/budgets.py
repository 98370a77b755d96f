"""A budget of visual tokens a frame: a number of them, or a share of the frame's tiles."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.errors import ChoiceError


@dataclass(frozen=True, slots=True)
class Budget:
    """`tokens` a frame, or, where that is 0, `percent` of its tiles."""

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
        """Tokens for a frame of so many tiles: at least 1, at most all."""
        wanted = self.tokens or round(self.percent / 100 * tiles)
        return max(1, min(wanted, tiles))

    def __str__(self) -> str:
        return str(self.tokens) if self.tokens else f"{self.percent:g}%"


EVERYTHING = Budget()
"""All tokens."""
