"""Thoughts of a model behind an API: hidden, however the server sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stream.errors import AnswerLost
from stream.extensions.api.text import load_api_text
from stream.extensions.api.thoughts import ThoughtFilter
from tests.extensions.api.test_model import answer_text, config, loaded, notice, packet
from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer, api_server, event

ANSWER, END = event("a red circle"), event(finish_reason="stop")
THOUGHTS: dict[str, list[dict[str, Any]]] = {
    "reasoning_content": [event(delta={"reasoning_content": "hm", "content": None})],
    "reasoning": [event(delta={"reasoning": "hm", "content": ""})],
    "marks": [event("\n<thi"), event("nk>hm</th"), event("ink>\n\n")],
    "parts": [event(delta={"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]})],
    "counts": [event() | {"usage": {"completion_tokens_details": {"reasoning_tokens": 64}}}],
}


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


@pytest.mark.parametrize("kind", THOUGHTS)
def test_thoughts_are_no_part_of_the_answer_and_one_notice_says_if_nothing_is_left(
    server: FakeApiServer, kind: str
) -> None:
    model = loaded(server)
    server.behaviour = fake.send_events(*THOUGHTS[kind], ANSWER, END)
    assert answer_text(model) == "a red circle"
    assert notice(model) == ""
    server.behaviour = fake.send_events(*THOUGHTS[kind], END)
    assert answer_text(model, 1) == ""
    assert "thoughts took all of answer.max_tokens = 64, and no answer is left; raise it, or switch" in notice(model)
    assert answer_text(model, 2) == ""
    assert notice(model) == ""


def test_thoughts_that_the_prompt_begins_cost_one_answer(server: FakeApiServer) -> None:
    model = loaded(server)
    server.behaviour = fake.send_events(event("hm"), event("</think>\n"), ANSWER, END)
    with pytest.raises(AnswerLost, match="thoughts that end with </think> and have no beginning") as error:
        answer_text(model)
    assert error.value.wait_s == 0
    assert answer_text(model, 1) == "a red circle"


def test_a_check_that_thoughts_leave_nothing_of_is_asked_with_more_tokens(server: FakeApiServer) -> None:
    def think(handler: ApiHandler, body: dict[str, Any]) -> None:
        answer = [event("yes")] if body["max_tokens"] > 3 else []
        fake.send_events(*THOUGHTS["reasoning"], *answer, END)(handler, body)

    server.behaviour = think
    assert loaded(server).score(packet(), "is it red?") == (1.0, 1.0)
    assert [body["max_tokens"] for body in server.bodies] == [3, 64]


@pytest.mark.parametrize("text", ["<think>hm</think> a red circle", "hm</think>a red circle", "a red circle"])
def test_a_recap_has_no_thoughts(server: FakeApiServer, text: str) -> None:
    server.behaviour = fake.send_events(event(text), END)
    assert load_api_text(config(server)).complete("what?") == "a red circle"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think>\n\nb c", "b c"),
        (" \n<think></think>b", "b"),
        ("<think>a", ""),
        (" b <think>", " b <think>"),
        ("<thin", "<thin"),
        ("<b>", "<b>"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_thoughts_are_found_wherever_the_text_is_cut(text: str, answer: str, size: int) -> None:
    thoughts = ThoughtFilter()
    pieces = [thoughts.push(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join(pieces) + thoughts.finish() == answer
