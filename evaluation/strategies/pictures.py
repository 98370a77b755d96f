"""Whole pictures within the budget, as a model server gets them (`--api`): scaled, a composite, or parts.

The allocator's relevance decides which parts are enlarged. Pictures, texts around them and JPEG are those of
`stream.extensions.api.pictures`; the model reads them as stock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import cv2
import numpy as np

from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import FramePacket, time_text
from evaluation.errors import EvaluationError
from evaluation.strategies.arr_coc import allocator_for, check_allocated, choosing_flops
from evaluation.strategies.base import Ask, Reply, Strategy, TiledFrame, stamps_of
from evaluation.strategies.pruning.staged import speak, staged_prefill
from stream.extensions.api.pictures import ApiPictures, PictureKind, pictures_of
from stream.extensions.api.section import ApiSection


def _decode(jpeg: bytes) -> Rgb:
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise EvaluationError("a picture that was made here is no JPEG")
    return np.ascontiguousarray(picture[..., ::-1])


def _pictures(qwen: QwenVL, ask: Ask, views: Sequence[TiledFrame], kind: PictureKind) -> list[ApiPictures]:
    allocator = allocator_for(qwen, replace(ask, encode="prune"), views)
    pictures = []
    for frame, stamp in zip(ask.frames, stamps_of(ask.times_s), strict=True):
        packet = allocator.allocate(frame, stamp)
        check_allocated(allocator)
        assert isinstance(packet, FramePacket)
        pictures.append(pictures_of(packet, kind, ApiSection().quality))
    return pictures


def _answer(qwen: QwenVL, ask: Ask, kind: PictureKind) -> Reply:
    started_s = time.perf_counter()
    views = ask.views(qwen)
    frames = _pictures(qwen, ask, views, kind)
    ids, stamps = prompt_ids(qwen, None), stamps_of(ask.times_s)
    part = PromptPart(qwen, 0, 0)
    part.text(ids.head)
    places, tiles = [], []
    for pictures, stamp in zip(frames, stamps, strict=True):
        if len(frames) > 1:
            part.text(qwen.token_ids(time_text(stamp.media_ns)))
        for caption, jpeg in zip(pictures.captions, pictures.jpegs, strict=True):
            view = TiledFrame.fit(qwen.preprocessing, _decode(jpeg), stamp)
            part.text([*qwen.plain_token_ids(caption), *ids.frame_open])
            places.append(part.frame(encode_packet(qwen, view.frame_packet(np.ones(view.grid.shape, bool)), "full")))
            part.text(ids.frame_close)
            tiles.append(view.grid.tiles)
    explanation = frames[-1].explanation
    text = f"{explanation}\n{ask.text}" if explanation else ask.text
    part.text([*ids.before_query, *qwen.plain_token_ids(ids.shown(text)), *ids.after_query])
    prefill = staged_prefill(qwen, part, places)
    text, first_s = speak(qwen, prefill, part.position, ask.max_tokens)
    costs = Costs(qwen)
    of_tokens = sum(view.grid.tiles for view in views)
    return Reply(
        text=text,
        tokens=sum(tiles),
        of_tokens=of_tokens,
        regions=np.zeros((0, 3), np.int32),
        grid=views[-1].grid,
        flops=Flops(
            choose=choosing_flops(qwen.realiser, of_tokens),
            encode=sum(costs.encode(count) for count in tiles),
            prefill=costs.prefill(prefill.lengths),
            decode=costs.decode(prefill.lengths, len(qwen.plain_token_ids(text))),
        ),
        ttft_ms=(first_s - started_s) * 1e3,
        prefilled=prefill.lengths[0],
    )


def _strategy(kind: PictureKind) -> Strategy:
    return Strategy(f"picture-{kind}", partial(_answer, kind=kind), encodes=("full",))


PICTURES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (_strategy("scaled"), _strategy("composite"), _strategy("parts"))
}
"""The strategies by name; asked for by name only."""
