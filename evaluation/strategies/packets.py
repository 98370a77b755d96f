"""Answers from tiles that were chosen before the encoder, through the project's own session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.options import Frames
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode
from evaluation.prompting import Prompt
from evaluation.strategies.base import Ask, Reply
from evaluation.strategies.speaking import Speaking, Spoken
from evaluation.views import Chosen, View

Choose: TypeAlias = Callable[[Sequence[View], Ask], list[Chosen]]
"""Which tiles of each view are shown."""


def answer_from(choose: Choose, qwen: QwenVL, ask: Ask, frames: Frames = "causal") -> Reply:
    """Answers from the tiles that `choose` names, encoded as `ask.encode` says and read as `frames` says."""
    speaking = Speaking(qwen, ask, frames)
    started_s = time.perf_counter()
    views = ask.views(qwen)
    chosen = choose(views, ask)
    sparse = encodes_shown_only(ask.encode)
    packets = [
        view.chosen_only(tiles) if sparse else view.whole(tiles) for view, tiles in zip(views, chosen, strict=True)
    ]
    chosen_ms = (time.perf_counter() - started_s) * 1e3
    spoken = speaking.answer(packets)
    made = spoken.result
    shown = [int(tiles.sum()) if ask.encode != "full" else tiles.size for tiles in chosen]
    return Reply(
        text=made.text,
        tokens=made.tokens_used,
        of_tokens=sum(view.grid.tiles for view in views),
        regions=made.regions,
        grid=views[-1].grid,
        flops=packet_flops(qwen, ask, views, shown, spoken),
        ttft_ms=chosen_ms + made.first_token_ms,
    )


def packet_flops(qwen: QwenVL, ask: Ask, views: Sequence[View], shown: Sequence[float], spoken: Spoken) -> Flops:
    """What it takes to answer so from `shown` tokens of each frame."""
    costs = Costs(qwen)
    lengths = [Prompt(qwen, views, ask.text).text_tokens + round(sum(shown))] * costs.layers
    encoded = shown if encodes_shown_only(ask.encode) else [view.grid.tiles for view in views]
    encode = sum(costs.encode(round(tokens)) for tokens in encoded)
    if ask.encode == "incremental":
        encode = sum(costs.encode(report.encoded, report.regions) for report in spoken.encoded)
    return Flops(
        encode=encode,
        prefill=costs.prefill(lengths),
        decode=costs.decode(lengths, len(qwen.plain_token_ids(spoken.result.text))),
    )


def encodes_shown_only(encode: Encode) -> bool:
    """Whether the encoder sees only the chosen tokens."""
    return encode in NEEDS_TOKENS_ONLY
