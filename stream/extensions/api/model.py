"""Answer model behind an OpenAI-compatible API: a request with pictures or tokens for each answer, one open in each
slot."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ModelError, ShapeError, counted
from arr_coc.qwen.families import family_by_name
from arr_coc.qwen.grounding import THOUSANDTHS
from arr_coc.qwen.resize import smart_resize
from arr_coc.types import FrameStamp, QueryEmbedding, Question, TokenPacket, Work, time_text
from stream.answer.memory import GroupMemory, Reading
from stream.answer.model import LOOPED, AnswerStats, ClientQuestion, history_text
from stream.config import SLOTS_TOGETHER, AnswerConfig, Config
from stream.errors import AnswerLost, ConfigError, ConnectionRefused, TransportError
from stream.extensions.api.address import ApiAddress
from stream.extensions.api.connection import LACKS_MODEL, ApiConnection, ApiLimits, ChatStream
from stream.extensions.api.fields import PENALTIES, RequestFields
from stream.extensions.api.loops import LoopFilter
from stream.extensions.api.pictures import ApiPictures, pictures_of
from stream.extensions.api.questions import ServedQuestions, model_files
from stream.extensions.api.replies import ChatPiece
from stream.extensions.api.section import ApiSection
from stream.extensions.api.thoughts import END, ThoughtFilter
from stream.extensions.api.tokens import ApiTokens, check_plugin, probe_body, shown_frames, tokens_of
from stream.extensions.api.uuids import KEPT_BY, SentPictures
from stream.untrusted import HEARD_AT_ONCE

LIKELY_TOKENS = 20
"""Number of tokens whose log-probabilities are requested: the most that servers return."""

YES_NO_TOKENS = 3
"""Token limit of a yes/no answer, including what a model may write before it."""

STILL_RIGHT = '{question}\nAn earlier answer: "{answer}"\nIs that answer still right?'
"""Question about an earlier answer."""

CHARS_A_TOKEN_MAX = 32
"""Most characters for each token allowed; a longer answer comes from a server that ignores the limit."""

TEXT_TOKENS_EXTRA = 64
"""Generous number of tokens for the chat template around question and pictures."""

MODELS_NAMED = 8

PIXEL_TILE_PX = 28
"""Sides of the pictures of a model that answers in pixels, Qwen2.5-VL, are multiples of this."""

FAMILY_NAMES = {"thousandths": "qwen3-vl", "pixels": "qwen2.5-vl"}
"""Family with each kind of `api.coordinates`."""

SCHEMA_REFUSED = ("response_format", "json_schema", "schema", "grammar")
"""Words of a server's refusal of a schema."""

LISTED_S = 5.0
"""Time limit of a list of models while a server starts."""

STEP_S = 0.01
"""Longest wait for a piece of any answer before the clients' messages are received again."""


@dataclass(frozen=True, slots=True)
class Served:
    """Model on a server: the connection, and its name there. `keeps_pictures`: the server knows pictures by their
    uuid."""

    connection: ApiConnection
    name: str
    keeps_pictures: bool = False


@dataclass(frozen=True, slots=True)
class SeenFrame:
    """Frame of a request, and its pictures. `packet`: that of a group of frames, which is sent again with the next
    ones."""

    stamp: FrameStamp
    pictures: ApiPictures | ApiTokens
    packet: TokenPacket | None = None


@dataclass(slots=True)
class ApiReply:
    """Received part of the reply to one request. `loops` ends an answer that repeats itself; None for one that does
    not end so. `kept_pieces` of the `pieces` with text are of the answer, and not of a loop at its end."""

    text: str = ""
    pieces: int = 0
    kept_pieces: int = 0
    first_s: float | None = None
    likely: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    text_tokens: int | None = None
    model: str = ""
    thoughts: ThoughtFilter = field(default_factory=ThoughtFilter)
    thinks: bool = False
    loops: LoopFilter | None = None

    @property
    def has_looped(self) -> bool:
        """True if the answer repeats itself, and ends."""
        return self.loops is not None and self.loops.has_looped


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Open request: its question, its frames (the newest last), and its reply so far.

    `sent_body`: `body` as it was sent to the server. `same`: probability that the previous answer is still right.
    `probes`: the server is asked first whether it still has the plugin that reads tokens.
    """

    question: ClientQuestion
    frames: list[SeenFrame]
    body: dict[str, Any]
    sent_body: dict[str, Any]
    stream: ChatStream
    times_s: tuple[float, float]
    reply: ApiReply = field(default_factory=ApiReply)
    scores: list[tuple[float, float]] = field(default_factory=list)
    same: float | None = None
    probes: bool = False

    @property
    def checks(self) -> bool:
        """True while the request is whether the previous answer is still right."""
        return self.question.part.previous is not None and self.same is None

    def needs_tokens(self, max_tokens: int) -> bool:
        """Return whether thoughts took all tokens of a yes/no check, which had fewer than `max_tokens`."""
        is_check = bool(self.question.part.checks) or self.checks
        has_text = bool(self.reply.text.strip())
        return is_check and self.reply.thinks and not has_text and self.body["max_tokens"] < max_tokens


def _new_reply(question: Question, answer: AnswerConfig, *, thinks: bool) -> ApiReply:
    """Return the reply to a question before it comes; `thinks`: the prompt begins thoughts."""
    reply = ApiReply(thoughts=ThoughtFilter(thinks))
    if answer.stop_loops and question.schema is None:  # a schema has an end, and may ask for equal entries
        reply.loops = LoopFilter()
    return reply


class ApiAnswerModel:
    """Model on a server, asked with the `answer.memory.frames` newest frames of each client, in up to `answer.slots`
    requests at once. The server batches them, and decides how far their texts depend on each other.

    The API returns no attention: relevance comes from the picture alone, or, if tokens are sent, also from an allocator
    that hears the question. `memory`: groups of frames whose tokens are sent in the same order each time, so that the
    server's prefix cache holds those before the newest.
    """

    can_glance = False
    attention_readable = False
    notice = ""
    takes_device_pixels = False

    def __init__(self, config: Config, served_model: Served, questions: ServedQuestions) -> None:
        answer = config.answer
        self._answer = answer
        self._api = ApiSection.of(config)
        self._questions = questions
        self.knows_levels = questions.knows_levels
        self.knows_wide = questions.knows_wide
        self.known_world = questions.known_world
        self.allocator = questions.allocator
        self.memory = GroupMemory(answer.memory.tokens) if config.keeps_groups else None
        self._connection = served_model.connection
        self._sent_pictures = SentPictures(served_model.keeps_pictures)
        self._frames: dict[bytes, deque[SeenFrame]] = {}
        self._notices: set[str] = set()
        self._asks_likely = self._sends_schemas = True
        self._unsure = self._opens_thoughts = False
        self._open: dict[bytes, OpenRequest] = {}
        self._arrived = threading.Event()
        self.slots = SLOTS_TOGETHER if answer.slots == "auto" else answer.slots
        self.model_id = served_model.name

    def drop_client(self, client: bytes) -> None:
        self.release(client)
        self._frames.pop(client, None)
        if self.memory is not None:
            self.memory.drop(client)

    def embed_query(self, query: str) -> QueryEmbedding:
        """Return the query as an allocator for this model hears it; zeros without one: the server embeds none."""
        return self._questions.embed(query)

    def check_watch(self, query: str) -> tuple[str, ...]:
        """Return the words that the model is known to have never seen; none of a model whose files are elsewhere."""
        return self._questions.unseen_words(query)

    def check_schema(self, schema: AnswerSchema) -> None:
        """Accept any schema: the server decides, at the first answer."""

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        """Raise ModelError: the API returns no attention."""
        raise ModelError(f"{self.model_id} cannot glance: the API does not return the model's attention")

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> Reading:
        raise TransportError("a model behind an API reads nothing ahead")

    def hold(self, client: bytes) -> None:
        """Do nothing: no state is kept for a client before it asks."""

    def release(self, client: bytes) -> None:
        if (request := self._open.pop(client, None)) is not None:
            request.stream.cancel()

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        for question in questions:
            try:
                self._open[question.client] = self._open_request(question)
            except Exception as error:
                question.ended = True
                question.error = error

    def step(self) -> Sequence[ClientQuestion]:
        """Process the received pieces of all requests, after a short wait if there are none.

        The error of a question is AnswerLost if only this answer is lost, ModelError or ConfigError if later ones would
        fail too.
        """
        self._arrived.wait(STEP_S)
        self._arrived.clear()
        requests = list(self._open.values())
        for request in requests:
            request.question.piece = ""
            try:
                self._take_in(request)
            except Exception as error:
                self._fail(request, error)
        return [request.question for request in requests]

    def finish(self, question: ClientQuestion) -> None:
        self._end(self._open[question.client])

    def _open_request(self, question: ClientQuestion) -> OpenRequest:
        began_s = time.monotonic()
        frames = self._question_frames(question)
        if question.part.checks:
            body = self._yes_no_body(frames, question.part.text)
        elif question.part.previous is not None:
            still_right = STILL_RIGHT.format(question=question.part.text, answer=question.part.previous.text)
            body = self._yes_no_body(frames, still_right)
        else:
            body = self._answer_body(frames, question)
        probes = self._unsure and self._api.picture == "tokens"
        if probes:
            sent_body = probe_body(self.model_id)
        else:
            sent_body = self._sent_pictures.lean(body)
        stream = self._connection.stream(sent_body, self._arrived)
        reply = _new_reply(question.part, self._answer, thinks=self._opens_thoughts)
        times_s = (began_s, time.monotonic())
        return OpenRequest(question, frames, body, sent_body, stream, times_s, reply, probes=probes)

    def _question_frames(self, question: ClientQuestion) -> list[SeenFrame]:
        """Return the frames of a question, the newest last, as the server is sent them."""
        packet = question.packet
        previous = self._frames.get(question.client, ())
        if isinstance(packet, TokenPacket) and packet.place is not None and self.memory is not None:
            packets = shown_frames([*self.memory.before(question.client, packet.place), packet])
            by_packet = {id(frame.packet): frame for frame in previous}
            frames = [by_packet.get(id(other)) or SeenFrame(other.stamp, tokens_of(other), other) for other in packets]
            self._frames[question.client] = deque(frames)
            return frames
        stamp = packet.stamp
        # without frames before a cut, and without this frame, which may have been checked before its answer
        frames = [frame for frame in previous if frame.stamp != stamp and frame.stamp.epoch == stamp.epoch]
        if isinstance(packet, TokenPacket) or self._api.picture == "tokens":
            return [*frames, SeenFrame(stamp, tokens_of(packet))]
        return [*frames, SeenFrame(stamp, pictures_of(packet, self._api.picture, self._api.quality))]

    def _reopen(self, request: OpenRequest, body: dict[str, Any]) -> None:
        request.body = body
        request.sent_body = self._sent_pictures.lean(body)
        request.reply = _new_reply(request.question.part, self._answer, thinks=self._opens_thoughts)
        request.stream = self._connection.stream(request.sent_body, self._arrived)

    def _take_in(self, request: OpenRequest) -> None:
        """Add received pieces to the reply, at most HEARD_AT_ONCE per call, and end it if it has ended."""
        for _ in range(HEARD_AT_ONCE):
            piece = request.stream.take(0)
            if piece is None:
                break
            if request.probes:
                check_plugin(self._connection.address.base, "")
            self._take(request, piece)
            if request.reply.has_looped:
                self._connection.note_success()
                self._sent_pictures.note(request.body)
                self._end(request)  # the rest of the reply is not received
                return
        if not request.stream.ended:
            return
        self._add_text(request, request.reply.thoughts.finish())
        if request.probes:
            check_plugin(self._connection.address.base, "")
        self._sent_pictures.note(request.body)
        if request.needs_tokens(self._answer.max_tokens):
            self._reopen(request, {**request.body, "max_tokens": self._answer.max_tokens})
        elif request.checks:
            self._check_previous(request)
        elif request.question.part.checks:
            request.scores.append(yes_no_of(request.reply.text, request.reply.likely))
            if len(request.scores) == len(request.question.part.checks):
                self._end(request)
            else:
                self._reopen(
                    request, self._yes_no_body(request.frames, request.question.part.checks[len(request.scores)])
                )
        else:
            if request.reply.loops is not None:
                request.question.piece += request.reply.loops.finish()
            self._end(request)

    def _check_previous(self, request: OpenRequest) -> None:
        """End with the previous answer if it is still right, or request another one."""
        question = request.question
        previous = request.question.part.previous
        assert previous is not None
        yes, mass = yes_no_of(request.reply.text, request.reply.likely)
        request.same = yes * mass
        if request.same < previous.same_above:
            self._reopen(request, self._answer_body(request.frames, question))
            return
        request.reply.text_tokens, question.piece = 0, previous.text
        self._end(request)

    def _end(self, request: OpenRequest) -> None:
        question = request.question
        reply = request.reply
        self.release(question.client)
        question.ended = True
        stats = self._stats_of(request.frames, reply, request.times_s, request.body)
        question.stats = replace(stats, same=request.same, extent=self._extent(request.frames[-1].pictures))
        if question.part.checks:
            question.scores = tuple(request.scores)
        elif self.memory is None and (most := self._answer.memory.frames) > 1:
            self._frames.setdefault(question.client, deque(maxlen=most - 1)).append(request.frames[-1])

    def _fail(self, request: OpenRequest, error: Exception) -> None:
        if request.probes and isinstance(error, ModelError):
            try:
                check_plugin(self._connection.address.base, str(error))
            except ConfigError as plugin_error:
                error = plugin_error
            else:
                request.stream.cancel()
                request.probes = self._unsure = False
                self._reopen(request, request.body)
                return
        self._unsure = self._unsure or isinstance(error, AnswerLost)
        retry_body = self._retry_body(request.body, request.sent_body, error)
        request.stream.cancel()
        if retry_body is not None:
            self._reopen(request, retry_body)
            return
        del self._open[request.question.client]
        request.question.ended, request.question.error = True, error

    def _body(self, frames: list[SeenFrame], question: str, max_tokens: int) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for frame in frames:
            if len(frames) > 1:
                content.append({"type": "text", "text": time_text(frame.stamp.media_ns)})
            content += frame.pictures.content()
        explanation = frames[-1].pictures.explanation
        content.append({"type": "text", "text": f"{explanation}\n{question}" if explanation else question})
        answer = self._answer
        system = self._answer.system
        body: dict[str, Any] = {
            "model": self.model_id,
            "messages": [
                *([{"role": "system", "content": system}] if system else []),
                {"role": "user", "content": content},
            ],
            "max_tokens": max_tokens,
            "temperature": answer.temperature,
        }
        if answer.temperature > 0:
            shares = {"top_p": (answer.top_p, 1), "top_k": (answer.top_k, 0), "min_p": (answer.min_p, 0)}
            body |= {name: value for name, (value, all_tokens) in shares.items() if value not in (None, all_tokens)}
            body["seed"] = answer.seed
        return body

    def _penalties(self) -> dict[str, float]:
        """Return the fields of penalties that are set. A yes/no question has none."""
        values = {name: getattr(self._answer, name) for name in PENALTIES}
        return {name: value for name, value in values.items() if value not in (None, PENALTIES[name])}

    def _answer_body(self, frames: list[SeenFrame], question: ClientQuestion) -> dict[str, Any]:
        text = history_text(question.part.history) + question.part.text
        if question.part.schema is None:
            return self._body(frames, text, self._answer.max_tokens) | self._penalties()
        schema = AnswerSchema.parse(question.part.schema)
        body = self._body(frames, f"{text}\n{schema.instruction}", self._answer.max_tokens) | self._penalties()
        if self._sends_schemas:
            return {**body, "response_format": response_format(schema)}
        return body

    def _yes_no_body(self, frames: list[SeenFrame], question: str) -> dict[str, Any]:
        """Return the request of a yes/no question, with log-probabilities unless the server is known to return none."""
        body = self._body(frames, " ".join(filter(None, (question, self._api.yes_no))), YES_NO_TOKENS)
        if self._asks_likely:
            return {**body, "logprobs": True, "top_logprobs": LIKELY_TOKENS}
        return body

    def _retry_body(self, body: dict[str, Any], sent_body: dict[str, Any], error: Exception) -> dict[str, Any] | None:
        """Return the body for another try of a refused request: with all of its pictures, without log-probabilities, or
        without the schema; None if none of them was the reason. `sent_body`: the body as it was sent."""
        resends_pictures = self._sent_pictures.note_failure(sent_body, str(error))
        if not isinstance(error, ModelError):
            return None
        if resends_pictures:
            return body
        if "logprobs" in body and "logprob" in str(error):
            self._asks_likely = False
            return {key: value for key, value in body.items() if key not in ("logprobs", "top_logprobs")}
        if "response_format" in body and any(word in str(error) for word in SCHEMA_REFUSED):
            self._sends_schemas = False
            return {key: value for key, value in body.items() if key != "response_format"}
        return None

    def _add_text(self, request: OpenRequest, text: str) -> None:
        """Add text of the answer, without thoughts, to the reply.

        Raises AnswerLost for an answer that is longer than allowed, and for thoughts whose beginning stood in the
        prompt, once: those of later answers are hidden.
        """
        reply = request.reply
        max_tokens = request.body["max_tokens"]
        reply.text += text
        if len(reply.text) > (chars_max := max_tokens * CHARS_A_TOKEN_MAX):
            raise self._connection.note_loss(
                f"an answer without an end: more than {chars_max} characters for {counted(max_tokens, 'token')}"
            )
        if END in reply.text:
            self._opens_thoughts = True
            raise self._connection.note_loss(f"thoughts that end with {END} and have no beginning", wait_s=0)
        if request.question.part.checks or request.checks:
            return
        if reply.loops is not None:
            text = reply.loops.push(text)
        request.question.piece += text

    def _take(self, request: OpenRequest, piece: ChatPiece) -> None:
        reply = request.reply
        text = reply.thoughts.push(piece.text)
        reply.thinks = reply.thinks or reply.thoughts.thinks or bool(piece.thought or piece.thought_tokens)
        if text:
            reply.first_s = reply.first_s or time.monotonic()
            reply.pieces += 1
        if not reply.text.strip():
            reply.likely = piece.likely if text.strip() else reply.likely
        self._add_text(request, text)
        if reply.loops is None or not reply.loops.holds:
            reply.kept_pieces = reply.pieces
        reply.model = piece.model or reply.model
        if piece.prompt_tokens is not None:
            reply.prompt_tokens = piece.prompt_tokens
        if piece.cached_tokens is not None:
            reply.cached_tokens = piece.cached_tokens
        if piece.text_tokens is not None:
            reply.text_tokens = piece.text_tokens

    def _stats_of(
        self, frames: list[SeenFrame], reply: ApiReply, times_s: tuple[float, float], body: dict[str, Any]
    ) -> AnswerStats:
        began_s, seen_s = times_s
        now_s = time.monotonic()
        first_s = reply.first_s or now_s
        tokens = sum(frame.pictures.tokens for frame in frames)
        grouped = self.memory is not None
        counts = reply.cached_tokens is not None
        text_tokens = reply.text_tokens
        if text_tokens is None:
            text_tokens = max(1, reply.kept_pieces) if reply.has_looped else reply.pieces
        work = Work(
            tokens_used=tokens,
            text_tokens=text_tokens,
            encode_ms=(seen_s - began_s) * 1e3,
            prefill_ms=(first_s - seen_s) * 1e3,
            decode_ms=(now_s - first_s) * 1e3,
            frames=len(frames),
            oldest_frame_ns=min(frame.stamp.media_ns for frame in frames),
            kept_bytes=sum(frame.pictures.bytes for frame in frames[:-1]),
            prefilled_tokens=max(0, (reply.prompt_tokens or 0) - (reply.cached_tokens or 0)) if counts else 0,
            appended_tokens=frames[-1].pictures.tokens if grouped else 0,
            memory_tokens=tokens if grouped else 0,
            looped=reply.has_looped,
        )
        return AnswerStats(work, notice=self._notice(reply, tokens, body))

    def _extent(self, pictures: ApiPictures | ApiTokens) -> tuple[float, float] | None:
        """Return the extent of a frame that is sent as tokens, or whose whole view is its only picture, as the server
        resizes that."""
        if isinstance(pictures, ApiTokens):
            return pictures.extent
        if pictures.whole_px is None:
            return None
        kind = self._api.coordinates
        family = family_by_name(self.model_id if kind == "auto" else FAMILY_NAMES[kind])
        if family.coordinates == "thousandths":
            return THOUSANDTHS, THOUSANDTHS
        width, height = pictures.whole_px
        with suppress(ShapeError):  # the family's processor refuses a longer picture
            height, width = smart_resize(height, width, PIXEL_TILE_PX, family.min_px, family.max_px)
        return float(width), float(height)

    def _notice(self, reply: ApiReply, tokens: int, body: dict[str, Any]) -> str:
        """Return notices about this reply for the user, each of them once."""
        notices = []
        content = body["messages"][-1]["content"]
        texts = [self._answer.system or "", *(part["text"] for part in content if part["type"] == "text")]
        words = sum(map(len, texts)) // 2 + TEXT_TOKENS_EXTRA + 2 * len(content)
        if reply.prompt_tokens is not None and reply.prompt_tokens - words > tokens and self._is_new("usage"):
            notices.append(
                f"the server counts {reply.prompt_tokens} tokens for a question with pictures of {tokens}: it enlarges "
                "small pictures, or its tokens are smaller than 32 pixels"
            )
        if body["max_tokens"] == YES_NO_TOKENS and not reply.likely and self._is_new("likely"):
            notices.append("the server returns no log-probabilities: yes and no are read from the first word")
        if reply.has_looped and self._is_new("looped"):
            notices.append(LOOPED)
        if reply.thinks and not reply.text.strip() and self._is_new("thoughts"):
            notices.append(
                f"the model's thoughts took all of answer.max_tokens = {self._answer.max_tokens}, and no answer is "
                "left; raise it, or switch thoughts off at the server (docs/servers.md#thoughts)"
            )
        if not self._sends_schemas and self._is_new("schema"):
            notices.append(
                "the server refuses the schema: the question names the form in words, and answers are checked"
            )
        omitted = [name for name in self._connection.fields.left_out if self._is_new(name)]
        if omitted:
            notices.append(f"the server refuses {' and '.join(omitted)}, which it then chooses by itself")
        same = reply.model.startswith(self.model_id) or self.model_id.startswith(reply.model)
        if not same and self._is_new("model"):
            notices.append(f"asked for {self.model_id}, the server answers as {reply.model}")
        return "; ".join(notices)

    def _is_new(self, notice: str) -> bool:
        new = notice not in self._notices
        self._notices.add(notice)
        return new


def yes_no_of(text: str, likely: tuple[tuple[str, float], ...]) -> tuple[float, float]:
    """Return the probability of yes, given yes or no, and of yes or no at all.

    `likely`: tokens that may begin the answer, with log-probabilities; without them the first word of `text` decides.
    """
    p_yes = sum(math.exp(chance) for token, chance in likely if _word(token) == "yes")
    p_no = sum(math.exp(chance) for token, chance in likely if _word(token) == "no")
    if not likely:
        first = _word(text.split()[0]) if text.split() else ""
        p_yes = float(first == "yes")
        p_no = float(first == "no")
    mass = p_yes + p_no
    return (p_yes / mass if mass > 0 else 0.5), min(1.0, mass)


def response_format(schema: AnswerSchema) -> dict[str, Any]:
    """Return the field of a request that demands answers with a schema, as OpenAI, vLLM, SGLang and llama.cpp take it.

    https://platform.openai.com/docs/guides/structured-outputs. OpenAI's strict mode refuses optional fields.
    """
    json_schema = {"name": "answer", "strict": schema.all_required, "schema": schema.object_schema}
    return {"type": "json_schema", "json_schema": json_schema}


def _word(token: str) -> str:
    return token.strip(" \n\t.,!:;*\"'`▁Ġ").casefold()


def load_api_model(config: Config) -> ApiAnswerModel:
    """Return the model that `api.url` serves.

    Raises the errors of `connect_server`, and ConfigError for a server that is to take tokens and has no plugin for
    them.
    """
    served_model = connect_server(config)
    answer = config.answer
    try:
        folder = None
        if ApiSection.of(config).picture == "tokens":
            _check_tokens(served_model)
            folder = model_files(answer.model)
        return ApiAnswerModel(config, served_model, ServedQuestions(served_model.name, folder, answer.allocator))
    except BaseException:
        served_model.connection.close()
        raise


def _check_tokens(served_model: Served) -> None:
    """Raise ConfigError if a server has no plugin for tokens, and ConnectionRefused if it does not answer."""
    base = served_model.connection.address.base
    refusal = ""
    try:
        for _ in served_model.connection.receive(probe_body(served_model.name)):
            pass
    except ModelError as error:
        if LACKS_MODEL in str(error):
            raise
        refusal = str(error)
    except AnswerLost as error:
        raise ConnectionRefused(f"{error}; see what the server logs") from error
    check_plugin(base, refusal)


def wait_for_server(config: Config, goes_on: Callable[[], bool]) -> bool:
    """Wait until a server that is being started lists a model; return False if `goes_on` returned False before.

    Raises ConfigError if it has no such API, or refuses the key.
    """
    limits = ApiLimits(LISTED_S, LISTED_S, LISTED_S, LISTED_S)
    with closing(ApiConnection(ApiAddress.of(config), limits)) as connection:
        while goes_on():
            with suppress(ConnectionRefused):
                if connection.models():
                    return True
    return False


def connect_server(config: Config) -> Served:
    """Connect to the server of `api.url`; return it with `answer.model` or the only model that it lists.

    Raises ConnectionRefused, ConfigError or ModelError if it cannot be used.
    """
    api = ApiSection.of(config)
    limits = ApiLimits(api.connect_s, api.first_s, api.next_s, config.pipeline.timeout_s)
    connection = ApiConnection(ApiAddress.of(config), limits, RequestFields(api))
    try:
        models = connection.models()
        name = config.answer.model
        if name is None and len(models) != 1:
            if models:
                names = ", ".join(model.name for model in models[:MODELS_NAMED])
            else:
                names = "it lists none"
            raise ModelError(f"{connection.address.base} has no single model ({names})", "name one with -m")
    except BaseException:
        connection.close()
        raise
    if api.uuids == "auto":
        keeps = any(model.owner in KEPT_BY for model in models)
    else:
        keeps = api.uuids
    return Served(connection, name or models[0].name, keeps)
