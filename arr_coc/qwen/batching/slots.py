"""Slots: keys and values of several prompts in one tensor a layer, each seen as a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache

from arr_coc.errors import OptionError, counted
from arr_coc.qwen.decode import ROOM_TOKENS, GrowableLayer, PrefixCache
from arr_coc.qwen.prompt import PromptCache
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.window_limits import free_bytes, megabytes


class LayerBlock:
    """One layer's keys and values of S slots: `keys` and `values` [S, kv heads, room, head_dim], empty at first.

    When one slot needs more room, all of them get it.
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
        """Sees to it that so many tokens fit in each slot; all that was written stays. The tensors say heads, head_dim,
        dtype and device."""
        held = self.room
        if tokens <= held:
            return
        room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
        for name, like in (("keys", like_keys), ("values", like_values)):
            # Zeros, because a product with what was never written would turn a weight of 0 into NaN.
            larger = like.new_zeros(len(self._views), like.shape[-3], room, like.shape[-1])
            if held:
                larger[:, :, :held] = getattr(self, name)
            setattr(self, name, larger)
        for slot, view in enumerate(self._views):
            view.look_at(self.keys[slot : slot + 1], self.values[slot : slot + 1])


class SlotLayer(GrowableLayer):
    """One slot's part of a layer's block."""

    def __init__(self, block: LayerBlock) -> None:
        super().__init__()
        self._block = block

    def make_room(self, tokens: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        """Sees to it that so many tokens fit, in every slot."""
        self._block.make_room(tokens, like_keys, like_values)

    def look_at(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Lies in these tensors [1, kv heads, room, head_dim] from here on, which hold what it held."""
        held = self.get_seq_length()
        self.room_keys, self.room_values = keys, values
        self.is_initialized = True
        self.show(held)


class SlotBlock:
    """Keys and values of S slots for a model, in one tensor a layer: `layers`, and `caches`, one for each slot."""

    def __init__(self, qwen: QwenVL, slots: int) -> None:
        self.slots = slots
        self.layers = [LayerBlock(slots) for _ in qwen.language_model.layers]
        self.caches: list[PromptCache] = [
            PrefixCache(Cache(layers=[layer.views[slot] for layer in self.layers])) for slot in range(slots)
        ]

    @property
    def room(self) -> int:
        """Tokens for which each slot has room."""
        return self.layers[0].room

    def make_room(self, tokens: int) -> None:
        """Sees to it that so many tokens fit in each slot, once something was written."""
        for layer in self.layers:
            layer.make_room(tokens, layer.keys, layer.values)


def check_slots(qwen: QwenVL, slots: int, tokens: int, free: int | None = None) -> None:
    """Raises OptionError where the model's decoder cannot answer several at once, or the keys and values of so many
    slots of `tokens` tokens do not fit the memory. `free` in bytes is measured where it is not given."""
    if not qwen.decodes_plainly:
        raise OptionError(
            f"{qwen.model_id} is spread over devices, or sees a part of the text only, so it answers one client at a "
            "time; leave answer.slots at 1"
        )
    config = qwen.language_model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = qwen.language_model.layers[0].self_attn.head_dim
    weight = qwen.language_model.embed_tokens.weight
    room = -(-tokens // ROOM_TOKENS) * ROOM_TOKENS
    a_slot = 2 * len(qwen.language_model.layers) * heads * head_dim * room * weight.element_size()
    free = free_bytes(weight.device) if free is None else free
    if slots * a_slot > free:
        raise OptionError(
            f"{counted(slots, 'slot')} of {counted(tokens, 'token')} need {megabytes(slots * a_slot)}, and "
            f"{megabytes(free)} are free on {weight.device}; set answer.slots to {max(1, free // a_slot)} or less, or "
            "lower answer.max_tokens"
        )
