"""A Qwen model with several slots, against the same model with one; slots and the clients that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ContextLengthError, OptionError
from arr_coc.qwen.batching import slots as slots_module
from arr_coc.types import NS_PER_S, PastAnswer, PreviousAnswer, Question
from stream.answer.model import CONFIGURED, ClientQuestion, history_text, load_answer_model
from stream.answer.qwen import ClientSlots, QwenAnswerModel
from stream.config import SLOTS_TOGETHER, AnswerConfig, Config
from tests.stream.answer.test_model import at, folder, packet
from tests.support.answer_models import OneClient

__all__ = ["folder"]

CLIENTS = (b"one", b"two", b"three")


def load(folder: Path, slots: int, **options: object) -> QwenAnswerModel:
    answer = AnswerConfig.model_validate({"model": str(folder), "max_tokens": 6, "slots": slots, **options})
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert isinstance(model, QwenAnswerModel)
    assert model.slots == slots
    return model


def batched(folder: Path, **options: object) -> QwenAnswerModel:
    return load(folder, len(CLIENTS), **options)


def ask(model: QwenAnswerModel, *questions: ClientQuestion) -> list[str]:
    """Texts of answers that are generated together."""
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
def test_answers_and_feedback_are_each_clients_own(folder: Path, encode: str) -> None:
    model, lone = batched(folder, encode=encode), OneClient(load(folder, 1, encode=encode))
    for second in range(3):
        questions = [
            ClientQuestion(client, at(10 * index + second), Question("what?")) for index, client in enumerate(CLIENTS)
        ]
        texts = ask(model, *questions)
        for question, text in zip(questions, texts, strict=True):
            lone.client = question.client
            assert text == lone.answer(question.packet)
            assert lone.stats is not None
            assert question.stats is not None
            assert question.stats.work.tokens_used == lone.stats.work.tokens_used
            assert question.stats.feedback is not None
            assert question.stats.feedback.stamp == question.packet.stamp


def test_a_client_that_leaves_during_an_answer_is_dropped_and_the_others_go_on(folder: Path) -> None:
    model, lone = batched(folder), OneClient(load(folder, 1))
    first, second = (ClientQuestion(client, packet(), Question("what?")) for client in CLIENTS[:2])
    for question in (first, second):
        model.hold(question.client)
    model.ask([first, second])
    text = second.piece
    model.release(b"one")
    model.drop_client(b"one")
    while not second.ended:
        assert model.step() == [second]
        text += second.piece
    assert text == lone.answer(packet())
    assert not first.ended


def test_an_answer_can_be_ended_early(folder: Path) -> None:
    model = batched(folder)
    question = ClientQuestion(b"one", packet(), Question("what?"))
    model.hold(b"one")
    model.ask([question])
    model.step()
    model.finish(question)
    assert question.ended
    assert question.stats is not None
    assert question.stats.work.text_tokens == 2
    assert model.step() == []


def test_more_slots_than_the_memory_holds_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "free_bytes", lambda device: 1_000_000)
    with pytest.raises(
        OptionError, match=r"3 slots of 662 tokens need 1\.8 MB, and 1\.0 MB are free on cpu; set answer"
    ):
        load(folder, 3)


def test_memory_grows_with_clients_and_is_given_back_when_they_leave(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "free_bytes", lambda device: 100_000_000)
    model = load_answer_model(CONFIGURED, Config(answer=AnswerConfig(model=str(folder), max_tokens=6, slots="auto")))
    assert isinstance(model, QwenAnswerModel)
    assert model.slots == SLOTS_TOGETHER
    block = model._session.block
    clients = [bytes([number]) for number in range(6)]
    questions = [ClientQuestion(client, at(second), Question("what?")) for second, client in enumerate(clients)]
    (alone,) = ask(model, questions[-1])
    assert block.allocated == 1
    *_, together = ask(model, *questions)
    assert (together, block.allocated) == (alone, 8)
    for client in clients[:-1]:
        model.drop_client(client)
    assert block.allocated == 2
    (again,) = ask(model, ClientQuestion(clients[-1], at(5), Question("what?")))
    assert (again, block.allocated) == (alone, 2)


def test_a_client_of_a_late_slot_gets_an_early_one_when_others_have_left() -> None:
    slots = ClientSlots(4)
    for client in (b"a", b"b", b"c"):
        slots.hold(client)
    for client in (b"a", b"b"):
        slots.drop(client)
    assert slots.enough == 3  # it holds the third
    slots.release(b"c")
    assert slots.enough == 1
    slots.forget(2)
    assert slots.last_slot(b"c") is None
    slots.hold(b"c")
    assert slots.by_client == {b"c": 0}


def test_the_lowest_unused_slot_comes_first() -> None:
    slots = ClientSlots(3)
    assert [slots.hold(client) for client in (b"a", b"b", b"a")] == [None] * 3
    assert slots.by_client == {b"a": 0, b"b": 1}
    slots.release(b"a")
    assert slots.hold(b"c") is None
    assert slots.hold(b"d") == b"a"
    assert slots.by_client == {b"b": 1, b"c": 2, b"d": 0}


def test_of_used_slots_the_least_recently_used_comes_first() -> None:
    slots = ClientSlots(2)
    for client in (b"a", b"b", b"a"):
        slots.hold(client)
        slots.release(client)
    assert slots.hold(b"c") == b"b"
    assert slots.by_client == {b"c": 1}


def test_a_client_gets_the_slot_that_it_had() -> None:
    slots = ClientSlots(3)
    for client in (b"a", b"b"):
        slots.hold(client)
        slots.release(client)
    assert slots.hold(b"b") is None
    assert slots.by_client == {b"b": 1}


def test_the_slots_of_a_client_that_leaves_are_returned() -> None:
    slots = ClientSlots(2)
    slots.hold(b"a")
    assert slots.drop(b"a") == [0]
    assert slots.drop(b"a") == []
    assert slots.by_client == {}
    assert slots.hold(b"b") is None
    assert slots.by_client == {b"b": 0}


def test_a_previous_answer_is_scored_and_ends_the_question_if_it_is_likely(folder: Path) -> None:
    model = load(folder, 1)
    (text,) = ask(model, ClientQuestion(b"one", packet(), Question("what?")))
    unlikely, likely = (
        ClientQuestion(b"one", packet(), Question("what?", previous=PreviousAnswer("mo", same_above)))
        for same_above in (1.0, 1e-12)
    )
    assert ask(model, unlikely) == [text]
    assert ask(model, likely) == ["mo"]
    assert unlikely.stats is not None
    assert likely.stats is not None
    assert unlikely.stats.same == likely.stats.same
    assert 0 < (likely.stats.same or 0) < 1
    assert (likely.stats.work.text_tokens, unlikely.stats.work.text_tokens) == (0, 6)


@pytest.mark.parametrize("entries", range(4))
def test_earlier_answers_that_do_not_fit_the_context_are_left_out_oldest_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    model = load(folder, 1)
    prompts = model._session.prompts
    history = tuple(PastAnswer(second * NS_PER_S, f"answer {second} " * 3) for second in range(3))
    query = history_text(history[len(history) - entries :]) + "what?"
    ask(model, ClientQuestion(b"one", packet(), Question(query)))
    reference = ClientQuestion(b"one", packet(), Question(query))
    texts = ask(model, reference)
    context = prompts.other_tokens(query) + 4 + len(prompts.ids.frame_open) + len(prompts.ids.frame_close)
    monkeypatch.setattr(type(model._session.qwen), "max_context_tokens", context)
    question = ClientQuestion(b"one", packet(), Question("what?", history=history))
    assert ask(model, question) == texts
    assert question.stats is not None
    assert reference.stats is not None
    assert question.stats.work.prefilled_tokens == reference.stats.work.prefilled_tokens


STREET = AnswerSchema.parse('{"people": "integer", "weather": ["sun", "rain"]}')


@pytest.mark.parametrize("options", [{}, {"temperature": 1.2, "seed": 3}, {"dtype": "int8"}, {"dtype": "int4"}])
def test_clients_have_schemas_of_their_own(folder: Path, options: dict[str, object]) -> None:
    model = batched(folder, max_tokens=120, **options)
    schemas = (STREET, AnswerSchema.of_choices(["open", "closed"]), None)
    for schema in schemas[:2]:
        assert schema is not None
        model.check_schema(schema)
    questions = [
        ClientQuestion(client, packet(), Question("what?", schema=schema and schema.text))
        for client, schema in zip(CLIENTS, schemas, strict=True)
    ]
    structured, choice, free = ask(model, *questions)
    assert set(STREET.fields_of(structured)) == {"people", "weather"}
    assert choice in ("open", "closed")
    if "dtype" not in options:  # small weights round differently in a batch
        assert free == ask(model, ClientQuestion(CLIENTS[2], packet(), Question("what?")))[0]


def test_the_form_of_an_answer_is_put_behind_the_question_unless_the_model_knows_one_world_only(folder: Path) -> None:
    model = load(folder, 1, max_tokens=120)
    plain, structured = (
        ClientQuestion(b"one", packet(), Question("what?")),
        ClientQuestion(b"one", packet(), Question("what?", schema=STREET.text)),
    )
    model.hold(b"one")
    assert model._slot_question(plain).instruction == ""
    assert model._slot_question(structured).instruction == STREET.instruction
    model.known_world = "drawn scenes"
    model._session.qwen.model.config.arr_coc_world = "drawn scenes"
    assert model._slot_question(structured).instruction == ""


def test_a_form_that_does_not_fit_the_context_is_refused(folder: Path) -> None:
    model = load(folder, 1)
    long = AnswerSchema.of_choices([f"{number} {'x ' * 45}x" for number in range(250)])
    with pytest.raises(ContextLengthError):
        model.check_schema(long)
