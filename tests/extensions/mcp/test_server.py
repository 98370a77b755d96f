"""Tools for agents, called by the client of the official library over a served page."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from msgspec.structs import replace
from PIL import Image

from stream.control import AddWatch
from stream.extensions.mcp.page import NOT_REMEMBERED, CameraPage
from stream.extensions.mcp.server import CALLS_MAX, make_server
from stream.extensions.past.moments import PastRun
from tests.support.events import answer, side_answer
from tests.support.network import until
from tests.support.past import moment, written
from tests.support.web import WIDTH, ServedPage, SharedPage, served


@pytest.fixture
def run() -> Iterator[ServedPage]:
    with served() as page:
        yield page


def calls(run: ServedPage | SharedPage, use: Callable[[Client], Awaitable[Any]]) -> Any:
    """Return what `use` returns with a client of the tools over the page of `run`."""

    async def connected() -> Any:
        async with CameraPage(run.url) as page, Client(make_server(page)) as client:
            return await use(client)

    return asyncio.run(connected())


def call(run: ServedPage | SharedPage, tool: str, **arguments: Any) -> Any:
    return calls(run, lambda client: client.call_tool(tool, arguments))


def fields(result: Any) -> Any:
    assert not result.is_error, result
    return json.loads(result.content[0].text)


def test_an_agent_finds_the_tools_with_their_descriptions(run: ServedPage) -> None:
    tools = calls(run, lambda client: client.list_tools()).tools
    reads = {"list_cameras", "newest_picture", "ask", "recent_answers", "list_watches", "search"}
    assert {tool.name for tool in tools if tool.annotations.read_only_hint} == reads
    assert {tool.name for tool in tools} - reads == {"add_watch", "remove_watch"}
    for tool in tools:
        assert tool.description
        assert all("description" in field for field in tool.input_schema["properties"].values()), tool.name


def test_it_lists_the_cameras_without_their_addresses(run: ServedPage) -> None:
    (camera,) = fields(call(run, "list_cameras"))
    assert (camera["name"], camera["state"], camera["query"]) == ("camera", "running", "What?")
    assert "source" not in camera


def test_it_asks_about_the_newest_frame(run: ServedPage) -> None:
    reply = fields(call(run, "ask", question="What is it?"))
    assert (reply["answer"], reply["frame_index"], reply["tokens_used"]) == ("a red car", 7, 64)
    assert run.run.commands[0].query == "What is it?"


def test_the_only_camera_needs_no_name_though_it_has_one() -> None:
    with closing(SharedPage(("yard",))) as page:
        assert fields(call(page, "ask", question="What is it?"))["answer"] == "a red car"
        assert call(page, "newest_picture", tokens=False).is_error is False


def test_it_sees_the_newest_picture_with_and_without_tokens(run: ServedPage) -> None:
    overlay, plain = (call(run, "newest_picture", tokens=tokens, width=640).content[0] for tokens in (True, False))
    images = [Image.open(io.BytesIO(base64.b64decode(content.data))).convert("RGB") for content in (overlay, plain)]
    assert images[1].size[0] == WIDTH
    assert images[1].getextrema() == ((128, 128),) * 3, "the frame is grey"
    low, high = images[0].convert("L").getextrema()
    assert low < 60 < 100 < high, "what is not seen is dark, tokens are outlined"


def test_it_reads_recent_answers_with_the_camera_and_the_local_time(run: ServedPage) -> None:
    run.emit(replace(answer(1.0, "a cat"), time="2026-11-28T09:05:00.250+02:00"))
    run.emit(answer(2.0, "a dog"))
    until(lambda: len(run.hub.history) == 2)
    dated, other = fields(call(run, "recent_answers", limit=5))
    assert (dated["topic"], dated["text"], dated["pts_s"]) == ("answer", "a cat", 1.0)
    assert (dated["camera"], other["camera"]) == ("camera", "camera")
    assert (dated["local_time"], dated["time"]) == ("2026-11-28 09:05:00", "2026-11-28T09:05:00.250+02:00")
    reported = datetime.fromisoformat(other["time"])
    assert reported.utcoffset() is not None
    assert round(reported.timestamp() * 1000) == json.loads(run.hub.history[1])["unix_ns"] // 1_000_000
    assert other["local_time"] == f"{reported.astimezone():%Y-%m-%d %H:%M:%S}"


def test_of_several_cameras_it_says_which() -> None:
    with closing(SharedPage(("yard", "door"))) as page:
        page.cameras["yard"].emit(answer(1.0, "a cat"))
        until(lambda: bool(page.cameras["yard"].hub.history))
        (event,) = fields(call(page, "recent_answers", camera="yard"))
        assert event["camera"] == "yard"


def test_the_server_has_the_version_of_the_program(run: ServedPage) -> None:
    async def server_version(client: Client) -> str:
        return client.server_info.version

    assert calls(run, server_version) == version("arr-coc-stream")


def test_it_adds_lists_and_removes_watches(run: ServedPage) -> None:
    reply = fields(call(run, "add_watch", question="Is the door open?", name="door", hold_s=2))
    assert reply == {"watch": "door", "watches": [{"name": "door", "question": "Is the door open?"}]}
    assert fields(call(run, "list_watches")) == reply["watches"]
    assert run.run.commands == [AddWatch("door", "Is the door open?", hold_s=2.0)]
    assert fields(call(run, "remove_watch", name="door"))["watches"] == []
    run.run.refuses = "no watch is named 'door'; there is none"
    assert call(run, "remove_watch", name="door").content[0].text.endswith(run.run.refuses)


def test_it_searches_what_cameras_have_seen(tmp_path: Path) -> None:
    now_ms, run = time.time_ns() // 1_000_000, PastRun("camera", "camera", "scene:demo", 0)
    moments = [
        moment(1, "a red bus", run, unix_ms=now_ms - 7_200_000),
        moment(2, "a red car", run, unix_ms=now_ms - 1_000),
    ]
    path = written(tmp_path / "past.sqlite", moments)
    with served(past__file=path) as page:
        (match,) = fields(call(page, "search", words="red", since="1h"))
        assert (match["text"], match["kind"]) == ("a red car", "answer")
        assert match["time"].endswith("Z")
        assert len(fields(call(page, "search"))) == 2
        assert "there is no word in" in call(page, "search", words="?!").content[0].text
        refused = call(page, "search", since="soon")
        assert refused.is_error
        assert "since needs a time such as 2h" in refused.content[0].text


def test_a_page_that_remembers_nothing_says_so(run: ServedPage) -> None:
    result = call(run, "search", words="car")
    assert result.is_error
    assert result.content[0].text.endswith(NOT_REMEMBERED)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask", {"question": "x", "camera": "nix"}, "no camera is called 'nix'; the cameras are: camera"),
        ("ask", {"question": ""}, "at least 1 character"),
        ("ask", {"question": "x" * 4001}, "at most 4000 characters"),
        ("recent_answers", {"limit": 101}, "less than or equal to 100"),
        ("newest_picture", {"width": 1}, "greater than or equal to 64"),
        ("recent_answers", {"camera": "nix"}, "no camera is called 'nix'"),
    ],
)
def test_a_call_that_cannot_be_followed_is_an_error(
    run: ServedPage, tool: str, arguments: dict[str, Any], words: str
) -> None:
    result = call(run, tool, **arguments)
    assert result.is_error
    assert words in result.content[0].text
    assert run.run.commands == []


def test_an_agent_that_floods_is_refused_and_the_next_call_works(run: ServedPage) -> None:
    run.run.replies = ()

    async def flood(client: Client) -> list[Any]:
        tasks = [asyncio.ensure_future(client.call_tool("ask", {"question": "x"})) for _ in range(3 * CALLS_MAX)]
        ended_tasks: list[Any] = []
        while len(ended_tasks) + len(run.run.commands) < len(tasks):  # a call ends, or waits for its answer
            ended_tasks = [task for task in tasks if task.done()]
            await asyncio.sleep(0.01)
        for question in run.run.commands:
            run.emit(side_answer(question, "late"))
        results = await asyncio.gather(*tasks)
        run.run.replies = ("fine",)
        return results

    results = calls(run, flood)
    refused = [result.content[0].text for result in results if result.is_error]
    assert len(refused) >= 2 * CALLS_MAX
    assert any("calls are under way" in text for text in refused)
    assert not call(run, "list_cameras").is_error


def test_without_a_page_a_call_names_what_to_start() -> None:
    async def asked() -> Any:
        async with CameraPage("http://127.0.0.1:9") as page, Client(make_server(page)) as client:
            return await client.call_tool("list_cameras", {})

    result = asyncio.run(asked())
    assert result.is_error
    assert "start a run with --web" in result.content[0].text
