"""`QwenAnswerModel`: a Qwen model on this machine, with a group of pictures and a slot for each client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ContextLengthError, OptionError, counted
from arr_coc.qwen.checkpoint_decoding import PENALTIES, SAMPLING
from arr_coc.types import NEEDS_TOKENS_ONLY, QueryEmbedding, Question, TokenPacket
from stream.answer.memory import GroupMemory, Reading
from stream.answer.model import LOOPED, AnswerStats, ClientQuestion, Packet, history_text
from stream.answer.readings import KeptReading, SlotReading
from stream.config import SLOTS_MAX, SLOTS_TOGETHER, Config
from stream.errors import TransportError

if TYPE_CHECKING:
    from arr_coc.qwen.encoding import IncrementalEncoder
    from arr_coc.qwen.session import AnswerSession, SlotAnswer, SlotQuestion
    from arr_coc.qwen.slot import AnswerResult

QUESTION_TOKENS = 256
"""Tokens reserved for a question and the prompt around it when the memory of several slots is checked."""


COMPLETED_KEYS = {*PENALTIES, *SAMPLING}
"""Keys of `answer` that are completed by what the model's folder asks for."""


class ClientSlots:
    """Slots by number; `by_client` maps clients to theirs. A client gets the slot that it had before, whose prompt may
    be reusable, else the lowest unused slot, else the least recently used one."""

    def __init__(self, slots: int) -> None:
        self.by_client: dict[bytes, int] = {}
        self._last: list[bytes | None] = [None] * slots
        self._lru = [*range(slots)]

    def hold(self, client: bytes) -> bytes | None:
        """Assign a slot to a client, unless it holds one; a slot must be free. Returns the slot's previous client if
        that was another one."""
        if client in self.by_client:
            return None
        free = [slot for slot in self._lru if slot not in self.by_client.values()]
        previous = [slot for slot in free if self._last[slot] == client]
        unused = sorted(slot for slot in free if self._last[slot] is None)
        self.by_client[client] = slot = (previous or unused or free)[0]
        before, self._last[slot] = self._last[slot], client
        return None if before == client else before

    def release(self, client: bytes) -> None:
        """Free a client's slot, if it holds one."""
        if (slot := self.by_client.pop(client, None)) is not None:
            self._lru.remove(slot)
            self._lru.append(slot)

    def last_slot(self, client: bytes) -> int | None:
        """Return the slot whose last client this is; None if another one has got it since."""
        if client in self._last:
            return self._last.index(client)
        return None

    def drop(self, client: bytes) -> list[int]:
        """Remove a client; return the slots whose last client it was."""
        self.release(client)
        slots = [slot for slot, last in enumerate(self._last) if last == client]
        for slot in slots:
            self._last[slot] = None
        return slots

    @property
    def enough(self) -> int:
        """Number of slots, from the first, that are enough: one for each client, and all that are held."""
        clients = sum(last is not None for last in self._last)
        return max([1, clients, *(slot + 1 for slot in self.by_client.values())])

    def forget(self, slot: int) -> None:
        """Forget the last client of a slot, which gets another one next time."""
        self._last[slot] = None


class QwenAnswerModel:
    """Qwen model that keeps a group of pictures of at most `memory_tokens` visual tokens for each client; with 0,
    answers cover one frame. `memory_frames`: frames of such a group; 1: one picture that is kept up to date.
    `idle_share`: largest share of the time in which it reads ahead between answers.

    Incremental encoding keeps separate state for each client too. A group is dropped when its client's slot goes to
    another client.
    """

    def __init__(
        self, session: AnswerSession, memory_tokens: int = 0, memory_frames: int = 1, idle_share: float = 0.0
    ) -> None:
        """Raise OptionError if a group of pictures does not fit the model's context."""
        from arr_coc.layer_weights import serialize_realiser

        if memory_tokens:
            _check_memory(session, memory_tokens, memory_frames)
        self._session = session
        self._memory_frames = memory_frames
        self._visions: dict[bytes, IncrementalEncoder] = {}
        self._table = ClientSlots(len(session.slots))
        self._questions: dict[int, ClientQuestion] = {}
        self._noticed: dict[bytes, set[str]] = {}
        self.slots = len(session.slots)
        self.model_id = session.qwen.model_id
        self.knows_levels = session.qwen.knows_levels
        self.knows_wide = session.qwen.knows_wide
        self.known_world = session.qwen.known_world
        self.allocator = serialize_realiser(session.qwen.realiser)
        self.attention_readable = session.can_glance
        self.can_glance = session.options.encode in NEEDS_TOKENS_ONLY and session.can_glance
        self.takes_device_pixels = session.qwen.vision_device.type == "cuda"
        reads_ahead = memory_frames == 1 and session.qwen.decodes_plainly
        self.memory = GroupMemory(memory_tokens, idle_share if reads_ahead else 0.0) if memory_tokens else None
        self.notice = "; ".join(session.qwen.notices)

    def drop_client(self, client: bytes) -> None:
        """Drop all state of a client, also in its slots."""
        self._noticed.pop(client, None)
        if (vision := self._visions.pop(client, None)) is not None:
            vision.clear()
        if self.memory is not None:
            self.memory.drop(client)
        for slot in self._table.drop(client):
            self._questions.pop(slot, None)
            self._session.forget(slot)
        self._shrink()

    def embed_query(self, query: str) -> QueryEmbedding:
        """Return the query's embedding. Raises ContextLengthError if it is too long, alone or beside a group of
        pictures."""
        prompts = self._session.prompts
        qwen = self._session.qwen
        prompts.check_length(query, 1)
        if self.memory is not None and self.memory.tokens + prompts.group_tokens(self._memory_frames) > (
            qwen.max_context_tokens - prompts.other_tokens(query)
        ):
            raise ContextLengthError(
                f"the question takes {counted(len(qwen.plain_token_ids(query)), 'token')}, too many beside "
                f"answer.memory.tokens = {self.memory.tokens} in a context of {qwen.max_context_tokens}; ask a shorter "
                "question, or lower answer.memory.tokens"
            )
        return qwen.embed_query(query)

    def check_watch(self, query: str) -> tuple[str, ...]:
        """Return the words of the query that a model of a small world has never seen.

        Raises ModelError if the tokenizer has no token for yes or no, or the calibration cannot be used, and
        ContextLengthError as `embed_query` does.
        """
        self.embed_query(query)
        _ = self._session.yes_no, self._session.qwen.yes_no_calibration
        return self._session.qwen.unseen_words(query)

    def check_schema(self, schema: AnswerSchema) -> None:
        if self._session.options.thinking == "show":
            raise OptionError(
                "answer.thinking = show makes thoughts part of the answer, which then has no schema",
                "set answer.thinking to hide or off at the model",
            )
        self._session.decoder.grammars.constraint(schema)
        self._session.prompts.check_length(self._instruction(schema), 1)

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        slot = self._table.by_client.get(client, 0)
        if (vision := self._vision(client)) is not None:
            self._session.slots[slot].vision = vision
        glance = self._session.glance(self._group_packets(client, packet), query, slot=slot)
        return AnswerStats(glance.work, glance.feedback)

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> Reading:
        memory, (*earlier_packets, packet) = self.memory, packets
        assert memory is not None
        if packet.place is None:
            raise TransportError("an idle packet is part of a group of pictures")
        slot = self._table.last_slot(client)
        if earlier_packets or slot is None:
            # the cache lacks what the memory lacks: they are kept, and read with the next answer
            return KeptReading(memory, client, packets)
        group = [*memory.before(client, packet.place), packet]
        return SlotReading(memory, client, packet, self._session.slots[slot].read_ahead(group))

    def hold(self, client: bytes) -> None:
        evicted_client = self._table.hold(client)
        if evicted_client is not None and self.memory is not None:
            self.memory.evict(evicted_client)

    def release(self, client: bytes) -> None:
        if (slot := self._table.by_client.get(client)) is not None:
            self._questions.pop(slot, None)
            self._session.stop(slot)
        self._table.release(client)
        self._shrink()

    def _shrink(self) -> None:
        """Give back the memory of slots that the clients that are left do not need."""
        if surplus := self._session.block.surplus(self._table.enough):
            for slot in surplus:
                self._table.forget(slot)
                self._session.forget(slot)
            self._session.block.free(surplus)
            self._session.decoder.drop_outdated()

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        answers = self._session.ask([self._slot_question(question) for question in questions])
        for question, answer in zip(questions, answers, strict=True):
            self._questions[answer.slot] = question
            self._note(answer)

    def step(self) -> Sequence[ClientQuestion]:
        return [self._note(answer) for answer in self._session.step()]

    def finish(self, question: ClientQuestion) -> None:
        self._note(self._session.finish(self._table.by_client[question.client]))

    def _slot_question(self, question: ClientQuestion) -> SlotQuestion:
        from arr_coc.qwen.session import SlotQuestion

        client = question.client
        slot = self._table.by_client[client]
        packets = self._group_packets(client, question.packet)
        part = question.part
        previous = part.previous
        schema = None if part.schema is None else AnswerSchema.parse(part.schema)
        instruction = self._instruction(schema)
        return SlotQuestion(
            slot,
            packets,
            part.text,
            vision=self._vision(client),
            checks=part.checks,
            history=self._fitting_history(part, instruction, slot, packets),
            previous=None if previous is None else previous.text,
            same_above=1.0 if previous is None else previous.same_above,
            schema=schema,
            instruction=instruction,
        )

    def _instruction(self, schema: AnswerSchema | None) -> str:
        from arr_coc.qwen.session import instruction_of

        return instruction_of(self._session.qwen, schema)

    def _fitting_history(self, question: Question, instruction: str, slot: int, packets: Packet | list[Packet]) -> str:
        """Return the text of a question's earlier answers: the newest that fit the context beside the rest of the
        prompt."""
        if isinstance(packets, list):
            frames = packets
        else:
            frames = [packets]
        question_text = question.text + instruction
        for first in range(len(question.history)):
            text = history_text(question.history[first:])
            with suppress(ContextLengthError):
                self._session.slots[slot].prompts.check_fits(frames, text + question_text)
                return text
        return ""

    def _group_packets(self, client: bytes, packet: Packet) -> Packet | list[Packet]:
        """Return a packet, after the earlier ones of its group of pictures if it is in one."""
        if self.memory is None or not isinstance(packet, TokenPacket) or packet.place is None:
            return packet
        return [*self.memory.before(client, packet.place), packet]

    def _vision(self, client: bytes) -> IncrementalEncoder | None:
        """Return a client's state of incremental encoding; None with another encoding."""
        from arr_coc.qwen.encoding import IncrementalEncoder

        options = self._session.options
        if options.encode != "incremental":
            return None
        return self._visions.setdefault(client, IncrementalEncoder(options.incremental))

    def _note(self, answer: SlotAnswer) -> ClientQuestion:
        """Copy an answer's progress to its question."""
        question = self._questions[answer.slot]
        question.piece = answer.piece
        question.ended = answer.has_ended
        question.error = answer.error
        question.scores = tuple((score.yes, score.mass) for score in answer.scores)
        if answer.result is not None:
            extent = self._session.qwen.extent(question.packet.grid)
            notice = self._answer_notice(question.client, answer.result)
            result = answer.result
            question.stats = AnswerStats(result.work, result.feedback, same=answer.same, extent=extent, notice=notice)
        if answer.has_ended:
            del self._questions[answer.slot]
        return question

    def _answer_notice(self, client: bytes, answer: AnswerResult) -> str:
        """Return a notice about a client's answer; empty if there is none, or the client had it before."""
        most = self._session.options.decoding.max_tokens
        if answer.work.looped:
            kind = "looped"
            notice = LOOPED
        elif answer.is_lost_in_thoughts(most):
            kind = "lost in thoughts"
            notice = (
                f"hidden thoughts took all of answer.max_tokens = {most}, and no answer is left; raise it, or set "
                "answer.thinking = off"
            )
        else:
            return ""
        noticed = self._noticed.setdefault(client, set())
        if kind in noticed:
            return ""
        noticed.add(kind)
        return notice


def _max_visual_tokens(session: AnswerSession, frames: int) -> int:
    """Return the most visual tokens of a group that fits the context beside the prompt's own tokens and the longest
    answer; 0 or less for none."""
    return session.qwen.max_context_tokens - session.prompts.other_tokens("") - session.prompts.group_tokens(frames)


def _check_memory(session: AnswerSession, memory_tokens: int, frames: int) -> None:
    """Raise OptionError if a group of pictures leaves no room for the prompt's own tokens and the longest answer."""
    qwen = session.qwen
    most = _max_visual_tokens(session, frames)
    if memory_tokens > most:
        prompt_tokens = session.prompts.other_tokens("") + session.prompts.group_tokens(frames)
        raise OptionError(
            f"answer.memory.tokens = {memory_tokens} does not fit {qwen.model_id}: its context has "
            f"{counted(qwen.max_context_tokens, 'token')}, of which prompt and answer take {prompt_tokens}; set "
            f"answer.memory.tokens to {max(most, 0)} or less, or give --no-memory"
        )


def load_qwen_model(config: Config) -> QwenAnswerModel:
    """Load the model that `answer.model` names, with `answer.slots`.

    Raises ModelError, and OptionError for a group of pictures out of range, more slots than the memory holds, or a
    number of slots above 1 for a model that answers one client at a time.
    """
    from arr_coc.qwen.deferred_imports import deferred_imports

    answer = config.answer
    with deferred_imports(answer.model):
        from arr_coc.qwen.batching.slots import check_slots, fitting_slots
        from arr_coc.qwen.loading import load_qwen
        from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
        from arr_coc.qwen.session import AnswerSession

        assert answer.encode != "picture"
        memory_tokens = answer.memory.tokens if config.keeps_groups else 0
        frames = answer.memory.frames
        qwen = load_qwen(
            answer.model,
            device=answer.device,
            dtype=answer.dtype,
            allocator=answer.allocator,
            cache_weights=answer.cache_weights,
        )
        chosen = answer.model_dump(include=COMPLETED_KEYS)
        decoding = Decoding(
            max_tokens=answer.max_tokens,
            seed=answer.seed,
            stop_loops=answer.stop_loops,
            **qwen.checkpoint_decoding.completed(chosen, answer.decoding),
        )
        incremental = IncrementalOptions(**answer.incremental.model_dump())
        options = AnswerOptions(
            answer.encode,
            decoding,
            system=answer.system,
            incremental=incremental,
            feedback=answer.feedback,
            thinking=answer.thinking,
        )
        others = QUESTION_TOKENS + answer.max_tokens
        visual = config.allocate.max_tokens
        slots = answer.slots
        if slots == "auto":
            most = SLOTS_TOGETHER if qwen.device.type == "cpu" else SLOTS_MAX
            slots = fitting_slots(qwen, max(visual, memory_tokens) + others, most)
        elif slots > 1:
            try:
                check_slots(qwen, slots, max(visual, memory_tokens) + others)
            except OptionError:
                if config.requires_groups or not memory_tokens:
                    raise
                memory_tokens = 0
                check_slots(qwen, slots, visual + others)
        session = AnswerSession(qwen, options, slots)
        if not config.requires_groups:
            memory_tokens = min(memory_tokens, max(_max_visual_tokens(session, frames), 0) // 2)
        share = answer.memory.idle_share(auto_idle_share(qwen.device.type))
        return QwenAnswerModel(session, memory_tokens, frames, share)


IDLE_SHARE_CPU = 0.25
IDLE_SHARE_GPU = 0.5
"""Default share of the time for idle work: a GPU has nothing else to do, and a CPU decodes video meanwhile."""


def auto_idle_share(device: str) -> float:
    """Return the default share of the time for idle work on a device."""
    if device == "cpu":
        return IDLE_SHARE_CPU
    return IDLE_SHARE_GPU
