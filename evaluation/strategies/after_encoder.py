"""Answers from frames that were encoded whole, and whose tokens are dropped afterwards: before the language model, or
inside it.

The encoder is paid for all tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.decode import TextStream, decode
from arr_coc.qwen.encoding import EncodedFrame, encode_packet
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.options import Decoding
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.prompting import Prompt
from evaluation.staged import Prefilled, staged_prefill
from evaluation.strategies.base import Ask, Reply

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
    """How tokens are dropped: `thin` before the language model, `schedule` inside it.

    `thin_flops` tells what `thin` takes: (tokens, how many are kept, their width) → FLOPs.
    """

    thin: Thin = all_tokens
    schedule: Schedule = no_drops
    thin_flops: Callable[[int, int, int], int] = lambda tokens, kept, width: 0

    def __call__(self, qwen: QwenVL, ask: Ask) -> Reply:
        """Answers one question."""
        started_s = time.perf_counter()
        views = ask.views(qwen)
        wanted = [ask.budget.of(view.grid.tiles) for view in views]
        everything = [encode_packet(qwen, view.whole(np.ones(view.grid.shape, bool)), "full") for view in views]
        frames = [self.thin(frame, tokens) for frame, tokens in zip(everything, wanted, strict=True)]
        part, places = Prompt(qwen, views, ask.text).with_frames(frames)
        given = sum(place.stop - place.start for place in places)
        keep = self.schedule(len(qwen.language_model.layers), given, sum(wanted))
        done = staged_prefill(qwen, part, places, keep)
        text, first_s = _speak(qwen, done, part.position, ask.max_tokens)
        return Reply(
            text=text,
            tokens=given - (done.lengths[0] - done.lengths[-1]),
            of_tokens=sum(view.grid.tiles for view in views),
            regions=_newest(frames[-1], places[-1], done.kept),
            grid=views[-1].grid,
            flops=self._flops(qwen, everything, wanted, done, keep, text),
            ttft_ms=(first_s - started_s) * 1e3,
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
            choose=thinning + sum(costs.look(done.lengths[layer - 1]) for layer in keep),
            encode=sum(costs.encode(frame.grid.tiles) for frame in everything),
            prefill=costs.prefill(done.lengths),
            decode=costs.decode(done.lengths, len(qwen.plain_token_ids(text))),
        )


def _speak(qwen: QwenVL, done: Prefilled, position: int, max_tokens: int) -> tuple[str, float]:
    """The answer, and when its first token (or its end) was known, as `time.perf_counter()` tells it."""
    stream, pieces = TextStream(qwen.tokenizer), []
    tokens = decode(qwen, done.logits, position, done.kv, Decoding(max_tokens))
    first = next(tokens, None)
    first_s = time.perf_counter()
    for token in () if first is None else chain([first], tokens):
        pieces.append(stream.push(token))
    return "".join([*pieces, stream.finish()]), first_s


def _newest(frame: EncodedFrame, place: slice, kept: torch.Tensor) -> npt.NDArray[np.int32]:
    """The regions of a frame whose tokens are among the `kept` ones of the prompt."""
    rows = kept[(kept >= place.start) & (kept < place.stop)].cpu() - place.start
    regions: npt.NDArray[np.int32] = frame.regions[0].cpu()[rows].numpy().astype(np.int32)
    return regions
