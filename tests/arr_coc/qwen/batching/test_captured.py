"""The captured step, repeated by a plain call in place of a CUDA graph, against the plain step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arr_coc.errors import NonFiniteError
from arr_coc.qwen.attention import PROBED_TOKENS
from arr_coc.qwen.batching.captured import AHEAD_TOKENS, WARM_UP_STEPS, Capture, CapturedRows, cuda_graph
from arr_coc.qwen.cache import ROOM_TOKENS
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.qwen.slot import AnswerResult
from tests.arr_coc.qwen.test_session import QUERY, packet
from tests.arr_coc.qwen.test_session_slots import alone, asked, check_equal, options, spoken
from tests.support.models import ATTENDING, FAMILIES, tiny_qwen


def run_first(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture that runs the step first, as a CUDA graph does."""
    for _ in range(WARM_UP_STEPS):
        step()
    return step


CAPTURES = [
    pytest.param(run_first, "cpu", id="repeated"),
    pytest.param(
        cuda_graph,
        "cuda",
        id="cuda-graph",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ),
]


class DeviceOnly(TorchDispatchMode):
    """Mode that fails if an operation reads or makes a tensor on another device than the model's."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operation(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, output)) if isinstance(leaf, torch.Tensor)]
        assert {tensor.device.type for tensor in tensors} == {"meta"}, operation
        return output


class WatchedCaptures:
    """Capture that runs each step in `DeviceOnly` mode."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        with torch.inference_mode(), DeviceOnly():
            step()
        self.steps += 1
        return step


class CountedCapture:
    """Capture that counts captures, by the number of rows in the graph, and steps."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.rows: list[int] = []
        self.steps = 0

    def __call__(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        owner = step.__self__  # type: ignore[attr-defined]
        self.rows.append(owner.inputs.shape[1])
        captured = self._capture(step, device)

        def replay() -> None:
            self.steps += 1
            captured()

        return replay


def model(device: str = "cpu", family: str = FAMILIES[0]) -> QwenVL:
    """Return a model whose answers have no end token."""
    qwen = tiny_qwen(family)
    qwen.model.to(device)
    vars(qwen)["eos_ids"] = frozenset()
    return qwen


def answer(qwen: QwenVL, capture: Capture | None, decoding: Decoding, query: str = QUERY) -> AnswerResult:
    session = AnswerSession(qwen, AnswerOptions(decoding=decoding), capture=capture)
    list(session.answer(packet(), query))
    return session.last


def ask(batch: AnswerSession, *slots: int) -> None:
    """Check that answers in these slots equal those of sessions with one slot."""
    questions = [(slot, *asked(len(slots))[number]) for number, slot in enumerate(slots)]
    results = spoken(batch, batch.ask([SlotQuestion(*question) for question in questions]))
    for (_, frames, query), result in zip(questions, results, strict=True):
        check_equal(result, alone(batch.qwen, batch.options, frames, query))


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
@pytest.mark.parametrize("family", ATTENDING)
def test_answers_by_graphs_equal_single_ones(family: str, capture: Capture, device: str) -> None:
    counted = CountedCapture(capture)
    batch = AnswerSession(model(device, family), options(), slots=6, capture=counted)
    for slots in ((0,), (1, 0), (3, 1, 2), (5, 0), (2,)):
        ask(batch, *slots)
    assert counted.rows == [1, 2, 4, 6, 4]  # again for 4: the sixth slot has moved all to larger tensors


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
@pytest.mark.parametrize(
    "decoding", [Decoding(12), Decoding(1), Decoding(12, temperature=1.3, seed=4)], ids=["likeliest", "one", "drawn"]
)
def test_the_same_answers(capture: Capture, device: str, decoding: Decoding) -> None:
    qwen = model(device)
    result, expected = answer(qwen, capture, decoding), answer(qwen, None, decoding)
    assert result.token_ids == expected.token_ids
    assert result.feedback is not None
    assert expected.feedback is not None
    torch.testing.assert_close(
        torch.from_numpy(result.feedback.attention), torch.from_numpy(expected.feedback.attention), atol=1e-5, rtol=0
    )


def results_beside_a_stopped_one(batch: AnswerSession, steps: int) -> dict[int, AnswerResult]:
    """Results of slots 0 and 2: after so many steps an answer is stopped, and then one begins, while others are
    open."""
    answers = batch.ask([SlotQuestion(slot, *asked(3)[slot]) for slot in range(2)])
    for _ in range(steps):
        batch.step()
    batch.stop(1)
    batch.step()
    answers += batch.ask([SlotQuestion(2, *asked(3)[2])])
    while batch.open_answers:
        batch.step()
    results = {}
    for slot in (0, 2):
        result = answers[slot].result
        assert result is not None
        results[slot] = result
    return results


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_discarded_steps_of_an_ended_answer_change_no_other(temperature: float) -> None:
    qwen, answer_options = model(), AnswerOptions(decoding=Decoding(14, temperature=temperature, seed=3))
    batch = AnswerSession(qwen, answer_options, slots=3, capture=run_first)
    for slot, result in results_beside_a_stopped_one(batch, 4).items():
        check_equal(result, alone(qwen, answer_options, *asked(3)[slot]))


def test_a_graph_is_reused_and_captured_again_once_the_room_has_grown() -> None:
    """Keys of an earlier answer after the prompt are not attended to."""
    counted = CountedCapture(run_first)
    qwen = model()
    batch = AnswerSession(qwen, options(), slots=2, capture=counted)
    ask(batch, 0, 1)
    ask(batch, 0, 1)
    assert (counted.rows, batch.block.room) == ([2], 256)
    long = "a" * 300
    results = spoken(batch, batch.ask([SlotQuestion(slot, packet(slot), long) for slot in range(2)]))
    assert (counted.rows, batch.block.room) == ([2, 2], 512)
    for slot, result in enumerate(results):
        check_equal(result, alone(qwen, options(), packet(slot), long))


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
def test_held_keys_stay_if_the_room_is_full(capture: Capture, device: str) -> None:
    qwen = model(device)
    other = answer(qwen, None, Decoding(1), "").work.prefilled_tokens
    full = "a" * (ROOM_TOKENS - 1 - other)
    result, expected = (answer(qwen, method, Decoding(2), full) for method in (capture, None))
    assert result.work.prefilled_tokens == ROOM_TOKENS - 1
    assert result.token_ids == expected.token_ids


def test_an_idle_slot_keeps_its_prompt_while_others_decode() -> None:
    """It is computed too, and writes to a row that no answer reads."""
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=3, capture=run_first)
    ask(batch, 0, 1, 2)
    ask(batch, 0, 2)
    results = spoken(batch, batch.ask([SlotQuestion(1, *asked(3)[1])]))
    assert results[0].work.prefilled_tokens < len(batch.slots[1].prompts.question(asked(3)[1][1])) + 3
    check_equal(results[0], alone(qwen, options(), *asked(3)[1]))


@pytest.mark.parametrize("message", ["operation not permitted when stream is capturing\nmore", ""])
def test_decoding_continues_without_graphs_if_capture_fails(message: str, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        raise RuntimeError(message)

    with caplog.at_level(logging.WARNING):
        batch = AnswerSession(tiny_qwen(), options(), slots=2, capture=refuse)
        ask(batch, 0, 1)
    assert [record.getMessage() for record in caplog.records] == [
        f"decoding continues without captured graphs: {message.splitlines()[0] if message else 'RuntimeError'}"
    ]


def test_recurrent_layers_are_not_captured() -> None:
    counted = CountedCapture(run_first)
    batch = AnswerSession(model(family="qwen3_5"), options(), slots=3, capture=counted)
    ask(batch, 2, 0)
    assert counted.rows == []


@pytest.mark.parametrize("family", ATTENDING)
def test_a_step_can_be_captured(family: str) -> None:
    """No operation waits for the device or reads the host; meta tensors raise on both."""
    pytest.importorskip("transformers", "5.0", "before, rotations asked for an autocast that such tensors do not have")
    qwen: QwenVL = tiny_qwen(family)
    if family == "qwen3_vl_moe":
        qwen.model.to(torch.bfloat16)  # the only dtype of grouped products on the meta device
    batch = AnswerSession(qwen, options(1), slots=4)
    batch.ask([SlotQuestion(0, packet(), QUERY)])
    qwen.model.to("meta")
    for layer in batch.block.layers.values():
        layer.keys, layer.values = layer.keys.to("meta"), layer.values.to("meta")
    watched = WatchedCaptures()
    vars(qwen)["device"] = torch.device("meta")
    for rows in (1, 2, 4):
        step: Any = CapturedRows(qwen, batch.block, rows, watched)
        assert step.logits.shape == (rows, qwen.model.lm_head.weight.shape[0])
    assert watched.steps == 3


def test_ahead_tokens_steps_run_ahead_of_the_host() -> None:
    counted = CountedCapture(lambda step, device: step)
    session = AnswerSession(model(), options(6), capture=counted)
    session.ask([SlotQuestion(0, packet(), QUERY)])
    steps = []
    while session.open_answers:
        session.step()
        steps.append(counted.steps)
    assert steps == [AHEAD_TOKENS + 1, AHEAD_TOKENS + 2, 5, 5, 5]


@pytest.mark.parametrize(("tokens", "decoded_tokens"), [(5, 9), (PROBED_TOKENS + 9, 99), (12, 3)])
def test_the_attention_of_the_first_tokens_is_the_same(tokens: int, decoded_tokens: int) -> None:
    """Tokens that ran ahead of an answer's end do not count; the same with the stock model's forward."""
    looks = []
    for capture, plainly in ((run_first, True), (None, True), (None, False)):
        qwen = model()
        vars(qwen)["decodes_plainly"] = plainly
        session = AnswerSession(qwen, options(tokens), capture=capture)
        (slot_answer,) = session.ask([SlotQuestion(0, packet(), QUERY)])
        for _ in range(decoded_tokens - 1):
            session.step()
        result = slot_answer.result or session.finish(0).result
        assert result is not None
        assert result.feedback is not None
        looks.append(torch.from_numpy(result.feedback.attention))
    torch.testing.assert_close(looks[0], looks[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(looks[0], looks[2], atol=1e-5, rtol=0)


def test_a_hooked_decoder_uses_the_stock_forward() -> None:
    usual = answer(tiny_qwen(), None, Decoding(max_tokens=5)).token_ids
    sliding, hooked = tiny_qwen("qwen2_vl"), tiny_qwen()
    sliding.language_model.layers[1].self_attn.sliding_window = 4
    hooked.language_model.layers[1]._hf_hook = object()  # as accelerate adds if a model is spread over devices
    assert [qwen.decodes_plainly for qwen in (tiny_qwen("qwen2_vl"), sliding, hooked)] == [True, False, False]
    assert answer(hooked, None, Decoding(max_tokens=5)).token_ids == usual


@pytest.mark.parametrize(("capture", "device"), CAPTURES)
def test_a_session_has_the_same_texts_and_feedback(capture: Capture, device: str) -> None:
    """Over frames and questions, one of which makes the cache's room grow."""
    answer_options = AnswerOptions(decoding=Decoding(max_tokens=12))
    stock = model(device)
    vars(stock)["decodes_plainly"] = False  # the stock forward, on a GPU too
    captured, plain = (
        AnswerSession(model(device), answer_options, capture=capture),
        AnswerSession(stock, answer_options),
    )
    long = "Is the cat sleeping? " * 60
    for seed, query in ((0, "What is it?"), (1, "What is it?"), (1, "And now?"), (2, long), (3, "What is it?")):
        texts = ["".join(session.answer(packet(seed, media_s=seed), query)) for session in (captured, plain)]
        assert texts[0] == texts[1]
        learnt = [torch.from_numpy(session.last.feedback.attention) for session in (captured, plain)]  # type: ignore[union-attr]
        torch.testing.assert_close(*learnt, atol=1e-5, rtol=0)
    assert captured.last.work.kept_bytes == plain.last.work.kept_bytes


@pytest.mark.parametrize("capture", [None, run_first])
def test_logits_that_are_not_finite_end_it(capture: Capture | None, monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = tiny_qwen()
    session = AnswerSession(qwen, options(), capture=capture)
    (slot_answer,) = session.ask([SlotQuestion(0, packet(), QUERY)])
    with torch.inference_mode():
        for layer in session.block.layers.values():
            layer.values[:] = torch.nan
    session.step()
    assert isinstance(slot_answer.error, NonFiniteError)
    assert "token 1" in str(slot_answer.error)
    assert len(session.prompts.cache) == 0
