"""One frame read apart: what is kept of it, and when it is the same again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_qwen_session import packet, whole
from tiny_qwen import FAMILIES, tiny_qwen

from arr_coc.qwen.cache import PrefixCache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.encoding import Packet, encode_packet
from arr_coc.qwen.kept_frame import KeptFrame, Wrapping, lay, read_apart
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.shown_frame import Ids
from arr_coc.types import Encode


def begun(qwen: QwenVL) -> tuple[PrefixCache[Ids | KeptFrame], Wrapping]:
    """A cache that begins with a prompt's beginning."""
    head = tuple(qwen.token_ids("You are a helpful assistant."))
    part, cache = PromptPart(qwen, 0, 0), PrefixCache[Ids | KeptFrame]()
    part.text(head)
    prefill(qwen, part, cache.kv)
    cache.mark(head, part.tokens, part.position)
    return cache, Wrapping(head, (*qwen.token_ids("<3.2 seconds>"), 3), (4,))


def read(qwen: QwenVL, shown: Packet, encode: Encode = "sparse") -> KeptFrame:
    cache, wrapping = begun(qwen)
    return read_apart(qwen, cache, shown, encode_packet(qwen, shown, encode), wrapping)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_the_first_slot_it_lies_as_one_run_would_leave_it(family: str) -> None:
    qwen = tiny_qwen(family)
    cache, wrapping = begun(qwen)
    frame = encode_packet(qwen, packet(), "sparse")
    kept = read_apart(qwen, cache, packet(), frame, wrapping)
    lay(qwen, cache, [kept])

    part, stock = PromptPart(qwen, 0, 0), PrefixCache[Ids]()
    part.text([*wrapping.head, *wrapping.opening])
    visual = part.frame(frame)
    part.text(wrapping.closing)
    prefill(qwen, part, stock.kv)
    for own, expected in zip(cache.kv.layers, stock.kv.layers, strict=True):
        torch.testing.assert_close(own.keys, expected.keys, atol=1e-5, rtol=0)
        torch.testing.assert_close(own.values, expected.values, atol=1e-5, rtol=0)
    begins = cache.marks[0].tokens
    assert (cache.marks[1].tokens, cache.position) == (part.tokens, part.position)
    assert slice(begins + kept.visual.start, begins + kept.visual.stop) == visual
    assert (kept.tokens, kept.visual_tokens) == (part.tokens - begins, 6)


def test_laying_nothing_changes_nothing() -> None:
    qwen = tiny_qwen()
    cache, _ = begun(qwen)
    tokens = len(cache)
    lay(qwen, cache, [])
    assert (len(cache), len(cache.marks)) == (tokens, 1)


def test_it_keeps_nothing_of_the_prompts_beginning() -> None:
    kept = read(tiny_qwen(), packet())
    assert {rows.shape[-2] for rows in (*kept.keys, *kept.values)} == {kept.tokens}
    storage = sum(rows.untyped_storage().nbytes() for rows in (*kept.keys, *kept.values, kept.embeds))
    assert kept.bytes == storage + packet().pixels.nbytes


def test_it_takes_of_the_context_whichever_is_more() -> None:
    kept = read(tiny_qwen(), packet(tokens=1))
    assert kept.extent == kept.tokens - 1 + 4  # one token of a grid four tiles wide
    assert kept.steps == kept.extent > kept.tokens


def test_the_same_packet_in_the_same_wrapping_reads_the_same() -> None:
    kept = read(tiny_qwen(), packet())
    assert kept.reads(packet(), kept.wrapping)
    assert not kept.reads(packet(1), kept.wrapping)
    assert not kept.reads(packet(), replace(kept.wrapping, opening=(3,)))


def test_a_whole_frame_may_have_been_overwritten_since() -> None:
    kept = read(tiny_qwen(), whole(), "prune")
    assert kept.packet is None
    assert not kept.reads(whole(), kept.wrapping)


def test_relevance_of_a_coarse_region_is_the_mean_over_its_tiles() -> None:
    regions = np.array([[0, 2, 3], [1, 0, 1], [2, 0, 0]], np.int32)  # the last reaches over the grid's edge
    relevance = np.arange(12, dtype=np.float32).reshape(3, 4) / 12
    kept = read(tiny_qwen(), replace(whole(), regions=regions, relevance=relevance), "prune")
    expected = [11, (2 + 3 + 6 + 7) / 4, 5.5]
    torch.testing.assert_close(kept.relevance * 12, torch.tensor(expected))
    chosen = replace(packet(), relevance=np.linspace(0, 1, 6, dtype=np.float32))
    assert read(tiny_qwen(), chosen).relevance.tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
