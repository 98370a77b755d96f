"""`EscalatingModel`: a model that answers first, and a larger one for the answers that it is unsure of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ModelError
from arr_coc.hub import cached_folder, local_folder
from arr_coc.types import PreviousAnswer, QueryEmbedding, Question, TokenPacket
from stream.answer.memory import Reading
from stream.answer.model import AnswerModel, AnswerStats, ClientQuestion
from stream.config import Config
from stream.extensions.escalate.section import EscalateSection


@dataclass(slots=True, eq=False)
class _Attempt:
    """Question of a client, and what a model is asked for it now.

    `first`: the whole answer of the first model, once there is one; `text` is its text.
    """

    question: ClientQuestion
    model: AnswerModel
    asked: ClientQuestion
    text: str = ""
    first: AnswerStats | None = None

    def ask(self, model: AnswerModel, part: Question) -> ClientQuestion:
        """Go on with another model, or another part."""
        self.model = model
        self.asked = ClientQuestion(self.question.client, self.question.packet, part)
        return self.asked


class EscalatingModel:
    """Model whose answers are given by a `larger` one if a token of them is less probable than `below`.

    Each client holds a slot of both. An answer of the first model is withheld until it is whole and scored; the larger
    model's is given piece by piece. The first model alone answers checks, glances and reads ahead. Both read the same
    packets, and one visual memory.
    """

    def __init__(self, first: AnswerModel, larger: AnswerModel, below: float) -> None:
        self._first = first
        self._larger = larger
        self._below = below
        self._attempts: dict[ClientQuestion, _Attempt] = {}
        self._due: list[ClientQuestion] = []
        self.slots = first.slots
        self.model_id = first.model_id
        # Each packet may come to either model.
        self.knows_levels = first.knows_levels and larger.knows_levels
        self.knows_wide = first.knows_wide and larger.knows_wide
        self.takes_device_pixels = first.takes_device_pixels and larger.takes_device_pixels
        self.known_world = first.known_world
        self.allocator = first.allocator
        self.can_glance = first.can_glance
        self.attention_readable = first.attention_readable
        memories = [memory for memory in (first.memory, larger.memory) if memory is not None]
        self.memory = min(memories, key=lambda memory: memory.tokens) if len(memories) == 2 else None
        first.memory = self.memory
        larger.memory = self.memory
        self.notice = "; ".join(filter(None, (first.notice, larger.notice)))

    def drop_client(self, client: bytes) -> None:
        self._forget(client)
        self._first.drop_client(client)
        self._larger.drop_client(client)

    def embed_query(self, query: str) -> QueryEmbedding:
        """Return the first model's embedding. Raises ContextLengthError if the query is too long for either model."""
        self._larger.embed_query(query)
        return self._first.embed_query(query)

    def check_watch(self, query: str) -> tuple[str, ...]:
        return self._first.check_watch(query)

    def check_schema(self, schema: AnswerSchema) -> None:
        self._first.check_schema(schema)
        self._larger.check_schema(schema)

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        return self._first.glance(client, packet, query)

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> Reading:
        return self._first.read_ahead(client, packets)

    def hold(self, client: bytes) -> None:
        self._first.hold(client)
        self._larger.hold(client)

    def release(self, client: bytes) -> None:
        self._forget(client)
        self._first.release(client)
        self._larger.release(client)

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        asked = []
        for question in questions:
            if question.part.checks:
                asked.append(question)
                continue
            attempt = _Attempt(question, self._first, question)
            asked.append(attempt.ask(self._first, question.part))
            self._attempts[attempt.asked] = attempt
        self._first.ask(asked)
        for each in asked:
            self._note(each)

    def step(self) -> Sequence[ClientQuestion]:
        stepped = [*self._first.step(), *self._larger.step()]
        due = self._due
        self._due = []
        for model in (self._first, self._larger):
            asked = [each for each in due if self._attempts[each].model is model]
            if asked:
                model.ask(asked)
        return [self._note(each) for each in [*stepped, *due]]

    def finish(self, question: ClientQuestion) -> None:
        """End an answer with its text so far, which is not scored."""
        attempt = next((each for each in self._attempts.values() if each.question is question), None)
        if attempt is None:
            self._first.finish(question)
            return
        if attempt.first is None or attempt.model is self._larger:
            attempt.model.finish(attempt.asked)
            attempt.text += attempt.asked.piece
        self._end(attempt)

    def _note(self, asked: ClientQuestion) -> ClientQuestion:
        """Take in the progress of what a model was asked; return the client's question."""
        attempt = self._attempts.get(asked)
        if attempt is None:
            return asked
        question = attempt.question
        question.piece = ""
        if attempt.model is self._larger:
            question.piece = asked.piece
            if asked.ended:
                self._end(attempt)
        elif attempt.first is not None:
            if not asked.ended:  # its text is longer as tokens than the answer was, so that it is answered anew
                self._first.finish(asked)
            self._decide(attempt, None if asked.stats is None else asked.stats.same)
        else:
            attempt.text += asked.piece
            if asked.error is not None:
                self._end(attempt)
            elif asked.ended:
                self._score(attempt)
        return question

    def _score(self, attempt: _Attempt) -> None:
        """Ask the first model how probable its answer is, unless that is known."""
        stats = attempt.first = attempt.asked.stats
        assert stats is not None
        part = attempt.question.part
        if stats.work.looped:
            self._decide(attempt, None)
        elif part.previous is not None and part.previous.text == attempt.text and stats.same is not None:
            self._decide(attempt, stats.same)
        else:
            self._go_on(attempt, self._first, replace(part, previous=PreviousAnswer(attempt.text, 0.0)))

    def _decide(self, attempt: _Attempt, least: float | None) -> None:
        """Give the first model's answer, or ask the larger one if the first is unsure or its answer has no score."""
        if least is not None and least >= self._below:
            attempt.question.piece = attempt.text
            self._end(attempt)
        else:
            self._go_on(attempt, self._larger, attempt.question.part)

    def _go_on(self, attempt: _Attempt, model: AnswerModel, part: Question) -> None:
        self._attempts.pop(attempt.asked)
        asked = attempt.ask(model, part)
        self._attempts[asked] = attempt
        self._due.append(asked)

    def _end(self, attempt: _Attempt) -> None:
        """Give the client's question the answer of the model that was asked last."""
        self._attempts.pop(attempt.asked, None)
        self._due = [each for each in self._due if each is not attempt.asked]
        question = attempt.question
        question.ended = True
        question.error = attempt.asked.error
        if attempt.model is self._larger and attempt.first is not None:
            stats = attempt.asked.stats
            question.stats = None if stats is None else _escalated(attempt.first, stats)
        else:
            question.stats = attempt.first or attempt.asked.stats

    def _forget(self, client: bytes) -> None:
        """Drop what a client was to be asked next."""
        self._attempts = {asked: attempt for asked, attempt in self._attempts.items() if asked.client != client}
        self._due = [asked for asked in self._due if asked.client != client]


def _escalated(first: AnswerStats, larger: AnswerStats) -> AnswerStats:
    """Return the figures of the larger model's answer, with the times and operations of both."""
    work = replace(
        larger.work,
        encode_ms=first.work.encode_ms + larger.work.encode_ms,
        prefill_ms=first.work.prefill_ms + larger.work.prefill_ms,
        decode_ms=first.work.decode_ms + larger.work.decode_ms,
        flops=first.work.flops + larger.work.flops,
        prefilled_tokens=first.work.prefilled_tokens + larger.work.prefilled_tokens,
        kept_bytes=first.work.kept_bytes + larger.work.kept_bytes,
        escalated=True,
    )
    return replace(larger, work=work)


def escalating_model(config: Config, first: AnswerModel) -> EscalatingModel | None:
    """Load the larger model beside the first, if the configuration names one.

    Raises ModelError if it cannot be loaded or does not fit the memory, and OptionError as `load_qwen_model`.
    """
    section = EscalateSection.of(config)
    if section.model is None:
        return None
    from stream.answer.qwen import load_qwen_model

    config = config.with_values({"answer.model": section.model, "answer.allocator": None})
    _check_memory(section.model, config)
    return EscalatingModel(first, load_qwen_model(config), section.below)


def _check_memory(name: str, config: Config) -> None:
    """Raise ModelError if the weights of a model that is on this machine do not fit the free memory."""
    import torch

    from arr_coc.qwen.batching.slots import free_bytes
    from arr_coc.qwen.cpu_precision import dtype_on_cpu
    from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload

    folder = local_folder(name) or cached_folder(name)
    if folder is None:
        return
    device_name = config.answer.device
    if device_name == "auto":
        device_name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device_name)
    spec = ModelSpec.read(folder, name).for_device(cuda=device.type == "cuda")
    dtype: str = config.answer.dtype
    if dtype == "auto" and device.type == "cpu":
        dtype = dtype_on_cpu(spec)
    needed = MemoryEstimate.of(spec, dtype, Workload(config.allocate.max_tokens, config.answer.max_tokens)).total
    free = free_bytes(device)
    if needed > free:
        raise ModelError(
            f"{name} needs about {needed / 1e9:,.1f} GB beside the run's own model, and {free / 1e9:,.1f} GB are free "
            f"on {device}",
            "name a smaller model with --escalate, or leave it out",
        )
