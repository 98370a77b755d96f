"""Answers with a schema at the client: events with fields, or that an answer does not fit; history and repetition."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from arr_coc.answer_schema import AnswerSchema
from arr_coc.types import PastAnswer
from stream.answer.filters import RecalledAnswer
from stream.events import (
    Answer,
    AnswerDeltaEvent,
    AnswerInvalid,
    AnswerUnchanged,
    Event,
    ShadowCheck,
    encode_event,
    pack_event,
    unpack_event,
)
from stream.protocol.messages import AnswerDelta, FramePacketMessage, TokenPacketMessage, TurnGrant
from tests.extensions.history.test_filter import asked, texts
from tests.stream.answer.test_client import clock, opened
from tests.support.answer_client import STAMP, ClientFixture, FakeJournal, Opener, tokens, whole_frame
from tests.support.answer_client import answer as answered_at
from tests.support.events import make_answer_reply

__all__ = ["clock", "opened"]

SCHEMA = AnswerSchema.parse('{"people": "integer", "weather": ["sun", "rain"]}')
TEXT = '{"people": 2, "weather": "sun"}'
READABLE = "people: 2, weather: sun"


def heard(server: ClientFixture, text: str, turn: int = 1, **options: Any) -> list[Event]:
    """Events of an answer that comes in two pieces."""
    number, half = server.client.requests.next_number, len(text) // 2
    asked(server, turn, **options)
    pieces = [AnswerDelta(answer=number, text=piece) for piece in (text[:half], text[half:]) if piece]
    return server.events(Event, *pieces, make_answer_reply(number, text))  # type: ignore[type-var]


def test_the_schema_is_sent_with_the_question(opened: Opener) -> None:
    server = opened(schema=SCHEMA)
    assert asked(server).schema == SCHEMA.text
    server.hear(make_answer_reply(0, TEXT))
    server.grant(2)
    server.send(tokens(), is_aside=True)
    assert server.expect(TokenPacketMessage).question.schema is None, "a side question is answered in words"


def test_an_answer_has_fields_and_comes_whole(opened: Opener) -> None:
    delta, answer = heard(opened(schema=SCHEMA), TEXT)
    assert isinstance(delta, AnswerDeltaEvent)
    assert isinstance(answer, Answer)
    assert delta.text == answer.text == READABLE
    assert answer.fields == {"people": 2, "weather": "sun"}
    assert unpack_event(pack_event(answer)) == answer
    assert '"fields":{"people":2,"weather":"sun"}' in encode_event(answer)


@pytest.mark.parametrize(
    "text",
    [
        TEXT[:20],
        "",
        "two people in the sun",
        '{"people": NaN, "weather": "sun"}',
        '{"people": 2, "weather": "\\ud800"}',
        "[" * 5_000,
    ],
)
def test_an_answer_that_does_not_fit_is_an_event_without_its_text(opened: Opener, text: str) -> None:
    journal = FakeJournal()
    (invalid,) = heard(opened(schema=SCHEMA, journal=journal), text)
    assert isinstance(invalid, AnswerInvalid)
    assert (invalid.text, invalid.fields) == ("", None)
    assert 0 < len(invalid.reason) < 200
    assert journal.points == [invalid]
    assert unpack_event(pack_event(invalid)) == invalid
    assert '"fields"' not in encode_event(invalid)


def test_earlier_answers_are_shown_as_the_model_writes_them(opened: Opener) -> None:
    server = opened(schema=SCHEMA, history=2, same_above=0.5)
    heard(server, TEXT.replace(" ", ""))
    heard(server, "nothing", 2)
    message = asked(server, 3)
    assert message.history == (PastAnswer(STAMP.media_ns, TEXT),)
    assert message.previous is not None
    assert message.previous.text == TEXT


def test_the_same_fields_again_are_unchanged(opened: Opener) -> None:
    server = opened(schema=SCHEMA, same_above=0.5)
    heard(server, TEXT)
    (unchanged,) = heard(server, TEXT.replace(": ", ":"), 2)
    assert isinstance(unchanged, AnswerUnchanged)
    assert (unchanged.text, unchanged.fields) == (READABLE, {"people": 2, "weather": "sun"})
    _, other = heard(server, TEXT.replace("2", "3"), 3)
    assert isinstance(other, Answer)


def test_an_answer_of_the_journal_keeps_its_fields(opened: Opener) -> None:
    point = structs.replace(answered_at(0), text=READABLE, fields={"people": 2, "weather": "sun"})
    broken = AnswerInvalid(**structs.asdict(structs.replace(answered_at(1), text="")), reason="it is empty")
    server = opened(
        schema=SCHEMA, history=1, journal=FakeJournal(RecalledAnswer(point, None), RecalledAnswer(broken, None))
    )
    requests = server.client.requests
    assert requests.recall(STAMP)[1] == point
    assert requests.recall(STAMP) == [broken]
    assert texts(asked(server).history) == [TEXT]


@pytest.mark.parametrize(("full", "same"), [(TEXT, True), (TEXT.replace("2", "3"), False), ("half", None)])
def test_a_check_with_all_tokens_compares_what_people_read(opened: Opener, full: str, same: bool | None) -> None:
    server = opened(schema=SCHEMA)
    server.grant(1)
    server.send(whole_frame(), "every", full_frame=whole_frame())
    number = server.expect(FramePacketMessage).answer
    _, answer = server.hear(make_answer_reply(number, TEXT))
    assert isinstance(answer, Answer)
    server.hear(TurnGrant(turn=2))
    checks = server.hear(make_answer_reply(number, full))
    assert [check.same for check in checks if isinstance(check, ShadowCheck)] == ([] if same is None else [same])
