"""Computation of the decoder: tokens through its layers, prompts into the cache, the next token of an answer.

`layer_steps` builds no mask, computes no positions and runs no hooks. Its products are those of the stock model, in
the same order, so the logits are equal.

Calls of the stock model always pass positions, as three rows, and a cache: it then builds the plain causal mask and
keeps no state between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.cache import CacheMark, PrefixCache
from arr_coc.qwen.cpu_precision import has_amx
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.families import ModelFamily
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.preprocess import after_frame, text_positions, visual_positions
from arr_coc.qwen.qwenvl import QwenVL, rotate_native, small_attention_dtype
from arr_coc.types import Steps, TileGrid

if TYPE_CHECKING:
    from arr_coc.qwen.penalties import TokenPenalties

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention of a layer (its number) over the queries [N, heads, head_dim], keys and values [N, kv heads, head_dim] of N
tokens, queries and keys rotated. Returns N * heads * head_dim numbers in this order, in any shape."""

Recur = Callable[[int, Any, torch.Tensor], torch.Tensor]
"""Output [N, D] of a recurrent layer (its number, and the stock module) for the rows [N, D] of N tokens."""


@dataclass(frozen=True, slots=True)
class DeepstackRows:
    """Rows that the first layers add to visual tokens: `visual` bool [N] marks the K visual ones of N tokens, `levels`
    holds their rows [K, D], one tensor a layer."""

    visual: torch.Tensor
    levels: Sequence[torch.Tensor] = ()


def layer_steps(
    qwen: QwenVL,
    embeds: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    attend: Attend,
    recur: Recur | None = None,
    deepstack: DeepstackRows | None = None,
) -> Steps[torch.Tensor]:
    """Run tokens through all layers of the decoder, one layer a step.

    Args:
        qwen: The model.
        embeds: Embeddings of N tokens, [N, D].
        cos: Cosines of their positions, [head_dim] or [N, 1, head_dim], in the dtype of `embeds`.
        sin: Sines of their positions, likewise.
        attend: Attention of a layer.
        recur: Output of a recurrent layer; None for a family without such layers.
        deepstack: Rows that the first layers add to visual tokens, if any.

    Returns:
        Hidden states before the final norm, [N, D].
    """
    hidden = embeds
    family = qwen.family
    attentions = qwen.attentions
    for index, layer in enumerate(qwen.language_model.layers):
        entering = layer.input_layernorm(hidden)
        attention = attentions.get(index)
        if attention is None:
            assert recur is not None, f"layer {index} is recurrent"
            hidden = hidden + recur(index, layer.linear_attn, entering)
        else:
            query, gate = projected_query(family, attention, entering)
            key, value = (
                linear_rows(product, entering).view(len(hidden), -1, attention.head_dim)
                for product in (attention.k_proj, attention.v_proj)
            )
            if family.query_norm:
                key = attention.k_norm(key)
            dtype = small_attention_dtype(attention.k_proj) or value.dtype
            query, key = (rotate_native(rows, cos, sin).to(dtype) for rows in (query, key))
            mixed = attend(index, query, key, value.to(dtype)).reshape(len(hidden), -1)
            if gate is not None:
                mixed = mixed * gate.reshape(len(hidden), -1).sigmoid()
            hidden = hidden + linear_rows(attention.o_proj, mixed)
        hidden = hidden + _mlp_of_rows(layer.mlp, layer.post_attention_layernorm(hidden))
        if deepstack is not None and index < len(deepstack.levels):
            hidden[deepstack.visual] += deepstack.levels[index].to(hidden)
        yield
    return hidden


def projected_query(
    family: ModelFamily, attention: Any, entering: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the queries of an attention before their rotation.

    Args:
        family: The model's family.
        attention: The stock attention module.
        entering: Normalised hidden states of N tokens, [N, D].

    Returns:
        The queries [N, heads, head_dim], and the gates of the attention's output in the same shape; None for a family
        without gates.
    """
    query = linear_rows(attention.q_proj, entering)
    gate = None
    if family.gated:
        query, gate = query.view(len(entering), -1, 2 * attention.head_dim).chunk(2, dim=-1)
    query = query.reshape(len(entering), -1, attention.head_dim)
    return attention.q_norm(query) if family.query_norm else query, gate


def logits_of(qwen: QwenVL, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits [N, vocabulary] of hidden states [N, D] from `layer_steps`."""
    return linear_rows(qwen.model.lm_head, qwen.language_model.norm(hidden))


def linear_rows(linear: Any, rows: torch.Tensor) -> torch.Tensor:
    """Apply `linear` to rows [N, D]. One row in bfloat16 on a CPU with AMX is computed as matrix times vector, which
    reads weights at memory speed, while a product of matrices first rearranges them in tiles. Without AMX the product
    of matrices is faster."""
    single = len(rows) == 1 and rows.dtype == torch.bfloat16 and rows.device.type == "cpu"
    if not (single and type(linear) is nn.Linear and has_amx()) or linear.bias is not None:
        product: torch.Tensor = linear(rows)
        return product
    return torch.mv(linear.weight, rows[0])[None]


def _mlp_of_rows(mlp: Any, rows: torch.Tensor) -> torch.Tensor:
    if not hasattr(mlp, "gate_proj"):  # a mixture of experts, which needs the batch axis
        mixed: torch.Tensor = mlp(rows[None])[0]
        return mixed
    return linear_rows(mlp.down_proj, mlp.act_fn(linear_rows(mlp.gate_proj, rows)) * linear_rows(mlp.up_proj, rows))


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
    mask: Callable[[torch.Tensor, Sequence[int]], torch.Tensor] | None = None,
) -> float:
    """Return the probability of the least likely token of an answer.

    Args:
        qwen: The model.
        prompt: The prompt.
        cache: Cache that holds the prompt, before and after the call.
        logits: Logits after the prompt, [vocabulary].
        ids: Token ids of the answer.
        ends: End tokens, of which one follows the answer; empty: no end is scored.
        mask: Function that returns the logits that tokens are chosen by. It is called with a copy of the logits before
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
        rows = mask(rows.clone(), ids)
    chances = torch.softmax(rows.double(), dim=-1)
    likely = [float(row[token]) for row, token in zip(chances, ids, strict=False)]
    if ends:
        likely.append(float(chances[-1, list(ends)].sum()))
    return min(likely, default=1.0)


@torch.inference_mode()
def decode_one_token(qwen: QwenVL, token: torch.Tensor, position: int, kv: Any) -> torch.Tensor:
    """Add one token to the cache, through the stock model's forward.

    `DecodeStep` computes the same faster if the model `decodes_plainly`.

    Args:
        qwen: The model.
        token: Id of the token, int64 scalar on the model's device.
        position: Its text position.
        kv: The stock cache.

    Returns:
        Logits after the token, [vocabulary].
    """
    embeds = qwen.language_model.embed_tokens(token.view(1, 1))
    place = torch.full((3, 1, 1), float(position), device=embeds.device)
    hidden = qwen.language_model(
        inputs_embeds=embeds, position_ids=place, past_key_values=kv, use_cache=True
    ).last_hidden_state
    return qwen.model.lm_head(hidden[0, -1])


@torch.inference_mode()
def choose(logits: torch.Tensor, options: Decoding, generator: torch.Generator | None) -> torch.Tensor:
    """Choose the next token.

    Nucleus sampling (arXiv:1904.09751): from the likeliest tokens whose probabilities reach `top_p`, at least one. A
    `top_k` above 0 first limits the tokens to the likeliest `top_k`, with their probabilities normalised; `min_p` then
    leaves out those less than that many times as likely as the likeliest (arXiv:2407.01082). This is the order of
    transformers.

    Args:
        logits: [vocabulary], with penalties.
        options: Temperature, `top_p`, `top_k` and `min_p`; at temperature 0, the likeliest token is chosen.
        generator: Generator of the draw, on the device of the logits.

    Returns:
        The token's id, int64 scalar, not synchronised.
    """
    if options.temperature == 0:
        return logits.argmax()
    chances, tokens = drawn_chances(logits, options)
    # The draw of `multinomial`, without its device synchronisation.
    race = torch.empty_like(chances).exponential_(generator=generator)
    return tokens[(chances / race).argmax()]


def drawn_chances(logits: torch.Tensor, options: Decoding) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that may be drawn, the likeliest first, and before them the chances that they are drawn with,
    not normalised: 0 for tokens that are left out. Arguments as of `choose`."""
    chances, tokens = torch.softmax(logits.float() / options.temperature, dim=-1).sort(descending=True)
    if options.top_k:
        chances = chances[: options.top_k]
        tokens = tokens[: options.top_k]
        chances = chances / chances.sum()
    before = chances.cumsum(0) - chances
    chances = torch.where(before < options.top_p, chances, 0.0)
    if options.min_p:
        chances = torch.where(chances >= options.min_p * chances[0], chances, 0.0)
    return chances, tokens


@torch.inference_mode()
def choose_finite(
    logits: torch.Tensor,
    options: Decoding,
    generator: torch.Generator | None,
    penalties: TokenPenalties | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the next token, and check its logits.

    Args:
        logits: [vocabulary].
        options: As in `choose`.
        generator: As in `choose`.
        penalties: Penalties of the answer, which count the token; None for none.

    Returns:
        The token's id, and 1 if all logits are finite, else 0: int64 scalars, not synchronised.
    """
    finite = logits.isfinite().all()
    logits = torch.where(finite, logits, 0.0)
    if penalties is not None:
        logits = penalties.bar(penalties.apply(logits))
    token = choose(logits, options, generator)
    if penalties is not None:
        penalties.take(token)
    return token, finite.to(token.dtype)


def not_finite(index: int) -> NonFiniteError:
    """Return the error for non-finite logits of an answer's token number `index`."""
    return NonFiniteError(f"the logits of answer token {index} hold NaN or Inf; try dtype float32 or bfloat16")
