"""Client of a run's web page: the cameras, their answers and pictures, and questions to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec

from stream.errors import ConfigError, StreamError
from stream.protocol.pictures import ReceivedPicture, unpack_picture
from stream.untrusted import MIB, cut_to, printable

REPLY_BYTES_MAX = 16 * MIB

CONNECT_LIMIT_S = 5.0

ANSWER_LIMIT_S = 330.0
"""Time that the page may take to answer a question; it gives up earlier."""

REASON_CHARS_MAX = 500

NOT_REMEMBERED = "this page remembers nothing; start its run with --remember FILE.sqlite"


class PageError(StreamError):
    """The page cannot be reached, or refuses a request."""


class CameraPage:
    """Page of running cameras at `address`, such as http://127.0.0.1:8090/?token=SECRET. `token` counts if the address
    has none. An asynchronous context manager.

    Raises ConfigError for what is no address. Every method raises PageError.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(address)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(f"{address!r} is not the address of a page; write for example http://127.0.0.1:8090")
        token = parse_qs(parts.query).get("token", [token])[-1]
        self.base = f"{parts.scheme}://{parts.netloc}"
        self._client = httpx2.AsyncClient(
            base_url=self.base,
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S),
            trust_env=False,
        )

    async def __aenter__(self) -> CameraPage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def problem(self) -> str | None:
        """Return why the page does not answer, in one line; None if it does, within CONNECT_LIMIT_S."""
        try:
            await asyncio.wait_for(self.cameras(), CONNECT_LIMIT_S)
        except asyncio.TimeoutError:
            return f"the page at {self.base} does not answer within {CONNECT_LIMIT_S:.0f} s; is it the page of a run?"
        except PageError as error:
            return str(error)
        return None

    async def cameras(self) -> list[dict[str, Any]]:
        """Return the state of each camera."""
        return _list(await self._json("GET", "/api/cameras"), "cameras")

    async def answers(self, camera: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest events of a camera, oldest first."""
        return _list(await self._json("GET", "/api/answers", params=_parameters(camera, limit=limit)), "events")

    async def picture(self, camera: str, width: int) -> ReceivedPicture:
        """Return the newest picture of a camera, at most `width` pixels wide, with its map."""
        return unpack_picture(await self._send("GET", "/api/picture", params=_parameters(camera, width=width, map=1)))

    async def ask(self, camera: str, question: str) -> dict[str, Any]:
        """Return the reply to a question about the newest frame, as /v1/chat/completions gives it."""
        body = {"model": camera, "messages": [{"role": "user", "content": question}]}
        return await self._json("POST", "/v1/chat/completions", json=body)

    async def watches(self, camera: str) -> list[dict[str, Any]]:
        """Return the standing questions of a camera."""
        return _list(await self._json("GET", "/api/watches", params=_parameters(camera)), "watches")

    async def add_watch(self, camera: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Add a standing question with these fields; return its name and all of them."""
        return await self._json("POST", "/api/watches", json={"camera": camera, **fields})

    async def remove_watch(self, camera: str, name: str) -> dict[str, Any]:
        """Remove a standing question; return its name and the others."""
        return await self._json("DELETE", "/api/watches", params={**_parameters(camera), "name": name})

    async def past(self, words: str, since_ms: int, camera: str) -> dict[str, Any]:
        """Return the newest moments with these words, after this Unix time in milliseconds."""
        params = {"words": words, "since": since_ms, **_parameters(camera)}
        return await self._json("GET", "/past", missing=NOT_REMEMBERED, params=params)

    async def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        body = await self._send(method, path, **request)
        try:
            fields = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise PageError(f"{self.base} sent what is no JSON: {error}; is it the page of a run?") from error
        if not isinstance(fields, dict):
            raise PageError(f"{self.base} sent another kind of JSON; is it the page of a run?")
        return fields

    async def _send(self, method: str, path: str, *, missing: str | None = None, **request: Any) -> bytes:
        """Return the body of a reply. Raises PageError for an error, with `missing` if the page has no such path, and
        for a body above REPLY_BYTES_MAX."""
        try:
            async with self._client.stream(method, path, **request) as reply:
                body = bytearray()
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > REPLY_BYTES_MAX:
                        raise PageError(f"{self.base} sent more than {REPLY_BYTES_MAX // MIB} MiB")
        except httpx2.HTTPError as error:
            raise PageError(
                f"the page at {self.base} cannot be reached ({error or type(error).__name__}); start a run with --web"
            ) from error
        if reply.status_code == 401:
            wants = "has another token" if "authorization" in self._client.headers else "needs its token"
            raise PageError(f"the page at {self.base} {wants}; give it in ARR_COC_WEB_TOKEN")
        if reply.status_code == 404 and missing is not None:
            raise PageError(missing)
        if reply.is_error:
            raise PageError(_reason(bytes(body)) or f"the page at {self.base} replied {reply.status_code}")
        return bytes(body)


def _parameters(camera: str, **params: int) -> dict[str, Any]:
    if camera:
        return {"camera": camera, **params}
    return dict(params)


def _list(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PageError(f"the page sent no {name}; is it the page of a run of the same version?")
    return entries


def _reason(body: bytes) -> str | None:
    """Return the message of an error's body; None without one."""
    try:
        error = msgspec.json.decode(body)["error"]
        return cut_to(printable(error if isinstance(error, str) else str(error["message"])), REASON_CHARS_MAX)
    except (msgspec.DecodeError, UnicodeError, RecursionError, KeyError, TypeError, ValueError):
        return None
