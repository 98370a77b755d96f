"""Cache with marks, prefill, tokens through the decoder's layers, choice of the next token; text streaming.

The stock dynamic cache copies all keys to a new tensor for every token; the stock static cache cannot be rewound.

`layer_steps` builds no mask, computes no positions and runs no hooks. Its products are those of the stock model, in
the same order, so the logits are equal.

Calls of the stock model always pass positions, as three rows, and a cache: it then builds the plain causal mask and
keeps no state between calls.

Attention layers keep keys and values, which can be cut off after any token. A recurrent layer keeps one state, which is
copied at the first mark and at the newest two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.cpu_precision import has_amx
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.families import NEWEST_STATES, ModelFamily
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.preprocess import after_frame, text_positions, visual_positions
from arr_coc.qwen.qwenvl import QwenVL, rotate_native
from arr_coc.types import Steps, TileGrid

try:
    from transformers.cache_utils import LinearAttentionLayer
except ImportError:  # an older version, which `check_transformers` refuses for recurrent layers
    LinearAttentionLayer = object

Key = TypeVar("Key")

LayerState = tuple[torch.Tensor, torch.Tensor]
"""State of a recurrent layer: the last inputs of its convolution [1, channels, kernel], and its recurrent state
[1, heads, key size, value size]."""


@dataclass(frozen=True, slots=True)
class CacheMark(Generic[Key]):
    """End of one cached piece: its key, the number of tokens up to its end, and the next text position; if the cache
    keeps them, also the state of each recurrent layer there."""

    key: Key
    tokens: int
    position: int
    states: tuple[LayerState | None, ...] = ()


class PrefixCache(Generic[Key]):
    """Cache of the decoder's layers, in `kv`, for a prompt whose pieces have keys.

    A rewind to a mark is exact: tokens before it never depended on later ones. States of recurrent layers are kept at
    the first mark and at the newest NEWEST_STATES, whatever the number of frames. Batch size 1.
    """

    def __init__(self, kv: Any) -> None:
        self.kv = kv
        self.marks: list[CacheMark[Key]] = []

    def __len__(self) -> int:
        """Number of tokens held."""
        return int(self.kv.get_seq_length())

    @property
    def position(self) -> int:
        """M-RoPE position at which the text after the last mark begins."""
        return self.marks[-1].position if self.marks else 0

    def rewind(self, keys: Sequence[Key]) -> int:
        """Keep the longest run of marks that `keys` begins with, drop the rest, and return the number kept. With
        recurrent layers the run ends at a mark with states."""
        count = 0
        for mark, key in zip(self.marks, keys, strict=False):
            if mark.key != key:
                break
            count += 1
        while count and self.recurrent_layers and not self.marks[count - 1].states:
            count -= 1
        del self.marks[count:]
        tokens, states = (self.marks[-1].tokens, self.marks[-1].states) if self.marks else (0, ())
        if tokens < len(self) or self.recurrent_layers:  # an answer changes states, and its tokens are not counted
            self.show(tokens, states)
        return count

    @property
    def attention_layers(self) -> list[GrowableLayer]:
        """Layers with keys and values."""
        return [layer for layer in self.kv.layers if isinstance(layer, GrowableLayer)]

    @property
    def recurrent_layers(self) -> list[RecurrentLayer]:
        """Layers with a state, from which no token can be removed."""
        return [layer for layer in self.kv.layers if isinstance(layer, RecurrentLayer)]

    def states(self) -> tuple[LayerState | None, ...]:
        """Return a copy of the current state of each recurrent layer."""
        return tuple(layer.snapshot() for layer in self.recurrent_layers)

    @torch.inference_mode()
    def show(self, tokens: int, states: Sequence[LayerState | None]) -> None:
        """Set the length to the first `tokens` written, with the `states` of recurrent layers there; () for none."""
        for layer in self.attention_layers:
            layer.show(tokens)
        for number, recurrent in enumerate(self.recurrent_layers):
            recurrent.restore(states[number] if states else None)

    @torch.inference_mode()
    def remove(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Remove the tokens `rows` int64 [M] after the last mark; the last tokens fill their rows. Not for recurrent
        layers.

        Attention does not depend on the order of keys, as each key is rotated to its position. Returns the rows that
        were filled and the rows that they were filled from, both int64.
        """
        length = len(self)
        stays = torch.ones(length, dtype=torch.bool)
        stays[rows] = False
        count = int(stays.sum())
        holes = (~stays[:count]).nonzero()[:, 0]
        movers = stays[count:].nonzero()[:, 0] + count
        for layer in self.attention_layers:
            for room in (layer.room_keys, layer.room_values):
                room.index_copy_(-2, holes.to(room.device), room.index_select(-2, movers.to(room.device)))
            layer.show(count)
        return holes, movers

    @torch.inference_mode()
    def reset(self) -> None:
        """Empty the cache and overwrite its memory with zeros, as it may be half written or hold NaN."""
        for layer in self.attention_layers:
            layer.room_keys.zero_()
            layer.room_values.zero_()
        self.marks.clear()
        self.show(0, ())

    def reach(self, marks: Sequence[CacheMark[Key]]) -> Sequence[CacheMark[Key]]:
        """Add the marks, in order, whose tokens are all held, and return the others. The cache must end at those
        `with_states`."""
        stateful = self.with_states(marks)
        cached_marks = [mark for mark in marks if mark.tokens <= len(self)]
        assert all(mark.tokens == len(self) for mark in cached_marks if mark.tokens in stateful), (
            "its state has moved on"
        )
        self.add([replace(mark, states=self.states()) if mark.tokens in stateful else mark for mark in cached_marks])
        return marks[len(cached_marks) :]

    def with_states(self, marks: Sequence[CacheMark[Key]]) -> set[int]:
        """Return the numbers of tokens at which states are copied when `marks` are added."""
        if not self.recurrent_layers:
            return set()
        total = len(self.marks) + len(marks)
        numbers = (0, *range(total - NEWEST_STATES, total))
        return {mark.tokens for number, mark in enumerate(marks, len(self.marks)) if number in numbers}

    def add(self, marks: Sequence[CacheMark[Key]]) -> None:
        """Add marks, with the states there, and drop states that are no longer kept."""
        self.marks += marks
        for number in range(1, len(self.marks) - NEWEST_STATES):
            self.marks[number] = replace(self.marks[number], states=())

    def copies(self, part: PromptPart) -> set[int]:
        """Return the numbers of a part's tokens before each copy of states."""
        before = part.tokens - part.length
        return {tokens - before for tokens in self.with_states(part.marks)}

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values held, rounded up to the room of a separate cache, and of all states."""
        tokens = -(-len(self) // ROOM_TOKENS) * ROOM_TOKENS
        rooms = [rows for layer in self.attention_layers for rows in (layer.room_keys, layer.room_values)]
        keys_values = sum(tokens * (rows.nbytes // rows.shape[-2]) for rows in rooms if rows.numel())
        states = [state for mark in self.marks for state in mark.states if state is not None]
        states += [state for layer in self.recurrent_layers if (state := layer.state) is not None]
        return keys_values + sum(part.nbytes for state in states for part in state)


ROOM_TOKENS = 256
"""Tokens by which a layer's room grows, so that it seldom has to be copied."""


class GrowableLayer(DynamicLayer):
    """One layer's keys and values [1, heads, tokens, head_dim]: views of the beginning of larger tensors.

    `show` shortens the views, as a rewind does, and later tokens reuse the room. `room_keys` and `room_values` are the
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
        """Append keys and values [1, heads, L, head_dim]; return all that are held."""
        length = self.get_seq_length()
        total = length + key_states.shape[-2]
        self.make_room(total, key_states, value_states)
        self.room_keys[..., length:total, :] = key_states
        self.room_values[..., length:total, :] = value_states
        self.show(total)
        return self.keys, self.values

    def make_room(self, tokens: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Make room for tokens; the contents stay.

        Args:
            tokens: Tokens that the layer must hold.
            like_keys: Keys [..., kv heads, L, head_dim] that give the shape, dtype and device of new ones.
            like_values: Values of this kind.
        """
        if self.is_initialized and tokens <= self.room_keys.shape[-2]:
            return
        length = self.get_seq_length()
        room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
        for name, contents, like in (("room_keys", self.keys, like_keys), ("room_values", self.values, like_values)):
            # Zeros, because a weight of 0 times unwritten memory may be NaN.
            larger = like.new_zeros(*like.shape[:-2], room, like.shape[-1])
            if length:
                larger[..., :length, :] = contents
            setattr(self, name, larger)
        self.is_initialized = True
        self.show(length)

    def show(self, tokens: int) -> None:
        """Set the length to the first `tokens` written."""
        if not self.is_initialized:
            return
        self.keys, self.values = self.room_keys[..., :tokens, :], self.room_values[..., :tokens, :]


class RecurrentLayer(LinearAttentionLayer):
    """One layer's state, of constant size and written in place."""

    def lazy_initialization(
        self,
        conv_states: torch.Tensor | None = None,
        recurrent_states: torch.Tensor | None = None,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> None:
        """Allocate the states that the stock layer writes; nothing is marked for torch's compiler."""
        if conv_states is not None:
            if conv_kernel_size is None:
                size = conv_states.shape[-1]
            else:
                size = conv_kernel_size
            self.device, self.dtype, self.conv_kernel_size[state_idx] = conv_states.device, conv_states.dtype, size
            self.conv_states[state_idx] = conv_states.new_zeros(*conv_states.shape[:-1], size)
            self.is_conv_states_initialized[state_idx] = True
        if recurrent_states is not None:
            self.recurrent_states[state_idx] = torch.zeros_like(recurrent_states)
            self.is_recurrent_states_initialized[state_idx] = True

    @property
    def state(self) -> LayerState | None:
        """The current state, not copied; None before the first token."""
        if not self.has_previous_state[0]:
            return None
        return self.conv_states[0], self.recurrent_states[0]

    def require_state(self) -> LayerState:
        """Return the current state, not copied; a prompt must have been read."""
        assert self.state is not None, "nothing was read"
        return self.state

    def snapshot(self) -> LayerState | None:
        """Return a copy of the state; None before the first token."""
        if self.state is None:
            return None
        return (self.state[0].clone(), self.state[1].clone())

    def restore(self, state: LayerState | None) -> None:
        """Set the state; None: as before the first token."""
        if state is not None:
            if not self.is_conv_states_initialized[0]:
                self.lazy_initialization(*state)
            for now, then in zip((self.conv_states[0], self.recurrent_states[0]), state, strict=True):
                now.copy_(then)
        self.has_previous_state[0] = state is not None


def empty_cache(qwen: QwenVL) -> PrefixCache[Any]:
    """Return an empty cache for the stock language model; it is written in place, so it takes no gradients."""
    recurrent = qwen.layers.recurrent
    numbers = range(len(qwen.layers.attending) + len(recurrent))
    return PrefixCache(
        Cache(layers=[RecurrentLayer() if number in recurrent else GrowableLayer() for number in numbers])
    )


Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention of a layer (its number) over the queries [N, heads, head_dim], keys and values [N, kv heads, head_dim] of N
tokens, queries and keys rotated. Returns N * heads * head_dim numbers in this order, in any shape."""

Recur = Callable[[int, Any, torch.Tensor], torch.Tensor]
"""Output [N, D] of a recurrent layer (its number, and the stock module) for the rows [N, D] of N tokens."""


@dataclass(frozen=True, slots=True)
class DeepstackRows:
    """Rows that the first layers add to visual tokens: `visual` bool [N] marks the K visual ones of N tokens, `levels`
    holds their rows [K, D], one tensor a layer."""

    visual: torch.Tensor
    levels: Sequence[torch.Tensor] = ()


def layer_steps(
    qwen: QwenVL,
    embeds: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    attend: Attend,
    recur: Recur | None = None,
    deepstack: DeepstackRows | None = None,
) -> Steps[torch.Tensor]:
    """Run tokens through all layers of the decoder, one layer a step.

    Args:
        qwen: The model.
        embeds: Embeddings of N tokens, [N, D].
        cos: Cosines of their positions, [head_dim] or [N, 1, head_dim], in the dtype of `embeds`.
        sin: Sines of their positions, likewise.
        attend: Attention of a layer.
        recur: Output of a recurrent layer; None for a family without such layers.
        deepstack: Rows that the first layers add to visual tokens, if any.

    Returns:
        Hidden states before the final norm, [N, D].
    """
    hidden = embeds
    family = qwen.family
    attentions = qwen.attentions
    for index, layer in enumerate(qwen.language_model.layers):
        entering = layer.input_layernorm(hidden)
        attention = attentions.get(index)
        if attention is None:
            assert recur is not None, f"layer {index} is recurrent"
            hidden = hidden + recur(index, layer.linear_attn, entering)
        else:
            query, gate = projected_query(family, attention, entering)
            key, value = (
                linear_rows(product, entering).view(len(hidden), -1, attention.head_dim)
                for product in (attention.k_proj, attention.v_proj)
            )
            if family.query_norm:
                key = attention.k_norm(key)
            mixed = attend(index, rotate_native(query, cos, sin), rotate_native(key, cos, sin), value)
            mixed = mixed.reshape(len(hidden), -1)
            if gate is not None:
                mixed = mixed * gate.reshape(len(hidden), -1).sigmoid()
            hidden = hidden + linear_rows(attention.o_proj, mixed)
        hidden = hidden + _mlp_of_rows(layer.mlp, layer.post_attention_layernorm(hidden))
        if deepstack is not None and index < len(deepstack.levels):
            hidden[deepstack.visual] += deepstack.levels[index].to(hidden)
        yield
    return hidden


def projected_query(
    family: ModelFamily, attention: Any, entering: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the queries of an attention before their rotation.

    Args:
        family: The model's family.
        attention: The stock attention module.
        entering: Normalised hidden states of N tokens, [N, D].

    Returns:
        The queries [N, heads, head_dim], and the gates of the attention's output in the same shape; None for a family
        without gates.
    """
    query = linear_rows(attention.q_proj, entering)
    gate = None
    if family.gated:
        query, gate = query.view(len(entering), -1, 2 * attention.head_dim).chunk(2, dim=-1)
    query = query.reshape(len(entering), -1, attention.head_dim)
    return attention.q_norm(query) if family.query_norm else query, gate


def logits_of(qwen: QwenVL, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits [N, vocabulary] of hidden states [N, D] from `layer_steps`."""
    return linear_rows(qwen.model.lm_head, qwen.language_model.norm(hidden))


def linear_rows(linear: Any, rows: torch.Tensor) -> torch.Tensor:
    """Apply `linear` to rows [N, D]. One row in bfloat16 on a CPU with AMX is computed as matrix times vector, which
    reads weights at memory speed, while a product of matrices first rearranges them in tiles. Without AMX the product
    of matrices is faster."""
    single = len(rows) == 1 and rows.dtype == torch.bfloat16 and rows.device.type == "cpu"
    if not (single and type(linear) is nn.Linear and has_amx()) or linear.bias is not None:
        product: torch.Tensor = linear(rows)
        return product
    return torch.mv(linear.weight, rows[0])[None]


def _mlp_of_rows(mlp: Any, rows: torch.Tensor) -> torch.Tensor:
    if not hasattr(mlp, "gate_proj"):  # a mixture of experts, which needs the batch axis
        mixed: torch.Tensor = mlp(rows[None])[0]
        return mixed
    return linear_rows(mlp.down_proj, mlp.act_fn(linear_rows(mlp.gate_proj, rows)) * linear_rows(mlp.up_proj, rows))


class PromptPart:
    """A run of text and frames that is prefilled at once, after `tokens` tokens and from text `position` on. Both
    advance as text and frames are added; `marks` are valid after the prefill."""

    def __init__(self, qwen: QwenVL, tokens: int, position: int) -> None:
        self.tokens = tokens
        self.position = position
        self.marks: list[CacheMark[Any]] = []
        self._qwen = qwen
        self._embeds: list[torch.Tensor] = []
        self._positions: list[torch.Tensor] = []
        self._visual: list[torch.Tensor] = []
        self._deepstack: list[tuple[torch.Tensor, ...]] = []

    @property
    def length(self) -> int:
        """Number of tokens added."""
        return sum(len(rows) for rows in self._embeds)

    def mark(self, key: Any) -> None:
        """Mark the end of the piece `key`."""
        self.marks.append(CacheMark(key, self.tokens, self.position))

    def text(self, ids: tuple[int, ...] | list[int]) -> None:
        """Add token ids."""
        if ids:
            self._add(self._qwen.embed(list(ids)), text_positions(self.position, len(ids)), visual=False)
            self.position += len(ids)

    def frame(self, frame: EncodedFrame) -> slice:
        """Add a frame; return the rows of the cache that its tokens will have."""
        place = self.visual(frame)
        self.end_frame(frame.grid)
        return place

    def visual(self, frame: EncodedFrame) -> slice:
        """Add tokens of a frame without its end; return the rows of the cache that they will have."""
        embeds = frame.tokens.embeds[0].to(self._qwen.device)
        first = self.tokens
        self._add(embeds, visual_positions(self.position, frame.regions[0]), visual=True)
        self._deepstack.append(tuple(rows[0] for rows in frame.tokens.deepstack))
        return slice(first, self.tokens)

    def end_frame(self, grid: TileGrid) -> None:
        """End a frame whose tokens have been added; text continues after it."""
        self.position = after_frame(self.position, grid)

    def inputs(self, begin: int = 0, end: int | None = None) -> dict[str, Any]:
        """Return the language model's arguments for the added tokens from `begin` on, up to `end`."""
        arguments: dict[str, Any] = {
            "inputs_embeds": torch.cat(self._embeds)[None, begin:end],
            "position_ids": torch.cat(self._positions, dim=1)[:, None, begin:end],
        }
        if any(self._deepstack):
            visual = torch.cat(self._visual)
            rows = slice(None)
            if begin or end not in (None, self.length):
                rows = slice(int(visual[:begin].sum()), int(visual[:end].sum()))
            arguments["visual_pos_masks"] = visual[None, begin:end]
            arguments["deepstack_visual_embeds"] = [
                torch.cat(level)[rows] for level in zip(*self._deepstack, strict=True)
            ]
        return arguments

    def _add(self, embeds: torch.Tensor, positions: torch.Tensor, *, visual: bool) -> None:
        self._embeds.append(embeds)
        self._positions.append(positions.to(self._qwen.device))
        self._visual.append(torch.full((len(embeds),), visual, device=self._qwen.device))
        self.tokens += len(embeds)


@torch.inference_mode()
def prefill(
    qwen: QwenVL, part: PromptPart, cache: PrefixCache[Any], probe: AbstractContextManager[Any] | None = None
) -> torch.Tensor:
    """Add a part to the cache.

    With recurrent layers a pass ends at each copy of the states, which are available only after its last token.

    Args:
        qwen: The model.
        part: Text and frames; its marks are added with it.
        cache: The cache that the part continues.
        probe: Context that is entered for the last pass, if any.

    Returns:
        Logits after the last token, [vocabulary].
    """
    waiting: Sequence[CacheMark[Any]] = part.marks
    for begin, end in pairwise(sorted({0, part.length, *cache.copies(part)})):
        waiting = cache.reach(waiting)
        inputs = part.inputs(begin, end)
        with (probe if end == part.length else None) or nullcontext():
            hidden = qwen.language_model(**inputs, past_key_values=cache.kv, use_cache=True).last_hidden_state
    cache.reach(waiting)
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def least_probability(
    qwen: QwenVL,
    prompt: PromptPart,
    cache: PrefixCache[Any],
    logits: torch.Tensor,
    ids: Sequence[int],
    ends: Collection[int],
    mask: Callable[[torch.Tensor, Sequence[int]], None] | None = None,
) -> float:
    """Return the probability of the least likely token of an answer.

    Args:
        qwen: The model.
        prompt: The prompt.
        cache: Cache that holds the prompt, before and after the call.
        logits: Logits after the prompt, [vocabulary].
        ids: Token ids of the answer.
        ends: End tokens, of which one follows the answer; empty: no end is scored.
        mask: Function that sets the logits of tokens that may not come to -inf. It is called with the logits before
            each token, [N, vocabulary], and `ids`.

    Raises:
        NonFiniteError: NaN or Inf in the logits.
    """
    rows = logits[None]
    inputs = ids if ends else ids[:-1]
    if inputs:
        answer = PromptPart(qwen, prompt.tokens, prompt.position)
        answer.text(list(inputs))
        states = cache.states()
        hidden = qwen.language_model(**answer.inputs(), past_key_values=cache.kv, use_cache=True).last_hidden_state
        rows = torch.cat([rows, qwen.model.lm_head(hidden[0])])
        cache.show(prompt.tokens, states)
    if not bool(rows.isfinite().all()):
        raise not_finite(0)
    if mask is not None:
        rows = rows.clone()
        mask(rows, ids)
    chances = torch.softmax(rows.double(), dim=-1)
    likely = [float(row[token]) for row, token in zip(chances, ids, strict=False)]
    if ends:
        likely.append(float(chances[-1, list(ends)].sum()))
    return min(likely, default=1.0)


@torch.inference_mode()
def decode_one_token(qwen: QwenVL, token: torch.Tensor, position: int, kv: Any) -> torch.Tensor:
    """Add one token to the cache, through the stock model's forward.

    `DecodeStep` computes the same faster if the model `decodes_plainly`.

    Args:
        qwen: The model.
        token: Id of the token, int64 scalar on the model's device.
        position: Its text position.
        kv: The stock cache.

    Returns:
        Logits after the token, [vocabulary].
    """
    embeds = qwen.language_model.embed_tokens(token.view(1, 1))
    place = torch.full((3, 1, 1), float(position), device=embeds.device)
    hidden = qwen.language_model(
        inputs_embeds=embeds, position_ids=place, past_key_values=kv, use_cache=True
    ).last_hidden_state
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def choose(logits: torch.Tensor, options: Decoding, generator: torch.Generator | None) -> torch.Tensor:
    """Choose the next token.

    Nucleus sampling (arXiv:1904.09751): from the likeliest tokens whose probabilities reach `top_p`, at least one. A
    `top_k` above 0 first limits the tokens to the likeliest `top_k`, with their probabilities normalised.

    Args:
        logits: [vocabulary].
        options: Temperature, `top_p` and `top_k`; at temperature 0, the likeliest token is chosen.
        generator: Generator of the draw, on the device of the logits.

    Returns:
        The token's id, int64 scalar, not synchronised.
    """
    if options.temperature == 0:
        return logits.argmax()
    chances, tokens = torch.softmax(logits.float() / options.temperature, dim=-1).sort(descending=True)
    if options.top_k:
        chances = chances[: options.top_k]
        tokens = tokens[: options.top_k]
        chances = chances / chances.sum()
    before = chances.cumsum(0) - chances
    chances = torch.where(before < options.top_p, chances, 0.0)
    # The draw of `multinomial`, without its device synchronisation.
    race = torch.empty_like(chances).exponential_(generator=generator)
    return tokens[(chances / race).argmax()]


def choose_finite(
    logits: torch.Tensor, options: Decoding, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the next token, and check its logits.

    Args:
        logits: [vocabulary].
        options: As in `choose`.
        generator: As in `choose`.

    Returns:
        The token's id, and 1 if all logits are finite, else 0: int64 scalars, not synchronised.
    """
    finite = logits.isfinite().all()
    token = choose(torch.where(finite, logits, 0.0), options, generator)
    return token, finite.to(token.dtype)


def not_finite(index: int) -> NonFiniteError:
    """Return the error for non-finite logits of an answer's token number `index`."""
    return NonFiniteError(f"the logits of answer token {index} hold NaN or Inf; try dtype float32 or bfloat16")


_UNFINISHED = "\ufffd"


@dataclass(slots=True)
class Thoughts:
    """State of the thoughts before an answer, enclosed by the tokens `begin` and `end`: whether they have begun and
    ended, and, if they have begun, the number of `tokens` so far, including these two and space before them.
    `is_visible`: thoughts are part of the answer's text."""

    begin: int
    end: int
    is_visible: bool = False
    has_begun: bool = False
    has_ended: bool = False
    tokens: int = 0

    def take(self, token: int, *, blank: bool) -> bool:
        """Count the next token; return True if it belongs to thoughts, or is `blank`, white space that may precede
        them. An answer that begins with other text has none. Not after they have ended."""
        self.has_begun = self.has_begun or token == self.begin
        self.has_ended = token == self.end if self.has_begun else not blank
        self.tokens += 1
        return self.has_begun or blank


class TextStream:
    """Incremental detokenizer: pieces of text whose concatenation is the decoded text, up to the first of
    `stop_strings` that follows thoughts.

    A token may end in the middle of a UTF-8 character; text is held back until it is complete. `has_stopped`:
    the last piece ended with a stop string, and no text follows. Hidden `thoughts` are left out, with the space after
    them. `special_texts`: texts of the special tokens that stay in the text; others are left out.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop_strings: tuple[str, ...] = (),
        thoughts: Thoughts | None = None,
        special_texts: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special_texts = special_texts or {}
        self._stop_strings = stop_strings
        self._thoughts = thoughts
        self._begins = False
        self._recent = ""
        self.has_stopped = False
        self._ids: list[int] = []
        self._shown_ids = 0
        self._context_ids = 0

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        precedes = self._precedes_answer(token_id)
        if precedes and self._thoughts is not None and not self._thoughts.is_visible:
            # White space is kept until it is known whether thoughts follow.
            self._begins = self._thoughts.has_begun
            self._ids = [] if self._begins else [*self._ids, token_id]
            return ""
        self._ids.append(token_id)
        piece = self._fresh(final=False)
        if self._begins:
            piece = piece.lstrip()
            self._begins = not piece
        return piece if precedes else self._up_to_stop(piece)

    @property
    def thinks(self) -> bool:
        """True if thoughts have begun and not ended."""
        return self._thoughts is not None and self._thoughts.has_begun and not self._thoughts.has_ended

    @property
    def thought_tokens(self) -> int:
        """Number of tokens of thoughts so far."""
        if self._thoughts is not None and self._thoughts.has_begun:
            return self._thoughts.tokens
        return 0

    def finish(self) -> str:
        """Return the text that is still held back, with U+FFFD for an incomplete character."""
        return self._up_to_stop(self._fresh(final=True))

    def _precedes_answer(self, token_id: int) -> bool:
        """Take the next token; return True if it belongs to thoughts, or is white space that may precede them."""
        thoughts = self._thoughts
        if thoughts is None or thoughts.has_ended:
            return False
        return thoughts.take(token_id, blank=not self._decode([token_id]).strip())

    def _up_to_stop(self, piece: str) -> str:
        if self.has_stopped or not self._stop_strings:
            return "" if self.has_stopped else piece
        text = self._recent + piece
        ends = [text.find(stop) + len(stop) for stop in self._stop_strings if stop in text]
        if ends:
            self.has_stopped = True
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
        if self._special_texts.keys().isdisjoint(ids):
            return self._decode_plain(ids)
        at = next(at for at, token in enumerate(ids) if token in self._special_texts)
        return self._decode_plain(ids[:at]) + self._special_texts[ids[at]] + self._decode(ids[at + 1 :])

    def _decode_plain(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
