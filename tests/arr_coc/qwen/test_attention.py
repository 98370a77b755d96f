"""The probe's attention against the weights of the stock model's eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.qwen.attention import PROBED_LAYERS, PROBED_TOKENS, AttentionProbe, probed_layers
from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, decode_one_token, prefill
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import FramePacket, FrameStamp, TileGrid
from tests.support.models import FAMILIES, tiny_qwen

GRID = TileGrid.of(64, 96)


def decode(qwen: QwenVL, logits: torch.Tensor, position: int, kv: Any, tokens: int) -> Iterator[int]:
    """The likeliest tokens, by the stock model."""
    for index in range(tokens):
        token = logits.argmax()
        yield int(token)
        if index + 1 < tokens:
            logits = decode_one_token(qwen, token, position + index, kv)


@pytest.mark.parametrize("tokens", [1, 4, PROBED_TOKENS + 2])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_attention_equals_the_eager_weights(family: str, tokens: int) -> None:
    qwen = tiny_qwen(family)
    vars(qwen)["eos_ids"] = frozenset()
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    regions = grid_regions(GRID).numpy().astype(np.int32)
    packet = FramePacket(FrameStamp(0, 0, 0), GRID, regions, np.ones(GRID.shape, np.float32), image)

    def prompt(answer_ids: list[int]) -> tuple[PromptPart, slice]:
        part = PromptPart(qwen, 0, 0)
        part.text(qwen.token_ids("Say"))
        visual = part.frame(encode_packet(qwen, packet, "full"))
        part.text([*qwen.token_ids(" what happens."), *answer_ids])
        return part, visual

    part, visual = prompt([])
    cache = empty_cache(qwen)
    with AttentionProbe(qwen, cache.kv, visual) as probe:
        logits = prefill(qwen, part, cache)
        answer_ids = list(decode(qwen, logits, part.position, cache.kv, tokens))
        assert len(answer_ids) == tokens
        attention = probe.attention()

    qwen.language_model.set_attn_implementation("eager")
    part, _ = prompt(answer_ids[:-1])
    weights = qwen.language_model(
        **part.inputs(), past_key_values=empty_cache(qwen).kv, use_cache=True, output_attentions=True
    ).attentions
    probed_rows = slice(-tokens, part.tokens - tokens + min(tokens, PROBED_TOKENS))
    by_number = dict(zip(qwen.layers.attending, weights, strict=True))
    expected = sum(by_number[number][0, :, probed_rows, visual].sum((0, 1)) for number in probed_layers([*by_number]))
    torch.testing.assert_close(attention, expected / expected.max(), atol=1e-5, rtol=0)


def test_only_the_first_tokens_and_the_own_cache_are_looked_at() -> None:
    qwen = tiny_qwen()
    looks = []
    for tokens in (PROBED_TOKENS, PROBED_TOKENS + 5):
        part, cache = PromptPart(qwen, 0, 0), empty_cache(qwen)
        part.text(qwen.token_ids("Say what happens."))
        with AttentionProbe(qwen, cache.kv, slice(0, 3)) as probe, AttentionProbe(qwen, None, slice(0, 3)) as other:
            logits = prefill(qwen, part, cache)
            list(decode(qwen, logits, part.position, cache.kv, tokens))
        looks.append(probe.attention())
        assert other.attention().tolist() == [0, 0, 0]
    torch.testing.assert_close(looks[0], looks[1], atol=0, rtol=0)


@pytest.mark.parametrize(("layers", "probed"), [(1, [0]), (2, [0, 1]), (3, [0, 1]), (4, [1, 2]), (28, [13, 14])])
def test_the_middle_layers_are_looked_at(layers: int, probed: list[int]) -> None:
    assert list(probed_layers(range(layers))) == probed


def hooked(qwen: QwenVL) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in qwen.model.modules())


def test_nothing_stays_hooked() -> None:
    qwen = tiny_qwen()
    with AttentionProbe(qwen, empty_cache(qwen).kv, slice(0, 1)):
        layers = qwen.language_model.layers
        assert all(layers[number].self_attn._forward_hooks for number in probed_layers(range(len(layers))))
        assert hooked(qwen) == PROBED_LAYERS
    assert hooked(qwen) == 0


def test_an_answer_that_goes_on_is_let_go_of() -> None:
    qwen = tiny_qwen()
    part, cache = PromptPart(qwen, 0, 0), empty_cache(qwen)
    part.text(qwen.token_ids("Say what happens."))
    with AttentionProbe(qwen, cache.kv, slice(0, 3)):
        logits = prefill(qwen, part, cache)
        tokens = decode(qwen, logits, part.position, cache.kv, PROBED_TOKENS + 3)
        left = [hooked(qwen) for _ in tokens]
    assert left == [PROBED_LAYERS] * (PROBED_TOKENS - 1) + [0] * 4
