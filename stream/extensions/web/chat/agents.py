"""State of the cameras for programs: their list, what each has answered, its newest picture, and its watches, which can
be added and removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from stream.config import WatchConfig, name_watches
from stream.control import AddWatch, RemoveWatch, WatchChange
from stream.extensions.web.access import WebAccess
from stream.extensions.web.chat.completions import body_of
from stream.extensions.web.chat.questions import QuestionRefused, chosen_camera, named_cameras
from stream.extensions.web.hub import Hub
from stream.protocol.pictures import unpack_picture
from stream.sources.address import name_of
from stream.untrusted import WATCH_CHARS_MAX, WATCH_NAME, cut_to

PICTURE_LIMIT_S = 5.0
"""Longest wait for a picture."""

ANSWERS_MAX = 100

NO_PICTURE = "no frame has come; the source may be lost, or the model is still loading"


WATCH_BODY_BYTES_MAX = 16 * 1024

WATCH_S_MAX = 31 * 86_400.0
"""Longest hold and cooldown of a watch that a program adds."""

VIEW_ONLY = "this page only shows; its watches stay as they are. Give --web-control"

Seconds = Annotated[float, Meta(ge=0, le=WATCH_S_MAX)]


class NewWatch(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request that adds a watch; fields as in `[[watch]]`. Nothing in it starts a command or ends the run."""

    question: Annotated[str, Meta(max_length=WATCH_CHARS_MAX, pattern=r"\S")]
    camera: str = ""
    name: Annotated[str, Meta(pattern=rf"^{WATCH_NAME}\Z")] = ""
    threshold: Annotated[float, Meta(gt=0, le=1)] = 0.6
    hold_s: Seconds = 0.0
    cooldown_s: Seconds = 0.0


_new_watches = msgspec.json.Decoder(NewWatch)


def agent_routes(hubs: Mapping[str, Hub], access: WebAccess) -> list[BaseRoute]:
    """Return the routes of the state of the cameras of `hubs`, by name."""
    cameras = named_cameras(hubs)

    def hub_of(request: Request) -> Hub:
        return cameras[chosen_camera(cameras, request.query_params.get("camera", ""))]

    async def watches(request: Request) -> Response:
        if request.method == "GET" or request.method == "HEAD":
            return _watches_reply(hub_of(request))
        if not access.control:
            raise QuestionRefused(VIEW_ONLY, 403)
        if request.method == "DELETE":
            hub = hub_of(request)
            change: WatchChange = RemoveWatch(request.query_params.get("name", "")[:80])
        else:
            new = _new_watch(await body_of(request, WATCH_BODY_BYTES_MAX))
            hub = cameras[chosen_camera(cameras, new.camera)]
            present = [WatchConfig(name=watch.name, question=watch.question) for watch in hub.watches]
            # of a watch without a name, one is made from its question
            name = name_watches((*present, WatchConfig(name=new.name, question=new.question)))[-1].name
            change = AddWatch(name, new.question, new.threshold, new.hold_s, new.cooldown_s)
        await hub.changes.change(hub.monitor, change)
        return _watches_reply(hub, change)

    async def listed(_request: Request) -> Response:
        return JSONResponse({"cameras": [_describe(name, hub) for name, hub in cameras.items()]})

    async def answers(request: Request) -> Response:
        limit = _number(request, "limit", 20, ANSWERS_MAX)
        events = [msgspec.Raw(message) for message in hub_of(request).history[-limit:]]
        return Response(msgspec.json.encode({"events": events}), media_type="application/json")

    async def picture(request: Request) -> Response:
        hub = hub_of(request)
        message = await hub.pictures.next(_number(request, "width", 1280, 1920), PICTURE_LIMIT_S)
        if message is None:
            raise QuestionRefused(NO_PICTURE, 503)
        if "map" in request.query_params:
            return Response(message, media_type="application/octet-stream")
        return Response(unpack_picture(message).jpeg, media_type="image/jpeg")

    return [
        Route("/api/cameras", listed),
        Route("/api/answers", answers),
        Route("/api/picture", picture),
        Route("/api/watches", watches, methods=["GET", "POST", "DELETE"]),
    ]


def _new_watch(body: bytes) -> NewWatch:
    """Return the watch of a request's body. Raises QuestionRefused."""
    try:
        return _new_watches.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise QuestionRefused(f"not a watch: {cut_to(str(error), 200)}", 400) from error


def _watches_reply(hub: Hub, change: WatchChange | None = None) -> Response:
    """Return the watches of a run, and the name of the one that was changed."""
    changed = {} if change is None else {"watch": change.name}
    watches = [{"name": watch.name, "question": watch.question} for watch in hub.watches]
    return JSONResponse({**changed, "watches": watches})


def _describe(name: str, hub: Hub) -> dict[str, object]:
    """Return the state of a camera, without the address of its source."""
    if hub.monitor is None:
        return {"name": name, "state": "idle"}
    status = hub.monitor.status()
    return {"name": name, **asdict(replace(status, source=name_of(status.source)))}


def _number(request: Request, name: str, default: int, most: int) -> int:
    """Return a whole number of the query, from 1 to `most`. Raises QuestionRefused."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise QuestionRefused(f"{name} is a whole number from 1 to {most}", 400)
    return int(text)
