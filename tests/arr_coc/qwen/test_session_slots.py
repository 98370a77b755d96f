"""Sessions of several slots: each answer equals that of a session with one slot and depends on no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.errors import ContextLengthError, NonFiniteError, OptionError
from arr_coc.qwen import session as session_module
from arr_coc.qwen.batching import step as step_module
from arr_coc.qwen.encoding import IncrementalEncoder
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, Decoder, SlotAnswer, SlotQuestion
from arr_coc.qwen.slot import AnswerResult
from arr_coc.types import FrameStamp, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from tests.arr_coc.qwen.test_session import OTHER_QUERY, QUERY, packet, whole
from tests.support.models import FAMILIES, tiny_qwen

QUERIES = (QUERY, OTHER_QUERY, "two green squares below")


def options(max_tokens: int = 8, **others: Any) -> AnswerOptions:
    return AnswerOptions(decoding=Decoding(max_tokens=max_tokens), **others)


def asked(count: int) -> list[tuple[TokenPacket, str]]:
    """Questions about frames of unequal sizes."""
    return [(packet(seed, 3 + 2 * seed), QUERIES[seed % 3]) for seed in range(count)]


def alone(qwen: QwenVL, answer_options: AnswerOptions, frames: Any, query: str, **arguments: Any) -> AnswerResult:
    session = AnswerSession(qwen, answer_options)
    for _ in session.answer(frames, query, **arguments):
        pass
    return session.last


def spoken(batch: AnswerSession, answers: Sequence[SlotAnswer]) -> list[AnswerResult]:
    """Step until all answers have ended and return their results; pieces must join to the text."""
    pieces = [answer.piece for answer in answers]
    while batch.open_answers:
        for answer in batch.step():
            pieces[answers.index(answer)] += answer.piece
    results = []
    for answer, text in zip(answers, pieces, strict=True):
        assert answer.error is None
        assert answer.result is not None
        assert text == answer.result.text
        results.append(answer.result)
    return results


def check_equal(result: AnswerResult, expected: AnswerResult) -> None:
    assert result.text == expected.text
    assert (result.work.text_tokens, result.work.tokens_used, result.operations) == (
        expected.work.text_tokens,
        expected.work.tokens_used,
        expected.operations,
    )
    assert (result.feedback is None) == (expected.feedback is None)
    if result.feedback is not None and expected.feedback is not None:
        assert result.feedback.stamp == expected.feedback.stamp
        np.testing.assert_allclose(result.feedback.attention, expected.feedback.attention, atol=1e-4)
        np.testing.assert_allclose(result.feedback.similarity, expected.feedback.similarity, atol=1e-4)


@pytest.mark.parametrize("padded_max", [0.0, 100.0], ids=["slot-by-slot", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_together_are_those_alone(family: str, padded_max: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "PADDED_MAX", padded_max)
    qwen, answer_options = tiny_qwen(family), options()
    batch = AnswerSession(qwen, answer_options, slots=5)
    questions = [SlotQuestion(slot, *question) for slot, question in zip((4, 0, 2), asked(3), strict=True)]
    for result, question in zip(spoken(batch, batch.ask(questions)), asked(3), strict=True):
        check_equal(result, alone(qwen, answer_options, *question))


def test_answers_join_and_leave_the_batch() -> None:
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(12), slots=3)
    expected = [alone(qwen, options(12), *question) for question in asked(4)]
    first = batch.ask([SlotQuestion(1, *asked(4)[0])])
    for _ in range(4):
        batch.step()
    others = batch.ask([SlotQuestion(slot, *asked(4)[number]) for slot, number in ((0, 1), (2, 2))])
    while not first[0].has_ended:
        batch.step()
    assert batch.open_answers == 2
    last = batch.ask([SlotQuestion(1, *asked(4)[3])])
    while batch.open_answers:
        batch.step()
    for answer, result in zip([*first, *others, *last], expected, strict=True):
        assert answer.result is not None
        check_equal(answer.result, result)


def test_an_answer_that_is_alone_equals_that_of_one_slot_exactly() -> None:
    qwen, answer_options = tiny_qwen(), options()
    batch = AnswerSession(qwen, answer_options, slots=4)
    (result,) = spoken(batch, batch.ask([SlotQuestion(3, *asked(2)[1])]))
    expected = alone(qwen, answer_options, *asked(2)[1])
    assert result.text == expected.text
    assert result.feedback is not None
    assert expected.feedback is not None
    np.testing.assert_array_equal(result.feedback.attention, expected.feedback.attention)


def test_each_draws_by_its_own_seed() -> None:
    qwen, answer_options = tiny_qwen(), AnswerOptions(decoding=Decoding(8, temperature=1.2, seed=3))
    batch = AnswerSession(qwen, answer_options, slots=3)
    results = spoken(batch, batch.ask([SlotQuestion(slot, *question) for slot, question in enumerate(asked(3))]))
    expected = [alone(qwen, answer_options, *question) for question in asked(3)]
    assert [result.text for result in results] == [result.text for result in expected]


def test_rooms_that_grow_lose_nothing() -> None:
    """One answer outgrows the room of all slots while others are open."""
    qwen, answer_options = tiny_qwen(), options(300)
    vars(qwen)["eos_ids"] = frozenset()
    batch = AnswerSession(qwen, answer_options, slots=2)
    answers = batch.ask([SlotQuestion(slot, *question) for slot, question in enumerate(asked(2))])
    assert batch.block.room == 256
    results = spoken(batch, answers)
    assert batch.block.room > 256
    expected = [alone(qwen, answer_options, *question) for question in asked(2)]
    assert [result.text for result in results] == [result.text for result in expected]


def test_the_same_frame_costs_another_question_its_own_tokens_only() -> None:
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=2)
    spoken(batch, batch.ask([SlotQuestion(slot, packet(slot), QUERY) for slot in range(2)]))
    results = spoken(batch, batch.ask([SlotQuestion(slot, packet(slot), OTHER_QUERY) for slot in range(2)]))
    for slot, result in enumerate(results):
        assert result.work.prefilled_tokens < 6 + len(batch.slots[slot].prompts.question(OTHER_QUERY))
        check_equal(result, alone(qwen, options(), packet(slot), OTHER_QUERY))
    batch.forget(0)
    fresh = spoken(batch, batch.ask([SlotQuestion(0, packet(0), OTHER_QUERY)]))
    assert fresh[0].work.prefilled_tokens > results[0].work.prefilled_tokens


def test_cached_frames_are_not_encoded_and_others_are_encoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[list[int]] = []
    stock = session_module.encode_packed

    def counted(qwen: QwenVL, packets: Sequence[TokenPacket]) -> Any:
        passes.append([token_packet.stamp.frame_index for token_packet in packets])
        return stock(qwen, packets)

    monkeypatch.setattr(session_module, "encode_packed", counted)
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=4)
    for seeds in ((0, 1, 2, 3), (0, 5, 2, 7), (0, 5, 2, 8)):
        results = spoken(batch, batch.ask([SlotQuestion(slot, packet(seed), QUERY) for slot, seed in enumerate(seeds)]))
        for seed, result in zip(seeds, results, strict=True):
            check_equal(result, alone(qwen, options(), packet(seed), QUERY))
            assert result.work.encode_ms >= 0
    assert passes == [[0, 1, 2, 3], [5, 7]]


def test_incremental_vision_is_each_clients_own() -> None:
    qwen, answer_options = tiny_qwen(), options(encode="incremental")
    batch = AnswerSession(qwen, answer_options, slots=2)
    visions = [IncrementalEncoder(answer_options.incremental) for _ in range(2)]
    lone = [AnswerSession(qwen, answer_options) for _ in range(2)]
    for second in range(3):
        packets = [packet(10 * second + client, 4 + client, second) for client in range(2)]
        # Clients change slots; each client's cache moves with it.
        slots = [(client + second) % 2 for client in range(2)]
        questions = [SlotQuestion(slots[client], packets[client], QUERY, visions[client]) for client in range(2)]
        results = spoken(batch, batch.ask(questions))
        for client, session in enumerate(lone):
            for _ in session.answer(packets[client], QUERY):
                pass
            check_equal(results[client], session.last)
            assert results[client].stamps == session.last.stamps


def test_yes_and_no_are_scored_together_beside_answers() -> None:
    qwen, answer_options = tiny_qwen(), options()
    batch = AnswerSession(qwen, answer_options, slots=3)
    vars(batch)["yes_no"] = tokens_of_two(qwen)
    lone = AnswerSession(qwen, answer_options)
    vars(lone)["yes_no"] = tokens_of_two(qwen)
    expected = [lone.score_yes_no(*question) for question in asked(2)]
    checks = [SlotQuestion(slot, *question, checks=[question[1]]) for slot, question in enumerate(asked(2))]
    scored = batch.ask([*checks, SlotQuestion(2, *asked(3)[2])])
    assert [answer.has_ended for answer in scored] == [True, True, False]
    for answer, expected_score in zip(scored[:2], expected, strict=True):
        (score,) = answer.scores
        assert score.yes == pytest.approx(expected_score.yes, abs=1e-5)
        assert answer.result is not None
        assert answer.result.work.text_tokens == 0
    check_equal(spoken(batch, scored[2:])[0], alone(qwen, answer_options, *asked(3)[2]))


def tokens_of_two(qwen: QwenVL) -> Any:
    from arr_coc.qwen.yes_no import YesNoTokens

    return YesNoTokens((20,), (21,))


def test_a_question_that_does_not_fit_fails_alone() -> None:
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=3)
    long = "a" * (qwen.max_context_tokens + 1)
    answers = batch.ask(
        [SlotQuestion(0, packet(0), QUERY), SlotQuestion(1, packet(1), long), SlotQuestion(2, [], QUERY)]
    )
    assert isinstance(answers[1].error, ContextLengthError)
    assert isinstance(answers[2].error, OptionError)
    check_equal(spoken(batch, answers[:1])[0], alone(qwen, options(), packet(0), QUERY))


def test_non_finite_logits_end_their_own_answer_and_empty_its_slot() -> None:
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=2)
    answers = batch.ask([SlotQuestion(slot, packet(slot), QUERY) for slot in range(2)])
    with torch.inference_mode():
        for layer in batch.block.layers.values():
            layer.values[1] = torch.nan
    batch.step()
    assert isinstance(answers[1].error, NonFiniteError)
    while batch.open_answers:
        batch.step()
    assert answers[0].result is not None
    check_equal(answers[0].result, alone(qwen, options(), packet(0), QUERY))
    assert all(layer.values.isfinite().all() for layer in batch.block.layers.values())
    results = spoken(batch, batch.ask([SlotQuestion(1, packet(1), QUERY)]))
    check_equal(results[0], alone(qwen, options(), packet(1), QUERY))


@pytest.mark.parametrize("where", ["prefill_packed", "__call__"])
def test_a_pass_that_fails_fails_its_answers_and_the_next_one_works(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=2)
    questions = [SlotQuestion(slot, packet(slot), QUERY) for slot in range(2)]

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(session_module if where == "prefill_packed" else Decoder, where, fail)
        answers = batch.ask(questions)
        batch.step()
        assert [str(answer.error) for answer in answers] == ["out of memory"] * 2
    for result, question in zip(spoken(batch, batch.ask(questions)), questions, strict=True):
        check_equal(result, alone(qwen, options(), question.packets, QUERY))


def test_a_stopped_answer_leaves_the_others() -> None:
    qwen = tiny_qwen()
    batch = AnswerSession(qwen, options(), slots=2)
    answers = batch.ask([SlotQuestion(slot, packet(slot), QUERY) for slot in range(2)])
    batch.stop(0)
    batch.stop(0)
    assert (answers[0].has_ended, answers[0].result, batch.open_answers) == (True, None, 1)
    check_equal(spoken(batch, answers[1:])[0], alone(qwen, options(), packet(1), QUERY))
    assert batch.step() == []


def test_whole_frames_share_a_batch() -> None:
    qwen, answer_options = tiny_qwen(), options(encode="prune")
    batch = AnswerSession(qwen, answer_options, slots=2)
    results = spoken(batch, batch.ask([SlotQuestion(slot, whole(slot), QUERY) for slot in range(2)]))
    for seed, result in enumerate(results):
        check_equal(result, alone(qwen, answer_options, whole(seed), QUERY))


def test_a_model_spread_over_devices_has_one_slot() -> None:
    hooked = tiny_qwen()
    hooked.language_model.layers[1]._hf_hook = object()  # as accelerate adds
    with pytest.raises(OptionError, match=r"one client at a time; leave answer\.slots at 1"):
        AnswerSession(hooked, slots=2)
    with pytest.raises(OptionError, match="slots must be at least 1, got 0"):
        AnswerSession(tiny_qwen(), slots=0)


SECRET_QUERY = "What do you see?"


def secret_packets(qwen: QwenVL) -> list[TokenPacket]:
    """Return a picture for each client, each with a different shape and colour."""
    secrets = [
        (colour, shape) for shape in ("circle", "square") for colour in ((220, 30, 30), (30, 160, 30), (30, 60, 220))
    ]
    packets = []
    for number, (colour, shape) in enumerate(secrets):
        picture = np.full((256, 256, 3), 120, np.uint8)
        if shape == "circle":
            cv2.circle(picture, (70 + 20 * number, 128), 40, colour, -1)
        else:
            cv2.rectangle(picture, (30 + 20 * number, 90), (110 + 20 * number, 170), colour, -1)
        allocator = PictureAllocator(qwen, SECRET_QUERY, AllocatorOptions(budget=32, explore=0.0), "sparse")
        packets.append(allocator.allocate(picture, FrameStamp(number, 0, 0)))
    return packets


def test_the_bundled_model_answers_each_client_about_its_own_picture() -> None:
    """Every text equals that of a separate run, and all differ."""
    qwen, answer_options = load_qwen(None, device="cpu", dtype="float32"), options(24)
    packets = secret_packets(qwen)
    batch = AnswerSession(qwen, answer_options, slots=8)
    expected = [alone(qwen, answer_options, packet, SECRET_QUERY) for packet in packets]
    for turn in range(2):
        # In the second turn every client is in another client's former slot.
        slots = [(number + turn) % len(packets) for number in range(len(packets))]
        questions = [SlotQuestion(slot, packet, SECRET_QUERY) for slot, packet in zip(slots, packets, strict=True)]
        assert [result.text for result in spoken(batch, batch.ask(questions))] == [result.text for result in expected]
    assert len({result.text for result in expected}) == len(packets)
