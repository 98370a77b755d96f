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
from evaluation.strategies.pruning.querystream import priorities
from evaluation.strategies.pruning.registry import PRUNERS
from evaluation.strategies.pruning.sparsevlm import clusters, most_kept, raters, recycled_tokens
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
    return staged_prefill(qwen, part, places, Cuts(counts, pruner.choose, question, budgets, pruner.adapt))


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


def stock_attention(qwen: QwenVL, part: PromptPart, places: list[slice]) -> tuple[Any, torch.Tensor]:
    """The stock model's attention in each layer, [1, heads, L, L], and the rows of the visual tokens, int64 [N]."""
    qwen.model.set_attn_implementation("eager")
    try:
        weights = qwen.language_model(
            **part.inputs(), past_key_values=empty_cache(qwen).kv, use_cache=True, output_attentions=True
        ).attentions
    finally:
        qwen.model.set_attn_implementation("sdpa")
    visual = torch.tensor([row for place in places for row in range(place.start, place.stop)])
    return weights, visual


def test_the_tokens_that_the_last_one_attended_to_most_go_on(qwen: QwenVL) -> None:
    part, places, _ = prompt(qwen)
    weights, visual = stock_attention(qwen, part, places)
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


def test_sparsevlm_cuts_by_the_depth_and_the_rank() -> None:
    sparsevlm = PRUNERS["sparsevlm"]
    assert sparsevlm.counts(32, 1000, 125) == {3: 500, 7: 250, 16: 125}
    assert sparsevlm.counts(28, 1000, 125) == {3: 500, 6: 250, 14: 125}
    assert list(sparsevlm.counts(3, 64, 8).values())[-1] == 8
    assert sparsevlm.counts(28, 125, 125) == {}
    tokens = seen(torch.randn(100, 8), question=torch.eye(8)[:4])
    tokens.embeddings = torch.ones(100, 8), torch.ones(4, 8)  # all of the question's tokens rate
    for rank, expected in ((4, 28), (1, 26)):
        attention = torch.zeros(4, 100)
        attention[range(4), [number % rank for number in range(4)]] = 1
        tokens._question_attention = attention
        # (budget - 4) / (tokens - 4) = 1 / 16, so that a cut of two removes 3 / 4 of the tokens beyond the rank
        assert sparsevlm.adapt(tokens, [21, 10]) == expected
    assert sparsevlm.adapt(tokens, [10]) == 10


def test_sparsevlm_keeps_what_visual_words_attend_to_and_merges_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sparsevlm = PRUNERS["sparsevlm"]
    rows = torch.cat([on_circle(*torch.linspace(0, 0.1, 20).tolist()), on_circle(*torch.linspace(3, 3.1, 20).tolist())])
    tokens = seen(rows, question=((5.0, 0.0), (-9.0, 0.1)))
    tokens.embeddings = on_circle(*[0.0] * 40), tokens.embeddings[1]
    assert raters(tokens).tolist() == [True, False]
    attention = torch.zeros(2, 40)
    attention[0] = torch.arange(40, 0, -1)
    attention[1] = torch.arange(40)
    monkeypatch.setattr(tokens, "question_attention", lambda: attention)
    selection = sparsevlm.choose(tokens, 6)
    kept = most_kept(40, 6)
    assert (kept, recycled_tokens(40 - kept)) == (4, 11)
    assert selection[:kept].tolist() == [0, 1, 2, 3]
    assert tokens.merged is not None
    centres, states = tokens.merged
    assert centres.tolist() == selection[kept:].tolist()
    assert set(centres.tolist()) <= set(range(4, 15))
    assert len(states) == 2
    assert most_kept(1000, 1) == 0
    assert most_kept(1000, 20) == 10, "merged tokens take half of the budget at most"


def test_clusters_are_the_means_around_the_peaks() -> None:
    rows = torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1], [9.3]])
    centres, means = clusters(rows, 2)
    assert {int(centre) // 3 for centre in centres} == {0, 1}
    assert sorted(means[:, 0].tolist()) == pytest.approx([0.1, 27.4 / 3])
    centres, means = clusters(torch.ones(4, 3), 2)
    assert len(set(centres.tolist())) == 2
    assert torch.equal(means, torch.ones(2, 3))


def test_merged_tokens_go_on_in_the_place_of_their_centres(qwen: QwenVL) -> None:
    class Merger(Pruner):
        """Keeps the first token, with other states."""

        name = "merger"

        def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
            first = torch.zeros(1, dtype=torch.long)
            candidates.merge(first, self.states(candidates))
            return first

        def states(self, candidates: Candidates) -> torch.Tensor:
            return candidates.states[candidates.visual[:1]]

    class OtherMerger(Merger):
        """The same, with the mean of all."""

        def states(self, candidates: Candidates) -> torch.Tensor:
            return candidates.states[candidates.visual].mean(dim=0, keepdim=True)

    same, other = (staged(qwen, merger, {1: 1}) for merger in (Merger(), OtherMerger()))
    plain = staged(qwen, PRUNERS["divprune"], {})
    assert torch.equal(same.token_index, other.token_index)
    assert len(same.token_index) < len(plain.token_index)
    assert not torch.allclose(same.logits, other.logits, atol=1e-4)
    text = same.kv.layers[0].keys, other.kv.layers[0].keys
    assert torch.equal(*text), "nothing changes before the cut"


def test_the_attention_of_the_question_is_the_stock_models(qwen: QwenVL) -> None:
    part, places, _ = prompt(qwen)
    query = ask(frames=2)
    question = EvalPrompt(qwen, query.views(qwen), query.text).question_rows(part)
    weights, visual = stock_attention(qwen, part, places)
    seen_attention: list[torch.Tensor] = []

    class Reader(Pruner):
        """Notes the question's attention."""

        name = "reader"

        def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
            seen_attention.append(candidates.question_attention())
            return torch.arange(count)

    staged(qwen, Reader(), {2: 9})
    expected = weights[1][0, :, question].mean(dim=0)[:, visual]
    torch.testing.assert_close(seen_attention[0], expected, atol=1e-5, rtol=1e-3)


def test_querystream_prefers_what_is_relevant_and_new() -> None:
    still = on_circle(0.2, 0.0, 2.0, 3.0)
    moved = still.clone()
    moved[0] = on_circle(1.4)[0]  # new, and relevant
    moved[3] = on_circle(-2.0)[0]  # new, and not relevant
    tokens = seen(torch.cat([still, moved]), frames=2, budget=1, question=on_circle(0.7))
    assert PRUNERS["querystream"].choose(tokens, 2).tolist() == [0, 4], "a budget for each frame"
    assert PRUNERS["querystream"].choose(tokens, 5).tolist() == [0, 1, 2, 3, 4], "the first one whole"


def test_querystream_compares_with_a_history_that_fades() -> None:
    old, new = on_circle(0.0), on_circle(1.5)
    frames = [slice(row, row + 1) for row in range(12)]
    novelty = (
        priorities(torch.cat([old, *[new] * 11]), torch.arange(12.0), frames) * 11 / torch.arange(12.0).clamp(1e-6)
    )
    assert (novelty[2:] < novelty[1:-1]).all(), "what stays is less new each time"
    assert novelty[11] > 0.01, "the old history is still part of it"
    sizes = [slice(0, 1), slice(1, 3)]
    assert priorities(torch.cat([old, new, new]), torch.tensor([0.0, 1.0, 1.0]), sizes)[1:].tolist() == [1, 1]


def test_only_the_questions_own_tokens_count_as_the_question(qwen: QwenVL) -> None:
    query = replace(ask(), text="red red red")
    eval_prompt = EvalPrompt(qwen, query.views(qwen), query.text)
    view = query.views(qwen)[0]
    part, _ = eval_prompt.with_frames([encode_packet(qwen, view.frame_packet(np.ones(view.grid.shape, bool)), "full")])
    embeds = part.inputs()["inputs_embeds"][0, eval_prompt.question_rows(part)]
    assert torch.equal(embeds, qwen.embed(qwen.plain_token_ids(query.text)))
