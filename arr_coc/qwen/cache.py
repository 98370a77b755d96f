"""Cache of the decoder's layers for prompts that begin alike: it is cut back to a mark, and goes on from there.

The stock dynamic cache copies all keys to a new tensor for every token; the stock static cache cannot be rewound.
Attention layers keep keys and values, which can be cut off after any token. A recurrent layer keeps one state, which is
copied at the first mark and at the newest two. Prompts of several slots share their memory, in a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from transformers.cache_utils import Cache, DynamicLayer

from arr_coc.qwen.families import NEWEST_STATES
from arr_coc.qwen.qwenvl import QwenVL, small_attention_dtype

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

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values held, rounded up to the room of a separate cache, and of all states."""
        tokens = room_for(len(self))
        rooms = [rows for layer in self.attention_layers for rows in (layer.room_keys, layer.room_values)]
        keys_values = sum(tokens * (rows.nbytes // rows.shape[-2]) for rows in rooms if rows.numel())
        states = [state for mark in self.marks for state in mark.states if state is not None]
        states += [state for layer in self.recurrent_layers if (state := layer.state) is not None]
        return keys_values + sum(part.nbytes for state in states for part in state)


ROOM_TOKENS = 256
"""Tokens by which a layer's room grows, so that it seldom has to be copied."""


def room_for(tokens: int) -> int:
    """Return the tokens for which a layer of so many makes room."""
    return -(-tokens // ROOM_TOKENS) * ROOM_TOKENS


class GrowableLayer(DynamicLayer):
    """One layer's keys and values [1, heads, tokens, head_dim]: views of the beginning of larger tensors.

    `show` shortens the views, as a rewind does, and later tokens reuse the room. `room_keys` and `room_values` are the
    larger tensors; they are replaced only when the room grows. `room_dtype`: dtype that they are kept in; None: that of
    the first ones.
    """

    def __init__(self, room_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.room_dtype = room_dtype
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
            like_keys: Keys [..., kv heads, L, head_dim] that give the shape, device and dtype of new ones.
            like_values: Values of this kind.
        """
        if self.is_initialized and tokens <= self.room_keys.shape[-2]:
            return
        length = self.get_seq_length()
        room = room_for(tokens)
        for name, contents, like in (("room_keys", self.keys, like_keys), ("room_values", self.values, like_values)):
            # Zeros, because a weight of 0 times unwritten memory may be NaN.
            larger = like.new_zeros(*like.shape[:-2], room, like.shape[-1], dtype=self.room_dtype)
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

    def free(self) -> None:
        """Give back the memory; the layer is as at first."""
        self.keys = self.values = torch.empty(0)
        self.room_keys = torch.empty(0)
        self.room_values = torch.empty(0)
        self.is_initialized = False


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

    def free(self) -> None:
        """Give back the memory; the layer is as at first."""
        self.conv_states[0] = self.recurrent_states[0] = None
        self.is_conv_states_initialized[0] = self.is_recurrent_states_initialized[0] = False
        self.has_previous_state[0] = False


def empty_cache(qwen: QwenVL) -> PrefixCache[Any]:
    """Return an empty cache for the stock language model; it is written in place, so it takes no gradients."""
    layers = {
        number: GrowableLayer(small_attention_dtype(attention.k_proj)) for number, attention in qwen.attentions.items()
    }
    states = {number: RecurrentLayer() for number in qwen.layers.recurrent}
    return PrefixCache(Cache(layers=[layer for _, layer in sorted({**layers, **states}.items())]))


class LayerBlock:
    """One layer's keys and values of up to S slots: `keys` and `values` [allocated slots, kv heads, room, head_dim],
    empty at first.

    Room for tokens grows for all slots together. Slots get memory when one of them is first used: as many as a power
    of two, so that they are seldom copied.
    """

    def __init__(self, slots: int, room_dtype: torch.dtype | None = None) -> None:
        """`room_dtype` as in `GrowableLayer`."""
        self.keys = torch.empty(0)
        self.values = torch.empty(0)
        self._room_dtype = room_dtype
        self._views = [SlotLayer(self, slot) for slot in range(slots)]

    @property
    def views(self) -> Sequence[SlotLayer]:
        """The layer of each slot."""
        return self._views

    @property
    def allocated(self) -> int:
        """Number of slots that have memory: the first ones."""
        return len(self.keys)

    @property
    def room(self) -> int:
        """Tokens for which each of these has room."""
        return self.keys.shape[2] if self.keys.ndim == 4 else 0

    def make_room(self, tokens: int, slots: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Make room; contents stay.

        Args:
            tokens: Tokens that each slot must hold.
            slots: Number of slots that must have memory.
            like_keys: Keys [..., kv heads, L, head_dim] that give the shape, dtype and device of new ones.
            like_values: Values of this kind.
        """
        if tokens <= self.room and slots <= self.allocated:
            return
        room = max(self.room, room_for(tokens))
        self._replace(max(self.allocated, _power_of_two(slots, len(self._views))), room, like_keys, like_values)

    def shrink(self, slots: int) -> None:
        """Give back the memory of all but the first `slots`, 1 or more; the others are empty then."""
        if slots < self.allocated:
            self._replace(slots, self.room, self.keys, self.values)

    def _replace(self, slots: int, room: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        old_room = self.room
        kept = min(slots, self.allocated)
        for name, like in (("keys", like_keys), ("values", like_values)):
            # Zeros, because a weight of 0 times unwritten memory may be NaN.
            shape = (slots, like.shape[-3], room, like.shape[-1])
            new = like.new_zeros(shape, dtype=self._room_dtype)
            if old_room:
                new[:kept, :, :old_room] = getattr(self, name)[:kept]
            setattr(self, name, new)
        for slot, view in enumerate(self._views):
            if slot < slots:
                view.look_at(self.keys[slot : slot + 1], self.values[slot : slot + 1])
            else:
                view.free()


class SlotLayer(GrowableLayer):
    """One slot's part of a layer's block."""

    def __init__(self, block: LayerBlock, slot: int) -> None:
        super().__init__()
        self._block = block
        self._slot = slot

    def make_room(self, tokens: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Make room for `tokens` in every slot up to this one."""
        self._block.make_room(tokens, self._slot + 1, like_keys, like_values)

    def look_at(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Use these tensors [1, kv heads, room, head_dim], which already hold the layer's contents."""
        length = self.get_seq_length()
        self.room_keys = keys
        self.room_values = values
        self.is_initialized = True
        self.show(length)


class SlotBlock:
    """Memory of a model's layers for up to S slots. `layers`: keys and values of each attention layer, one tensor for
    all slots, by layer index. `states`: recurrent layers of each slot. `caches`: cache of each slot."""

    def __init__(self, qwen: QwenVL, slots: int) -> None:
        self.slots = slots
        self.layers = {
            number: LayerBlock(slots, small_attention_dtype(attention.k_proj))
            for number, attention in qwen.attentions.items()
        }
        self.states = [{number: RecurrentLayer() for number in qwen.layers.recurrent} for _ in range(slots)]
        self.caches: list[PrefixCache[Any]] = []
        for slot, states in enumerate(self.states):
            slot_layers: dict[int, Any] = states | {number: layer.views[slot] for number, layer in self.layers.items()}
            self.caches.append(PrefixCache(Cache(layers=[slot_layers[number] for number in sorted(slot_layers)])))

    @property
    def allocated(self) -> int:
        """Number of slots that have memory: the first ones."""
        return next(iter(self.layers.values())).allocated

    @property
    def room(self) -> int:
        """Tokens for which each of these has room."""
        return next(iter(self.layers.values())).room

    def make_room(self, tokens: int, slots: int) -> None:
        """Make room for `tokens` in each of the first `slots`; keys must have been written before."""
        for layer in self.layers.values():
            layer.make_room(tokens, slots, layer.keys, layer.values)

    def surplus(self, slots: int) -> range:
        """Return the slots whose memory is worth giving back if the first `slots`, 1 or more, are enough: none unless
        the others have three quarters of it."""
        kept = _power_of_two(slots, self.slots)
        return range(kept, self.allocated if 4 * kept <= self.allocated else kept)

    def free(self, surplus: range) -> None:
        """Give back the memory of the last slots, whose caches must be empty; it comes back when they are used."""
        for layer in self.layers.values():
            layer.shrink(surplus.start)
        for slot in surplus:
            for state in self.states[slot].values():
                state.free()


def _power_of_two(slots: int, most: int) -> int:
    """Return the number of slots to allocate for `slots`, 1 or more: the next power of two, at most `most`."""
    return min(1 << (slots - 1).bit_length(), most)
