"""Memory of a model's layers for several answers at once, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache

from arr_coc.errors import OptionError, counted
from arr_coc.qwen.cache import ROOM_TOKENS, GrowableLayer, PrefixCache, RecurrentLayer
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.prompt import PromptCache
from arr_coc.qwen.qwenvl import QwenVL

if TYPE_CHECKING:
    pass


class LayerBlock:
    """One layer's keys and values of S slots: `keys` and `values` [S, kv heads, room, head_dim], empty at first.

    The room grows for all slots together.
    """

    def __init__(self, slots: int) -> None:
        self.keys = torch.empty(0)
        self.values = torch.empty(0)
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
            larger = like.new_zeros(len(self._views), like.shape[-3], room, like.shape[-1])
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
        self.layers = {number: LayerBlock(slots) for number in qwen.layers.attending}
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
    head_dim = qwen.attentions[layers.attending[0]].head_dim
    room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
    a_slot = 2 * len(layers.attending) * heads * head_dim * room * qwen.dtype.itemsize
    a_slot += layers.state_bytes(qwen.dtype.itemsize)
    free = free_bytes(qwen.device) if free is None else free
    if slots * a_slot > free:
        raise OptionError(
            f"{counted(slots, 'slot')} of {counted(tokens, 'token')} need {slots * a_slot / 1e6:,.1f} MB, and "
            f"{free / 1e6:,.1f} MB are free on {qwen.device}; set answer.slots to {max(1, free // a_slot)} or less, "
            "or lower answer.max_tokens"
        )
