"""Several requests at once to a server with an API: each client's own, together, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from arr_coc.errors import ModelError
from stream.answer.api.parallel import ApiBatchAnswerModel
from stream.answer.batching.scheduler import BatchQuestion
from stream.answer.model import CONFIGURED, load_answer_model
from stream.config import WindowConfig
from stream.errors import AnswerLost
from tests.stream.answer.api.test_model import config, packet, sent
from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer, api_server
from tests.support.network import LIMIT_S, until


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as made:
        yield made


def loaded(server: FakeApiServer, slots: int = 2, **answer: Any) -> ApiBatchAnswerModel:
    model = load_answer_model(CONFIGURED, config(server, slots=slots, **answer))
    assert isinstance(model, ApiBatchAnswerModel)
    assert model.slots == slots
    return model


def question(client: bytes, query: str = "what?", *, index: int = 0, yes_no: bool = False) -> BatchQuestion:
    return BatchQuestion(client, packet(index), query, yes_no=yes_no)


def asked(model: ApiBatchAnswerModel, *questions: BatchQuestion) -> dict[bytes, str]:
    """The texts of questions that are asked together, by client."""
    for one in questions:
        model.hold(one.client)
    model.ask(questions)
    texts = {one.client: one.piece for one in questions}

    def all_ended() -> bool:
        for one in model.step():
            texts[one.client] += one.piece
        return all(one.ended for one in questions)

    until(all_ended)
    return texts


def together(count: int, then: Callable[[ApiHandler, dict[str, Any]], None] = fake.speak) -> Any:
    """Behaviour of a server that answers once so many requests are open."""
    meeting = threading.Barrier(count)

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        meeting.wait(LIMIT_S)
        then(handler, body)

    return behave


def repeat(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Answer with the question, in two pieces."""
    text = body["messages"][0]["content"][-1]["text"]
    handler.begin()
    for part in (text[:3], text[3:]):
        handler.send(fake.event(part))
    handler.send(fake.event(finish_reason="stop"))
    handler.send("[DONE]")


def test_requests_of_several_clients_are_open_at_once_and_each_gets_its_own_text(server: FakeApiServer) -> None:
    server.behaviour = together(3, repeat)
    questions = [question(name, f"secret of {name.decode()}") for name in (b"one", b"two", b"three")]
    texts = asked(loaded(server, slots=3), *questions)
    assert texts == {one.client: one.query for one in questions}
    for one in questions:
        assert one.error is None
        assert one.stats is not None
        assert (one.stats.tokens_used, one.stats.text_tokens) == (60, 2)


def test_one_slot_is_the_model_that_asks_one_after_the_other(server: FakeApiServer) -> None:
    assert not hasattr(load_answer_model(CONFIGURED, config(server, slots=1)), "slots")


def test_scores_and_answers_go_together(server: FakeApiServer) -> None:
    server.behaviour = together(2)
    look, tell = question(b"one", "is it red?", yes_no=True), question(b"two")
    texts = asked(loaded(server), look, tell)
    assert texts == {b"one": "", b"two": "a red circle"}
    assert look.score is not None
    assert look.score == pytest.approx((0.948, 0.955), abs=0.001)
    assert tell.score is None
    assert {body["max_tokens"] for body in server.bodies} == {3, 64}


def test_a_server_that_refuses_probabilities_is_asked_without(server: FakeApiServer) -> None:
    def refuse_likely(handler: ApiHandler, body: dict[str, Any]) -> None:
        if body.get("logprobs"):
            handler.reply(400, {"error": {"message": "logprobs are not supported"}})
        else:
            fake.speak(handler, body)

    server.behaviour = refuse_likely
    model = loaded(server)
    for number in range(2):
        look = question(b"one", "is it red?", yes_no=True)
        asked(model, look)
        assert look.score == (0.5, 0.0), "the server's words are neither yes nor no"
        model.release(b"one")
        assert len(server.bodies) == 2 + number, "it is asked for them once"


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [(fake.refuse(503, "busy"), AnswerLost), (fake.refuse(400, "no pictures"), ModelError)],
)
def test_what_one_client_loses_another_does_not(
    server: FakeApiServer, behaviour: Callable[[ApiHandler, dict[str, Any]], None], kind: type[Exception]
) -> None:
    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        (behaviour if "lose" in body["messages"][0]["content"][-1]["text"] else fake.speak)(handler, body)

    server.behaviour = behave
    lost, good = question(b"one", "lose this"), question(b"two")
    assert asked(loaded(server), lost, good)[b"two"] == "a red circle"
    assert isinstance(lost.error, kind)
    assert lost.stats is None
    assert good.error is None


def test_who_is_released_is_not_answered_any_more(server: FakeApiServer) -> None:
    server.behaviour = fake.stall
    model, gone = loaded(server), question(b"one")
    model.ask([gone])
    until(lambda: model.step()[0].piece == "a ")
    model.release(b"one")
    assert model.step() == []
    model.drop_client(b"one")
    server.behaviour = fake.speak
    assert asked(model, question(b"one"))[b"one"] == "a red circle"


def test_an_answer_can_be_ended_as_it_stands(server: FakeApiServer) -> None:
    server.behaviour = fake.stall
    model, long = loaded(server), question(b"one")
    model.ask([long])
    until(lambda: model.step()[0].piece == "a ")
    model.finish(long)
    assert long.ended
    assert long.stats is not None
    assert model.step() == []


def test_an_answer_without_end_is_lost(server: FakeApiServer) -> None:
    server.behaviour = fake.speak_for_ever
    endless = question(b"one")
    asked(loaded(server), endless)
    assert isinstance(endless.error, AnswerLost)
    assert "an answer without an end: more than 2048 characters for 64 tokens" in str(endless.error)


def test_windows_are_each_clients_own(server: FakeApiServer) -> None:
    model = loaded(server, window=WindowConfig(frames=3))
    for index in range(3):
        asked(model, question(b"one", index=index))
    asked(model, question(b"two", index=9))
    assert [len(server.pictures(number)) for number in range(4)] == [1, 2, 3, 1]
    model.drop_client(b"one")
    asked(model, question(b"one", index=4))
    assert len(server.pictures()) == 1


def test_pictures_that_vllm_has_forgotten_are_sent_again(server: FakeApiServer) -> None:
    server.owner = "vllm"
    model = loaded(server, window=WindowConfig(frames=2))
    for index in range(2):
        asked(model, question(b"one", index=index))
    server.kept.clear()
    last = question(b"one", index=2)
    assert asked(model, last)[b"one"] == "a red circle"
    assert last.error is None
    assert [sent(server, request) for request in range(4)] == [[True], [False, False], [False, False], [True, True]]


def test_a_packet_that_cannot_be_shown_is_the_error_of_its_client(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("no picture")

    monkeypatch.setattr("stream.answer.api.model.pictures_of", fail)
    bad = question(b"one")
    loaded(server).ask([bad])
    assert bad.ended
    assert isinstance(bad.error, ModelError)
