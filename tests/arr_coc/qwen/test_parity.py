"""Every encoding compared with stock transformers, on tiny random models of all families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.encoding import EncodedFrame, IncrementalEncoder, encode_packet
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.preprocess import grid_regions, to_patches, to_tiles
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import NEEDS_TOKENS_ONLY, Encode, FramePacket, FrameStamp, TileGrid, TokenPacket
from tests.support.models import FAMILIES, tiny_qwen

GRID = TileGrid.of(4 * 32, 6 * 32)
QUERY = "Is the cat sleeping?"
STAMP = FrameStamp(0, 0, 0)


class Stock:
    """Run of the stock model over one picture of noise, with the image prompt of the chat template."""

    def __init__(self, qwen: QwenVL) -> None:
        self.model, tokenizer = qwen.model, qwen.tokenizer
        tile_px = qwen.preprocessing.tile_px
        shape = (GRID.rows * tile_px, GRID.cols * tile_px, 3)
        self.image = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
        rows = to_patches(qwen.preprocessing.scale(to_tiles(torch.from_numpy(self.image), tile_px)))
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUERY}]}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        text = text.replace("<|image_pad|>", "<|image_pad|>" * GRID.tiles)
        self.ids = tokenizer(text, return_tensors="pt")["input_ids"]
        self.visual = self.ids == self.model.config.image_token_id
        self.inputs: dict[str, Any] = {
            "input_ids": self.ids,
            "pixel_values": rows.unflatten(-1, (3, 1, -1)).expand(-1, 3, 2, -1).flatten(1),
            "image_grid_thw": torch.tensor([[1, 2 * GRID.rows, 2 * GRID.cols]]),
            "mm_token_type_ids": self.visual.int(),
        }

    def logits(self) -> torch.Tensor:
        return self.model(**self.inputs).logits[0, -1]

    def logits_of(self, tiles: torch.Tensor) -> torch.Tensor:
        """Return logits with only some tiles' rows after the stock encoder, at their positions of the full run."""
        positions, _ = self.model.model.get_rope_index(
            self.ids, mm_token_type_ids=self.inputs["mm_token_type_ids"], image_grid_thw=self.inputs["image_grid_thw"]
        )
        features = self.model.model.get_image_features(
            self.inputs["pixel_values"], self.inputs["image_grid_thw"], return_dict=True
        )
        features.pooler_output = (features.pooler_output[0][tiles],)
        if getattr(features, "deepstack_features", None):
            features.deepstack_features = [(rows[0][tiles],) for rows in features.deepstack_features]
        mask = torch.ones(self.ids.shape[1], dtype=torch.bool)
        first = int(self.visual[0].nonzero()[0])
        mask[first : first + GRID.tiles] = False
        mask[first + tiles] = True
        output = self.model(
            input_ids=self.ids[:, mask], position_ids=positions[..., mask], mm_encoder_outputs={"image": features}
        )
        return output.logits[0, -1]


def frame_packet(stock: Stock, regions: torch.Tensor, relevance: np.ndarray | None = None) -> FramePacket:
    scores = np.ones(GRID.shape, np.float32) if relevance is None else relevance
    return FramePacket(STAMP, GRID, regions.numpy().astype(np.int32), scores, stock.image)


def token_packet(qwen: QwenVL, stock: Stock, tiles: torch.Tensor) -> TokenPacket:
    pixels = to_tiles(torch.from_numpy(stock.image), qwen.preprocessing.tile_px)[tiles]
    regions = grid_regions(GRID)[tiles].numpy().astype(np.int32)
    return TokenPacket(STAMP, GRID, regions, np.ones(len(tiles), np.float32), pixels.numpy())


def whole_packet(qwen: QwenVL, stock: Stock, encode: Encode) -> TokenPacket | FramePacket:
    """A packet of all tiles, of the kind that the encoding takes."""
    if encode in NEEDS_TOKENS_ONLY:
        return token_packet(qwen, stock, torch.arange(GRID.tiles))
    return frame_packet(stock, grid_regions(GRID))


def own_logits(qwen: QwenVL, frame: EncodedFrame) -> torch.Tensor:
    ids = AnswerSession(qwen).prompts.ids
    part = PromptPart(qwen, 0, 0)
    part.text([*ids.head, *ids.frame_open])
    part.frame(frame)
    part.text([*ids.frame_close, *ids.before_query, *qwen.plain_token_ids(QUERY), *ids.after_query])
    return prefill(qwen, part, empty_cache(qwen))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("encode", ["full", "prune", "sparse", "incremental"])
@torch.no_grad()
def test_all_tokens_give_the_stock_logits(family: str, encode: Encode) -> None:
    qwen = tiny_qwen(family)
    stock = Stock(qwen)
    packet = whole_packet(qwen, stock, encode)
    memory = IncrementalEncoder()
    if encode == "incremental":
        before = token_packet(qwen, stock, torch.arange(GRID.tiles))
        memory.encode(qwen, replace(before, pixels=255 - before.pixels))
    frame = encode_packet(qwen, packet, encode, memory)
    torch.testing.assert_close(own_logits(qwen, frame), stock.logits(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_pruned_tokens_keep_their_positions(family: str) -> None:
    qwen = tiny_qwen(family)
    stock = Stock(qwen)
    tiles = torch.tensor([0, 3, 4, 11, 17, 23])
    frame = encode_packet(qwen, frame_packet(stock, grid_regions(GRID)[tiles]), "prune")
    torch.testing.assert_close(own_logits(qwen, frame), stock.logits_of(tiles), atol=1e-5, rtol=0)
    torch.testing.assert_close(stock.logits_of(torch.arange(GRID.tiles)), stock.logits(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("encode", ["full", "sparse", "incremental"])
@torch.no_grad()
def test_greedy_answers_equal_stock_generation(family: str, encode: Encode) -> None:
    qwen = tiny_qwen(family)
    stock = Stock(qwen)
    packet = whole_packet(qwen, stock, encode)
    generated = stock.model.generate(**stock.inputs, max_new_tokens=16, do_sample=False)[0, stock.ids.shape[1] :]
    expected = qwen.tokenizer.decode(generated, skip_special_tokens=True)
    session = AnswerSession(qwen, AnswerOptions(encode, Decoding(max_tokens=16)))
    for _ in range(2):  # the second time from cached keys and values
        assert "".join(session.answer(packet, QUERY)) == expected
    assert session.last.work.tokens_used == GRID.tiles


@torch.no_grad()
def test_weighted_scales_every_token_by_its_relevance() -> None:
    qwen = tiny_qwen()
    stock = Stock(qwen)
    relevance = np.random.default_rng(0).random(GRID.shape, np.float32)
    full = encode_packet(qwen, frame_packet(stock, grid_regions(GRID)), "full")
    weighted = encode_packet(qwen, frame_packet(stock, grid_regions(GRID), relevance), "weighted")
    scale = torch.from_numpy(relevance).flatten()[:, None]
    torch.testing.assert_close(weighted.tokens.embeds[0], full.tokens.embeds[0] * scale)
    torch.testing.assert_close(weighted.tokens.deepstack[1][0], full.tokens.deepstack[1][0] * scale)


@torch.no_grad()
def test_bfloat16_stays_close_to_stock() -> None:
    qwen = tiny_qwen()
    qwen.model.to(torch.bfloat16)
    stock = Stock(qwen)
    frame = encode_packet(qwen, frame_packet(stock, grid_regions(GRID)), "full")
    assert frame.tokens.embeds.dtype == torch.bfloat16
    expected = stock.logits().float()
    assert (own_logits(qwen, frame).float() - expected).abs().max() < 0.05 * expected.abs().max()


@torch.no_grad()
def test_coarse_tokens_keep_their_float_positions_in_bfloat16() -> None:
    qwen = tiny_qwen()
    qwen.model.to(torch.bfloat16)
    stock = Stock(qwen)
    part = PromptPart(qwen, 0, 0)
    part.text(qwen.token_ids("Say"))
    start = part.position
    part.frame(encode_packet(qwen, frame_packet(stock, torch.tensor([[1, 0, 1], [2, 0, 1]])), "prune"))
    part.text(qwen.token_ids("what"))
    positions = part.inputs()["position_ids"]
    assert positions.dtype == torch.float32
    assert positions[:, 0, start : start + 2].T.tolist() == [
        [start, start + 0.5, start + 2.5],
        [start, start + 1.5, start + 5.5],
    ]
    assert positions[0, 0, start + 2] == start + 6
