"""`AnswerSession`: answers and yes/no scores of one model, for one question or several at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import OptionError
from arr_coc.qwen.attention import PROBED_TOKENS, merge_feedback, unreadable_layer
from arr_coc.qwen.batching.encoding import encode_packed
from arr_coc.qwen.batching.packed import PromptToPrefill, prefill_packed
from arr_coc.qwen.batching.slots import check_slots
from arr_coc.qwen.batching.step import DecodeRow, DecodeStep, likeliest
from arr_coc.qwen.cache import SlotBlock
from arr_coc.qwen.decode import choose, choose_finite, least_probability, not_finite
from arr_coc.qwen.encoding import EncodedFrame, IncrementalEncoder, Packet
from arr_coc.qwen.loops import LoopDetector
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.pieces import Ids
from arr_coc.qwen.prompt import PromptBuilder
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.slot import AnswerResult, GlanceResult, PreparedQuestion, Slot, prefill_alone
from arr_coc.qwen.text_stream import TextStream, Thoughts
from arr_coc.qwen.yes_no import YesNoScore, YesNoTokens, score_logits, yes_no_tokens
from arr_coc.types import TokenPacket

if TYPE_CHECKING:
    from arr_coc.qwen.batching.captured import Capture, CapturedStep
    from arr_coc.qwen.constraint import AnswerConstraint, GrammarCompiler
    from arr_coc.qwen.penalties import TokenPenalties

_log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SlotQuestion:
    """A question about frames for a slot; packets as in `AnswerSession.answer`.

    `vision`: incremental encoder of this client. `checks`: yes/no questions, of which `query` is the first, to score
    without decoding, as many as read the frames only once. `chat`: the whole prompt, as in `AnswerSession.answer_chat`.
    `history`: text before the question. `previous`: an earlier answer to it; if each of its tokens has a probability of
    at least `same_above`, it is the answer again, without decoding. `schema`: the answer fits it, unless it is cut off;
    `instruction`: text behind the question.
    """

    slot: int
    packets: Packet | Sequence[Packet]
    query: str
    vision: IncrementalEncoder | None = None
    checks: Sequence[str] = ()
    chat: Sequence[Ids | Packet] | None = None
    history: str = ""
    previous: str | None = None
    same_above: float = 0.5
    schema: AnswerSchema | None = None
    instruction: str = ""


@dataclass(slots=True)
class SlotAnswer:
    """Answer of one slot, in progress or ended.

    `piece`: text that the last step completed; may be empty. `has_ended`: no more text follows; then `result` holds its
    record, or `error` the exception. `scores`: scores of yes/no questions, which end at once. `same`: probability of
    the least likely token of the question's `previous` answer.
    """

    slot: int
    piece: str = ""
    has_ended: bool = False
    error: Exception | None = None
    result: AnswerResult | None = None
    scores: Sequence[YesNoScore] = ()
    same: float | None = None


@dataclass(slots=True, eq=False)
class _OpenAnswer:
    """An open answer: its question, its state in the decoder, and its text so far."""

    answer: SlotAnswer
    question: PreparedQuestion
    row: DecodeRow
    stream: TextStream
    tokens: int = 0
    loops: LoopDetector[int] | None = None
    held_pieces: list[str] = field(default_factory=list)

    def push(self, token: int) -> str:
        """Return the text that the next token completes, after text that was held back; empty while it may belong to a
        loop. At the end of a loop its tokens are dropped from the record."""
        piece = self.stream.push(token)
        if self.loops is None:
            return piece
        # A piece without text may be a part of a character, or a thought that is not shown.
        self.loops.push(token, is_word=not piece or any(map(str.isalpha, piece)))
        self.held_pieces.append(piece)
        ready = len(self.held_pieces) - (self.loops.count - self.loops.held_from)
        if self.loops.has_looped:
            record = self.question.record
            record.dropped_tokens = self.loops.count - self.loops.held_from
            del record.token_ids[self.loops.held_from :]
        return self._release(ready)

    def rest(self) -> str:
        """Return the text that is still held back at the end, but that of a loop."""
        if self.has_looped:
            return ""
        return self._release(len(self.held_pieces)) + self.stream.finish()

    @property
    def has_looped(self) -> bool:
        """True if the answer repeats itself, and ends."""
        return self.loops is not None and self.loops.has_looped

    def _release(self, pieces: int) -> str:
        text = "".join(self.held_pieces[:pieces])
        del self.held_pieces[:pieces]
        return text


class AnswerSession:
    """Session that answers questions about frames with one model, in one slot or several at once.

    The prompt is system, frames, question, assistant, in this order. Keys and values of the system prompt are computed
    once; those of frames are reused as long as prompts begin with the same frames, so that another question about them
    costs its own tokens only, and those of a group of pictures until the group ends.

    `answer`, `answer_chat` and `score_yes_no` use the first slot, `ask` and `step` any. Slots share no prompt, feedback
    or keys. A product of several rows rounds differently from that of one row, so an answer in a batch may differ from
    a single one if two tokens are almost equally likely; an answer that is alone equals that of a session with one
    slot. Not thread-safe.
    """

    def __init__(
        self, qwen: QwenVL, options: AnswerOptions | None = None, slots: int = 1, capture: Capture | None = None
    ) -> None:
        """Begin with empty caches.

        Args:
            qwen: The model.
            options: Of its answers.
            slots: Number of questions that are answered at once.
            capture: As `Decoder`.

        Raises:
            OptionError: The model cannot answer several questions at once, or `slots` is below 1.
        """
        if slots < 1:
            raise OptionError(f"slots must be at least 1, got {slots}")
        if slots > 1:
            check_slots(qwen, slots, 1)
        self.qwen = qwen
        self.options = options or AnswerOptions()
        self.block = SlotBlock(qwen, slots)
        self.slots = [Slot(qwen, self.options, cache) for cache in self.block.caches]
        self.decoder = Decoder(qwen, self.block, capture)
        self._open: dict[int, _OpenAnswer] = {}

    def configure(self, options: AnswerOptions) -> None:
        """Set the options of later answers; caches stay valid."""
        self.options = options
        for slot in self.slots:
            slot.prompts.configure(options)

    def forget(self, slot: int = 0) -> None:
        """Stop a slot's answer and drop its frames, keys and values, so that the next answer computes everything
        afresh. The memory of keys and values stays allocated."""
        self.stop(slot)
        self.slots[slot].forget()

    @property
    def prompts(self) -> PromptBuilder:
        """Prompts of the first slot."""
        return self.slots[0].prompts

    @property
    def vision(self) -> IncrementalEncoder:
        """Cache of `encode="incremental"` of the first slot; a caller that alternates between streams sets the cache
        of each."""
        return self.slots[0].vision

    @vision.setter
    def vision(self, vision: IncrementalEncoder) -> None:
        self.slots[0].vision = vision

    @property
    def last(self) -> AnswerResult:
        """Last ended answer of the first slot. Raises LookupError before the first one."""
        if (last := self.slots[0].last) is None:
            raise LookupError("no answer has ended yet")
        return last

    @cached_property
    def yes_no(self) -> YesNoTokens:
        """The model's tokens for yes and no. Raises ModelError if its tokenizer lacks them."""
        return yes_no_tokens(self.qwen.tokenizer, self.qwen.model_id)

    @cached_property
    def can_glance(self) -> bool:
        """True if the model's attention can be read, as `glance` needs. Costs nothing."""
        return unreadable_layer(self.qwen) is None

    @property
    def open_answers(self) -> int:
        """Number of open answers."""
        return len(self._open)

    def answer(
        self,
        packets: Packet | Sequence[Packet],
        query: str,
        should_stop: Callable[[], bool] | None = None,
        schema: AnswerSchema | None = None,
    ) -> Generator[str, None, None]:
        """Yield pieces of the answer to `query` while it is decoded.

        Once the iterator has ended or was closed, `last` is the record of the answer.

        Args:
            packets: One frame, which is shown as an image, or several, oldest first, each shown under its media time.
                Packets with a `place` are all frames of a group of pictures, of which those already read cost nothing.
            query: The question.
            should_stop: Called after every token; true ends the answer.
            schema: Form of the answer, which fits it unless it is cut off.

        Raises:
            ContextLengthError, NonFiniteError: Frames that do not fit or cannot be used.
            OptionError: A packet that does not match `encode`.
            ArrCocError: As `GrammarCompiler`.
        """
        instruction = instruction_of(self.qwen, schema)
        return self._pieces(SlotQuestion(0, packets, query, schema=schema, instruction=instruction), should_stop)

    def answer_chat(
        self,
        pieces: Sequence[Ids | Packet],
        should_stop: Callable[[], bool] | None = None,
        schema: AnswerSchema | None = None,
    ) -> Generator[str, None, None]:
        """Yield pieces of the answer to a whole prompt, given as token ids and frames in order.

        The next answer reuses nothing of it. `last`, `should_stop`, `schema` and errors as in `answer`.
        """
        return self._pieces(SlotQuestion(0, [], "", chat=pieces, schema=schema), should_stop)

    def score_yes_no(self, packets: Packet | Sequence[Packet], question: str) -> YesNoScore:
        """Score whether the model would answer `question` with yes, by a prefill without decoding.

        Frames, their reuse and errors as in `answer`. Raises ModelError if the tokenizer has no token for yes or no.
        """
        (score,) = self.score_all(packets, [question])
        return score

    def score_all(self, packets: Packet | Sequence[Packet], questions: Sequence[str]) -> Sequence[YesNoScore]:
        """Score several questions about the same frames, which are read once. Errors as `score_yes_no`."""
        (answer,) = self.ask([SlotQuestion(0, packets, questions[0], checks=questions)])
        if answer.error is not None:
            raise answer.error
        return answer.scores

    def glance(
        self, packets: Packet | Sequence[Packet], query: str, *, timed: bool = False, slot: int = 0
    ) -> GlanceResult:
        """Measure what the model attends to in a frame's overview for `query`, before regions are chosen.

        Keys and values stay cached, so that an answer about a packet that begins with the same overview, after the same
        frames, costs only its remaining tokens.

        Args:
            packets: The packet, or the last of several in order, holds an overview only; or the packets are a group of
                pictures, which needs no overview.
            query: The question.
            timed: Whether the frame is introduced by its time, as each of several frames is; implied if several are
                given.
            slot: Slot whose cache it reads.

        Raises:
            ArrCocError: As `answer`.
            OptionError: The last packet is no overview.
            ModelError: The model's attention cannot be read.
        """
        return self.slots[slot].glance(packets, query, timed=timed)

    def ask(self, questions: Sequence[SlotQuestion]) -> list[SlotAnswer]:
        """Encode and prefill the questions together; return their answers, in order.

        Yes/no questions, and questions whose `previous` answer is the answer again, have ended; the others have their
        first token, and `step` continues them. A failure is the `error` of that answer alone, unless the shared pass
        fails, for example for lack of memory.
        """
        for question in questions:
            self.stop(question.slot)
        answers = [SlotAnswer(question.slot) for question in questions]
        prepared: list[tuple[SlotQuestion, SlotAnswer, PreparedQuestion]] = []
        began_s = time.perf_counter()
        encoded = self._encode(questions)
        for question, answer, frame in zip(questions, answers, encoded, strict=True):
            try:
                prepared.append((question, answer, self._prepare(question, frame, began_s)))
            except Exception as error:  # a question that does not fit leaves the slot's cache as it is
                answer.error = error
                answer.has_ended = True
        if not prepared:
            return answers
        try:
            logits = self._prefill([(question.slot, preparation) for question, _, preparation in prepared])
        except Exception as error:
            for _, answer, _ in prepared:
                self._fail(answer, error)
            return answers
        open_answers = []
        rows = []
        ends = logits.split([1 + len(preparation.branches) for _, _, preparation in prepared])
        for (question, answer, preparation), (row, *others) in zip(prepared, ends, strict=True):
            if question.schema is None:
                constraint = None
            else:
                constraint = self.decoder.grammars.constraint(question.schema)
            if question.checks:
                self._fallible(answer, self._score, answer, preparation, [row, *others])
            elif question.previous is not None:
                self._fallible(answer, self._compare, answer, preparation, row, question, constraint)
            if not answer.has_ended:
                open_answers.append(self._begin(answer, preparation, row, constraint))
                rows.append(row)
        if rows:
            decode_rows = [open_answer.row for open_answer in open_answers]
            self._take(open_answers, choose_rows(decode_rows, torch.stack(rows), self.options.decoding))
        return answers

    def step(self) -> list[SlotAnswer]:
        """Decode one more token of every open answer; return these answers, including those that end with it."""
        open_answers = list(self._open.values())
        if not open_answers:
            return []
        for open_answer in open_answers:
            open_answer.answer.piece = ""
        try:
            choices = self.decoder([open_answer.row for open_answer in open_answers], self.options.decoding)
        except Exception as error:
            for open_answer in open_answers:
                self._fail(open_answer.answer, error)
        else:
            self._take(open_answers, choices)
        return [open_answer.answer for open_answer in open_answers]

    def stop(self, slot: int) -> None:
        """Free a slot; its open answer, if any, gets no result."""
        if (open_answer := self._open.pop(slot, None)) is not None:
            open_answer.answer.has_ended = True

    def finish(self, slot: int) -> SlotAnswer:
        """End a slot's open answer with the text so far, and set its result. Raises KeyError if no answer is open."""
        open_answer = self._open[slot]
        open_answer.answer.piece = ""
        self._end(open_answer)
        return open_answer.answer

    def _pieces(self, question: SlotQuestion, should_stop: Callable[[], bool] | None) -> Generator[str, None, None]:
        """Yield the pieces of one answer."""
        (answer,) = self.ask([question])
        try:
            while True:
                if answer.piece:
                    yield answer.piece
                if answer.has_ended:
                    break
                if should_stop is not None and should_stop():
                    self.finish(question.slot)
                else:
                    self.step()
        finally:
            if not answer.has_ended:
                self.finish(question.slot)
        if answer.error is not None:
            raise answer.error

    def _encode(self, questions: Sequence[SlotQuestion]) -> list[EncodedFrame | None]:
        """Return the frames that were encoded together, by question; None for frames to encode one by one."""
        batch = [
            index
            for index, question in enumerate(questions)
            if self.options.encode == "sparse"
            and isinstance(packet := question.packets, TokenPacket)
            and not (packet.overview or packet.place)
            and not self.slots[question.slot].prompts.knows(packet)
        ]
        frames: dict[int, EncodedFrame | None] = {}
        if len(batch) > 1:
            packets = [questions[index].packets for index in batch]
            frames = dict(zip(batch, encode_packed(self.qwen, packets), strict=True))  # type: ignore[arg-type]
        return [frames.get(index) for index in range(len(questions))]

    def _prepare(self, question: SlotQuestion, frame: EncodedFrame | None, began_s: float) -> PreparedQuestion:
        slot = self.slots[question.slot]
        if question.vision is not None:
            slot.vision = question.vision
        if question.checks:
            _ = self.yes_no, self.qwen.yes_no_calibration
        if question.schema is not None:
            self.decoder.grammars.constraint(question.schema)  # compiled here, an error is that of this question alone
        if question.chat is not None:
            return slot.prepare_chat(question.chat)
        texts = question.query, question.history, question.instruction, question.checks
        if frame is None or not isinstance(question.packets, TokenPacket):
            return slot.prepare(question.packets, *texts)
        with slot.prompts.use_encoding(question.packets, frame):
            preparation = slot.prepare(question.packets, *texts)
        preparation.record.started_s = began_s  # the shared encoding pass counts in full for each question
        return preparation

    def _prefill(self, prompts: Sequence[tuple[int, PreparedQuestion]]) -> torch.Tensor:
        """Prefill prompts into their slots; return the logits [ends, vocabulary] after each and its branches."""
        parts = [
            PromptToPrefill(question.prompt.part, self.slots[slot].prompts.cache, question.probe, question.branches)
            for slot, question in prompts
        ]
        is_single = len(parts) == 1 and not self._open
        if is_single:
            return prefill_alone(self.qwen, parts[0])
        return prefill_packed(self.qwen, parts)

    def _score(self, answer: SlotAnswer, question: PreparedQuestion, logits: Sequence[torch.Tensor]) -> None:
        """Score the checks whose logits are there, and the others one by one, after the frames that the cache holds."""
        slot = self.slots[answer.slot]
        tokens = self.yes_no
        calibration = self.qwen.yes_no_calibration
        scores = [score_logits(row, tokens, calibration) for row in logits]
        question.record.mark_step()
        answer.result = slot.conclude(question)
        rest = question.checks[len(scores) :]
        if answer.result.feedback is None:
            feedback = []
        else:
            feedback = [answer.result.feedback]
        for check in rest:
            preparation = slot.prepare(question.frames, check, checks=[check])
            prompt = PromptToPrefill(preparation.prompt.part, slot.prompts.cache, preparation.probe)
            scores.append(score_logits(prefill_alone(self.qwen, prompt)[0], tokens, calibration))
            feedback += [] if (check_feedback := slot.feedback_of(preparation)) is None else [check_feedback]
        if rest:
            prefill_ms = (time.perf_counter() - question.record.encoded_s) * 1e3
            work = replace(answer.result.work, prefill_ms=prefill_ms)
            merged = merge_feedback(feedback) if feedback else None
            slot.last = answer.result = replace(answer.result, work=work, feedback=merged)
        answer.scores = scores
        answer.has_ended = True

    def _compare(
        self,
        answer: SlotAnswer,
        question: PreparedQuestion,
        logits: torch.Tensor,
        slot_question: SlotQuestion,
        constraint: AnswerConstraint | None,
    ) -> None:
        """Score the earlier answer in one pass, and end with it if it is likely enough; the cache is left as before."""
        previous = slot_question.previous or ""
        ids = self.qwen.plain_token_ids(previous)
        slot = self.slots[answer.slot]
        if len(ids) > self.options.decoding.max_tokens or question.prompt.opens_thoughts:
            return  # longer than any answer of this session, or preceded by thoughts
        cut = len(ids) == self.options.decoding.max_tokens
        answer.same = least_probability(
            self.qwen,
            question.prompt.part,
            slot.prompts.cache,
            logits,
            ids,
            () if cut else self.qwen.eos_ids,
            _mask_of(slot.penalties(question, logits), constraint),
        )
        question.record.compared_tokens = len(ids)
        if answer.same >= slot_question.same_above:
            question.record.mark_step()
            question.record.pieces.append(previous)
            answer.piece = previous
            answer.result = slot.conclude(question)
            answer.has_ended = True

    def _begin(
        self,
        answer: SlotAnswer,
        question: PreparedQuestion,
        logits: torch.Tensor,
        constraint: AnswerConstraint | None,
    ) -> _OpenAnswer:
        part = question.prompt.part
        options = self.options.decoding
        if options.temperature:
            generator = torch.Generator(logits.device).manual_seed(options.seed)
        else:
            generator = None
        row = DecodeRow(answer.slot, part.tokens, part.position, options.max_tokens - 1, question.probe, generator)
        thoughts = None
        thinking = self.options.thinking
        if (ids := self.qwen.thought_ids) is not None:
            thoughts = Thoughts(*ids, is_visible=thinking == "show", has_begun=question.prompt.opens_thoughts)
        if constraint is not None:
            constraint.follow(thoughts, may_think=thinking != "off")
            row.constraint = constraint
        row.penalties = self.slots[answer.slot].penalties(question, logits)
        stream = TextStream(self.qwen.tokenizer, options.stop_strings, thoughts, self.qwen.naming_tokens)
        open_answer = _OpenAnswer(answer, question, row, stream)
        if options.stop_loops and constraint is None:  # a schema has an end, and may ask for equal entries
            open_answer.loops = LoopDetector()
        self._open[answer.slot] = open_answer
        return open_answer

    def _take(self, open_answers: Sequence[_OpenAnswer], choices: Sequence[Sequence[int]]) -> None:
        """Add each answer's next token; `choices` holds it and 1 if its logits are finite, else 0."""
        for open_answer, (token, good) in zip(open_answers, choices, strict=True):
            answer = open_answer.answer
            record = open_answer.question.record
            row = open_answer.row
            stream = open_answer.stream
            if not good:
                self._fail(answer, not_finite(open_answer.tokens))
                continue
            record.mark_step()
            if token in self.qwen.eos_ids:
                self._end(open_answer)
                continue
            record.token_ids.append(token)
            open_answer.tokens += 1
            row.token = token
            if (constraint := row.constraint) is not None:
                constraint.take(token)
            if row.penalties is not None:
                row.penalties.answer.append(token)
            answer.piece = open_answer.push(token)
            answer_tokens = open_answer.tokens - stream.thought_tokens
            if stream.thinks or answer_tokens >= PROBED_TOKENS:
                row.probe = None
            else:
                row.probe = open_answer.question.probe
            if answer.piece:
                record.pieces.append(answer.piece)
            is_formed = constraint is not None and constraint.has_ended
            is_complete = is_formed or stream.has_stopped or open_answer.has_looped
            if is_complete or open_answer.tokens == self.options.decoding.max_tokens:
                self._end(open_answer)

    def _end(self, open_answer: _OpenAnswer) -> None:
        answer = open_answer.answer
        self._open.pop(answer.slot, None)
        record = open_answer.question.record
        record.thought_tokens = min(open_answer.stream.thought_tokens, len(record.token_ids))
        if rest := open_answer.rest():
            record.pieces.append(rest)
            answer.piece += rest
        answer.result = self._fallible(answer, self.slots[answer.slot].conclude, open_answer.question)
        answer.has_ended = True

    def _fallible(
        self,
        answer: SlotAnswer,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result | None:
        """Return the result of `function`; if it raises, set the answer's error and return None."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self._fail(answer, error)
            return None

    def _fail(self, answer: SlotAnswer, error: Exception) -> None:
        """End an answer with an error, and clear its slot's cache, which may be half written or hold NaN."""
        self._open.pop(answer.slot, None)
        answer.error = error
        answer.has_ended = True
        self.slots[answer.slot].prompts.cache.reset()


class Decoder:
    """Decoder of the open answers: by captured steps on a GPU; by single calls on a CPU, for families with recurrent
    layers, for answers with a schema, and if capture fails.

    `capture` makes a step repeatable; None: CUDA graphs on a GPU, no capture elsewhere.
    """

    def __init__(self, qwen: QwenVL, block: SlotBlock, capture: Capture | None = None) -> None:
        if qwen.family.recurrent:
            capture = None
        elif capture is None and qwen.device.type == "cuda" and qwen.decodes_plainly:
            from arr_coc.qwen.batching.captured import cuda_graph

            capture = cuda_graph
        self._qwen = qwen
        self._step = DecodeStep(qwen, block)
        self._captured: CapturedStep | None = None
        if capture is not None:
            from arr_coc.qwen.batching.captured import CapturedStep

            self._captured = CapturedStep(qwen, block, capture)

    def drop_outdated(self) -> None:
        """Free what was captured for memory that the block has given back."""
        if self._captured is not None:
            self._captured.drop_outdated()

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiler of the schemas of answers. Raises as `GrammarCompiler`."""
        from arr_coc.qwen.constraint import GrammarCompiler

        return GrammarCompiler(self._qwen)

    def __call__(self, rows: Sequence[DecodeRow], options: Decoding) -> list[list[int]]:
        """Add the token of each row. Return the next token of each, and 1 if its logits are finite, else 0, with one
        device synchronisation."""
        if self._captured is not None and any(row.constraint is not None for row in rows):
            self._captured.pause()
        elif self._captured is not None:
            try:
                return self._captured(rows, options)
            except RuntimeError as error:
                self._captured.pause()
                reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning("decoding continues without captured graphs: %s", reason)
                self._captured = None
        return choose_rows(rows, self._step(rows), options)


def _mask_of(
    penalties: TokenPenalties | None, constraint: AnswerConstraint | None
) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor] | None:
    """Return the `mask` of `least_probability`; None if tokens are chosen by their logits alone."""
    if constraint is None and penalties is None:
        return None

    def mask(rows: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        if penalties is not None:
            rows = penalties.apply_rows(rows, ids)
        if constraint is not None:
            constraint.mask_rows(rows, ids)
        return rows if penalties is None else penalties.bar_rows(rows, ids)

    return mask


def instruction_of(qwen: QwenVL, schema: AnswerSchema | None) -> str:
    """Return the text behind a question whose answer has a schema; empty for a model of a small world, which has never
    seen such a one."""
    if schema is None or qwen.known_world is not None:
        return ""
    return schema.instruction


def choose_rows(rows: Sequence[DecodeRow], logits: torch.Tensor, options: Decoding) -> list[list[int]]:
    """Choose the next token of each answer.

    Args:
        rows: The N answers, with their generators and constraints.
        logits: [N, vocabulary]; overwritten if an answer has a constraint.
        options: Options of the choice.

    Returns:
        The token of each answer, and 1 if its logits are finite, else 0.
    """
    if any(row.constraint is not None for row in rows):
        return _choose_allowed(rows, logits, options)
    if not any(row.chooses_alone for row in rows):
        choices = likeliest(logits)
    else:
        draws = [
            choose_finite(row_logits, options, row.generator, row.penalties)
            for row, row_logits in zip(rows, logits, strict=True)
        ]
        choices = torch.stack([torch.stack(pair) for pair in draws])
    pairs: list[list[int]] = choices.tolist()
    return pairs


@torch.inference_mode()
def _choose_allowed(rows: Sequence[DecodeRow], logits: torch.Tensor, options: Decoding) -> list[list[int]]:
    """As `choose_rows`, of answers with constraints among them; overwrites the logits of tokens that may not come."""
    finite = logits.isfinite().all(dim=-1)
    tokens = []
    for row, row_logits in zip(rows, logits, strict=True):
        scores = row_logits if row.penalties is None else row.penalties.apply(row_logits)
        if row.constraint is not None:
            row.constraint.mask(scores)
        if row.penalties is not None:
            scores = row.penalties.bar(scores)
        token = choose(scores, options, row.generator)
        if row.penalties is not None:
            row.penalties.take(token)
        tokens.append(token)
    pairs: list[list[int]] = torch.stack([torch.stack(tokens), finite.long()], dim=-1).tolist()
    return pairs
