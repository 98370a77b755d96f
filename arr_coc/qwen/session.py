"""`AnswerSession`: answers and yes/no scores of one model, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.attention import AttentionProbe, check_readable, feedback_from, unreadable_layer
from arr_coc.qwen.cuda_graph import DecodeRunner
from arr_coc.qwen.decode import TextStream, prefill
from arr_coc.qwen.encoding import IncrementalEncoder, Packet, VisionStats
from arr_coc.qwen.flops import Costs, Work
from arr_coc.qwen.frame_window import FrameWindow, Ids
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.prompt import PreparedPrompt, PromptBuilder, PromptCache
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.yes_no import YesNoScore, YesNoTokens, score_logits, yes_no_tokens
from arr_coc.types import Feedback, FrameStamp, TokenPacket


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """One answer.

    `tokens_used` are visual tokens, `text_tokens` those of the answer and `token_ids` their ids, without the one that
    ends it; `prefilled_tokens` had to be computed before it,
    the rest of the prompt was kept. Times in milliseconds: `encode_ms` for the frames, `prefill_ms` from there to
    the first token, `decode_ms` from there to the last one; `first_token_ms` counts from the call. No device is waited
    for in between, so on a GPU much of encoding counts as prefill.

    `shown`: the frames that it speaks of, in the prompt's order; `regions` int32 [K, 3]: what was shown of the newest.
    `feedback` is None where none was wanted. `kept_bytes`: what frames, keys and values take in memory after it.
    `work`: the operations that it took, and that all tokens would have. `vision`: what incremental encoding took and
    keeps, where that is how frames were encoded.
    """

    text: str
    text_tokens: int
    tokens_used: int
    prefilled_tokens: int
    encode_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    feedback: Feedback | None
    shown: tuple[FrameStamp, ...]
    regions: npt.NDArray[np.int32]
    kept_bytes: int
    work: Work
    vision: VisionStats | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GlanceResult:
    """A look at an overview with a question in mind.

    `feedback`: what the prompt's last token looks at; `tokens_used`: the overview's. Of its `prompt_tokens` so many had
    to be prefilled. Times in milliseconds, as of an
    answer: `encode_ms` for what had to be encoded, `prefill_ms` from there to the attention. `work`: the operations
    that it took; its `full_flops` are 0, as an answer from all tokens needs no glance.
    """

    feedback: Feedback
    tokens_used: int
    encode_ms: float
    prefill_ms: float
    work: Work
    prompt_tokens: int
    prefilled_tokens: int

    @property
    def took_ms(self) -> float:
        """All of it."""
        return self.encode_ms + self.prefill_ms


@dataclass(slots=True)
class AnswerTimer:
    """Notes taken while an answer is made. Times are `time.perf_counter()` seconds."""

    started_s: float = field(default_factory=time.perf_counter)
    encoded_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def encoded(self) -> None:
        """The frames are encoded."""
        self.encoded_s = time.perf_counter()

    def decoded(self) -> None:
        """One more step of the decoder is done; the first may also be the answer's end."""
        self.last_s = time.perf_counter()
        if self.first_s is None:
            self.first_s = self.last_s

    def result(
        self, prompt: PreparedPrompt, feedback: Feedback | None, kept_bytes: int, vision: VisionStats | None, work: Work
    ) -> AnswerResult:
        """The answer to a prompt as it stands; `kept_bytes` beside what `vision` tells of."""
        first_s = time.perf_counter() if self.first_s is None else self.first_s
        return AnswerResult(
            text="".join(self.pieces),
            text_tokens=len(self.token_ids),
            token_ids=tuple(self.token_ids),
            tokens_used=prompt.tokens_used,
            prefilled_tokens=prompt.prefilled_tokens,
            encode_ms=(self.encoded_s - self.started_s) * 1e3,
            prefill_ms=(first_s - self.encoded_s) * 1e3,
            first_token_ms=(first_s - self.started_s) * 1e3,
            decode_ms=(max(self.last_s, first_s) - first_s) * 1e3,
            feedback=feedback,
            shown=prompt.stamps,
            regions=prompt.regions.int().cpu().numpy(),
            kept_bytes=kept_bytes + (vision.held_bytes if vision else 0),
            vision=vision,
            work=work,
        )


@dataclass(frozen=True, slots=True)
class PreparedQuestion:
    """A question whose prompt is made: the frames that came with it, what is kept for their stream, notes about its
    answer, and the probe of the decoder's attention, where feedback is wanted."""

    prompt: PreparedPrompt
    frames: Sequence[Packet]
    query: str
    window: FrameWindow | None
    vision: IncrementalEncoder
    record: AnswerTimer
    probe: AttentionProbe | None


@dataclass(frozen=True, slots=True)
class _PrefilledPrompt:
    """A question whose prompt is in the cache, and the logits [vocabulary] after it."""

    question: PreparedQuestion
    logits: torch.Tensor


class AnswerSession:
    """Answers questions about frames with one model, one at a time.

    The prompt is system, frames, question, assistant, in this order. Keys and values of the system prompt are computed
    once; those of frames are kept while the same frames come first again, so that another question about them costs
    its own tokens only. A window's frames are kept wherever they stand. Not for several threads at once.
    """

    def __init__(self, qwen: QwenVL, options: AnswerOptions | None = None, cache: PromptCache | None = None) -> None:
        """`cache` holds keys and values, where they are not to lie in memory of its own."""
        self.qwen = qwen
        self.prompts = PromptBuilder(qwen, options or AnswerOptions(), cache)
        self._decoder = DecodeRunner(qwen)
        self._last: AnswerResult | None = None

    def configure(self, options: AnswerOptions) -> None:
        """Answers by other options from here on; what was kept stays useful."""
        self.prompts.configure(options)

    def forget(self) -> None:
        """Drops the frames, keys and values of earlier answers, so that the next one computes everything afresh. The
        memory of keys and values stays, for those of the next answer."""
        self.prompts.cache.rewind([])
        self.prompts.listed = []
        self.vision.clear()

    @property
    def options(self) -> AnswerOptions:
        return self.prompts.options

    @property
    def vision(self) -> IncrementalEncoder:
        """Cache of `encode="incremental"`; with several streams by turns, the caller sets each one's own."""
        return self.prompts.vision

    @vision.setter
    def vision(self, vision: IncrementalEncoder) -> None:
        self.prompts.vision = vision

    @property
    def last(self) -> AnswerResult:
        """The answer that ended last. Raises LookupError before the first one."""
        if self._last is None:
            raise LookupError("no answer has ended yet")
        return self._last

    @cached_property
    def yes_no(self) -> YesNoTokens:
        """The model's tokens for yes and no. Raises ModelError where it has none."""
        return yes_no_tokens(self.qwen.tokenizer, self.qwen.model_id)

    @cached_property
    def can_glance(self) -> bool:
        """True if the model's attention can be read, as `glance` needs. Costs nothing."""
        return unreadable_layer(self.qwen) is None

    @cached_property
    def _costs(self) -> Costs:
        return Costs(self.qwen)

    def answer(
        self,
        packets: Packet | Sequence[Packet],
        query: str,
        should_stop: Callable[[], bool] | None = None,
        window: FrameWindow | None = None,
    ) -> Generator[str, None, None]:
        """Pieces of the answer to `query` while it is decoded, about one frame or several, oldest first.

        One frame is shown as an image, each of several under its media time. With a `window` the packets, of which
        there may be none, enter it, and what it picks is shown. `should_stop` is asked after every token.
        When the iterator has ended or was closed, `last` tells about the answer; what entered a window stays there.
        Raises ContextLengthError, NonFiniteError, and OptionError where a packet does not suit `encode` or a window
        does not fit the memory.
        """
        with self._asked(self.prepare(packets, query, window)) as asked:
            yield from self._speak(asked, should_stop)

    def answer_chat(
        self, pieces: Sequence[Ids | Packet], should_stop: Callable[[], bool] | None = None
    ) -> Generator[str, None, None]:
        """Pieces of the answer that follows a whole prompt, given as token ids and frames in order.

        Nothing of it is kept for the next answer. `last`, `should_stop` and errors as in `answer`.
        """
        self.prompts.check_chat(pieces)
        record = AnswerTimer()
        try:
            prompt = self.prompts.make_chat(pieces, record.encoded)
        except Exception:
            self.prompts.forget()
            raise
        frames = [piece for piece in pieces if isinstance(piece, Packet)]
        question = PreparedQuestion(prompt, frames, "", None, self.vision, record, self._probe(prompt))
        with self._asked(question) as asked:
            yield from self._speak(asked, should_stop)

    def score_yes_no(
        self, packets: Packet | Sequence[Packet], question: str, window: FrameWindow | None = None
    ) -> YesNoScore:
        """Score whether the model would answer `question` with yes: costs a prefill, and no decoding.

        Frames, window and errors as in `answer`, whose next question about the same frames costs its own tokens only;
        so does this one. Raises ModelError where the tokenizer has no token for yes or no.
        """
        tokens, calibration = self.yes_no, self.qwen.yes_no_calibration
        with self._asked(self.prepare(packets, question, window)) as asked:
            found = score_logits(asked.logits, tokens, calibration)
            asked.question.record.decoded()
        return found

    def glance(self, packets: Packet | Sequence[Packet], query: str, *, timed: bool = False) -> GlanceResult:
        """Look at a frame's overview with `query` in mind, before it is known what to show of it.

        The packet, or the last of several in order, holds nothing but an overview. Its keys and values stay, so that an
        answer about a packet that begins with the same overview, after the same frames, costs the rest of it only.
        `timed`: the frame will be introduced by its time, as each of several is; always so where several are given.
        Raises as `answer`, OptionError where the last packet is no overview, and ModelError where the model's attention
        cannot be read.
        """
        frames = [packets] if isinstance(packets, Packet) else list(packets)
        overview = frames[-1] if frames else None
        if not isinstance(overview, TokenPacket) or not overview.is_glance:
            raise OptionError("a glance needs an overview of the frame, and nothing else of it")
        check_readable(self.qwen)
        self.prompts.check_fits(frames, query, None)
        record = AnswerTimer()
        try:
            prompt = self.prompts.make_glance(frames, query, record.encoded, timed=timed or len(frames) > 1)
            kv = self.prompts.cache.kv
            with AttentionProbe(self.qwen, kv, prompt.places[-1], glance=True) as probe:
                prefill(self.qwen, prompt.part, kv)
            self.prompts.cache.marks += prompt.marks
            feedback = feedback_from(prompt, probe, self.prompts.pooled(query), self.qwen.embedding_axes)
            record.decoded()
        except Exception:
            self.prompts.forget()
            raise
        flops = self._work(prompt, frames, None, 0).flops
        made = record.result(prompt, feedback, 0, None, Work())
        return GlanceResult(
            feedback=feedback,
            tokens_used=overview.overview,
            encode_ms=made.encode_ms,
            prefill_ms=made.prefill_ms,
            work=Work(flops),
            prompt_tokens=prompt.part.tokens,
            prefilled_tokens=prompt.prefilled_tokens,
        )

    def prepare(
        self, packets: Packet | Sequence[Packet], query: str, window: FrameWindow | None = None
    ) -> PreparedQuestion:
        """A question whose frames are encoded, and whose prompt is not prefilled yet; arguments and errors as `answer`.

        Whoever prefills it adds its marks to the cache, and calls `conclude` before anything else is asked here.
        """
        frames = [packets] if isinstance(packets, Packet) else list(packets)
        if window is not None:
            window.begin(self.prompts.ids.head, frames[-1].stamp.epoch if frames else None)
        if not frames and (window is None or not window.frames):
            raise OptionError("there is no frame to answer about")
        self.prompts.check_fits(frames, query, window)
        record = AnswerTimer()
        vision = self.vision  # another stream's may stand there when the answer has ended
        try:
            prompt = self.prompts.make(frames, query, window, record.encoded)
        except Exception:
            self.prompts.forget()
            raise
        return PreparedQuestion(prompt, frames, query, window, vision, record, self._probe(prompt))

    def conclude(self, question: PreparedQuestion) -> AnswerResult:
        """The result of a question that was answered, or stopped; `last` tells of it, too."""
        prompt, probe, record = question.prompt, question.probe, question.record
        encoded = question.vision.report if self.options.encode == "incremental" else None
        feedback = None
        if probe is not None:
            feedback = feedback_from(prompt, probe, self.prompts.pooled(question.query), self.qwen.embedding_axes)
        work = self._work(prompt, question.frames, question.window, len(record.token_ids))
        self._last = record.result(prompt, feedback, self.prompts.kept_bytes(question.window), encoded, work)
        return self._last

    @contextmanager
    def _asked(self, question: PreparedQuestion) -> Iterator[_PrefilledPrompt]:
        """A question that is prefilled; when the block is left, also by closing an iterator, `last` tells of it."""
        try:
            with question.probe or nullcontext():
                logits = prefill(self.qwen, question.prompt.part, self.prompts.cache.kv)
                self.prompts.cache.marks += question.prompt.marks
                try:
                    yield _PrefilledPrompt(question, logits)
                except GeneratorExit:
                    self.conclude(question)
                    raise
                self.conclude(question)
        except Exception:
            self.prompts.forget()
            raise

    def _work(
        self, prompt: PreparedPrompt, packets: Sequence[Packet], window: FrameWindow | None, answer_tokens: int
    ) -> Work:
        """The operations of an answer to this prompt, and of one from all tokens of the frames that it shows."""
        tiles = {frame.stamp: frame.grid.tiles for frame in (*(window.frames if window is not None else ()), *packets)}
        shown = [place.stop - place.start for place in prompt.places]
        of_tiles = [tiles.get(stamp, tokens) for stamp, tokens in zip(prompt.stamps, shown, strict=True)]
        text_tokens = prompt.part.tokens - sum(shown)
        return self._costs.work(self.options.encode, prompt.segments, of_tiles, text_tokens, answer_tokens)

    def _probe(self, prompt: PreparedPrompt) -> AttentionProbe | None:
        """Return the probe of the decoder's attention on the newest frame, where feedback is wanted."""
        wanted = self.options.feedback
        return AttentionProbe(self.qwen, self.prompts.cache.kv, prompt.places[-1]) if wanted else None

    def _speak(self, asked: _PrefilledPrompt, should_stop: Callable[[], bool] | None) -> Iterator[str]:
        record, probe, options = asked.question.record, asked.question.probe, self.options.decoding
        position, kv = asked.question.prompt.part.position, self.prompts.cache.kv
        stream = TextStream(self.qwen.tokenizer, options.stop_strings)
        # Closed at once where this is closed: only then does the probe know what a captured step looked at.
        with closing(self._decoder.decode(asked.logits, position, kv, options, should_stop, probe)) as tokens:
            for token in tokens:
                record.decoded()
                record.token_ids.append(token)
                if piece := stream.push(token):
                    record.pieces.append(piece)
                    yield piece
                if stream.stopped:
                    break
        record.decoded()
        if piece := stream.finish():
            record.pieces.append(piece)
            yield piece
