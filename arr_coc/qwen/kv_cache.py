"""Prefix cache with marks to rewind to, on layers that grow in place.

The stock dynamic cache joins all keys to a new tensor for every token; the stock static one cannot be rewound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from transformers.cache_utils import Cache, DynamicLayer

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class CacheMark(Generic[Key]):
    """The end of one kept piece: what it held, how many tokens lie before its end, and the next text position."""

    key: Key
    tokens: int
    position: int


class PrefixCache(Generic[Key]):
    """Keys and values of a prompt whose pieces are known by key.

    Rewinding to a mark is exact: what lies before it never depended on what came after. Batch size 1.
    """

    def __init__(self) -> None:
        pass  # transformers takes seconds to import

        self.kv: Any = empty_kv()
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

    def mark(self, key: Key, tokens: int, position: int) -> None:
        """Says that the piece `key` ends after `tokens` tokens."""
        self.marks.append(CacheMark(key, tokens, position))

    def beginning(self) -> Any:
        """Other keys and values, which begin with the first piece's: for what may see nothing else."""
        kv, tokens = PrefixCache[Key]().kv, self.marks[0].tokens
        for index, layer in enumerate(self.kv.layers if tokens else ()):
            kv.update(layer.keys[..., :tokens, :], layer.values[..., :tokens, :], index)
        return kv

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values, with the room to grow."""
        held = [rows for layer in self.kv.layers for rows in (layer.room_keys, layer.room_values)]
        return sum(rows.numel() * rows.element_size() for rows in held)


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
