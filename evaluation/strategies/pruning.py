"""DivPrune, FastV, PyramidDrop on staged prefill.

The stock decoder layers are called one by one. Which tokens go on is decided by the attention that the prompt's last
token pays them in the layer before the cut, averaged over heads.

The encoder is paid for all tokens.

Alvar et al. 2025, "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models" (arXiv:2503.02175): the
max-min diversity problem over cosine distances, solved greedily. No attention and no question plays a part.

Chen et al. 2024, "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
Vision-Language Models" (arXiv:2403.06764), with the paper's K = 2 and the attention of the prompt's last token as
score. The budget is the number left after the cut; encoder and first two layers see everything.

Xing et al. 2024, "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction"
(arXiv:2410.17247): equal stages, tokens ranked by the attention of the instruction's last token at the end of a stage.
The share that is kept each time is the one that leaves the budget to the last stage; encoder and first stage see
everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from arr_coc.qwen.attention import attention_weights, last_query
from arr_coc.qwen.decode import PromptPart, TextStream, choose_finite, decode_one_token, empty_cache, not_finite
from arr_coc.qwen.encoding import EncodedFrame, encode_packet, pooled
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.errors import EvaluationError
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.session import EvalPrompt


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`logits` [vocabulary] of what follows; `kv` with `lengths[i]` tokens in layer i; `kept` int64: which of the
    prompt's tokens went through the last layer."""

    logits: torch.Tensor
    kv: Any
    lengths: tuple[int, ...]
    kept: torch.Tensor


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
        self.deepstack = [added[rows] for added in self.deepstack]


@torch.inference_mode()
def staged_prefill(qwen: QwenVL, part: PromptPart, places: Sequence[slice], keep: Mapping[int, int]) -> Prefilled:
    """Prefill a whole prompt into an empty cache; only `keep[i]` visual tokens go into layer i and those after it.

    `places`: positions of the visual tokens. With an empty `keep` this is the stock model's prefill. Raises
    EvaluationError if tokens would have to leave a recurrent layer's state.
    """
    if keep and qwen.family.recurrent:
        raise EvaluationError(
            f"{qwen.family.title} has recurrent layers, between which no tokens can be dropped; take divprune"
        )
    rows = _rows(qwen, part, places)
    kv = empty_cache(qwen).kv
    lengths = []
    attention = torch.zeros(0)
    for index, layer in enumerate(qwen.language_model.layers):
        if index in keep:
            rows.keep(_strongest(attention, rows.visual, keep[index]))
        entering = rows.hidden
        made = layer(entering, attention_mask=None, position_embeddings=rows.rotary, past_key_values=kv, use_cache=True)
        rows.hidden = made[0] if isinstance(made, tuple) else made
        if index < len(rows.deepstack):
            rows.hidden = rows.hidden + rows.deepstack[index]
        lengths.append(len(rows.index))
        if index + 1 in keep:
            attention = _last_token_attention(qwen, layer, entering, rows.rotary, kv.layers[index].keys[0])
    last = qwen.language_model.norm(rows.hidden[0, -1])
    return Prefilled(qwen.model.lm_head(last), kv, tuple(lengths), rows.index)


def _rows(qwen: QwenVL, part: PromptPart, places: Sequence[slice]) -> _Rows:
    inputs = part.inputs()
    hidden = inputs["inputs_embeds"]
    visual = torch.zeros(hidden.shape[1], dtype=torch.bool, device=hidden.device)
    for place in places:
        visual[place] = True
    deepstack = []
    for added in inputs.get("deepstack_visual_embeds", []):
        spread = torch.zeros_like(hidden[0])
        spread[visual] = added.to(hidden)
        deepstack.append(spread)
    rotary = qwen.language_model.rotary_emb(hidden, inputs["position_ids"])
    return _Rows(hidden, rotary, visual, deepstack, torch.arange(len(visual), device=hidden.device))


def _strongest(attention: torch.Tensor, visual: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of all text and of the `count` visual tokens of highest attention, in order."""
    ranked = torch.where(visual, attention, -torch.inf)
    kept = ~visual
    kept[ranked.topk(min(count, int(visual.sum()))).indices] = True
    return kept.nonzero()[:, 0]


def _last_token_attention(
    qwen: QwenVL, layer: Any, entering: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor
) -> torch.Tensor:
    """Attention of the last token on each of `keys` [kv heads, L, head_dim], mean over heads: float32 [L]."""
    query = last_query(qwen.family, layer.self_attn, layer.input_layernorm(entering[:, -1:]), rotary)
    return attention_weights(query, keys).mean(dim=(0, 1))


Schedule: TypeAlias = Callable[[int, int, int], Mapping[int, int]]
"""(layers, visual tokens, tokens that the budget pays) → how many go into which layer, as `staged_prefill` takes it."""

Thin: TypeAlias = Callable[[EncodedFrame, int], EncodedFrame]
"""A frame's tokens, and how many to keep → those."""


def no_drops(layers: int, tokens: int, budget: int) -> Mapping[int, int]:
    """The schedule of who has chosen before."""
    return {}


def all_tokens(frame: EncodedFrame, tokens: int) -> EncodedFrame:
    """The choice of who chooses later."""
    return frame


@dataclass(frozen=True, slots=True)
class AfterEncoder:
    """Method that drops tokens: `thin` before the language model, `schedule` inside it.

    `thin_flops` returns the cost of `thin`: (tokens, tokens kept, their width) → FLOPs.
    """

    thin: Thin = all_tokens
    schedule: Schedule = no_drops
    thin_flops: Callable[[int, int, int], int] = lambda tokens, kept, width: 0

    def __call__(self, qwen: QwenVL, ask: Ask) -> Reply:
        """Answer one question."""
        started_s = time.perf_counter()
        views = ask.views(qwen)
        wanted = [ask.budget.of(view.grid.tiles) for view in views]
        everything = [encode_packet(qwen, view.whole(np.ones(view.grid.shape, bool)), "full") for view in views]
        frames = [self.thin(frame, tokens) for frame, tokens in zip(everything, wanted, strict=True)]
        part, places = EvalPrompt(qwen, views, ask.text).with_frames(frames)
        given = sum(place.stop - place.start for place in places)
        keep = self.schedule(len(qwen.language_model.layers), given, sum(wanted))
        done = staged_prefill(qwen, part, places, keep)
        text, first_s = speak(qwen, done, part.position, ask.max_tokens)
        return Reply(
            text=text,
            tokens=given - (done.lengths[0] - done.lengths[-1]),
            of_tokens=sum(view.grid.tiles for view in views),
            regions=_newest(frames[-1], places[-1], done.kept),
            grid=views[-1].grid,
            flops=self._flops(qwen, everything, wanted, done, keep, text),
            ttft_ms=(first_s - started_s) * 1e3,
            prefilled=done.lengths[0],
        )

    def _flops(
        self,
        qwen: QwenVL,
        everything: Sequence[EncodedFrame],
        wanted: Sequence[int],
        done: Prefilled,
        keep: Mapping[int, int],
        text: str,
    ) -> Flops:
        costs = Costs(qwen)
        thinning = sum(
            self.thin_flops(frame.grid.tiles, tokens, frame.tokens.embeds.shape[-1])
            for frame, tokens in zip(everything, wanted, strict=True)
        )
        return Flops(
            choose=thinning + sum(costs.attention_row(done.lengths[layer - 1]) for layer in keep),
            encode=sum(costs.encode(frame.grid.tiles) for frame in everything),
            prefill=costs.prefill(done.lengths),
            decode=costs.decode(done.lengths, len(qwen.plain_token_ids(text))),
        )


def speak(qwen: QwenVL, done: Prefilled, position: int, max_tokens: int) -> tuple[str, float]:
    """The answer, and the `time.perf_counter()` at its first token (or its end)."""
    stream, logits, pieces, times_s = TextStream(qwen.tokenizer), done.logits, [], []
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
            logits = decode_one_token(qwen, token, position + index, done.kv)
    return "".join([*pieces, stream.finish()]), times_s[0]


def _newest(frame: EncodedFrame, place: slice, kept: torch.Tensor) -> npt.NDArray[np.int32]:
    """The regions of a frame whose tokens are among the `kept` ones of the prompt."""
    rows = kept[(kept >= place.start) & (kept < place.stop)].cpu() - place.start
    regions: npt.NDArray[np.int32] = frame.regions[0].cpu()[rows].numpy().astype(np.int32)
    return regions


def most_diverse(embeds: torch.Tensor, count: int) -> torch.Tensor:
    """`count` rows of [N, D], in order: first the one farthest from its nearest neighbour, then always the one that
    is farthest from the nearest of those chosen. int64 [count]."""
    rows = F.normalize(embeds.float(), dim=-1)
    distance = 1 - rows @ rows.T
    apart = distance.clone().fill_diagonal_(torch.inf).amin(dim=0)
    chosen = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for step in range(min(count, len(rows))):
        best = apart.masked_fill(chosen, -torch.inf).argmax()
        chosen[best] = True
        apart = torch.minimum(apart, distance[best]) if step else distance[best]
    return chosen.nonzero()[:, 0]


def _thin(frame: EncodedFrame, tokens: int) -> EncodedFrame:
    return pooled(frame, frame.regions[0, most_diverse(frame.tokens.embeds[0], tokens)])


def _flops(tokens: int, kept: int, width: int) -> int:
    """The matrix of cosines; the greedy search takes minima, not products."""
    return 2 * tokens * tokens * width


DIVPRUNE = Strategy("divprune", AfterEncoder(thin=_thin, thin_flops=_flops), encodes=("prune",))


CUT_AFTER = 2


def fastv_schedule(layers: int, tokens: int, budget: int) -> Mapping[int, int]:
    """One cut, after `CUT_AFTER` layers; none in a model that has no more."""
    return {CUT_AFTER: budget} if layers > CUT_AFTER and budget < tokens else {}


FASTV = Strategy("fastv", AfterEncoder(schedule=fastv_schedule), encodes=("prune",))


STAGES = 4


def pyramid_schedule(layers: int, tokens: int, budget: int) -> Mapping[int, int]:
    """Three cuts at quarters of the depth, geometrically down to the budget."""
    if budget >= tokens:
        return {}
    cuts = STAGES - 1
    first_layers = (max(1, round(stage * layers / STAGES)) for stage in range(1, STAGES))
    return {
        layer: max(budget, round(tokens * (budget / tokens) ** (stage / cuts)))
        for stage, layer in enumerate(first_layers, 1)
        if layer < layers
    }


PYRAMIDDROP = Strategy("pyramiddrop", AfterEncoder(schedule=pyramid_schedule), encodes=("prune",))
