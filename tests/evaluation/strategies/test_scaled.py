"""Scaled pictures with sharp parts: within the budget, as ordinary pictures, sharp where the map says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.vision import encode_regions, partly_encoded
from arr_coc.types import TokenPacket
from evaluation.errors import ChoiceError
from evaluation.strategies import scaled
from evaluation.strategies.base import Budget
from evaluation.strategies.catalogue import strategy_named
from evaluation.strategies.crops import LEAST_TILES, MOST_ASPECT, best_crops
from tests.support.evaluation import ask
from tests.support.models import tiny_qwen

NAMES = ("scaled-crops", "scaled-tiles", "scaled-crops-60-relevance", "scaled-tiles-30-patch*attention", "tiles-block1")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pieces of each prompt that is answered."""
    prompts: list[Any] = []
    answer = AnswerSession.answer_chat

    def record(self: AnswerSession, pieces: Sequence[Any], *args: Any) -> Any:
        prompts.append(list(pieces))
        return answer(self, pieces, *args)

    monkeypatch.setattr(AnswerSession, "answer_chat", record)
    return prompts


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_pictures_fit_into_the_budget_and_are_ordinary_ones(name: str, frames: int, shown: list[Any]) -> None:
    qwen = tiny_qwen()
    question = ask("80%", frames)
    (view, *_) = question.views(qwen)
    budget = question.budget.of(view.grid.tiles)
    reply = strategy_named(name).answer(qwen, question)
    packets = [piece for piece in shown[-1] if isinstance(piece, TokenPacket)]
    assert reply.tokens == sum(len(packet.regions) for packet in packets) <= budget * frames
    assert reply.tokens > 0.6 * budget * frames
    assert all((packet.regions[:, 0] == 0).all() for packet in packets), "no coarse token"
    whole = [packet for packet in packets if len(packet.regions) == packet.grid.tiles]
    if "crops" in name:
        assert whole == packets
        assert len(packets) > frames
    else:
        sharp = [packet for packet in packets if len(packet.regions) < packet.grid.tiles]
        assert len(sharp) == frames
        assert all(packet.grid == view.grid for packet in sharp), "at their true positions"
    opened = sum(piece.count(qwen.token_ids("<|vision_start|>")[0]) for piece in shown[-1] if isinstance(piece, tuple))
    assert opened == len(packets), "each picture has an opening of its own"


def test_a_small_budget_shows_the_scaled_picture_alone(shown: list[Any]) -> None:
    strategy_named("scaled-crops").answer(tiny_qwen(), ask("40%"))
    (packet,) = (piece for piece in shown[-1] if isinstance(piece, TokenPacket))
    assert len(packet.regions) == packet.grid.tiles <= 14 < scaled.LEAST_TOKENS


def test_a_budget_for_all_tiles_shows_the_picture_as_it_is(shown: list[Any]) -> None:
    qwen = tiny_qwen()
    question = ask("100%")
    strategy_named("scaled-tiles").answer(qwen, question)
    (packet,) = (piece for piece in shown[-1] if isinstance(piece, TokenPacket))
    (view,) = question.views(qwen)
    assert packet.grid == view.grid
    assert np.array_equal(packet.pixels, view.tiles())


def test_crops_lie_where_the_worth_is(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    question = ask("80%")
    (view,) = question.views(qwen)
    worth = np.zeros(view.grid.shape, np.float32)
    worth[2:4, 3:6] = 1
    monkeypatch.setitem(scaled.MAPS, "attention", lambda look: worth)
    strategy_named("scaled-crops").answer(qwen, question)
    sharp = [piece for piece in shown[-1] if isinstance(piece, TokenPacket)][1:]
    tiles = {tile.tobytes() for packet in sharp for tile in packet.pixels}
    wanted = view.tiles().reshape(*view.grid.shape, -1)[2:4, 3:6].reshape(6, -1)
    assert {tile.tobytes() for tile in wanted} <= tiles


def test_the_richest_rectangles_share_the_budget() -> None:
    worth = np.zeros((8, 12), np.float32)
    worth[1:3, 1:4] = 2
    worth[5:7, 8:11] = 1
    assert best_crops(worth, 12) == [(1, 1, 2, 3), (5, 8, 2, 3)]
    (one,) = best_crops(worth, 12, most=1)
    assert (one.rows * one.cols, worth[one.tiles].sum()) == (12, 12)
    assert best_crops(worth, LEAST_TILES - 1) == []
    (line,) = best_crops(np.eye(1, 12, dtype=np.float32).repeat(3, 0), 9, most=1)
    assert max(line.rows / line.cols, line.cols / line.rows) <= MOST_ASPECT


def test_nothing_of_worth_is_no_crop() -> None:
    assert best_crops(np.zeros((4, 4), np.float32), 8) == []


@torch.inference_mode()
def test_rows_after_all_blocks_are_what_the_encoder_merges() -> None:
    qwen = tiny_qwen()
    tower = qwen.tower
    (view,) = ask("100%").views(qwen)
    packet = view.token_packet(np.ones(view.grid.shape, bool))
    inputs = torch.from_numpy(packet.pixels)[None], torch.from_numpy(packet.regions).long()[None], packet.grid
    rows = partly_encoded(tower, *inputs, qwen.preprocessing.scale, len(tower.blocks))
    embeds = tower.merger(rows.flatten(0, 1)).unflatten(0, (1, -1))
    torch.testing.assert_close(embeds, encode_regions(tower, *inputs, qwen.preprocessing.scale).embeds)
    patches = partly_encoded(tower, *inputs, qwen.preprocessing.scale, 0)
    assert patches.shape == rows.shape
    assert not torch.equal(patches, rows)


@pytest.mark.parametrize(
    "name", ["scaled-", "scaled-parts", "scaled-crops-x", "scaled-crops-50-patch-x", "tiles-", "crops-patch"]
)
def test_other_names_are_none_of_these(name: str) -> None:
    with pytest.raises(ChoiceError, match="unknown strategy"):
        strategy_named(name)


def test_the_share_is_the_scaled_picture_s(shown: list[Any]) -> None:
    sizes = []
    for share in ("30", "70"):
        strategy_named(f"scaled-tiles-{share}").answer(tiny_qwen(), ask(str(Budget(90))))
        sizes.append(next(len(piece.regions) for piece in shown[-1] if isinstance(piece, TokenPacket)))
    assert sizes[0] < sizes[1]
