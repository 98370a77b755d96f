"""Server with an OpenAI-compatible API, of the standard library alone, whose behaviour the test sets, good or bad."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import cv2
import numpy as np

from tests.support.http_server import LoopbackServer, QuietHandler

MODEL = "tiny"
TEXT = ("a ", "red ", "circle")
CREATED = 1_700_000_000
LIKELY = {"yes": -0.1, "no": -3.0, "maybe": -4.0}


HEAD: dict[str, Any] = {"id": "chatcmpl-1", "created": CREATED, "model": MODEL}
"""Fields at the beginning of all replies."""


def event(text: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a streamed reply."""
    choice: dict[str, Any] = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": None}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice | fields]}


class FakeApiServer(LoopbackServer):
    """Its `behaviour` is called with the handler and the request's body for each chat completion, and replies.

    `bodies` are the requests so far, `headers` those of the last one; `models` is what it lists, as `owner`, unless
    `listing` replies in its place. As "vllm"
    it keeps pictures by their `uuid` in `cache`; else it refuses the field. A stalled request waits for `released`.
    """

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.models: list[str] = [MODEL]
        self.owner = "tests"
        self.cache: dict[str, dict[str, str]] = {}
        self.behaviour: Callable[[ApiHandler, dict[str, Any]], None] = speak
        self.listing: Callable[[ApiHandler], None] | None = None
        self.released = threading.Event()
        self.arrivals = threading.Semaphore(0)
        self.hung_up = threading.Semaphore(0)
        super().__init__(ApiHandler, port)
        self._server.fake = self  # type: ignore[attr-defined]
        self.url = f"{self.address}/v1"

    def close(self) -> None:
        self.released.set()
        super().close()

    def pictures(self, request: int = -1) -> list[np.ndarray]:
        """The pictures of a request, uint8 [H, W, 3] BGR."""
        parts = self.bodies[request]["messages"][-1]["content"]
        images = [part["image_url"] or self.cache[part["uuid"]] for part in parts if part["type"] == "image_url"]
        urls = [picture["url"] for picture in images]
        jpegs = [base64.b64decode(url.removeprefix("data:image/jpeg;base64,"), validate=True) for url in urls]
        return [cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR) for jpeg in jpegs]

    def texts(self, request: int = -1) -> list[str]:
        """The texts of a request, in order."""
        parts = self.bodies[request]["messages"][-1]["content"]
        return [part["text"] for part in parts if part["type"] == "text"]


class ApiHandler(QuietHandler, BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    fake: FakeApiServer

    def do_GET(self) -> None:
        fake = self.server.fake  # type: ignore[attr-defined]
        fake.headers = dict(self.headers)
        if fake.listing is not None:
            self.fake = fake
            try:
                fake.listing(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            return
        if self.path != "/v1/models":
            self.reply(404, {"error": {"message": "no such path"}})
            return
        entry = {"object": "model", "created": CREATED, "owned_by": fake.owner}
        self.reply(200, {"object": "list", "data": [{"id": name, **entry} for name in fake.models]})

    def do_POST(self) -> None:
        self.fake = self.server.fake  # type: ignore[attr-defined]
        body = json.loads(self.content())
        self.fake.headers = dict(self.headers)
        self.fake.bodies.append(body)
        self.fake.arrivals.release()
        problem = self._keep_pictures(body)
        try:
            if problem is None:
                self.fake.behaviour(self, body)
            else:
                self.reply(*problem)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _keep_pictures(self, body: dict[str, Any]) -> tuple[int, object] | None:
        """Keep the pictures of a request by their names as vLLM does; returns the error about them."""
        contents = [message["content"] for message in body.get("messages", [])]
        parts = [part for content in contents for part in content if isinstance(part, dict) and "image_url" in part]
        if self.fake.owner != "vllm":
            odd = [part for part in parts if part.keys() - {"type", "image_url"}]
            return (422, {"detail": "Unexpected keys in the request: {'uuid'}"}) if odd else None
        for at, part in enumerate(parts):
            if part["image_url"] is not None:
                self.fake.cache[part.get("uuid", "")] = part["image_url"]
            elif part["uuid"] not in self.fake.cache:
                problem = f"Cache miss for image at index {at} but data is not provided."
                return 400, {"error": {"message": problem, "type": "BadRequestError", "param": None, "code": 400}}
        return None

    def reply(self, status: int, body: object, kind: str = "application/json", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self, kind: str = "text/event-stream") -> None:
        """Begin a stream, which ends with the connection."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send(self, data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()


Behaviour = Callable[[ApiHandler, dict[str, Any]], None]
"""Reply to one chat completion, whose body is given."""


def speak(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Stream an answer; to a question with log-probabilities, yes."""
    handler.begin()
    handler.wfile.write(b": a comment\n\n")
    if body.get("logprobs"):
        top = [{"token": token, "logprob": chance} for token, chance in LIKELY.items()]
        handler.send(event("yes", logprobs={"content": [{"token": "yes", "logprob": -0.1, "top_logprobs": top}]}))
    else:
        for text in TEXT:
            handler.send(event(text))
    handler.send(event(finish_reason="stop"))
    usage = {"prompt_tokens": 90, "completion_tokens": 4, "total_tokens": 94}
    handler.send({**event(), "choices": [], "usage": usage})
    handler.send("[DONE]")


def stall(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Begin an answer, and hang."""
    handler.begin()
    handler.send(event("a "))
    handler.fake.released.wait()


def hang(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Never reply."""
    handler.fake.released.wait()
    handler.close_connection = True


def break_off(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Close the connection in the middle of an answer."""
    handler.begin()
    handler.send(event("a "))


def speak_for_ever(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Ignore the greatest number of tokens, and never say the same twice."""
    handler.begin()
    numbers = itertools.count()
    while not handler.fake.released.is_set():
        handler.send(event("".join(f"and so on to {next(numbers)} " for _ in range(50))))


def speak_in_a_loop(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Say the same again and again, in pieces of 7 characters, until the client closes the connection; then release
    `hung_up`."""
    handler.begin()
    text = "Two men. " + "a red car, " * 700
    try:
        while not handler.fake.released.is_set():
            for at in range(0, len(text), 7):
                handler.send(event(text[at : at + 7]))
    except OSError:
        handler.fake.hung_up.release()


def drip(handler: ApiHandler) -> None:
    """Send header after header, each within any time limit between two bytes."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not handler.fake.released.wait(0.02):
        handler.wfile.write(b"X: y\r\n")


def drip_content(handler: ApiHandler) -> None:
    """Send JSON byte by byte without an end."""
    handler.begin("application/json")
    while not handler.fake.released.wait(0.02):
        handler.wfile.write(b" ")


def send_for_ever(handler: ApiHandler) -> None:
    """Send JSON without an end, as fast as possible."""
    handler.begin("application/json")
    while not handler.fake.released.is_set():
        handler.wfile.write(b" " * 65536)


def fail_within(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Report an error in the middle of an answer."""
    handler.begin()
    handler.send(event("a "))
    handler.send({"error": {"message": "out of memory", "code": 500}})


def speak_at_once(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Reply without streaming, as some servers do."""
    message = {"role": "assistant", "content": "".join(TEXT)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    handler.reply(200, {**HEAD, "object": "chat.completion", "choices": [choice]})


def refuse(status: int, message: str = "no", **headers: str) -> Behaviour:
    """Reply with an error."""
    return lambda handler, body: handler.reply(status, {"error": {"message": message}}, **headers)


def reply(body: object, kind: str = "application/json", status: int = 200) -> Behaviour:
    """Reply with a whole body, as JSON unless it is text."""
    return lambda handler, _: handler.reply(status, body, kind)


def send_events(*events: object, end: str = "data: [DONE]\n\n", before: bytes = b"") -> Behaviour:
    """Stream these events; `before` and `end` are written as they are."""

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.wfile.write(before)
        for data in events:
            handler.send(data)
        handler.wfile.write(end.encode())

    return behave


UNEXPECTED = {"error": "Unexpected endpoint or method. (POST /api/chat/completions). Returning 200 anyway"}
"""Reply of LM Studio to a wrong path, with status 200."""


def refuse_fields(refused: Mapping[str, object], status: int = 400) -> Behaviour:
    """Answer requests that have none of the `refused` fields; to others reply with the field's error: a message, or a
    whole body."""

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        name = next((name for name in refused if name in body), None)
        if name is None:
            speak(handler, body)
        else:
            error = refused[name]
            handler.reply(status, {"error": {"message": error}} if isinstance(error, str) else error)

    return behave


def show_page(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Reply with a web page."""
    handler.reply(200, "<html>welcome</html>", "text/html; charset=utf-8")


@contextmanager
def api_server() -> Iterator[FakeApiServer]:
    """A server that runs inside the block."""
    server = FakeApiServer()
    try:
        yield server
    finally:
        server.close()
