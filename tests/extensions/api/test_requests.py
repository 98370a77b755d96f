"""Concurrent requests to a server with an API: each client gets its own answers and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from arr_coc.answer_schema import AnswerSchema
from arr_coc.errors import ModelError
from arr_coc.types import PastAnswer, PreviousAnswer, Question
from stream.answer.model import CONFIGURED, ClientQuestion, load_answer_model
from stream.errors import AnswerLost
from stream.extensions.api.model import ApiAnswerModel
from tests.extensions.api.test_model import config, packet
from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer, api_server
from tests.support.network import LIMIT_S, until


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


def loaded(server: FakeApiServer, slots: int = 2, **answer: Any) -> ApiAnswerModel:
    model = load_answer_model(CONFIGURED, config(server, slots=slots, **answer))
    assert isinstance(model, ApiAnswerModel)
    assert model.slots == slots
    return model


def question(client: bytes, query: str = "what?", *, index: int = 0, yes_no: bool = False) -> ClientQuestion:
    return ClientQuestion(client, packet(index), Question(query, checks=(query,) if yes_no else ()))


def asked(model: ApiAnswerModel, *questions: ClientQuestion) -> dict[bytes, str]:
    """Texts of the answers to questions that are asked together, by client."""
    for question in questions:
        model.hold(question.client)
    model.ask(questions)
    texts = {question.client: question.piece for question in questions}

    def all_ended() -> bool:
        for question in model.step():
            texts[question.client] += question.piece
        return all(question.ended for question in questions)

    until(all_ended)
    return texts


def together(count: int, then: Callable[[ApiHandler, dict[str, Any]], None] = fake.speak) -> Any:
    """Behaviour of a server that answers once `count` requests are open."""
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
    assert texts == {request.client: request.question.text for request in questions}
    for request in questions:
        assert request.error is None
        assert request.stats is not None
        assert (request.stats.work.tokens_used, request.stats.work.text_tokens) == (60, 2)


def test_scores_and_answers_are_requested_together(server: FakeApiServer) -> None:
    server.behaviour = together(2)
    look, describe = question(b"one", "is it red?", yes_no=True), question(b"two")
    texts = asked(loaded(server), look, describe)
    assert texts == {b"one": "", b"two": "a red circle"}
    (score,) = look.scores
    assert score == pytest.approx((0.948, 0.955), abs=0.001)
    assert describe.scores == ()
    assert {body["max_tokens"] for body in server.bodies} == {3, 64}


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [(fake.refuse(503, "busy"), AnswerLost), (fake.refuse(400, "no pictures"), ModelError)],
)
def test_a_lost_answer_of_one_client_is_not_lost_for_another(
    server: FakeApiServer, behaviour: Callable[[ApiHandler, dict[str, Any]], None], kind: type[Exception]
) -> None:
    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        (behaviour if "lose" in body["messages"][0]["content"][-1]["text"] else fake.speak)(handler, body)

    server.behaviour = behave
    failing, good = question(b"one", "lose this"), question(b"two")
    assert asked(loaded(server), failing, good)[b"two"] == "a red circle"
    assert isinstance(failing.error, kind)
    assert failing.stats is None
    assert good.error is None


def test_a_released_client_gets_no_more_of_its_answer(server: FakeApiServer) -> None:
    server.behaviour = fake.stall
    model, request = loaded(server), question(b"one")
    model.ask([request])
    until(lambda: model.step()[0].piece == "a ")
    model.release(b"one")
    assert model.step() == []
    model.drop_client(b"one")
    server.behaviour = fake.speak
    assert asked(model, question(b"one"))[b"one"] == "a red circle"


def test_an_answer_can_be_ended_early(server: FakeApiServer) -> None:
    server.behaviour = fake.stall
    model, long = loaded(server), question(b"one")
    model.ask([long])
    until(lambda: model.step()[0].piece == "a ")
    model.finish(long)
    assert long.ended
    assert long.stats is not None
    assert model.step() == []


def test_a_packet_that_cannot_be_shown_is_the_error_of_its_client(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("no picture")

    monkeypatch.setattr("stream.extensions.api.model.pictures_of", fail)
    bad = question(b"one")
    loaded(server).ask([bad])
    assert bad.ended
    assert isinstance(bad.error, ModelError)


STREET = AnswerSchema.parse('{"people": "integer", "weather": ["sun", "rain"]}')


def structured(schema: AnswerSchema = STREET, **fields: Any) -> ClientQuestion:
    return ClientQuestion(b"one", packet(0), Question("what?", schema=schema and schema.text, **fields))


def test_a_schema_is_sent_as_the_response_format_and_in_words(server: FakeApiServer) -> None:
    model = loaded(server)
    model.check_schema(STREET)
    asked(model, structured())
    asked(model, structured(AnswerSchema.of_choices(["open", "closed"])))
    first, second = (body["response_format"] for body in server.bodies)
    assert first == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": STREET.object_schema},
    }
    assert second["json_schema"]["schema"]["properties"] == {"answer": {"type": "string", "enum": ["open", "closed"]}}
    texts = [last_text(body) for body in server.bodies]
    assert texts[0].endswith('what?\nAnswer as JSON: {"people": integer, "weather": "sun" or "rain"}')
    assert texts[1].endswith("what?\nAnswer with one of: open, closed.")


def test_checks_have_no_schema(server: FakeApiServer) -> None:
    model = loaded(server)
    asked(model, question(b"one", yes_no=True))
    asked(model, structured(previous=PreviousAnswer('{"people": 1}', 0.5)))
    assert all("response_format" not in body for body in server.bodies)


def test_a_server_that_refuses_schemas_is_asked_without_and_it_is_reported_once(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"response_format": "response_format is unknown"})
    model = loaded(server)
    notices = []
    for _ in range(2):
        request = structured()
        assert asked(model, request) == {b"one": "a red circle"}
        assert request.stats is not None
        notices.append(request.stats.notice)
    assert ["response_format" in body for body in server.bodies] == [True, False, False]
    assert "the server refuses the schema" in notices[0]
    assert notices[1] == ""


def compared(same_above: float, **fields: Any) -> ClientQuestion:
    previous = PreviousAnswer("a blue square", same_above)
    return ClientQuestion(b"one", packet(0), Question("what?", previous=previous, **fields))


def last_text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"][-1]["text"])


def test_a_previous_answer_that_is_still_right_is_the_answer(server: FakeApiServer) -> None:
    request = compared(0.9)
    assert asked(loaded(server), request) == {b"one": "a blue square"}
    assert request.stats is not None
    assert request.stats.same == pytest.approx(0.905, abs=0.001)
    assert (request.stats.work.text_tokens, request.scores) == (0, ())
    (body,) = server.bodies
    assert 'what?\nAn earlier answer: "a blue square"\nIs that answer still right?' in last_text(body)


def test_a_previous_answer_that_is_wrong_is_replaced(server: FakeApiServer) -> None:
    history = (PastAnswer(1_500_000_000, "a blue square"),)
    request = compared(0.91, history=history)
    assert asked(loaded(server), request) == {b"one": "a red circle"}
    assert request.stats is not None
    assert request.stats.same == pytest.approx(0.905, abs=0.001)
    assert request.stats.work.text_tokens == 4
    check, body = server.bodies
    assert "seconds" not in last_text(check)
    assert last_text(body).endswith("Earlier answers:\n<1.5 seconds> a blue square\nwhat?")
    assert (check["max_tokens"], body["max_tokens"]) == (3, 64)


def test_a_check_refused_for_its_log_probabilities_is_repeated_without(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"logprobs": "logprobs are not known"})
    request = compared(0.5)
    assert asked(loaded(server), request) == {b"one": "a red circle"}, "its text is neither yes nor no"
    assert request.stats is not None
    assert request.stats.same == 0.0
    assert len(server.bodies) == 3
