"""`Pruner`: the base of methods that encode all tokens and then drop some. A member only chooses.

The base counts the budget, keeps the order and the position of each token, charges the choice, and lets a prompt alone
that the budget pays whole: that is the stock model's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.encoding import EncodedFrame, encode_packet
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Reply, Strategy, TiledFrame
from evaluation.strategies.pruning.staged import Candidates, Cuts, speak, staged_prefill
from evaluation.strategies.session import EvalPrompt


class Pruner(ABC):
    """Method that drops visual tokens after the encoder, under its `name`."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        """Return `count` of the candidates, int64 [count]: rows of `candidates.visual`, in any order."""

    def schedule(self, layers: int, tokens: int, budget: int) -> Mapping[int, int]:
        """Return how many of `tokens` visual tokens go into which of the model's layers; the last is `budget`, which is
        fewer. By default they are chosen before the first layer."""
        return {0: budget}

    def adapt(self, candidates: Candidates, counts: Sequence[int]) -> int:
        """Return how many tokens a cut leaves, by what is there: of the counts of this cut and the later ones, by
        default the first. The last cut leaves the last count."""
        return counts[0]

    def counts(self, layers: int, tokens: int, budget: int) -> Mapping[int, int]:
        """Return the schedule, as far as the model has such layers; nothing if the budget pays all tokens."""
        if budget >= tokens:
            return {}
        return {layer: count for layer, count in self.schedule(layers, tokens, budget).items() if layer < layers}

    def strategy(self) -> Strategy:
        """Return the method as a strategy."""
        return Strategy(self.name, self.answer, encodes=("prune",))

    def answer(self, qwen: QwenVL, ask: Ask) -> Reply:
        """Answer one question. Raises as `staged_prefill`."""
        views, frames, encode_s = _ENCODED.frames_of(qwen, ask)
        started_s = time.perf_counter() - encode_s
        budgets = [ask.budget.of(view.grid.tiles) for view in views]
        prompt = EvalPrompt(qwen, views, ask.text)
        part, places = prompt.with_frames(frames)
        tokens = sum(place.stop - place.start for place in places)
        counts = self.counts(len(qwen.language_model.layers), tokens, sum(budgets))
        cuts = Cuts(counts, self.choose, prompt.question_rows(part), budgets, self.adapt)
        prefill = staged_prefill(qwen, part, places, cuts)
        text, first_s = speak(qwen, prefill, part.position, ask.max_tokens)
        costs = Costs(qwen)
        return Reply(
            text=text,
            tokens=tokens - (part.tokens - prefill.lengths[-1]),
            of_tokens=sum(view.grid.tiles for view in views),
            regions=_kept_regions(frames[-1], places[-1], prefill.token_index),
            grid=views[-1].grid,
            flops=Flops(
                choose=prefill.choosing_flops,
                encode=sum(costs.encode(frame.grid.tiles) for frame in frames),
                prefill=costs.prefill(prefill.lengths),
                decode=costs.decode(prefill.lengths, len(qwen.plain_token_ids(text))),
            ),
            ttft_ms=(first_s - started_s) * 1e3,
            prefilled=prefill.lengths[0],
        )


class _EncodedFrames:
    """The whole frames of the question that was asked last: encoded once, and charged to each method that takes them,
    operations and time."""

    def __init__(self) -> None:
        self._key: tuple[QwenVL, Ask] | None = None
        self._entry: tuple[list[TiledFrame], list[EncodedFrame], float] = [], [], 0.0

    def frames_of(self, qwen: QwenVL, ask: Ask) -> tuple[list[TiledFrame], list[EncodedFrame], float]:
        """Return a question's frames as the processor fits them, encoded, and the seconds that both took."""
        if self._key is None or self._key[0] is not qwen or not _have_same_frames(self._key[1], ask):
            started_s = time.perf_counter()
            views = ask.views(qwen)
            frames = [encode_packet(qwen, view.frame_packet(np.ones(view.grid.shape, bool)), "full") for view in views]
            self._key, self._entry = (qwen, ask), (views, frames, time.perf_counter() - started_s)
        return self._entry


_ENCODED = _EncodedFrames()


def _have_same_frames(ask: Ask, other: Ask) -> bool:
    return (ask.times_s, len(ask.frames)) == (other.times_s, len(other.frames)) and all(
        frame is other_frame for frame, other_frame in zip(ask.frames, other.frames, strict=True)
    )


def _kept_regions(frame: EncodedFrame, place: slice, token_index: torch.Tensor) -> npt.NDArray[np.int32]:
    """The regions of a frame whose tokens are in `token_index`, rows of the prompt."""
    rows = token_index[(token_index >= place.start) & (token_index < place.stop)].cpu() - place.start
    regions: npt.NDArray[np.int32] = frame.regions[0].cpu()[rows].numpy().astype(np.int32)
    return regions
