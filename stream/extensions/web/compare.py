"""The compare page: takes pictures and questions, and has them answered one job after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from arr_coc.budget import check_budget
from arr_coc.errors import BudgetError
from arr_coc.types import REGION_SHAPES, TILE_PX, Encode
from stream.answer.agreement import words_of
from stream.clock import RateLimit
from stream.config import AllocateConfig
from stream.control import describe
from stream.extensions.web.comparison.messages import ENDED, CompareFailed, CompareJob, ComparisonRequest
from stream.extensions.web.comparison.questions import PictureQuestion
from stream.extensions.web.connection import CROWDED, REFUSED, converse, messages, send
from stream.extensions.web.picture_requests import call_in
from stream.extensions.web.uploads.decoder import SIDE_PX_MAX, PictureRefused
from stream.extensions.web.uploads.receiver import UPLOAD_BYTES_MAX, PictureUploads
from stream.extensions.web.uploads.store import PictureStore, Rgb, keyed
from stream.extensions.web.viewer import MessageRefused, check_length, decode_message
from stream.scenes.stills import STILLS, KnownAnswer

COLUMNS_MAX = 6
TEXT_TOKENS_MAX = 256
BUDGET_MAX = 4096
SEED_MAX = 2**31 - 1

ENCODES: tuple[str, ...] = get_args(Encode)
STRATEGIES: tuple[str, ...] = get_args(AllocateConfig.model_fields["strategy"].annotation)

JOBS_MAX = 16
"""Comparisons that may wait."""

CLIENTS_MAX = 32
"""Viewers of the compare page at a time."""

MESSAGES_WAITING = 4000
"""Messages that may wait for a viewer; one that does not read them is disconnected."""

MESSAGES_A_SECOND = 5.0
MESSAGES_AT_ONCE = 30.0

LONGEST_PX = 1024
"""A larger picture is shrunk to this: 1024 tiles at most, which a CPU can still answer about with all tokens."""

VIEW_ONLY = "this page only shows; comparing takes this machine's time, and needs --web-control"


class CompareMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a viewer of the compare page."""

    run: ComparisonRequest | None = None
    cancel: bool = False


_decoder = msgspec.json.Decoder(CompareMessage)


def read_compare_message(text: str | bytes, models: Sequence[str]) -> CompareMessage:
    """Return a viewer's message. Raises MessageRefused, in one line."""
    message = decode_message(_decoder, text)
    if message.run is not None:
        _check(message.run, models)
    return message


def _check(request: ComparisonRequest, models: Sequence[str]) -> None:
    if not request.question.strip():
        raise MessageRefused("the question is empty")
    check_length(request.question)
    if not 1 <= len(request.columns) <= COLUMNS_MAX:
        raise MessageRefused(f"a comparison has from 1 to {COLUMNS_MAX} columns")
    if not 1 <= request.max_tokens <= TEXT_TOKENS_MAX:
        raise MessageRefused(f"an answer has from 1 to {TEXT_TOKENS_MAX} tokens")
    if not 0 <= request.seed <= SEED_MAX:
        raise MessageRefused(f"the seed is from 0 to {SEED_MAX}")
    for column in request.columns:
        for name, value, choices in (
            ("model", column.model, models),
            ("encode", column.encode, ENCODES),
            ("strategy", column.strategy, STRATEGIES),
        ):
            if value not in choices:
                raise MessageRefused(f"{name} is one of {', '.join(choices)}")
        try:
            check_budget(column.budget)
        except BudgetError as error:
            raise MessageRefused(str(error)) from error
        if isinstance(column.budget, int) and column.budget > BUDGET_MAX:
            raise MessageRefused(f"a budget has at most {BUDGET_MAX} tokens, got {column.budget}")


class CompareEngine(Protocol):
    """Answers comparisons, one job at a time."""

    def answer(self, job: CompareJob, report: Callable[[dict[str, Any]], None]) -> None:
        """Answer in all columns; `report` takes each message for the viewer. Raises CompareFailed."""
        ...

    def cancel(self, number: int) -> None:
        """End the job of this number soon, if it runs; for any thread."""
        ...

    def close(self) -> None:
        """End the running job and free all memory."""
        ...


@dataclass(eq=False, slots=True)
class CompareClient:
    """A viewer of the compare page: its job, which waits or runs, and the messages for it."""

    outgoing: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MESSAGES_WAITING))
    job: CompareJob | None = None
    is_closed: bool = False

    def enqueue(self, topic: str, **fields: Any) -> None:
        """Queue a message for the viewer; disconnect the viewer beyond the limit."""
        try:
            self.outgoing.put_nowait(msgspec.json.encode({"topic": topic, **fields}))
        except asyncio.QueueFull:
            self.is_closed = True


class CompareDesk:
    """Pictures and jobs of all viewers of the compare page. Belongs to the event loop of the thread that serves, but
    for `close`.

    Args:
        engine: Process that answers.
        models: Names among which a viewer may choose, the first one first, each with the only world that it knows, None
            for a general model.
        facts: Facts of program and machine, for the file that is saved.
        questions: Questions about pictures of this machine, among which a viewer may choose.
        control: Whether viewers may do more than look.
    """

    def __init__(
        self,
        engine: CompareEngine,
        models: Mapping[str, str | None],
        facts: dict[str, Any],
        questions: Sequence[PictureQuestion] = (),
        *,
        control: bool = True,
    ) -> None:
        self._engine = engine
        self._models = tuple(models)
        self._worlds = dict(models)
        self._facts = facts
        self._questions = questions
        self._control = control
        self._pictures = PictureStore()
        self._known: dict[str, dict[tuple[str, ...], KnownAnswer | None]] = {}
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
            Route("/compare/question/{number:int}", self._take_question, methods=["POST"]),
            Route("/compare/picture/{key}", self._show_picture),
            WebSocketRoute("/compare/socket", self._serve),
        ]

    def close(self) -> None:
        """End the running job and take no more; for any thread."""
        self._closed = True
        self._engine.close()

    async def _take_picture(self, request: Request) -> Response:
        if not self._control:
            raise PictureRefused(VIEW_ONLY, 403)
        async with self._uploads.picture(request, LONGEST_PX) as rgb:
            return JSONResponse(await self._keep(rgb))

    async def _take_example(self, request: Request) -> Response:
        if not self._control:
            raise PictureRefused(VIEW_ONLY, 403)
        self._uploads.check_rate()
        still = next((still for still in STILLS if still.name == request.path_params["name"]), None)
        if still is None:
            raise PictureRefused(f"there are {', '.join(still.name for still in STILLS)}", 404)
        known = {other.question: other.answer for other in STILLS if other.draw is still.draw}
        return JSONResponse(await self._keep(await asyncio.to_thread(still.draw), known))

    async def _take_question(self, request: Request) -> Response:
        if not self._control:
            raise PictureRefused(VIEW_ONLY, 403)
        self._uploads.check_rate()
        number = request.path_params["number"]
        if number >= len(self._questions):
            raise PictureRefused(f"there is no question {number}", 404)
        question = self._questions[number]
        rgb, boxes = await asyncio.to_thread(question.picture, LONGEST_PX)
        return JSONResponse(await self._keep(rgb, {question.text: question.known}) | {"boxes": boxes})

    async def _keep(self, rgb: Rgb, known: Mapping[str, KnownAnswer | None] | None = None) -> dict[str, Any]:
        """Keep a picture, with the questions about it whose answers are `known`; return its key and size."""
        picture = await asyncio.to_thread(keyed, rgb)
        self._pictures.keep(picture)
        if known:
            answers = {tuple(words_of(text)): answer for text, answer in known.items()}
            self._known.setdefault(picture.key, {}).update(answers)
        height, width = rgb.shape[:2]
        return {"picture": picture.key, "width": width, "height": height}

    async def _show_picture(self, request: Request) -> Response:
        picture = self._pictures.get(request.path_params["key"])
        if picture is None:
            raise PictureRefused("that picture has expired; send it again", 404)
        return Response(picture.jpeg, media_type="image/jpeg")

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        if not self._control:
            await socket.close(REFUSED, VIEW_ONLY)
            return
        if len(self._clients) >= CLIENTS_MAX:
            await socket.close(CROWDED, "too many viewers")
            return
        client = CompareClient()
        self._clients.add(client)
        self._greet(client)

        def leave() -> None:
            self._clients.discard(client)
            client.is_closed = True
            self._cancel(client)

        await converse(socket, _send(socket, client), self._receive(socket, client), leave)

    def _greet(self, client: CompareClient) -> None:
        client.enqueue(
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
            questions=[
                {"name": question.name, "question": question.text, "answer": question.known and question.known.text}
                for question in self._questions
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
        async for text in messages(socket, RateLimit(MESSAGES_A_SECOND, MESSAGES_AT_ONCE)):
            try:
                message = read_compare_message(text, self._models)
                if message.cancel:
                    self._cancel(client)
                if message.run is not None:
                    self._take(client, message.run)
            except MessageRefused as error:
                client.enqueue("refused", error=str(error))
            if client.is_closed:
                return

    def _take(self, client: CompareClient, request: ComparisonRequest) -> None:
        """Put a comparison into the queue. Raises MessageRefused."""
        picture = self._pictures.get(request.picture)
        if picture is None:
            raise MessageRefused("that picture has expired; send it again")
        if self._closed:
            raise MessageRefused("the program ends")
        if client.job is not None:
            raise MessageRefused("one comparison at a time; cancel the one that you asked for, or wait for it")
        if len(self._waiting) >= JOBS_MAX:
            raise MessageRefused(f"{JOBS_MAX} comparisons wait already; ask again in a moment")
        height, width = picture.rgb.shape[:2]
        answer = self._known.get(request.picture, {}).get(tuple(words_of(request.question)))
        client.job = CompareJob(next(self._numbers), picture.rgb.tobytes(), height, width, request, answer)
        self._waiting.append(client)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())
        else:
            self._report_places()

    def _cancel(self, client: CompareClient) -> None:
        if client in self._waiting:
            self._waiting.remove(client)
            client.job = None
            client.enqueue(ENDED, cancelled=True)
            self._report_places()
        elif client is self._running and client.job is not None:
            self._engine.cancel(client.job.number)

    def _report_places(self) -> None:
        for place, client in enumerate(self._waiting, 1):
            client.enqueue("queued", place=place)

    async def _answer_all(self) -> None:
        """Have the waiting jobs answered, one after the other."""
        while self._waiting and not self._closed:
            client = self._running = self._waiting.popleft()
            self._report_places()
            await self._answer(client)
            self._running = client.job = None

    async def _answer(self, client: CompareClient) -> None:
        loop = asyncio.get_running_loop()
        job = client.job
        assert job is not None, "a client that waits has a job"

        def pass_on(message: dict[str, Any]) -> None:
            if not client.is_closed:
                client.enqueue(**message)

        client.enqueue("begun")
        try:
            await asyncio.to_thread(self._engine.answer, job, partial(call_in, loop, pass_on))
        except CompareFailed as error:
            client.enqueue(ENDED, error=str(error))
        except Exception as error:  # the page and the run outlive any failure of a comparison
            client.enqueue(ENDED, error=f"unexpected {describe(error)}")


async def _send(socket: WebSocket, client: CompareClient) -> None:
    """Send a viewer's waiting messages until the viewer has left, or accepts no more."""
    while not client.is_closed and await send(socket, (await client.outgoing.get()).decode()):
        pass
