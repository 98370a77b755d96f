"""One token of every open answer in one pass, each in its slot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.cache import LayerState, SlotBlock
from arr_coc.qwen.decode import decode_one_token, layer_steps, logits_of
from arr_coc.qwen.preprocess import text_positions
from arr_coc.qwen.qwenvl import QwenVL, rotation
from arr_coc.types import finish

if TYPE_CHECKING:
    from arr_coc.qwen.constraint import AnswerConstraint
    from arr_coc.qwen.penalties import TokenPenalties


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
        self._block.make_room(max(row.cached_tokens for row in rows) + 1, max(row.slot for row in rows) + 1)
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
