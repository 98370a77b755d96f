"""Dropping inside the language model: nothing dropped is the stock model, and what is dropped is what counts least."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.qwen.decode import PromptPart, decode_one_token, empty_cache, prefill
from arr_coc.qwen.encoding import EncodedFrame, encode_packet
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.pruning import DIVPRUNE, Prefilled, staged_prefill
from evaluation.strategies.pruning import fastv_schedule as fastv_schedule
from evaluation.strategies.pruning import pyramid_schedule as pyramid_schedule
from evaluation.strategies.session import EvalPrompt
from tests.support.evaluation import ask
from tests.support.models import ATTENDING, mrope_positions, tiny_qwen

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=ATTENDING)
def qwen(request: pytest.FixtureRequest) -> QwenVL:
    return tiny_qwen(request.param)


def prompt(qwen: QwenVL, frames: int = 2) -> tuple[PromptPart, list[slice], list[EncodedFrame]]:
    asked = ask(frames=frames)
    views = asked.views(qwen)
    encoded = [encode_packet(qwen, view.whole(np.ones(view.grid.shape, bool)), "full") for view in views]
    return *EvalPrompt(qwen, views, asked.text).with_frames(encoded), encoded


def staged(qwen: QwenVL, keep: Mapping[int, int]) -> Prefilled:
    part, places, _ = prompt(qwen)
    return staged_prefill(qwen, part, places, keep)


@pytest.mark.parametrize("schedule", [fastv_schedule, pyramid_schedule])
def test_with_nothing_dropped_the_logits_are_the_stock_models(qwen: QwenVL, schedule: Any) -> None:
    part, places, _ = prompt(qwen)
    tokens = sum(place.stop - place.start for place in places)
    cache = empty_cache(qwen)
    stock = prefill(qwen, part, cache)
    done = staged_prefill(qwen, part, places, schedule(3, tokens, tokens))
    assert (done.logits - stock).abs().max() <= TOLERANCE
    kept_all = staged_prefill(qwen, part, places, {1: tokens, 2: tokens})
    assert (kept_all.logits - stock).abs().max() <= TOLERANCE
    word = torch.tensor(9)
    step = decode_one_token(qwen, word, part.position, cache.kv)
    assert (decode_one_token(qwen, word, part.position, done.kv) - step).abs().max() <= TOLERANCE


def test_divprune_of_all_tokens_is_the_frame_itself(qwen: QwenVL) -> None:
    _, _, (frame, _) = prompt(qwen)
    kept = DIVPRUNE.answer.thin(frame, frame.grid.tiles)  # type: ignore[attr-defined]
    assert torch.equal(kept.regions, frame.regions)
    assert (kept.tokens.embeds - frame.tokens.embeds).abs().max() <= TOLERANCE
    for rows, own in zip(kept.tokens.deepstack, frame.tokens.deepstack, strict=True):
        assert (rows - own).abs().max() <= TOLERANCE


def test_only_as_many_visual_tokens_go_on_and_all_text(qwen: QwenVL) -> None:
    part, places, _ = prompt(qwen)
    tokens = sum(place.stop - place.start for place in places)
    text = part.tokens - tokens
    done = staged_prefill(qwen, part, places, {1: 20, 2: 5})
    assert done.lengths == (text + tokens, text + 20, text + 5)
    assert [layer.keys.shape[-2] for layer in done.kv.layers] == list(done.lengths)
    visual = {row for place in places for row in range(place.start, place.stop)}
    kept = set(done.kept.tolist())
    assert len(kept & visual) == 5
    assert kept >= set(range(part.tokens)) - visual


def test_the_tokens_that_the_last_one_attended_to_most_go_on(qwen: QwenVL) -> None:
    part, places, _ = prompt(qwen)
    qwen.model.set_attn_implementation("eager")
    try:
        weights = qwen.language_model(
            **part.inputs(), past_key_values=empty_cache(qwen).kv, use_cache=True, output_attentions=True
        ).attentions
    finally:
        qwen.model.set_attn_implementation("sdpa")
    visual = torch.tensor([row for place in places for row in range(place.start, place.stop)])
    for cut in (1, 2):
        attention = weights[cut - 1][0, :, -1].mean(dim=0)[visual]
        best = set(visual[attention.topk(7).indices].tolist())
        assert set(staged(qwen, {cut: 7}).kept.tolist()) & set(visual.tolist()) == best


def test_a_cut_before_the_last_layers_keeps_each_token_at_its_own_place() -> None:
    """Dropping before layer 1 what was never there after it: the same as masking those keys in later layers."""
    qwen = tiny_qwen()
    part, places, _ = prompt(qwen, frames=1)
    done = staged_prefill(qwen, part, places, {2: 6})
    kept = done.kept
    kv = empty_cache(qwen).kv
    inputs = part.inputs()
    seen: dict[str, torch.Tensor] = {}

    def before_last_layer(layer: Any, args: Any, kwargs: Any) -> None:
        seen["hidden"] = args[0]
        mask = torch.full((1, 1, part.tokens, part.tokens), -torch.inf).triu(1)
        gone = torch.ones(part.tokens, dtype=torch.bool)
        gone[kept] = False
        mask[..., gone] = -torch.inf
        mask[:, :, gone, 0] = 0  # rows that are never read need something to look at
        kwargs["attention_mask"] = mask
        return args, kwargs

    hook = qwen.language_model.layers[2].register_forward_pre_hook(before_last_layer, with_kwargs=True)
    try:
        masked = qwen.language_model(**inputs, past_key_values=kv, use_cache=True).last_hidden_state
    finally:
        hook.remove()
    assert (qwen.model.lm_head(masked[0, -1]) - done.logits).abs().max() <= TOLERANCE


def test_the_prompt_is_the_sessions_own(qwen: QwenVL) -> None:
    part, places, frames = prompt(qwen, frames=1)
    before, tokens = places[0].start, places[0].stop - places[0].start
    positions = mrope_positions(before, frames[0].regions[0], frames[0].grid, part.tokens - before - tokens)
    assert torch.equal(part.inputs()["position_ids"][:, 0], positions)


def test_fastv_cuts_once_and_pyramiddrop_by_quarters() -> None:
    assert fastv_schedule(28, 1000, 270) == {2: 270}
    assert fastv_schedule(2, 1000, 270) == {}
    assert fastv_schedule(28, 270, 270) == {}
    assert pyramid_schedule(28, 1000, 125) == {7: 500, 14: 250, 21: 125}
    assert pyramid_schedule(4, 64, 8) == {1: 32, 2: 16, 3: 8}
    assert pyramid_schedule(28, 100, 100) == {}
