"""Number of slots, which answer one question each at the same time, that fit the memory."""

from __future__ import annotations

import torch

from arr_coc.errors import OptionError, counted
from arr_coc.qwen.cache import room_for
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.qwenvl import QwenVL, small_attention_dtype


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return free_memory_bytes()


def slot_bytes(qwen: QwenVL, tokens: int) -> int:
    """Return the memory of a slot of so many tokens."""
    config = qwen.language_model.config
    layers = qwen.layers
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    attention = qwen.attentions[layers.attending[0]]
    dtype = small_attention_dtype(attention.k_proj) or qwen.dtype
    keys_values = 2 * len(layers.attending) * heads * attention.head_dim * room_for(tokens) * dtype.itemsize
    return int(keys_values + layers.state_bytes(qwen.dtype.itemsize))


FREE_SHARE = 0.5
"""Share of the free memory that slots may take if their number is not given."""


def fitting_slots(qwen: QwenVL, tokens: int, most: int) -> int:
    """Return the number of slots of so many tokens that fit FREE_SHARE of the free memory: 1 to `most`. It is 1 for a
    model that takes one question at a time."""
    if not qwen.decodes_plainly:
        return 1
    return max(1, min(most, int(FREE_SHARE * free_bytes(qwen.device)) // slot_bytes(qwen, tokens)))


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
    a_slot = slot_bytes(qwen, tokens)
    free = free_bytes(qwen.device) if free is None else free
    if slots * a_slot > free:
        raise OptionError(
            f"{counted(slots, 'slot')} of {counted(tokens, 'token')} need {slots * a_slot / 1e6:,.1f} MB, and "
            f"{free / 1e6:,.1f} MB are free on {qwen.device}; set answer.slots to {max(1, free // a_slot)} or less, "
            "or lower answer.max_tokens"
        )
