"""The language model's keys and values, with marks at the places to which an answer can go back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Mark(Generic[Key]):
    """The end of one kept piece: what it held, how many tokens lie before its end, and the next text position."""

    key: Key
    tokens: int
    position: int


class PrefixCache(Generic[Key]):
    """Keys and values of a prompt whose pieces are known by key.

    Rewinding to a mark is exact: what lies before it never depended on what came after. Batch size 1.
    """

    def __init__(self) -> None:
        from arr_coc.qwen.kv_room import empty_kv  # transformers takes seconds to import

        self.kv: Any = empty_kv()
        self.marks: list[Mark[Key]] = []

    def __len__(self) -> int:
        """Tokens held."""
        return int(self.kv.get_seq_length())

    @property
    def position(self) -> int:
        """Where the text after the last mark begins, for M-RoPE."""
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
        self.marks.append(Mark(key, tokens, position))

    def beginning(self) -> Any:
        """Other keys and values, which begin with the first piece's: for what may see nothing else."""
        kv, tokens = PrefixCache[Key]().kv, self.marks[0].tokens
        for index, layer in enumerate(self.kv.layers if tokens else ()):
            kv.update(layer.keys[..., :tokens, :], layer.values[..., :tokens, :], index)
        return kv

    @property
    def bytes(self) -> int:
        """What the keys and values take in memory, with the room to grow."""
        held = [rows for layer in self.kv.layers for rows in (layer.room_keys, layer.room_values)]
        return sum(rows.numel() * rows.element_size() for rows in held)
