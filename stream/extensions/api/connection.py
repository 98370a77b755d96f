"""Connection to an OpenAI-compatible server: streamed chat completions, and its errors with remedies.

The events are those of https://platform.openai.com/docs/api-reference/chat-streaming (server-sent events, each a JSON
object, at last `[DONE]`). All input is held to limits: the server is not trusted.
"""

from __future__ import annotations

import itertools
import logging
import queue
import re
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from arr_coc.errors import ArrCocError, ModelError
from stream.control import describe
from stream.errors import AnswerLost, ConfigError, ConnectionRefused, StreamError
from stream.extensions.api.address import CHAT, ApiAddress
from stream.extensions.api.fields import RequestFields, refused_field
from stream.extensions.api.replies import (
    LINE_BYTES_MAX,
    QUOTED_CHARS_MAX,
    ChatPiece,
    ServedModel,
    error_in,
    events_of,
    first_bytes,
    holds_choices,
    json_object,
    message_in,
    piece_of,
    served_models,
    whole_characters,
)
from stream.transport.http_replies import start_of, until
from stream.untrusted import replace_surrogates

WAIT_S = 0.05
"""Longest wait for a piece before the next check whether the reply is still wanted."""

LIST_BYTES_MAX = 4 << 20
"""Longest list of models; that of a service with 340 models has 0.8 MB."""

PIECES_WAITING_MAX = 64

BACK_OFF_S = 0.5
BACK_OFF_MAX_S = 30.0
"""Pause after a loss, which doubles with each further one, and the longest pause."""

RETRY_AFTER_MAX_S = 120.0
"""Longest pause that a server may ask for."""

_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
"""Prefix of an operating system's error, which is of no use to most users."""

KEY_REFUSED = (401, 403)

LACKS_MODEL = "lacks the model"
"""Part of the error of a server that does not know the model."""

WRONG_PATH = re.compile(
    r"unexpected endpoint|(unknown|invalid|unsupported|no such) (api )?(end ?point|path|route)\b"
    r"|^(path|route|url|resource|page|end ?point)? ?not found",
    re.IGNORECASE,
)
"""Words of an error about the address; LM Studio reports it with status 200 ("Unexpected endpoint or method")."""

EVENT_STARTS = (b"data", b"event", b"id", b"retry", b":")
"""Beginnings of a stream of events: its fields, and comments
(https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

LOST_STATUSES = (408, 409, 425, 429)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Time limits in seconds: for a connection, the first piece of a reply, each next piece, and the whole reply."""

    connect_s: float
    first_s: float
    next_s: float
    whole_s: float


class ApiConnection:
    """Connections to one server, for any thread. `fields`: those of its requests."""

    def __init__(self, address: ApiAddress, limits: ApiLimits, fields: RequestFields | None = None) -> None:
        self.address = address
        self.limits = limits
        self.fields = fields or RequestFields()
        self._losses = 0
        self._answered = False
        headers = {"Accept-Encoding": "identity"}
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        longest_s = max(limits.first_s, limits.next_s)
        timeout = httpx2.Timeout(longest_s, connect=limits.connect_s)
        self._client = httpx2.Client(headers=headers, timeout=timeout, trust_env=not address.local)
        self.close = weakref.finalize(self, self._client.close)
        """Close the connections, at the latest when this object is garbage-collected."""

    def models(self) -> list[ServedModel]:
        """Return the models that the server lists; none if it lists none, or sends a list beyond the limits.

        Raises ConnectionRefused if no server replies within `limits.first_s`, ConfigError if it has no such API, or
        refuses the key.
        """
        reply: Future[list[ServedModel]] = Future()
        threading.Thread(target=self._list_models, args=(reply,), name="api", daemon=True).start()
        try:
            return reply.result(self.limits.first_s)
        except WaitedTooLong:
            raise self._absent(f"no list of its models within {self.limits.first_s:g} s") from None

    def _list_models(self, reply: Future[list[ServedModel]]) -> None:
        """Request the list of models, in a thread, as a server may send it byte by byte."""
        try:
            with self._client.stream("GET", f"{self.address.base}/models") as response:
                text = self._start_of(response, LIST_BYTES_MAX)
                if response.status_code in KEY_REFUSED or _is_page(response):
                    raise self._refusal(response, text, {})
            error = message_in(text) if response.is_success else ""
            if WRONG_PATH.search(error):
                raise self._misdirected(error)
            reply.set_result(served_models(text) if response.is_success else [])
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reply.set_exception(self._absent(_reason(error)))
        except Exception as error:
            reply.set_exception(error)

    def _absent(self, reason: str) -> ConnectionRefused:
        return ConnectionRefused(
            f"no server at {self.address.base} ({reason}); start it, or correct the address after --api"
        )

    def stream(self, body: dict[str, Any], arrived: threading.Event | None = None) -> ChatStream:
        """Send a chat completion; return the stream of its pieces. `arrived` is set with each of them."""
        return ChatStream(self, {**body, "stream": True, "stream_options": {"include_usage": True}}, arrived)

    def receive(self, body: dict[str, Any]) -> Iterator[ChatPiece]:
        """Yield the pieces of a streamed reply as they come; for the thread that waits.

        A request that is refused for a field that it can do without is sent again.

        Raises AnswerLost if the next request may succeed, and ModelError or ConfigError if the user must act.
        """
        while True:
            request = self.fields.applied(body)
            try:
                yield from self._send(request)
                return
            except ModelError as error:
                if not self.fields.learn(request, str(error)):
                    raise

    def _send(self, request: dict[str, Any]) -> Iterator[ChatPiece]:
        """Send a request as it is; yield the pieces of the reply. Raises as `receive`."""
        try:
            with self._client.stream("POST", f"{self.address.base}{CHAT}", json=request) as response:
                if not response.is_success or _is_page(response):
                    raise self._refusal(response, self._start_of(response), request)
                yield from self._pieces(response, request)
        except httpx2.InvalidURL as error:
            raise ConfigError(f"{self.address.base} is no address: {error}") from None
        except httpx2.HTTPError as error:
            raise self.note_loss(_reason(error)) from None

    def _chunks(self, response: httpx2.Response) -> Iterator[bytes]:
        """Yield the bytes of a reply as they come, for at most `limits.whole_s`. Raises HTTPError."""
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise httpx2.DecodingError(f"the reply is compressed ({encoding[:20]}), which was not asked for")
        try:
            yield from until(response.iter_raw(), time.monotonic() + self.limits.whole_s)
        except TimeoutError:
            raise httpx2.ReadError(f"no end of the reply within {self.limits.whole_s:g} s") from None

    def _start_of(self, response: httpx2.Response, bytes_max: int = LINE_BYTES_MAX) -> str:
        return start_of(self._chunks(response), bytes_max).decode("utf-8", "replace")

    def _pieces(self, response: httpx2.Response, request: dict[str, Any]) -> Iterator[ChatPiece]:
        """Yield the pieces of a reply with a good status, which may hold an error or be no chat completion at all.

        Its first character says what it is, as the content types of some servers are wrong.
        """
        chunks = self._chunks(response)
        beginning = first_bytes(chunks)
        chunks = itertools.chain([beginning], chunks)
        if not beginning.startswith(EVENT_STARTS):
            text = start_of(chunks, LINE_BYTES_MAX).decode("utf-8", "replace")
            if not text.startswith(("{", "[")):
                raise self._foreign(text)
            reply = json_object(text)  # one that was not streamed
            if (problem := error_in(reply)) is not None:
                raise self._reported(problem, request)
            if "choices" not in reply:
                raise self._foreign(text)
            if not holds_choices(reply):
                raise self.note_loss("its reply holds no answer")
            whole, _ = piece_of(reply)
            yield replace(whole, text=whole_characters(whole.text)[0])
            return
        half = ""
        finished = answers = False
        for data in events_of(chunks):
            if data == "[DONE]":
                finished = True
                break
            event = json_object(data)
            if (error := error_in(event)) is not None:
                raise self._reported(error, {} if answers else request)
            piece, ended = piece_of(event)
            text, half = whole_characters(half + piece.text)
            finished = finished or ended
            answers = answers or holds_choices(event)
            yield replace(piece, text=text)
        if not finished:
            raise self.note_loss("the reply broke off")
        if not answers:
            raise self.note_loss("its reply holds no answer")

    def _reported(self, message: str, request: dict[str, Any]) -> ArrCocError | StreamError:
        """Return the error for one that the server reports within a reply, under a good status.

        `request` as it was sent, empty once a part of the answer has come.
        """
        if refused_field(request, message) is not None:
            return self._refused(self._quote(message), request)
        if WRONG_PATH.search(message) and not self._answered:
            return self._misdirected(message)
        return self.note_loss(f"the server reports: {self._quote(message)}")

    def _foreign(self, text: str) -> StreamError:
        """Return the error for a reply that is no chat completion; after a good one it is the loss of an answer."""
        if self._answered:
            return self.note_loss(f"its reply is no chat completion: {self._quote(text)}")
        return self._misdirected(text or "an empty reply")

    def _misdirected(self, text: str) -> ConfigError:
        return ConfigError(
            f"{self.address.base} has no chat completions, and answers: {self._quote(text)}; such an address usually "
            "ends in /v1, so correct the one after --api"
        )

    def note_loss(self, reason: str, wait_s: float | None = None) -> AnswerLost:
        """Return the error of one lost answer; its pause grows with each loss in a row."""
        self._losses += 1
        backed_off_s = min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(self._losses - 1, 10))
        return AnswerLost(f"{self.address.base}: {reason}", wait_s=backed_off_s if wait_s is None else wait_s)

    def note_success(self) -> None:
        """Note that a reply was complete."""
        self._losses = 0
        self._answered = True

    def _refusal(self, response: httpx2.Response, text: str, request: dict[str, Any]) -> ArrCocError | StreamError:
        """Return the error for a refused request, as it was sent."""
        status = response.status_code
        base = self.address.base
        if status in LOST_STATUSES or status >= 500:
            return self.note_loss(
                f"{status} {self._quote(message_in(text) or response.reason_phrase)}", _pause_s(response)
            )
        if _is_page(response):
            return ConfigError(
                f"{base} answers with a web page, not as an OpenAI-compatible server; such an address usually ends in "
                "/v1, so correct the one after --api"
            )
        if status in KEY_REFUSED:
            if self.address.key is not None:
                refusal = "refuses the key"
            else:
                refusal = "wants a key"
            return ConfigError(f"{base} {refusal} ({status}); put the right one into the key's environment variable")
        message = self._quote(message_in(text) or response.reason_phrase)
        if status == 404 and "model" not in message.lower():
            return ConfigError(f"{base} has no chat completions ({status} {message}); correct the address after --api")
        if status == 404:
            return ModelError(f"{base} {LACKS_MODEL}: {message}", "name one that it serves with -m")
        if 300 <= status < 400:
            return ConfigError(f"{base} has moved ({status}); give --api the address that it redirects to")
        return self._refused(f"{status} {message}", request)

    def _refused(self, reason: str, request: dict[str, Any]) -> ModelError:
        field = refused_field(request, reason)
        remedy = "name a vision-language model with -m, or a smaller budget"
        if field is not None:
            remedy = f"leave the field out with -s 'api.omit=[\"{field}\"]'"
            if field in self.fields.extra:
                remedy = f"leave {field} out of api.extra"
        return ModelError(f"{self.address.base} refuses the request ({reason})", remedy)

    def _quote(self, text: str) -> str:
        """Return a text of the server as one short line without the key, which some servers repeat."""
        line = " ".join(replace_surrogates(text).split())
        if self.address.key is not None:
            line = line.replace(self.address.key, "…")
        if len(line) <= QUOTED_CHARS_MAX:
            return line
        return f"{line[: QUOTED_CHARS_MAX - 1]}…"


class ChatStream:
    """Reply that a separate thread receives, so that a server that hangs delays no other client."""

    def __init__(self, connection: ApiConnection, body: dict[str, Any], arrived: threading.Event | None = None) -> None:
        self._connection = connection
        self._arrived = arrived or threading.Event()
        self._pieces: queue.Queue[ChatPiece | Exception | None] = queue.Queue(PIECES_WAITING_MAX)
        self._cancellation = threading.Event()
        self._began_s = self._heard_s = time.monotonic()
        self._heard_text = self.ended = False
        threading.Thread(target=self._receive, args=(body,), name="api", daemon=True).start()

    def take(self, wait_s: float = WAIT_S) -> ChatPiece | None:
        """Return the next piece; None if none has come within `wait_s`, or the reply has `ended`.

        Raises the errors of `ApiConnection.receive`, and AnswerLost if a time limit has passed.
        """
        try:
            piece = self._pieces.get(timeout=wait_s)
        except queue.Empty:
            self._check_limits()
            return None
        if isinstance(piece, Exception):
            raise piece
        if piece is None:
            self.ended = True
            self._connection.note_success()
            return None
        if piece.text or piece.thought:  # an event without text is no progress: a server can send those for ever
            self._heard_s = time.monotonic()
            self._heard_text = True
        self._check_limits()
        return piece

    def cancel(self) -> None:
        """Stop the reply: the connection is closed with the next piece, or when its time limit has passed."""
        self._cancellation.set()

    def _check_limits(self) -> None:
        now_s = time.monotonic()
        limits = self._connection.limits
        if now_s - self._began_s > limits.whole_s:
            raise self._connection.note_loss(f"no end of the answer within {limits.whole_s:g} s")
        if self._heard_text:
            limit_s = limits.next_s
        else:
            limit_s = limits.first_s
        if now_s - self._heard_s > limit_s:
            raise self._connection.note_loss(f"no {'more ' if self._heard_text else ''}text within {limit_s:g} s")

    def _receive(self, body: dict[str, Any]) -> None:
        try:
            for piece in self._connection.receive(body):
                if not self._put(piece):
                    return
            self._put(None)
        except (ArrCocError, StreamError) as error:
            self._put(error)
        except Exception as error:  # invalid data of a server costs at most one answer
            log.debug("a reply cannot be read", exc_info=True)
            self._put(self._connection.note_loss(f"its reply cannot be read: {describe(error)}"))

    def _put(self, piece: ChatPiece | Exception | None) -> bool:
        """Queue a piece, an error or the end (None); return whether the reply is still wanted."""
        while not self._cancellation.is_set():
            try:
                self._pieces.put(piece, timeout=WAIT_S)
            except queue.Full:
                continue
            self._arrived.set()
            return True
        return False


def _is_page(response: httpx2.Response) -> bool:
    return "html" in str(response.headers.get("content-type", ""))


def _pause_s(response: httpx2.Response) -> float | None:
    """Return the pause that the server asks for, in seconds; None if it gives none."""
    try:
        wanted_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    if wanted_s >= 0:
        return min(wanted_s, RETRY_AFTER_MAX_S)
    return None


def _reason(error: Exception) -> str:
    """Return the text of an error of the HTTP library."""
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, httpx2.TimeoutException):
        return "no reply in time"
    if isinstance(error, httpx2.ConnectError):
        return f"cannot be reached: {_ERROR_NUMBER.sub('', str(error))}"
    return str(error) or type(error).__name__
