"""`BatchSession`: answers and yes/no scores of several clients at once, with one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.attention import PROBED_TOKENS
from arr_coc.qwen.batching.captured import BatchDecoder
from arr_coc.qwen.batching.encoding import encode_packed
from arr_coc.qwen.batching.packed import PromptToPrefill, prefill_packed
from arr_coc.qwen.batching.slots import SlotBlock, check_slots
from arr_coc.qwen.batching.step import DecodeRow
from arr_coc.qwen.cuda_graph import Capture
from arr_coc.qwen.decode import TextStream, choose_finite, not_finite, prefill
from arr_coc.qwen.encoding import EncodedFrame, IncrementalEncoder, Packet
from arr_coc.qwen.frame_window import FrameWindow
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerResult, AnswerSession, PreparedQuestion
from arr_coc.qwen.yes_no import YesNoScore, score_logits
from arr_coc.types import TokenPacket

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class SlotQuestion:
    """A question about frames for a slot in which nothing is spoken; window as in `AnswerSession.answer`.

    `vision`: what incremental encoding keeps for this client. `yes_no`: it is scored, and nothing is decoded.
    """

    slot: int
    packets: Packet | Sequence[Packet]
    query: str
    window: FrameWindow | None = None
    vision: IncrementalEncoder | None = None
    yes_no: bool = False


@dataclass(slots=True)
class SlotAnswer:
    """Answer of one slot, while it is made.

    `piece`: the text that the last step completed; may be empty. `ended`: nothing more comes; then `result` tells of
    it, or `error` says why there is none. `score`: of a yes/no question, which ends at once.
    """

    slot: int
    piece: str = ""
    ended: bool = False
    error: Exception | None = None
    result: AnswerResult | None = None
    score: YesNoScore | None = None


@dataclass(slots=True)
class _Speaking:
    """An answer on its way: the token that goes in next, and all that it needs of its own."""

    answer: SlotAnswer
    question: PreparedQuestion
    row: DecodeRow
    stream: TextStream
    generator: torch.Generator | None
    token: int = 0
    tokens: int = 0


class BatchSession:
    """Answers questions about frames with one model, in several slots at once.

    Each slot keeps prompt, window and feedback apart, as an `AnswerSession` does, and no number goes from one slot to
    another. Products of several rows round otherwise than those of one, so an answer beside others may differ from
    a lone one where two tokens are as good as equally likely; who asks while no other answer is under way gets the
    very numbers of an `AnswerSession`. Not for several threads at once.
    """

    def __init__(
        self, qwen: QwenVL, options: AnswerOptions | None = None, slots: int = 8, capture: Capture | None = None
    ) -> None:
        """`capture` as `BatchDecoder`. Raises OptionError where the model cannot answer several at once, or `slots` is
        below 1."""
        if slots < 1:
            raise OptionError(f"slots must be at least 1, got {slots}")
        check_slots(qwen, slots, 1)
        self.qwen = qwen
        self.options = options or AnswerOptions()
        self.block = SlotBlock(qwen, slots)
        self._sessions = [AnswerSession(qwen, self.options, cache) for cache in self.block.caches]
        self._step = BatchDecoder(qwen, self.block, capture)
        self._speaking: dict[int, _Speaking] = {}

    @property
    def slots(self) -> int:
        return self.block.slots

    @property
    def speaking(self) -> int:
        """Number of answers under way."""
        return len(self._speaking)

    def session(self, slot: int) -> AnswerSession:
        """The session of a slot, for what is done alone, such as a glance, while nothing is spoken in it."""
        return self._sessions[slot]

    def ask(self, questions: Sequence[SlotQuestion]) -> list[SlotAnswer]:
        """Encode and prefill the questions together; returns their answers, in order.

        Yes/no questions have ended; of the others the first token is there, and `step` goes on with them. What fails
        is the `error` of its own answer, and of no other, unless the pass itself fails, such as for want of memory.
        """
        answers = [SlotAnswer(question.slot) for question in questions]
        prepared: list[tuple[SlotQuestion, SlotAnswer, PreparedQuestion]] = []
        began_s, encoded = time.perf_counter(), self._encode(questions)
        for question, answer, frame in zip(questions, answers, encoded, strict=True):
            made = self._fallible(answer, self._prepare, question, frame, began_s)
            if made is not None:
                prepared.append((question, answer, made))
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
            elif (speaking := self._fallible(answer, self._begin, answer, made)) is not None:
                begun.append((speaking, row))
        if begun:
            self._take([speaking for speaking, _ in begun], torch.stack([row for _, row in begun]))
        return answers

    def step(self) -> list[SlotAnswer]:
        """One more token of every answer under way; returns all of them, also those that end with it."""
        speaking = list(self._speaking.values())
        if not speaking:
            return []
        for one in speaking:
            one.answer.piece = ""
        try:
            logits = self._step([one.row for one in speaking], [one.token for one in speaking])
        except Exception as error:
            for one in speaking:
                self._fail(one.answer, error)
        else:
            self._take(speaking, logits)
        return [one.answer for one in speaking]

    def stop(self, slot: int) -> None:
        """Say no more in a slot; the answer under way, if any, gets no result."""
        if (speaking := self._speaking.pop(slot, None)) is not None:
            speaking.answer.ended = True

    def finish(self, slot: int) -> SlotAnswer:
        """End the answer under way in a slot as it stands; it gets its result. Raises KeyError where there is none."""
        speaking = self._speaking[slot]
        speaking.answer.piece = ""
        self._end(speaking)
        return speaking.answer

    def forget(self, slot: int) -> None:
        """Stop, and drop what a slot keeps of its prompt."""
        self.stop(slot)
        self._sessions[slot].forget()

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
        if self.options.encode != "sparse" or not isinstance(packet, TokenPacket) or packet.overview:
            return False
        return not self._sessions[question.slot].prompts.knows(packet, question.window)

    def _prepare(self, question: SlotQuestion, frame: EncodedFrame | None, began_s: float) -> PreparedQuestion:
        session = self._sessions[question.slot]
        if question.vision is not None:
            session.vision = question.vision
        if question.yes_no:
            _ = session.yes_no, self.qwen.yes_no_calibration
        if frame is None or not isinstance(question.packets, TokenPacket):
            return session.prepare(question.packets, question.query, question.window)
        with session.prompts.provided(question.packets, frame):
            made = session.prepare(question.packets, question.query, question.window)
        made.record.started_s = began_s  # the pass that it shared counts as its own
        return made

    def _prefill(self, prompts: Sequence[tuple[int, PreparedQuestion]]) -> torch.Tensor:
        """The logits [N, vocabulary] after N prompts, which are in their slots from here on."""
        caches = [self._sessions[slot].prompts.cache for slot, _ in prompts]
        if len(prompts) == 1 and not self._speaking:
            (_, question), (cache,) = prompts[0], caches
            if question.probe is None:
                logits = prefill(self.qwen, question.prompt.part, cache.kv)[None]
            else:
                with question.probe:
                    logits = prefill(self.qwen, question.prompt.part, cache.kv)[None]
        else:
            packed = [
                PromptToPrefill(question.prompt.part, cache.kv, None if question.probe is None else question.probe.see)
                for (_, question), cache in zip(prompts, caches, strict=True)
            ]
            logits = prefill_packed(self.qwen, packed)
        for (_, question), cache in zip(prompts, caches, strict=True):
            cache.marks += question.prompt.marks
        return logits

    def _score(self, answer: SlotAnswer, question: PreparedQuestion, logits: torch.Tensor) -> None:
        session = self._sessions[answer.slot]
        score = score_logits(logits, session.yes_no, self.qwen.yes_no_calibration)
        question.record.decoded()
        answer.result, answer.score, answer.ended = session.conclude(question), score, True

    def _begin(self, answer: SlotAnswer, question: PreparedQuestion) -> _Speaking:
        part, options = question.prompt.part, self.options.decoding
        watch = None if question.probe is None else question.probe.see
        generator = torch.Generator(self.qwen.device).manual_seed(options.seed) if options.temperature else None
        speaking = _Speaking(
            answer,
            question,
            DecodeRow(answer.slot, part.tokens, part.position, watch),
            TextStream(self.qwen.tokenizer, options.stop_strings),
            generator,
        )
        self._step.reserve(part.tokens + options.max_tokens)
        self._speaking[answer.slot] = speaking
        return speaking

    def _take(self, speaking: Sequence[_Speaking], logits: torch.Tensor) -> None:
        """Take the next token of each answer from its logits [N, vocabulary]; waits for the device once."""
        options = self.options.decoding
        if options.temperature:
            chosen = [choose_finite(row, options, one.generator) for one, row in zip(speaking, logits, strict=True)]
            found = torch.stack([torch.stack(pair) for pair in chosen]).tolist()
        else:
            finite = logits.isfinite().all(dim=-1)
            found = torch.stack([logits.argmax(dim=-1), finite.long()], dim=-1).tolist()
        for one, (token, good) in zip(speaking, found, strict=True):
            if not good:
                self._fail(one.answer, not_finite(one.tokens))
            elif token in self.qwen.eos_ids:
                one.question.record.decoded()
                self._end(one)
            else:
                self._push(one, token)

    def _push(self, one: _Speaking, token: int) -> None:
        record = one.question.record
        record.decoded()
        record.token_ids.append(token)
        one.tokens += 1
        one.token = token
        one.answer.piece = one.stream.push(token)
        if one.tokens == PROBED_TOKENS:
            one.row.watch = None
        if one.answer.piece:
            record.pieces.append(one.answer.piece)
        if one.stream.stopped or one.tokens == self.options.decoding.max_tokens:
            self._end(one)

    def _end(self, one: _Speaking) -> None:
        answer = one.answer
        self._speaking.pop(answer.slot, None)
        if rest := one.stream.finish():
            one.question.record.pieces.append(rest)
            answer.piece += rest
        answer.result = self._fallible(answer, self._sessions[answer.slot].conclude, one.question)
        answer.ended = True

    def _fallible(
        self, answer: SlotAnswer, do: Callable[Given, Made], *given: Given.args, **named: Given.kwargs
    ) -> Made | None:
        """What `do` returns; where it fails, None, and the error is the answer's."""
        try:
            return do(*given, **named)
        except Exception as error:
            self._fail(answer, error)
            return None

    def _fail(self, answer: SlotAnswer, error: Exception) -> None:
        """An answer fails, and its slot keeps nothing: that may be half written, or hold NaN."""
        self._speaking.pop(answer.slot, None)
        answer.error, answer.ended = error, True
        self._sessions[answer.slot].prompts.forget()
