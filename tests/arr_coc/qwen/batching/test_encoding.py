"""Packets encoded in one pass, compared with separate passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.qwen.batching import encoding as encoding_module
from arr_coc.qwen.batching.encoding import encode_packed
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.types import TileGrid, TokenPacket
from tests.arr_coc.qwen.test_session import packet
from tests.support.models import FAMILIES, tiny_qwen

LARGE = TileGrid.of(320, 256)


def large(seed: int, tokens: int) -> TokenPacket:
    """Return a packet of another grid, over more than one attention window, with a coarse region."""
    random = np.random.default_rng(seed)
    regions = grid_regions(LARGE)[random.permutation(LARGE.tiles)[:tokens]].numpy().astype(np.int32)
    regions[-1] = [1, 2, 1]
    pixels = random.integers(0, 256, (tokens, 3, 32, 32), dtype=np.uint8)
    return replace(packet(seed), grid=LARGE, regions=regions, relevance=np.ones(tokens, np.float32), pixels=pixels)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_frame_equals_that_of_a_separate_pass(family: str) -> None:
    qwen = tiny_qwen(family)
    packets = [packet(0, 4), large(1, 40), packet(2, 9), large(3, 25)]
    packets[0].pixels.flags.writeable = packets[1].pixels.flags.writeable = False  # as those of a message are
    packets[3] = replace(packets[3], pixels=torch.from_numpy(packets[3].pixels))
    for frame, source in zip(encode_packed(qwen, packets), packets, strict=True):
        assert frame is not None
        expected = encode_packet(qwen, source, "sparse")
        assert torch.equal(frame.regions, expected.regions)
        assert frame.grid == source.grid
        torch.testing.assert_close(frame.tokens.embeds, expected.tokens.embeds, atol=1e-5, rtol=0)
        assert len(frame.tokens.deepstack) == len(expected.tokens.deepstack)
        for level, expected_level in zip(frame.tokens.deepstack, expected.tokens.deepstack, strict=True):
            torch.testing.assert_close(level, expected_level, atol=1e-5, rtol=0)


def test_passes_stay_within_the_limit_and_a_single_packet_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_module, "CPU_REGIONS", 10)
    qwen = tiny_qwen()
    frames = encode_packed(qwen, [packet(0, 5), packet(1, 5), packet(2, 12), packet(3, 3), large(4, 4)])
    assert [frame is not None for frame in frames] == [True, True, False, False, False]
    assert encode_packed(qwen, [packet(0)]) == [None]
    assert encode_packed(qwen, []) == []


def test_a_pass_with_non_finite_tokens_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    packets = [packet(0), packet(1), large(2, 9), large(3, 9)]
    stock = encoding_module.embed_rows

    def spoiled(tower: object, pixels: torch.Tensor, regions: torch.Tensor, grid: TileGrid, scale: object) -> object:
        rows = stock(tower, pixels, regions, grid, scale)  # type: ignore[arg-type]
        if grid == LARGE:
            rows.hidden[0, -1] = torch.nan
        return rows

    monkeypatch.setattr(encoding_module, "embed_rows", spoiled)
    assert [frame is not None for frame in encode_packed(qwen, packets)] == [True, True, False, False]
