"""Prompts: pieces of the chat template, and `PromptBuilder`, which prepares them for the cache.

Frames are introduced as the model's chat template introduces images; several frames, as Qwen3-VL introduces
the frames of a video, each with its time as text ("<3.2 seconds>"; Qwen3-VL technical report, arXiv:2511.21631).
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias, TypeGuard

import torch
from jinja2 import TemplateError

from arr_coc.errors import ContextLengthError, ModelError, OptionError, counted
from arr_coc.qwen.cache import PrefixCache
from arr_coc.qwen.checkpoint import IMAGE_TOKEN, THINKING_MARKS, THINKING_SWITCH
from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.encoding import (
    EncodedFrame,
    IncrementalEncoder,
    Packet,
    encode_packet,
    segment_counts,
    token_count,
)
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.pieces import CausalFrame, CausalPiece, Ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.visual_memory import VisualMemory, read_group
from arr_coc.types import NS_PER_S, FrameStamp, TokenPacket, shown_tokens, time_text

PromptCache: TypeAlias = PrefixCache[Ids | CausalPiece | VisualMemory]
"""Cache of prompts, with the pieces that it holds as keys of its marks."""

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TURN = "<|im_start|>"

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, AttributeError)
"""Errors of chat templates that reject their messages."""

TEMPLATE_FILENAME = "<template>"
"""File name of code that jinja compiles from text."""

TEMPLATE_STEPS_MAX = 200_000
"""Limit of steps of a chat template; Qwen's take some hundred for a question about an image."""

TEMPLATE_MEMORY_BYTES = 1 << 30
"""Limit of the process's memory growth during rendering; other threads add to it."""

_QUERY = "\u2042query\u2042"


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Token ids of a prompt around the tokens of its frames and query. `trims`: the template leaves out white space at
    the end of a question, as that of Qwen3.5 does."""

    head: tuple[int, ...]
    frame_open: tuple[int, ...]
    frame_close: tuple[int, ...]
    before_query: tuple[int, ...]
    after_query: tuple[int, ...]
    trims: bool = False

    def shown(self, query: str) -> str:
        """Return a question as the template shows it."""
        return query.rstrip() if self.trims else query


def prompt_ids(qwen: QwenVL, system: str | None, *, thinking: bool = False) -> PromptIds:
    """Return the pieces of the chat template around frames and query. `system` None: the template's own system prompt,
    if any. `thinking` as `render_chat`.

    Raises ModelError if the tokenizer has no chat template, or one that shows no images.
    """
    content = [{"type": "image"}, {"type": "text", "text": f"{_QUERY} "}]
    messages: list[dict[str, object]] = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    if not qwen.tokenizer.chat_template:
        raise ModelError(f"the tokenizer of {qwen.model_id} has no chat template", "download the model again")
    try:
        text = render_chat(qwen, messages, thinking=thinking)
    except TEMPLATE_ERRORS as error:
        raise ModelError(
            f"the chat template of {qwen.model_id} cannot be used ({error})", "download the model again"
        ) from error
    head, image, rest = text.partition(IMAGE)
    before_query, query, after_query = rest.partition(_QUERY)
    if not image or not query:
        raise ModelError(f"the chat template of {qwen.model_id} shows no image", "use an instruct version of the model")
    trims = not after_query.startswith(" ")
    after_query = after_query.removeprefix(" ")
    return PromptIds(
        head=tuple(qwen.token_ids(head)),
        frame_open=tuple(qwen.token_ids("<|vision_start|>")),
        frame_close=tuple(qwen.token_ids("<|vision_end|>")),
        before_query=tuple(qwen.token_ids(before_query)),
        after_query=tuple(qwen.token_ids(after_query)),
        trims=trims,
    )


def render_chat(qwen: QwenVL, messages: Sequence[Mapping[str, Any]], *, thinking: bool = False) -> str:
    """Return messages in the model's chat template, up to the beginning of the answer.

    Without `thinking`, the template's switch is off, and thoughts that it still begins are ended.
    Raises TEMPLATE_ERRORS if the template rejects the messages, or exceeds a limit of steps or memory.
    """
    switch = {THINKING_SWITCH: thinking}
    with _bounded_rendering():
        text: str = qwen.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch)
    begin, end = THINKING_MARKS
    _, _, turn = text.rpartition(TURN)
    ended = thinking or turn.rfind(begin) <= turn.rfind(end)
    return text if ended else f"{text.rstrip()}\n\n{end}\n\n"


@contextmanager
def _bounded_rendering() -> Iterator[None]:
    """Limit the steps of chat templates that this thread renders, and the memory growth of the process.

    A template comes with a model, and its loops need not end. A step is a line of its compiled form. Raises
    TemplateError.
    """
    peak_bytes = _peak_bytes()
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != TEMPLATE_FILENAME:
            return None
        steps += 1
        if steps > TEMPLATE_STEPS_MAX:
            raise TemplateError(f"it takes more than {TEMPLATE_STEPS_MAX} steps")
        if _peak_bytes() - peak_bytes > TEMPLATE_MEMORY_BYTES:
            raise TemplateError(f"it takes more than {TEMPLATE_MEMORY_BYTES >> 20} MiB")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt whose `part` is not prefilled yet; with it, `prefilled_tokens` tokens are prefilled in all.

    The frames of `stamps` have `tokens_used` visual tokens. Those of the newest frame, or of the picture that a group
    keeps up to date, are at `newest` of the cache, with `embeds` [K, D] and `regions` int64
    [K, 3]. `segments`: numbers of visual tokens that were encoded together, in order. `appended_tokens` visual tokens
    were not in the cache, and `memory_tokens` of a group are before the question. `new_tokens` and `new_visual_tokens`
    of a group exclude tokens of earlier frames that had to be read again. `opens_thoughts`: the prompt ends inside
    thoughts. `question`: tokens before the question, and its text position.
    """

    part: PromptPart
    prefilled_tokens: int
    stamps: tuple[FrameStamp, ...]
    tokens_used: int
    newest: slice
    segments: list[int]
    embeds: torch.Tensor
    regions: torch.Tensor
    appended_tokens: int
    memory_tokens: int = 0
    new_tokens: int = 0
    new_visual_tokens: int = 0
    opens_thoughts: bool = False
    question: tuple[int, int] = (0, 0)


def last_turn(qwen: QwenVL, pieces: Sequence[Ids | Packet]) -> Ids:
    """Return the ids of a prompt behind its last frame, from the beginning of the last turn on."""
    if isinstance(pieces[-1], tuple):
        ids = pieces[-1]
    else:
        ids = ()
    turn = qwen.token_ids(TURN)
    return ids[max((at for at, token in enumerate(ids) if [token] == turn), default=0) :]


def is_group(packets: Sequence[Packet]) -> TypeGuard[Sequence[TokenPacket]]:
    """Return True if packets are frames of a group of pictures."""
    return bool(packets) and all(isinstance(packet, TokenPacket) and packet.place is not None for packet in packets)


class PromptBuilder:
    """Builder of prompts [system] [frames…] [question] [assistant] for one cache; it also encodes their frames.

    `ids`: pieces of the chat template; `vision`: cache of incremental encoding; `has_penalties`: answers depend on the
    ids of their prompts and their own.
    """

    def __init__(self, qwen: QwenVL, options: AnswerOptions, cache: PromptCache) -> None:
        self._qwen = qwen
        self.cache = cache
        self.vision = IncrementalEncoder()
        self._provided: tuple[Packet, EncodedFrame] | None = None
        self.configure(options)

    def configure(self, options: AnswerOptions) -> None:
        """Set the options of later prompts; the cache stays valid. Raises OptionError if they enable thoughts and the
        model has none."""
        self.options = options
        self.has_penalties = options.decoding.counts_tokens
        self.vision.configure(options.incremental)
        if options.encode != "incremental":
            self.vision.clear()
        thinking = options.thinking != "off"
        if thinking and self._qwen.thought_ids is None:
            raise OptionError(
                f"{self._qwen.model_id} does not think before it answers: its chat template has no {THINKING_MARKS[0]}",
                "leave answer.thinking at off",
            )
        self.ids = prompt_ids(self._qwen, options.system, thinking=thinking)
        if thinking:
            self._at_once = prompt_ids(self._qwen, options.system)
        else:
            self._at_once = self.ids

    def make(
        self, packets: Sequence[Packet], query: str, on_encoded: Callable[[], None], *, at_once: bool = False
    ) -> PreparedPrompt:
        """Return the prompt of a question about frames. Raises as `AnswerSession.answer`.

        Args:
            packets: The frames, oldest first, or the packets of a group of pictures.
            query: The question.
            on_encoded: Called once, when the frames are encoded.
            at_once: Whether the answer begins without thoughts.
        """
        if is_group(packets):
            return self._in_group(packets, query, on_encoded, at_once=at_once)
        return self._in_one_run(packets, query, on_encoded, timed=len(packets) > 1, at_once=at_once)

    def make_glance(
        self, packets: Sequence[Packet], query: str, on_encoded: Callable[[], None], *, timed: bool
    ) -> PreparedPrompt:
        """Return the prompt of a glance. A frame that begins with its overview reuses its keys and values.

        Args:
            packets: The frames, of which the last one is an overview, or the packets of a group of pictures.
            query: The question.
            on_encoded: As in `make`.
            timed: Whether frames are introduced by their times, as several are.
        """
        if is_group(packets):
            return self._in_group(packets, query, on_encoded)
        return self._in_one_run(packets, query, on_encoded, timed=timed)

    def make_chat(self, pieces: Sequence[Ids | Packet], on_encoded: Callable[[], None]) -> PreparedPrompt:
        """Return the prompt of token ids and frames in order, without marks in the cache; `on_encoded` as in `make`."""
        self.cache.rewind([])
        part = PromptPart(self._qwen, 0, 0)
        frames: list[tuple[Packet, EncodedFrame, slice]] = []
        for piece in pieces:
            if isinstance(piece, tuple):
                part.text(piece)
            else:
                frame = self._encode(piece)
                frames.append((piece, frame, part.frame(frame)))
        on_encoded()
        newest = frames[-1][1] if frames else None
        visual_tokens = sum(place.stop - place.start for _, _, place in frames)
        return PreparedPrompt(
            part=part,
            prefilled_tokens=part.tokens,
            stamps=tuple(packet.stamp for packet, _, _ in frames),
            tokens_used=visual_tokens,
            newest=frames[-1][2] if frames else slice(0, 0),
            segments=[count for packet, _, _ in frames for count in segment_counts(packet, self.options.encode)],
            embeds=self._qwen.embed([]) if newest is None else newest.tokens.embeds[0],
            regions=torch.zeros(0, 3, dtype=torch.int64) if newest is None else newest.regions[0],
            appended_tokens=visual_tokens,
            opens_thoughts=self._qwen.opens_thoughts(last_turn(self._qwen, pieces)),
        )

    def check_chat(self, pieces: Sequence[Ids | Packet]) -> None:
        """Raise ContextLengthError if a prompt of token ids and frames, with the answer, exceeds the context."""
        lengths = [
            len(piece) if isinstance(piece, tuple) else token_count(piece, self.options.encode) for piece in pieces
        ]
        answer_tokens = self.options.decoding.max_tokens
        if sum(lengths) + answer_tokens > self._qwen.max_context_tokens:
            raise ContextLengthError(
                f"the prompt takes {counted(sum(lengths), 'token')} and the answer up to {answer_tokens}, but "
                f"{self._qwen.model_id} has a context of {self._qwen.max_context_tokens}",
                "shorten the chat, or lower the budget or max_tokens",
            )

    def check_length(self, query: str, visual_tokens: int) -> None:
        """Raise ContextLengthError if question, frame and answer together exceed the model's context."""
        query_tokens = len(self._qwen.plain_token_ids(query))
        frame_tokens = visual_tokens + len(self.ids.frame_open) + len(self.ids.frame_close)
        answer_tokens = self.options.decoding.max_tokens
        total = self.other_tokens(query) + frame_tokens
        if total > self._qwen.max_context_tokens:
            raise ContextLengthError(
                f"the question takes {counted(query_tokens, 'token')}, the picture {visual_tokens} and the answer up "
                f"to {answer_tokens}: {total} with the prompt's own, but {self._qwen.model_id} has a context of "
                f"{self._qwen.max_context_tokens}; ask a shorter question, or lower the budget or max_tokens"
            )

    def check_fits(self, packets: Sequence[Packet], query: str) -> None:
        """Raise ContextLengthError if the prompt does not fit, OptionError for a group that shows no tokens."""
        if not is_group(packets):
            self.check_length(query, sum(token_count(packet, self.options.encode) for packet in packets))
            return
        visible_packets = [packet for packet in packets if not packet.is_empty]
        tokens = shown_tokens(visible_packets)
        if tokens < 1:
            raise OptionError("a group of pictures begins with a key frame, which holds at least one token")
        place = packets[-1].place
        opening = self.opening(packets[-1], timed=True)
        headings = (0 if place is None else place.frames - 1) * (len(opening) + len(self.ids.frame_close))
        self.check_length(query, tokens + headings)

    def _in_group(
        self, packets: Sequence[TokenPacket], query: str, on_encoded: Callable[[], None], *, at_once: bool = False
    ) -> PreparedPrompt:
        """Return the stock layout of the picture that a group of pictures keeps up to date, or of its newest frames."""
        reading = read_group(
            self._qwen, self.cache, self.ids.head, self.opening, self.ids.frame_close, packets, self._encode
        )
        on_encoded()
        part = reading.part
        memory = reading.memory
        memory_tokens = part.tokens
        if not memory.timed:
            part.end_frame(packets[0].grid)
            part.text(self.ids.frame_close)
        question = part.tokens, part.position
        part.text(self.question(query, at_once=at_once))
        return PreparedPrompt(
            part=part,
            prefilled_tokens=reading.prefilled_tokens + part.tokens - memory_tokens,
            stamps=memory.stamps(packets),
            tokens_used=memory.visual_tokens,
            newest=memory.newest,
            segments=[memory.visual_tokens],
            embeds=memory.embeds,
            regions=memory.regions,
            appended_tokens=reading.appended_tokens,
            new_tokens=reading.new_tokens + part.tokens - memory_tokens,
            new_visual_tokens=reading.new_visual_tokens,
            memory_tokens=memory_tokens,
            opens_thoughts=self._opens_thoughts(at_once),
            question=question,
        )

    def _in_one_run(
        self,
        packets: Sequence[Packet],
        query: str,
        on_encoded: Callable[[], None],
        *,
        timed: bool,
        at_once: bool = False,
    ) -> PreparedPrompt:
        """Return the stock layout, each frame after those before it; a prefix that the cache holds is reused."""
        ids = self.ids
        qwen = self._qwen
        frames = [CausalFrame(packet, self.opening(packet, timed=timed)) for packet in packets]
        count = self.cache.rewind([ids.head, *(piece for frame in frames for piece in frame.pieces)])
        cached_pieces = [mark.key for mark in self.cache.marks[1:]]
        part = PromptPart(qwen, len(self.cache), self.cache.position)
        if not count:
            part.text(ids.head)
            part.mark(ids.head)
        for index, frame in enumerate(frames):
            pieces = frame.pieces
            cached = cached_pieces[: len(pieces)]
            cached_pieces = cached_pieces[len(pieces) :]
            if len(cached) == len(pieces):
                frames[index] = cached[-1]  # type: ignore[call-overload]
                continue
            if cached:
                frame.overview = cached[0]  # type: ignore[assignment]
            for piece in pieces[len(cached) :]:
                self._add_piece(part, piece)
                part.mark(piece)
        question = part.tokens, part.position
        part.text(self.question(query, at_once=at_once))
        on_encoded()
        places = [frame.visual for frame in frames]
        kept_tokens = len(self.cache)
        return PreparedPrompt(
            part=part,
            prefilled_tokens=part.tokens - kept_tokens,
            stamps=tuple(packet.stamp for packet in packets),
            tokens_used=sum(place.stop - place.start for place in places),
            newest=places[-1],
            segments=[count for packet in packets for count in segment_counts(packet, self.options.encode)],
            embeds=frames[-1].frame.tokens.embeds[0],
            regions=frames[-1].frame.regions[0],
            appended_tokens=sum(max(0, place.stop - max(place.start, kept_tokens)) for place in places),
            opens_thoughts=self._opens_thoughts(at_once),
            question=question,
        )

    def branch(self, prompt: PreparedPrompt, query: str) -> PromptPart:
        """Return another question in the place of a prompt's own, answered without thoughts."""
        part = PromptPart(self._qwen, *prompt.question)
        part.text(self.question(query, at_once=True))
        return part

    def _opens_thoughts(self, at_once: bool) -> bool:
        return not at_once and self._qwen.opens_thoughts(self.ids.after_query)

    def _add_piece(self, part: PromptPart, piece: CausalPiece) -> None:
        """Add an overview with its opening, or a frame: whole, or the tokens after its overview."""
        if isinstance(piece, CausalFrame):
            overview = piece.overview
        else:
            overview = None
        if overview is None:
            part.text(piece.opening)
            piece.frame = self._encode(piece.packet)
            piece.visual = part.visual(piece.frame)
        elif isinstance(piece.packet, TokenPacket) and not piece.packet.is_glance:
            addition = self._encode(piece.packet.chosen_part())
            piece.frame = overview.frame.followed_by(addition)
            piece.visual = slice(overview.visual.start, part.visual(addition).stop)
        else:
            piece.frame = overview.frame
            piece.visual = overview.visual
        if isinstance(piece, CausalFrame):
            part.end_frame(piece.packet.grid)
            part.text(self.ids.frame_close)

    def other_tokens(self, query: str) -> int:
        """Return the number of tokens of a prompt without its frames, with the longest answer."""
        return len(self.ids.head) + len(self.question(query)) + self.options.decoding.max_tokens

    def group_tokens(self, frames: int) -> int:
        """Return the most tokens around the visual ones of a group of pictures with `frames` frames; the times of
        several have at most five digits before the point."""
        ids = len(self.ids.frame_open) + len(self.ids.frame_close)
        if frames == 1:
            return ids
        return frames * (ids + len(self._qwen.token_ids(time_text(99_999 * NS_PER_S))))

    def all_ids(self, packets: Sequence[Packet], query: str) -> list[int]:
        """Return the ids of the whole prompt that `make` makes of a question, whatever of it the cache holds.

        Each visual token is a `<|image_pad|>`, as in a processor's `input_ids`.
        """
        frames: list[tuple[Packet, int]]
        if is_group(packets):
            visible_packets = [packet for packet in packets if not packet.is_empty]
            place = visible_packets[-1].place
            assert place is not None
            timed = place.frames > 1
            if timed:
                frames = [(packet, len(packet.regions)) for packet in visible_packets[-place.frames :]]
            else:
                frames = [(packets[0], shown_tokens(visible_packets))]
        else:
            timed = len(packets) > 1
            frames = [(packet, token_count(packet, self.options.encode)) for packet in packets]
        ids = [*self.ids.head]
        for packet, tokens in frames:
            ids += [*self.opening(packet, timed=timed), *self._placeholders(tokens), *self.ids.frame_close]
        return [*ids, *self.question(query)]

    def all_chat_ids(self, pieces: Sequence[Ids | Packet]) -> list[int]:
        """Return the ids of a prompt of token ids and frames, as `all_ids` does."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, tuple):
                ids += piece
            else:
                ids += self._placeholders(token_count(piece, self.options.encode))
        return ids

    def _placeholders(self, tokens: int) -> list[int]:
        return self._qwen.token_ids(IMAGE_TOKEN) * tokens

    def question(self, query: str, *, at_once: bool = False) -> list[int]:
        """Return the ids that follow the frames; with `at_once` the answer begins without thoughts."""
        ids = self._at_once if at_once else self.ids
        return [*ids.before_query, *self._qwen.plain_token_ids(ids.shown(query)), *ids.after_query]

    @property
    def memory(self) -> VisualMemory | None:
        """The group of pictures that the cache holds, if any."""
        if len(self.cache.marks) > 1:
            key = self.cache.marks[1].key
        else:
            key = None
        return key if isinstance(key, VisualMemory) else None

    def memory_of(self, packets: Sequence[TokenPacket]) -> VisualMemory | None:
        """Return the group of pictures that the cache holds if these are its packets."""
        memory = self.memory
        is_held = memory is not None and len(memory.packets) == len(packets) and memory.precedes(packets)
        return memory if is_held else None

    def knows(self, packet: Packet) -> bool:
        """Return True if the cache holds this packet as the first frame, so that a prompt about it encodes nothing."""
        frame = CausalFrame(packet, self.opening(packet, timed=False))
        return len(self.cache.marks) > 1 and self.cache.marks[1].key == frame

    @contextmanager
    def use_encoding(self, packet: Packet, frame: EncodedFrame | None) -> Iterator[None]:
        """Use `frame` as the encoding of `packet` inside the block; None: encode it as usual."""
        self._provided = None if frame is None else (packet, frame)
        try:
            yield
        finally:
            self._provided = None

    def _encode(self, packet: Packet) -> EncodedFrame:
        if self._provided is not None and self._provided[0] is packet:
            return self._provided[1]
        # Keys cached for earlier frames of a group have seen what is no longer there, and would write it into what is.
        is_in_group = isinstance(packet, TokenPacket) and packet.place is not None
        encode = "sparse" if is_in_group else self.options.encode
        return encode_packet(self._qwen, packet, encode, self.vision)

    def opening(self, packet: Packet, *, timed: bool) -> Ids:
        """Return the token ids that introduce a frame, up to its first visual token."""
        if timed:
            heading = self._qwen.token_ids(time_text(packet.stamp.media_ns))
        else:
            heading = []
        return (*heading, *self.ids.frame_open)

    def query_embedding(self, query: str) -> torch.Tensor:
        """Return the mean of the question's embeddings: float32 [D]."""
        query_ids = self._qwen.plain_token_ids(query) or list(self.ids.after_query)
        return self._qwen.embed(query_ids).float().mean(dim=0)
