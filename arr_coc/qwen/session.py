"""One conversation with a model: frames and questions in, text out, and nothing computed twice that could be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch

from arr_coc.errors import ContextLengthError, OptionError
from arr_coc.qwen.attention import AttentionProbe, feedback_from
from arr_coc.qwen.cache import Mark, PrefixCache
from arr_coc.qwen.decode import Decoding, PromptPart, prefill
from arr_coc.qwen.decoder import Decoder
from arr_coc.qwen.encoding import EncodedFrame, Packet, encode_packet, token_count
from arr_coc.qwen.frame_window import FrameWindow
from arr_coc.qwen.incremental import IncrementalEncoder
from arr_coc.qwen.kept_frame import KeptFrame, Wrapping, read_apart
from arr_coc.qwen.prompt import prompt_ids, time_text
from arr_coc.qwen.prompted import Prompt, prompt_in_slots
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.refresh import IncrementalOptions
from arr_coc.qwen.result import AnswerResult, Record
from arr_coc.qwen.room import check_context, check_memory, expected_size, kept_size
from arr_coc.qwen.shown_frame import Ids, Shown
from arr_coc.qwen.textstream import TextStream
from arr_coc.qwen.yes_no import Verdict, YesNoTokens, verdict, yes_no_tokens
from arr_coc.types import Encode

Frames = Literal["causal", "window"]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How a session answers. `system` None: the chat template's own system prompt, if it has one.

    `incremental`: what is kept, and encoded again, where `encode` is that.
    `frames`: how several frames of one prompt are read. `causal`, as the stock model does: each sees those before it.
    `window`: each sees the prompt's beginning only, so that whichever came, left or changed places costs nothing anew.
    `feedback`: whether an answer tells what it looked at; without it nothing is computed for that.
    """

    encode: Encode = "sparse"
    decoding: Decoding = field(default_factory=Decoding)
    system: str | None = None
    frames: Frames = "causal"
    incremental: IncrementalOptions = field(default_factory=IncrementalOptions)
    feedback: bool = True

    def __post_init__(self) -> None:
        if self.encode not in get_args(Encode):
            raise OptionError(f"encode must be one of {', '.join(get_args(Encode))}, got {self.encode!r}")
        if self.frames not in get_args(Frames):
            raise OptionError(f"frames must be one of {', '.join(get_args(Frames))}, got {self.frames!r}")


@dataclass(frozen=True, slots=True)
class _AskedPrompt:
    """A prompt that is in the cache, the logits [vocabulary] after it, and what looks at the decoder's attention."""

    prompt: Prompt
    logits: torch.Tensor
    record: Record
    probe: AttentionProbe | None


class AnswerSession:
    """Answers questions about frames with one model, one at a time.

    The prompt is [system] [frames…] [question] [assistant]. Keys and values of the system prompt are computed once;
    those of frames are kept while the same frames come first again, so that another question about them costs
    its own tokens only. A window's frames are kept wherever they stand. Not for several threads at once.

    `vision` is what `encode="incremental"` keeps; who answers about several streams by turns puts there each one's own.
    """

    def __init__(self, qwen: QwenVL, options: AnswerOptions | None = None) -> None:
        self.qwen = qwen
        self.vision = IncrementalEncoder()
        self.configure(options or AnswerOptions())
        self._cache: PrefixCache[Ids | Shown | KeptFrame] = PrefixCache()
        self._decoder = Decoder(qwen)
        self._listed: list[KeptFrame] = []
        self._last: AnswerResult | None = None

    def configure(self, options: AnswerOptions) -> None:
        """Answers by other options from here on; what was kept stays useful."""
        self.options = options
        self.vision.configure(options.incremental)
        if options.encode != "incremental":
            self.vision.clear()
        self._ids = prompt_ids(self.qwen, options.system)

    @property
    def last(self) -> AnswerResult:
        """The answer that ended last. Raises LookupError before the first one."""
        if self._last is None:
            raise LookupError("no answer has ended yet")
        return self._last

    @cached_property
    def yes_no(self) -> YesNoTokens:
        """The model's tokens for yes and no. Raises ModelError where it has none."""
        return yes_no_tokens(self.qwen)

    def check_length(self, query: str, visual_tokens: int) -> None:
        """Raises ContextLengthError where question, frame and answer do not fit the model's context together."""
        query_tokens = len(self.qwen.plain_token_ids(query))
        frame_tokens = visual_tokens + len(self._ids.frame_open) + len(self._ids.frame_close)
        answer_tokens = self.options.decoding.max_tokens
        total = self._other_tokens(query) + frame_tokens
        if total > self.qwen.max_context_tokens:
            raise ContextLengthError(
                f"the question takes {query_tokens} tokens, the picture {visual_tokens} and the answer up to "
                f"{answer_tokens}: {total} with the prompt's own, but {self.qwen.model_id} has a context of "
                f"{self.qwen.max_context_tokens}; ask a shorter question, or lower the budget or max_tokens"
            )

    def check_window(self, query: str, window: FrameWindow) -> None:
        """Raises ContextLengthError where the window, full of frames such as it holds, leaves no room for `query`."""
        if window.frames:
            smallest = min((kept_size(frame, window) for frame in window.frames), key=lambda size: size.steps)
            check_context(self.qwen, window.options, smallest, self._other_tokens(query))

    def answer(
        self,
        packets: Packet | Sequence[Packet],
        query: str,
        should_stop: Callable[[], bool] | None = None,
        window: FrameWindow | None = None,
    ) -> Iterator[str]:
        """Pieces of the answer to `query` while it is decoded, about one frame or several, oldest first.

        One frame is shown as an image, each of several under its media time. With a `window` the packets, of which
        there may be none, enter it, and what it picks is shown. `should_stop` is asked after every token.
        When the iterator has ended or was closed, `last` tells about the answer; what entered a window stays there.
        Raises ContextLengthError, NonFiniteError, and OptionError where a packet does not suit `encode` or a window
        does not fit the memory.
        """
        with self._asked(packets, query, window) as asked:
            yield from self._speak(asked, should_stop)

    def look(self, packets: Packet | Sequence[Packet], question: str, window: FrameWindow | None = None) -> Verdict:
        """Whether the model would answer `question` with yes: costs what comes before an answer, and no decoding.

        Frames, window and errors as in `answer`, whose next question about the same frames costs its own tokens only;
        so does this one. Raises ModelError where the tokenizer has no token for yes or no.
        """
        tokens = self.yes_no
        with self._asked(packets, question, window) as asked:
            found = verdict(asked.logits, tokens)
            asked.record.decoded()
        return found

    @contextmanager
    def _asked(
        self, packets: Packet | Sequence[Packet], query: str, window: FrameWindow | None
    ) -> Iterator[_AskedPrompt]:
        """A question that is prefilled; when the block is left, also by closing an iterator, `last` tells of it."""
        frames = [packets] if isinstance(packets, Packet) else list(packets)
        if window is not None:
            window.begin(self._ids.head, frames[-1].stamp.epoch if frames else None)
        if not frames and (window is None or not window.frames):
            raise OptionError("there is no frame to speak about")
        self._check_fits(frames, query, window)
        record = Record()
        try:
            if window is None and self.options.frames == "causal":
                prompt = self._in_one_run(frames, query, record)
            else:
                prompt = self._in_slots(frames, query, window, record)
            with self._probe(prompt) as probe:
                logits = prefill(self.qwen, prompt.part, self._cache.kv)
                self._cache.marks += prompt.marks

                def conclude() -> None:
                    kept = self._listed if window is None else window.frames
                    kept_bytes = self._cache.bytes + sum(frame.bytes for frame in kept)
                    vision = self.vision.report if self.options.encode == "incremental" else None
                    feedback = None if probe is None else feedback_from(prompt, probe, self._pooled(query))
                    self._last = record.result(prompt, feedback, kept_bytes, vision)

                try:
                    yield _AskedPrompt(prompt, logits, record, probe)
                except GeneratorExit:
                    conclude()
                    raise
                conclude()
        except Exception:
            self._cache = PrefixCache()  # what it holds may be half written, or hold NaN
            raise

    def _probe(self, prompt: Prompt) -> AbstractContextManager[AttentionProbe | None]:
        """What looks at the decoder's attention on the newest frame, where feedback is wanted."""
        wanted = self.options.feedback
        return AttentionProbe(self.qwen, self._cache.kv, prompt.places[-1]) if wanted else nullcontext()

    def _in_one_run(self, packets: Sequence[Packet], query: str, record: Record) -> Prompt:
        """The stock layout: each frame is read after those before it. What comes first again is kept."""
        ids, qwen = self._ids, self.qwen
        shown = [Shown(packet, self._opening(packet, timed=len(packets) > 1)) for packet in packets]
        self._listed = []
        kept = self._cache.rewind([ids.head, *shown])
        part = PromptPart(qwen, len(self._cache), self._cache.position)
        marks: list[Mark[Any]] = []
        if not kept:
            part.text(ids.head)
            marks.append(Mark(ids.head, part.tokens, part.position))
        for index, frame in enumerate(shown):
            if index + 1 < kept:
                shown[index] = self._cache.marks[index + 1].key  # type: ignore[assignment]
                continue
            frame.frame = self._encode(frame.packet)
            part.text(frame.opening)
            frame.visual = part.frame(frame.frame)
            part.text(ids.frame_close)
            marks.append(Mark(frame, part.tokens, part.position))
        part.text(self._question(query))
        record.encoded()
        return Prompt(
            part=part,
            marks=marks,
            prefilled_tokens=part.tokens - len(self._cache),
            stamps=tuple(packet.stamp for packet in packets),
            places=[frame.visual for frame in shown],
            embeds=shown[-1].frame.tokens.embeds[0],
            regions=shown[-1].frame.regions[0],
        )

    def _in_slots(self, packets: Sequence[Packet], query: str, window: FrameWindow | None, record: Record) -> Prompt:
        """The layout of a window: each frame is read after the prompt's beginning alone, and rotated into its slot."""
        timed = len(packets) > 1 if window is None else window.options.timed
        read, read_tokens = self._read(packets, timed, window, record)
        if window is None:
            self._listed = shown = read
        else:
            for packet, frame in zip(packets, read, strict=True):
                check_memory(window, frame, expected_size(packet, self.options.encode, frame.wrapping, window))
                window.enter(frame)
            shown = window.pick(self._pooled(query), self.qwen.max_context_tokens - self._other_tokens(query))
        prompt = prompt_in_slots(self.qwen, self._cache, self._ids.head, shown, self._question(query))
        return replace(
            prompt,
            prefilled_tokens=read_tokens + prompt.prefilled_tokens,
            stamps=tuple(packet.stamp for packet in packets) if window is None else prompt.stamps,
        )

    def _read(
        self, packets: Sequence[Packet], timed: bool, window: FrameWindow | None, record: Record
    ) -> tuple[list[KeptFrame], int]:
        """The packets as kept frames, and how many tokens had to be prefilled for that."""
        wrappings = [self._wrapping(packet, timed=timed) for packet in packets]
        known = [self._known(packet, wrapping, window) for packet, wrapping in zip(packets, wrappings, strict=True)]
        encoded = [None if frame else self._encode(packet) for packet, frame in zip(packets, known, strict=True)]
        record.encoded()
        prefilled_tokens = self._prefill_head()
        read = []
        for packet, wrapping, frame, tokens in zip(packets, wrappings, known, encoded, strict=True):
            if tokens is not None:
                frame = read_apart(self.qwen, self._cache, packet, tokens, wrapping)
                prefilled_tokens += frame.tokens
            assert frame is not None
            read.append(frame)
        return read, prefilled_tokens

    def _known(self, packet: Packet, wrapping: Wrapping, window: FrameWindow | None) -> KeptFrame | None:
        """The same frame, where it was read before: in a window the newest one only, and only with the same stamp."""
        if window is None:
            return next((frame for frame in self._listed if frame.reads(packet, wrapping)), None)
        newest = window.newest
        same = newest is not None and newest.stamp == packet.stamp and newest.reads(packet, wrapping)
        return newest if same else None

    def _prefill_head(self) -> int:
        """Sees to it that the cache begins with the prompt's beginning; returns how many tokens that prefilled."""
        head = self._ids.head
        if self._cache.marks and self._cache.marks[0].key == head:
            return 0
        self._cache.rewind([])
        part = PromptPart(self.qwen, 0, 0)
        part.text(head)
        if head:
            prefill(self.qwen, part, self._cache.kv)
        self._cache.mark(head, part.tokens, part.position)
        return part.tokens

    def _check_fits(self, packets: Sequence[Packet], query: str, window: FrameWindow | None) -> None:
        """Raises ContextLengthError where the prompt does not fit, or would not once the window is full."""
        self.check_length(query, sum(token_count(packet, self.options.encode) for packet in packets))
        if window is None:
            return
        for packet in packets:
            wrapping = self._wrapping(packet, timed=window.options.timed)
            size = expected_size(packet, self.options.encode, wrapping, window)
            check_context(self.qwen, window.options, size, self._other_tokens(query))
        self.check_window(query, window)

    def _other_tokens(self, query: str) -> int:
        """Tokens of everything but the frames, with the longest answer."""
        return len(self._ids.head) + len(self._question(query)) + self.options.decoding.max_tokens

    def _question(self, query: str) -> list[int]:
        """The ids of all that follows the frames."""
        return [*self._ids.before_query, *self.qwen.plain_token_ids(query), *self._ids.after_query]

    def _encode(self, packet: Packet) -> EncodedFrame:
        return encode_packet(self.qwen, packet, self.options.encode, self.vision)

    def _wrapping(self, packet: Packet, *, timed: bool) -> Wrapping:
        return Wrapping(self._ids.head, self._opening(packet, timed=timed), self._ids.frame_close)

    def _opening(self, packet: Packet, *, timed: bool) -> Ids:
        """What introduces a frame, up to its first visual token."""
        heading = self.qwen.token_ids(time_text(packet.stamp.media_ns)) if timed else []
        return (*heading, *self._ids.frame_open)

    def _speak(self, asked: _AskedPrompt, should_stop: Callable[[], bool] | None) -> Iterator[str]:
        record, stream = asked.record, TextStream(self.qwen.tokenizer)
        position, options = asked.prompt.part.position, self.options.decoding
        for token in self._decoder.decode(asked.logits, position, self._cache.kv, options, should_stop, asked.probe):
            record.decoded()
            record.text_tokens += 1
            if piece := stream.push(token):
                record.pieces.append(piece)
                yield piece
        record.decoded()
        if piece := stream.finish():
            record.pieces.append(piece)
            yield piece

    def _pooled(self, query: str) -> torch.Tensor:
        """The question's embeddings, pooled: float32 [D]."""
        query_ids = self.qwen.plain_token_ids(query) or list(self._ids.after_query)
        return self.qwen.embed(query_ids).float().mean(dim=0)
