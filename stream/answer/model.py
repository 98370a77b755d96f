"""Answer models: their protocol, how one is loaded, and which questions a model of a small world can answer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from arr_coc.hub import allocator_folder, bundled_model_path, local_folder
from arr_coc.qwen.checkpoint import check_folder, folder_token_ids, read_config, unseen_words
from arr_coc.types import NEEDS_TOKENS_ONLY, Feedback, FramePacket, QueryEmbedding, TokenPacket
from stream.answer.api.address import served_name
from stream.config import Config
from stream.errors import ConfigError
from stream.recording.identity import SCENE_PREFIX

if TYPE_CHECKING:
    from arr_coc.qwen.encoding import IncrementalEncoder
    from arr_coc.qwen.frame_window import FrameWindow
    from arr_coc.qwen.options import AnswerOptions, WindowOptions
    from arr_coc.qwen.qwenvl import QwenVL
    from arr_coc.qwen.session import AnswerResult, AnswerSession

Packet: TypeAlias = TokenPacket | FramePacket

CONFIGURED = "stream.answer.loading:load_configured_model"
"""The function that loads the model of a run, unless another one is named."""


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """Statistics of one answer, and its feedback. Times in milliseconds.

    It covers `frames` frames, the oldest of `oldest_frame_ns` (media time; None: one frame only). `kept_bytes`: what is
    kept of them in memory. `flops` and `full_flops`: as in `arr_coc.qwen.flops.Work`. `notice`: what the user should
    know, told once; empty for nothing.
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
    notice: str = ""


@dataclass(frozen=True, slots=True)
class GlanceStats:
    """Attention of a model to an overview, and what that took: visual tokens, milliseconds, operations."""

    feedback: Feedback
    tokens_used: int
    encode_ms: float
    prefill_ms: float
    flops: int = 0


class AnswerModel(Protocol):
    """Contract of a loaded model: it answers one packet at a time, and may remember the frames of each client apart.

    `knows_levels`: it was trained with coarse tokens; `knows_wide`: with wide and tall ones. `known_world`: what it
    only knows, where it is not general.
    `allocator`: weights of an allocator trained for it, as `arr_coc.layer_weights` packs them; empty if there are none.
    `can_glance`: it can look at an overview; `attention_readable`: it could, were its frames encoded that way.
    `takes_device_pixels`: pixels on a CUDA device are of use to it. `notice`: what the user should know of it; empty
    for nothing.
    """

    model_id: str
    knows_levels: bool
    knows_wide: bool
    known_world: str | None
    allocator: bytes
    can_glance: bool
    attention_readable: bool
    takes_device_pixels: bool
    notice: str

    def select_client(self, client: bytes) -> None:
        """Answer `client` from here on."""
        ...

    def drop_client(self, client: bytes) -> None:
        """Forget a client; it may be unknown."""
        ...

    def embed_query(self, query: str) -> QueryEmbedding:
        """Return the embedding of a query. Raises ContextLengthError for one that is too long."""
        ...

    def check_standing_query(self, query: str) -> tuple[str, ...]:
        """Return words of a standing query that the model has never seen, as far as that is known.

        Raises ModelError or ContextLengthError where it cannot be evaluated.
        """
        ...

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        """Return the probability of yes, given yes or no, and of yes or no at all; `last_stats` covers it, too."""
        ...

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        """Read an overview with a query. Raises ModelError where it cannot be told where the model looks."""
        ...

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        """Yield pieces of the answer as they are decoded; ends early once `should_stop` says so."""
        ...

    @property
    def last_stats(self) -> AnswerStats:
        """Statistics of the answer that has just ended."""
        ...


class QwenAnswerModel:
    """Qwen model in one session, with a window of frames for each client; without one, answers cover one frame.

    The state of incremental encoding is each client's own, too.
    """

    def __init__(self, session: AnswerSession, window: WindowOptions | None = None) -> None:
        from arr_coc.layer_weights import serialize_realiser

        self._session = session
        self._options = window
        self._windows: dict[bytes, FrameWindow] = {}
        self._window: FrameWindow | None = None
        self._visions: dict[bytes, IncrementalEncoder] = {}
        self.model_id = session.qwen.model_id
        self.knows_levels = session.qwen.knows_levels
        self.knows_wide = session.qwen.knows_wide
        self.known_world = session.qwen.known_world
        self.allocator = serialize_realiser(session.qwen.realiser)
        self.attention_readable = session.can_glance
        self.can_glance = session.options.encode in NEEDS_TOKENS_ONLY and session.can_glance
        self.takes_device_pixels = session.qwen.vision_device.type == "cuda"
        self.notice = "; ".join(session.qwen.notices)

    def select_client(self, client: bytes) -> None:
        from arr_coc.qwen.encoding import IncrementalEncoder
        from arr_coc.qwen.frame_window import FrameWindow

        options = self._session.options
        if options.encode == "incremental":
            self._session.vision = self._visions.setdefault(client, IncrementalEncoder(options.incremental))
        if self._options is not None:
            self._window = self._windows.setdefault(client, FrameWindow(self._options))

    def drop_client(self, client: bytes) -> None:
        self._windows.pop(client, None)
        if (vision := self._visions.pop(client, None)) is not None:
            vision.clear()

    def embed_query(self, query: str) -> QueryEmbedding:
        """Raises ContextLengthError where the query is too long, alone or beside the client's window."""
        self._session.prompts.check_length(query, 1)
        if self._window is not None:
            self._session.prompts.check_window(query, self._window)
        return self._session.qwen.embed_query(query)

    def check_standing_query(self, query: str) -> tuple[str, ...]:
        """Return words that a model of a small world has never seen.

        Raises ModelError where the tokenizer has no token for yes or no, or the calibration cannot be used, and
        ContextLengthError as `embed_query` does.
        """
        self.embed_query(query)
        _ = self._session.yes_no, self._session.qwen.yes_no_calibration
        return self._session.qwen.unseen_words(query)

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        found = self._session.score_yes_no(packet, query, self._window)
        return found.yes, found.mass

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        timed = self._options is not None and self._options.timed
        found = self._session.glance(packet, query, timed=timed)
        return GlanceStats(found.feedback, found.tokens_used, found.encode_ms, found.prefill_ms, found.work.flops)

    def answer(self, packet: Packet, query: str, should_stop: Callable[[], bool]) -> Iterator[str]:
        return self._session.answer(packet, query, should_stop, self._window)

    @property
    def last_stats(self) -> AnswerStats:
        return stats_of(self._session.last)


def stats_of(result: AnswerResult) -> AnswerStats:
    """Return the statistics of an answer, and its feedback."""
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
    """Return the model's name for people.

    Raises ModelNotFound or ModelError where its folder, or that of the allocator named for it, is unusable, and
    ConfigError where a server cannot be asked for it.
    """
    name = config.answer.model
    if config.answer.api.url is not None:
        return served_name(config)
    if config.answer.allocator is not None:
        allocator_folder(config.answer.allocator)
    folder = bundled_model_path() if name is None else local_folder(name)
    if folder is None:
        return str(name)
    check_folder(folder, str(folder))
    return folder.name


def load_qwen_model(config: Config) -> QwenAnswerModel:
    """Load the model that `answer.model` names. Raises ModelError, and OptionError for a window out of range."""
    from arr_coc.qwen.deferred_imports import deferred_imports

    with deferred_imports(config.answer.model):
        from arr_coc.qwen.session import AnswerSession

        qwen, options, window = open_qwen(config)
        return QwenAnswerModel(AnswerSession(qwen, options), window)


def open_qwen(config: Config) -> tuple[QwenVL, AnswerOptions, WindowOptions | None]:
    """Load the model that `answer.model` names; returns it with the options of its answers, and of windows of several
    frames. Errors as `load_qwen_model`."""
    from arr_coc.qwen.loading import load_qwen
    from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions

    answer = config.answer
    assert answer.encode != "picture"
    window = _window_options(config)
    qwen = load_qwen(answer.model, device=answer.device, dtype=answer.dtype, allocator=answer.allocator)
    decoding = Decoding(
        max_tokens=answer.max_tokens, temperature=answer.temperature, top_p=answer.top_p, seed=answer.seed
    )
    incremental = IncrementalOptions(**answer.incremental.model_dump())
    return qwen, AnswerOptions(answer.encode, decoding, incremental=incremental, feedback=answer.feedback), window


def _window_options(config: Config) -> WindowOptions | None:
    """Return None for a window of one frame: that is the stock layout, which prefills frame and query together."""
    from arr_coc.qwen.options import WindowOptions

    window, limits = config.answer.window, config.allocate.limits
    most = config.allocate.budget if config.answer.target_ms is None else limits.max_tokens
    options = WindowOptions(window.frames, window.kept, window.on_cut, most, limits)
    return options if options.frames > 1 else None


def load_answer_model(name: str, config: Config) -> AnswerModel:
    """Call the function `module:function` with the configuration. Raises ConfigError where there is none."""
    module, _, function = name.partition(":")
    try:
        load = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the answer model {name!r}: {error}") from error
    model: AnswerModel = load(config)
    return model


WORLD_KEY = "arr_coc_world"
"""What a model's `config.json` calls the only world that it knows."""

_REMEDY = "name a Qwen-VL model with -m, or give --force to run anyway"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason that a model's yes means nothing here: `refusal` with what to do, `warning` as it stands beside each
    yes."""

    refusal: str
    warning: str


def doubt_about(model: str, world: str | None, unseen: tuple[str, ...], *, knows_source: bool) -> Doubt | None:
    """Return the objection to a standing query with a model that only knows `world`, None for a general one.

    `unseen`: words of the question that it has never seen. `knows_source`: the source shows this world.
    """
    if world is None:
        return None
    if not knows_source:
        return Doubt(
            f"{model} only knows {world}, so its yes means nothing for this source; {_REMEDY}",
            f"means nothing: the model only knows {world}",
        )
    if not unseen:
        return None
    words = ", ".join(map(repr, unseen))
    what = "the word" if len(unseen) == 1 else "the words"
    return Doubt(
        f"{model} only knows {world} and has never seen {what} {words}, so its yes means nothing; "
        f"ask for what it knows, such as a red circle, {_REMEDY}",
        f"means nothing: the model has never seen {what} {words}",
    )


def shows_scenes(config: Config) -> bool:
    """Return True if the source is a drawn scene."""
    return config.source.startswith(SCENE_PREFIX)


def model_world(name: str | None) -> str | None:
    """Return the only world that a model on this machine knows; None for a general model, and for one on the hub.

    `name` as `answer.model`. Raises ModelNotFound and ModelError.
    """
    folder = bundled_model_path() if name is None else local_folder(name)
    world = None if folder is None else read_config(folder).get(WORLD_KEY)
    return None if world is None else str(world)


def check_watched(config: Config) -> None:
    """Raises ConfigError where a model on this machine cannot know what is watched for, before anything is opened.

    A model elsewhere tells the same of itself when it is met.
    """
    question = config.answer.until.question
    if question is None or config.answer.until.force or config.answer.elsewhere:
        return
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name)
    world = model_world(name)
    if folder is None or world is None:
        return
    unseen = unseen_words(question, folder_token_ids(folder))
    doubt = doubt_about(folder.resolve().name, world, unseen, knows_source=shows_scenes(config))
    if doubt is not None:
        raise ConfigError(doubt.refusal)
