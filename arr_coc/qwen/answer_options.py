"""How a session answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from arr_coc.errors import OptionError
from arr_coc.qwen.decode import Decoding
from arr_coc.qwen.refresh import IncrementalOptions
from arr_coc.types import Encode

Frames = Literal["causal", "window"]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How a session answers. `system` None: the chat template's own system prompt, if it has one.

    `incremental`: what is kept, and encoded again, where `encode` is that.
    `frames`: how several frames of one prompt are read. `causal`, as the stock model does: each sees those before it.
    `window`: each sees the prompt's beginning only, so that whichever came, left or changed places costs nothing anew.
    `feedback`: whether an answer tells what it looked at; without it nothing is computed for that.
    """

    encode: Encode = "sparse"
    decoding: Decoding = field(default_factory=Decoding)
    system: str | None = None
    frames: Frames = "causal"
    incremental: IncrementalOptions = field(default_factory=IncrementalOptions)
    feedback: bool = True

    def __post_init__(self) -> None:
        if self.encode not in get_args(Encode):
            raise OptionError(f"encode must be one of {', '.join(get_args(Encode))}, got {self.encode!r}")
        if self.frames not in get_args(Frames):
            raise OptionError(f"frames must be one of {', '.join(get_args(Frames))}, got {self.frames!r}")
