"""Rewinding the cache to its marks."""

from __future__ import annotations

import torch
from tiny_qwen import tiny_qwen

from arr_coc.qwen.cache import PrefixCache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.kv_room import ROOM_TOKENS


def filled(pieces: list[str]) -> tuple[PrefixCache[str], torch.Tensor]:
    qwen = tiny_qwen()
    cache: PrefixCache[str] = PrefixCache()
    logits = torch.empty(0)
    for piece in pieces:
        part = PromptPart(qwen, len(cache), cache.position)
        part.text(qwen.token_ids(piece))
        logits = prefill(qwen, part, cache.kv)
        cache.mark(piece, part.tokens, part.position)
    return cache, logits


def test_an_empty_cache_keeps_nothing() -> None:
    cache: PrefixCache[str] = PrefixCache()
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
    torch.testing.assert_close(prefill(qwen, part, cache.kv), expected, atol=1e-6, rtol=0)


def test_a_cache_that_begins_alike_leaves_this_one_as_it_is() -> None:
    cache, _ = filled(["Say", " what"])
    before = cache.kv.layers[0].keys.clone()
    other = cache.beginning()
    tokens = cache.marks[0].tokens
    assert other.get_seq_length() == tokens
    assert torch.equal(other.layers[2].values, cache.kv.layers[2].values[..., :tokens, :])
    qwen = tiny_qwen()
    part = PromptPart(qwen, tokens, cache.marks[0].position)
    part.text(qwen.token_ids(" something else"))
    prefill(qwen, part, other)
    assert torch.equal(cache.kv.layers[0].keys, before)


def test_its_memory_is_counted() -> None:
    cache, _ = filled(["Say", " what"])
    assert cache.bytes == 2 * 3 * 32 * 4 * ROOM_TOKENS
    cache.rewind(["Say"])
    assert cache.bytes == 2 * 3 * 32 * 4 * ROOM_TOKENS
    assert PrefixCache[str]().bytes == 0
