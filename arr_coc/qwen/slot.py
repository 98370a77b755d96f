"""One slot of a session: its prompt, its caches, and the results of its answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.attention import AttentionProbe, check_readable, feedback_from, merge_feedback
from arr_coc.qwen.batching.packed import PromptBranch, PromptToPrefill, prefill_packed
from arr_coc.qwen.decode import prefill
from arr_coc.qwen.encoding import IncrementalEncoder, Packet, VisionStats
from arr_coc.qwen.flops import Costs, Operations
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.pieces import Ids
from arr_coc.qwen.prompt import PreparedPrompt, PromptBuilder, PromptCache, is_group
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.read_ahead import ReadAhead
from arr_coc.types import Feedback, FrameStamp, TokenPacket, Work

if TYPE_CHECKING:
    from arr_coc.qwen.penalties import TokenPenalties


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """One answer.

    Times of its work count from the call: encoding ends with the encoded frames, prefill with the first token. The
    device is not synchronised in between, so on a GPU much of encoding counts as prefill.
    """

    text: str
    work: Work
    operations: Operations
    """Operations of the answer, and of the same answer from all tokens."""
    first_token_ms: float
    """Time from the call to the first token, in milliseconds."""
    feedback: Feedback | None
    """None if none was requested."""
    stamps: tuple[FrameStamp, ...]
    """The frames of the prompt, in order."""
    regions: npt.NDArray[np.int32]
    """Regions shown of the newest frame, int32 [K, 3]."""
    vision: VisionStats | None = None
    """Statistics of incremental encoding; None if frames were encoded otherwise."""
    token_ids: tuple[int, ...] = ()
    """Tokens of the text, without the end token."""
    thought_tokens: int = 0
    """Number of these that are thoughts before the answer."""

    def is_lost_in_thoughts(self, max_tokens: int) -> bool:
        """Return True if hidden thoughts took all of the `max_tokens` of the answer, so that it is empty."""
        return not self.text and len(self.token_ids) == self.thought_tokens == max_tokens


@dataclass(frozen=True, slots=True)
class GlanceResult:
    """Result of a glance: the attention of a question to an overview. An answer from all tokens needs no glance, so
    the full operations of its work are 0."""

    feedback: Feedback
    """Attention of the prompt's last token."""
    work: Work
    prompt_tokens: int
    """Tokens of the prompt, of which some had to be prefilled."""

    @property
    def took_ms(self) -> float:
        """Total time in milliseconds."""
        return self.work.encode_ms + self.work.prefill_ms


@dataclass(slots=True)
class AnswerTimer:
    """Record of an answer in progress. Times are `time.perf_counter()` seconds. `dropped_tokens` were decoded behind
    those of `token_ids`, and repeated them."""

    started_s: float = field(default_factory=time.perf_counter)
    encoded_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    compared_tokens: int = 0
    thought_tokens: int = 0
    dropped_tokens: int = 0

    def mark_encoded(self) -> None:
        """Record that the frames are encoded."""
        self.encoded_s = time.perf_counter()

    def mark_step(self) -> None:
        """Record a step of the decoder; the first may also end the answer."""
        self.last_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = self.last_s

    def result(
        self,
        prompt: PreparedPrompt,
        feedback: Feedback | None,
        kept_bytes: int,
        vision: VisionStats | None,
        operations: Operations,
    ) -> AnswerResult:
        """Return the result of the answer so far.

        Args:
            prompt: Its prompt.
            feedback: Feedback of the answer, if it was requested.
            kept_bytes: Memory of the cache, without the bytes that `vision` reports.
            vision: Statistics of incremental encoding; None if frames were encoded otherwise.
            operations: Operations of the answer.
        """
        if self.first_s is None:
            first_s = time.perf_counter()
        else:
            first_s = self.first_s
        return AnswerResult(
            text="".join(self.pieces),
            work=Work(
                tokens_used=prompt.tokens_used,
                text_tokens=len(self.token_ids),
                encode_ms=(self.encoded_s - self.started_s) * 1e3,
                prefill_ms=(first_s - self.encoded_s) * 1e3,
                decode_ms=(max(self.last_s, first_s) - first_s) * 1e3,
                frames=len(prompt.stamps),
                oldest_frame_ns=min((stamp.media_ns for stamp in prompt.stamps), default=None),
                kept_bytes=kept_bytes + (vision.held_bytes if vision else 0),
                flops=operations.flops,
                full_flops=operations.full_flops,
                prefilled_tokens=prompt.prefilled_tokens,
                appended_tokens=prompt.appended_tokens,
                memory_tokens=prompt.memory_tokens,
                looped=self.dropped_tokens > 0,
            ),
            operations=operations,
            first_token_ms=(first_s - self.started_s) * 1e3,
            feedback=feedback,
            stamps=prompt.stamps,
            regions=prompt.regions.int().cpu().numpy(),
            vision=vision,
            token_ids=tuple(self.token_ids),
            thought_tokens=self.thought_tokens,
        )


@dataclass(frozen=True, slots=True)
class PreparedQuestion:
    """A question with its prompt: its frames, the incremental encoder of their stream, the record of its answer, and
    the probe of the decoder's attention, if feedback is enabled. `checks`: further yes/no questions about the frames,
    read as `branches` in the same pass. `text`: what follows the frames, with history and instruction; or `chat`: the
    whole prompt."""

    prompt: PreparedPrompt
    frames: Sequence[Packet]
    query: str
    vision: IncrementalEncoder
    record: AnswerTimer
    probe: AttentionProbe | None
    checks: Sequence[str] = ()
    branches: Sequence[PromptBranch] = ()
    text: str = ""
    chat: Sequence[Ids | Packet] | None = None


def prefill_alone(qwen: QwenVL, prompt: PromptToPrefill) -> torch.Tensor:
    """Prefill one prompt as `prefill_packed` does, through the stock model's forward, for any decoder. With recurrent
    layers that would take a pass for each mark, so a decoder that `decodes_plainly` uses `prefill_packed`."""
    if prompt.branches or (prompt.cache.recurrent_layers and qwen.decodes_plainly):
        return prefill_packed(qwen, [prompt])
    return prefill(qwen, prompt.part, prompt.cache, prompt.probe)[None]


class Slot:
    """Slot of one prompt and its answer, with caches for the next one.

    `vision` is the cache of `encode="incremental"`; a caller that alternates between streams sets the cache of each.
    `last` is the last ended answer.
    """

    def __init__(self, qwen: QwenVL, options: AnswerOptions, cache: PromptCache) -> None:
        self.qwen = qwen
        self.prompts = PromptBuilder(qwen, options, cache)
        self.last: AnswerResult | None = None

    @cached_property
    def _costs(self) -> Costs:
        return Costs(self.qwen)

    def forget(self) -> None:
        """Drop the frames, keys and values of earlier answers. The memory of keys and values stays allocated."""
        self.prompts.cache.rewind([])
        self.vision.clear()

    @property
    def options(self) -> AnswerOptions:
        return self.prompts.options

    @property
    def vision(self) -> IncrementalEncoder:
        return self.prompts.vision

    @vision.setter
    def vision(self, vision: IncrementalEncoder) -> None:
        self.prompts.vision = vision

    def glance(self, packets: Packet | Sequence[Packet], query: str, *, timed: bool = False) -> GlanceResult:
        """Measure what the model attends to for `query` in a frame's overview, or in a group of pictures.

        Arguments and errors as `AnswerSession.glance`.
        """
        if isinstance(packets, Packet):
            frames = [packets]
        else:
            frames = list(packets)
        newest = frames[-1] if frames else None
        if not isinstance(newest, TokenPacket) or not (newest.is_glance or is_group(frames)):
            raise OptionError("a glance needs an overview of the frame, and nothing else of it")
        check_readable(self.qwen)
        self.prompts.check_fits(frames, query)
        record = AnswerTimer()
        try:
            prompt = self.prompts.make_glance(frames, query, record.mark_encoded, timed=timed or len(frames) > 1)
            cache = self.prompts.cache
            probe = AttentionProbe(self.qwen, cache.kv, prompt.newest, glance=True)
            prefill_alone(self.qwen, PromptToPrefill(prompt.part, cache, probe))
            feedback = feedback_from(prompt, probe, self.prompts.query_embedding(query), self.qwen.embedding_axes)
            record.mark_step()
        except Exception:
            self.prompts.cache.reset()
            raise
        operations = Operations(self._operations(prompt, frames, 0).parts)
        result = record.result(prompt, feedback, 0, None, operations)
        tokens_used = prompt.appended_tokens if is_group(frames) else newest.overview
        return GlanceResult(feedback, replace(result.work, tokens_used=tokens_used), prompt.part.tokens)

    def read_ahead(self, packets: Sequence[TokenPacket]) -> ReadAhead:
        """Return the reading of a group's last packet before it is asked about, in steps.

        Nothing changes before `ReadAhead.commit`; then an answer about the same packets costs its question only.

        Args:
            packets: All packets of a group of pictures that is kept up to date. The cache holds all but the last one,
                or that is the key frame of another group.

        Raises:
            ContextLengthError: The group does not fit the model's context.
            OptionError: The packets are no such group, or the model is spread over several devices.
        """
        place = packets[-1].place
        if not self.qwen.decodes_plainly or not is_group(packets) or place is None or place.frames > 1:
            raise OptionError("only a picture that is kept up to date is read ahead, by a model on one device")
        self.prompts.check_fits(packets, "")
        return ReadAhead(self.qwen, self.prompts, packets)

    def prepare(
        self,
        packets: Packet | Sequence[Packet],
        query: str,
        history: str = "",
        instruction: str = "",
        checks: Sequence[str] = (),
    ) -> PreparedQuestion:
        """Encode the frames of a question and return it, not yet prefilled. Raises as `AnswerSession.answer`.

        The prefill adds its marks to the cache; `conclude` must be called before the next question of this slot.

        Args:
            packets: As in `AnswerSession.answer`.
            query: The question.
            history: Text before the question.
            instruction: Text behind the question.
            checks: Yes/no questions, of which `query` is the first. With checks, the answer begins without thoughts.
        """
        if isinstance(packets, Packet):
            frames = [packets]
        else:
            frames = list(packets)
        if not frames:
            raise OptionError("there is no frame to answer about")
        if instruction:
            text = f"{history}{query}\n{instruction}"
        else:
            text = history + query
        for question in checks or (text,):
            self.prompts.check_fits(frames, question)
        record = AnswerTimer()
        vision = self.vision  # the caller may have set another stream's by the end of the answer
        try:
            prompt = self.prompts.make(frames, text, record.mark_encoded, at_once=bool(checks))
        except Exception:
            self.prompts.cache.reset()
            raise
        branches: list[PromptBranch] = []
        if self.qwen.decodes_plainly and not self.prompts.cache.recurrent_layers:
            branches = [
                PromptBranch(self.prompts.branch(prompt, question), self._probe(prompt)) for question in checks[1:]
            ]
        return PreparedQuestion(prompt, frames, query, vision, record, self._probe(prompt), checks, branches, text)

    def prepare_chat(self, pieces: Sequence[Ids | Packet]) -> PreparedQuestion:
        """Prepare a whole prompt, given as token ids and frames in order, as `prepare` does a question. The next prompt
        reuses nothing of it."""
        self.prompts.check_chat(pieces)
        record = AnswerTimer()
        try:
            prompt = self.prompts.make_chat(pieces, record.mark_encoded)
        except Exception:
            self.prompts.cache.reset()
            raise
        frames = [piece for piece in pieces if isinstance(piece, Packet)]
        return PreparedQuestion(prompt, frames, "", self.vision, record, self._probe(prompt), chat=pieces)

    def penalties(self, question: PreparedQuestion, logits: torch.Tensor) -> TokenPenalties | None:
        """Return the penalties of an answer that begins with these logits [vocabulary]; None if it has none."""
        if not self.prompts.has_penalties:
            return None
        from arr_coc.qwen.penalties import TokenPenalties

        ids: Sequence[int] = ()
        if self.options.decoding.reads_prompt and question.chat is not None:
            ids = self.prompts.all_chat_ids(question.chat)
        elif self.options.decoding.reads_prompt:
            ids = self.prompts.all_ids(question.frames, question.text)
        return TokenPenalties(self.options.decoding, ids, len(logits), logits.device)

    def conclude(self, question: PreparedQuestion) -> AnswerResult:
        """Return the result of a question that was answered or stopped, and set `last` to it."""
        prompt = question.prompt
        record = question.record
        if self.options.encode == "incremental":
            encoded = question.vision.report
        else:
            encoded = None
        feedback = self.feedback_of(question)
        decoded_tokens = len(record.token_ids) + record.dropped_tokens
        operations = self._operations(prompt, question.frames, decoded_tokens, record.compared_tokens)
        self.last = record.result(prompt, feedback, self.prompts.cache.bytes, encoded, operations)
        return self.last

    def feedback_of(self, question: PreparedQuestion) -> Feedback | None:
        """Return the feedback of a question and its branches, before the cache is used for anything else; None if none
        was requested."""
        if question.probe is None:
            return None
        probes = [question.probe, *(branch.probe for branch in question.branches if branch.probe is not None)]
        queries = [question.query, *question.checks[1:]]
        axes = self.qwen.embedding_axes
        return merge_feedback(
            [
                feedback_from(question.prompt, probe, self.prompts.query_embedding(query), axes)
                for probe, query in zip(probes, queries, strict=False)
            ]
        )

    def _operations(
        self, prompt: PreparedPrompt, packets: Sequence[Packet], answer_tokens: int, compared_tokens: int = 0
    ) -> Operations:
        """Return the operations of an answer to this prompt, including compared tokens, and of one from all tokens of
        its frames."""
        tiles = [packet.grid.tiles for packet in packets]
        if is_group(packets):
            # Tokens read again after a loss do not count, so an interrupted run counts as an uninterrupted one.
            new = prompt.new_tokens
            new_visual = prompt.new_visual_tokens
            decoded_tokens = answer_tokens + compared_tokens
            after = self._costs.answer_after(prompt.part.tokens - new, new, new_visual, decoded_tokens)
            tiles = tiles[-1:] * len(prompt.stamps)
            full = self._costs.answer("full", tiles, tiles, new - new_visual, answer_tokens or compared_tokens)
            return Operations(after, full.total)
        text_tokens = prompt.part.tokens - prompt.tokens_used
        return self._costs.work(
            self.options.encode, prompt.segments, tiles, text_tokens, answer_tokens, compared_tokens
        )

    def _probe(self, prompt: PreparedPrompt) -> AttentionProbe | None:
        """Return a probe of the decoder's attention to the newest frame; None if feedback is off."""
        if not self.options.feedback:
            return None
        return AttentionProbe(self.qwen, self.prompts.cache.kv, prompt.newest)
