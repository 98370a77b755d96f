"""Events reach a real HTTP server, signed; a server that stalls, refuses or fails does not delay the run."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from msgspec import structs

from stream.config import Config
from stream.errors import ConfigError
from stream.events import ClipWritten
from stream.extensions.webhook.section import WebhookSection
from stream.extensions.webhook.sink import SECRET, Webhook, WebhookSink
from tests.support.events import answer, frame, look, match, summary, turned
from tests.support.http_server import DrippingServer, LoopbackServer, QuietHandler
from tests.support.network import LIMIT_S, free_port, until
from tests.support.sections import opened_sinks


class Server(LoopbackServer):
    """Server whose replies have the next of `statuses`, or 204, each once `go` is set."""

    def __init__(self) -> None:
        self.received: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        self.statuses: queue.Queue[int] = queue.Queue()
        self.go = threading.Event()
        self.go.set()
        self.count = 0
        server = self

        class Handler(QuietHandler, BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.content()
                server.count += 1
                server.received.put(({name.lower(): value for name, value in self.headers.items()}, body))
                assert server.go.wait(LIMIT_S)
                status = 204 if server.statuses.empty() else server.statuses.get()
                self.send_whole(status, b"", ("Location", "/elsewhere"))

        super().__init__(Handler)
        self.url = f"{self.address}/hook?token=hidden"

    def next(self) -> tuple[dict[str, str], dict[str, Any]]:
        headers, body = self.received.get(timeout=LIMIT_S)
        return headers, json.loads(body)

    def close(self) -> None:
        self.go.set()
        super().close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as http_server:
        yield http_server


def test_answers_and_changes_are_posted_as_in_a_jsonl(server: Server) -> None:
    sinks = opened_sinks(Config(webhook=WebhookSection(url=server.url)))
    kinds = []
    for event in (frame(0, 0.0), look(0.0), answer(0.5, "a cat"), match(1.0), summary()):
        for sink in sinks:
            sink.write(event)
        if not isinstance(event, (type(frame(0, 0.0)), type(look(0.0)))):
            headers, fields = server.next()
            kinds.append(fields["type"])
            assert "camera" not in fields, "the run is one of several"
            assert headers["content-type"] == "application/json"
            assert "webhook-signature" not in headers
    for sink in sinks:
        sink.close()
    assert kinds == ["answer", "match", "summary"]


def test_matches_and_the_names_of_their_files_are_posted(server: Server) -> None:
    server.go.clear()
    first = ClipWritten(match=1, watch="door", picture="a.jpg", video=None, start_s=0, end_s=0)
    events = [match(1.0, watch="door"), first, match(1.0, watch="yard"), structs.replace(first, video="a.mp4")]
    with closing(WebhookSink(server.url)) as sink:
        sink.write(answer(0.5, "a cat"))
        server.next()
        for event in events:
            sink.write(event)
        server.go.set()
        posted = [server.next()[1] for _ in range(3)]
    assert [(body["type"], body["watch"]) for body in posted] == [
        ("match", "door"),
        ("match", "yard"),
        ("clip", "door"),
    ]
    assert (posted[-1]["video"], sink.outbox.dropped) == ("a.mp4", 1)


def test_a_message_is_signed_with_the_secret(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"a key that only the sender has"
    for secret in (key.decode(), f"whsec_{base64.b64encode(key).decode()}"):
        monkeypatch.setenv(SECRET, secret)
        with closing(WebhookSink(server.url.replace("//", "//me:p%40ss@"))) as sink:
            sink.write(answer(0.5, "a cat"))
            headers, body = server.received.get(timeout=LIMIT_S)
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"me:p@ss"


def test_a_server_that_fails_is_asked_three_times(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(WebhookSink(server.url, retry_s=0.001)) as sink:
        for status in (500, 503, 204):
            server.statuses.put(status)
        sink.write(answer(0.5, "first"))
        assert [server.next()[1]["text"] for _ in range(3)] == ["first"] * 3
        for status in (500, 429, 502):
            server.statuses.put(status)
        sink.write(answer(1.0, "lost"))
        until(lambda: server.count == 6 and server.statuses.empty())
        sink.write(match(1.0))
        until(lambda: server.count == 7)
    loss_line, return_line = capsys.readouterr().err.splitlines()
    port = server.port
    assert loss_line.startswith(f"note: the webhook at http://127.0.0.1:{port} takes nothing: status 502; ")
    assert return_line == f"the webhook at http://127.0.0.1:{port} takes events again"


@pytest.mark.parametrize("status", [404, 302])
def test_a_refusal_is_reported_and_not_tried_again(
    server: Server, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server.statuses.put(status)
    with closing(WebhookSink(server.url, retry_s=0.001)) as sink:
        sink.write(answer(0.5, "a cat"))
        server.next()
        sink.write(match(0.5))
        assert server.next()[1]["type"] == "match"
    assert f"takes nothing: status {status}" in capsys.readouterr().err
    assert server.count == 2


def test_while_a_server_stalls_only_the_newest_of_a_kind_waits(server: Server) -> None:
    server.go.clear()
    with closing(WebhookSink(server.url, reply_limit_s=LIMIT_S)) as sink:
        sink.write(answer(0.0, "held"))
        assert server.next()[1]["text"] == "held"
        for number in range(1000):
            sink.write(answer(1.0, f"answer {number}"))
        sink.write(match(1.0))
        assert sink.outbox.dropped == 999
        server.go.set()
        assert server.next()[1]["text"] == "answer 999"
        assert server.next()[1]["type"] == "match"


def test_of_each_watch_the_newest_match_waits_and_silent_ones_are_not_posted(server: Server) -> None:
    server.go.clear()
    with closing(WebhookSink(server.url, silent=["quiet"], reply_limit_s=LIMIT_S)) as sink:
        sink.write(answer(0.0, "held"))
        assert server.next()[1]["text"] == "held"
        for number, watch in enumerate(("door", "gate", "quiet", "door")):
            sink.write(match(1.0, number, watch=watch))
        sink.write(turned(1.0))
        assert sink.outbox.dropped == 1
        server.go.set()
        posted = [server.next()[1] for _ in range(2)]
    assert sorted((body["watch"], body["match"]) for body in posted) == [("door", 3), ("gate", 1)]


def test_a_server_that_answers_byte_by_byte_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    with DrippingServer() as server:
        sink = WebhookSink(f"{server.address}/head", retry_s=0.001, reply_limit_s=0.3)
        sink.write(answer(1.0, "a cat"))
        outputs: list[str] = []
        until(lambda: outputs.append(capsys.readouterr().err) or "takes nothing: " in "".join(outputs))
        sink.close()


def test_a_server_that_stalls_too_long_is_given_up(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.go.clear()
    with closing(WebhookSink(server.url, retry_s=0.001, reply_limit_s=0.05)) as sink:
        sink.write(answer(0.0, "a cat"))
        until(lambda: server.count == 3)
        outputs: list[str] = []
        until(lambda: outputs.append(capsys.readouterr().err) or "timed out" in "".join(outputs))


def test_a_missing_server_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(WebhookSink(f"http://127.0.0.1:{free_port()}", retry_s=0.001)) as sink:
        sink.write(answer(0.0, "a cat"))
        sink.write(match(0.0))
        outputs: list[str] = []
        until(lambda: outputs.append(capsys.readouterr().err) or "".join(outputs))
    outputs.append(capsys.readouterr().err)
    (line,) = "".join(outputs).splitlines()
    assert "takes nothing: Connection refused; " in line


@pytest.mark.parametrize(
    "url", ["home", "ftp://home", "http://", "http://a:b:c", "http://home:0/", "http://me:secret@ x"]
)
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address; write for example https://") as caught:
        Webhook.of(url)
    assert "secret" not in str(caught.value)


def test_a_secret_that_was_cut_off_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not base64; copy it again"):
        Webhook.of("http://home", {SECRET: "whsec_abc"})
