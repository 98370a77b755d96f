"""The compare page: takes pictures and questions, and has them answered one job after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from arr_coc.types import REGION_SHAPES, TILE_PX
from stream.answer.request import words_of
from stream.control import describe
from stream.scenes.stills import STILLS, KnownAnswer
from stream.web.compare_job import (
    BUDGET_MAX,
    COLUMNS_MAX,
    ENCODES,
    STRATEGIES,
    TEXT_TOKENS_MAX,
    CompareEngine,
    CompareFailed,
    CompareJob,
    ComparisonRequest,
    make_job,
    read_compare_message,
)
from stream.web.uploads.decoder import SIDE_PX_MAX, PictureRefused
from stream.web.uploads.receiver import UPLOAD_BYTES_MAX, PictureUploads
from stream.web.uploads.store import PictureStore, Rgb, keyed
from stream.web.viewer import MessageRefused, RateLimit

JOBS_MAX = 16
"""Comparisons that may wait."""

CLIENTS_MAX = 32
"""Viewers of the compare page at a time."""

MESSAGES_WAITING = 4000
"""Messages that may wait for a viewer; one that does not read them is let go."""

MESSAGES_A_SECOND, MESSAGES_AT_ONCE = 5.0, 30.0

SEND_LIMIT_S = 20.0

LONGEST_PX = 1024
"""A larger picture is shrunk to this: 1024 tiles at most, which a CPU can still answer about with all tokens."""

TEXT_BYTES_MAX = 64 * 1024
"""Longest message of a viewer."""

REFUSED, CROWDED = 1008, 4001
"""Close codes, as of the live page."""

ONLY_SHOWS = "this page only shows; comparing takes this machine's time, and needs --web-control"


@dataclass(eq=False, slots=True)
class CompareClient:
    """A viewer of the compare page: its job, which waits or runs, and the messages for it."""

    outgoing: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MESSAGES_WAITING))
    job: CompareJob | None = None
    gone: bool = False

    def tell(self, topic: str, **fields: Any) -> None:
        """Leave a message; a viewer for which too many wait is gone."""
        try:
            self.outgoing.put_nowait(msgspec.json.encode({"topic": topic, **fields}))
        except asyncio.QueueFull:
            self.gone = True


class CompareDesk:
    """Pictures and jobs of all viewers of the compare page. Belongs to the event loop of the thread that serves, but
    for `close`.

    `models`: names among which a viewer may choose, the first one first, each with the only world that it knows, None
    for a general model. `facts`: of program and machine, for the file
    that is saved. `control`: viewers may do more than look.
    """

    def __init__(
        self, engine: CompareEngine, models: Mapping[str, str | None], facts: dict[str, Any], *, control: bool = True
    ) -> None:
        self._engine = engine
        self._models = tuple(models)
        self._worlds = dict(models)
        self._facts = facts
        self._control = control
        self._pictures = PictureStore()
        self._drawn: dict[str, Callable[[], Rgb]] = {}
        self._numbers = count(1)
        self._clients: set[CompareClient] = set()
        self._waiting: deque[CompareClient] = deque()
        self._running: CompareClient | None = None
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    def routes(self, uploads: PictureUploads) -> list[BaseRoute]:
        """The addresses under which pictures and comparisons are taken; pictures within the limits of `uploads`."""
        self._uploads = uploads
        return [
            Route("/compare/picture", self._take_picture, methods=["POST"]),
            Route("/compare/example/{name}", self._take_example, methods=["POST"]),
            Route("/compare/picture/{key}", self._show_picture),
            WebSocketRoute("/compare/socket", self._serve),
        ]

    def close(self) -> None:
        """End the running job and take no more; for any thread."""
        self._closed = True
        self._engine.close()

    async def _take_picture(self, request: Request) -> Response:
        if not self._control:
            return _refusal(403, ONLY_SHOWS)
        try:
            async with self._uploads.picture(request, LONGEST_PX) as rgb:
                return await self._keep(rgb)
        except PictureRefused as error:
            return _refusal(error.status, str(error))

    async def _take_example(self, request: Request) -> Response:
        if not self._control:
            return _refusal(403, ONLY_SHOWS)
        try:
            self._uploads.check_rate()
        except PictureRefused as error:
            return _refusal(error.status, str(error))
        still = next((still for still in STILLS if still.name == request.path_params["name"]), None)
        if still is None:
            return _refusal(404, f"there are {', '.join(still.name for still in STILLS)}")
        return await self._keep(await asyncio.to_thread(still.draw), still.draw)

    async def _keep(self, rgb: Rgb, drawn_by: Callable[[], Rgb] | None = None) -> Response:
        picture = await asyncio.to_thread(keyed, rgb)
        self._pictures.keep(picture)
        if drawn_by is not None:
            self._drawn[picture.key] = drawn_by
        height, width = rgb.shape[:2]
        return JSONResponse({"picture": picture.key, "width": width, "height": height})

    async def _show_picture(self, request: Request) -> Response:
        picture = self._pictures.get(request.path_params["key"])
        if picture is None:
            return _refusal(404, "that picture is not kept any more; give it again")
        return Response(picture.jpeg, media_type="image/jpeg")

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        if not self._control:
            await socket.close(REFUSED, ONLY_SHOWS)
            return
        if len(self._clients) >= CLIENTS_MAX:
            await socket.close(CROWDED, "too many viewers")
            return
        client = CompareClient()
        self._clients.add(client)
        self._greet(client)
        sending = asyncio.create_task(_send(socket, client))
        receiving = asyncio.create_task(self._receive(socket, client))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._clients.discard(client)
            self._drop(client)
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            with suppress(Exception):  # it may be closed already, in either of two libraries' ways
                await socket.close()

    def _greet(self, client: CompareClient) -> None:
        client.tell(
            "hello",
            models=self._models,
            encodes=ENCODES,
            strategies=STRATEGIES,
            worlds=self._worlds,
            examples=[
                {
                    "name": still.name,
                    "question": still.question,
                    "answer": still.answer and still.answer.text,
                    "general": still.general,
                }
                for still in STILLS
            ],
            limits={
                "bytes": UPLOAD_BYTES_MAX,
                "side_px": SIDE_PX_MAX,
                "columns": COLUMNS_MAX,
                "max_tokens": TEXT_TOKENS_MAX,
                "budget": BUDGET_MAX,
            },
            shapes=REGION_SHAPES,
            tile_px=TILE_PX,
            facts=self._facts,
        )

    async def _receive(self, socket: WebSocket, client: CompareClient) -> None:
        """Follow a viewer's messages until it leaves or sends too many."""
        limit = RateLimit(MESSAGES_A_SECOND, MESSAGES_AT_ONCE)
        while not client.gone:
            received = await socket.receive()
            if received["type"] == "websocket.disconnect":
                return
            if not limit.take(asyncio.get_running_loop().time()):
                await socket.close(REFUSED, "too many messages")
                return
            try:
                text = received.get("text") or received.get("bytes") or b""
                if len(text) > TEXT_BYTES_MAX:
                    raise MessageRefused(f"a message has at most {TEXT_BYTES_MAX} bytes")
                message = read_compare_message(text, self._models)
                if message.cancel:
                    self._cancel(client)
                if message.run is not None:
                    self._take(client, message.run)
            except MessageRefused as error:
                client.tell("refused", error=str(error))

    def _take(self, client: CompareClient, request: ComparisonRequest) -> None:
        """Put a comparison into the queue. Raises MessageRefused."""
        picture = self._pictures.get(request.picture)
        if picture is None:
            raise MessageRefused("that picture is not kept any more; give it again")
        self._check_room(client)
        client.job = make_job(next(self._numbers), picture, request, self._known_answer(request))
        self._waiting.append(client)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())
        else:
            self._tell_places()

    def _known_answer(self, request: ComparisonRequest) -> KnownAnswer | None:
        """Return the answer to an example's own question about its picture; None for all others."""
        draw, question = self._drawn.get(request.picture), words_of(request.question)
        return next((one.answer for one in STILLS if one.draw is draw and words_of(one.question) == question), None)

    def _check_room(self, client: CompareClient) -> None:
        if self._closed:
            raise MessageRefused("the program ends")
        if client.job is not None:
            raise MessageRefused("one comparison at a time; cancel the one that you asked for, or wait for it")
        if len(self._waiting) >= JOBS_MAX:
            raise MessageRefused(f"{JOBS_MAX} comparisons wait already; ask again in a moment")

    def _cancel(self, client: CompareClient) -> None:
        if client in self._waiting:
            self._waiting.remove(client)
            client.job = None
            client.tell("ended", cancelled=True)
            self._tell_places()
        elif client is self._running and client.job is not None:
            self._engine.cancel(client.job.number)

    def _drop(self, client: CompareClient) -> None:
        client.gone = True
        self._cancel(client)

    def _tell_places(self) -> None:
        for place, client in enumerate(self._waiting, 1):
            client.tell("queued", place=place)

    async def _answer_all(self) -> None:
        """Have the waiting jobs answered, one after the other."""
        while self._waiting and not self._closed:
            client = self._running = self._waiting.popleft()
            self._tell_places()
            await self._answer(client)
            self._running = client.job = None

    async def _answer(self, client: CompareClient) -> None:
        loop, job = asyncio.get_running_loop(), client.job
        assert job is not None, "a client that waits has a job"

        def tell(message: dict[str, Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_pass_on, client, message)

        client.tell("begun")
        try:
            await asyncio.to_thread(self._engine.answer, job, tell)
        except CompareFailed as error:
            client.tell("ended", error=str(error))
        except Exception as error:  # the page and the run beside it go on, whatever one comparison does
            client.tell("ended", error=f"unexpected {describe(error)}")


def _pass_on(client: CompareClient, message: dict[str, Any]) -> None:
    if not client.gone:
        client.tell(**message)


async def _send(socket: WebSocket, client: CompareClient) -> None:
    """Send what waits for a viewer until it is gone, or takes nothing any more."""
    while not client.gone:
        message = await client.outgoing.get()
        try:
            await asyncio.wait_for(socket.send_text(message.decode()), SEND_LIMIT_S)
        except (asyncio.TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            return


def _refusal(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
