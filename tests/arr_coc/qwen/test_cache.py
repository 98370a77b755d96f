"""Rewinding the cache to its marks."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicCache

from arr_coc.qwen.cache import ROOM_TOKENS, PrefixCache, empty_cache
from arr_coc.qwen.decode import PromptPart, prefill
from tests.support.models import tiny_qwen


def filled(pieces: list[str]) -> tuple[PrefixCache[str], torch.Tensor]:
    qwen = tiny_qwen()
    cache: PrefixCache[str] = empty_cache(qwen)
    logits = torch.empty(0)
    for piece in pieces:
        part = PromptPart(qwen, len(cache), cache.position)
        part.text(qwen.token_ids(piece))
        part.mark(piece)
        logits = prefill(qwen, part, cache)
    return cache, logits


def test_an_empty_cache_keeps_nothing() -> None:
    cache: PrefixCache[str] = empty_cache(tiny_qwen())
    assert (len(cache), cache.position, cache.rewind(["a"])) == (0, 0, 0)


def test_the_longest_common_beginning_is_kept() -> None:
    cache, _ = filled(["Say", " what", " happens"])
    tokens = [mark.tokens for mark in cache.marks]
    assert cache.rewind(["Say", " what", " the", " happens"]) == 2
    assert len(cache) == tokens[1]
    assert cache.rewind(["Say"]) == 1
    assert len(cache) == cache.position == tokens[0]
    assert cache.rewind(["no"]) == 0
    assert len(cache) == 0


def test_rewinding_is_exact() -> None:
    _, expected = filled(["Say", " what"])
    cache, _ = filled(["Say", " something else"])
    cache.rewind(["Say"])
    qwen = tiny_qwen()
    part = PromptPart(qwen, len(cache), cache.position)
    part.text(qwen.token_ids(" what"))
    torch.testing.assert_close(prefill(qwen, part, cache), expected, atol=1e-6, rtol=0)


def test_its_memory_is_counted() -> None:
    cache, _ = filled(["Say", " what"])
    assert cache.bytes == 2 * 3 * 32 * 4 * ROOM_TOKENS
    cache.rewind(["Say"])
    assert cache.bytes == 2 * 3 * 32 * 4 * ROOM_TOKENS
    assert empty_cache(tiny_qwen()).bytes == 0


def rows(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, tokens, 4, generator=generator), torch.randn(1, 2, tokens, 4, generator=generator)


def test_it_holds_what_the_stock_cache_holds() -> None:
    growable, stock = empty_cache(tiny_qwen()).kv, DynamicCache()
    for seed, tokens in enumerate((3, 1, ROOM_TOKENS, 1)):
        for kv in (growable, stock):
            kv.update(*rows(tokens, seed), 0)
            kv.update(*rows(tokens, seed + 9), 1)
    assert growable.get_seq_length() == stock.get_seq_length() == ROOM_TOKENS + 5
    for layer, stock_layer in zip(growable.layers, stock.layers, strict=False):
        assert torch.equal(layer.keys, stock_layer.keys)
        assert torch.equal(layer.values, stock_layer.values)


def test_appended_keys_move_nothing() -> None:
    kv = empty_cache(tiny_qwen()).kv
    kv.update(*rows(3, 0), 0)
    room = kv.layers[0].room_keys
    kv.update(*rows(ROOM_TOKENS - 3, 1), 0)
    assert kv.layers[0].room_keys is room
    kv.update(*rows(1, 2), 0)
    assert kv.layers[0].room_keys is not room
    assert kv.layers[0].room_keys.shape[-2] == 2 * ROOM_TOKENS


def test_rewinding_gives_room_back() -> None:
    kv = empty_cache(tiny_qwen()).kv
    kv.update(*rows(10, 0), 0)
    kv.layers[0].show(4)
    keys, _ = kv.update(*rows(2, 1), 0)
    assert torch.equal(keys, torch.cat([rows(10, 0)[0][..., :4, :], rows(2, 1)[0]], dim=-2))


def test_the_room_holds_nothing_that_was_never_written() -> None:
    kv = empty_cache(tiny_qwen()).kv
    kv.update(*rows(3, 0), 0)
    assert not kv.layers[0].room_values[..., 3:, :].any()
