"""`AnswerSession`: answers and yes/no scores of one model, for one question at a time or for several at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.attention import PROBED_TOKENS, unreadable_layer
from arr_coc.qwen.batching.encoding import encode_packed
from arr_coc.qwen.batching.packed import PromptToPrefill, prefill_packed
from arr_coc.qwen.batching.step import DecodeRow, DecodeStep, SlotBlock, check_slots, likeliest
from arr_coc.qwen.decode import TextStream, Thoughts, choose_finite, least_probability, not_finite
from arr_coc.qwen.encoding import EncodedFrame, IncrementalEncoder, Packet
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.pieces import Ids
from arr_coc.qwen.prompt import PromptBuilder
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.slot import AnswerResult, GlanceResult, PreparedQuestion, Slot, prefill_alone
from arr_coc.qwen.yes_no import YesNoScore, YesNoTokens, score_logits, yes_no_tokens
from arr_coc.types import TokenPacket

if TYPE_CHECKING:
    from arr_coc.qwen.batching.captured import Capture, CapturedStep

_log = logging.getLogger(__name__)

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class SlotQuestion:
    """A question about frames for a slot; packets as in `AnswerSession.answer`.

    `vision`: what incremental encoding keeps for this client. `yes_no`: it is scored, and nothing is decoded. With
    `chat` that is the whole prompt, as in `AnswerSession.answer_chat`. `history`: text before the question. `previous`:
    an earlier answer to it; if each of its tokens has the probability `same_above` or more, it is the answer again, and
    nothing is decoded.
    """

    slot: int
    packets: Packet | Sequence[Packet]
    query: str
    vision: IncrementalEncoder | None = None
    yes_no: bool = False
    chat: Sequence[Ids | Packet] | None = None
    history: str = ""
    previous: str | None = None
    same_above: float = 0.5


@dataclass(slots=True)
class SlotAnswer:
    """Answer of one slot, while it is made.

    `piece`: the text that the last step completed; may be empty. `ended`: nothing more comes; then `result` is
    its record, or `error` the reason that there is none. `score`: of a yes/no question, which ends at once. `same`: the
    probability of the least likely token of the question's `previous` answer.
    """

    slot: int
    piece: str = ""
    ended: bool = False
    error: Exception | None = None
    result: AnswerResult | None = None
    score: YesNoScore | None = None
    same: float | None = None


@dataclass(slots=True, eq=False)
class _OpenAnswer:
    """An answer under way: its question, its state in the decoder, and its text so far."""

    answer: SlotAnswer
    question: PreparedQuestion
    row: DecodeRow
    stream: TextStream
    tokens: int = 0


class AnswerSession:
    """Answers questions about frames with one model, in one slot or in several at once.

    The prompt is system, frames, question, assistant, in this order. Keys and values of the system prompt are computed
    once; those of frames are kept while the same frames come first again, so that another question about them costs
    its own tokens only, and those of a group of pictures while the group goes on.

    `answer`, `answer_chat` and `score_yes_no` use the first slot, `ask` and `step` any. Each slot keeps prompt and
    feedback apart, and no number goes from one to another. Products of several rows round otherwise than those of
    one, so an answer beside others may differ from a lone one where two tokens are as good as equally likely; an answer
    beside no other has the numbers of a session of one slot. Not for several threads at once.
    """

    def __init__(
        self, qwen: QwenVL, options: AnswerOptions | None = None, slots: int = 1, capture: Capture | None = None
    ) -> None:
        """`capture` as `Decoder`. Raises OptionError if the model cannot answer several at once, or `slots` is below
        1."""
        if slots < 1:
            raise OptionError(f"slots must be at least 1, got {slots}")
        if slots > 1:
            check_slots(qwen, slots, 1)
        self.qwen = qwen
        self.options = options or AnswerOptions()
        self.block = SlotBlock(qwen, slots)
        self.slots = [Slot(qwen, self.options, cache) for cache in self.block.caches]
        self._decoder = Decoder(qwen, self.block, capture)
        self._open: dict[int, _OpenAnswer] = {}

    def configure(self, options: AnswerOptions) -> None:
        """Answers by other options from here on; what was kept stays useful."""
        self.options = options
        for slot in self.slots:
            slot.prompts.configure(options)

    def forget(self, slot: int = 0) -> None:
        """Stop, and drop the frames, keys and values of a slot's earlier answers, so that the next one computes
        everything afresh. The memory of keys and values stays, for those of the next answer."""
        self.stop(slot)
        self.slots[slot].forget()

    @property
    def prompts(self) -> PromptBuilder:
        """Prompts of the first slot."""
        return self.slots[0].prompts

    @property
    def vision(self) -> IncrementalEncoder:
        """Cache of `encode="incremental"` of the first slot; with several streams by turns, the caller sets each one's
        own."""
        return self.slots[0].vision

    @vision.setter
    def vision(self, vision: IncrementalEncoder) -> None:
        self.slots[0].vision = vision

    @property
    def last(self) -> AnswerResult:
        """The answer that ended last in the first slot. Raises LookupError before the first one."""
        if (last := self.slots[0].last) is None:
            raise LookupError("no answer has ended yet")
        return last

    @cached_property
    def yes_no(self) -> YesNoTokens:
        """The model's tokens for yes and no. Raises ModelError where it has none."""
        return yes_no_tokens(self.qwen.tokenizer, self.qwen.model_id)

    @cached_property
    def can_glance(self) -> bool:
        """True if the model's attention can be read, as `glance` needs. Costs nothing."""
        return unreadable_layer(self.qwen) is None

    @property
    def open_answers(self) -> int:
        """Number of answers under way."""
        return len(self._open)

    def answer(
        self,
        packets: Packet | Sequence[Packet],
        query: str,
        should_stop: Callable[[], bool] | None = None,
    ) -> Generator[str, None, None]:
        """Pieces of the answer to `query` while it is decoded, about one frame or several, oldest first.

        One frame is shown as an image, each of several under its media time. Packets with a `place` are all frames of a
        group of pictures, of which those that were shown before cost nothing. `should_stop` is asked after every token.
        When the iterator has ended or was closed, `last` is the record of the answer.
        Raises ContextLengthError, NonFiniteError, and OptionError if a packet does not suit `encode`.
        """
        return self._pieces(SlotQuestion(0, packets, query), should_stop)

    def answer_chat(
        self, pieces: Sequence[Ids | Packet], should_stop: Callable[[], bool] | None = None
    ) -> Generator[str, None, None]:
        """Pieces of the answer that follows a whole prompt, given as token ids and frames in order.

        Nothing of it is kept for the next answer. `last`, `should_stop` and errors as in `answer`.
        """
        return self._pieces(SlotQuestion(0, [], "", chat=pieces), should_stop)

    def score_yes_no(self, packets: Packet | Sequence[Packet], question: str) -> YesNoScore:
        """Score whether the model would answer `question` with yes: costs a prefill, and no decoding.

        Frames and errors as in `answer`, whose next question about the same frames costs its own tokens only;
        so does this one. Raises ModelError where the tokenizer has no token for yes or no.
        """
        (answer,) = self.ask([SlotQuestion(0, packets, question, yes_no=True)])
        if answer.error is not None:
            raise answer.error
        assert answer.score is not None
        return answer.score

    def glance(
        self, packets: Packet | Sequence[Packet], query: str, *, timed: bool = False, slot: int = 0
    ) -> GlanceResult:
        """Look at a frame's overview with `query` in mind, before it is known what to show of it.

        The packet, or the last of several in order, holds nothing but an overview; or they are a group of pictures, of
        which nothing more need be shown. Its keys and values stay, so that an
        answer about a packet that begins with the same overview, after the same frames, costs the rest of it only.
        `timed`: the frame will be introduced by its time, as each of several is; always so where several are given.
        Raises as `answer`, OptionError where the last packet is no overview, and ModelError where the model's attention
        cannot be read.
        """
        return self.slots[slot].glance(packets, query, timed=timed)

    def ask(self, questions: Sequence[SlotQuestion]) -> list[SlotAnswer]:
        """Encode and prefill the questions together; returns their answers, in order.

        Yes/no questions have ended, and those whose `previous` answer is the answer again; of the others the first
        token is there, and `step` goes on with them. What fails
        is the `error` of its own answer, and of no other, unless the pass itself fails, such as for want of memory.
        """
        for question in questions:
            self.stop(question.slot)
        answers = [SlotAnswer(question.slot) for question in questions]
        prepared: list[tuple[SlotQuestion, SlotAnswer, PreparedQuestion]] = []
        began_s, encoded = time.perf_counter(), self._encode(questions)
        for question, answer, frame in zip(questions, answers, encoded, strict=True):
            try:
                prepared.append((question, answer, self._prepare(question, frame, began_s)))
            except Exception as error:  # a question that does not fit leaves what the slot keeps
                answer.error, answer.ended = error, True
        if not prepared:
            return answers
        try:
            logits = self._prefill([(question.slot, made) for question, _, made in prepared])
        except Exception as error:
            for _, answer, _ in prepared:
                self._fail(answer, error)
            return answers
        begun = []
        for (question, answer, made), row in zip(prepared, logits, strict=True):
            if question.yes_no:
                self._fallible(answer, self._score, answer, made, row)
            elif question.previous is not None:
                self._fallible(answer, self._compare, answer, made, row, question.previous, question.same_above)
            if not answer.ended:
                begun.append((self._begin(answer, made, row.device), row))
        if begun:
            opened, rows = [one for one, _ in begun], torch.stack([row for _, row in begun])
            self._take(opened, choose_rows([one.row for one in opened], rows, self.options.decoding))
        return answers

    def step(self) -> list[SlotAnswer]:
        """One more token of every answer under way; returns all of them, also those that end with it."""
        opened = list(self._open.values())
        if not opened:
            return []
        for one in opened:
            one.answer.piece = ""
        try:
            choices = self._decoder([one.row for one in opened], self.options.decoding)
        except Exception as error:
            for one in opened:
                self._fail(one.answer, error)
        else:
            self._take(opened, choices)
        return [one.answer for one in opened]

    def stop(self, slot: int) -> None:
        """Free a slot; the answer under way, if any, gets no result."""
        if (opened := self._open.pop(slot, None)) is not None:
            opened.answer.ended = True

    def finish(self, slot: int) -> SlotAnswer:
        """End the answer under way in a slot as it stands; it gets its result. Raises KeyError if there is none."""
        opened = self._open[slot]
        opened.answer.piece = ""
        self._end(opened)
        return opened.answer

    def _pieces(self, question: SlotQuestion, should_stop: Callable[[], bool] | None) -> Generator[str, None, None]:
        """Yield the pieces of one answer."""
        (answer,) = self.ask([question])
        try:
            while True:
                if answer.piece:
                    yield answer.piece
                if answer.ended:
                    break
                if should_stop is not None and should_stop():
                    self.finish(question.slot)
                else:
                    self.step()
        finally:
            if not answer.ended:
                self.finish(question.slot)
        if answer.error is not None:
            raise answer.error

    def _encode(self, questions: Sequence[SlotQuestion]) -> list[EncodedFrame | None]:
        """Frames that are encoded together, by question; None for all others, which are encoded one by one."""
        together = [index for index, question in enumerate(questions) if self._is_packable(question)]
        frames: dict[int, EncodedFrame | None] = {}
        if len(together) > 1:
            packets = [questions[index].packets for index in together]
            frames = dict(zip(together, encode_packed(self.qwen, packets), strict=True))  # type: ignore[arg-type]
        return [frames.get(index) for index in range(len(questions))]

    def _is_packable(self, question: SlotQuestion) -> bool:
        packet = question.packets
        if self.options.encode != "sparse" or not isinstance(packet, TokenPacket) or packet.overview or packet.place:
            return False
        return not self.slots[question.slot].prompts.knows(packet)

    def _prepare(self, question: SlotQuestion, frame: EncodedFrame | None, began_s: float) -> PreparedQuestion:
        slot = self.slots[question.slot]
        if question.vision is not None:
            slot.vision = question.vision
        if question.yes_no:
            _ = self.yes_no, self.qwen.yes_no_calibration
        if question.chat is not None:
            return slot.prepare_chat(question.chat)
        if frame is None or not isinstance(question.packets, TokenPacket):
            return slot.prepare(question.packets, question.query, question.history, at_once=question.yes_no)
        with slot.prompts.provided(question.packets, frame):
            made = slot.prepare(question.packets, question.query, question.history, at_once=question.yes_no)
        made.record.started_s = began_s  # the pass that it shared counts as its own
        return made

    def _prefill(self, prompts: Sequence[tuple[int, PreparedQuestion]]) -> torch.Tensor:
        """The logits [N, vocabulary] after N prompts, which are in their slots from here on."""
        parts = [
            PromptToPrefill(question.prompt.part, self.slots[slot].prompts.cache, question.probe)
            for slot, question in prompts
        ]
        alone = len(parts) == 1 and not self._open
        return prefill_alone(self.qwen, parts[0]) if alone else prefill_packed(self.qwen, parts)

    def _score(self, answer: SlotAnswer, question: PreparedQuestion, logits: torch.Tensor) -> None:
        score = score_logits(logits, self.yes_no, self.qwen.yes_no_calibration)
        question.record.decoded()
        answer.result, answer.score, answer.ended = self.slots[answer.slot].conclude(question), score, True

    def _compare(
        self, answer: SlotAnswer, question: PreparedQuestion, logits: torch.Tensor, previous: str, same_above: float
    ) -> None:
        """Score the earlier answer in one pass, and end with it if it is likely enough; the cache is as before."""
        ids, slot = self.qwen.plain_token_ids(previous), self.slots[answer.slot]
        if len(ids) > self.options.decoding.max_tokens or question.prompt.opens_thoughts:
            return  # no answer of this session, or thoughts come before it
        cut = len(ids) == self.options.decoding.max_tokens
        answer.same = least_probability(
            self.qwen, question.prompt.part, slot.prompts.cache, logits, ids, () if cut else self.qwen.eos_ids
        )
        question.record.compared_tokens = len(ids)
        if answer.same >= same_above:
            question.record.decoded()
            question.record.pieces.append(previous)
            answer.piece, answer.result, answer.ended = previous, slot.conclude(question), True

    def _begin(self, answer: SlotAnswer, question: PreparedQuestion, device: torch.device) -> _OpenAnswer:
        part, options = question.prompt.part, self.options.decoding
        generator = torch.Generator(device).manual_seed(options.seed) if options.temperature else None
        row = DecodeRow(answer.slot, part.tokens, part.position, options.max_tokens - 1, question.probe, generator)
        ids, shown, begun = self.qwen.thought_ids, self.options.thinking == "show", question.prompt.opens_thoughts
        thoughts = None if ids is None else Thoughts(*ids, shown=shown, begun=begun)
        opened = _OpenAnswer(answer, question, row, TextStream(self.qwen.tokenizer, options.stop_strings, thoughts))
        self._open[answer.slot] = opened
        return opened

    def _take(self, opened: Sequence[_OpenAnswer], choices: Sequence[Sequence[int]]) -> None:
        """Take the next token of each answer, and whether its logits were finite."""
        for one, (token, good) in zip(opened, choices, strict=True):
            if not good:
                self._fail(one.answer, not_finite(one.tokens))
                continue
            record = one.question.record
            record.decoded()
            if token in self.qwen.eos_ids:
                self._end(one)
                continue
            record.token_ids.append(token)
            one.tokens += 1
            one.row.token = token
            one.answer.piece = one.stream.push(token)
            if one.tokens == PROBED_TOKENS:
                one.row.probe = None
            if one.answer.piece:
                record.pieces.append(one.answer.piece)
            if one.stream.stopped or one.tokens == self.options.decoding.max_tokens:
                self._end(one)

    def _end(self, one: _OpenAnswer) -> None:
        answer = one.answer
        self._open.pop(answer.slot, None)
        one.question.record.thought_tokens = one.stream.thought_tokens
        if rest := one.stream.finish():
            one.question.record.pieces.append(rest)
            answer.piece += rest
        answer.result = self._fallible(answer, self.slots[answer.slot].conclude, one.question)
        answer.ended = True

    def _fallible(
        self, answer: SlotAnswer, do: Callable[Given, Made], *given: Given.args, **named: Given.kwargs
    ) -> Made | None:
        """What `do` returns; if it fails, None, and the error is the answer's."""
        try:
            return do(*given, **named)
        except Exception as error:
            self._fail(answer, error)
            return None

    def _fail(self, answer: SlotAnswer, error: Exception) -> None:
        """An answer fails, and its slot keeps nothing: that may be half written, or hold NaN."""
        self._open.pop(answer.slot, None)
        answer.error, answer.ended = error, True
        self.slots[answer.slot].prompts.cache.reset()


class Decoder:
    """Next tokens of the answers under way: by captured steps on a GPU, one call after another elsewhere, for families
    with recurrent layers, and if capturing fails.

    `capture`: what makes a step repeatable; None: a CUDA graph on a GPU, and elsewhere nothing.
    """

    def __init__(self, qwen: QwenVL, block: SlotBlock, capture: Capture | None = None) -> None:
        if qwen.family.recurrent:
            capture = None
        elif capture is None and qwen.device.type == "cuda" and qwen.decodes_plainly:
            from arr_coc.qwen.batching.captured import cuda_graph

            capture = cuda_graph
        self._step = DecodeStep(qwen, block)
        self._captured: CapturedStep | None = None
        if capture is not None:
            from arr_coc.qwen.batching.captured import CapturedStep

            self._captured = CapturedStep(qwen, block, capture)

    def __call__(self, rows: Sequence[DecodeRow], options: Decoding) -> list[list[int]]:
        """Add the token of each row. Returns for each the next one, and 1 if its logits are finite, else 0; the
        device is waited for once."""
        if self._captured is not None:
            try:
                return self._captured(rows, options)
            except RuntimeError as error:
                reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning("decoding continues without captured graphs: %s", reason)
                self._captured = None
        return choose_rows(rows, self._step(rows), options)


def choose_rows(rows: Sequence[DecodeRow], logits: torch.Tensor, options: Decoding) -> list[list[int]]:
    """The tokens that follow logits [N, vocabulary], as `Decoder` gives them."""
    if options.temperature == 0:
        choices = likeliest(logits)
    else:
        drawn = [choose_finite(own, options, row.generator) for row, own in zip(rows, logits, strict=True)]
        choices = torch.stack([torch.stack(pair) for pair in drawn])
    found: list[list[int]] = choices.tolist()
    return found
