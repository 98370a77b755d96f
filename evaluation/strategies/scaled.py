"""Ways that a stock Qwen-VL can use as it comes: the whole picture scaled, and parts of it sharp.

The scaled picture is an ordinary picture on an ordinary grid. What is sharp follows as further pictures of the same
prompt: `scaled-crops` shows rectangles of tiles, each an ordinary picture, too; `scaled-tiles` single tiles at their
true positions. `tiles` shows the latter alone. The look that chooses them is a glance at the scaled picture, which
stays in the prompt, so it costs the question once more.

Names are `scaled-crops[-SHARE][-MAP]`, `scaled-tiles[-SHARE][-MAP]` and `tiles-MAP`: SHARE is the scaled picture's of
the budget in per cent, MAP what decides which tiles are sharp, of MAPS, as `attention` or `patch*relevance`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.pieces import Ids
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.vision import partly_encoded
from arr_coc.types import TokenPacket, time_text
from evaluation.strategies.arr_coc import allocator_for
from evaluation.strategies.base import Ask, Reply, Strategy, TiledFrame
from evaluation.strategies.crops import best_crops
from evaluation.strategies.pruning.vidcom2 import nearness, steady_features
from evaluation.strategies.sampling import smaller_frame

Map = npt.NDArray[np.float32]

LEAST_TOKENS = 24
"""Smallest budget of which a part is spent on sharp tiles: of fewer, nothing is left that shows the whole."""

WHOLE_SHARE = 0.5
GLANCED_SHARE = 0.25
"""Of the budget: the scaled picture that stays in the prompt, and one that is only glanced at (`tiles`)."""

LEAST_WORTH = 1e-12


@dataclass(frozen=True, slots=True)
class ScaledOptions:
    """`whole`: share of the budget of the scaled picture; 0 for none. `crops`: what is sharp is rectangles."""

    whole: float
    crops: bool
    by: str


@dataclass(frozen=True, slots=True)
class Look:
    """All that the sharp tiles of a frame are chosen from; `small` is the scaled picture."""

    qwen: QwenVL
    session: AnswerSession
    ask: Ask
    frame: Rgb
    view: TiledFrame
    small: TiledFrame

    def worth(self, by: str) -> Map:
        """Return the sum of products of maps that `by` names: float32 [rows, cols]."""
        total = np.zeros(self.view.grid.shape, np.float32)
        for product in by.split("+"):
            worth = np.ones_like(total)
            for name in product.split("*"):
                worth = worth * MAPS[name](self)
            total += worth / max(float(worth.max()), LEAST_WORTH)
        return total


def _attention(look: Look) -> Map:
    """What the decoder attends to in the scaled picture for the question."""
    glance = look.session.glance(_whole(look.small), look.ask.text)
    attention = glance.feedback.attention.reshape(look.small.grid.shape)
    return np.asarray(cv2.resize(attention, look.view.grid.shape[::-1], interpolation=cv2.INTER_LINEAR), np.float32)


def _relevance(look: Look) -> Map:
    """What the allocator holds of the frame alone."""
    allocator = allocator_for(look.qwen, replace(look.ask, encode="prune"), [look.view])
    allocator.allocate(look.frame, look.view.stamp)
    return allocator.relevance


@torch.inference_mode()
def _uniqueness(look: Look, blocks: int) -> Map:
    """How unlike the rest of the frame a tile is (VidCom2, arXiv:2505.14454) in the encoder after so many blocks; after
    0 of them it is embedded patches, 0.5 % of a tower's work."""
    packet = look.view.token_packet(np.ones(look.view.grid.shape, bool))
    pixels, regions = torch.from_numpy(packet.pixels)[None], torch.from_numpy(packet.regions).long()[None]
    rows = partly_encoded(look.qwen.tower, pixels, regions, packet.grid, look.qwen.preprocessing.scale, blocks)
    states = rows[0].unflatten(0, (packet.grid.tiles, -1)).flatten(1).float()
    tokens = steady_features(states)
    likeness = nearness(tokens, tokens.mean(dim=0))
    unlike = likeness.max() - likeness
    return unlike.reshape(packet.grid.shape).cpu().numpy()


MAPS: dict[str, Callable[[Look], Map]] = {
    "attention": _attention,
    "relevance": _relevance,
    "patch": partial(_uniqueness, blocks=0),
    "block1": partial(_uniqueness, blocks=1),
    "block2": partial(_uniqueness, blocks=2),
}
"""Maps float32 [rows, cols], 0 or more."""


NAMES = ("scaled-crops[-SHARE][-MAP]", "scaled-tiles[-SHARE][-MAP]", "tiles-MAP")


def _whole(view: TiledFrame) -> TokenPacket:
    """All tiles of a picture, as a glance takes them."""
    packet = view.token_packet(np.ones(view.grid.shape, bool))
    return replace(packet, overview=len(packet.regions))


def _scaled(qwen: QwenVL, frame: Rgb, view: TiledFrame, tokens: int) -> TiledFrame:
    return TiledFrame.fit(qwen.preprocessing, smaller_frame(frame, view, tokens), view.stamp)


def _pictures(
    qwen: QwenVL, session: AnswerSession, ask: Ask, frame: Rgb, view: TiledFrame, options: ScaledOptions
) -> list[TokenPacket]:
    """Return the pictures of one frame, within its budget."""
    budget = ask.budget.of(view.grid.tiles)
    small = _scaled(qwen, frame, view, budget)
    if budget < LEAST_TOKENS or small.grid.tiles == view.grid.tiles:
        return [_whole(small)]
    small = _scaled(qwen, frame, view, round((options.whole or GLANCED_SHARE) * budget))
    pictures = [_whole(small)] if options.whole else []
    left = budget - sum(len(picture.regions) for picture in pictures)
    if left <= 0:
        return pictures
    worth = Look(qwen, session, ask, frame, view, small).worth(options.by)
    if options.crops:
        return pictures + [_cut(qwen, view, crop.tiles) for crop in best_crops(worth, left)]
    sharp = np.zeros(view.grid.tiles, bool)
    sharp[np.argsort(-worth.ravel(), kind="stable")[:left]] = True
    return [*pictures, view.token_packet(sharp.reshape(view.grid.shape))]


def _cut(qwen: QwenVL, view: TiledFrame, tiles: tuple[slice, slice]) -> TokenPacket:
    """Return a rectangle of tiles as a picture of its own."""
    down, across = (slice(part.start * view.tile_px, part.stop * view.tile_px) for part in tiles)
    return _whole(TiledFrame.fit(qwen.preprocessing, np.ascontiguousarray(view.image[down, across]), view.stamp))


def _answer(qwen: QwenVL, ask: Ask, options: ScaledOptions) -> Reply:
    started_s = time.perf_counter()
    session = AnswerSession(qwen, AnswerOptions("sparse", Decoding(ask.max_tokens), feedback=False))
    ids = prompt_ids(qwen, None)
    views = ask.views(qwen)
    pieces: list[Ids | Packet] = []
    text = [*ids.head]
    for frame, view in zip(ask.frames, views, strict=True):
        if len(views) > 1:
            text += qwen.token_ids(time_text(view.stamp.media_ns))
        for packet in _pictures(qwen, session, ask, frame, view, options):
            pieces += [(*text, *ids.frame_open), packet]
            text = [*ids.frame_close]
    pieces.append((*text, *ids.before_query, *qwen.plain_token_ids(ids.shown(ask.text)), *ids.after_query))
    chosen_ms = (time.perf_counter() - started_s) * 1e3
    for _ in session.answer_chat(pieces):
        pass
    result = session.last
    costs = Costs(qwen)
    counts = [len(piece.regions) for piece in pieces if isinstance(piece, TokenPacket)]
    lengths = [sum(counts) + sum(len(piece) for piece in pieces if isinstance(piece, tuple))] * costs.layers
    return Reply(
        text=result.text,
        tokens=result.work.tokens_used,
        of_tokens=sum(view.grid.tiles for view in views),
        regions=np.zeros((0, 3), np.int32),
        grid=views[-1].grid,
        flops=Flops(
            encode=sum(map(costs.encode, counts)),
            prefill=costs.prefill(lengths),
            decode=costs.decode(lengths, len(qwen.plain_token_ids(result.text))),
        ),
        ttft_ms=chosen_ms + result.first_token_ms,
        prefilled=lengths[0],
    )


def scaled_named(name: str) -> Strategy | None:
    """Return the strategy of a name such as `scaled-crops-60-patch*attention`; None if it is none of these."""
    parts = name.removeprefix("scaled-").split("-")
    whole = WHOLE_SHARE if name.startswith("scaled-") else 0.0
    if whole and len(parts) > 1 and parts[1].isdigit():
        whole = int(parts.pop(1)) / 100
    by = parts[1] if len(parts) > 1 else "attention"
    kinds = ("crops", "tiles") if whole else ("tiles",)
    maps = by.replace("+", "*").split("*")
    if parts[0] not in kinds or len(parts) > 2 or not 0 <= whole <= 1 or not all(part in MAPS for part in maps):
        return None
    return Strategy(name, partial(_answer, options=ScaledOptions(whole, parts[0] == "crops", by)), encodes=("sparse",))
