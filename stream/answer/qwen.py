"""`QwenAnswerModel`: a Qwen model on this machine, with a window of frames and a slot for each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arr_coc.types import NEEDS_TOKENS_ONLY, QueryEmbedding, TokenPacket
from stream.answer.memory import GroupMemory
from stream.answer.model import AnswerStats, ClientQuestion, GlanceStats
from stream.config import Config

if TYPE_CHECKING:
    from arr_coc.qwen.encoding import IncrementalEncoder
    from arr_coc.qwen.frame_window import FrameWindow
    from arr_coc.qwen.options import WindowOptions
    from arr_coc.qwen.session import AnswerSession, SlotAnswer, SlotQuestion
    from arr_coc.qwen.slot import AnswerResult

QUESTION_TOKENS = 256
"""Tokens that a question and the prompt around it may take, when the memory for several answers is checked
beforehand."""


class ClientSlots:
    """Slots by number; `held` are those of clients. A client gets the one that it had before, whose prompt may still be
    of use, else the lowest one."""

    def __init__(self, slots: int) -> None:
        self.held: dict[bytes, int] = {}
        self._last: list[bytes | None] = [None] * slots

    def hold(self, client: bytes) -> int:
        """Take a slot for a client, which may hold one already; returns it. One is free."""
        if client not in self.held:
            free = [slot for slot in range(len(self._last)) if slot not in self.held.values()]
            mine = [slot for slot in free if self._last[slot] == client]
            unused = [slot for slot in free if self._last[slot] is None]
            self.held[client] = slot = (mine or unused or free)[0]
            self._last[slot] = client
        return self.held[client]

    def release(self, client: bytes) -> None:
        """Give a client's slot back; it may hold none."""
        self.held.pop(client, None)

    def drop(self, client: bytes) -> list[int]:
        """Forget a client; returns the slots that were last its own."""
        self.release(client)
        mine = [slot for slot, last in enumerate(self._last) if last == client]
        for slot in mine:
            self._last[slot] = None
        return mine


class QwenAnswerModel:
    """Qwen model with a window of frames for each client; without one, answers cover one frame.

    The state of incremental encoding is each client's own, too.
    """

    def __init__(self, session: AnswerSession, window: WindowOptions | None = None) -> None:
        from arr_coc.layer_weights import serialize_realiser

        self._session = session
        self._options = window
        self._client = b""
        self._windows: dict[bytes, FrameWindow] = {}
        self._visions: dict[bytes, IncrementalEncoder] = {}
        self._table = ClientSlots(len(session.slots))
        self._questions: dict[int, ClientQuestion] = {}
        self.slots = len(session.slots)
        self.model_id = session.qwen.model_id
        self.knows_levels = session.qwen.knows_levels
        self.knows_wide = session.qwen.knows_wide
        self.known_world = session.qwen.known_world
        self.allocator = serialize_realiser(session.qwen.realiser)
        self.attention_readable = session.can_glance
        self.can_glance = session.options.encode in NEEDS_TOKENS_ONLY and session.can_glance
        self.takes_device_pixels = session.qwen.vision_device.type == "cuda"
        self.memory: GroupMemory | None = None
        self.notice = "; ".join(session.qwen.notices)

    def select_client(self, client: bytes) -> None:
        self._client = client

    def drop_client(self, client: bytes) -> None:
        """Nothing of a client stays in its slot."""
        self._windows.pop(client, None)
        if (vision := self._visions.pop(client, None)) is not None:
            vision.clear()
        for slot in self._table.drop(client):
            self._questions.pop(slot, None)
            self._session.forget(slot)

    def embed_query(self, query: str) -> QueryEmbedding:
        """Raises ContextLengthError if the query is too long, alone or beside the client's window."""
        self._session.prompts.check_length(query, 1)
        if (window := self._windows.get(self._client)) is not None:
            self._session.prompts.check_window(query, window)
        return self._session.qwen.embed_query(query)

    def check_standing_query(self, query: str) -> tuple[str, ...]:
        """Return words that a model of a small world has never seen.

        Raises ModelError if the tokenizer has no token for yes or no, or the calibration cannot be used, and
        ContextLengthError as `embed_query` does.
        """
        self.embed_query(query)
        _ = self._session.yes_no, self._session.qwen.yes_no_calibration
        return self._session.qwen.unseen_words(query)

    def glance(self, packet: TokenPacket, query: str) -> GlanceStats:
        timed = self._options is not None and self._options.timed
        slot = self._table.held.get(self._client, 0)
        if (vision := self._vision(self._client)) is not None:
            self._session.slots[slot].vision = vision
        glance = self._session.glance(packet, query, timed=timed, slot=slot)
        return GlanceStats(glance.feedback, glance.tokens_used, glance.encode_ms, glance.prefill_ms, glance.work.flops)

    def hold(self, client: bytes) -> None:
        self._table.hold(client)

    def release(self, client: bytes) -> None:
        if (slot := self._table.held.get(client)) is not None:
            self._questions.pop(slot, None)
            self._session.stop(slot)
        self._table.release(client)

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        answers = self._session.ask([self._slot_question(question) for question in questions])
        for question, answer in zip(questions, answers, strict=True):
            self._questions[answer.slot] = question
            self._note(answer)

    def step(self) -> Sequence[ClientQuestion]:
        return [self._note(answer) for answer in self._session.step()]

    def finish(self, question: ClientQuestion) -> None:
        self._note(self._session.finish(self._table.held[question.client]))

    def _slot_question(self, question: ClientQuestion) -> SlotQuestion:
        from arr_coc.qwen.frame_window import FrameWindow
        from arr_coc.qwen.session import SlotQuestion

        client, window = question.client, None
        if self._options is not None:
            window = self._windows.setdefault(client, FrameWindow(self._options))
        return SlotQuestion(
            self._table.held[client],
            question.packet,
            question.query,
            window,
            self._vision(client),
            yes_no=question.yes_no,
        )

    def _vision(self, client: bytes) -> IncrementalEncoder | None:
        """Return what incremental encoding keeps for a client; None where frames are encoded otherwise."""
        from arr_coc.qwen.encoding import IncrementalEncoder

        options = self._session.options
        if options.encode != "incremental":
            return None
        return self._visions.setdefault(client, IncrementalEncoder(options.incremental))

    def _note(self, answer: SlotAnswer) -> ClientQuestion:
        """Note an answer's progress in its question."""
        question = self._questions[answer.slot]
        question.piece, question.ended, question.error = answer.piece, answer.ended, answer.error
        if answer.score is not None:
            question.score = answer.score.yes, answer.score.mass
        if answer.result is not None:
            question.stats = stats_of(answer.result)
        if answer.ended:
            del self._questions[answer.slot]
        return question


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


def load_qwen_model(config: Config) -> QwenAnswerModel:
    """Load the model that `answer.model` names, with `answer.slots`.

    Raises ModelError, and OptionError for a window out of range, more slots than the memory holds, or several slots of
    a model that answers one client at a time only.
    """
    from arr_coc.qwen.deferred_imports import deferred_imports

    answer = config.answer
    with deferred_imports(answer.model):
        from arr_coc.qwen.batching.step import check_slots
        from arr_coc.qwen.loading import load_qwen
        from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
        from arr_coc.qwen.session import AnswerSession

        assert answer.encode != "picture"
        window = _window_options(config)
        qwen = load_qwen(answer.model, device=answer.device, dtype=answer.dtype, allocator=answer.allocator)
        decoding = Decoding(
            max_tokens=answer.max_tokens, temperature=answer.temperature, top_p=answer.top_p, seed=answer.seed
        )
        incremental = IncrementalOptions(**answer.incremental.model_dump())
        options = AnswerOptions(answer.encode, decoding, incremental=incremental, feedback=answer.feedback)
        if answer.slots > 1:
            visual = (1 if window is None else window.frames) * config.allocate.max_tokens
            check_slots(qwen, answer.slots, visual + QUESTION_TOKENS + answer.max_tokens)
        return QwenAnswerModel(AnswerSession(qwen, options, answer.slots), window)


def _window_options(config: Config) -> WindowOptions | None:
    """Return None for a window of one frame: that is the stock layout, which prefills frame and query together."""
    from arr_coc.qwen.options import WindowOptions

    window, limits = config.answer.window, config.allocate.limits
    most = config.allocate.budget if config.answer.target_ms is None else limits.max_tokens
    options = WindowOptions(window.frames, window.kept, window.on_cut, most, limits)
    return options if options.frames > 1 else None
