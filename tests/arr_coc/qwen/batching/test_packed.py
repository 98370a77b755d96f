"""Prefill of several prompts in one pass, compared with the stock model's forward for each."""

from __future__ import annotations

import pytest
import torch

from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.batching import packed as packed_module
from arr_coc.qwen.batching.packed import PromptToPrefill, prefill_packed
from arr_coc.qwen.cache import PrefixCache, empty_cache
from arr_coc.qwen.decode import PromptPart, prefill
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from tests.arr_coc.qwen.test_session import QUERY, packet
from tests.support.models import FAMILIES, tiny_qwen


def prompts(qwen: QwenVL) -> list[tuple[PromptPart, PrefixCache]]:  # type: ignore[type-arg]
    """Frames of several sizes, text only, and text after cached tokens: two equal sets."""
    parts = []
    for tokens in (4, 9):
        session = AnswerSession(qwen)
        parts.append((session.slots[0].prepare(packet(tokens, tokens), QUERY).prompt.part, session.prompts.cache))
    text = PromptPart(qwen, 0, 0)
    text.text(qwen.token_ids("Say what happens."))
    parts.append((text, empty_cache(qwen)))
    beginning, cache = PromptPart(qwen, 0, 0), empty_cache(qwen)  # type: ignore[var-annotated]
    beginning.text(qwen.token_ids("You are a helpful assistant."))
    prefill(qwen, beginning, cache)
    after = PromptPart(qwen, beginning.tokens, beginning.position)
    after.text(qwen.token_ids("two green squares"))
    return [*parts, (after, cache)]


@pytest.mark.parametrize("tokens_at_once", [10_000, 20, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_prompt_gets_the_stock_models_logits_and_keys(
    family: str, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_module, "CPU_TOKENS", tokens_at_once)
    qwen = tiny_qwen(family)
    references, batch = prompts(qwen), prompts(qwen)
    expected = torch.stack([prefill(qwen, part, cache) for part, cache in references])
    logits = prefill_packed(qwen, [PromptToPrefill(part, cache) for part, cache in batch])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    for (_, reference), (_, cache_in_batch) in zip(references, batch, strict=True):
        assert len(reference) == len(cache_in_batch)
        for layer, stock in zip(cache_in_batch.attention_layers, reference.attention_layers, strict=True):
            torch.testing.assert_close(layer.keys, stock.keys, atol=1e-5, rtol=0)
            torch.testing.assert_close(layer.values, stock.values, atol=1e-5, rtol=0)
        torch.testing.assert_close(cache_in_batch.states(), reference.states(), atol=1e-5, rtol=0)
        assert [mark.key for mark in cache_in_batch.marks] == [mark.key for mark in reference.marks]
        for mark, same in zip(cache_in_batch.marks, reference.marks, strict=True):
            torch.testing.assert_close(mark.states, same.states, atol=1e-5, rtol=0)


class RecordingProbe(AttentionProbe):
    """Probe that records the sizes of its inputs."""

    def __init__(self, records: list[tuple[int, int, int]]) -> None:
        self._records = records

    def see(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        self._records.append((layer, len(query), keys.shape[1]))


def test_a_probe_records_the_last_tokens_queries_of_its_prompt() -> None:
    qwen = tiny_qwen()
    records: list[tuple[int, int, int]] = []
    batch = [PromptToPrefill(part, cache, RecordingProbe(records)) for part, cache in prompts(qwen)]
    prefill_packed(qwen, batch)
    layers = range(len(qwen.language_model.layers))
    assert records == [(layer, 2, prompt.part.tokens) for layer in layers for prompt in batch]
