"""What one answer was, and the record from which that is made while it is spoken."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from arr_coc.types import Feedback


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """One answer.

    `tokens_used` are visual tokens, `text_tokens` those of the answer; `prefilled_tokens` had to be computed before it,
    the rest of the prompt was kept. Times in milliseconds: `encode_ms` for the frames, `prefill_ms` from there to
    the first token, `decode_ms` from there to the last one; `first_token_ms` counts from the call.
    """

    text: str
    text_tokens: int
    tokens_used: int
    prefilled_tokens: int
    encode_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    feedback: Feedback


@dataclass(slots=True)
class Record:
    """Notes taken while an answer is made. Times are `time.perf_counter()` seconds."""

    started_s: float = field(default_factory=time.perf_counter)
    encoded_s: float = 0.0
    first_s: float | None = None
    pieces: list[str] = field(default_factory=list)
    text_tokens: int = 0

    def encoded(self) -> None:
        """The frames are encoded."""
        self.encoded_s = time.perf_counter()

    def decoded(self) -> None:
        """One more step of the decoder is done; the first may also be the answer's end."""
        if self.first_s is None:
            self.first_s = time.perf_counter()

    def result(self, tokens_used: int, prefilled_tokens: int, feedback: Feedback) -> AnswerResult:
        """The answer as it stands."""
        ended_s = time.perf_counter()
        first_s = ended_s if self.first_s is None else self.first_s
        return AnswerResult(
            text="".join(self.pieces),
            text_tokens=self.text_tokens,
            tokens_used=tokens_used,
            prefilled_tokens=prefilled_tokens,
            encode_ms=(self.encoded_s - self.started_s) * 1e3,
            prefill_ms=(first_s - self.encoded_s) * 1e3,
            first_token_ms=(first_s - self.started_s) * 1e3,
            decode_ms=(ended_s - first_s) * 1e3,
            feedback=feedback,
        )
