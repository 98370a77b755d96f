"""Contract of a model as the answer server uses it, and the loading of one by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from arr_coc.hub import bundled_model_path, local_folder
from arr_coc.qwen.checkpoint import check_folder
from arr_coc.types import Feedback, FramePacket, QueryEmbedding, TokenPacket
from stream.config import Config
from stream.errors import ConfigError

if TYPE_CHECKING:
    from arr_coc.qwen.encoding import IncrementalEncoder
    from arr_coc.qwen.frame_window import FrameWindow
    from arr_coc.qwen.options import WindowOptions
    from arr_coc.qwen.session import AnswerSession


Packet: TypeAlias = TokenPacket | FramePacket

QWEN = "stream.answer.model:load_qwen_model"
"""The speaker that a run uses unless told otherwise."""


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """What one answer took, and what it teaches. Times in milliseconds.

    It speaks of so many `frames`, the oldest of `oldest_frame_ns` (media time; None: of one frame only). `kept_bytes`:
    what is kept of them in memory. `flops` and `full_flops`: as in `arr_coc.qwen.flops.Work`.
    """

    tokens_used: int
    text_tokens: int
    encode_ms: float
    prefill_ms: float
    decode_ms: float
    feedback: Feedback | None
    frames: int = 1
    oldest_frame_ns: int | None = None
    kept_bytes: int = 0
    flops: int = 0
    full_flops: int = 0


class AnswerModel(Protocol):
    """A loaded model that answers one packet at a time, and may remember the frames of each guest apart.

    `knows_levels`: it was trained with coarse tokens. `known_world`: what it only knows, where it is not general.
    `allocator`: weights of an allocator trained for it, as `arr_coc.layer` packs them; empty where there are none.
    """

    model_id: str
    knows_levels: bool
    known_world: str | None
    allocator: bytes

    def attend(self, guest: bytes) -> None:
        """What is asked from here on is asked by `guest`."""
        ...

    def forget(self, guest: bytes) -> None:
        """A guest has left; it may be unknown."""
        ...

    def embed(self, query: str) -> QueryEmbedding: ...

    def check_until(self, question: str) -> tuple[str, ...]:
        """Words of this question that the model has never seen, as far as that can be told. Raises ModelError or
        ContextLengthError where it cannot be looked at."""
        ...

    def look(self, packet: Packet, question: str) -> tuple[float, float]:
        """Probability of yes, given yes or no, and of yes or no at all; `last` tells of it as of an answer."""
        ...

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        """Pieces of the answer as they are decoded; ends early once `should_stop` says so."""
        ...

    @property
    def last(self) -> AnswerStats:
        """About the answer that has just ended."""
        ...


class QwenAnswerModel:
    """A Qwen model in one session, with a window of frames for each guest; without one, answers speak of one frame.

    What incremental encoding keeps is each guest's own, too.
    """

    def __init__(self, session: AnswerSession, window: WindowOptions | None = None) -> None:
        from arr_coc.layer import pack_realiser

        self._session = session
        self._options = window
        self._windows: dict[bytes, FrameWindow] = {}
        self._window: FrameWindow | None = None
        self._visions: dict[bytes, IncrementalEncoder] = {}
        self.model_id = session.qwen.model_id
        self.knows_levels = session.qwen.knows_levels
        self.known_world = session.qwen.known_world
        self.allocator = pack_realiser(session.qwen.realiser)

    def attend(self, guest: bytes) -> None:
        from arr_coc.qwen.encoding import IncrementalEncoder
        from arr_coc.qwen.frame_window import FrameWindow

        options = self._session.options
        if options.encode == "incremental":
            self._session.vision = self._visions.setdefault(guest, IncrementalEncoder(options.incremental))
        if self._options is not None:
            self._window = self._windows.setdefault(guest, FrameWindow(self._options))

    def forget(self, guest: bytes) -> None:
        self._windows.pop(guest, None)
        if (vision := self._visions.pop(guest, None)) is not None:
            vision.clear()

    def embed(self, query: str) -> QueryEmbedding:
        """Raises ContextLengthError where the question is too long, alone or beside the guest's window."""
        self._session.prompts.check_length(query, 1)
        if self._window is not None:
            self._session.prompts.check_window(query, self._window)
        return self._session.qwen.embed_query(query)

    def check_until(self, question: str) -> tuple[str, ...]:
        """Words that a model of a small world has never seen.

        Raises ModelError where the tokenizer has no token for yes or no, or the calibration cannot be used, and
        ContextLengthError as `embed` does.
        """
        self.embed(question)
        _ = self._session.yes_no, self._session.qwen.yes_no_calibration
        return self._session.qwen.unseen_words(question)

    def look(self, packet: Packet, question: str) -> tuple[float, float]:
        found = self._session.look(packet, question, self._window)
        return found.yes, found.certain

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        return self._session.answer(packet, query, should_stop, self._window)

    @property
    def last(self) -> AnswerStats:
        result = self._session.last
        return AnswerStats(
            tokens_used=result.tokens_used,
            text_tokens=result.text_tokens,
            encode_ms=result.encode_ms,
            prefill_ms=result.prefill_ms,
            decode_ms=result.decode_ms,
            feedback=result.feedback,
            frames=len(result.shown),
            oldest_frame_ns=min(stamp.media_ns for stamp in result.shown),
            kept_bytes=result.kept_bytes,
            flops=result.work.flops,
            full_flops=result.work.full_flops,
        )


def model_name(config: Config) -> str:
    """The model's name for people. Raises ModelNotFound or ModelError where its folder can be seen to be unusable."""
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name)
    if folder is None:
        return str(name)
    check_folder(folder, str(folder))
    return folder.name


def load_qwen_model(config: Config) -> QwenAnswerModel:
    """Loads the model that `answer.model` names. Raises ModelError, and OptionError for a window out of range."""
    from arr_coc.qwen.loading import load_qwen
    from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
    from arr_coc.qwen.session import AnswerSession

    answer = config.answer
    window = _window_options(config)
    qwen = load_qwen(answer.model, device=answer.device, dtype=answer.dtype)
    decoding = Decoding(
        max_tokens=answer.max_tokens, temperature=answer.temperature, top_p=answer.top_p, seed=answer.seed
    )
    incremental = IncrementalOptions(**answer.incremental.model_dump())
    options = AnswerOptions(answer.encode, decoding, incremental=incremental, feedback=answer.feedback)
    session = AnswerSession(qwen, options)
    return QwenAnswerModel(session, window)


def _window_options(config: Config) -> WindowOptions | None:
    """None for a window of one frame: that is the stock layout, which prefills frame and question together."""
    from arr_coc.budget import MOST_TOKENS
    from arr_coc.qwen.options import WindowOptions

    window, budget = config.answer.window, config.allocate.budget
    most = MOST_TOKENS if config.answer.target_ms is not None else budget
    options = WindowOptions(window.frames, window.kept, window.on_cut, most)
    return options if options.frames > 1 else None


def load_answer_model(name: str, config: Config) -> AnswerModel:
    """Calls the function `module:function` with the configuration. Raises ConfigError where there is none."""
    module, _, function = name.partition(":")
    try:
        opener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"no speaker {name!r}: {error}") from error
    speaker: AnswerModel = opener(config)
    return speaker
