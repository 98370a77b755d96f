"""Rotation of keys, compared with the cached keys of the stock model, and token ids of text."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arr_coc.qwen.cache import PrefixCache, empty_cache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.preprocess import visual_positions
from arr_coc.qwen.qwenvl import TEXTS_KEPT, rotate, rotate_native, rotation
from tests.support.models import FAMILIES, tiny_qwen

REGIONS = torch.tensor([[0, 0, 0], [0, 0, 1], [1, 0, 1], [2, 1, 0]])


def prefilled(qwen: Any) -> tuple[PrefixCache[str], torch.Tensor, list[torch.Tensor]]:
    """Prefill text at positions of an image, so that the three axes differ; return its cache, its positions and its
    keys before their rotation."""
    part, cache = PromptPart(qwen, 0, 0), empty_cache(qwen)
    part.text(qwen.token_ids("Say what")[: len(REGIONS)])
    part._positions = [visual_positions(5, REGIONS)[:, : part.tokens]]
    keys: list[torch.Tensor] = []
    head_dim = qwen.attentions[qwen.layers.attending[0]].head_dim
    for attention in qwen.attentions.values():
        last = attention.k_norm if qwen.family.query_norm else attention.k_proj
        last.register_forward_hook(
            lambda _, __, rows: keys.append(rows.reshape(*rows.shape[:2], -1, head_dim).transpose(1, 2))
        )
    prefill(qwen, part, cache)
    return cache, part._positions[0], keys


@pytest.mark.parametrize("family", FAMILIES)
def test_caught_keys_rotated_are_the_cached_ones(family: str) -> None:
    qwen = tiny_qwen(family)
    cache, positions, caught = prefilled(qwen)
    cos, sin = rotation(qwen, positions)
    assert cos.dtype == torch.float32
    assert len(caught) == len(cache.attention_layers) == len(qwen.layers.attending) > 1
    for layer, keys in zip(cache.attention_layers, caught, strict=True):
        torch.testing.assert_close(rotate_native(keys, cos, sin), layer.keys, atol=1e-6, rtol=0)
        assert (keys - layer.keys).abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_rotated_in_float32(family: str) -> None:
    qwen = tiny_qwen(family)
    qwen.model.to(torch.bfloat16)
    cache, positions, caught = prefilled(qwen)
    cos, sin = rotation(qwen, positions)
    assert cos.dtype == torch.float32
    rotated = cos.shape[-1]
    caught[0] = caught[0][..., :rotated]
    exact = rotate(caught[0].double().float(), cos, sin)
    keys = rotate(caught[0], cos, sin)
    assert keys.dtype == torch.bfloat16
    assert torch.equal(keys, exact.bfloat16())
    stock_error = (cache.attention_layers[0].keys[..., :rotated].float() - exact).abs().mean()
    assert (keys.float() - exact).abs().mean() < stock_error


def test_older_transformers_leave_the_axes_apart() -> None:
    """Their `rotary_emb` of Qwen2-VL returns [3, 1, L, head_dim], with one axis for each section of a head."""
    qwen = tiny_qwen("qwen2_vl")
    positions = visual_positions(5, REGIONS)
    expected = rotation(qwen, positions)
    rotary = qwen.language_model.rotary_emb

    def apart(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = places[..., None] * rotary.inv_freq
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    config = SimpleNamespace(rope_scaling={"mrope_section": [6, 5, 5]})
    older: Any = SimpleNamespace(
        language_model=SimpleNamespace(rotary_emb=apart, config=config), device=torch.device("cpu")
    )
    for table, expected_table in zip(rotation(older, positions), expected, strict=True):
        torch.testing.assert_close(table, expected_table, atol=1e-6, rtol=0)


def test_a_text_that_was_asked_before_is_not_read_again() -> None:
    qwen, texts = tiny_qwen(), []

    def tokenizer(text: str, **options: bool) -> dict[str, list[int]]:
        texts.append(text)
        return {"input_ids": [len(text)]}

    counted = replace(qwen, tokenizer=tokenizer)
    for _ in range(2):
        ids = counted.plain_token_ids("red?")
        assert ids == [4]
        ids.append(0)
    assert texts == ["red?"]
    for number in range(TEXTS_KEPT):
        counted.plain_token_ids(str(number))
    assert counted.plain_token_ids("red?") == [4]
    assert len(texts) == TEXTS_KEPT + 2
