"""Answers through the project’s own session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.encoding import EncodedFrame, IncrementalEncoder, Packet, VisionStats
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.glancing import Glancer
from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.slot import AnswerResult
from arr_coc.qwen.vision import VisualTokens
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode, TokenPacket, time_text
from evaluation.strategies.base import Ask, Chosen, Reply, TiledFrame


class EvalPrompt:
    """[system] [frames…] [query] [assistant]: one frame as an image, each of several under its time.

    `text_tokens` counts everything but the frames' own tokens.
    """

    def __init__(self, qwen: QwenVL, views: Sequence[TiledFrame], query: str) -> None:
        self._qwen = qwen
        ids = prompt_ids(qwen, None)
        self._head, self._close = ids.head, ids.frame_close
        headings = [qwen.token_ids(time_text(view.stamp.media_ns)) if len(views) > 1 else [] for view in views]
        self._openings = [[*heading, *ids.frame_open] for heading in headings]
        query_ids, self._after_query = qwen.plain_token_ids(ids.shown(query)), ids.after_query
        self._rest = [*ids.before_query, *query_ids, *self._after_query]
        self._query_tokens = len(query_ids)
        around_frames = sum(len(opening) + len(self._close) for opening in self._openings)
        self.text_tokens = len(self._head) + around_frames + len(self._rest)

    def with_frames(self, frames: Sequence[EncodedFrame]) -> tuple[PromptPart, list[slice]]:
        """The whole prompt for one prefill, and the places of the frames' tokens in it."""
        part = PromptPart(self._qwen, 0, 0)
        part.text(self._head)
        places = []
        for opening, frame in zip(self._openings, frames, strict=True):
            part.text(opening)
            places.append(part.frame(frame))
            part.text(self._close)
        part.text(self._rest)
        return part, places

    def question_rows(self, part: PromptPart) -> slice:
        """Return the rows of the question's own tokens in a part that `with_frames` made."""
        stop = part.tokens - len(self._after_query)
        return slice(stop - self._query_tokens, stop)


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """An answer, and the work of each frame that was encoded for it, if `incremental` did that."""

    result: AnswerResult
    encoded: tuple[VisionStats, ...]


class EvalSession:
    """Session of one strategy, separate so that none is cheaper for what another one left in the cache."""

    def __init__(self, qwen: QwenVL, ask: Ask, *, feedback: bool = False) -> None:
        options = AnswerOptions(ask.encode, Decoding(ask.max_tokens), feedback=feedback)
        self._session = AnswerSession(qwen, options)
        self._session.vision = self._vision = _RecordingEncoder(options.incremental)
        self._query = ask.text

    def glancer(self, *, timed: bool) -> Glancer:
        """Session that glances at pictures for this question, and keeps what it read of them for the answer."""
        return Glancer(self._session, self._query, timed=timed)

    def answer(self, packets: Sequence[Packet]) -> SessionAnswer:
        """The answer about frames, the oldest first."""
        self._vision.reports.clear()
        for _ in self._session.answer(packets, self._query):
            pass
        return SessionAnswer(self._session.last, tuple(self._vision.reports))


class _RecordingEncoder(IncrementalEncoder):
    """Record the encoding report of every frame in `reports`."""

    def __init__(self, options: IncrementalOptions) -> None:
        super().__init__(options)
        self.reports: list[VisionStats] = []

    def encode(self, qwen: QwenVL, packet: TokenPacket) -> tuple[VisualTokens, torch.Tensor]:
        result = super().encode(qwen, packet)
        self.reports.append(self.report)
        return result


Choose: TypeAlias = Callable[[Sequence[TiledFrame], Ask], list[Chosen]]
"""Tiles of each view that are shown."""


def answer_from(choose: Choose, qwen: QwenVL, ask: Ask) -> Reply:
    """Answer from the tiles that `choose` names, encoded as `ask.encode` says."""
    session = EvalSession(qwen, ask)
    started_s = time.perf_counter()
    views = ask.views(qwen)
    masks = choose(views, ask)
    sparse = encodes_shown_only(ask.encode)
    packets = [
        view.token_packet(tiles) if sparse else view.frame_packet(tiles)
        for view, tiles in zip(views, masks, strict=True)
    ]
    chosen_ms = (time.perf_counter() - started_s) * 1e3
    answer = session.answer(packets)
    result = answer.result
    frame_tokens = [int(tiles.sum()) if ask.encode != "full" else tiles.size for tiles in masks]
    return Reply(
        text=result.text,
        tokens=result.work.tokens_used,
        of_tokens=sum(view.grid.tiles for view in views),
        regions=result.regions,
        grid=views[-1].grid,
        flops=packet_flops(qwen, ask, views, frame_tokens, answer),
        ttft_ms=chosen_ms + result.first_token_ms,
        prefilled=result.work.prefilled_tokens,
    )


def packet_flops(
    qwen: QwenVL, ask: Ask, views: Sequence[TiledFrame], frame_tokens: Sequence[float], answer: SessionAnswer
) -> Flops:
    """FLOPs of an answer about some tokens of each frame.

    Args:
        qwen: The model.
        ask: Question and encoding.
        views: The frames as the model fits them.
        frame_tokens: Visual tokens of each frame in the prompt.
        answer: The text, and reports of an incremental encoder.
    """
    costs = Costs(qwen)
    lengths = [EvalPrompt(qwen, views, ask.text).text_tokens + round(sum(frame_tokens))] * costs.layers
    encoded = frame_tokens if encodes_shown_only(ask.encode) else [view.grid.tiles for view in views]
    encode = sum(costs.encode(round(tokens)) for tokens in encoded)
    if ask.encode == "incremental":
        encode = sum(costs.encode(report.encoded, report.regions) for report in answer.encoded)
    return Flops(
        encode=encode,
        prefill=costs.prefill(lengths),
        decode=costs.decode(lengths, len(qwen.plain_token_ids(answer.result.text))),
    )


def encodes_shown_only(encode: Encode) -> bool:
    """True if the encoder sees only the chosen tokens."""
    return encode in NEEDS_TOKENS_ONLY
