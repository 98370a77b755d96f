"""Prompts into the cache: runs of text and frames, and the probability of an answer that is there already.

Calls of the stock model always pass positions, as three rows, and a cache: it then builds the plain causal mask and
keeps no state between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch

from arr_coc.qwen.cache import CacheMark, PrefixCache
from arr_coc.qwen.decode import not_finite
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.preprocess import after_frame, text_positions, visual_positions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import TileGrid


class PromptPart:
    """A run of text and frames that is prefilled at once, after `tokens` tokens and from text `position` on. Both
    advance as text and frames are added; `marks` are valid after the prefill."""

    def __init__(self, qwen: QwenVL, tokens: int, position: int) -> None:
        self.tokens = tokens
        self.position = position
        self.marks: list[CacheMark[Any]] = []
        self._qwen = qwen
        self._embeds: list[torch.Tensor] = []
        self._positions: list[torch.Tensor] = []
        self._visual: list[torch.Tensor] = []
        self._deepstack: list[tuple[torch.Tensor, ...]] = []

    @property
    def length(self) -> int:
        """Number of tokens added."""
        return sum(len(rows) for rows in self._embeds)

    def mark(self, key: Any) -> None:
        """Mark the end of the piece `key`."""
        self.marks.append(CacheMark(key, self.tokens, self.position))

    def text(self, ids: tuple[int, ...] | list[int]) -> None:
        """Add token ids."""
        if ids:
            self._add(self._qwen.embed(list(ids)), text_positions(self.position, len(ids)), visual=False)
            self.position += len(ids)

    def frame(self, frame: EncodedFrame) -> slice:
        """Add a frame; return the rows of the cache that its tokens will have."""
        place = self.visual(frame)
        self.end_frame(frame.grid)
        return place

    def visual(self, frame: EncodedFrame) -> slice:
        """Add tokens of a frame without its end; return the rows of the cache that they will have."""
        embeds = frame.tokens.embeds[0].to(self._qwen.device)
        first = self.tokens
        self._add(embeds, visual_positions(self.position, frame.regions[0]), visual=True)
        self._deepstack.append(tuple(rows[0] for rows in frame.tokens.deepstack))
        return slice(first, self.tokens)

    def end_frame(self, grid: TileGrid) -> None:
        """End a frame whose tokens have been added; text continues after it."""
        self.position = after_frame(self.position, grid)

    def copies(self, cache: PrefixCache[Any]) -> set[int]:
        """Return the numbers of its tokens before each copy of states in a cache."""
        before = self.tokens - self.length
        return {tokens - before for tokens in cache.with_states(self.marks)}

    def inputs(self, begin: int = 0, end: int | None = None) -> dict[str, Any]:
        """Return the language model's arguments for the added tokens from `begin` on, up to `end`."""
        arguments: dict[str, Any] = {
            "inputs_embeds": torch.cat(self._embeds)[None, begin:end],
            "position_ids": torch.cat(self._positions, dim=1)[:, None, begin:end],
        }
        if any(self._deepstack):
            visual = torch.cat(self._visual)
            rows = slice(None)
            if begin or end not in (None, self.length):
                rows = slice(int(visual[:begin].sum()), int(visual[:end].sum()))
            arguments["visual_pos_masks"] = visual[None, begin:end]
            arguments["deepstack_visual_embeds"] = [
                torch.cat(level)[rows] for level in zip(*self._deepstack, strict=True)
            ]
        return arguments

    def _add(self, embeds: torch.Tensor, positions: torch.Tensor, *, visual: bool) -> None:
        self._embeds.append(embeds)
        self._positions.append(positions.to(self._qwen.device))
        self._visual.append(torch.full((len(embeds),), visual, device=self._qwen.device))
        self.tokens += len(embeds)


@torch.inference_mode()
def prefill(
    qwen: QwenVL, part: PromptPart, cache: PrefixCache[Any], probe: AbstractContextManager[Any] | None = None
) -> torch.Tensor:
    """Add a part to the cache.

    With recurrent layers a pass ends at each copy of the states, which are available only after its last token.

    Args:
        qwen: The model.
        part: Text and frames; its marks are added with it.
        cache: The cache that the part continues.
        probe: Context that is entered for the last pass, if any.

    Returns:
        Logits after the last token, [vocabulary].
    """
    waiting: Sequence[CacheMark[Any]] = part.marks
    for begin, end in pairwise(sorted({0, part.length, *part.copies(cache)})):
        waiting = cache.reach(waiting)
        inputs = part.inputs(begin, end)
        with (probe if end == part.length else None) or nullcontext():
            hidden = qwen.language_model(**inputs, past_key_values=cache.kv, use_cache=True).last_hidden_state
    cache.reach(waiting)
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def least_probability(
    qwen: QwenVL,
    prompt: PromptPart,
    cache: PrefixCache[Any],
    logits: torch.Tensor,
    ids: Sequence[int],
    ends: Collection[int],
    mask: Callable[[torch.Tensor, Sequence[int]], None] | None = None,
) -> float:
    """Return the probability of the least likely token of an answer.

    Args:
        qwen: The model.
        prompt: The prompt.
        cache: Cache that holds the prompt, before and after the call.
        logits: Logits after the prompt, [vocabulary].
        ids: Token ids of the answer.
        ends: End tokens, of which one follows the answer; empty: no end is scored.
        mask: Function that sets the logits of tokens that may not come to -inf. It is called with the logits before
            each token, [N, vocabulary], and `ids`.

    Raises:
        NonFiniteError: NaN or Inf in the logits.
    """
    rows = logits[None]
    inputs = ids if ends else ids[:-1]
    if inputs:
        answer = PromptPart(qwen, prompt.tokens, prompt.position)
        answer.text(list(inputs))
        states = cache.states()
        hidden = qwen.language_model(**answer.inputs(), past_key_values=cache.kv, use_cache=True).last_hidden_state
        rows = torch.cat([rows, qwen.model.lm_head(hidden[0])])
        cache.show(prompt.tokens, states)
    if not bool(rows.isfinite().all()):
        raise not_finite(0)
    if mask is not None:
        rows = rows.clone()
        mask(rows, ids)
    chances = torch.softmax(rows.double(), dim=-1)
    likely = [float(row[token]) for row, token in zip(chances, ids, strict=False)]
    if ends:
        likely.append(float(chances[-1, list(ends)].sum()))
    return min(likely, default=1.0)
