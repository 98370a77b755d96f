"""State of the cameras for programs: their list, what each has answered, and its newest picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from stream.protocol.pictures import unpack_picture
from stream.sources.address import name_of
from stream.web.chat.completions import ALONE
from stream.web.chat.questions import QuestionRefused
from stream.web.hub import Hub

PICTURE_LIMIT_S = 5.0
"""Longest wait for a picture."""

ANSWERS_MAX = 100

NO_PICTURE = "no frame has come; the source may be lost, or the model is still loading"


def agent_routes(hubs: Mapping[str, Hub]) -> list[BaseRoute]:
    """Return the routes of the state of the cameras of `hubs`, by name; a run without a name is called `camera`."""
    cameras = {name or ALONE: hub for name, hub in hubs.items()}

    def hub_of(request: Request) -> Hub:
        """Return the camera that a request names, or the only one. Raises QuestionRefused."""
        name = request.query_params.get("camera") or (next(iter(cameras)) if len(cameras) == 1 else "")
        if name not in cameras:
            raise QuestionRefused(f"no camera is called {name[:80]!r}; the cameras are: {', '.join(cameras)}", 404)
        return cameras[name]

    async def listed(_request: Request) -> Response:
        return JSONResponse({"cameras": [_described(name, hub) for name, hub in cameras.items()]})

    async def answers(request: Request) -> Response:
        limit = _number(request, "limit", 20, ANSWERS_MAX)
        return Response(
            b'{"events":[' + b",".join(hub_of(request).history[-limit:]) + b"]}", media_type="application/json"
        )

    async def picture(request: Request) -> Response:
        hub = hub_of(request)
        message = await hub.pictures.next(_number(request, "width", 1280, 1920), PICTURE_LIMIT_S)
        if message is None:
            raise QuestionRefused(NO_PICTURE, 503)
        if "map" in request.query_params:
            return Response(message, media_type="application/octet-stream")
        return Response(unpack_picture(message).jpeg, media_type="image/jpeg")

    return [Route("/api/cameras", listed), Route("/api/answers", answers), Route("/api/picture", picture)]


def _described(name: str, hub: Hub) -> dict[str, object]:
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
