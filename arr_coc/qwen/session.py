"""One conversation with a model: frames and questions in, text out, and nothing computed twice that could be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

import numpy as np
from torch.nn import functional as F

from arr_coc.errors import ContextLengthError, OptionError
from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.cache import Mark, PrefixCache
from arr_coc.qwen.decode import Decoding, PromptPart, decode, prefill
from arr_coc.qwen.encoding import EncodedFrame, Packet, encode_packet, token_count
from arr_coc.qwen.prompt import prompt_ids, time_text
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.result import AnswerResult, Record
from arr_coc.qwen.textstream import TextStream
from arr_coc.types import Encode, Feedback, TokenPacket

Ids: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How a session answers. `system` None: the chat template's own system prompt, if it has one."""

    encode: Encode = "sparse"
    decoding: Decoding = field(default_factory=Decoding)
    system: str | None = None

    def __post_init__(self) -> None:
        if self.encode not in get_args(Encode):
            raise OptionError(f"encode must be one of {', '.join(get_args(Encode))}, got {self.encode!r}")


class Shown:
    """A frame as the cache knows it: `frame` encoded, its tokens at `visual` among the cached ones."""

    def __init__(self, packet: Packet, opening: Ids) -> None:
        self.packet = packet
        self.opening = opening
        self.frame: EncodedFrame
        self.visual = slice(0, 0)

    def __eq__(self, other: object) -> bool:
        """Whether the same regions show the same pixels under the same heading.

        A FramePacket's image may be overwritten once it has been answered, so it equals no other.
        """
        if not isinstance(other, Shown) or self.opening != other.opening:
            return False
        mine, theirs = self.packet, other.packet
        if not isinstance(mine, TokenPacket) or not isinstance(theirs, TokenPacket) or mine.grid != theirs.grid:
            return False
        return np.array_equal(mine.regions, theirs.regions) and np.array_equal(mine.pixels, theirs.pixels)

    __hash__ = None  # type: ignore[assignment]


class AnswerSession:
    """Answers questions about frames with one model, one at a time.

    The prompt is [system] [frames…] [question] [assistant]. Keys and values of the system prompt are computed once;
    those of frames are kept while the same frames come first again, so that another question about them costs
    its own tokens only. Not for several threads at once.
    """

    def __init__(self, qwen: QwenVL, options: AnswerOptions | None = None) -> None:
        self.qwen = qwen
        self.configure(options or AnswerOptions())
        self._cache: PrefixCache[Ids | Shown] = PrefixCache()
        self._last: AnswerResult | None = None

    def configure(self, options: AnswerOptions) -> None:
        """Answers by other options from here on; what was kept stays useful."""
        self.options = options
        self._ids = prompt_ids(self.qwen, options.system)

    @property
    def last(self) -> AnswerResult:
        """The answer that ended last. Raises LookupError before the first one."""
        if self._last is None:
            raise LookupError("no answer has ended yet")
        return self._last

    def check_length(self, query: str, visual_tokens: int) -> None:
        """Raises ContextLengthError where question, frame and answer do not fit the model's context together."""
        query_tokens = len(self.qwen.plain_token_ids(query))
        ids = self._ids
        frame_tokens = visual_tokens + len(ids.frame_open) + len(ids.frame_close)
        template_tokens = len(ids.head) + len(ids.before_query) + len(ids.after_query)
        answer_tokens = self.options.decoding.max_tokens
        total = template_tokens + frame_tokens + query_tokens + answer_tokens
        if total > self.qwen.max_context_tokens:
            raise ContextLengthError(
                f"the question takes {query_tokens} tokens, the picture {visual_tokens} and the answer up to "
                f"{answer_tokens}: {total} with the prompt's own, but {self.qwen.model_id} has a context of "
                f"{self.qwen.max_context_tokens}; ask a shorter question, or lower the budget or max_tokens"
            )

    def answer(
        self, packets: Packet | Sequence[Packet], query: str, should_stop: Callable[[], bool] | None = None
    ) -> Iterator[str]:
        """Pieces of the answer to `query` while it is decoded, about one frame or several, oldest first.

        One frame is shown as an image, each of several under its media time. `should_stop` is asked after every token.
        When the iterator has ended or was closed, `last` tells about the answer.
        Raises ContextLengthError, NonFiniteError, and OptionError where a packet does not suit `encode`.
        """
        frames = [packets] if isinstance(packets, Packet) else list(packets)
        if not frames:
            raise OptionError("there is no frame to speak about")
        self.check_length(query, sum(token_count(packet, self.options.encode) for packet in frames))
        record = Record()
        try:
            part, shown, marks = self._assemble(frames, query)
            record.encoded()
            prefilled = part.tokens - len(self._cache)
            with AttentionProbe(self.qwen, self._cache.kv, shown[-1].visual) as probe:
                logits = prefill(self.qwen, part, self._cache.kv)
                self._cache.marks += marks

                def conclude() -> None:
                    tokens_used = sum(frame.visual.stop - frame.visual.start for frame in shown)
                    feedback = self._feedback(frames[-1], shown[-1], probe, query)
                    self._last = record.result(tokens_used, prefilled, feedback)

                try:
                    yield from self._speak(logits, part.position, record, should_stop)
                except GeneratorExit:
                    conclude()
                    raise
                conclude()
        except Exception:
            self._cache = PrefixCache()  # what it holds may be half written, or hold NaN
            raise

    def _assemble(self, packets: Sequence[Packet], query: str) -> tuple[PromptPart, list[Shown], list[Mark[Any]]]:
        """What must be prefilled, the frames shown, and the marks that hold once it has been."""
        ids, qwen = self._ids, self.qwen
        shown = [Shown(packet, self._opening(packet, timed=len(packets) > 1)) for packet in packets]
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
            frame.frame = encode_packet(qwen, frame.packet, self.options.encode)
            part.text(frame.opening)
            frame.visual = part.frame(frame.frame)
            part.text(ids.frame_close)
            marks.append(Mark(frame, part.tokens, part.position))
        part.text([*ids.before_query, *qwen.plain_token_ids(query), *ids.after_query])
        return part, shown, marks

    def _opening(self, packet: Packet, *, timed: bool) -> Ids:
        """What introduces a frame, up to its first visual token."""
        heading = self.qwen.token_ids(time_text(packet.stamp.media_ns)) if timed else []
        return (*heading, *self._ids.frame_open)

    def _speak(
        self, logits: Any, position: int, record: Record, should_stop: Callable[[], bool] | None
    ) -> Iterator[str]:
        stream = TextStream(self.qwen.tokenizer)
        tokens = decode(self.qwen, logits, position, self._cache.kv, self.options.decoding, should_stop)
        for token in tokens:
            record.decoded()
            record.text_tokens += 1
            if piece := stream.push(token):
                record.pieces.append(piece)
                yield piece
        record.decoded()
        if piece := stream.finish():
            record.pieces.append(piece)
            yield piece

    def _feedback(self, packet: Packet, shown: Shown, probe: AttentionProbe, query: str) -> Feedback:
        embeds = shown.frame.tokens.embeds[0].float()
        query_ids = self.qwen.plain_token_ids(query) or list(self._ids.after_query)
        pooled = self.qwen.embed(query_ids).float().mean(dim=0).to(embeds.device)
        return Feedback(
            stamp=packet.stamp,
            regions=shown.frame.regions[0].int().cpu().numpy(),
            attention=probe.attention().numpy(),
            similarity=F.cosine_similarity(embeds, pooled[None], dim=-1).cpu().numpy(),
        )
