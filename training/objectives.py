"""Box, attention and answer losses.

The choice is made by relevance with Gumbel noise (Gumbel-top-k: Kool, van Hoof & Welling, 2019, arXiv:1903.06059), so
that near-equals take turns. What is chosen carries a gradient straight through to its relevance (Bengio, Léonard &
Courville, 2013, arXiv:1308.3432), as a logarithm of its share among all tiles: a token that helps is to be chosen more
surely, at the expense of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.ops.regions import paint
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import after_frame, text_positions, to_tiles, visual_positions
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.vision import VisualTokens, encode_regions
from arr_coc.relevance.balancing import RelevanceMaps, RelevanceRealiser
from arr_coc.types import NS_PER_S, TILE_PX, FrameStamp, TileGrid
from arr_coc.video.picture_allocator import PictureAllocator
from training.cases import AllocatorCase, Batches, cases_of
from training.clips.truth import Sample

_TOKENS = 8


def attended(samples: Iterable[Sample], qwen: QwenVL) -> Iterator[AllocatorCase]:
    """Cases of each sample's last frame, `wanted` being the model's attention on it, divided by its largest.

    As for feedback, attention is that of the middle layers at the answer's first eight tokens.
    """
    session = AnswerSession(qwen, AnswerOptions(encode="full", decoding=Decoding(max_tokens=_TOKENS)))
    for sample in samples:
        last = len(sample.clip.frames) - 1
        only = replace(sample, boxes=((),) * last + sample.boxes[last:])
        for case in cases_of([only]):
            shape = case.wanted.shape[0], case.wanted.shape[1]
            yield replace(case, wanted=_attention(session, sample, shape))


def _attention(session: AnswerSession, sample: Sample, shape: tuple[int, int]) -> torch.Tensor:
    """The attention on the clip's last frame: float32 [gh, gw] in [0, 1]."""
    qwen = session.qwen
    allocator = PictureAllocator(qwen, sample.question, AllocatorOptions("grid", budget=1, explore=0.0), "full")
    stamps = [FrameStamp(index, round(time_s * NS_PER_S), 0) for index, time_s in enumerate(sample.clip.times_s)]
    packets = [allocator.allocate(image, stamp) for image, stamp in zip(sample.clip.frames, stamps, strict=True)]
    for _ in session.answer(packets, sample.question):
        pass
    feedback = session.last.feedback
    assert feedback is not None, "the session's options leave it on"
    return torch.from_numpy(paint(feedback.regions, feedback.attention, shape, 0.0)).float()


LEAST_SHARE = 0.04
"""A tile holds what is asked from this share of its area on."""

_EDGE = 1e-4
_LIST_WEIGHT, _HIT_WEIGHT, _REST_WEIGHT = 0.3, 0.3, 3.0
_PARTICIPATION_WEIGHT = 0.5


def logit(relevance: torch.Tensor) -> torch.Tensor:
    """Relevance in [0, 1] as a finite logit, whose gradient vanishes nowhere."""
    return torch.logit(_EDGE + (1 - 2 * _EDGE) * relevance)


def box_loss(relevance: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How far relevance [B, gh, gw] is from the tiles that hold what is asked (`wanted` in [0, 1], some above 0).

    The cross-entropy of a softmax over the frame (ListNet: Cao et al., 2007), which ranks, and of each tile on its own,
    which keeps relevance absolute; tiles that are wanted weigh as much as all others together.
    """
    scores = logit(relevance).flatten(1)
    held = (wanted > LEAST_SHARE).float().flatten(1)
    count = held.sum(dim=1).clamp(min=1)
    ranked = -(held * F.log_softmax(scores, dim=1)).sum(dim=1) / count
    single = F.binary_cross_entropy_with_logits(scores, held, reduction="none")
    hit, rest = (single * held).sum(dim=1) / count, (single * (1 - held)).mean(dim=1)
    return (_LIST_WEIGHT * ranked + _HIT_WEIGHT * hit + _REST_WEIGHT * rest).mean()


def attention_loss(relevance: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """How far relevance [B, gh, gw] is from a model's attention, [B, gh, gw] in [0, 1], largest 1 in each frame.

    The softmax over the frame shall be the attention's distribution, and each tile's relevance the attention's square
    root, because attention is heavy-tailed.
    """
    scores, looked = logit(relevance).flatten(1), attention.flatten(1)
    shares = looked / looked.sum(dim=1, keepdim=True).clamp(min=_EDGE)
    ranked = -(shares * F.log_softmax(scores, dim=1)).sum(dim=1)
    single = F.binary_cross_entropy_with_logits(scores, looked.sqrt(), reduction="none").mean(dim=1)
    return (_LIST_WEIGHT * ranked + _REST_WEIGHT * single).mean()


def realised_loss(
    realised: RelevanceMaps, target: torch.Tensor, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The loss of relevance, and half as much that of participation alone, without which balancing may silence it."""
    return loss(realised.relevance, target) + _PARTICIPATION_WEIGHT * loss(realised.scores[:, 2], target)


SHARES = (0.08, 0.3)
"""The share of the tiles that is shown is drawn between these."""

LAST_LAYERS_SHARE = 0.25
"""How many of the language model's layers learn along, in the second half of the time."""

_IGNORED = -100


def last_layers(qwen: QwenVL) -> nn.ModuleList:
    """The layers of the language model that may learn along."""
    layers = qwen.language_model.layers
    return nn.ModuleList(layers[-max(1, round(LAST_LAYERS_SHARE * len(layers))) :])


class AnswerLoss:
    """The loss of a fresh batch of single frames."""

    def __init__(self, qwen: QwenVL, batches: Batches, rng: np.random.Generator) -> None:
        self._qwen, self._batches, self._rng = qwen, batches, rng
        self._ids = prompt_ids(qwen, None)

    def __call__(self, realiser: RelevanceRealiser) -> torch.Tensor:
        cases = self._batches.pick()
        batch = self._batches.collate(cases)
        relevance = realiser(batch.texture, batch.query).relevance
        share = float(self._rng.uniform(*SHARES))
        chosen = gumbel_topk(relevance, max(1, round(share * relevance[0].numel())), self._rng)
        return self._loss(cases, relevance, chosen)

    def _loss(self, cases: list[AllocatorCase], relevance: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the right answers; `chosen` int64 [B, K], tiles in token order."""
        qwen, cols = self._qwen, relevance.shape[2]
        images = torch.stack([torch.from_numpy(case.image.copy()) for case in cases if case.image is not None])
        grid = TileGrid.of(images.shape[1], images.shape[2])
        tiles = torch.stack([to_tiles(image, TILE_PX) for image in images])
        pixels = tiles[torch.arange(len(cases))[:, None], chosen]
        regions = torch.stack([torch.zeros_like(chosen), chosen // cols, chosen % cols], dim=-1)
        tokens = encode_regions(qwen.tower, pixels, regions, grid, qwen.preprocessing.scale)
        through = logit(relevance).flatten(1).log_softmax(dim=1).gather(1, chosen)[..., None]
        tokens = tokens.map(lambda rows: rows * (1 + through - through.detach()).to(rows.dtype))
        ids, labels = self._dialogues(cases)
        logits = self._logits(tokens, regions, ids, grid)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=_IGNORED)

    def _dialogues(self, cases: list[AllocatorCase]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels [B, S] from the question to the end of the answer."""
        qwen, rows, labels = self._qwen, [], []
        for case in cases:
            asked = [*self._ids.before_query, *qwen.plain_token_ids(case.question), *self._ids.after_query]
            said = [*qwen.plain_token_ids(case.answer), int(qwen.tokenizer.eos_token_id)]
            rows.append(torch.tensor(asked + said))
            labels.append(torch.tensor([_IGNORED] * len(asked) + said))
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded, nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=_IGNORED)

    def _logits(self, tokens: VisualTokens, regions: torch.Tensor, ids: torch.Tensor, grid: TileGrid) -> torch.Tensor:
        """Logits [B, S, vocabulary] at `ids`, after the frame's tokens; what pads a row comes after all of it."""
        language, count = self._qwen.language_model, len(ids)
        before = torch.tensor([[*self._ids.head, *self._ids.frame_open]]).expand(count, -1)
        after = torch.cat([torch.tensor([self._ids.frame_close]).expand(count, -1), ids], dim=1)
        start = before.shape[1]
        pieces = [language.embed_tokens(before), tokens.embeds, language.embed_tokens(after)]
        spans = (
            text_positions(0, start)[:, None].expand(3, count, -1),
            visual_positions(start, regions),
            text_positions(after_frame(start, grid), after.shape[1])[:, None].expand(3, count, -1),
        )
        visual = torch.cat([torch.full(span.shape[1:], index == 1) for index, span in enumerate(spans)], dim=1)
        deepstack = {}
        if tokens.deepstack:
            rows = [rows.flatten(0, 1) for rows in tokens.deepstack]
            deepstack = {"visual_pos_masks": visual, "deepstack_visual_embeds": rows}
        hidden = language(
            inputs_embeds=torch.cat([piece.to(pieces[0].dtype) for piece in pieces], dim=1),
            position_ids=torch.cat(spans, dim=-1),
            past_key_values=DynamicCache(),
            use_cache=True,
            **deepstack,
        ).last_hidden_state
        logits: torch.Tensor = self._qwen.model.lm_head(hidden[:, -ids.shape[1] :])
        return logits


def gumbel_topk(relevance: torch.Tensor, tokens: int, rng: np.random.Generator) -> torch.Tensor:
    """As many tiles of each map [B, gh, gw], drawn without replacement by relevance as odds: int64 [B, K], sorted."""
    odds = logit(relevance.detach()).flatten(1)
    noise = torch.from_numpy(rng.gumbel(size=odds.shape).astype(np.float32))
    return (odds + noise).topk(tokens, dim=1).indices.sort(dim=1).values
