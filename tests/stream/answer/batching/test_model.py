"""A Qwen model with slots, against the same model that answers one client at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.errors import OptionError
from arr_coc.qwen.batching import slots as slots_module
from stream.answer.batching.model import QwenBatchAnswerModel
from stream.answer.batching.scheduler import BatchQuestion
from stream.answer.model import CONFIGURED, AnswerModel, load_answer_model
from stream.config import AnswerConfig, Config, WindowConfig
from tests.stream.answer.test_model import at, folder, packet

__all__ = ["folder"]

CLIENTS = (b"one", b"two", b"three")


def load(folder: Path, slots: int, **options: object) -> AnswerModel:
    answer = AnswerConfig.model_validate({"model": str(folder), "max_tokens": 6, "slots": slots, **options})
    return load_answer_model(CONFIGURED, Config(answer=answer))


def batched(folder: Path, **options: object) -> QwenBatchAnswerModel:
    model = load(folder, len(CLIENTS), **options)
    assert isinstance(model, QwenBatchAnswerModel)
    return model


def ask(model: QwenBatchAnswerModel, *questions: BatchQuestion) -> list[str]:
    """The texts of answers that are made together."""
    for question in questions:
        model.hold(question.client)
    model.ask(questions)
    texts = {question: question.piece for question in questions}
    while not all(question.ended for question in questions):
        for question in model.step():
            texts[question] += question.piece
    for question in questions:
        assert question.error is None
        model.release(question.client)
    return list(texts.values())


@pytest.mark.parametrize("encode", ["sparse", "incremental"])
def test_windows_and_feedback_are_each_clients_own(folder: Path, encode: str) -> None:
    window = WindowConfig(frames=2)
    model = batched(folder, window=window, encode=encode)
    lone = load(folder, 1, window=window, encode=encode)
    for second in range(3):
        asked = [BatchQuestion(client, at(10 * index + second), "what?") for index, client in enumerate(CLIENTS)]
        texts = ask(model, *asked)
        for question, text in zip(asked, texts, strict=True):
            lone.select_client(question.client)
            assert text == "".join(lone.answer(question.packet, "what?", lambda: False))
            assert question.stats is not None
            assert (question.stats.frames, question.stats.oldest_frame_ns, question.stats.tokens_used) == (
                lone.last_stats.frames,
                lone.last_stats.oldest_frame_ns,
                lone.last_stats.tokens_used,
            )
            assert question.stats.feedback is not None
            assert question.stats.feedback.stamp == question.packet.stamp


def test_a_question_beside_the_window_is_checked_for_its_own_client(folder: Path) -> None:
    model = batched(folder, window=WindowConfig(frames=2))
    model.select_client(b"one")
    assert model.embed_query("what?").text == "what?"
    assert model.slots == len(CLIENTS)


def test_who_leaves_in_the_middle_is_forgotten_and_the_others_go_on(folder: Path) -> None:
    model, lone = batched(folder), load(folder, 1)
    one, two = (BatchQuestion(client, packet(), "what?") for client in CLIENTS[:2])
    for question in (one, two):
        model.hold(question.client)
    model.ask([one, two])
    text = two.piece
    model.release(b"one")
    model.drop_client(b"one")
    while not two.ended:
        assert model.step() == [two]
        text += two.piece
    assert text == "".join(lone.answer(packet(), "what?", lambda: False))
    assert not one.ended


def test_an_answer_can_be_ended_early(folder: Path) -> None:
    model = batched(folder)
    question = BatchQuestion(b"one", packet(), "what?")
    model.hold(b"one")
    model.ask([question])
    model.step()
    model.finish(question)
    assert question.ended
    assert question.stats is not None
    assert question.stats.text_tokens == 2
    assert model.step() == []


def test_more_slots_than_the_memory_holds_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "free_bytes", lambda device: 1_000_000)
    with pytest.raises(
        OptionError, match=r"3 slots of 662 tokens need 1\.8 MB, and 1\.0 MB are free on cpu; set answer"
    ):
        load(folder, 3)
