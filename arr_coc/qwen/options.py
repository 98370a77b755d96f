"""Options of an answer, of decoding and of incremental encoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from arr_coc.errors import OptionError
from arr_coc.types import Encode

Thinking = Literal["hide", "show", "off"]

PENALTY_MAX = 2.0
"""Largest penalty of presence and frequency, either way, as of OpenAI's API and vLLM."""

REPETITION_PENALTY_MAX = 100.0
"""Largest penalty of repetition. From 10 on hardly any token comes twice; the limit keeps logits finite."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options of decoding: choice of tokens, and their largest number.

    `temperature` 0 chooses the likeliest token; any other value samples from the likeliest `top_p` of the probability
    among the likeliest `top_k` tokens (0: all), of those at least `min_p` times as likely as the likeliest, by `seed`.
    An answer ends with the first of `stop_strings` that it contains, and, with `stop_loops`, once it repeats itself
    (`arr_coc.qwen.loops`). The penalties are those of `arr_coc.qwen.penalties`, and 1, 0, 0 and 0 for none. Raises
    OptionError for values out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    stop_strings: tuple[str, ...] = ()
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    stop_loops: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise OptionError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not self.temperature >= 0 or not 0 < self.top_p <= 1:
            raise OptionError(
                f"temperature must be 0 or more and top_p in (0, 1], got {self.temperature} and {self.top_p}"
            )
        if self.top_k < 0:
            raise OptionError(f"top_k must be 0 or more, got {self.top_k}")
        if not all(isinstance(text, str) and text for text in self.stop_strings):
            raise OptionError(f"stop_strings must be texts that are not empty, got {list(self.stop_strings)}")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"min_p must be in [0, 1], got {self.min_p}")
        if not 0 < self.repetition_penalty <= REPETITION_PENALTY_MAX:
            raise OptionError(
                f"repetition_penalty must be above 0 and at most {REPETITION_PENALTY_MAX:g}, 1 for none, got "
                f"{self.repetition_penalty}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(penalty := getattr(self, name)) <= PENALTY_MAX:
                raise OptionError(f"{name} must be in [-{PENALTY_MAX:g}, {PENALTY_MAX:g}], 0 for none, got {penalty}")
        if self.no_repeat_ngram_size < 0:
            raise OptionError(f"no_repeat_ngram_size must be 0 or more, got {self.no_repeat_ngram_size}")

    @property
    def counts_tokens(self) -> bool:
        """True if a token's logit depends on the tokens before it."""
        return self.reads_prompt or self.counts_answer

    @property
    def counts_answer(self) -> bool:
        """True if penalties count the tokens of the answer."""
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def reads_prompt(self) -> bool:
        """True if penalties read the tokens of the prompt."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0


@dataclass(frozen=True, slots=True)
class IncrementalOptions:
    """Options of `encode="incremental"`: size and refresh of its cache. Raises OptionError for values out of range.

    `every_frames`: interval in frames at which all regions are encoded; None for never. `share`: share of the regions
    that is encoded again with every frame although unchanged, those with the most change around them. `drift_limit`:
    if the error of these regions exceeds it, all regions of the next frame are encoded; None for no limit. `memory_mb`:
    memory limit of the cache; a single frame that needs more is encoded without the cache.
    """

    every_frames: int | None = 64
    share: float = 0.10
    drift_limit: float | None = 0.2
    memory_mb: float = 1024.0

    def __post_init__(self) -> None:
        if self.every_frames is not None and self.every_frames < 1:
            raise OptionError(f"every_frames must be at least 1, or none, got {self.every_frames}")
        if not 0 <= self.share <= 1:
            raise OptionError(f"share must be in [0, 1], got {self.share}")
        if self.drift_limit is not None and not self.drift_limit > 0:
            raise OptionError(f"drift_limit must be above 0, or none, got {self.drift_limit}")
        if not self.memory_mb >= 0:
            raise OptionError(f"memory_mb must be 0 or more, got {self.memory_mb}")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of an answer session. `system` None: the chat template's own system prompt, if it has one.

    `incremental`: options of `encode="incremental"`.
    `feedback`: return the answer's attention to the tokens; without it, attention is not computed.
    `thinking`: thoughts before an answer are left out of its text (`hide`), part of it (`show`), or not requested
    (`off`).
    """

    encode: Encode = "sparse"
    decoding: Decoding = field(default_factory=Decoding)
    system: str | None = None
    incremental: IncrementalOptions = field(default_factory=IncrementalOptions)
    feedback: bool = True
    thinking: Thinking = "off"

    def __post_init__(self) -> None:
        if self.encode not in get_args(Encode):
            raise OptionError(f"encode must be one of {', '.join(get_args(Encode))}, got {self.encode!r}")
        if self.thinking not in get_args(Thinking):
            raise OptionError(f"thinking must be one of {', '.join(get_args(Thinking))}, got {self.thinking!r}")
