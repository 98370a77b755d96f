"""Who speaks: the contract of a model as the answer stage uses it, and how one is opened by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from arr_coc.qwen.checkpoint import check_folder
from arr_coc.qwen.hub import bundled_model_path, local_folder
from arr_coc.types import Feedback, FramePacket, QueryEmbedding, TokenPacket
from stream.config import Config
from stream.errors import ConfigError

if TYPE_CHECKING:
    from arr_coc.qwen.session import AnswerSession

Packet: TypeAlias = TokenPacket | FramePacket

QWEN = "stream.speaker:open_qwen"
"""The speaker that a run uses unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one answer took, and what it teaches. Times in milliseconds."""

    tokens_used: int
    text_tokens: int
    encode_ms: float
    prefill_ms: float
    decode_ms: float
    feedback: Feedback | None


class Speaker(Protocol):
    """A loaded model that answers one packet at a time.

    `knows_levels`: it was trained with coarse tokens. `known_world`: what it only knows, where it is not general.
    `allocator`: weights of an allocator trained for it, as `arr_coc.weights` packs them; empty where there are none.
    """

    model_id: str
    knows_levels: bool
    known_world: str | None
    allocator: bytes

    def embed(self, query: str) -> QueryEmbedding: ...

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        """Pieces of the answer as they are decoded; ends early once `should_stop` says so."""
        ...

    @property
    def last(self) -> Spoken:
        """About the answer that has just ended."""
        ...


class QwenSpeaker:
    """A Qwen model in one session."""

    def __init__(self, session: AnswerSession) -> None:
        from arr_coc.weights import pack_realiser

        self._session = session
        self.model_id = session.qwen.model_id
        self.knows_levels = session.qwen.knows_levels
        self.known_world = session.qwen.known_world
        self.allocator = pack_realiser(session.qwen.realiser)

    def embed(self, query: str) -> QueryEmbedding:
        """Raises ContextLengthError where the question alone is too long."""
        self._session.check_length(query, 1)
        return self._session.qwen.embed_query(query)

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        return self._session.answer(packet, query, should_stop)

    @property
    def last(self) -> Spoken:
        result = self._session.last
        return Spoken(
            tokens_used=result.tokens_used,
            text_tokens=result.text_tokens,
            encode_ms=result.encode_ms,
            prefill_ms=result.prefill_ms,
            decode_ms=result.decode_ms,
            feedback=result.feedback,
        )


def model_name(config: Config) -> str:
    """The model's name for people. Raises ModelNotFound or ModelError where its folder can be seen to be unusable."""
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name)
    if folder is None:
        return str(name)
    check_folder(folder, str(folder))
    return folder.name


def open_qwen(config: Config) -> QwenSpeaker:
    """Loads the model that `answer.model` names. Raises ModelError."""
    from arr_coc.qwen.decode import Decoding
    from arr_coc.qwen.loading import load_qwen
    from arr_coc.qwen.refresh import IncrementalOptions
    from arr_coc.qwen.session import AnswerOptions, AnswerSession

    answer = config.answer
    qwen = load_qwen(answer.model, device=answer.device, dtype=answer.dtype)
    decoding = Decoding(
        max_tokens=answer.max_tokens, temperature=answer.temperature, top_p=answer.top_p, seed=answer.seed
    )
    incremental = IncrementalOptions(**answer.incremental.model_dump())
    return QwenSpeaker(AnswerSession(qwen, AnswerOptions(answer.encode, decoding, incremental=incremental)))


def open_speaker(name: str, config: Config) -> Speaker:
    """Calls the function `module:function` with the configuration. Raises ConfigError where there is none."""
    module, _, function = name.partition(":")
    try:
        opener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"no speaker {name!r}: {error}") from error
    speaker: Speaker = opener(config)
    return speaker
