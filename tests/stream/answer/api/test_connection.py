"""Connection to a server with an API: pieces, time limits, and errors as advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx2
import pytest

from arr_coc.errors import ModelError
from stream.answer.api import connection as connection_module
from stream.answer.api.address import ApiAddress
from stream.answer.api.connection import (
    BACK_OFF_MAX_S,
    BACK_OFF_S,
    LINE_BYTES_MAX,
    ApiConnection,
    ApiLimits,
    ChatPiece,
    ServedModel,
    _events,
    _piece,
)
from stream.errors import AnswerLost, ConfigError, ConnectionRefused, StreamError
from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer, api_server

LONG_S, SHORT_S = 30.0, 0.2
BODY = {"model": fake.MODEL, "messages": [], "max_tokens": 8}


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as made:
        yield made


@contextmanager
def connected(server: FakeApiServer, key: str | None = None, **limits: float) -> Iterator[ApiConnection]:
    all_limits = ApiLimits(**{"connect_s": LONG_S, "first_s": LONG_S, "next_s": LONG_S, "whole_s": LONG_S, **limits})
    with closing(ApiConnection(ApiAddress(server.url, local=True, key=key), all_limits)) as made:
        yield made


def pieces(connection: ApiConnection) -> list[ChatPiece]:
    stream, taken = connection.stream(BODY), []
    try:
        while not stream.ended:
            piece = stream.take()
            taken += [] if piece is None else [piece]
    finally:
        stream.cancel()
    return taken


def failure(server: FakeApiServer, behaviour: Callable[[ApiHandler, dict[str, Any]], None], **limits: Any) -> Exception:
    server.behaviour = behaviour
    with connected(server, **limits) as connection, pytest.raises((StreamError, ModelError)) as failed:
        pieces(connection)
    return failed.value


def test_a_reply_comes_in_pieces_with_what_the_server_counts(server: FakeApiServer) -> None:
    with connected(server) as connection:
        taken = pieces(connection)
    assert [piece.text for piece in taken if piece.text] == list(fake.TEXT)
    assert (taken[-1].prompt_tokens, taken[-1].text_tokens) == (90, 4)
    (body,) = server.bodies
    assert body == {**BODY, "stream": True, "stream_options": {"include_usage": True}}


def test_a_reply_that_is_not_streamed_is_one_piece(server: FakeApiServer) -> None:
    server.behaviour = fake.speak_at_once
    with connected(server) as connection:
        assert [piece.text for piece in pieces(connection)] == ["a red circle"]


def test_the_key_goes_into_the_header_and_nowhere_else(server: FakeApiServer) -> None:
    with connected(server, key="sk-1234") as connection:
        pieces(connection)
    assert server.headers["Authorization"] == "Bearer sk-1234"
    assert "sk-1234" not in str(server.bodies)


def test_without_a_key_none_is_sent(server: FakeApiServer) -> None:
    with connected(server) as connection:
        pieces(connection)
    assert "Authorization" not in server.headers


@pytest.mark.parametrize(
    ("behaviour", "limits", "reason"),
    [
        (fake.stall, {"next_s": SHORT_S}, "no more text within 0.2 s"),
        (fake.hang, {"first_s": SHORT_S, "next_s": SHORT_S}, r"no (text|reply) (within 0.2 s|in time)"),
        (fake.speak_for_ever, {"whole_s": SHORT_S}, "no end of the answer within 0.2 s"),
        (fake.break_off, {}, "the reply broke off"),
        (fake.fail_within, {}, "the server reports: out of memory"),
        (fake.refuse(500, "out of\nmemory"), {}, "500 out of memory"),
        (fake.refuse(429, "slow down"), {}, "429 slow down"),
        (lambda handler, body: handler.reply(502, "<html></html>", "text/html"), {}, "502 Bad Gateway"),
        (lambda handler, body: (handler.begin(), handler.send("[1, 2]")), {}, "something that is no JSON object"),
    ],
)
def test_an_answer_is_lost_where_the_next_one_may_come(
    server: FakeApiServer, behaviour: Any, limits: dict[str, float], reason: str
) -> None:
    error = failure(server, behaviour, **limits)
    assert isinstance(error, AnswerLost)
    assert re.search(reason, str(error)), str(error)
    assert error.wait_s == BACK_OFF_S


@pytest.mark.parametrize(
    ("behaviour", "kind", "advice"),
    [
        (fake.show_page, ConfigError, "answers with a web page.* usually ends in /v1"),
        (fake.refuse(401), ConfigError, r"wants a key \(401\); put the right one into"),
        (fake.refuse(404, "The model `big` does not exist"), ModelError, "lacks the model: .*name one .* with -m"),
        (fake.refuse(404, "Not Found"), ConfigError, "has no chat completions .* correct the address after --api"),
        (fake.refuse(400, "this model takes no image"), ModelError, r"takes no image\); name a vision-language model"),
        (fake.refuse(422, "extra fields"), ModelError, "refuses the request"),
        (fake.refuse(307), ConfigError, "has moved .* give --api the address"),
    ],
)
def test_what_the_user_must_mend_is_said_with_the_remedy(
    server: FakeApiServer, behaviour: Any, kind: type[Exception], advice: str
) -> None:
    error = failure(server, behaviour)
    assert isinstance(error, kind)
    assert re.search(advice, str(error)), str(error)


def test_a_key_that_a_server_repeats_is_not_shown(server: FakeApiServer) -> None:
    said = str(failure(server, fake.refuse(400, "bad key sk-1234 " + "x" * 500), key="sk-1234"))
    assert "sk-1234" not in said
    assert len(said) < 500


def test_a_refused_key_is_said(server: FakeApiServer) -> None:
    assert "refuses the key (403)" in str(failure(server, fake.refuse(403), key="sk-1234"))


@pytest.mark.parametrize(("said", "wait_s"), [("7", 7.0), ("86400", 120.0), ("soon", BACK_OFF_S), ("-3", BACK_OFF_S)])
def test_a_server_says_how_long_it_is_not_to_be_asked(server: FakeApiServer, said: str, wait_s: float) -> None:
    error = failure(server, fake.refuse(429, "slow down", Retry_After=said))
    assert isinstance(error, AnswerLost)
    assert error.wait_s == wait_s


def test_the_pause_grows_with_losses_in_a_row_and_begins_anew(server: FakeApiServer) -> None:
    with connected(server) as connection:
        waits_s = [connection.lost("gone").wait_s for _ in range(20)]
        assert waits_s[:3] == [BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S]
        assert waits_s[-1] == BACK_OFF_MAX_S
        pieces(connection)
        assert connection.lost("gone").wait_s == BACK_OFF_S


def test_a_cancelled_reply_is_not_received_to_its_end(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PIECES_WAITING_MAX", 1)
    gone = fake.threading.Event()

    def speak_until_gone(handler: ApiHandler, body: dict[str, Any]) -> None:
        try:
            fake.speak_for_ever(handler, body)
        finally:
            gone.set()

    server.behaviour = speak_until_gone
    with connected(server) as connection:
        stream = connection.stream(BODY)
        while stream.take() is None:
            pass
        stream.cancel()
        assert gone.wait(LONG_S)


def test_nobody_at_the_address_is_said_at_once(server: FakeApiServer) -> None:
    server.close()
    with (
        connected(server) as connection,
        pytest.raises(ConnectionRefused, match=r"no server at .* \(cannot be reached: [A-Z].*\); start it, or"),
    ):
        connection.models()


def test_the_models_are_those_that_the_server_lists(server: FakeApiServer) -> None:
    with connected(server) as connection:
        assert connection.models() == [ServedModel(fake.MODEL, "tests")]
        server.models = []
        assert connection.models() == []


def test_a_server_that_lists_nothing_is_no_error(server: FakeApiServer) -> None:
    with closing(ApiConnection(ApiAddress(server.url + "/x", local=True), ApiLimits(1, 1, 1, 1))) as connection:
        assert connection.models() == []


def test_an_event_that_is_longer_than_any_answer_is_not_kept() -> None:
    with pytest.raises(httpx2.RemoteProtocolError, match="longer than any answer"):
        list(_events([b"data: ", b"x" * LINE_BYTES_MAX, b"x"]))


def test_events_are_found_wherever_the_chunks_are_cut() -> None:
    stream = b": hello\r\nevent: x\r\ndata: {1}\r\n\r\ndata:{2}\n\n"
    for size in (1, 2, 5, 100):
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert list(_events(chunks)) == ["{1}", "{2}"]


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 3}, "logprobs": {"content": [{"top_logprobs": [{"token": 1}, 2]}]}}]},
        {"choices": "x", "usage": {"prompt_tokens": -1, "completion_tokens": "many"}, "model": 4},
    ],
)
def test_fields_that_are_not_as_expected_count_as_absent(event: dict[str, Any]) -> None:
    assert _piece(event) == (ChatPiece(), False)
