"""Routes of the past: moments and pictures from the files of --remember, read-only and bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from stream import logs
from stream.errors import PastError
from stream.extensions.past.moments import KINDS
from stream.extensions.past.search import FoundMoment, PastReader, Query, Search

PAGE_MOMENTS = 24
"""Moments of one reply; a further request gets those before them."""

SPANS = 24
"""Bars of the timeline."""

QUERY_S = 2.0
"""Time limit of one query of a viewer."""

AT_ONCE = 2
"""Queries at once; further ones wait."""

WAITING_MAX = 16
"""Queries that wait; further ones are refused."""

NUMBER_MAX = 1 << 53
"""Limit of times and numbers in a request: JSON holds them exactly up to it."""

Result = TypeVar("Result")


class PastFiles:
    """The files that the cameras of a page write, each opened for its first query, and again after a failure.

    Belongs to the event loop, but for the queries, which run in threads.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._reported: set[str] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._paths)

    async def query(self, ask: Callable[[Sequence[PastReader]], Result], file: int | None = None) -> Result:
        """Return the result of a query of all files, or of one; those not yet written are left out.

        Raises PastError if there are too many queries, or no file can be read.
        """
        if self._waiting >= WAITING_MAX:
            raise PastError("too many search at once; try again in a moment")
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(self._run_query, ask, file)
        finally:
            self._waiting -= 1

    def _run_query(self, ask: Callable[[Sequence[PastReader]], Result], file: int | None) -> Result:
        readers: list[PastReader] = []
        problem: PastError | None = None
        try:
            for path in self._paths if file is None else self._paths[file : file + 1]:
                try:
                    readers.append(PastReader(path, QUERY_S))
                except PastError as error:
                    problem = error
            if not readers:
                raise problem or PastError("nothing is remembered")
            return ask(readers)
        finally:
            for reader in readers:
                reader.close()
                if reader.notice is not None and reader.path not in self._reported:
                    self._reported.add(reader.path)
                    text = reader.notice
                    logs.say(text, "warning", event="remember", path=reader.path, message=text.removeprefix("note: "))


def past_routes(files: PastFiles) -> list[BaseRoute]:
    """Return the routes of the past: moments as JSON, and the picture of one as JPEG."""

    async def moments(request: Request) -> Response:
        try:
            search, spans = _search(request)
            reply = await files.query(partial(_reply, search, spans))
        except PastError as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse(reply)

    async def picture(request: Request) -> Response:
        file = request.path_params["file"]
        moment = request.path_params["moment"]
        jpeg = None
        if file < len(files) and moment < NUMBER_MAX:
            try:
                jpeg = await files.query(lambda readers: readers[0].picture(moment), file)
            except PastError as error:
                return PlainTextResponse(f"{error}\n", 503)
        if jpeg is None:
            return PlainTextResponse("There is no such picture.\n", 404)
        return Response(jpeg, media_type="image/jpeg")

    return [Route("/past", moments), Route("/past/{file:int}/{moment:int}.jpg", picture)]


def _search(request: Request) -> tuple[Search, int]:
    """Return the search that a request asks for, and the number of spans to count, 0 for none. Raises PastError."""
    params = request.query_params
    since_ms = _number(params.get("since"), 0)
    until = params.get("until")
    before = params.get("before")
    kinds = tuple(kind for kind in params.getlist("kind") if kind in KINDS)
    search = Search(
        query=Query.of(params.get("words", "")),
        since_ms=since_ms,
        until_ms=None if until is None else max(_number(until, 0), since_ms + 1),
        cameras=tuple(params.getlist("camera")[:64]),
        kinds=kinds,
        before=None if before is None else (_number(before, 0), NUMBER_MAX),
        limit=PAGE_MOMENTS + 1,
    )
    return search, SPANS if before is None else 0


def _number(text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return max(0, min(int(text[:20]), NUMBER_MAX))
    except ValueError:
        raise PastError(f"{text[:40]!r} is no time in milliseconds") from None


def _reply(search: Search, spans: int, readers: Sequence[PastReader]) -> dict[str, Any]:
    """Return the reply to a search: moments, the newest first, whether there are `more`, and, for its first page, the
    numbers of moments in equal spans of the time and the names of all cameras.

    Without a beginning, the time begins with the first moment that is found; without an end, it ends now.
    """
    matches = sorted(
        ((file, moment) for file, reader in enumerate(readers) for moment in reader.find(search)),
        key=lambda match: (match[1].unix_ms, match[1].id),
        reverse=True,
    )
    moments = [_moment_fields(file, moment) for file, moment in matches[:PAGE_MOMENTS]]
    reply: dict[str, Any] = {"moments": moments, "more": len(matches) > PAGE_MOMENTS}
    if not spans:
        return reply
    times = [span for reader in readers if (span := reader.span(search)) is not None]
    if not search.since_ms and times:
        search = replace(search, since_ms=min(first for first, _, _ in times))
    if search.until_ms is None:
        now_ms = time.time_ns() // 1_000_000
        search = replace(search, until_ms=1 + max([now_ms, *(last for _, last, _ in times)]))
    counts = [reader.count(search, spans) for reader in readers]
    return {
        **reply,
        "since": search.since_ms,
        "until": search.until_ms,
        "count": sum(count for _, _, count in times),
        "spans": [sum(column) for column in zip(*counts, strict=True)],
        "cameras": sorted({name for reader in readers for name in reader.cameras()}),
    }


def _moment_fields(file: int, moment: FoundMoment) -> dict[str, Any]:
    """Return a moment for viewers: with the address of its picture, and without what only files need."""
    values = asdict(moment)
    if moment.picture:
        picture = f"/past/{file}/{moment.id}.jpg"
    else:
        picture = None
    for name in ("id", "source", "run", "frame_index", "start_s", "fields"):
        del values[name]
    return {"key": f"{file}/{moment.id}", **values, "picture": picture}
