"""The project's own session, as strategies ask it, with a note of what its encoder computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from arr_coc.qwen.encoding import IncrementalEncoder, Packet, VisionReport
from arr_coc.qwen.options import AnswerOptions, Decoding, Frames, IncrementalOptions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerResult, AnswerSession
from arr_coc.qwen.vision import VisualTokens
from arr_coc.types import TokenPacket
from evaluation.strategies.base import Ask


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer, and what each frame took that had to be encoded for it, where `incremental` did that."""

    result: AnswerResult
    encoded: tuple[VisionReport, ...]


class Speaking:
    """Answers with a session of its own, so that none is cheaper for what another one left in the cache."""

    def __init__(self, qwen: QwenVL, ask: Ask, frames: Frames = "causal", *, feedback: bool = False) -> None:
        options = AnswerOptions(ask.encode, Decoding(ask.max_tokens), frames=frames, feedback=feedback)
        self._session = AnswerSession(qwen, options)
        self._session.vision = self._vision = _NotingEncoder(options.incremental)
        self._query = ask.text

    def answer(self, packets: Sequence[Packet]) -> Spoken:
        """What is said about frames, the oldest first."""
        self._vision.taken.clear()
        for _ in self._session.answer(packets, self._query):
            pass
        return Spoken(self._session.last, tuple(self._vision.taken))


class _NotingEncoder(IncrementalEncoder):
    """Notes in `taken` what every frame took."""

    def __init__(self, options: IncrementalOptions) -> None:
        super().__init__(options)
        self.taken: list[VisionReport] = []

    def encode(self, qwen: QwenVL, packet: TokenPacket) -> tuple[VisualTokens, torch.Tensor]:
        made = super().encode(qwen, packet)
        self.taken.append(self.report)
        return made
