"""OpenAI-compatible endpoint: `/v1/models` lists the cameras, `/v1/chat/completions` asks one.

A message has the question as text, and names the camera as the model or as a part `{"type": "video_url", "video_url":
{"url": "camera://NAME"}}`. Shapes of requests and replies: the OpenAI API reference, "Chat Completions".
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from stream.answer.model import without_thoughts
from stream.events import SideAnswer, SideText
from stream.extensions.web.access import WebAccess
from stream.extensions.web.chat.questions import QuestionRefused, chosen_camera, named_cameras
from stream.extensions.web.hub import Hub
from stream.untrusted import QUERY_LIMIT_CHARS

BODY_BYTES_MAX = 256 * 1024

TURNS_MAX = 100

SCHEME = "camera"

ONLY_CAMERAS = (
    'this endpoint shows its own cameras; name one as "model", or by a part '
    '{"type": "video_url", "video_url": {"url": "camera://NAME"}}'
)

_LAST = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)s?")


class Place(msgspec.Struct):
    """Address of a part of a message."""

    url: str


class Part(msgspec.Struct):
    """Part of a message: text, or the address of a camera."""

    type: str
    text: str | None = None
    video_url: Place | None = None


class ChatMessage(msgspec.Struct):
    """Message of a conversation."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    """Options of a reply in pieces."""

    include_usage: bool = False


class ChatRequest(msgspec.Struct):
    """Body of a request. Sampling parameters are those of the run: others are ignored."""

    messages: list[ChatMessage]
    model: str = ""
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(ChatRequest)


@dataclass(frozen=True, slots=True)
class CameraQuestion:
    """Question to a camera. `last_s`: the time to look back, if the client named one."""

    camera: str
    query: str
    last_s: float | None


def read_request(body: bytes, cameras: Mapping[str, Any]) -> tuple[ChatRequest, CameraQuestion]:
    """Return a request, and its question to one of `cameras`, or to the only one without a name. Raises
    QuestionRefused."""
    try:
        request = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise QuestionRefused(f"not a chat request: {error}", 400) from error
    if request.n not in (None, 1):
        raise QuestionRefused("a camera gives one answer; leave n out", 400)
    if request.tools:
        raise QuestionRefused("a camera calls no tools; leave tools out", 400)
    if request.response_format is not None and request.response_format.get("type", "text") != "text":
        raise QuestionRefused("a camera answers in text; leave response_format out", 400)
    if len(request.messages) > TURNS_MAX:
        raise QuestionRefused(f"a conversation has at most {TURNS_MAX} messages; leave the oldest out", 400)
    name, last_s = _camera_of(request)
    camera = chosen_camera(cameras, request.model if name is None else name)
    return request, CameraQuestion(camera, question_of(request.messages), last_s)


def _camera_of(request: ChatRequest) -> tuple[str | None, float | None]:
    """Return the camera that the newest `camera://` address names, and the time to look back; None without one."""
    choice: tuple[str | None, float | None] = None, None
    for message in request.messages:
        for part in message.content if isinstance(message.content, list) else ():
            if part.type == "text":
                continue
            if part.type != "video_url" or part.video_url is None:
                raise QuestionRefused(f"a part of type {part.type!r} is not taken: {ONLY_CAMERAS}", 400)
            choice = _read_address(part.video_url.url)
    return choice


def _read_address(url: str) -> tuple[str, float | None]:
    """Return name and `last` of camera://NAME?last=10s."""
    try:
        address = urlsplit(url)
        values = parse_qs(address.query, max_num_fields=4).get("last")
    except ValueError as error:
        raise QuestionRefused(f"not an address: {error}", 400) from error
    if address.scheme != SCHEME or not address.netloc:
        raise QuestionRefused(f"{url[:80]!r} is not taken: {ONLY_CAMERAS}", 400)
    if values is None:
        last = None
    else:
        last = _LAST.fullmatch(values[-1])
    if values is not None and last is None:
        raise QuestionRefused(f"last={values[-1][:20]} is not a time in seconds, such as last=10s", 400)
    return unquote(address.netloc), None if last is None else float(last[1])


def question_of(messages: list[ChatMessage]) -> str:
    """Return the question of a conversation: the last message of the user, after as many earlier turns, without their
    thoughts, as fit into QUERY_LIMIT_CHARS. Raises QuestionRefused if the last message is too long or not the user's.
    """
    turns = [(message.role, text) for message in messages if (text := _text_of(message))]
    if not turns or turns[-1][0] != "user":
        raise QuestionRefused("the last message has to be the user's question, as text", 400)
    query = turns[-1][1]
    if len(query) > QUERY_LIMIT_CHARS:
        raise QuestionRefused(f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(query)}", 400)
    history = ""
    for role, text in reversed(turns[:-1]):
        longer = f"{role}: {text}\n{history}"
        if len(longer) + len(query) > QUERY_LIMIT_CHARS:
            break
        history = longer
    return f"{history}user: {query}" if history else query


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        text = "\n".join(part.text for part in message.content if part.text)
    else:
        text = message.content or ""
    if message.role == "assistant":
        text = without_thoughts(text)
    return text.strip()


def chat_routes(hubs: Mapping[str, Hub], access: WebAccess) -> list[BaseRoute]:
    """Return the routes of the endpoint for the cameras of `hubs`, by name."""
    cameras = named_cameras(hubs)

    async def models(_request: Request) -> Response:
        entries = [{"id": name, "object": "model", "created": 0, "owned_by": "arr-coc-stream"} for name in cameras]
        return JSONResponse({"object": "list", "data": entries})

    async def complete(request: Request) -> Response:
        if not access.control:
            raise QuestionRefused("this page only shows; it takes no questions. Give --web-control", 403)
        chat, question = read_request(await body_of(request, BODY_BYTES_MAX, f"; {ONLY_CAMERAS}"), cameras)
        hub = cameras[question.camera]
        if not chat.stream:
            return JSONResponse(_completion(question, await hub.sides.answer(hub.monitor, question.query)))
        pieces = hub.sides.ask(hub.monitor, question.query)
        first = await anext(pieces)  # a refusal becomes the status of the reply
        wants_usage = chat.stream_options is not None and chat.stream_options.include_usage
        return StreamingResponse(_stream(question, first, pieces, wants_usage), media_type="text/event-stream")

    return [
        Route("/v1/models", models),
        Route("/v1/chat/completions", complete, methods=["POST"]),
    ]


async def refusal_reply(_request: Request, refusal: Exception) -> Response:
    """Return the reply to a request that was refused."""
    assert isinstance(refusal, QuestionRefused)
    return JSONResponse(_error(refusal), refusal.status)


async def body_of(request: Request, limit: int, hint: str = "") -> bytes:
    """Return the body of a request. Raises QuestionRefused for one above the limit, of which no more is read."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise QuestionRefused(f"a request has at most {limit // 1024} KiB{hint}", 413)
    except ClientDisconnect as error:
        raise QuestionRefused("the request did not arrive whole", 400) from error
    return bytes(body)


async def _stream(
    question: CameraQuestion,
    first: SideText | SideAnswer,
    pieces: AsyncIterator[SideText | SideAnswer],
    wants_usage: bool,
) -> AsyncIterator[bytes]:
    """Yield the reply as server-sent events. A refusal in the middle is an event with the error, and ends it."""
    head = _head(question, "chat.completion.chunk")

    def chunk(delta: dict[str, str], finish: str | None = None, **fields: Any) -> bytes:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields})

    yield chunk({"role": "assistant", "content": ""})
    text = ""
    piece = first
    try:
        async with aclosing(pieces):  # type: ignore[type-var]
            while isinstance(piece, SideText):
                text += piece.text
                yield chunk({"content": piece.text})
                piece = await anext(pieces)
    except QuestionRefused as refusal:
        yield _event(_error(refusal))
        return
    if piece.text.startswith(text) and len(piece.text) > len(text):
        yield chunk({"content": piece.text[len(text) :]})
    elif text.strip() != piece.text.strip():  # a cut has made the pieces stale
        yield chunk({"content": f"\n\n{piece.text}"})
    yield chunk({}, "stop", arr_coc=_details(question, piece))
    if wants_usage:
        yield _event({**head, "choices": [], "usage": _usage(piece)})
    yield b"data: [DONE]\n\n"


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _completion(question: CameraQuestion, answer: SideAnswer) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text}
    return {
        **_head(question, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": _usage(answer),
        "arr_coc": _details(question, answer),
    }


def _head(question: CameraQuestion, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": question.camera}


def _usage(answer: SideAnswer) -> dict[str, int]:
    prompt_tokens = answer.prefilled_tokens
    completion_tokens = answer.text_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _details(question: CameraQuestion, answer: SideAnswer) -> dict[str, Any]:
    """Return what was shown: the frames and their media times, whether they reach back as far as was asked for, and
    the visual tokens."""
    reaches = question.last_s is None or answer.end_s - answer.start_s >= question.last_s
    return {
        "frame_index": answer.frame_index,
        "frames": answer.frames,
        "start_s": answer.start_s,
        "end_s": answer.end_s,
        "reaches_back": reaches,
        "tokens_used": answer.tokens_used,
        "tokens_total": answer.tokens_total,
    }


def _error(refusal: QuestionRefused) -> dict[str, Any]:
    """Return the body of an error, in OpenAI's shape."""
    kinds = {404: "not_found_error", 429: "rate_limit_error", 403: "permission_error"}
    kind = kinds.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(refusal), "type": kind, "code": refusal.status, "param": None}}
