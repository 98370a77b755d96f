"""Options of an answer, of decoding and of incremental encoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from arr_coc.errors import OptionError
from arr_coc.types import Encode

Thinking = Literal["hide", "show", "off"]


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options of decoding: choice of tokens, and their largest number.

    `temperature` 0 chooses the likeliest token; any other value samples from the likeliest `top_p` of the probability
    among the likeliest `top_k` tokens (0: all), by `seed`. An answer ends with the first of `stop_strings` that it
    contains. Raises OptionError for values out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    stop_strings: tuple[str, ...] = ()

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
