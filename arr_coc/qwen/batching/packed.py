"""Prefill of several prompts in one pass: their tokens one after another, without padding.

Products of matrices run over all tokens; attention runs prompt by prompt. So prompts of unequal length waste nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.cache import CacheMark, LayerState, PrefixCache
from arr_coc.qwen.decode import DeepstackRows, PromptPart, layer_steps, logits_of
from arr_coc.qwen.qwenvl import QwenVL, rotation
from arr_coc.types import finish

CPU_TOKENS = 600
"""Tokens in one pass on a CPU, so that intermediate results stay in a core's L2 cache. With 2,300 tokens of the bundled
model, a token takes a third longer."""


@dataclass(frozen=True, slots=True)
class PromptBranch:
    """Another question of a prompt: text that sees what is before the prompt's own question, and not that; `probe` as
    in PromptToPrefill."""

    part: PromptPart
    probe: AttentionProbe | None = None

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before it that it sees."""
        return self.part.tokens - self.part.length


@dataclass(frozen=True, slots=True)
class PromptToPrefill:
    """A prompt's part that is to be prefilled to a cache; `probe` records its last token's queries.

    `branches` are read in the same pass, and not kept; a cache with recurrent layers takes none.
    """

    part: PromptPart
    cache: PrefixCache[Any]
    probe: AttentionProbe | None = None
    branches: Sequence[PromptBranch] = ()

    @property
    def parts(self) -> list[PromptPart]:
        """Its own part, then those of its branches."""
        return [self.part, *(branch.part for branch in self.branches)]

    @property
    def rows(self) -> int:
        """Number of tokens that are read."""
        return sum(part.length for part in self.parts)


@torch.inference_mode()
def prefill_packed(qwen: QwenVL, prompts: Sequence[PromptToPrefill]) -> torch.Tensor:
    """Add each part with its marks to its cache; return the logits [ends, vocabulary] after the last token of each
    prompt and of each of its branches, in order.

    For a decoder that `decodes_plainly`. A CPU runs a few prompts at a time.
    """
    if qwen.device.type == "cpu":
        return torch.cat([_one_pass(qwen, few) for few in _few_at_a_time(prompts)])
    return _one_pass(qwen, prompts)


def _few_at_a_time(prompts: Sequence[PromptToPrefill]) -> Iterator[list[PromptToPrefill]]:
    """Yield the prompts in order, in groups of at most CPU_TOKENS tokens; a longer prompt is a group."""
    few: list[PromptToPrefill] = []
    tokens = 0
    for prompt in prompts:
        count = prompt.rows
        if few and tokens + count > CPU_TOKENS:
            yield few
            few = []
            tokens = 0
        few.append(prompt)
        tokens += count
    yield few


def _one_pass(qwen: QwenVL, prompts: Sequence[PromptToPrefill]) -> torch.Tensor:
    inputs = [part.inputs() for prompt in prompts for part in prompt.parts]
    embeds = torch.cat([arguments["inputs_embeds"][0] for arguments in inputs])
    cos, sin = rotation(qwen, torch.cat([arguments["position_ids"][:, 0] for arguments in inputs], dim=1))
    counts = [prompt.rows for prompt in prompts]
    attend = _PackedAttention(prompts, counts)
    recur = _PackedRecurrence(prompts, counts)
    cos = cos.to(embeds)[:, None]
    sin = sin.to(embeds)[:, None]
    hidden = finish(layer_steps(qwen, embeds, cos, sin, attend, recur, _deepstack(inputs, embeds.device)))
    for index, prompt in enumerate(prompts):
        if prompt.branches:
            prompt.cache.show(prompt.part.tokens, ())
        prompt.cache.add(recur.marks(index))
    return logits_of(qwen, hidden[[end - 1 for end in attend.ends]])


def _deepstack(inputs: Sequence[dict[str, Any]], device: torch.device) -> DeepstackRows | None:
    """Return the deepstack rows of all prompts; None if no prompt has visual tokens."""
    levels = [arguments["deepstack_visual_embeds"] for arguments in inputs if "visual_pos_masks" in arguments]
    if not levels:
        return None
    visual = [
        arguments["visual_pos_masks"][0]
        if "visual_pos_masks" in arguments
        else torch.zeros(arguments["inputs_embeds"].shape[1], dtype=torch.bool, device=device)
        for arguments in inputs
    ]
    return DeepstackRows(torch.cat(visual), [torch.cat(rows) for rows in zip(*levels, strict=True)])


class _PackedAttention:
    """Attention of each prompt's tokens to its cache and to the tokens before them. `ends`: the row after each prompt
    and each branch."""

    def __init__(self, prompts: Sequence[PromptToPrefill], counts: Sequence[int]) -> None:
        self._prompts = prompts
        self._counts = list(counts)
        self._cached_tokens = [len(prompt.cache) for prompt in prompts]
        self._masks: list[torch.Tensor | None] = [None] * len(prompts)
        self.ends = [*accumulate(part.length for prompt in prompts for part in prompt.parts)]

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Attend`."""
        rows = zip(*(rows.split(self._counts) for rows in (query, key, value)), strict=True)
        mixed = [self._attend(index, layer, *qkv) for index, qkv in enumerate(rows)]
        return torch.cat(mixed)

    def _attend(
        self, index: int, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        prompt = self._prompts[index]
        cached_tokens = self._cached_tokens[index]
        keys, values = prompt.cache.kv.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], layer)
        self._note(index, layer, query, keys[0])
        shared = query.shape[1] // keys.shape[1]
        if shared > 1:
            keys, values = (rows.repeat_interleave(shared, dim=1) for rows in (keys, values))
        plain = not prompt.branches and (cached_tokens == 0 or len(query) == 1)
        mask = None if plain else self._mask(index, query.device)
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None and cached_tokens == 0
        )
        return mixed[0].transpose(0, 1)

    def _note(self, index: int, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        """Let the probes of a prompt and of its branches see their last tokens, with the keys that these see."""
        prompt = self._prompts[index]
        end = prompt.part.length
        key_end = self._cached_tokens[index] + end
        if prompt.probe is not None:
            prompt.probe.see(layer, query[end - 1], keys[:, :key_end])
        for branch in prompt.branches:
            end = end + branch.part.length
            begin = key_end
            key_end = key_end + branch.part.length
            if branch.probe is not None and branch.probe.watches(layer):
                visible_keys = torch.cat([keys[:, : branch.prefix_tokens], keys[:, begin:key_end]], dim=1)
                branch.probe.see(layer, query[end - 1], visible_keys)

    def _mask(self, index: int, device: torch.device) -> torch.Tensor:
        """Return the mask bool [tokens, cached_tokens + tokens] of a prompt: causal, and a branch sees no other
        question."""
        mask = self._masks[index]
        if mask is None:
            tokens = self._counts[index]
            cached_tokens = self._cached_tokens[index]
            prompt = self._prompts[index]
            mask = torch.ones(tokens, cached_tokens + tokens, dtype=torch.bool, device=device).tril(cached_tokens)
            row = prompt.part.length
            for branch in prompt.branches:
                mask[row : row + branch.part.length, branch.prefix_tokens : cached_tokens + row] = False
                row += branch.part.length
            self._masks[index] = mask
        return mask


class _PackedRecurrence:
    """Recurrent layers over each prompt's tokens, from the states in its cache. A layer pauses at each copy of its
    state."""

    def __init__(self, prompts: Sequence[PromptToPrefill], counts: Sequence[int]) -> None:
        self._prompts = prompts
        self._counts = list(counts)
        self._states: list[dict[int, list[LayerState | None]]] = [
            {copy: [] for copy in prompt.part.copies(prompt.cache)} for prompt in prompts
        ]

    def __call__(self, number: int, layer: Any, entering: torch.Tensor) -> torch.Tensor:
        """Arguments and result as `arr_coc.qwen.decode.Recur`."""
        mixed = []
        for prompt, states, rows in zip(self._prompts, self._states, entering.split(self._counts), strict=True):
            kv = prompt.cache.kv
            begin = 0
            for end in sorted({len(rows), *states}):
                if begin < end:
                    mixed.append(layer(hidden_states=rows[None, begin:end], cache_params=kv)[0])
                if end in states:
                    states[end].append(kv.layers[number].snapshot())
                begin = end
        return torch.cat(mixed)

    def marks(self, index: int) -> list[CacheMark[Any]]:
        """Return the marks of a prompt, with the states there."""
        part = self._prompts[index].part
        states = self._states[index]
        before = part.tokens - part.length
        return [replace(mark, states=tuple(states.get(mark.tokens - before, ()))) for mark in part.marks]
