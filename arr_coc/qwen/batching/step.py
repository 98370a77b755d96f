"""One token of several answers in one pass: a batch axis in the decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from arr_coc.qwen.batching.slots import SlotBlock
from arr_coc.qwen.decode import Watch, logits_of, rotations, through_layers
from arr_coc.qwen.qwenvl import QwenVL

_TABLE_TOKENS = 256
"""A table of rotations has a multiple of so many positions."""

PADDED_MAX = 2.0
"""Where padding to the longest prompt would multiply the keys by more than that, attention goes slot by slot."""


class RotationTable:
    """Cosines and sines of text positions, each made once."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen
        self._cos = self._sin = torch.empty(0)

    def of(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [N, 1, head_dim] of N positions, in the model's dtype."""
        last = max(positions)
        if last >= len(self._cos):
            count = (last // _TABLE_TOKENS + 1) * _TABLE_TOKENS
            self._cos, self._sin = (rows[:, None] for rows in rotations(self._qwen, 0, count))
        if len(positions) == 1:
            return self._cos[last : last + 1], self._sin[last : last + 1]
        places = torch.tensor(positions, device=self._cos.device)
        return self._cos[places], self._sin[places]


@dataclass(slots=True)
class DecodeRow:
    """State of one answer in a batch: its slot, the tokens that the slot holds, the text position that is next, and
    what receives its queries."""

    slot: int
    held: int
    position: int
    watch: Watch | None = None


class BatchStep:
    """Adds one token to each of several answers. What it writes lies behind the prompts, which the slots' caches do not
    count as held."""

    def __init__(self, qwen: QwenVL, block: SlotBlock) -> None:
        self._qwen = qwen
        self._block = block
        self._rotations = RotationTable(qwen)

    @torch.inference_mode()
    def __call__(self, rows: Sequence[DecodeRow], tokens: Sequence[int]) -> torch.Tensor:
        """The logits [N, vocabulary] after the next tokens of N answers, in slots of their own."""
        longest = max(row.held for row in rows) + 1
        self._block.make_room(longest)
        cos, sin = self._rotations.of([row.position for row in rows])
        embeds = self._qwen.language_model.embed_tokens(torch.tensor(tokens, device=self._qwen.device))
        alone = len(rows) == 1
        attend = _LoneAttention(self._block, rows[0]) if alone else _SlotAttention(self._block, rows, embeds.device)
        logits = logits_of(self._qwen, through_layers(self._qwen, embeds, cos, sin, attend))
        for row in rows:
            row.held += 1
            row.position += 1
        return logits


class _LoneAttention:
    """Attention of one token to what its slot holds: the numbers of `SingleTokenStep`."""

    def __init__(self, block: SlotBlock, row: DecodeRow) -> None:
        self._block = block
        self._row = row

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Attend`."""
        block, slot, held = self._block.layers[layer], self._row.slot, self._row.held
        block.keys[slot, :, held] = key[0]
        block.values[slot, :, held] = value[0]
        keys, values = block.keys[slot : slot + 1, :, : held + 1], block.values[slot : slot + 1, :, : held + 1]
        if self._row.watch is not None:
            self._row.watch(layer, query[0], keys[0])
        return F.scaled_dot_product_attention(query.view(1, key.shape[1], -1, query.shape[-1]), keys, values)


class _SlotAttention:
    """Attention of one token in each of N slots to what its slot holds: padded to the longest, or slot by slot where
    that would be much."""

    def __init__(self, block: SlotBlock, rows: Sequence[DecodeRow], device: torch.device) -> None:
        self._block = block
        self._rows = rows
        self._watched = [(index, row) for index, row in enumerate(rows) if row.watch is not None]
        held = [row.held for row in rows]
        self._longest = longest = max(held) + 1
        self._slots = torch.tensor([row.slot for row in rows], device=device)
        self._held = torch.tensor(held, device=device)
        self._span = max(row.slot for row in rows) + 1
        self._in_order = all(row.slot == index for index, row in enumerate(rows))
        self._one_by_one = self._span * longest > PADDED_MAX * (sum(held) + len(held))
        self._mask = torch.empty(0)
        if not self._one_by_one:
            # Slots in between that say nothing look at the first token alone: at nothing would be NaN.
            ends = torch.zeros(self._span, dtype=torch.long, device=device).index_copy(0, self._slots, self._held)
            self._mask = (torch.arange(longest, device=device) <= ends[:, None])[:, None, None]

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Attend`."""
        block = self._block.layers[layer]
        block.keys[self._slots, :, self._held] = key
        block.values[self._slots, :, self._held] = value
        for index, row in self._watched:
            assert row.watch is not None
            row.watch(layer, query[index], block.keys[row.slot, :, : row.held + 1])
        grouped = query.view(len(query), key.shape[1], -1, query.shape[-1])  # those that share keys as rows
        if self._one_by_one:
            return torch.cat([self._alone(row, own, layer) for row, own in zip(self._rows, grouped, strict=True)])
        keys, values = (rows[: self._span, :, : self._longest] for rows in (block.keys, block.values))
        if self._in_order:
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)
        spread = grouped.new_zeros(self._span, *grouped.shape[1:]).index_copy(0, self._slots, grouped)
        mixed = F.scaled_dot_product_attention(spread, keys, values, attn_mask=self._mask)
        return mixed[self._slots]

    def _alone(self, row: DecodeRow, query: torch.Tensor, layer: int) -> torch.Tensor:
        block = self._block.layers[layer]
        keys, values = (rows[row.slot, None, :, : row.held + 1] for rows in (block.keys, block.values))
        return F.scaled_dot_product_attention(query[None], keys, values)
