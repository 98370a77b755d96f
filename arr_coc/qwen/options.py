"""Options of an answer, of decoding, of incremental encoding and of a window of frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from arr_coc.budget import DEFAULT_LIMITS, Budget, TokenLimits
from arr_coc.errors import OptionError, counted
from arr_coc.types import Encode

Frames = Literal["causal", "window"]

OnCut = Literal["empty", "keep"]


@dataclass(frozen=True, slots=True)
class Decoding:
    """Options of decoding: how tokens are chosen, and how many at most.

    `temperature` 0 takes the likeliest, any other draws from the likeliest `top_p` of the probability among the
    likeliest `top_k` tokens (0: all), by `seed`. An answer ends with the first of `stop_strings` that it contains.
    Raises OptionError for values out of range.
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
    """Options of `encode="incremental"`: what is kept, and how it stays near the truth. Raises OptionError for values
    out of range.

    `every_frames`: every so many frames all regions are encoded afresh; None for never. `share` of the regions are
    encoded again with every frame although they did not change: those around which most has. `drift_limit`: where
    these were further off than that, the next frame is encoded afresh; None for no limit. `memory_mb`: what is kept
    may take; a frame that alone needs more is encoded without being kept.
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
class WindowOptions:
    """`frames` are shown at most, picked from the newest `kept` (as many as are shown, when None).

    `on_cut`: `empty` drops the frames of an older epoch when one of a new epoch enters, `keep` keeps them, for
    questions about the past. `budget`: what a frame of this stream may have at most, if that is known, with the
    `limits` of one that adapts. Raises OptionError for values out of range.
    """

    frames: int = 1
    kept: int | None = None
    on_cut: OnCut = "empty"
    budget: Budget | None = None
    limits: TokenLimits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise OptionError(f"a window shows at least 1 frame, got {self.frames}")
        if self.capacity < self.frames:
            raise OptionError(
                f"a window that shows {counted(self.frames, 'frame')} must keep as many or more, got {self.kept}"
            )
        if self.on_cut not in get_args(OnCut):
            raise OptionError(f"on_cut must be {' or '.join(get_args(OnCut))}, got {self.on_cut!r}")

    @property
    def capacity(self) -> int:
        """Largest number of frames that are kept."""
        return self.frames if self.kept is None else self.kept

    @property
    def timed(self) -> bool:
        """True if frames are introduced by their time, as wherever there may be more than one."""
        return self.frames > 1


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of an answer session. `system` None: the chat template's own system prompt, if it has one.

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
