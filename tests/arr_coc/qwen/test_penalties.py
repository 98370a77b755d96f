"""Penalties and sampling against transformers' own processors, and in every way in which tokens are decoded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import OptionError
from arr_coc.qwen.batching.captured import Capture
from arr_coc.qwen.decode import drawn_chances
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.penalties import TokenPenalties
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.qwen.slot import AnswerResult
from tests.arr_coc.qwen.batching.test_captured import (
    CAPTURES,
    DeviceOnly,
    model,
    results_beside_a_stopped_one,
    run_first,
)
from tests.arr_coc.qwen.test_memory import GROUP, NOTHING_NEW, frame
from tests.arr_coc.qwen.test_previous_answer import PREVIOUS, ended
from tests.arr_coc.qwen.test_session import QUERY, packet, whole
from tests.arr_coc.qwen.test_session_slots import alone, asked, spoken
from tests.support.models import FAMILIES, tiny_qwen

VOCABULARY = 50
PROMPT = [7, 7, 7, 3, 4, 5, 3, 4, 60]
"""60 is beyond the logits, as ids of a model whose head is smaller than its embeddings may be."""

PENALTIES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.4},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2, "no_repeat_ngram_size": 3},
]
NAMES = [next(iter(options)) if len(options) == 1 else "all" for options in PENALTIES]


def random_logits(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return 4 * torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(0)).to(dtype)


def penalties(options: Decoding, answer: Sequence[int] = (), prompt: Sequence[int] = PROMPT) -> TokenPenalties:
    result = TokenPenalties(options, prompt, VOCABULARY, torch.device("cpu"))
    result.answer += answer
    return result


def by_transformers(scores: torch.Tensor, answer: Sequence[int], options: Decoding) -> torch.Tensor:
    """The scores [vocabulary] after transformers' processors, in the order of its `generate`."""
    processors = LogitsProcessorList()
    if options.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size))
    if options.temperature:
        processors.append(TemperatureLogitsWarper(options.temperature))
        processors += [TopKLogitsWarper(options.top_k)] if options.top_k else []
        processors += [TopPLogitsWarper(options.top_p)] if options.top_p < 1 else []
        processors += [MinPLogitsWarper(options.min_p)] if options.min_p else []
    processed: torch.Tensor = processors(torch.tensor([[*PROMPT, *answer]]), scores[None].float())[0]
    return processed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("repetition", "size"), [(1.3, 0), (0.7, 0), (1.0, 1), (1.0, 2), (1.05, 3), (1.0, 12)])
def test_scores_are_those_of_transformers(repetition: float, size: int, dtype: torch.dtype) -> None:
    """Taken token by token on the device, from what the host knows, and after a return to it."""
    options = Decoding(20, repetition_penalty=repetition, no_repeat_ngram_size=size)
    ahead = penalties(options)
    answer = [4, 7, 3, 9, 4, 5, 3, 4, 5]
    for count, logits in enumerate(random_logits(len(answer) + 1, dtype)):
        expected = by_transformers(logits, answer[:count], options)
        known = penalties(options, answer[:count])
        for one in (ahead, known):
            assert torch.equal(one.bar(one.apply(logits)), expected)
        known.take(torch.tensor(11))
        known.rewind()
        assert torch.equal(known.bar(known.apply(logits)), expected)
        if count < len(answer):
            ahead.take(torch.tensor(answer[count]))


def test_presence_and_frequency_count_the_answer_alone() -> None:
    (logits,) = random_logits(1)
    options = Decoding(presence_penalty=1.5, frequency_penalty=0.25)
    expected = logits.clone()
    expected[9] -= 1.5 + 0.25
    expected[2] -= 1.5 + 3 * 0.25
    assert torch.allclose(penalties(options, [2, 9, 2, 2]).apply(logits), expected)
    assert torch.equal(penalties(options).apply(logits), logits)


def test_repetition_comes_before_presence() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[4] = 3.0
    options = Decoding(repetition_penalty=2.0, presence_penalty=1.0)
    assert penalties(options, [4]).apply(logits)[4] == 3.0 / 2 - 1


def test_a_bar_leaves_a_token() -> None:
    """A mask may allow one token only, which then comes although it repeats."""
    scores = torch.full((VOCABULARY,), -torch.inf)
    scores[4] = 1.0
    repeats = penalties(Decoding(no_repeat_ngram_size=2), [3])
    assert torch.equal(repeats.bar(scores), scores)
    scores[8] = 0.0
    assert repeats.bar(scores).argmax() == 8


@pytest.mark.parametrize("options", PENALTIES, ids=NAMES)
def test_penalties_never_wait_for_the_device(options: dict[str, Any]) -> None:
    device = torch.device("meta")
    one = TokenPenalties(Decoding(8, **options), PROMPT[:-1], VOCABULARY, device)
    logits = torch.zeros(VOCABULARY, device=device)
    one.apply(logits)
    one.bar(logits)
    with torch.inference_mode(), DeviceOnly():
        one.take(one.bar(one.apply(logits)).argmax())


@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.1])
@pytest.mark.parametrize("min_p", [0.0, 0.2, 1.0])
def test_tokens_are_drawn_from_those_of_transformers(top_k: int, top_p: float, min_p: float) -> None:
    for temperature, logits in zip((0.3, 0.7, 1.0, 2.5), random_logits(4), strict=True):
        options = Decoding(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        expected = torch.softmax(by_transformers(logits, [], options), dim=-1)
        chances, tokens = drawn_chances(logits, options)
        spread = torch.zeros(VOCABULARY).index_copy(0, tokens, chances / chances.sum())
        clear = (expected == 0) | (expected > 1e-6)  # float32 sums reach 1 before the least likely
        assert torch.equal((spread > 0)[clear], (expected > 0)[clear])
        torch.testing.assert_close(spread, expected)


def answer(qwen: Any, decoding: Decoding, capture: Capture | None = None) -> AnswerResult:
    session = AnswerSession(qwen, AnswerOptions(decoding=decoding), capture=capture)
    list(session.answer(packet(), QUERY))
    return session.last


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("options", PENALTIES, ids=NAMES)
def test_captured_steps_have_the_same_penalties(
    options: dict[str, Any], temperature: float, capture: Capture, device: str
) -> None:
    qwen = model(device)
    decoding = Decoding(14, temperature=temperature, seed=4, **options)
    expected = answer(qwen, decoding).token_ids
    assert answer(qwen, decoding, capture).token_ids == expected
    assert answer(qwen, decoding).token_ids == expected, "the same again"
    assert answer(qwen, Decoding(14, temperature=temperature, seed=4)).token_ids != expected


@pytest.mark.parametrize("capture", [None, run_first])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("options", PENALTIES, ids=NAMES)
def test_steps_that_ran_ahead_are_not_counted(
    options: dict[str, Any], temperature: float, capture: Capture | None
) -> None:
    qwen = model()
    answer_options = AnswerOptions(decoding=Decoding(12, temperature=temperature, seed=3, **options))
    batch = AnswerSession(qwen, answer_options, slots=3, capture=capture)
    for slot, result in results_beside_a_stopped_one(batch, 3).items():
        assert result.token_ids == alone(qwen, answer_options, *asked(3)[slot]).token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_steps_before_a_lost_graph_are_not_counted_twice(temperature: float) -> None:
    def capture(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        count = itertools.count()

        def replay() -> None:
            if next(count) == 6:
                raise RuntimeError("lost")
            step()

        return replay

    decoding = Decoding(14, temperature=temperature, frequency_penalty=1.0, no_repeat_ngram_size=2)
    qwen = model()
    assert answer(qwen, decoding, capture).token_ids == answer(qwen, decoding).token_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_together_are_those_alone(family: str) -> None:
    answer_options = AnswerOptions(decoding=Decoding(8, **PENALTIES[-1]))
    qwen = tiny_qwen(family)
    batch = AnswerSession(qwen, answer_options, slots=3)
    results = spoken(batch, batch.ask([SlotQuestion(slot, *asked(3)[slot]) for slot in range(3)]))
    for result, question in zip(results, asked(3), strict=True):
        assert result.token_ids == alone(qwen, answer_options, *question).token_ids


def test_no_run_of_two_tokens_comes_twice() -> None:
    qwen = model()
    ids = answer(qwen, Decoding(60, no_repeat_ngram_size=2)).token_ids
    pairs = list(itertools.pairwise(ids))
    assert len(set(pairs)) == len(pairs) == 59


@pytest.mark.parametrize("capture", [None, run_first])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("options", PENALTIES, ids=NAMES)
def test_a_schema_wins(options: dict[str, Any], temperature: float, capture: Capture | None) -> None:
    schema = AnswerSchema.parse('{"people": "integer", "weather": ["sun", "rain"], "open": "boolean"}')
    decoding = Decoding(200, temperature=temperature, **options)
    session = AnswerSession(tiny_qwen(), AnswerOptions(decoding=decoding), 2, capture)
    plain, formed = ended(
        session, *(SlotQuestion(slot, packet(), QUERY, schema=(None, schema)[slot]) for slot in (0, 1))
    )
    assert formed.result is not None
    assert plain.result is not None
    assert schema.text_of(schema.fields_of(formed.result.text)) == formed.result.text
    assert plain.result.token_ids == answer(tiny_qwen(), decoding).token_ids


@pytest.mark.parametrize("options", PENALTIES, ids=NAMES)
def test_a_previous_answer_is_scored_as_it_is_decoded(options: dict[str, Any]) -> None:
    """The greedy answer under the penalty is the same again from a probability of a half on; without it, it is not."""
    qwen = tiny_qwen()
    decoding = Decoding(12, **options)
    slot = AnswerSession(qwen, AnswerOptions(decoding=decoding)).slots[0]
    ids = qwen.plain_token_ids(PREVIOUS)
    scored = AnswerSession(qwen, AnswerOptions(decoding=decoding))
    (same,) = scored.ask([SlotQuestion(0, packet(), QUERY, previous=PREVIOUS, same_above=1.0)])
    one = slot.penalties(slot.prepare(packet(), QUERY), qwen.model.lm_head.weight[:, 0])
    assert one is not None
    likely = []
    for count in range(len(ids) + 1):
        slot.forget()
        question = slot.prepare(packet(), QUERY)
        question.prompt.part.text(ids[:count])
        with torch.inference_mode():
            hidden = qwen.language_model(**question.prompt.part.inputs(), past_key_values=slot.prompts.cache.kv)
            chances = torch.softmax(one.bar(one.apply(qwen.model.lm_head(hidden.last_hidden_state[0, -1]))), dim=-1)
        likely.append(float(chances[[*ids, None][count] if count < len(ids) else list(qwen.eos_ids)].sum()))
        one.answer += ids[count : count + 1]
        one.rewind()
    assert same.same == pytest.approx(min(likely), rel=1e-4, abs=1e-12)


def test_yes_and_no_have_no_penalties() -> None:
    qwen = load_qwen()
    plain, penalised = (
        AnswerSession(qwen, AnswerOptions(decoding=decoding)).score_yes_no(packet(), "Is there a circle?")
        for decoding in (Decoding(), Decoding(**PENALTIES[-1]))
    )
    assert plain == penalised


def prompt_of(session: AnswerSession, packets: Any) -> tuple[list[int], int]:
    """The ids of a prompt, and its number of tokens."""
    prompts = session.slots[0].prompts
    ids = prompts.all_ids(packets, QUERY)
    return ids, prompts.make(packets, QUERY, lambda: None).part.tokens


@pytest.mark.parametrize(
    "packets",
    [
        [packet()],
        [packet(1), packet(2, 4, 12.5)],
        GROUP[:1],
        GROUP,
        [*GROUP, NOTHING_NEW],
    ],
    ids=["picture", "two", "key-frame", "group", "nothing-new"],
)
def test_the_ids_are_those_of_the_prompt(packets: Any) -> None:
    session = AnswerSession(tiny_qwen(), AnswerOptions(decoding=Decoding(4, repetition_penalty=1.1)))
    ids, tokens = prompt_of(session, packets)
    assert len(ids) == tokens
    (pad,) = session.qwen.token_ids("<|image_pad|>")
    text = session.qwen.tokenizer.decode([token for token in ids if token != pad])
    for packet_ in packets:
        stamped = f"<{packet_.stamp.media_ns / 1e9:.1f} seconds>"
        assert (stamped in text) == (len(packets) == 2)
    assert QUERY in text
    session.ask([SlotQuestion(0, packets, QUERY)])
    assert prompt_of(session, packets)[0] == ids, "whatever the cache holds"


def test_the_ids_of_several_newest_frames() -> None:
    packets = [
        replace(one, place=replace(one.place, frames=2)) for one in (frame(0, [0, 1]), frame(1, [1, 5]), frame(2, [2]))
    ]
    session = AnswerSession(tiny_qwen(), AnswerOptions(decoding=Decoding(4, repetition_penalty=1.1)))
    for count in (1, 2, 3):
        ids, tokens = prompt_of(session, packets[:count])
        assert len(ids) == tokens
        list(session.answer(packets[:count], QUERY))


@pytest.mark.parametrize("encode", ["full", "prune", "weighted"])
def test_the_ids_of_a_whole_frame(encode: Any) -> None:
    options = AnswerOptions(encode, decoding=Decoding(4, no_repeat_ngram_size=3))
    ids, tokens = prompt_of(AnswerSession(tiny_qwen(), options), [whole()])
    assert len(ids) == tokens


def test_neutral_values_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(TokenPenalties, "__init__", refuse)
    monkeypatch.setattr("arr_coc.qwen.prompt.PromptBuilder.all_ids", refuse)
    assert answer(tiny_qwen(), Decoding(4, repetition_penalty=1.0)).token_ids


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0 and at most 100, 1 for none, got 0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": 101.0}, "repetition_penalty must be above 0"),
        ({"presence_penalty": 2.5}, r"presence_penalty must be in \[-2, 2\], 0 for none, got 2.5"),
        ({"frequency_penalty": float("nan")}, r"frequency_penalty must be in \[-2, 2\]"),
        ({"min_p": 1.5}, r"min_p must be in \[0, 1\], got 1.5"),
        ({"min_p": float("nan")}, "min_p must be in"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be 0 or more, got -1"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        Decoding(**options)
