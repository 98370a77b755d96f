"""What one answer was, and the record from which that is made while it is spoken."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from arr_coc.qwen.flops import Work
from arr_coc.qwen.incremental import VisionReport
from arr_coc.qwen.prompted import Prompt
from arr_coc.types import Feedback, FrameStamp


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """One answer.

    `tokens_used` are visual tokens, `text_tokens` those of the answer; `prefilled_tokens` had to be computed before it,
    the rest of the prompt was kept. Times in milliseconds: `encode_ms` for the frames, `prefill_ms` from there to
    the first token, `decode_ms` from there to the last one; `first_token_ms` counts from the call. No device is waited
    for in between, so on a GPU much of encoding counts as prefill.

    `shown`: the frames that it speaks of, in the prompt's order; `regions` int32 [K, 3]: what was shown of the newest.
    `feedback` is None where none was wanted. `kept_bytes`: what frames, keys and values take in memory after it.
    `work`: the operations that it took, and that all tokens would have. `vision`: what incremental encoding took and
    keeps, where that is how frames were encoded.
    """

    text: str
    text_tokens: int
    tokens_used: int
    prefilled_tokens: int
    encode_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    feedback: Feedback | None
    shown: tuple[FrameStamp, ...]
    regions: npt.NDArray[np.int32]
    kept_bytes: int
    work: Work
    vision: VisionReport | None = None


@dataclass(slots=True)
class Record:
    """Notes taken while an answer is made. Times are `time.perf_counter()` seconds."""

    started_s: float = field(default_factory=time.perf_counter)
    encoded_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    pieces: list[str] = field(default_factory=list)
    text_tokens: int = 0

    def encoded(self) -> None:
        """The frames are encoded."""
        self.encoded_s = time.perf_counter()

    def decoded(self) -> None:
        """One more step of the decoder is done; the first may also be the answer's end."""
        self.last_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = self.last_s

    def result(
        self, prompt: Prompt, feedback: Feedback | None, kept_bytes: int, vision: VisionReport | None, work: Work
    ) -> AnswerResult:
        """The answer to a prompt as it stands; `kept_bytes` beside what `vision` tells of."""
        first_s = time.perf_counter() if self.first_s is None else self.first_s
        return AnswerResult(
            text="".join(self.pieces),
            text_tokens=self.text_tokens,
            tokens_used=prompt.tokens_used,
            prefilled_tokens=prompt.prefilled_tokens,
            encode_ms=(self.encoded_s - self.started_s) * 1e3,
            prefill_ms=(first_s - self.encoded_s) * 1e3,
            first_token_ms=(first_s - self.started_s) * 1e3,
            decode_ms=(max(self.last_s, first_s) - first_s) * 1e3,
            feedback=feedback,
            shown=prompt.stamps,
            regions=prompt.regions.int().cpu().numpy(),
            kept_bytes=kept_bytes + (vision.held_bytes if vision else 0),
            vision=vision,
            work=work,
        )
