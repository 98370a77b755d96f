"""KV cache with marks, prefill, tokens through the decoder's layers, choice of the next token; text streaming.

The stock dynamic cache joins all keys to a new tensor for every token; the stock static one cannot be rewound.

No mask is made, no position is worked out and no hook runs. The products are the stock model's, in its order, so the
logits are too.

Positions are passed at every call, as three rows, and a cache always: the stock model then builds the plain causal mask
and keeps no state of its own between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.cpu_precision import has_amx
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.preprocess import after_frame, text_positions, visual_positions
from arr_coc.qwen.qwenvl import QwenVL, rotate_native
from arr_coc.types import TileGrid

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class CacheMark(Generic[Key]):
    """The end of one kept piece: what it held, how many tokens lie before its end, and the next text position."""

    key: Key
    tokens: int
    position: int


class PrefixCache(Generic[Key]):
    """Keys and values of a prompt whose pieces are known by key, in `kv` or in memory of its own.

    Rewinding to a mark is exact: what lies before it never depended on what came after. Batch size 1.
    """

    def __init__(self, kv: Any = None) -> None:
        self.kv: Any = empty_kv() if kv is None else kv
        self.marks: list[CacheMark[Key]] = []

    def __len__(self) -> int:
        """Tokens held."""
        return int(self.kv.get_seq_length())

    @property
    def position(self) -> int:
        """M-RoPE position at which the text after the last mark begins."""
        return self.marks[-1].position if self.marks else 0

    def rewind(self, keys: Sequence[Key]) -> int:
        """Keeps the longest run of marks that `keys` begins with, drops the rest, and returns how many were kept."""
        kept = 0
        for mark, key in zip(self.marks, keys, strict=False):
            if mark.key != key:
                break
            kept += 1
        del self.marks[kept:]
        tokens = self.marks[-1].tokens if self.marks else 0
        if tokens < len(self):
            for layer in self.kv.layers:
                layer.show(tokens)
        return kept

    @torch.inference_mode()
    def remove(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Remove the tokens `rows` int64 [M] behind the last mark: the last ones take their places.

        Attention does not depend on the order of what is held, as each key is rotated to its position. Returns the rows
        that were filled, and those that they were filled from, both int64.
        """
        held = len(self)
        stays = torch.ones(held, dtype=torch.bool)
        stays[rows] = False
        count = int(stays.sum())
        holes, movers = (~stays[:count]).nonzero()[:, 0], stays[count:].nonzero()[:, 0] + count
        for layer in self.kv.layers:
            for room in (layer.room_keys, layer.room_values):
                there = movers.to(room.device)
                room.index_copy_(-2, holes.to(room.device), room.index_select(-2, there))
            layer.show(count)
        return holes, movers

    @torch.inference_mode()
    def reset(self) -> None:
        """Hold nothing, and overwrite what was written by zeros: it may be half written, or hold NaN."""
        for layer in self.kv.layers:
            if layer.is_initialized:
                layer.room_keys.zero_()
                layer.room_values.zero_()
                layer.show(0)
        self.marks.clear()

    def mark(self, key: Key, tokens: int, position: int) -> None:
        """Says that the piece `key` ends after `tokens` tokens."""
        self.marks.append(CacheMark(key, tokens, position))

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values that are held, with the room that a cache of their own would have."""
        tokens = -(-len(self) // ROOM_TOKENS) * ROOM_TOKENS
        rooms = [rows for layer in self.kv.layers for rows in (layer.room_keys, layer.room_values)]
        return sum(tokens * (rows.numel() // rows.shape[-2]) * rows.element_size() for rows in rooms if rows.numel())


ROOM_TOKENS = 256
"""A layer's room is a multiple of this, so that it seldom has to grow."""


class GrowableLayer(DynamicLayer):
    """One layer's keys and values [1, heads, tokens, head_dim]: views of the beginning of larger tensors.

    To `show` fewer, as a rewind does, gives the room behind them back. `room_keys` and `room_values` are those
    larger tensors; they are replaced only when the room grows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.room_keys = torch.empty(0)
        self.room_values = torch.empty(0)
        self.is_initialized: bool = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values [1, heads, L, head_dim]; returns all that are held."""
        held = self.get_seq_length()
        total = held + key_states.shape[-2]
        self.make_room(total, key_states, value_states)
        self.room_keys[..., held:total, :] = key_states
        self.room_values[..., held:total, :] = value_states
        self.show(total)
        return self.keys, self.values

    def make_room(self, tokens: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Sees to it that so many tokens fit; what is held stays. The tensors say heads, head_dim, dtype and device."""
        if self.is_initialized and tokens <= self.room_keys.shape[-2]:
            return
        held = self.get_seq_length()
        room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
        for name, kept, like in (("room_keys", self.keys, like_keys), ("room_values", self.values, like_values)):
            # Zeros, because a product with what was never written would turn a weight of 0 into NaN.
            larger = like.new_zeros(*like.shape[:-2], room, like.shape[-1])
            if held:
                larger[..., :held, :] = kept
            setattr(self, name, larger)
        self.is_initialized = True
        self.show(held)

    def show(self, tokens: int) -> None:
        """Holds the first `tokens` of what was written."""
        self.keys, self.values = self.room_keys[..., :tokens, :], self.room_values[..., :tokens, :]


def empty_kv() -> Any:
    """An empty cache for the stock language model, without gradients: it is written in place."""
    return Cache(layer_class_to_replicate=GrowableLayer)


Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""What a layer (its number) makes of the queries [N, heads, head_dim], keys and values [N, kv heads, head_dim] of N
tokens, all rotated: N * heads * head_dim numbers in this order, in any shape."""


@dataclass(frozen=True, slots=True)
class DeepstackRows:
    """Rows that the first layers add to visual tokens: `visual` bool [N] says which of N tokens they are, and `levels`
    are the rows [K, D] for their K, one tensor a layer."""

    visual: torch.Tensor
    levels: Sequence[torch.Tensor] = ()


def through_layers(
    qwen: QwenVL,
    embeds: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    attend: Attend,
    deepstack: DeepstackRows | None = None,
) -> torch.Tensor:
    """N tokens behind the last layer, before its norm [N, D]: `embeds` [N, D]; `cos`, `sin` [head_dim] or
    [N, 1, head_dim] rotate them to their places."""
    hidden = embeds
    for index, layer in enumerate(qwen.language_model.layers):
        attention = layer.self_attn
        entering = layer.input_layernorm(hidden)
        query, key, value = (
            linear_rows(product, entering).view(len(hidden), -1, attention.head_dim)
            for product in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        mixed = attend(index, rotate_native(query, cos, sin), rotate_native(key, cos, sin), value)
        hidden = hidden + linear_rows(attention.o_proj, mixed.reshape(len(hidden), -1))
        hidden = hidden + _mlp_of_rows(layer.mlp, layer.post_attention_layernorm(hidden))
        if deepstack is not None and index < len(deepstack.levels):
            hidden[deepstack.visual] += deepstack.levels[index].to(hidden)
    return hidden


def logits_of(qwen: QwenVL, hidden: torch.Tensor) -> torch.Tensor:
    """The logits [N, vocabulary] after N tokens [N, D] that went through the layers."""
    return linear_rows(qwen.model.lm_head, qwen.language_model.norm(hidden))


def linear_rows(linear: Any, rows: torch.Tensor) -> torch.Tensor:
    """`linear` of rows [N, D]. One row in bfloat16 on a CPU with AMX is matrix times vector, which reads weights as
    fast as memory gives them: a product of matrices arranges them in tiles first. Without AMX that product is the
    faster."""
    single = len(rows) == 1 and rows.dtype == torch.bfloat16 and rows.device.type == "cpu"
    if not (single and type(linear) is nn.Linear and has_amx()) or linear.bias is not None:
        product: torch.Tensor = linear(rows)
        return product
    return torch.mv(linear.weight, rows[0])[None]


def _mlp_of_rows(mlp: Any, rows: torch.Tensor) -> torch.Tensor:
    if not hasattr(mlp, "gate_proj"):  # a mixture of experts, which wants the batch axis
        mixed: torch.Tensor = mlp(rows[None])[0]
        return mixed
    return linear_rows(mlp.down_proj, mlp.act_fn(linear_rows(mlp.gate_proj, rows)) * linear_rows(mlp.up_proj, rows))


class PromptPart:
    """A run of text and frames that is prefilled in one go, after `tokens` tokens, its text beginning at `position`."""

    def __init__(self, qwen: QwenVL, tokens: int, position: int) -> None:
        self.tokens = tokens
        self.position = position
        self._qwen = qwen
        self._embeds: list[torch.Tensor] = []
        self._positions: list[torch.Tensor] = []
        self._visual: list[torch.Tensor] = []
        self._deepstack: list[tuple[torch.Tensor, ...]] = []

    @property
    def length(self) -> int:
        """Tokens that were added."""
        return sum(len(rows) for rows in self._embeds)

    def text(self, ids: tuple[int, ...] | list[int]) -> None:
        """Adds token ids."""
        if ids:
            self._add(self._qwen.embed(list(ids)), text_positions(self.position, len(ids)), visual=False)
            self.position += len(ids)

    def frame(self, frame: EncodedFrame) -> slice:
        """Adds a frame; returns where its tokens stand, counted from the beginning of the cache."""
        place = self.visual(frame)
        self.end_frame(frame.grid)
        return place

    def visual(self, frame: EncodedFrame) -> slice:
        """Adds tokens of a frame that goes on; returns where they stand, counted from the beginning of the cache."""
        embeds = frame.tokens.embeds[0].to(self._qwen.device)
        first = self.tokens
        self._add(embeds, visual_positions(self.position, frame.regions[0]), visual=True)
        self._deepstack.append(tuple(rows[0] for rows in frame.tokens.deepstack))
        return slice(first, self.tokens)

    def end_frame(self, grid: TileGrid) -> None:
        """Ends a frame whose tokens have been added: text goes on behind it."""
        self.position = after_frame(self.position, grid)

    def inputs(self) -> dict[str, Any]:
        """The language model's arguments."""
        arguments: dict[str, Any] = {
            "inputs_embeds": torch.cat(self._embeds)[None],
            "position_ids": torch.cat(self._positions, dim=1)[:, None],
        }
        if any(self._deepstack):
            arguments["visual_pos_masks"] = torch.cat(self._visual)[None]
            arguments["deepstack_visual_embeds"] = [torch.cat(rows) for rows in zip(*self._deepstack, strict=True)]
        return arguments

    def _add(self, embeds: torch.Tensor, positions: torch.Tensor, *, visual: bool) -> None:
        self._embeds.append(embeds)
        self._positions.append(positions.to(self._qwen.device))
        self._visual.append(torch.full((len(embeds),), visual, device=self._qwen.device))
        self.tokens += len(embeds)


@torch.inference_mode()
def prefill(qwen: QwenVL, part: PromptPart, kv: Any) -> torch.Tensor:
    """Adds a part to the cache. Returns the logits [vocabulary] of what follows its last token."""
    hidden = qwen.language_model(**part.inputs(), past_key_values=kv, use_cache=True).last_hidden_state
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def least_probability(
    qwen: QwenVL, prompt: PromptPart, kv: Any, logits: torch.Tensor, ids: Sequence[int], ends: Collection[int]
) -> float:
    """Probability of the least likely of the tokens `ids`, one of `ends` after them, as an answer to a prompt.

    `kv` holds the prompt, also afterwards; `logits` [vocabulary] are those after it. Without `ends`, none of them is
    expected. Raises NonFiniteError if logits hold NaN or Inf.
    """
    rows, inputs = logits[None], ids if ends else ids[:-1]
    if inputs:
        answer = PromptPart(qwen, prompt.tokens, prompt.position)
        answer.text(list(inputs))
        hidden = qwen.language_model(**answer.inputs(), past_key_values=kv, use_cache=True).last_hidden_state
        rows = torch.cat([rows, qwen.model.lm_head(hidden[0])])
        for layer in kv.layers:
            layer.show(prompt.tokens)
    if not bool(rows.isfinite().all()):
        raise not_finite(0)
    chances = torch.softmax(rows.double(), dim=-1)
    likely = [float(row[token]) for row, token in zip(chances, ids, strict=False)]
    if ends:
        likely.append(float(chances[-1, list(ends)].sum()))
    return min(likely, default=1.0)


@torch.inference_mode()
def decode_one_token(qwen: QwenVL, token: torch.Tensor, position: int, kv: Any) -> torch.Tensor:
    """Adds one token (int64 scalar) at a text position to the cache, through the stock model's forward.

    Returns the logits [vocabulary] after it. `DecodeStep` gives the same, sooner, if the model `decodes_plainly`.
    """
    embeds = qwen.language_model.embed_tokens(token.view(1, 1))
    place = torch.full((3, 1, 1), float(position), device=embeds.device)
    hidden = qwen.language_model(
        inputs_embeds=embeds, position_ids=place, past_key_values=kv, use_cache=True
    ).last_hidden_state
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def choose(logits: torch.Tensor, options: Decoding, generator: torch.Generator | None) -> torch.Tensor:
    """The next token (int64 scalar) from logits [vocabulary].

    Nucleus sampling (arXiv:1904.09751): the likeliest tokens whose probabilities reach `top_p`, never none; of the
    likeliest `top_k` alone, and their probabilities, if that is above 0.
    """
    if options.temperature == 0:
        return logits.argmax()
    chances, tokens = torch.softmax(logits.float() / options.temperature, dim=-1).sort(descending=True)
    if options.top_k:
        chances, tokens = chances[: options.top_k], tokens[: options.top_k]
        chances = chances / chances.sum()
    before = chances.cumsum(0) - chances
    chances = torch.where(before < options.top_p, chances, 0.0)
    # The draw of `multinomial`, which would wait for the device.
    race = torch.empty_like(chances).exponential_(generator=generator)
    return tokens[(chances / race).argmax()]


def choose_finite(
    logits: torch.Tensor, options: Decoding, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token, and whether all logits are finite: two int64 scalars, not waited for."""
    finite = logits.isfinite().all()
    token = choose(torch.where(finite, logits, 0.0), options, generator)
    return token, finite.to(token.dtype)


def not_finite(index: int) -> NonFiniteError:
    """The error of an answer's token number `index`."""
    return NonFiniteError(f"the logits of answer token {index} hold NaN or Inf; try dtype float32 or bfloat16")


_UNFINISHED = "\ufffd"


class TextStream:
    """Turns token ids into pieces of text whose concatenation is the decoded whole, up to the first of `stop_strings`.

    A token may end in the middle of a UTF-8 character; text is held back until the character is whole. `stopped`: a
    stop string was the end of the last piece, and no text follows.
    """

    def __init__(self, tokenizer: Any, stop_strings: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = stop_strings
        self._recent = ""
        self.stopped = False
        self._ids: list[int] = []
        self._shown_ids = 0
        self._context_ids = 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; may be empty."""
        self._ids.append(token_id)
        return self._up_to_stop(self._fresh(final=False))

    def finish(self) -> str:
        """Return the text that is still held back, with U+FFFD where a character never became whole."""
        return self._up_to_stop(self._fresh(final=True))

    def _up_to_stop(self, piece: str) -> str:
        if self.stopped or not self._stop_strings:
            return "" if self.stopped else piece
        text = self._recent + piece
        ends = [text.find(stop) + len(stop) for stop in self._stop_strings if stop in text]
        if ends:
            self.stopped = True
            return text[len(self._recent) : min(ends)]
        self._recent = text[max(0, len(text) - max(map(len, self._stop_strings)) + 1) :]
        return piece

    def _fresh(self, final: bool) -> str:
        before = self._decode(self._ids[self._context_ids : self._shown_ids])
        text = self._decode(self._ids[self._context_ids :])
        if len(text) <= len(before) or (text.endswith(_UNFINISHED) and not final):
            return ""
        self._context_ids, self._shown_ids = self._shown_ids, len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
