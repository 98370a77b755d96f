"""Answers from tiles that were chosen before the encoder, through the project's own session.

Each answer has a session of its own, so that none is cheaper for what an earlier one left in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from arr_coc.qwen.decode import Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerOptions, AnswerSession, Frames
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode
from evaluation.flops import Costs, Flops
from evaluation.prompting import Prompt
from evaluation.strategies.base import Ask, Reply
from evaluation.views import Chosen, View

Choose: TypeAlias = Callable[[Sequence[View], Ask], list[Chosen]]
"""Which tiles of each view are shown."""


def answer_from(choose: Choose, qwen: QwenVL, ask: Ask, frames: Frames = "causal") -> Reply:
    """Answers from the tiles that `choose` names, encoded as `ask.encode` says and read as `frames` says."""
    session = AnswerSession(qwen, AnswerOptions(ask.encode, Decoding(ask.max_tokens), frames=frames))
    started_s = time.perf_counter()
    views = ask.views(qwen)
    chosen = choose(views, ask)
    sparse = encodes_shown_only(ask.encode)
    packets = [
        view.chosen_only(tiles) if sparse else view.whole(tiles) for view, tiles in zip(views, chosen, strict=True)
    ]
    chosen_ms = (time.perf_counter() - started_s) * 1e3
    text = "".join(session.answer(packets, ask.text))
    last = session.last
    shown = [int(tiles.sum()) if ask.encode != "full" else tiles.size for tiles in chosen]
    return Reply(
        text=text,
        tokens=last.tokens_used,
        of_tokens=sum(view.grid.tiles for view in views),
        regions=last.regions,
        grid=views[-1].grid,
        flops=packet_flops(qwen, ask, views, shown, text),
        ttft_ms=chosen_ms + last.first_token_ms,
    )


def packet_flops(qwen: QwenVL, ask: Ask, views: Sequence[View], shown: Sequence[float], text: str) -> Flops:
    """What it takes to answer `text` from `shown` tokens of each frame."""
    costs = Costs(qwen)
    encoded = shown if encodes_shown_only(ask.encode) else [view.grid.tiles for view in views]
    lengths = [Prompt(qwen, views, ask.text).text_tokens + round(sum(shown))] * costs.layers
    return Flops(
        encode=sum(costs.encode(round(tokens)) for tokens in encoded),
        prefill=costs.prefill(lengths),
        decode=costs.decode(lengths, len(qwen.plain_token_ids(text))),
    )


def encodes_shown_only(encode: Encode) -> bool:
    """Whether the encoder sees only the chosen tokens."""
    return encode in NEEDS_TOKENS_ONLY
