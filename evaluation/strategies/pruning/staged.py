"""Prefill layer by layer, with visual tokens that leave on the way, and decoding after it.

The stock decoder layers are called one by one. What is left at a cut keeps its position, also a token that stands for
several; the cache of each layer holds what went through it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import attention_weights, last_query
from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, choose_finite, decode_one_token, not_finite, projected_query
from arr_coc.qwen.flops import Costs
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL, rotate_native
from arr_coc.qwen.text_stream import TextStream
from evaluation.errors import EvaluationError


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """`logits` [vocabulary] of what follows; `kv` with `lengths[i]` tokens in layer i; `token_index` int64: which
    of the prompt's tokens went through the last layer. `choosing_flops`: operations of the choices at the cuts."""

    logits: torch.Tensor
    kv: Any
    lengths: tuple[int, ...]
    token_index: torch.Tensor
    choosing_flops: int = 0


@dataclass(slots=True)
class _Rows:
    """Data that travels through the layers: one row for each token that is still there."""

    hidden: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    visual: torch.Tensor
    deepstack: list[torch.Tensor]
    index: torch.Tensor

    def keep(self, rows: torch.Tensor) -> None:
        cos, sin = self.rotary
        self.hidden = self.hidden[:, rows]
        self.rotary = cos[..., rows, :], sin[..., rows, :]
        self.visual, self.index = self.visual[rows], self.index[rows]
        self.deepstack = [features[rows] for features in self.deepstack]


@dataclass(frozen=True, slots=True)
class LayerPass:
    """What a layer leaves of L tokens: the states [1, L, D] that entered it, and `keys` [kv heads, L, width]."""

    qwen: QwenVL
    layer: Any
    entering: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    keys: torch.Tensor

    def last_attention(self) -> torch.Tensor:
        """Attention of the last token on all, mean over heads: float32 [L]."""
        entering = self.layer.input_layernorm(self.entering[:, -1:])
        query = last_query(self.qwen.family, self.layer.self_attn, entering, self.rotary)
        return attention_weights(query, self.keys).mean(dim=(0, 1))

    def attention_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Attention of text tokens, `rows` int64 [M], on all, mean over heads: float32 [M, L]."""
        attention = self.layer.self_attn
        entering = self.layer.input_layernorm(self.entering[0, rows])
        queries, _ = projected_query(self.qwen.family, attention, entering)
        cos, sin = (part.flatten(0, -3)[0][rows, None] for part in self.rotary)  # the axes of text agree
        places = torch.arange(self.keys.shape[1], device=rows.device)
        weights = [
            attention_weights(query, self.keys, places <= row).mean(dim=(0, 1))
            for query, row in zip(rotate_native(queries, cos, sin), rows, strict=True)
        ]
        return torch.stack(weights)


class Candidates:
    """The N visual tokens before a cut, from which a method chooses, and what it may look at; products are charged.

    `states` [L, D]: all tokens of the prompt that are still there, as they enter the next layer; before the first layer
    they are embeddings. `visual` int64 [N] and `question` int64 [M]: rows of the visual tokens, and of the question's
    own. `frames`: rows of each frame's tokens in `visual`, of which the budget pays `budgets`. `embeddings`: those of
    all visual tokens [N0, D] and of the question [M, D] before the first layer. `flops`: what the choice was charged so
    far. `merged`: rows of the visual tokens that stand for others from here on, int64 [C], and their states [C, D].
    """

    def __init__(
        self,
        states: torch.Tensor,
        visual: torch.Tensor,
        question: torch.Tensor,
        frames: Sequence[slice],
        budgets: Sequence[int],
        before: LayerPass | None,
        embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self.states, self.visual, self.question = states, visual, question
        self.frames, self.budgets = frames, budgets
        self.embeddings = embeddings or (states[visual], states[question])
        self.flops = 0
        self.merged: tuple[torch.Tensor, torch.Tensor] | None = None
        self._before = before
        self._question_attention: torch.Tensor | None = None

    def charge(self, flops: int) -> None:
        """Count operations of the choice: products, not element-wise work."""
        self.flops += flops

    def cosines(self, rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return the cosine of each of `rows` [A, D] with each of `others` [B, D]: float32 [A, B]."""
        self.charge(2 * len(rows) * len(others) * rows.shape[1])
        return F.normalize(rows.float(), dim=-1) @ F.normalize(others.float(), dim=-1).T

    def attention(self) -> torch.Tensor:
        """Return the attention that the prompt's last token pays each visual token in the layer before: float32 [N]."""
        before = self._layer_before()
        self.charge(Costs(before.qwen).attention_row(len(self.states)))
        return before.last_attention()[self.visual]

    def question_attention(self) -> torch.Tensor:
        """Return the attention that each of the question's own tokens pays each visual token in the layer before:
        float32 [M, N]. It is charged once."""
        if self._question_attention is None:
            before = self._layer_before()
            self.charge(len(self.question) * Costs(before.qwen).attention_row(len(self.states)))
            self._question_attention = before.attention_of(self.question)[:, self.visual]
        return self._question_attention

    def merge(self, rows: torch.Tensor, states: torch.Tensor) -> None:
        """Have the visual tokens `rows` int64 [C], which are of the choice, go on with other `states` [C, D]."""
        self.merged = rows, states

    def normalised(self) -> torch.Tensor:
        """Return `states` after the language model's last norm: [L, D]."""
        normalised: torch.Tensor = self._layer_before().qwen.language_model.norm(self.states)
        return normalised

    def keys(self) -> torch.Tensor:
        """Return the keys of all tokens in the layer before, which the cache holds: float32 [L, kv heads * width]."""
        return self._layer_before().keys.transpose(0, 1).flatten(1).float()

    def _layer_before(self) -> LayerPass:
        assert self._before is not None, "a method that looks at a layer cuts after one"
        return self._before


@dataclass(frozen=True, slots=True)
class Cuts:
    """`counts[i]` visual tokens go into layer i and those after it, by what `choose` says: (candidates, count) → int64
    [count], rows of the visual tokens, in any order. `question`: the prompt's rows of the question's own tokens;
    `budgets`: tokens that the budget pays of each frame. `adapt`: (candidates, counts of this cut and of the later
    ones) → how many are left by this cut; None: the first of the counts."""

    counts: Mapping[int, int]
    choose: Callable[[Candidates, int], torch.Tensor]
    question: slice
    budgets: Sequence[int]
    adapt: Callable[[Candidates, Sequence[int]], int] | None = None


@torch.inference_mode()
def staged_prefill(qwen: QwenVL, part: PromptPart, places: Sequence[slice], cuts: Cuts | None = None) -> PrefillResult:
    """Prefill a whole prompt into an empty cache, with visual tokens that leave at `cuts`.

    Args:
        qwen: The model.
        part: The prompt.
        places: Positions of the visual tokens of each frame.
        cuts: Layers at which tokens leave, and the method; without cuts this is the stock model's prefill.

    Raises:
        EvaluationError: Tokens would have to leave a recurrent layer's state, or a choice is not of as many tokens as
            its cut leaves.
    """
    counts = {} if cuts is None else cuts.counts
    if max(counts, default=0) and qwen.family.recurrent:
        raise EvaluationError(
            f"{qwen.family.title} has recurrent layers, between which no tokens can be dropped; take divprune"
        )
    rows, flops, before = _rows(qwen, part, places), 0, None
    kv = empty_cache(qwen).kv
    if cuts is None:
        embeddings = None
    else:
        embeddings = rows.hidden[0, rows.visual], rows.hidden[0, cuts.question]
    lengths = []
    for index, layer in enumerate(qwen.language_model.layers):
        if cuts is not None and index in counts:
            candidates = _candidates(rows, places, cuts, before, embeddings)
            count = counts[index]
            if cuts.adapt is not None:
                count = cuts.adapt(candidates, [counts[layer] for layer in sorted(counts) if layer >= index])
            selection = cuts.choose(candidates, count)
            if candidates.merged is not None:
                merged_rows, states = candidates.merged
                rows.hidden = rows.hidden.index_copy(1, candidates.visual[merged_rows], states.to(rows.hidden)[None])
            rows.keep(_remaining_rows(rows.visual, selection, count))
            flops += candidates.flops
        entering = rows.hidden
        output = layer(
            entering, attention_mask=None, position_embeddings=rows.rotary, past_key_values=kv, use_cache=True
        )
        rows.hidden = output[0] if isinstance(output, tuple) else output
        if index < len(rows.deepstack):
            rows.hidden = rows.hidden + rows.deepstack[index]
        lengths.append(len(rows.index))
        if index + 1 in counts:
            before = LayerPass(qwen, layer, entering, rows.rotary, kv.layers[index].keys[0])
    last = qwen.language_model.norm(rows.hidden[0, -1])
    return PrefillResult(qwen.model.lm_head(last), kv, tuple(lengths), rows.index, flops)


def _rows(qwen: QwenVL, part: PromptPart, places: Sequence[slice]) -> _Rows:
    inputs = part.inputs()
    hidden = inputs["inputs_embeds"]
    visual = torch.zeros(hidden.shape[1], dtype=torch.bool, device=hidden.device)
    for place in places:
        visual[place] = True
    deepstack = []
    for features in inputs.get("deepstack_visual_embeds", []):
        spread = torch.zeros_like(hidden[0])
        spread[visual] = features.to(hidden)
        deepstack.append(spread)
    rotary = qwen.language_model.rotary_emb(hidden, inputs["position_ids"])
    return _Rows(hidden, rotary, visual, deepstack, torch.arange(len(visual), device=hidden.device))


def _candidates(
    rows: _Rows,
    places: Sequence[slice],
    cuts: Cuts,
    before: LayerPass | None,
    embeddings: tuple[torch.Tensor, torch.Tensor] | None,
) -> Candidates:
    visual = rows.visual.nonzero()[:, 0]
    index = rows.index[visual]
    frames = [slice(int((index < place.start).sum()), int((index < place.stop).sum())) for place in places]
    question_mask = (rows.index >= cuts.question.start) & (rows.index < cuts.question.stop)
    question = question_mask.nonzero()[:, 0]
    return Candidates(rows.hidden[0], visual, question, frames, cuts.budgets, before, embeddings)


def _remaining_rows(visual: torch.Tensor, selection: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of all text and of the visual tokens that were chosen, in order."""
    count = min(count, int(visual.sum()))
    if len(selection) != count or len(selection.unique()) != count:
        raise EvaluationError(f"{len(selection.unique())} tokens were chosen of the {count} that a cut leaves")
    mask = ~visual
    mask[visual.nonzero()[selection, 0]] = True
    return mask.nonzero()[:, 0]


def speak(qwen: QwenVL, prefill: PrefillResult, position: int, max_tokens: int) -> tuple[str, float]:
    """Decode the answer, greedily.

    Args:
        qwen: The model.
        prefill: Cache and logits of the prompt.
        position: Position of the first token of the answer.
        max_tokens: Longest answer.

    Returns:
        The text, and the `time.perf_counter()` at its first token (or its end).

    Raises:
        NonFiniteError: The logits hold NaN or Inf.
    """
    stream, logits, pieces, times_s = TextStream(qwen.tokenizer), prefill.logits, [], []
    for index in range(max_tokens):
        token, finite = choose_finite(logits, Decoding(max_tokens), None)
        if not finite:
            raise not_finite(index)
        token_id = int(token)
        times_s.append(time.perf_counter())
        if token_id in qwen.eos_ids:
            break
        pieces.append(stream.push(token_id))
        if index + 1 < max_tokens:
            # The stock forward, as layers hold keys of different lengths.
            logits = decode_one_token(qwen, token, position + index, prefill.kv)
    return "".join([*pieces, stream.finish()]), times_s[0]
