"""Sessions that read frames apart, the logits that they make, and frames for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.qwen import session as session_module
from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import TokenPacket
from tests.arr_coc.qwen.test_session import packet, session


class Logits:
    """The logits of every prefill of a question, as sessions make them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._all: list[torch.Tensor] = []
        stock = session_module.prefill

        def prefill(qwen: Any, part: PromptPart, kv: Any) -> torch.Tensor:
            self._all.append(stock(qwen, part, kv))
            return self._all[-1]

        monkeypatch.setattr(session_module, "prefill", prefill)

    def of(self, speaking: AnswerSession, *arguments: Any, **named: Any) -> torch.Tensor:
        for _ in speaking.answer(*arguments, **named):
            break
        return self._all[-1]


def apart(family: str = "qwen3_vl", **options: Any) -> AnswerSession:
    return session(family, frames="window", **options)


def sharing(speaking: AnswerSession) -> AnswerSession:
    """A fresh session with the same model."""
    return AnswerSession(speaking.qwen, speaking.options)


def frames(*seeds: int) -> list[TokenPacket]:
    """Frames of several sizes, a second apart by their seed."""
    return [packet(seed, tokens=4 + seed % 3, media_s=float(seed)) for seed in seeds]


def frame_tokens(speaking: AnswerSession, shown: TokenPacket, *, timed: bool = True) -> int:
    """All tokens of a frame with what is around it."""
    prompts = speaking.prompts
    return len(prompts.opening(shown, timed=timed)) + len(shown.regions) + len(prompts.ids.frame_close)
