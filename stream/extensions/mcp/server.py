"""MCP server of a page: its tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from arr_coc.errors import ArrCocError
from arr_coc.types import NS_PER_S
from stream.errors import StreamError
from stream.extensions.mcp.page import CameraPage
from stream.extensions.mcp.pictures import with_tokens
from stream.options.past_times import iso_time, parse_past_time
from stream.untrusted import WATCH_CHARS_MAX

INSTRUCTIONS = """Live cameras that a vision-language model watches. `ask` puts a question to the newest frame of one; \
`recent_answers` is what it has reported by itself, `search` what it saw before. A watch is a yes/no question that is \
checked again and again; its matches are reported. Leave `camera` out if there is one camera only."""

PACKAGE = "arr-coc-stream"

CALLS_MAX = 8
"""Calls at a time; further ones are refused."""

Camera = Annotated[str, Field(description="Name of the camera, as list_cameras gives it; empty for the only one.")]

WatchName = Annotated[str, Field(max_length=40, description="Name of the watch, as list_watches gives it.")]

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)

CHANGES = ToolAnnotations(read_only_hint=False, open_world_hint=False)

KEPT = ("name", "state", "reason", "query", "model", "live", "fps", "width_px", "height_px", "known_world")
"""Fields of a camera that an agent gets."""

ANSWER_FIELDS = (
    *("topic", "pts_s", "query", "question", "text", "to", "yes", "watch", "holds", "warning", "message", "reason"),
    "error",
)

MOMENT_FIELDS = ("kind", "camera", "text", "question", "watch", "yes", "times", "clip_video")


class CameraTools:
    """Tools over one page. Each returns text or a picture, and raises ToolError with one line."""

    def __init__(self, page: CameraPage) -> None:
        self._page = page
        self._calls = 0

    async def list_cameras(self) -> str:
        """List the running cameras: name, state, the question that is answered continuously, and the model."""
        async with self._call():
            cameras = await self._page.cameras()
        return _json([{name: camera[name] for name in KEPT if camera.get(name) is not None} for camera in cameras])

    async def newest_picture(
        self,
        camera: Camera = "",
        tokens: Annotated[bool, Field(description="Draw the visual tokens that the model gets.")] = True,
        width: Annotated[int, Field(ge=64, le=1920, description="Greatest width in pixels.")] = 1280,
    ) -> Image:
        """Show the newest frame of a camera; what the model sees coarsely is drawn coarse and dark."""
        async with self._call():
            picture = await self._page.picture(camera, width)
            if tokens:
                jpeg = await asyncio.to_thread(with_tokens, picture)
            else:
                jpeg = picture.jpeg
        return Image(data=jpeg, format="jpeg")

    async def ask(
        self,
        question: Annotated[str, Field(min_length=1, max_length=4000, description="Question about the newest frame.")],
        camera: Camera = "",
    ) -> str:
        """Ask the model about the newest frame of a camera, once. The camera's own question stays as it is."""
        async with self._call():
            reply = await self._page.ask(camera, question)
        try:
            return _json({"answer": reply["choices"][0]["message"]["content"], **reply["arr_coc"]})
        except (LookupError, TypeError) as error:
            raise ToolError("the page sent no answer; is it the page of a run of the same version?") from error

    async def recent_answers(
        self, camera: Camera = "", limit: Annotated[int, Field(ge=1, le=100, description="Newest events.")] = 20
    ) -> str:
        """List what a camera has reported: answers, changes of standing questions, cuts and outages; newest last.

        `local_time` is when the frame was taken, or, of a file or an outage, when it was reported; `time` is the same
        with its offset, and `pts_s` are seconds since the start of the source.
        """
        async with self._call():
            events = await self._page.answers(camera, limit)
            if camera:
                names = [camera]
            else:
                names = [str(fields.get("name", "")) for fields in await self._page.cameras()]
        return _json([_report(event, names[0] if len(names) == 1 else "") for event in events])

    async def list_watches(self, camera: Camera = "") -> str:
        """List the standing questions of a camera, with their names."""
        async with self._call():
            return _json(await self._page.watches(camera))

    async def add_watch(
        self,
        question: Annotated[
            str, Field(min_length=1, max_length=WATCH_CHARS_MAX, description="Yes/no question, checked on change.")
        ],
        camera: Camera = "",
        name: Annotated[str, Field(max_length=40, description="Name of it; made from the question if empty.")] = "",
        threshold: Annotated[float, Field(gt=0, le=1, description="Lowest probability of a yes.")] = 0.6,
        hold_s: Annotated[float, Field(ge=0, description="Seconds for which it must stay yes to be a match.")] = 0.0,
        cooldown_s: Annotated[float, Field(ge=0, description="Seconds after a match without another one.")] = 0.0,
    ) -> str:
        """Add a standing question to a camera until its run ends; recent_answers then lists its changes and matches."""
        fields = {
            "question": question,
            "name": name,
            "threshold": threshold,
            "hold_s": hold_s,
            "cooldown_s": cooldown_s,
        }
        async with self._call():
            return _json(await self._page.add_watch(camera, fields))

    async def remove_watch(self, name: WatchName, camera: Camera = "") -> str:
        """Remove a standing question of a camera."""
        async with self._call():
            return _json(await self._page.remove_watch(camera, name))

    async def search(
        self,
        words: Annotated[str, Field(max_length=400, description="Words to find; empty for everything.")] = "",
        since: Annotated[str, Field(max_length=40, description="How long ago, or a date: 2h, 3d, 2026-11-27.")] = "24h",
        camera: Camera = "",
    ) -> str:
        """Search what cameras have seen: answers, matches and outages with these words, the newest first."""
        async with self._call():
            since_ms = parse_past_time("since", since, datetime.now().astimezone())
            moments = (await self._page.past(words, since_ms, camera)).get("moments")
        if not isinstance(moments, list):
            raise ToolError("the page sent no moments; is it the page of a run of the same version?")
        return _json([_moment(moment) for moment in moments])

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Count a call. Raises ToolError for one too many, and in place of errors of this project."""
        if self._calls >= CALLS_MAX:
            raise ToolError(f"{CALLS_MAX} calls are under way; try again in a moment")
        self._calls += 1
        try:
            yield
        except (StreamError, ArrCocError) as error:
            raise ToolError(str(error)) from error
        finally:
            self._calls -= 1


def make_server(page: CameraPage) -> MCPServer:
    """Return a server with the tools of a page."""
    server = MCPServer(
        PACKAGE,
        title="ARR-COC Stream cameras",
        version=version(PACKAGE),
        instructions=INSTRUCTIONS,
        log_level="WARNING",
    )
    tools = CameraTools(page)
    reads = tools.list_cameras, tools.newest_picture, tools.ask, tools.recent_answers, tools.list_watches, tools.search
    for tool in reads:
        server.tool(annotations=READS, structured_output=False)(tool)
    for change in (tools.add_watch, tools.remove_watch):
        server.tool(annotations=CHANGES, structured_output=False)(change)
    return server


def _report(event: dict[str, Any], camera: str) -> dict[str, Any]:
    """Return what an agent gets of an event: its camera, its time for people and in ISO 8601, and its fields."""
    at = event.get("time")
    unix_ns = event.get("unix_ns")
    times = {}
    with suppress(ValueError, OverflowError, OSError):  # a page of another version
        if isinstance(at, str):
            time = datetime.fromisoformat(at)
        else:
            time = datetime.fromtimestamp(int(unix_ns or 0) / NS_PER_S).astimezone()
        times = {"local_time": f"{time:%Y-%m-%d %H:%M:%S}", "time": time.isoformat(timespec="milliseconds")}
    fields = {name: event[name] for name in ANSWER_FIELDS if event.get(name) is not None}
    return {"camera": event.get("camera", camera), **times, **fields}


def _moment(moment: dict[str, Any]) -> dict[str, Any]:
    """Return what an agent gets of a moment, with its time in ISO 8601."""
    at = moment.get("unix_ms")
    time = {}
    with suppress(ValueError, OverflowError, OSError):  # a page of another version
        if isinstance(at, int):
            time = {"time": iso_time(at)}
    return {**time, **{name: moment[name] for name in MOMENT_FIELDS if moment.get(name) not in (None, "")}}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
