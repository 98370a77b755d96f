"""`ReadAhead`: reading of a packet into a group of pictures in idle time, in steps that may be given up at any time.

Keys and values of the new tokens are computed beside the cache, which stays as it is until `commit`. So a question that
comes meanwhile finds the group as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.qwen.cache import CacheMark, LayerState, empty_cache
from arr_coc.qwen.decode import DeepstackRows, PromptPart, layer_steps
from arr_coc.qwen.encoding import EncodedFrame, encode_steps
from arr_coc.qwen.prompt import PromptBuilder, PromptCache
from arr_coc.qwen.qwenvl import QwenVL, rotation
from arr_coc.qwen.vision import VisualTokens
from arr_coc.qwen.visual_memory import VisualMemory
from arr_coc.types import Steps, TokenPacket


class ReadAhead:
    """Reading of the last of `packets`, the packets of a group of pictures, into the cache of a slot.

    A packet that continues the group needs a cache that holds all packets before it: `fits`. A key frame begins a new
    group and needs nothing; until it is committed, answers about the old group may come in between. For a decoder that
    `decodes_plainly`.
    """

    def __init__(self, qwen: QwenVL, prompts: PromptBuilder, packets: Sequence[TokenPacket]) -> None:
        self._qwen = qwen
        self._prompts = prompts
        self._packet = packets[-1]
        self._key = prompts.ids.head, prompts.options.encode
        if self.is_key_frame:
            self._memory = None
        else:
            self._memory = prompts.memory_of(packets[:-1])
        self._frame: EncodedFrame | None = None
        self._outdated = np.zeros(0, np.int64)
        self._side = empty_cache(qwen)
        self._first = self._position = self._head_tokens = self._head_position = 0
        self._head_states: tuple[LayerState | None, ...] = ()
        self.is_done = False

    @property
    def is_key_frame(self) -> bool:
        """True if a new group begins."""
        return self._packet.place is not None and not self._packet.place.frame

    @property
    def fits(self) -> bool:
        """True if the cache still holds what the packet continues, as the prompt's options are."""
        same_options = self._key == (self._prompts.ids.head, self._prompts.options.encode)
        is_held = self.is_key_frame or (self._memory is not None and self._prompts.memory is self._memory)
        return same_options and is_held

    @torch.inference_mode()
    def steps(self) -> Steps[None]:
        """Encode the packet and prefill its tokens. Must not be continued once `fits` is false."""
        if len(self._packet.regions):
            self._frame = yield from encode_steps(self._qwen, self._packet)
        memory = self._memory
        cache = self._prompts.cache
        if memory is not None:
            self._outdated = memory.outdated_rows(self._packet)
        base = _Base(cache, 0, None)
        if memory is not None and not (cache.recurrent_layers and len(self._outdated)):
            rows = torch.ones(cache.marks[1].tokens, dtype=torch.bool)
            rows[memory.first + torch.from_numpy(self._outdated)] = False
            base = _Base(cache, int(rows.sum()), None if rows.all() else rows.nonzero()[:, 0])
            part = PromptPart(self._qwen, base.tokens, memory.position)
            self._side.show(0, cache.marks[1].states)
        else:
            part = PromptPart(self._qwen, 0, 0)
            part.text(self._prompts.ids.head)
            self._head_tokens = part.tokens
            self._head_position = part.position
            part.text(self._prompts.opening(self._packet, timed=False))
            self._first = part.tokens
            if memory is not None:  # what a recurrent layer has read cannot leave it
                fresh = copy(memory)
                fresh.drop(self._outdated)
                part.visual(EncodedFrame(VisualTokens(fresh.embeds[None]), fresh.regions[None], self._packet.grid))
        if self._frame is not None:
            part.visual(self._frame)
        yield from self._prefill(part, base)
        self._position = part.position
        self.is_done = True

    def _prefill(self, part: PromptPart, base: _Base) -> Steps[None]:
        """Compute keys and values of a part, a few tokens at a time, after those of `base`."""
        step = self._qwen.step_tokens
        ends = sorted({*range(0, part.length, step), self._head_tokens, part.length})
        side = self._side.kv

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            side_rows = side.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], layer)
            return _attend(query, *base.before(layer, side_rows))

        def recur(number: int, layer: Any, entering: torch.Tensor) -> torch.Tensor:
            mixed: torch.Tensor = layer(hidden_states=entering[None], cache_params=side)[0]
            return mixed

        for begin, end in pairwise(ends):
            inputs = part.inputs(begin, end)
            embeds = inputs["inputs_embeds"][0]
            cos, sin = (rows.to(embeds)[:, None] for rows in rotation(self._qwen, inputs["position_ids"][:, 0]))
            deepstack = None
            if "visual_pos_masks" in inputs:
                deepstack = DeepstackRows(inputs["visual_pos_masks"][0], inputs["deepstack_visual_embeds"])
            yield from layer_steps(self._qwen, embeds, cos, sin, attend, recur, deepstack)
            if end == self._head_tokens:
                self._head_states = self._side.states()

    def wait(self) -> None:
        """Wait until the device has done the steps so far, so that their time is known."""
        if self._qwen.device.type == "cuda":
            torch.cuda.synchronize(self._qwen.device)

    @torch.inference_mode()
    def commit(self) -> None:
        """Write what was read into the cache; it must be `is_done`, and `fits`. Costs a copy."""
        cache = self._prompts.cache
        ids = self._prompts.ids
        memory = self._memory
        is_fresh = self._head_tokens > 0
        if is_fresh:
            cache.rewind([])
            cache.marks = [CacheMark(ids.head, self._head_tokens, self._head_position, self._head_states)]
            if memory is None:
                memory = VisualMemory(self._first, self._position, self._qwen.embed([]))
            else:
                memory.drop(self._outdated)
        else:
            assert memory is not None
            cache.rewind([ids.head, memory])
            del cache.marks[1:]
            if len(self._outdated):
                memory.remove(cache, self._outdated)
        for number, layer in enumerate(self._side.kv.layers):
            if layer in self._side.attention_layers and layer.get_seq_length():
                cache.kv.layers[number].update(layer.keys, layer.values)
        for recurrent, state in zip(cache.recurrent_layers, self._side.states(), strict=True):
            recurrent.restore(state)
        end = len(cache)
        if self._frame is None:
            count = 0
        else:
            count = self._frame.regions.shape[1]
        memory.append(self._packet, self._frame, slice(end - count, end), end)
        memory.position = self._position
        cache.add([CacheMark(memory, end, memory.position, self._side.states())])


class _Base:
    """Keys and values of a cache that stay before new tokens: `tokens` of them, the first, or those in `rows`."""

    def __init__(self, cache: PromptCache, tokens: int, rows: torch.Tensor | None) -> None:
        self._cache = cache
        self.tokens = tokens
        self._rows = rows

    def before(self, layer: int, new_rows: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
        """Return keys and values [1, kv heads, tokens, head_dim] of a layer before those of new tokens."""
        if not self.tokens:
            return list(new_rows)
        base = self._cache.kv.layers[layer]
        joined = []
        for room, new in zip((base.room_keys, base.room_values), new_rows, strict=True):
            rows = room[..., : self.tokens, :]
            if self._rows is not None:
                rows = room.index_select(-2, self._rows.to(room.device))
            joined.append(torch.cat([rows, new], dim=-2))
        return joined


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention of the last N of L tokens: query [N, heads, head_dim], keys and values [1, kv heads, L,
    head_dim]."""
    tokens = len(query)
    length = keys.shape[-2]
    shared = query.shape[1] // keys.shape[1]
    if shared > 1:
        keys, values = (rows.repeat_interleave(shared, dim=1) for rows in (keys, values))
    mask = torch.ones(tokens, length, dtype=torch.bool, device=query.device).tril(length - tokens)
    mixed = F.scaled_dot_product_attention(query.transpose(0, 1)[None], keys, values, attn_mask=mask)
    return mixed[0].transpose(0, 1)
