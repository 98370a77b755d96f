"""Slots of a batch: keys and values of several prompts, and one token of every open answer in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from transformers.cache_utils import Cache

from arr_coc.errors import OptionError, counted
from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.cache import ROOM_TOKENS, GrowableLayer, LayerState, PrefixCache, RecurrentLayer
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.decode import decode_one_token, layer_steps, logits_of
from arr_coc.qwen.preprocess import text_positions
from arr_coc.qwen.prompt import PromptCache
from arr_coc.qwen.qwenvl import QwenVL, rotation, small_attention_dtype
from arr_coc.types import finish

if TYPE_CHECKING:
    from arr_coc.qwen.constraint import AnswerConstraint
    from arr_coc.qwen.penalties import TokenPenalties


class LayerBlock:
    """One layer's keys and values of S slots: `keys` and `values` [S, kv heads, room, head_dim], empty at first.

    The room grows for all slots together.
    """

    def __init__(self, slots: int, room_dtype: torch.dtype | None = None) -> None:
        """`room_dtype` as in `GrowableLayer`."""
        self.keys = torch.empty(0)
        self.values = torch.empty(0)
        self._room_dtype = room_dtype
        self._views = [SlotLayer(self) for _ in range(slots)]

    @property
    def views(self) -> Sequence[SlotLayer]:
        """The layer of each slot."""
        return self._views

    @property
    def room(self) -> int:
        """Tokens for which each slot has room."""
        return self.keys.shape[2] if self.keys.ndim == 4 else 0

    def make_room(self, tokens: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Make room in each slot; contents stay.

        Args:
            tokens: Tokens that each slot must hold.
            like_keys: Keys [..., kv heads, L, head_dim] that give the shape, dtype and device of new ones.
            like_values: Values of this kind.
        """
        old_room = self.room
        if tokens <= old_room:
            return
        room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
        for name, like in (("keys", like_keys), ("values", like_values)):
            # Zeros, because a weight of 0 times unwritten memory may be NaN.
            shape = (len(self._views), like.shape[-3], room, like.shape[-1])
            larger = like.new_zeros(shape, dtype=self._room_dtype)
            if old_room:
                larger[:, :, :old_room] = getattr(self, name)
            setattr(self, name, larger)
        for slot, view in enumerate(self._views):
            view.look_at(self.keys[slot : slot + 1], self.values[slot : slot + 1])


class SlotLayer(GrowableLayer):
    """One slot's part of a layer's block."""

    def __init__(self, block: LayerBlock) -> None:
        super().__init__()
        self._block = block

    def make_room(self, tokens: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Make room for `tokens` in every slot."""
        self._block.make_room(tokens, like_keys, like_values)

    def look_at(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Use these tensors [1, kv heads, room, head_dim], which already hold the layer's contents."""
        length = self.get_seq_length()
        self.room_keys = keys
        self.room_values = values
        self.is_initialized = True
        self.show(length)


class SlotBlock:
    """Memory of a model's layers for S slots. `layers`: keys and values of each attention layer, one tensor for all
    slots, by layer index. `states`: recurrent layers of each slot. `caches`: cache of each slot."""

    def __init__(self, qwen: QwenVL, slots: int) -> None:
        self.slots = slots
        self.layers = {
            number: LayerBlock(slots, small_attention_dtype(attention.k_proj))
            for number, attention in qwen.attentions.items()
        }
        self.states = [{number: RecurrentLayer() for number in qwen.layers.recurrent} for _ in range(slots)]
        self.caches: list[PromptCache] = []
        for slot, states in enumerate(self.states):
            slot_layers: dict[int, Any] = states | {number: layer.views[slot] for number, layer in self.layers.items()}
            self.caches.append(PrefixCache(Cache(layers=[slot_layers[number] for number in sorted(slot_layers)])))

    @property
    def room(self) -> int:
        """Tokens for which each slot has room."""
        return next(iter(self.layers.values())).room

    def make_room(self, tokens: int) -> None:
        """Make room for `tokens` in each slot; keys must have been written before."""
        for layer in self.layers.values():
            layer.make_room(tokens, layer.keys, layer.values)


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return free_memory_bytes()


def check_slots(qwen: QwenVL, slots: int, tokens: int, free: int | None = None) -> None:
    """Check that a model can answer several questions at once.

    Args:
        qwen: The model.
        slots: Number of slots.
        tokens: Tokens of each slot, whose keys and values must fit the free memory.
        free: Free memory in bytes; None: measured.

    Raises:
        OptionError: The decoder takes one question at a time, or the memory is too small.
    """
    if not qwen.decodes_plainly:
        raise OptionError(
            f"{qwen.model_id} is spread over devices, or sees a part of the text only, so it answers one client at a "
            "time; leave answer.slots at 1"
        )
    config = qwen.language_model.config
    layers = qwen.layers
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    attention = qwen.attentions[layers.attending[0]]
    room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
    dtype = small_attention_dtype(attention.k_proj) or qwen.dtype
    a_slot = 2 * len(layers.attending) * heads * attention.head_dim * room * dtype.itemsize
    a_slot += layers.state_bytes(qwen.dtype.itemsize)
    free = free_bytes(qwen.device) if free is None else free
    if slots * a_slot > free:
        raise OptionError(
            f"{counted(slots, 'slot')} of {counted(tokens, 'token')} need {slots * a_slot / 1e6:,.1f} MB, and "
            f"{free / 1e6:,.1f} MB are free on {qwen.device}; set answer.slots to {max(1, free // a_slot)} or less, "
            "or lower answer.max_tokens"
        )


_TABLE_TOKENS = 256
"""Positions by which a table of rotations grows."""

PADDED_MAX = 2.0
"""Largest factor by which padding to the longest prompt may multiply the keys; beyond it, attention runs slot by
slot."""


class RotationTable:
    """Table of cosines and sines of text positions, each computed once."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen
        self._cos = self._sin = torch.empty(0)

    def of(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines [N, 1, head_dim] of N positions, in the model's dtype."""
        last = max(positions)
        if last >= len(self._cos):
            count = (last // _TABLE_TOKENS + 1) * _TABLE_TOKENS
            dtype = self._qwen.dtype
            cos, sin = rotation(self._qwen, text_positions(0, count))
            self._cos = cos.to(dtype)[:, None]
            self._sin = sin.to(dtype)[:, None]
        if len(positions) == 1:
            return self._cos[last : last + 1], self._sin[last : last + 1]
        places = torch.tensor(positions, device=self._cos.device)
        return self._cos[places], self._sin[places]


@dataclass(slots=True, eq=False)
class DecodeRow:
    """State of one open answer: its slot, the number of tokens with keys in the slot, and the next text position and
    token. `remaining`: tokens that the answer may get after that one. `probe` records its queries; `generator` samples
    its tokens; None without sampling. `constraint`: the tokens that may come, of an answer with a schema. `penalties`:
    of tokens that came before; None without penalties."""

    slot: int
    cached_tokens: int
    position: int
    remaining: int
    probe: AttentionProbe | None = None
    generator: torch.Generator | None = None
    token: int = 0
    constraint: AnswerConstraint | None = None
    penalties: TokenPenalties | None = None

    @property
    def chooses_alone(self) -> bool:
        """True if the likeliest token of its logits is not always the next one."""
        return self.generator is not None or self.penalties is not None

    def advance(self) -> None:
        """Count a token that was added."""
        self.cached_tokens += 1
        self.position += 1
        self.remaining -= 1


class DecodeStep:
    """Step that adds one token to each of several answers. Their keys follow the prompts and are not part of the
    length of the slots' caches."""

    def __init__(self, qwen: QwenVL, block: SlotBlock) -> None:
        self._qwen = qwen
        self._block = block
        self._rotations = RotationTable(qwen)

    @torch.inference_mode()
    def __call__(self, rows: Sequence[DecodeRow]) -> torch.Tensor:
        """Add the next tokens of N answers, each in a separate slot; return the logits [N, vocabulary] after them."""
        if not self._qwen.decodes_plainly:
            return self._through_stock_model(*rows)
        self._block.make_room(max(row.cached_tokens for row in rows) + 1)
        cos, sin = self._rotations.of([row.position for row in rows])
        tokens = torch.tensor([row.token for row in rows], device=self._qwen.device)
        embeds = self._qwen.language_model.embed_tokens(tokens)
        is_single = len(rows) == 1
        attend = (
            _SingleAttention(self._block, rows[0]) if is_single else _SlotAttention(self._block, rows, embeds.device)
        )
        recur = _SlotRecurrence(self._block, rows)
        logits = logits_of(self._qwen, finish(layer_steps(self._qwen, embeds, cos, sin, attend, recur)))
        for row in rows:
            row.advance()
        return logits

    def _through_stock_model(self, row: DecodeRow) -> torch.Tensor:
        """Add one token through the stock model, for a model that is spread over devices or has sliding windows. Such a
        model has one slot."""
        with row.probe or nullcontext():
            token = torch.tensor(row.token, device=self._qwen.device)
            logits = decode_one_token(self._qwen, token, row.position, self._block.caches[row.slot].kv)
        row.advance()
        return logits[None]


class _SingleAttention:
    """Attention of one token to its slot's tokens, without padding or mask."""

    def __init__(self, block: SlotBlock, row: DecodeRow) -> None:
        self._rooms = {number: layer.views[row.slot] for number, layer in block.layers.items()}
        self._cached_tokens = row.cached_tokens
        self._probe = row.probe

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Attend`."""
        room = self._rooms[layer]
        position = self._cached_tokens
        room.room_keys.select(2, position).copy_(key)
        room.room_values.select(2, position).copy_(value)
        keys = room.room_keys.narrow(2, 0, position + 1)
        values = room.room_values.narrow(2, 0, position + 1)
        if self._probe is not None:
            self._probe.see(layer, query[0], keys[0])
        # Heads that share keys are rows, so that no key is repeated.
        return F.scaled_dot_product_attention(query.view(1, key.shape[1], -1, query.shape[-1]), keys, values)


class _SlotAttention:
    """Attention of one token in each of N slots to its slot's tokens: padded to the longest, or slot by slot if the
    padding exceeds PADDED_MAX."""

    def __init__(self, block: SlotBlock, rows: Sequence[DecodeRow], device: torch.device) -> None:
        self._block = block
        self._rows = rows
        cached_tokens = [row.cached_tokens for row in rows]
        self._longest = longest = max(cached_tokens) + 1
        self._slots = torch.tensor([row.slot for row in rows], device=device)
        self._cached_tokens = torch.tensor(cached_tokens, device=device)
        self._span = max(row.slot for row in rows) + 1
        self._in_order = all(row.slot == index for index, row in enumerate(rows))
        self._one_by_one = self._span * longest > PADDED_MAX * (sum(cached_tokens) + len(cached_tokens))
        self._mask = torch.empty(0)
        if not self._one_by_one:
            # Slots without an answer attend to the first token only, as an empty row of the mask would give NaN.
            ends = torch.zeros(self._span, dtype=torch.long, device=device).index_copy(
                0, self._slots, self._cached_tokens
            )
            self._mask = (torch.arange(longest, device=device) <= ends[:, None])[:, None, None]

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Attend`."""
        block = self._block.layers[layer]
        block.keys[self._slots, :, self._cached_tokens] = key
        block.values[self._slots, :, self._cached_tokens] = value
        for index, row in enumerate(self._rows):
            if row.probe is not None:
                row.probe.see(layer, query[index], block.keys[row.slot, :, : row.cached_tokens + 1])
        grouped = query.view(len(query), key.shape[1], -1, query.shape[-1])  # heads that share keys as rows
        if self._one_by_one:
            parts = []
            for row, row_query in zip(self._rows, grouped, strict=True):
                keys = block.keys[row.slot, None, :, : row.cached_tokens + 1]
                values = block.values[row.slot, None, :, : row.cached_tokens + 1]
                parts.append(F.scaled_dot_product_attention(row_query[None], keys, values))
            return torch.cat(parts)
        keys, values = (rows[: self._span, :, : self._longest] for rows in (block.keys, block.values))
        if self._in_order:
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)
        spread = grouped.new_zeros(self._span, *grouped.shape[1:]).index_copy(0, self._slots, grouped)
        mixed = F.scaled_dot_product_attention(spread, keys, values, attn_mask=self._mask)
        return mixed[self._slots]


class _SlotRecurrence:
    """Recurrent layers for one token in each of N slots, as a batch of the stock layer. The object is passed to the
    layer as the model's cache."""

    def __init__(self, block: SlotBlock, rows: Sequence[DecodeRow]) -> None:
        self._states = [block.states[row.slot] for row in rows]
        self._batch: LayerState = (torch.empty(0), torch.empty(0))

    def __call__(self, number: int, layer: Any, entering: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Recur`."""
        states = [layers[number].require_state() for layers in self._states]
        if len(states) == 1:
            self._batch = states[0]
        else:
            conv, recurrent = zip(*states, strict=True)
            self._batch = (torch.cat(conv), torch.cat(recurrent))
        mixed: torch.Tensor = layer(hidden_states=entering[:, None], cache_params=self)
        if len(states) > 1:
            for row, state in enumerate(states):
                for tensor, batch in zip(state, self._batch, strict=True):
                    tensor.copy_(batch[row : row + 1])
        return mixed[:, 0]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        """Return the last inputs of the convolution, which the layer updates in place."""
        return self._batch[0]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        """Return the recurrent state."""
        return self._batch[1]

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int) -> None:
        """Store the recurrent state."""
        self._batch[1].copy_(recurrent_states)

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: states are overwritten in place."""
        return False


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Return the likeliest tokens of logits [N, vocabulary], and 1 if all are finite, else 0: int64 [N, 2]."""
    finite = logits.isfinite().all(dim=-1)
    return torch.stack([logits.argmax(dim=-1), finite.long()], dim=-1)
