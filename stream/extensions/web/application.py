"""The page and its socket as an ASGI application: access, the headers of every reply, and the messages of viewers."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from stream.clock import RateLimit
from stream.errors import SourceNotFound, TransportError
from stream.extensions.web.access import WebAccess
from stream.extensions.web.camera import BrowserCamera
from stream.extensions.web.chat.agents import agent_routes
from stream.extensions.web.chat.completions import chat_routes, refusal_reply
from stream.extensions.web.chat.questions import QuestionRefused
from stream.extensions.web.connection import CAMERA_IN_USE, CROWDED, GOING_AWAY, REFUSED, converse, messages, send
from stream.extensions.web.hub import Hub, encoded
from stream.extensions.web.microscope import Microscope, microscope_routes
from stream.extensions.web.saving import saving_routes
from stream.extensions.web.sources import scene_thumbnail
from stream.extensions.web.uploads.decoder import PictureRefused
from stream.extensions.web.uploads.receiver import PictureUploads
from stream.extensions.web.viewer import MESSAGES_A_SECOND, MessageRefused, Viewer, read_message

if TYPE_CHECKING:
    from stream.extensions.web.compare import CompareDesk
    from stream.recording.clip_manifest import ClipIndex

PAGE = Path(__file__).parent / "page"

VIEWERS_MAX = 64
"""Limit of concurrent viewers of the page, of one camera or of all; further ones are refused."""

WRONG_TOKEN_S = 0.5
"""Delay of the reply to a wrong token."""

CLOSE_CHARS_MAX = 100
"""A reason for closing has at most 123 bytes (RFC 6455)."""

UNREADABLE_MAX = 10
"""Number of invalid messages after which a viewer's connection is closed."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
        "connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-cache",
}

FRAME_HEADERS = {
    "content-security-policy": HEADERS["content-security-policy"].replace(
        "frame-ancestors 'none'", "frame-ancestors 'self'; frame-src 'self'"
    ),
    "x-frame-options": "SAMEORIGIN",
}
"""Headers of the demo, whose first page has the others in frames; other sites still have none of them."""

NOTE_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="/page/icon.svg"><link rel="stylesheet" href="/page/style.css"></head>
<body class="gate"><main>{body}</main></body></html>
"""
"""Page in place of one that is not served."""

TOKEN = """<h1>ARR-COC Stream</h1><p>{message}</p>
<form method="get" action="/"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" autofocus required>
<button>Show the run</button></form>"""

NO_COMPARE = """<h1>Compare answers</h1>
<p>The page of <code>watch</code> shows one run and compares nothing. The command
<code>python run_stream.py web 8090 NAME=SOURCE</code> has the page that compares, and shows the source too.</p>
<p><a href="/">Back to the run</a></p>"""


@dataclass(frozen=True, slots=True)
class PageCamera:
    """A camera of the page: its viewers, and its microscope."""

    hub: Hub
    microscope: Microscope = field(default_factory=Microscope)


class Gate:
    """Middleware that enforces the access rules, and adds the security headers to every reply.

    Files of the page hold nothing of the run, and need no token: the page that asks for one uses them.
    """

    def __init__(self, application: ASGIApp, access: WebAccess) -> None:
        self._application = application
        self._access = access
        self._headers = {**HEADERS, **FRAME_HEADERS} if access.demo else HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or socket."""
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._problem(scope, headers)
        if scope["type"] == "websocket":
            if problem is not None:
                await WebSocket(scope, receive, send).close(REFUSED, problem)
                return
            await self._application(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                reply = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    reply[name] = value
            await send(message)

        reply = await self._refusal(scope, problem)
        await (reply or self._application)(scope, receive, send_guarded)

    def _problem(self, scope: Scope, headers: Headers) -> str | None:
        """Return why a request is refused: "host", "origin" or "token"; None if it is allowed."""
        if not self._access.allows_host(headers.get("host")):
            return "host"
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if changes and not self._access.allows_origin(headers.get("origin"), headers.get("host")):
            return "origin"
        if scope["path"].startswith("/page/"):
            return None
        if self._access.allows_token(self._token_of(headers)):
            return None
        return "token"

    async def _refusal(self, scope: Scope, problem: str | None) -> Response | None:
        if scope["path"] == "/":
            token = QueryParams(scope["query_string"]).get("token")
        else:
            token = None
        if problem == "host":
            return PlainTextResponse("This page is not served under that name.\n", 421)
        if problem == "origin":
            return PlainTextResponse("Only the page itself may do that.\n", 403)
        if token is not None and self._access.token is not None:
            if self._access.allows_token(token):
                # the page's address has no token, which stays in a cookie
                reply = RedirectResponse("/demo" if self._access.demo else "/", 303)
                secure = self._access.certificate is not None
                reply.set_cookie(self._cookie, token, httponly=True, samesite="strict", secure=secure, path="/")
                return reply
            await asyncio.sleep(WRONG_TOKEN_S)
            return _token_page("That is not the token. The program printed the right one when it began.")
        if problem == "token" and scope["path"].startswith(("/v1/", "/api/")):
            message = "the page needs its token, which the program printed when it began, or this is not it"
            error = {"message": message, "type": "authentication_error", "code": 401, "param": None}
            return JSONResponse({"error": error}, 401)  # in OpenAI's shape
        if problem == "token":
            return _token_page("The program that runs here asks for a token. It printed one when it began.")
        return None

    @property
    def _cookie(self) -> str:
        return f"arr-coc-{self._access.port}"

    def _token_of(self, headers: Headers) -> str | None:
        authorization = headers.get("authorization", "")
        if authorization.startswith("Bearer "):
            return authorization.removeprefix("Bearer ")
        cookies: SimpleCookie = SimpleCookie()
        with suppress(Exception):  # whatever a client may send as a cookie
            cookies.load(headers.get("cookie", ""))
        cookie = cookies.get(self._cookie)
        return None if cookie is None else cookie.value


def _token_page(message: str) -> Response:
    return HTMLResponse(NOTE_PAGE.format(title="ARR-COC Stream", body=TOKEN.format(message=html.escape(message))), 401)


def make_application(
    access: WebAccess,
    cameras: Mapping[str, PageCamera],
    browser_camera: BrowserCamera | None = None,
    compare: CompareDesk | None = None,
    panels: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Return the application that shows runs to viewers.

    Args:
        access: Rules of access to the page.
        cameras: Cameras by name; a single run has the name "".
        browser_camera: Receiver of a viewer's camera, if that is the source of the only run.
        compare: Desk of the compare page, if there is one.
        panels: Routes of other extensions.
    """

    files = StaticFiles(directory=PAGE)
    uploads = PictureUploads()
    sockets: set[WebSocket] = set()
    clip_indices: dict[str, ClipIndex] = {}
    hubs = {name: camera.hub for name, camera in cameras.items()}

    def selection_of(connection: HTTPConnection) -> Mapping[str, PageCamera]:
        """Return the camera that a request names with `?camera=NAME`, all cameras if it names none."""
        name = connection.query_params.get("camera")
        if name is None:
            return cameras
        return {name: cameras[name]} if name in cameras else {}

    def microscope_of(connection: HTTPConnection) -> Microscope | None:
        selection = selection_of(connection)
        if len(selection) == 1:
            return next(iter(selection.values())).microscope
        return None

    async def page(request: Request) -> Response:
        selection = selection_of(request)
        if not selection:
            return PlainTextResponse(f"No camera has that name; there are {', '.join(cameras)}.\n", 404)
        return await files.get_response("live.html" if len(selection) == 1 else "grid.html", request.scope)

    async def microscope_page(request: Request) -> Response:
        if microscope_of(request) is None:
            return PlainTextResponse(f"Add ?camera=NAME; there are {', '.join(cameras)}.\n", 404)
        return await files.get_response("microscope.html", request.scope)

    async def compare_page(request: Request) -> Response:
        if compare is None:
            return HTMLResponse(NOTE_PAGE.format(title="Compare · ARR-COC Stream", body=NO_COMPARE), 404)
        return await files.get_response("compare.html", request.scope)

    async def scene(request: Request) -> Response:
        try:
            thumbnail = await asyncio.to_thread(scene_thumbnail, request.path_params["name"])
        except SourceNotFound as error:
            return PlainTextResponse(f"{error}\n", 404)
        return Response(thumbnail, media_type="image/jpeg")

    async def clip(request: Request) -> Response:
        for camera in selection_of(request).values():
            if (folder := camera.hub.clips) is not None:
                from stream.recording.clip_manifest import ClipIndex

                index = clip_indices.setdefault(folder, ClipIndex(Path(folder)))
                path = await asyncio.to_thread(index.find, request.path_params["name"])
                if path is not None:
                    return FileResponse(path)
        return PlainTextResponse("There is no such clip; the folder's oldest clips are deleted.\n", 404)

    async def demo(request: Request) -> Response:
        return await files.get_response("demo.html", request.scope)

    async def icon(request: Request) -> Response:
        return await files.get_response("icon.svg", request.scope)

    async def live(socket: WebSocket) -> None:
        await socket.accept()
        selection = selection_of(socket)
        if not selection:
            await socket.close(REFUSED, "no camera has that name")
            return
        if len(sockets) >= VIEWERS_MAX:
            await socket.close(CROWDED, "too many viewers")
            return
        sockets.add(socket)
        wake = asyncio.Event()
        viewers = {name: camera.hub.add(wake) for name, camera in selection.items()}

        def leave() -> None:
            sockets.discard(socket)
            for name, viewer in viewers.items():
                selection[name].hub.remove(viewer)

        await converse(socket, _send(socket, list(viewers.values()), wake), _receive(socket, viewers, selection), leave)

    async def camera_frames(socket: WebSocket) -> None:
        await socket.accept()
        hub = next(iter(cameras.values())).hub
        if browser_camera is None or not hub.takes_camera:
            await socket.close(REFUSED, "no camera is wanted")
        elif browser_camera.in_use:
            await socket.close(CAMERA_IN_USE, "another camera is in use")
        else:
            await _take_frames(socket, browser_camera, hub)

    routes: list[BaseRoute] = [
        Route("/", page),
        WebSocketRoute("/camera", camera_frames),
        Route("/favicon.ico", icon),
        WebSocketRoute("/live", live),
        Mount("/page", files),
        Route("/scene/{name}", scene),
        Route("/clips/{name}", clip),
        Route("/compare", compare_page),
        Route("/microscope", microscope_page),
        *microscope_routes(microscope_of, access, uploads),
        *chat_routes(hubs, access),
        *agent_routes(hubs, access),
        *saving_routes(hubs, access),
    ]
    routes += panels
    if access.demo:
        routes.append(Route("/demo", demo))
    if compare is not None:
        routes += compare.routes(uploads)
    handlers = {PictureRefused: _refuse, QuestionRefused: refusal_reply}
    return Gate(Starlette(routes=routes, exception_handlers=handlers), access)


async def _refuse(_request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, PictureRefused)
    return JSONResponse({"error": str(refusal)}, refusal.status)


async def _send(socket: WebSocket, viewers: Sequence[Viewer], wake: asyncio.Event) -> None:
    """Send the waiting messages of one connection's viewers, one of each in turn, until it is closed or accepts no
    more."""
    while True:
        await wake.wait()
        wake.clear()
        waiting = True
        while waiting:
            waiting = False
            for viewer in viewers:
                if (message := viewer.next()) is not None:
                    waiting = True
                    if not await send(socket, message):
                        return


async def _take_frames(socket: WebSocket, camera: BrowserCamera, hub: Hub) -> None:
    """Publish a camera's frames until it leaves or the run is over, and confirm each: then the page sends the next."""
    camera.in_use = True
    try:
        while hub.takes_camera:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            camera.publish(message.get("bytes") or b"")
            if not await send(socket, "ok"):
                return
        await socket.close(GOING_AWAY, "the run is over")
    except (MessageRefused, TransportError) as error:
        await socket.close(REFUSED, str(error)[:CLOSE_CHARS_MAX])
    except (WebSocketDisconnect, RuntimeError, OSError):
        return
    finally:
        camera.in_use = False


async def _receive(socket: WebSocket, viewers: Mapping[str, Viewer], cameras: Mapping[str, PageCamera]) -> None:
    """Follow the messages of a connection, for one camera or for all, until it is closed or breaks the limits."""
    unreadable = 0
    async for text in messages(socket, RateLimit(MESSAGES_A_SECOND, 2 * MESSAGES_A_SECOND)):
        try:
            message = read_message(text)
            if message.camera is not None and message.camera not in viewers:
                raise MessageRefused(f"no camera has that name; there are {', '.join(viewers)}")
            for name in viewers if message.camera is None else (message.camera,):
                cameras[name].hub.follow(viewers[name], message)
        except MessageRefused as error:
            unreadable += 1
            if unreadable > UNREADABLE_MAX:
                await socket.close(REFUSED, "messages that cannot be followed")
                return
            next(iter(viewers.values())).send(encoded("refused", {"error": str(error)}))
