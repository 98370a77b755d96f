"""Answer loss, and cases whose maps are the model's attention.

The choice is made by relevance with Gumbel noise (Gumbel-top-k: Kool, van Hoof & Welling, 2019, arXiv:1903.06059), so
that near-equals take turns. What is chosen carries a gradient straight through to its relevance (Bengio, Léonard &
Courville, 2013, arXiv:1308.3432), as a logarithm of its share among all tiles: a token that helps is to be chosen more
surely, at the expense of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache

from arr_coc.adaptation.cases import AllocatorCase, Batches
from arr_coc.adaptation.teacher import AttentionTeacher
from arr_coc.allocation.choice_gradient import logit
from arr_coc.qwen.preprocess import after_frame, text_positions, to_tiles, visual_positions
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.vision import VisualTokens, encode_regions
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.types import TILE_PX, TileGrid
from training.cases import cases_of
from training.clips.truth import Sample


def attended(samples: Iterable[Sample], qwen: QwenVL, channels: str = "core13") -> Iterator[AllocatorCase]:
    """Cases of the samples' frames, each shown to the model alone, `target` being its attention."""
    teacher = AttentionTeacher(qwen)
    for _, of_clip in groupby(samples, key=lambda sample: id(sample.clip)):
        by_frame: dict[int, list[AllocatorCase]] = {}
        for case in cases_of(of_clip, with_images=True, channels=channels):
            by_frame.setdefault(id(case.image), []).append(case)
        for cases in by_frame.values():
            assert cases[0].image is not None, "the cases were made with images"
            teacher.show(cases[0].image)
            for case in cases:
                yield replace(case, target=teacher.attention(case.question), image=None)


SHARES = (0.08, 0.3)
"""The share of the tiles that is shown is drawn between these."""

LAST_LAYERS_SHARE = 0.25
"""Number of the language model's layers that learn along, in the second half of the time."""

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
        selection = gumbel_topk(relevance, max(1, round(share * relevance[0].numel())), self._rng)
        return self._loss(cases, relevance, selection)

    def _loss(self, cases: list[AllocatorCase], relevance: torch.Tensor, selection: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the right answers; `selection` int64 [B, K], tiles in token order."""
        qwen, cols = self._qwen, relevance.shape[2]
        images = torch.stack([torch.from_numpy(case.image.copy()) for case in cases if case.image is not None])
        grid = TileGrid.of(images.shape[1], images.shape[2])
        tiles = torch.stack([to_tiles(image, TILE_PX) for image in images])
        pixels = tiles[torch.arange(len(cases))[:, None], selection]
        regions = torch.stack([torch.zeros_like(selection), selection // cols, selection % cols], dim=-1)
        tokens = encode_regions(qwen.tower, pixels, regions, grid, qwen.preprocessing.scale)
        through = logit(relevance).flatten(1).log_softmax(dim=1).gather(1, selection)[..., None]
        tokens = tokens.map(lambda rows: rows * (1 + through - through.detach()).to(rows.dtype))
        ids, labels = self._dialogues(cases)
        logits = self._logits(tokens, regions, ids, grid)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=_IGNORED)

    def _dialogues(self, cases: list[AllocatorCase]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels [B, S] from the question to the end of the answer."""
        qwen, rows, labels = self._qwen, [], []
        for case in cases:
            prompt = [*self._ids.before_query, *qwen.plain_token_ids(case.question), *self._ids.after_query]
            reply = [*qwen.plain_token_ids(case.answer), int(qwen.tokenizer.eos_token_id)]
            rows.append(torch.tensor(prompt + reply))
            labels.append(torch.tensor([_IGNORED] * len(prompt) + reply))
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded, nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=_IGNORED)

    def _logits(self, tokens: VisualTokens, regions: torch.Tensor, ids: torch.Tensor, grid: TileGrid) -> torch.Tensor:
        """Logits [B, S, vocabulary] at `ids`, after the frame's tokens; padding of a row comes after all of them."""
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
    """Draw tiles of each map without replacement, by relevance as odds.

    Args:
        relevance: Maps float [B, gh, gw].
        tokens: Number K of tiles of each map.
        rng: Source of the noise.

    Returns:
        Tiles int64 [B, K], sorted.
    """
    odds = logit(relevance.detach()).flatten(1)
    noise = torch.from_numpy(rng.gumbel(size=odds.shape).astype(np.float32))
    return (odds + noise).topk(tokens, dim=1).indices.sort(dim=1).values
