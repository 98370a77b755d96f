"""Floating-point operations of an answer, from the model's weights and the tokens that each part sees.

A multiply-add counts as two. Matrix products and attention are counted, element-wise work is not; attention of the
language model counts the pairs that the causal mask leaves, and a recurrent layer (Gated DeltaNet) the products with
its state and inside a chunk of tokens. Whatever a method computes it is charged for: one that chooses inside the
language model pays the encoder for all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from arr_coc.qwen.preprocess import MERGE
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.small_weights import SmallLinear
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode

PATCHES_A_TOKEN = MERGE * MERGE


@dataclass(frozen=True, slots=True)
class Flops:
    """Operations of an answer: choosing tokens, encoding frames, the prompt, and the answer's tokens."""

    choose: int = 0
    encode: int = 0
    prefill: int = 0
    decode: int = 0

    @property
    def total(self) -> int:
        return self.choose + self.encode + self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of an answer from the tokens that were shown, and of the same answer from all tokens of its frames.

    Both from an empty cache: what is kept from an earlier answer, and what `incremental` need not encode again, is not
    taken off, unless it is a group of pictures that is kept; its `full_flops` are those of its newest frame alone. What
    choosing the tokens takes is not counted.
    """

    parts: Flops = Flops()
    full_flops: int = 0

    @property
    def flops(self) -> int:
        """All of its operations."""
        return self.parts.total


class Costs:
    """Operations of a loaded model's parts."""

    def __init__(self, qwen: QwenVL) -> None:
        tower, layers, kinds = qwen.tower, qwen.language_model.layers, qwen.layers
        proj = tower.patch_embed.proj.weight
        self.layers = len(layers)
        self._patch = proj[:, :, 0].numel() + sum(_weights(block) for block in tower.blocks)
        self._token = _weights(tower.merger) + _weights(tower.deepstack_merger_list if qwen.family.deepstack else None)
        self._vision_width = int(tower.blocks[0].attn.qkv.in_features)
        self._windows = _windows(tower) if qwen.family.windowed else [0] * len(tower.blocks)
        self._layers = [_weights(layer) for layer in layers]
        self._attending = kinds.attending
        self._attended = int(qwen.attentions[kinds.attending[0]].o_proj.in_features)
        self._memory = kinds.memory_values
        self._inside_chunk = kinds.chunk_products
        self._head = _weights(qwen.model.lm_head)

    def encode(self, tokens: int, among: int | None = None) -> int:
        """So many tokens of one frame: patches, blocks, merger and deepstack mergers. They attend to each other, or to
        all of the frame's `among`, where the keys of the others are kept."""
        patches = PATCHES_A_TOKEN * tokens
        keys = patches if among is None else PATCHES_A_TOKEN * among
        pairs = sum(patches * min(keys, window or keys) for window in self._windows)
        return 2 * patches * self._patch + 4 * pairs * self._vision_width + 2 * tokens * self._token

    def prefill(self, lengths: Sequence[int]) -> int:
        """A prompt of which `lengths[i]` tokens go through layer i, from an empty cache; then the first logits."""
        pairs = sum(lengths[layer] * (lengths[layer] + 1) // 2 for layer in self._attending)
        through = sum(weights * length for weights, length in zip(self._layers, lengths, strict=True))
        return 2 * through + 4 * self._attended * pairs + 2 * self._head + self._states(lengths, self._inside_chunk)

    def prefill_after(self, kept: int, tokens: int) -> int:
        """So many more tokens of a prompt through every layer, behind `kept` ones that are in the cache; then the first
        logits."""
        whole, before = ([count] * self.layers for count in (kept + tokens, kept))
        return self.prefill(whole) - self.prefill(before) + 2 * self._head

    def answer(
        self, encode: Encode, shown: Sequence[int], tiles: Sequence[int], text_tokens: int, answer_tokens: int
    ) -> Flops:
        """An answer of `answer_tokens` about frames of so many `tiles` each, of which so many tokens are `shown`: one
        number for each part of a frame that is encoded by itself.

        `text_tokens` are the prompt's others. Where `encode` takes whole frames, the encoder is charged for all tiles.
        """
        lengths = [text_tokens + sum(shown)] * self.layers
        encoded = shown if encode in NEEDS_TOKENS_ONLY else tiles
        return Flops(
            encode=sum(self.encode(tokens) for tokens in encoded),
            prefill=self.prefill(lengths),
            decode=self.decode(lengths, answer_tokens),
        )

    def work(
        self,
        encode: Encode,
        shown: Sequence[int],
        tiles: Sequence[int],
        text_tokens: int,
        answer_tokens: int,
        compared_tokens: int = 0,
    ) -> Work:
        """The same answer, beside the one from all tiles. An earlier answer of `compared_tokens` was scored before it;
        if that is the answer again, no tokens were decoded here, and as many there."""
        return Work(
            self.answer(encode, shown, tiles, text_tokens, answer_tokens + compared_tokens),
            self.answer("full", tiles, tiles, text_tokens, answer_tokens or compared_tokens).total,
        )

    def answer_after(self, kept: int, prefilled: int, encoded: int, among: int, answer_tokens: int) -> Flops:
        """An answer of `answer_tokens` behind a memory of `kept` tokens, for which `prefilled` more were read, of them
        `encoded` visual ones `among` those that the encoder keeps."""
        return Flops(
            encode=self.encode(encoded, among),
            prefill=self.prefill_after(kept, prefilled),
            decode=self.decode([kept + prefilled] * self.layers, answer_tokens),
        )

    def attention_row(self, tokens: int) -> int:
        """The attention of one token on so many in one layer, where the fused one gives no weights."""
        return 2 * self._attended * tokens

    def decode(self, lengths: Sequence[int], tokens: int) -> int:
        """So many answer tokens, one after the other, with `lengths[i]` tokens of the prompt in layer i's cache."""
        held = [lengths[layer] for layer in self._attending]
        pairs = tokens * sum(held) + len(held) * tokens * (tokens + 1) // 2
        states = self._states([tokens] * self.layers, 0)
        return tokens * 2 * (sum(self._layers) + self._head) + 4 * self._attended * pairs + states

    def _states(self, lengths: Sequence[int], inside_chunk: int) -> int:
        """`lengths[i]` tokens through the state of layer i, if that is recurrent: what it remembers of a key, what it
        keeps of the value, what it gives for a query; and products inside a chunk."""
        through = sum(length for layer, length in enumerate(lengths) if layer not in self._attending)
        return 2 * through * (3 * self._memory + inside_chunk)


def _weights(module: nn.Module | None) -> int:
    """Weights that meet each row once: those of all linear layers in a module, and of a mixture's experts as many as a
    row goes through, with their router."""
    parts = list(module.modules()) if module is not None else []
    linear = sum(part.in_features * part.out_features for part in parts if isinstance(part, (nn.Linear, SmallLinear)))
    linear += sum(part.weight.numel() for part in parts if isinstance(part, nn.Conv1d))
    mixtures = [part for part in parts if hasattr(part, "experts") and hasattr(part, "gate")]
    return linear + sum(_mixture(part) for part in mixtures)


def _mixture(mixture: Any) -> int:
    experts, router = mixture.experts, mixture.gate
    each = sum(weights[0].numel() for weights in (experts.gate_up_proj, experts.down_proj))
    return int(router.weight.numel() + router.top_k * each)


def _windows(tower: Any) -> list[int]:
    """For each block of a tower with windows, how many patches its own holds; 0 where it sees all."""
    side = int(tower.config.window_size) // int(tower.config.patch_size)
    return [0 if index in tower.fullatt_block_indexes else side * side for index in range(len(tower.blocks))]
