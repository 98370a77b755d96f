"""Answer models: protocol, loading, and which questions a model of a small world can answer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from arr_coc.answer_schema import AnswerSchema
from arr_coc.hub import bundled_model_path, local_folder
from arr_coc.qwen.checkpoint import THINKING_MARKS, folder_token_ids, read_config, unseen_words
from arr_coc.types import Feedback, FramePacket, PastAnswer, QueryEmbedding, Question, TokenPacket, Work, time_text
from stream.answer.memory import GroupMemory, Reading
from stream.config import Config
from stream.errors import ConfigError
from stream.recording.identity import SCENE_PREFIX

Packet: TypeAlias = TokenPacket | FramePacket

CONFIGURED = "stream.answer.loading:load_configured_model"
"""Default function that loads the model of a run."""

LOOPED = (
    "an answer repeated itself, and was ended at its second repetition; set answer.repetition_penalty, such as "
    "1.05, or answer.stop_loops = false for all of it"
)
"""Notice about an answer that was ended in a loop."""


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """Work of one answer, of checks or of a glance, and its feedback.

    `notice`: text for the user, reported once; may be empty. `same`: probability of the question's previous answer, if
    that was scored. `extent`: width and height of the newest frame, without padding, in the coordinates of places in
    the answer; None if it can have no places.
    """

    work: Work
    feedback: Feedback | None = None
    notice: str = ""
    same: float | None = None
    extent: tuple[float, float] | None = None


@dataclass(slots=True, eq=False)
class ClientQuestion:
    """Question of one client that is being answered, and the state of its answer.

    `number`: that of the client's request. `part`: the part of the question that the model is asked now: the checks,
    if there are any, then the rest; a part with checks is scored in place of an answer, and ends with `scores` (of each
    check the probability of yes, given yes or no, and of yes or no at all). `piece`: the text that the last step
    completed; may be empty. `ended`: the part is complete, with `stats`, or failed, with `error` as the reason.
    `pieces`: the answer so far, of `chars` characters; `answer_stats` are those of the answer while its meaning is
    compared. `began_ns`: when the server began to serve it.
    """

    client: bytes
    packet: Packet
    question: Question
    number: int = 0
    piece: str = ""
    ended: bool = False
    error: Exception | None = None
    scores: tuple[tuple[float, float], ...] = ()
    stats: AnswerStats | None = None
    answer_stats: AnswerStats | None = None
    began_ns: int = 0
    pieces: list[str] = field(default_factory=list)
    chars: int = 0
    part: Question = field(init=False)

    def __post_init__(self) -> None:
        checks = self.question.checks
        self.part = Question(checks[0], checks=checks) if checks else self.question

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.pieces)

    def ask(self, part: Question) -> None:
        """Go on with another part."""
        self.part = part
        self.piece = ""
        self.ended = False


def history_text(history: Sequence[PastAnswer]) -> str:
    """Return earlier answers, without their thoughts and the white space around them, as the text before a question;
    empty if there are none."""
    texts = [(answer.media_ns, without_thoughts(answer.text).strip()) for answer in history]
    lines = [f"{time_text(media_ns)} {text}\n" for media_ns, text in texts if text]
    if lines:
        return "".join(["Earlier answers:\n", *lines])
    return ""


def without_thoughts(text: str) -> str:
    """Return an answer without the thoughts before it."""
    _, mark, answer = text.rpartition(THINKING_MARKS[1])
    return answer.lstrip() if mark else text


class AnswerModel(Protocol):
    """Contract of a loaded model: it answers one client in each of its `slots`, and may keep the frames of each client,
    separately. A client holds a slot from its turn to the end of its answer.

    `knows_levels`: it was trained with coarse tokens; `knows_wide`: with wide and tall ones. `known_world`: the only
    world that it knows; None for a general model. `allocator`: weights of an allocator trained for it, as packed by
    `arr_coc.layer_weights`; may be empty. `can_glance`: it can read an overview; `attention_readable`: it could with
    another encoding of the frames. `takes_device_pixels`: it can use pixels on a CUDA device. `memory`: groups of
    pictures of its clients; None if it answers about whole packets only. `notice`: text for the user; may be empty.
    """

    slots: int
    model_id: str
    knows_levels: bool
    knows_wide: bool
    known_world: str | None
    allocator: bytes
    can_glance: bool
    attention_readable: bool
    takes_device_pixels: bool
    memory: GroupMemory | None
    notice: str

    def drop_client(self, client: bytes) -> None:
        """Drop all state of a client; it may be unknown."""
        ...

    def embed_query(self, query: str) -> QueryEmbedding:
        """Return the embedding of a query. Raises ContextLengthError for one that is too long."""
        ...

    def check_watch(self, query: str) -> tuple[str, ...]:
        """Return the words of a watch's question that the model is known to have never seen.

        Raises ModelError or ContextLengthError if the query cannot be evaluated.
        """
        ...

    def check_schema(self, schema: AnswerSchema) -> None:
        """Raise OptionError, ModelError or ContextLengthError if answers cannot have this schema."""
        ...

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        """Read a client's overview with a query, or its group of pictures with the new tokens of a packet.

        Raises ModelError if the model's attention cannot be read.
        """
        ...

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> Reading:
        """Return the reading of the last packet of a client's group, after those that the memory lacks. Called only if
        the memory has an `idle_share`. Raises TransportError if it does not go on with the group."""
        ...

    def hold(self, client: bytes) -> None:
        """Reserve a slot for the client; one must be free. State of the slot's previous client may be dropped."""
        ...

    def release(self, client: bytes) -> None:
        """Free the client's slot, if it holds one, and end its answer."""
        ...

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        """Begin to answer questions of clients that each hold a slot. A failure becomes its question's `error`."""
        ...

    def step(self) -> Sequence[ClientQuestion]:
        """Decode one more token for every open question; return these questions, including those that end now."""
        ...

    def finish(self, question: ClientQuestion) -> None:
        """End an answer with its text so far."""
        ...


def ask_alone(model: AnswerModel, question: ClientQuestion) -> str:
    """Return the text of the answer to one question, while the model answers no other. Raises the question's error."""
    model.hold(question.client)
    try:
        model.ask([question])
        pieces = [question.piece]
        while not question.ended:
            pieces += [current.piece for current in model.step()]
    finally:
        model.release(question.client)
    if question.error is not None:
        raise question.error
    return "".join(pieces)


def load_answer_model(name: str, config: Config) -> AnswerModel:
    """Call the function `module:function` with the configuration. Raises ConfigError if it does not exist."""
    module, _, function = name.partition(":")
    try:
        load = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the answer model {name!r}: {error}") from error
    model: AnswerModel = load(config)
    return model


WORLD_KEY = "arr_coc_world"
"""Key in a model's `config.json` that names the only world that the model knows."""

_REMEDY = "name a Qwen-VL model with -m, or give --force to run anyway"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason that a model's yes means nothing for this source: `refusal` is an error message with the remedy, `warning`
    the text beside each yes."""

    refusal: str
    warning: str


def doubt_about(model: str, world: str | None, unknown_words: tuple[str, ...], *, knows_source: bool) -> Doubt | None:
    """Return the objection to a watch with a model; None if there is none.

    Args:
        model: name of the model.
        world: the only world that the model knows; None for a general model.
        unknown_words: words of the watch's question that the model has never seen.
        knows_source: whether the source shows the model's world.
    """
    if world is None:
        return None
    if not knows_source:
        return Doubt(
            f"{model} only knows {world}, so its yes means nothing for this source; {_REMEDY}",
            f"means nothing: the model only knows {world}",
        )
    if not unknown_words:
        return None
    words = ", ".join(map(repr, unknown_words))
    if len(unknown_words) == 1:
        noun = "the word"
    else:
        noun = "the words"
    return Doubt(
        f"{model} only knows {world} and has never seen {noun} {words}, so its yes means nothing; "
        f"ask for what it knows, such as a red circle, {_REMEDY}",
        f"means nothing: the model has never seen {noun} {words}",
    )


def shows_scenes(config: Config) -> bool:
    """Return True if the source is a drawn scene."""
    return config.source.startswith(SCENE_PREFIX)


def model_world(name: str | None) -> str | None:
    """Return the only world that a model on this machine knows; None for a general model or one on the hub.

    `name` as in `answer.model`. Raises ModelNotFound and ModelError.
    """
    folder = bundled_model_path() if name is None else local_folder(name)
    if folder is None:
        world = None
    else:
        world = read_config(folder).get(WORLD_KEY)
    return None if world is None else str(world)


def check_watches(config: Config) -> None:
    """Raise ConfigError, before anything is opened, if a model on this machine cannot evaluate a watch.

    A model elsewhere is checked when its server greets the client.
    """
    questions = [watch.question for watch in config.watch if not watch.force]
    if not questions or config.uses_server:
        return
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name)
    world = model_world(name)
    if folder is None or world is None:
        return
    token_ids = folder_token_ids(folder)
    for question in questions:
        unknown_words = unseen_words(question, token_ids)
        doubt = doubt_about(folder.resolve().name, world, unknown_words, knows_source=shows_scenes(config))
        if doubt is not None:
            raise ConfigError(doubt.refusal)
