"""Connection to a server with an API: pieces, time limits, and errors with remedies."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from arr_coc.errors import ModelError
from stream.errors import AnswerLost, ConfigError, ConnectionRefused, StreamError
from stream.extensions.api import connection as connection_module
from stream.extensions.api.address import ApiAddress
from stream.extensions.api.connection import (
    BACK_OFF_MAX_S,
    BACK_OFF_S,
    LIST_BYTES_MAX,
    ApiConnection,
    ApiLimits,
)
from stream.extensions.api.replies import ChatPiece, ServedModel
from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer, api_server, event

LONG_S, SHORT_S = 30.0, 0.2
BODY = {"model": fake.MODEL, "messages": [], "max_tokens": 8}


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


@contextmanager
def connected(server: FakeApiServer, key: str | None = None, **limits: float) -> Iterator[ApiConnection]:
    all_limits = ApiLimits(**{"connect_s": LONG_S, "first_s": LONG_S, "next_s": LONG_S, "whole_s": LONG_S, **limits})
    with closing(ApiConnection(ApiAddress(server.url, local=True, key=key), all_limits)) as connection:
        yield connection


def pieces(connection: ApiConnection) -> list[ChatPiece]:
    stream, received = connection.stream(BODY), []
    try:
        while not stream.ended:
            piece = stream.take()
            received += [] if piece is None else [piece]
    finally:
        stream.cancel()
    return received


def failure(server: FakeApiServer, behaviour: Callable[[ApiHandler, dict[str, Any]], None], **limits: Any) -> Exception:
    server.behaviour = behaviour
    with connected(server, **limits) as connection, pytest.raises((StreamError, ModelError)) as failed:
        pieces(connection)
    return failed.value


def test_a_reply_comes_in_pieces_with_what_the_server_counts(server: FakeApiServer) -> None:
    with connected(server) as connection:
        reply = pieces(connection)
    assert [piece.text for piece in reply if piece.text] == list(fake.TEXT)
    assert (reply[-1].prompt_tokens, reply[-1].text_tokens) == (90, 4)
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
        (fake.speak_for_ever, {"whole_s": SHORT_S}, r"no (end of the answer|text|reply) (within 0.2 s|in time)"),
        (fake.break_off, {}, "the reply broke off"),
        (fake.fail_within, {}, "the server reports: out of memory"),
        (fake.refuse(500, "out of\nmemory"), {}, "500 out of memory"),
        (fake.refuse(429, "slow down"), {}, "429 slow down"),
        (lambda handler, body: handler.reply(502, "<html></html>", "text/html"), {}, "502 Bad Gateway"),
        (lambda handler, body: (handler.begin(), handler.send("[1, 2]")), {}, "something that is no JSON object"),
        (fake.reply({"error": {"message": "no memory"}}), {}, "the server reports: no memory"),
        (fake.reply({"error": "no memory", "choices": []}, "text/plain"), {}, "the server reports: no memory"),
        (fake.reply([{"error": {"code": 503, "message": "overloaded"}}]), {}, "the server reports: overloaded"),
        (fake.reply({"error": {"code": 7}}), {}, r'the server reports: {"code": 7}'),
        (fake.reply({"choices": [{"error": {"code": 502, "message": "gone"}}]}), {}, "the server reports: gone"),
        (fake.reply({"choices": []}), {}, "its reply holds no answer"),
        (fake.send_events(event(error={"message": "gone"})), {}, "the server reports: gone"),
        (fake.send_events(event(finish_reason="error")), {}, "the server reports: an error ended the answer"),
        (fake.send_events({"object": "error", "message": "bad image", "code": 400}), {}, "the server reports: bad im"),
        (fake.send_events({"type": "error", "error": {"message": "busy"}}), {}, "the server reports: busy"),
        (fake.send_events({"choices": [], "usage": {"prompt_tokens": 3}}), {}, "its reply holds no answer"),
        (fake.send_events(), {}, "its reply holds no answer"),
    ],
)
def test_an_answer_is_lost_if_the_next_one_may_succeed(
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
        (
            fake.reply(fake.UNEXPECTED),
            ConfigError,
            r"and answers: Unexpected endpoint .* usually ends in /v1, so correct",
        ),
        (fake.send_events({"error": {"message": "Not Found"}}), ConfigError, r"and answers: Not Found; .* in /v1"),
        (fake.reply({"status": "ok"}), ConfigError, r'and answers: {"status": "ok"}; .* in /v1'),
        (fake.reply("Ollama is running", "text/plain"), ConfigError, "and answers: Ollama is running; .* in /v1"),
        (fake.reply("", "text/event-stream"), ConfigError, "and answers: an empty reply; .* in /v1"),
    ],
)
def test_an_error_that_the_user_can_fix_has_a_remedy(
    server: FakeApiServer, behaviour: Any, kind: type[Exception], advice: str
) -> None:
    error = failure(server, behaviour)
    assert isinstance(error, kind)
    assert re.search(advice, str(error)), str(error)


@pytest.mark.parametrize("body", [fake.UNEXPECTED, {"status": "ok"}, {"error": {"message": "Not Found"}}])
def test_a_server_that_has_answered_before_loses_one_answer(server: FakeApiServer, body: dict[str, Any]) -> None:
    with connected(server) as connection:
        pieces(connection)
        server.behaviour = fake.reply(body)
        with pytest.raises(AnswerLost, match=r"Unexpected endpoint|no chat completion: .*ok|reports: Not Found"):
            pieces(connection)


@pytest.mark.parametrize("end", ["", "data: [DONE]", f"data: {json.dumps(event(finish_reason='stop'))}"])
def test_a_stream_with_a_byte_order_mark_and_without_a_last_line_break_is_read(server: FakeApiServer, end: str) -> None:
    events = [event("a red circle"), event(finish_reason="stop")][: 1 if end else 2]
    server.behaviour = fake.send_events(*events, before=b"\xef\xbb\xbf", end=end)
    with connected(server) as connection:
        assert "".join(piece.text for piece in pieces(connection)) == "a red circle"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain", "application/octet-stream"])
def test_a_reply_is_read_by_its_content_whatever_its_type(server: FakeApiServer, kind: str) -> None:
    server.behaviour = fake.reply({"choices": [{"message": {"content": "a red circle"}}]}, kind)
    with connected(server) as connection:
        assert [piece.text for piece in pieces(connection)] == ["a red circle"]
        server.behaviour = fake.reply('data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n', kind)
        assert [piece.text for piece in pieces(connection)] == ["a"]


def test_a_field_that_is_refused_within_a_good_status_is_left_out_too(server: FakeApiServer) -> None:
    error = {"object": "error", "message": "temperature is not supported", "code": 400}
    server.behaviour = fake.refuse_fields({"temperature": error}, status=200)
    with connected(server) as connection:
        for _ in connection.receive({**BODY, "temperature": 0.0}):
            pass
    assert ["temperature" in body for body in server.bodies] == [True, False]


def test_a_wrong_path_that_is_answered_with_a_good_status_is_refused_at_the_start(server: FakeApiServer) -> None:
    server.listing = lambda handler: handler.reply(200, fake.UNEXPECTED)
    with connected(server) as connection, pytest.raises(ConfigError, match=r"Unexpected endpoint .* ends in /v1"):
        connection.models()


def test_a_key_that_a_server_repeats_is_not_shown(server: FakeApiServer) -> None:
    message = str(failure(server, fake.refuse(400, "bad key sk-1234 " + "x" * 500), key="sk-1234"))
    assert "sk-1234" not in message
    assert len(message) < 500


def test_a_refused_key_is_reported(server: FakeApiServer) -> None:
    assert "refuses the key (403)" in str(failure(server, fake.refuse(403), key="sk-1234"))


@pytest.mark.parametrize(("header", "wait_s"), [("7", 7.0), ("86400", 120.0), ("soon", BACK_OFF_S), ("-3", BACK_OFF_S)])
def test_a_server_sets_the_pause(server: FakeApiServer, header: str, wait_s: float) -> None:
    error = failure(server, fake.refuse(429, "slow down", Retry_After=header))
    assert isinstance(error, AnswerLost)
    assert error.wait_s == wait_s


def test_the_pause_grows_with_losses_in_a_row_and_begins_anew(server: FakeApiServer) -> None:
    with connected(server) as connection:
        waits_s = [connection.note_loss("gone").wait_s for _ in range(20)]
        assert waits_s[:3] == [BACK_OFF_S, 2 * BACK_OFF_S, 4 * BACK_OFF_S]
        assert waits_s[-1] == BACK_OFF_MAX_S
        pieces(connection)
        assert connection.note_loss("gone").wait_s == BACK_OFF_S


def test_a_cancelled_reply_is_not_received_to_its_end(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PIECES_WAITING_MAX", 1)
    disconnection = threading.Event()

    def speak_until_gone(handler: ApiHandler, body: dict[str, Any]) -> None:
        try:
            fake.speak_for_ever(handler, body)
        finally:
            disconnection.set()

    server.behaviour = speak_until_gone
    with connected(server) as connection:
        stream = connection.stream(BODY)
        while stream.take() is None:
            pass
        stream.cancel()
        assert disconnection.wait(LONG_S)


def test_an_address_without_a_server_is_reported_at_once(server: FakeApiServer) -> None:
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


def test_a_list_of_models_without_an_end_is_not_read(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_written = 0

    def send(handler: ApiHandler) -> None:
        nonlocal bytes_written
        handler.begin("application/json")
        while not server.released.is_set():
            handler.wfile.write(b" " * 65536)
            bytes_written += 65536

    server.listing = send
    with connected(server) as connection:
        assert connection.models() == []
    assert bytes_written < 10 * LIST_BYTES_MAX


@pytest.mark.parametrize("listing", [fake.drip, fake.drip_content])
def test_a_list_of_models_that_comes_byte_by_byte_is_given_up(server: FakeApiServer, listing: Any) -> None:
    server.listing = listing
    with (
        connected(server, first_s=SHORT_S) as connection,
        pytest.raises(ConnectionRefused, match=r"no list of its models within 0.2 s"),
    ):
        connection.models()


@pytest.mark.parametrize("text", ["[" * 200_000, '{"data": ' + "[" * 100 + "]" * 100 + "}", '{"data": 7}', "{", "\xff"])
def test_a_list_that_is_none_names_no_model(server: FakeApiServer, text: str) -> None:
    server.listing = lambda handler: handler.reply(200, text)
    with connected(server) as connection:
        assert connection.models() == []


def test_names_of_models_are_text_that_can_be_sent_on(server: FakeApiServer) -> None:
    server.models = ["a\ud800b"]
    with connected(server) as connection:
        assert connection.models() == [ServedModel("a\ufffdb", "tests")]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
def test_a_compressed_reply_is_not_expanded(server: FakeApiServer, encoding: str) -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    assert len(bomb) < 200_000

    def send(handler: ApiHandler, *_: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Encoding", encoding)
        handler.send_header("Content-Length", str(len(bomb)))
        handler.end_headers()
        handler.wfile.write(bomb)

    server.listing = server.behaviour = send
    with connected(server) as connection:
        with pytest.raises(
            ConnectionRefused, match=rf"the reply is compressed \({encoding}\), which was not asked for"
        ):
            connection.models()
        with pytest.raises(AnswerLost, match="is compressed"):
            pieces(connection)
    assert server.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("reply", [fake.drip, fake.drip_content])
def test_an_answer_that_comes_byte_by_byte_is_lost_and_its_connection_ends(server: FakeApiServer, reply: Any) -> None:
    disconnection = threading.Event()

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        try:
            reply(handler)
        finally:
            disconnection.set()

    error = failure(server, behave, first_s=SHORT_S, whole_s=SHORT_S)
    assert "0.2 s" in str(error)
    assert reply is fake.drip or disconnection.wait(LONG_S)


@pytest.mark.parametrize("fields", [{}, event(), {"usage": {"prompt_tokens": 3}}, event(""), {"model": "x"}])
def test_only_text_is_progress(server: FakeApiServer, fields: dict[str, Any]) -> None:
    def send_for_ever(handler: ApiHandler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(event("a "))
        while not server.released.is_set():
            handler.send(fields)

    assert "no more text within 0.2 s" in str(failure(server, send_for_ever, next_s=SHORT_S))


def test_halves_of_a_character_in_two_events_are_joined(server: FakeApiServer) -> None:
    def speak(handler: ApiHandler, body: dict[str, Any]) -> None:
        handler.begin()
        for text in ("a \ud83d", "\ude00 b", "\ud800c", "\udc00", "d\ud83d"):
            handler.send(event(text))
        handler.send(event(finish_reason="stop"))

    server.behaviour = speak
    with connected(server) as connection:
        assert "".join(piece.text for piece in pieces(connection)) == "a \U0001f600 b\ufffdc\ufffdd"


def test_texts_of_a_server_can_be_sent_on(server: FakeApiServer) -> None:
    assert str(failure(server, fake.refuse(400, "no \ud800"))).encode()
    assert str(failure(server, fake.refuse(503, "no \udfff"))).encode()


def test_a_reply_that_cannot_be_read_is_one_lost_answer(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "piece_of", lambda event: 1 // 0)
    error = failure(server, fake.speak)
    assert isinstance(error, AnswerLost)
    assert "its reply cannot be read: ZeroDivisionError" in str(error)
