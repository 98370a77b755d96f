"""Floating-point operations of an answer, from the model's weights and the number of tokens in each part.

A multiply-add counts as two. Matrix products and attention are counted, element-wise work is not. Attention of the
language model counts the pairs that the causal mask leaves, and a recurrent layer (Gated DeltaNet) the products with
its state and inside a chunk of tokens. A method is charged for everything it computes: a method that chooses tokens
inside the language model pays the encoder for all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from arr_coc.qwen.preprocess import MERGE
from arr_coc.qwen.qwenvl import QwenVL
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
class Operations:
    """Operations of an answer from the tokens that were shown, and of the same answer from all tokens of its frames.

    Both assume an empty cache: savings from an earlier answer's cache and from `incremental` are not subtracted, except
    for a group of pictures in the cache; its `full_flops` are those of its newest frame alone. The choice of tokens is
    not counted.
    """

    parts: Flops = Flops()
    full_flops: int = 0

    @property
    def flops(self) -> int:
        """Total operations of the answer."""
        return self.parts.total


class Costs:
    """Operations of a loaded model's parts."""

    def __init__(self, qwen: QwenVL) -> None:
        tower = qwen.tower
        layers = qwen.language_model.layers
        kinds = qwen.layers
        proj = tower.patch_embed.proj.weight
        self.layers = len(layers)
        self._patch = proj[:, :, 0].numel() + sum(_weights(block) for block in tower.blocks)
        self._token = _weights(tower.merger) + _weights(tower.deepstack_merger_list if qwen.family.deepstack else None)
        self._vision_width = int(tower.blocks[0].attn.qkv.in_features)
        if qwen.family.windowed:
            self._windows = _windows(tower)
        else:
            self._windows = [0] * len(tower.blocks)
        self._layers = [_weights(layer) for layer in layers]
        self._attending = kinds.attending
        self._attended = int(qwen.attentions[kinds.attending[0]].o_proj.in_features)
        self._memory = kinds.memory_values
        self._inside_chunk = kinds.chunk_products
        self._head = _weights(qwen.model.lm_head)

    def encode(self, tokens: int, key_tokens: int | None = None) -> int:
        """Return the operations of encoding `tokens` of one frame: patches, blocks, merger and deepstack mergers. They
        attend to each other, or to `key_tokens` of the frame if the keys of the others are cached."""
        patches = PATCHES_A_TOKEN * tokens
        if key_tokens is None:
            keys = patches
        else:
            keys = PATCHES_A_TOKEN * key_tokens
        pairs = sum(patches * min(keys, window or keys) for window in self._windows)
        return 2 * patches * self._patch + 4 * pairs * self._vision_width + 2 * tokens * self._token

    def prefill(self, lengths: Sequence[int]) -> int:
        """Return the operations of a prompt with `lengths[i]` tokens in layer i, from an empty cache, and of the first
        logits."""
        pairs = sum(lengths[layer] * (lengths[layer] + 1) // 2 for layer in self._attending)
        through = sum(weights * length for weights, length in zip(self._layers, lengths, strict=True))
        return 2 * through + 4 * self._attended * pairs + 2 * self._head + self._states(lengths, self._inside_chunk)

    def prefill_after(self, cached_tokens: int, tokens: int) -> int:
        """Return the operations of `tokens` more tokens of a prompt through every layer, after `cached_tokens`, and of
        the first logits."""
        after, before = ([count] * self.layers for count in (cached_tokens + tokens, cached_tokens))
        return self.prefill(after) - self.prefill(before) + 2 * self._head

    def answer(
        self, encode: Encode, visual_tokens: Sequence[int], tiles: Sequence[int], text_tokens: int, answer_tokens: int
    ) -> Flops:
        """Return the operations of an answer about frames.

        Args:
            encode: Encoding of the frames. If it encodes whole frames, the encoder is charged for all tiles.
            visual_tokens: Visual tokens of each separately encoded part of a frame.
            tiles: Tiles of each frame.
            text_tokens: Other tokens of the prompt.
            answer_tokens: Tokens of the answer.
        """
        lengths = [text_tokens + sum(visual_tokens)] * self.layers
        if encode in NEEDS_TOKENS_ONLY:
            encoded = visual_tokens
        else:
            encoded = tiles
        return Flops(
            encode=sum(self.encode(tokens) for tokens in encoded),
            prefill=self.prefill(lengths),
            decode=self.decode(lengths, answer_tokens),
        )

    def work(
        self,
        encode: Encode,
        visual_tokens: Sequence[int],
        tiles: Sequence[int],
        text_tokens: int,
        answer_tokens: int,
        compared_tokens: int = 0,
    ) -> Operations:
        """Return the operations of an answer about frames, and of the same answer from all tiles.

        Args:
            encode: As in `answer`, and so are the next three.
            visual_tokens: Visual tokens of each separately encoded part of a frame.
            tiles: Tiles of each frame.
            text_tokens: Other tokens of the prompt.
            answer_tokens: Tokens of the answer; 0 if an earlier answer is the answer again.
            compared_tokens: Tokens of an earlier answer that was scored first. The answer from all tiles is charged for
                them if `answer_tokens` is 0.
        """
        return Operations(
            self.answer(encode, visual_tokens, tiles, text_tokens, answer_tokens + compared_tokens),
            self.answer("full", tiles, tiles, text_tokens, answer_tokens or compared_tokens).total,
        )

    def answer_after(self, cached_tokens: int, prefilled_tokens: int, encoded_tokens: int, answer_tokens: int) -> Flops:
        """Return the operations of an answer whose prompt is partly in the cache.

        Args:
            cached_tokens: Tokens of the prompt in the cache.
            prefilled_tokens: New tokens of the prompt.
            encoded_tokens: Visual tokens among the new ones, and those beside which they were encoded.
            answer_tokens: Tokens of the answer.
        """
        return Flops(
            encode=self.encode(encoded_tokens),
            prefill=self.prefill_after(cached_tokens, prefilled_tokens),
            decode=self.decode([cached_tokens + prefilled_tokens] * self.layers, answer_tokens),
        )

    def attention_row(self, tokens: int) -> int:
        """Return the operations of one token's attention weights to `tokens` tokens in one layer, which the fused
        attention does not return."""
        return 2 * self._attended * tokens

    def decode(self, lengths: Sequence[int], tokens: int) -> int:
        """Return the operations of decoding `tokens` tokens, one by one, after `lengths[i]` prompt tokens in layer i's
        cache."""
        key_counts = [lengths[layer] for layer in self._attending]
        pairs = tokens * sum(key_counts) + len(key_counts) * tokens * (tokens + 1) // 2
        states = self._states([tokens] * self.layers, 0)
        return tokens * 2 * (sum(self._layers) + self._head) + 4 * self._attended * pairs + states

    def _states(self, lengths: Sequence[int], inside_chunk: int) -> int:
        """Return the operations of `lengths[i]` tokens in layer i, if it is recurrent: three products with its state
        (read by key, update, read by query) and the products inside a chunk."""
        through = sum(length for layer, length in enumerate(lengths) if layer not in self._attending)
        return 2 * through * (3 * self._memory + inside_chunk)


def _weights(module: nn.Module | None) -> int:
    """Return the number of weights that each row is multiplied with: all linear layers of a module, and in a mixture
    the router and the experts that a row goes through."""
    if module is not None:
        parts = list(module.modules())
    else:
        parts = []
    linear = sum(part.in_features * part.out_features for part in parts if isinstance(part, nn.Linear))
    linear += sum(
        getattr(part, "weight_count", 0) for part in parts
    )  # layers with small weights, which are no nn.Linear
    linear += sum(part.weight.numel() for part in parts if isinstance(part, nn.Conv1d))
    mixtures = [part for part in parts if hasattr(part, "experts") and hasattr(part, "gate")]
    return linear + sum(_mixture(part) for part in mixtures)


def _mixture(mixture: Any) -> int:
    experts = mixture.experts
    router = mixture.gate
    expert_weights = sum(weights[0].numel() for weights in (experts.gate_up_proj, experts.down_proj))
    return int(router.weight.numel() + router.top_k * expert_weights)


def _windows(tower: Any) -> list[int]:
    """Return the patches of a window for each block of a tower with windows; 0 for blocks that attend to all."""
    side = int(tower.config.window_size) // int(tower.config.patch_size)
    return [0 if index in tower.fullatt_block_indexes else side * side for index in range(len(tower.blocks))]
