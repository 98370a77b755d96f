"""Pruners: nothing dropped is the stock model, what stays is what the method says, and the base holds the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, decode_one_token, prefill
from arr_coc.qwen.encoding import EncodedFrame, encode_packet
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.errors import EvaluationError
from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.cdpruner import likeliest_set
from evaluation.strategies.pruning.divprune import most_diverse
from evaluation.strategies.pruning.registry import PRUNERS
from evaluation.strategies.pruning.staged import Candidates, Cuts, PrefillResult, staged_prefill
from evaluation.strategies.session import EvalPrompt
from tests.support.evaluation import ask
from tests.support.models import ATTENDING, mrope_positions, tiny_qwen

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=ATTENDING)
def qwen(request: pytest.FixtureRequest) -> QwenVL:
    return tiny_qwen(request.param)


def prompt(qwen: QwenVL, frames: int = 2) -> tuple[PromptPart, list[slice], list[EncodedFrame]]:
    query = ask(frames=frames)
    views = query.views(qwen)
    encoded = [encode_packet(qwen, view.frame_packet(np.ones(view.grid.shape, bool)), "full") for view in views]
    return *EvalPrompt(qwen, views, query.text).with_frames(encoded), encoded


def staged(qwen: QwenVL, pruner: Pruner, counts: Mapping[int, int], frames: int = 2) -> PrefillResult:
    query = ask(frames=frames)
    part, places, encoded = prompt(qwen, frames)
    question = EvalPrompt(qwen, query.views(qwen), query.text).question_rows(part)
    tokens = sum(frame.grid.tiles for frame in encoded)
    budgets = [(min(counts.values(), default=tokens) + place) // frames for place in range(frames)]
    return staged_prefill(qwen, part, places, Cuts(counts, pruner.choose, question, budgets))


@pytest.mark.parametrize("name", PRUNERS)
def test_with_nothing_dropped_the_logits_are_the_stock_models(qwen: QwenVL, name: str) -> None:
    part, places, _ = prompt(qwen)
    tokens = sum(place.stop - place.start for place in places)
    cache = empty_cache(qwen)
    stock = prefill(qwen, part, cache)
    assert PRUNERS[name].counts(3, tokens, tokens) == {}
    cut_at = max(PRUNERS[name].schedule(3, tokens, tokens - 1))
    for counts in ({}, {cut_at: tokens}):  # no cut, and one that leaves all of them
        result = staged(qwen, PRUNERS[name], counts)
        assert (result.logits - stock).abs().max() <= TOLERANCE
    word = torch.tensor(9)
    step = decode_one_token(qwen, word, part.position, cache.kv)
    assert (decode_one_token(qwen, word, part.position, result.kv) - step).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", PRUNERS)
def test_the_base_counts_the_budget_and_keeps_the_order_and_all_text(qwen: QwenVL, name: str) -> None:
    part, places, _ = prompt(qwen)
    tokens = sum(place.stop - place.start for place in places)
    counts = PRUNERS[name].counts(3, tokens, 9)
    result = staged(qwen, PRUNERS[name], counts)
    visual = {row for place in places for row in range(place.start, place.stop)}
    rows = result.token_index.tolist()
    assert rows == sorted(set(rows))
    assert len(set(rows) & visual) == 9
    assert set(rows) >= set(range(part.tokens)) - visual
    assert result.lengths[-1] == part.tokens - tokens + 9
    assert result.choosing_flops > 0


class Twice(Pruner):
    """Chooses one token again and again."""

    name = "twice"

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.long)


def test_a_choice_of_too_few_tokens_is_refused(qwen: QwenVL) -> None:
    with pytest.raises(EvaluationError, match="1 tokens were chosen of the 9 that a cut leaves"):
        staged(qwen, Twice(), {0: 9})


def test_only_as_many_visual_tokens_go_on_and_all_text(qwen: QwenVL) -> None:
    part, places, _ = prompt(qwen)
    tokens = sum(place.stop - place.start for place in places)
    text = part.tokens - tokens
    result = staged(qwen, PRUNERS["fastv"], {1: 20, 2: 5})
    assert result.lengths == (text + tokens, text + 20, text + 5)
    assert [layer.keys.shape[-2] for layer in result.kv.layers] == list(result.lengths)
    visual = {row for place in places for row in range(place.start, place.stop)}
    rows = set(result.token_index.tolist())
    assert len(rows & visual) == 5
    assert rows >= set(range(part.tokens)) - visual


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
        assert set(staged(qwen, PRUNERS["fastv"], {cut: 7}).token_index.tolist()) & set(visual.tolist()) == best


def test_a_cut_before_the_last_layers_keeps_each_token_at_its_own_place() -> None:
    """Dropping before layer 1 what was never there after it: the same as masking those keys in later layers."""
    qwen = tiny_qwen()
    part, _, _ = prompt(qwen, frames=1)
    result = staged(qwen, PRUNERS["fastv"], {2: 6}, frames=1)
    rows = result.token_index
    kv = empty_cache(qwen).kv
    inputs = part.inputs()
    inspection: dict[str, torch.Tensor] = {}

    def before_last_layer(layer: Any, args: Any, kwargs: Any) -> None:
        inspection["hidden"] = args[0]
        mask = torch.full((1, 1, part.tokens, part.tokens), -torch.inf).triu(1)
        dropped_tokens = torch.ones(part.tokens, dtype=torch.bool)
        dropped_tokens[rows] = False
        mask[..., dropped_tokens] = -torch.inf
        mask[:, :, dropped_tokens, 0] = 0  # rows that are never read need something to look at
        kwargs["attention_mask"] = mask
        return args, kwargs

    hook = qwen.language_model.layers[2].register_forward_pre_hook(before_last_layer, with_kwargs=True)
    try:
        masked = qwen.language_model(**inputs, past_key_values=kv, use_cache=True).last_hidden_state
    finally:
        hook.remove()
    assert (qwen.model.lm_head(masked[0, -1]) - result.logits).abs().max() <= TOLERANCE


def test_the_prompt_is_the_sessions_own(qwen: QwenVL) -> None:
    part, places, frames = prompt(qwen, frames=1)
    before, tokens = places[0].start, places[0].stop - places[0].start
    positions = mrope_positions(before, frames[0].regions[0], frames[0].grid, part.tokens - before - tokens)
    assert torch.equal(part.inputs()["position_ids"][:, 0], positions)


def test_fastv_cuts_once_and_pyramiddrop_by_quarters() -> None:
    fastv, pyramiddrop = PRUNERS["fastv"], PRUNERS["pyramiddrop"]
    assert fastv.counts(28, 1000, 270) == {2: 270}
    assert fastv.counts(2, 1000, 270) == {}
    assert fastv.counts(28, 270, 270) == {}
    assert pyramiddrop.counts(28, 1000, 125) == {7: 500, 14: 250, 21: 125}
    assert pyramiddrop.counts(4, 64, 8) == {1: 32, 2: 16, 3: 8}
    assert pyramiddrop.counts(28, 100, 100) == {}


def seen(states: Any, frames: int = 1, budget: int = 2, question: Any = ((1.0, 0.0),), **changes: Any) -> Candidates:
    """Visual tokens of equal frames, and a question behind them."""
    visual = torch.as_tensor(states, dtype=torch.float32)
    question_states = torch.as_tensor(question, dtype=torch.float32)
    frame_tokens = len(visual) // frames
    slices = [slice(frame_tokens * index, frame_tokens * (index + 1)) for index in range(frames)]
    rows = torch.arange(len(visual) + len(question_states))
    candidates = Candidates(
        torch.cat([visual, question_states]), rows[: len(visual)], rows[len(visual) :], slices, [budget] * frames, None
    )
    for name, value in changes.items():
        setattr(candidates, name, value)
    return candidates


def on_circle(*angles: float) -> torch.Tensor:
    return torch.stack([torch.tensor(angles).cos(), torch.tensor(angles).sin()], dim=1)


def test_divprune_takes_what_is_farthest_from_what_it_has() -> None:
    rows = on_circle(0.0, 0.05, 0.1, 1.5, 3.1, 3.15)
    distance = 1 - rows @ rows.T
    assert most_diverse(distance, 1).tolist() == [3]
    assert set(most_diverse(distance, 3).tolist()) & {0, 1, 2}
    assert set(most_diverse(distance, 3).tolist()) & {4, 5}
    assert most_diverse(distance, 99).tolist() == list(range(6))
    assert most_diverse(torch.zeros(4, 4), 4).tolist() == [0, 1, 2, 3]
    selection = PRUNERS["divprune"].choose(seen(torch.cat([rows, rows]), frames=2, budget=1), 2)
    assert selection.tolist() == [3, 9], "each frame has its own budget"


def test_cdpruner_finds_the_set_of_the_largest_determinant() -> None:
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(7, 5, generator=rng)
    kernel = rows @ rows.T
    first, second = likeliest_set(kernel, 2).tolist()
    assert first == int(kernel.diagonal().argmax())
    pairs = [float(torch.linalg.det(kernel[[first, other]][:, [first, other]])) for other in range(7) if other != first]
    best = [other for other in range(7) if other != first][int(np.argmax(pairs))]
    assert second == best
    assert sorted(likeliest_set(kernel, 7).tolist()) == list(range(7)), "more tokens than the kernel has ranks"


def test_cdpruner_prefers_what_is_like_the_question_and_no_duplicates() -> None:
    rows = on_circle(0.0, 0.0, 1.57, 3.14)
    selection = PRUNERS["cdpruner"].choose(seen(rows, question=on_circle(1.57)), 2).tolist()
    assert selection[0] == 2
    assert selection[1] != 2
    assert PRUNERS["cdpruner"].choose(seen(rows, question=on_circle(0.0)), 2).tolist() in ([0, 2], [1, 2])


def test_dart_keeps_the_pivots_and_what_is_least_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = on_circle(0.0, 0.02, 0.04, 0.06, 0.1, 0.2, 3.1, 1.6)
    tokens = seen(rows, question=on_circle(0.0))
    monkeypatch.setattr(tokens, "keys", lambda: torch.tensor([9.0, 9, 9, 9, 1, 1, 1, 1, 5])[:, None].repeat(1, 2))
    monkeypatch.setattr(tokens, "normalised", lambda: tokens.states)
    selection = PRUNERS["dart"].choose(tokens, 6).tolist()
    assert selection == [0, 1, 2, 3, 6, 7]
    assert PRUNERS["dart"].choose(tokens, 2).tolist() == [0, 1], "no more pivots than the budget pays"


def test_vidcom2_gives_an_unlike_frame_more_and_keeps_unlike_tokens() -> None:
    rng = torch.Generator().manual_seed(1)
    same = torch.ones(20, 8) + 0.01 * torch.randn(20, 8, generator=rng)
    noise = torch.randn(20, 8, generator=rng)
    same[4] = -same[4]
    selection = PRUNERS["vidcom2"].choose(seen(torch.cat([same, same, noise]), 3, question=torch.ones(1, 8)), 12)
    by_frame = torch.bincount(selection // 20, minlength=3).tolist()
    assert len(set(selection.tolist())) == 12
    assert by_frame[2] > by_frame[0]
    assert min(by_frame) >= 1
    assert {4, 24} <= set(selection.tolist())


def test_only_the_questions_own_tokens_count_as_the_question(qwen: QwenVL) -> None:
    query = replace(ask(), text="red red red")
    eval_prompt = EvalPrompt(qwen, query.views(qwen), query.text)
    view = query.views(qwen)[0]
    part, _ = eval_prompt.with_frames([encode_packet(qwen, view.frame_packet(np.ones(view.grid.shape, bool)), "full")])
    embeds = part.inputs()["inputs_embeds"][0, eval_prompt.question_rows(part)]
    assert torch.equal(embeds, qwen.embed(qwen.plain_token_ids(query.text)))
