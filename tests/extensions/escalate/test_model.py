"""A larger model for the answers that the first is unsure of."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from arr_coc.errors import ContextLengthError, ModelError
from arr_coc.hub import bundled_model_path
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import GroupPlace, PreviousAnswer, Question
from stream.answer.memory import remember
from stream.answer.model import CONFIGURED, AnswerModel, ClientQuestion, ask_alone, load_answer_model
from stream.answer.qwen import QwenAnswerModel
from stream.config import AnswerConfig, Config, MemoryConfig
from stream.config_loading import ConfigLayer, build_config
from stream.errors import ConfigError
from stream.extensions.escalate.model import EscalatingModel
from stream.extensions.escalate.section import EscalateSection
from tests.stream.answer.test_model import at, packet
from tests.support.answer_models import OneClient

CLIENTS = (b"one", b"two", b"three")

SURE, UNSURE = 1e-9, 1.0
"""Thresholds below which no answer, and every answer, is escalated."""


@pytest.fixture(scope="module")
def folders() -> tuple[Path, Path]:
    """Folders of the first model and of the larger one: untrained ones answer in bytes that are no text."""
    return bundled_model_path(), bundled_model_path().parent / "scenes-stock"


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load each folder's weights once."""
    monkeypatch.setattr("arr_coc.qwen.loading.load_qwen", _load_qwen)


@cache
def _load_qwen(name: str, **options: object) -> QwenVL:
    return load_qwen(name, device="cpu")


def load(folder: Path, larger: Path | None = None, below: float = UNSURE, **options: object) -> AnswerModel:
    """Return a model, with the larger one behind it if that is given."""
    answer = AnswerConfig.model_validate({"model": str(folder), "max_tokens": 6, **options})
    section = EscalateSection(model=None if larger is None else str(larger), below=below)
    return load_answer_model(CONFIGURED, Config(answer=answer, escalate=section))


def test_a_sure_answer_is_the_first_models(folders: tuple[Path, Path]) -> None:
    lone, both = OneClient(load(folders[0])), OneClient(load(*folders, below=SURE))
    assert isinstance(both.model, EscalatingModel)
    assert both.answer(packet()) == lone.answer(packet())
    assert (both.stats, lone.stats) != (None, None)
    assert both.stats is not None
    assert lone.stats is not None
    assert not both.stats.work.escalated
    assert both.stats.work.flops == lone.stats.work.flops
    assert both.stats.same is None


def test_an_unsure_answer_is_the_larger_models(folders: tuple[Path, Path]) -> None:
    first, larger, both = (OneClient(model) for model in (load(folders[0]), load(folders[1]), load(*folders)))
    text = larger.answer(packet())
    assert first.answer(packet()) != text
    assert both.answer(packet()) == text
    assert both.stats is not None
    assert first.stats is not None
    assert larger.stats is not None
    assert both.stats.work.escalated
    assert both.stats.work.flops == first.stats.work.flops + larger.stats.work.flops
    assert both.stats.work.text_tokens == larger.stats.work.text_tokens


def test_the_threshold_is_the_least_probability_of_a_token(folders: tuple[Path, Path]) -> None:
    lone = load(folders[0])
    text = OneClient(lone).answer(packet())
    scored = ClientQuestion(b"one", packet(), Question("what?", previous=PreviousAnswer(text, 0.0)))
    ask_alone(lone, scored)
    assert scored.stats is not None
    least = scored.stats.same
    assert least is not None
    assert 0 < least < 1
    for below, escalated in ((least, False), (math.nextafter(least, 1.0), True)):
        both = OneClient(load(*folders, below=below))
        both.answer(packet())
        assert both.stats is not None
        assert both.stats.work.escalated is escalated


def test_a_previous_answer_is_scored_once(folders: tuple[Path, Path]) -> None:
    text = OneClient(load(folders[0])).answer(packet())
    model = load(*folders, below=SURE)
    question = ClientQuestion(b"one", packet(), Question("what?", previous=PreviousAnswer(text, SURE)))
    model.hold(question.client)
    model.ask([question])
    assert (question.ended, question.piece) == (True, text)
    assert question.stats is not None
    assert question.stats.same is not None


def test_no_piece_of_an_unsure_answer_is_given(folders: tuple[Path, Path]) -> None:
    model = load(*folders)
    question = ClientQuestion(b"one", packet(), Question("what?"))
    model.hold(question.client)
    model.ask([question])
    pieces = [question.piece]
    while not question.ended:
        assert model.step() == [question]
        pieces.append(question.piece)
    text = OneClient(load(folders[1])).answer(packet())
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 1  # those of the larger model come one by one


@pytest.mark.parametrize("below", [SURE, UNSURE])
def test_answers_at_once_are_each_clients_own(folders: tuple[Path, Path], below: float) -> None:
    lone = load(folders[below == UNSURE], slots=1)
    model = load(*folders, below=below, slots=len(CLIENTS))
    questions = [ClientQuestion(client, at(second), Question("what?")) for second, client in enumerate(CLIENTS)]
    for question in questions:
        model.hold(question.client)
    model.ask(questions)
    texts = {question: question.piece for question in questions}
    while not all(question.ended for question in questions):
        for question in model.step():
            texts[question] += question.piece
    for question in questions:
        assert texts[question] == ask_alone(lone, ClientQuestion(question.client, question.packet, Question("what?")))


def test_a_released_client_is_not_asked_about_again(folders: tuple[Path, Path]) -> None:
    model = load(*folders)
    question = ClientQuestion(b"one", packet(), Question("what?"))
    model.hold(b"one")
    model.ask([question])
    while model.step():
        if isinstance(model, EscalatingModel) and model._due:
            break  # the score of the whole answer is due
    model.release(b"one")
    assert list(model.step()) == []
    assert not question.ended
    assert OneClient(model).answer(packet()) == OneClient(load(folders[1])).answer(packet())
    model.drop_client(b"one")


def test_an_answer_may_be_ended_early(folders: tuple[Path, Path]) -> None:
    for below in (SURE, UNSURE):
        model = load(*folders, below=below)
        question = ClientQuestion(b"one", packet(), Question("what?"))
        model.hold(b"one")
        model.ask([question])
        model.finish(question)
        assert question.ended
        assert question.stats is not None
        assert not question.stats.work.escalated
        assert list(model.step()) == []


def test_checks_are_the_first_models(folders: tuple[Path, Path]) -> None:
    both, lone = OneClient(load(*folders)), OneClient(load(folders[0]))
    assert both.score(packet(), "is there a star?") == lone.score(packet(), "is there a star?")
    assert both.stats is not None
    assert not both.stats.work.escalated


def test_a_question_that_is_too_long_fails(folders: tuple[Path, Path]) -> None:
    model = load(*folders)
    with pytest.raises(ContextLengthError):
        OneClient(model).answer(packet(), "what? " * 5000)
    with pytest.raises(ContextLengthError):
        model.embed_query("what? " * 5000)
    assert OneClient(model).answer(packet())


def test_both_models_read_one_visual_memory(folders: tuple[Path, Path]) -> None:
    memory = MemoryConfig(enabled=True, tokens=64)
    texts = []
    for model in (load(folders[1], memory=memory), load(*folders, memory=memory)):
        client = OneClient(model)
        answers = []
        for frame in range(3):
            shown = replace(at(frame), place=GroupPlace(1, frame))
            answers.append(client.answer(remember(model.memory, client.client, [shown])))
        texts.append(answers)
    assert texts[0] == texts[1]


def test_a_model_that_does_not_fit_is_named(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_coc.qwen.batching.slots.free_bytes", lambda device: 1000)
    with pytest.raises(ModelError, match=r"scenes-stock needs about .* GB .*0\.0 GB are free on cpu; .*--escalate"):
        load(*folders)


def test_the_section_is_checked(folders: tuple[Path, Path], tmp_path: Path) -> None:
    first = str(folders[0])

    def refusal(**values: object) -> str:
        with pytest.raises(ConfigError) as error:
            build_config([ConfigLayer("test", {"escalate.model": str(folders[1]), "answer.model": first, **values})])
        return str(error.value)

    assert "is the run's own model" in refusal(**{"escalate.model": f"{first}/."})
    assert "give --escalate to serve-answers" in refusal(**{"answer.server": "tcp://localhost:5555"})
    assert "leave it out, or api.url" in refusal(**{"api.url": "http://localhost:1/v1"})
    assert "leave answer.thinking = hide out" in refusal(**{"answer.thinking": "hide"})


def test_without_the_key_the_model_is_as_before(folders: tuple[Path, Path]) -> None:
    assert isinstance(load(folders[0]), QwenAnswerModel)
