"""Pooling, token counts, and arrays that must not be written to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_qwen import tiny_qwen

from arr_coc.qwen.encoding import EncodedFrame, encode_packet, pooled, token_count
from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.vision import VisualTokens
from arr_coc.types import Encode, FramePacket, FrameStamp, TileGrid, TokenPacket

GRID = TileGrid.of(3 * 32, 5 * 32)
STAMP = FrameStamp(0, 0, 0)


def whole() -> FramePacket:
    image = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    return FramePacket(STAMP, GRID, np.array([[0, 1, 1], [1, 0, 1]], np.int32), np.ones((3, 5), np.float32), image)


def test_a_coarse_region_is_the_mean_over_its_tiles() -> None:
    rows = torch.arange(15.0).view(1, 15, 1)
    frame = EncodedFrame(VisualTokens(rows, (rows * 10,)), grid_regions(GRID)[None], GRID)
    regions = torch.tensor([[0, 1, 3], [1, 0, 1], [1, 1, 2], [3, 0, 0]])
    tokens = pooled(frame, regions).tokens
    assert tokens.embeds[0, :, 0].tolist() == pytest.approx([8.0, 5.0, 14.0, 7.0])
    assert tokens.deepstack[0][0, :, 0].tolist() == pytest.approx([80.0, 50.0, 140.0, 70.0])


@pytest.mark.parametrize(("encode", "tokens"), [("full", 15), ("prune", 2), ("sparse", 15), ("weighted", 15)])
def test_token_counts_are_those_of_the_encoding(encode: Encode, tokens: int) -> None:
    assert token_count(whole(), encode) == tokens
    assert encode_packet(tiny_qwen(), whole(), encode).tokens.embeds.shape[1] == tokens


def test_read_only_pixels_are_welcome() -> None:
    qwen = tiny_qwen()
    pixels = np.zeros((1, 3, 32, 32), np.uint8)
    regions = np.array([[0, 1, 1]], np.int32)
    packet = TokenPacket(STAMP, GRID, regions, np.ones(1, np.float32), pixels)
    expected = encode_packet(qwen, packet, "sparse").tokens.embeds
    pixels.flags.writeable = regions.flags.writeable = False
    got = encode_packet(qwen, replace(packet), "sparse").tokens.embeds
    torch.testing.assert_close(got, expected)
    assert token_count(packet, "sparse") == 1


@torch.no_grad()
def test_32_pixel_tiles_reach_a_model_with_14_pixel_patches() -> None:
    qwen = tiny_qwen("qwen2_vl")
    full = encode_packet(qwen, whole(), "full").tokens.embeds
    tiles = whole().image.reshape(3, 32, 5, 32, 3).transpose(0, 2, 4, 1, 3).reshape(15, 3, 32, 32)
    regions = grid_regions(GRID).numpy().astype(np.int32)
    packet = TokenPacket(STAMP, GRID, regions, np.ones(15, np.float32), tiles)
    torch.testing.assert_close(encode_packet(qwen, packet, "sparse").tokens.embeds, full)
