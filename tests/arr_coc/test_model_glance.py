"""Glances of `ARRCOCQwen.generate`: for which models, what they cost, and what they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arr_coc.allocation.glance import GlanceOptions
from arr_coc.errors import BudgetError, ModelError, OptionError
from arr_coc.model import ARRCOCQwen, Generation
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.session import AnswerSession
from evaluation.questions import EvalQuestion
from evaluation.scoring import score_regions
from evaluation.special_samples import camouflage_sample
from evaluation.strategies.arr_coc import ARR_COC, ARR_COC_GLANCE, ARR_COC_GLANCE_DROP, ARR_COC_GLANCE_KEEP
from evaluation.strategies.base import Ask, Budget, Strategy
from evaluation.suites import SUITES, suite_samples
from tests.support.models import FAMILIES, tiny_qwen
from tests.support.video import scenery
from training.clips.scenes import clip_rng
from training.clips.truth import Sample

QUERY = "Is the cat sleeping?"
BUDGET = 64


@pytest.fixture
def picture() -> np.ndarray:
    return scenery(16, 16)


@pytest.fixture(scope="module")
def untrained() -> ARRCOCQwen:
    """The bundled model without the allocator that was trained for it: as any other model comes."""
    return ARRCOCQwen(replace(load_qwen(None), allocator=None))


def is_large(sample: Sample) -> bool:
    """True if a quarter of the frame's tiles pays for an overview."""
    return sample.clip.frames[-1].size >= 512 * 512 * 3


def sharp(generation: Generation) -> set[tuple[int, ...]]:
    return {tuple(region) for region in generation.regions[generation.overview :].tolist()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_model_glances_if_asked_to(family: str, picture: np.ndarray) -> None:
    model = ARRCOCQwen(tiny_qwen(family))
    with_overview = model.generate(picture, QUERY, max_tokens=3, budget=BUDGET, glance=True, overview="keep")
    assert with_overview.overview > 0
    assert with_overview.tokens_used == len(with_overview.regions) == BUDGET
    assert (with_overview.regions[: with_overview.overview, 0] > 0).all()
    assert with_overview.timings.glance_ms > 0
    without_overview = model.generate(picture, QUERY, max_tokens=3, budget=BUDGET, glance=True, overview="drop")
    assert without_overview.overview == 0
    assert len(without_overview.regions) == BUDGET - with_overview.overview
    assert without_overview.tokens_used == BUDGET, "what was looked at is paid for"
    plain = model.generate(picture, QUERY, max_tokens=3, budget=BUDGET)
    assert (plain.overview, plain.timings.glance_ms, plain.tokens_used) == (0, 0, BUDGET), "it has seen no coarse token"
    assert model.fallbacks == 0


def test_an_answer_after_a_glance_is_that_of_its_packet_alone(
    picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[Any] = []
    answer = AnswerSession.answer

    def noting(self: AnswerSession, packets: Any, *rest: Any) -> Any:
        prompts.append(packets)
        return answer(self, packets, *rest)

    monkeypatch.setattr(AnswerSession, "answer", noting)
    model = ARRCOCQwen(tiny_qwen())
    generation = model.generate(picture, QUERY, budget=BUDGET, overview="keep")
    fresh = AnswerSession(model.qwen, model._session.options)
    assert "".join(answer(fresh, prompts[0], QUERY)) == generation.text


def test_a_model_with_a_trained_allocator_does_not_glance_unless_it_is_asked_to(picture: np.ndarray) -> None:
    model = ARRCOCQwen.from_pretrained()
    assert model.generate(picture, "Is there a red circle?", budget=BUDGET).timings.glance_ms == 0
    assert model.generate(picture, "Is there a red circle?", budget=BUDGET, glance=True).timings.glance_ms > 0


def test_two_questions_about_one_frame_get_different_regions(untrained: ARRCOCQwen) -> None:
    sample = next(
        candidate
        for candidate in suite_samples("still", 12)
        if len(candidate.clip.things[-1]) > 1 and is_large(candidate)
    )
    frame = sample.clip.frames[-1]
    questions = [f"What colour is the {thing.kind}?" for thing in sample.clip.things[-1]]
    generations = [untrained.generate(frame, question, max_tokens=2, budget="27%") for question in questions]
    overlaps = [
        len(sharp(generation) & sharp(other)) / len(sharp(generation) | sharp(other))
        for index, generation in enumerate(generations)
        for other in generations[:index]
    ]
    assert min(overlaps) < 0.7
    plain = [untrained.generate(frame, question, max_tokens=2, budget="27%", glance=False) for question in questions]
    assert all(sharp(generation) == sharp(plain[0]) for generation in plain)


def camouflage(seed: int) -> EvalQuestion:
    """A faint word on a quiet ground beside bright shapes, 512 pixels square; the word is asked for."""
    options = replace(SUITES["camouflage"].options, clutter=0.0, capitals_px=(28, 32))
    plan, sample = camouflage_sample(clip_rng("test", seed), (512, 512), options)
    return EvalQuestion.of(0, replace(sample, clip=plan.draw()))


def share_of_faint_text(untrained: ARRCOCQwen, strategy: Strategy) -> float:
    """Tokens on the faint words by those on the bright shapes, both by their areas, over a few scenes."""
    looks = []
    for seed in (9_000_004, 9_000_006, 9_000_008, 9_000_009):
        question = camouflage(seed)
        ask = Ask(question.frames, question.times_s, question.text, Budget.parse("20%"), "sparse", max_tokens=2)
        looks.append(score_regions(question, strategy.answer(untrained.qwen, ask)))
    return sum(look.on_asked or 0 for look in looks) / sum(look.on_distractor or 0 for look in looks)


def test_faint_text_gets_more_than_twice_the_tokens_of_bright_things_beside_it(untrained: ARRCOCQwen) -> None:
    assert share_of_faint_text(untrained, ARR_COC) < 1.5, "without a glance, what stands out has as many"
    assert share_of_faint_text(untrained, ARR_COC_GLANCE) > 2


def test_of_several_frames_the_first_is_glanced_at_and_others_if_due(
    picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame_indices: list[int] = []
    glance = AnswerSession.glance

    def noting(self: AnswerSession, packets: Any, *rest: Any, **options: Any) -> Any:
        frame_indices.append(packets[-1].stamp.frame_index)
        return glance(self, packets, *rest, **options)

    monkeypatch.setattr(AnswerSession, "glance", noting)
    model = ARRCOCQwen(tiny_qwen())
    clip, times_s = [picture, picture, 255 - picture, 255 - picture], (0, 2, 6, 7)
    generation = model.generate(clip, QUERY, 3, BUDGET, glance=True, overview="keep", times_s=times_s)
    assert frame_indices == [0, 2], "the third frame is another scene"
    assert generation.tokens_used == 4 * BUDGET


def test_the_same_call_gives_the_same(picture: np.ndarray) -> None:
    first, second = (ARRCOCQwen(tiny_qwen()).generate(picture, QUERY, 4, BUDGET) for _ in range(2))
    assert (first.text, first.regions.tolist()) == (second.text, second.regions.tolist())
    assert first.heatmap.tolist() == second.heatmap.tolist()


def test_a_budget_of_all_tiles_needs_no_glance(picture: np.ndarray) -> None:
    generation = ARRCOCQwen(tiny_qwen()).generate(picture, QUERY, 3, "100%", glance=True)
    assert (generation.overview, generation.timings.glance_ms) == (0, 0)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"glance": GlanceOptions(tokens=64)},
            BudgetError,
            "overview of 64 tokens leaves nothing of a budget of 64; rai",
        ),
        ({"glance": "yes"}, OptionError, "glance must be"),
        ({"overview": "yes"}, OptionError, "overview must be one of auto, keep, drop"),
        (
            {"glance": True, "encode": "full"},
            OptionError,
            "encodes the whole frame, so a glance would be of no use; leav",
        ),
    ],
)
def test_bad_options_are_named(
    options: dict[str, Any], error: type[Exception], match: str, picture: np.ndarray
) -> None:
    with pytest.raises(error, match=match):
        ARRCOCQwen(tiny_qwen()).generate(picture, QUERY, 3, BUDGET, **options)


@pytest.mark.parametrize("encode", ["full", "prune", "weighted"])
def test_no_glance_if_the_whole_frame_is_encoded(encode: Any, picture: np.ndarray) -> None:
    assert ARRCOCQwen(tiny_qwen()).generate(picture, QUERY, 3, BUDGET, encode).timings.glance_ms == 0


def test_a_model_whose_attention_cannot_be_read_answers_without_a_glance(picture: np.ndarray) -> None:
    qwen = tiny_qwen()
    model = ARRCOCQwen(qwen)
    model._session.__dict__["can_glance"] = False
    assert model.generate(picture, QUERY, 3, BUDGET).timings.glance_ms == 0
    for layer in qwen.language_model.layers:
        del layer.self_attn.q_proj
    with pytest.raises(ModelError, match="so it cannot glance; turn glances off"):
        model.generate(picture, QUERY, 3, BUDGET, glance=True)


@pytest.mark.parametrize("suite", ["still", "video"])
def test_strategies_are_charged_for_what_they_look_at(suite: str, untrained: ARRCOCQwen) -> None:
    sample = next(candidate for candidate in suite_samples(suite, 12) if is_large(candidate))
    question = EvalQuestion.of(0, sample)
    ask = Ask(question.frames, question.times_s, question.text, Budget.parse("27%"), "sparse", max_tokens=8)
    with_overview, without_overview, plain = (
        strategy.answer(untrained.qwen, ask) for strategy in (ARR_COC_GLANCE_KEEP, ARR_COC_GLANCE_DROP, ARR_COC)
    )
    assert with_overview.tokens == without_overview.tokens == plain.tokens
    assert with_overview.flops.prefill > plain.flops.prefill
    assert without_overview.flops.choose == with_overview.flops.choose > plain.flops.choose
    assert with_overview.flops.encode < plain.flops.encode, "two parts attend to less than one"
