"""Side questions of one camera's run, and the events with which the run replies to each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from stream.clock import RateLimit
from stream.control import SIDE_QUESTIONS_MAX, WATCH_CHANGES_MAX, AskAside, WatchChange
from stream.events import Event, Restarted, SideAnswer, SideRefused, SideText, Summary, WatchesChanged
from stream.monitor.health import ANSWERS, RunMonitor

QUESTIONS_A_SECOND = 2.0
QUESTIONS_AT_ONCE = 8.0

REPLY_LIMIT_S = 300.0
"""Longest silence of a run that owes the next piece of an answer: a large model on a CPU reads for a minute."""

RESTARTED = "a process of the run died; ask again"

ENDED = "the run has ended"


ALONE = "camera"
"""Name of the camera of a run without a name."""

T = TypeVar("T")


class QuestionRefused(Exception):
    """Refusal of a question, in one line. `status` is that of the HTTP reply."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


def named_cameras(hubs: Mapping[str, T]) -> dict[str, T]:
    """Return the cameras of a page by the names that programs use; a run without a name is called `camera`."""
    return {name or ALONE: hub for name, hub in hubs.items()}


def chosen_camera(cameras: Mapping[str, Any], name: str) -> str:
    """Return the name of a camera, or of the only one if `name` is empty. Raises QuestionRefused."""
    name = name or (next(iter(cameras)) if len(cameras) == 1 else "")
    if name not in cameras:
        raise QuestionRefused(f"no camera is called {name[:80]!r}; the cameras are: {', '.join(cameras)}", 404)
    return name


class SideReplies:
    """Replies to the side questions of one camera, each for the client that asked. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Queue[SideText | SideAnswer | SideRefused]] = {}
        self._numbers = itertools.count(1)
        self._rate = RateLimit(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)

    async def ask(self, monitor: RunMonitor | None, query: str) -> AsyncIterator[SideText | SideAnswer]:
        """Ask the run that `monitor` follows; yield the pieces of the answer, and the whole one last.

        Raises QuestionRefused, also in the middle of the answer.
        """
        if len(self._open) >= SIDE_QUESTIONS_MAX or not self._rate.take(time.monotonic()):
            raise QuestionRefused("too many questions at once; ask again in a moment", 429)
        question = AskAside(next(self._numbers), query)
        replies: asyncio.Queue[SideText | SideAnswer | SideRefused] = asyncio.Queue()
        self._open[question.number] = replies
        try:
            problem = "nothing runs; choose a source first" if monitor is None else monitor.send(question)
            if problem is not None:
                raise QuestionRefused(problem, 409)
            while True:
                try:
                    reply = await asyncio.wait_for(replies.get(), REPLY_LIMIT_S)
                except asyncio.TimeoutError:
                    raise QuestionRefused(f"no answer came for {REPLY_LIMIT_S:.0f} s; ask again", 504) from None
                if isinstance(reply, SideRefused):
                    raise QuestionRefused(reply.error, 503)
                yield reply
                if isinstance(reply, SideAnswer):
                    return
        finally:
            del self._open[question.number]

    async def answer(self, monitor: RunMonitor | None, query: str) -> SideAnswer:
        """Return the whole answer to a question. Raises QuestionRefused."""
        async with aclosing(self.ask(monitor, query)) as replies:  # type: ignore[type-var]
            async for reply in replies:
                if isinstance(reply, SideAnswer):
                    return reply
        raise AssertionError("replies end with an answer or a refusal")

    def take(self, event: Event) -> bool:
        """Take an event of the run; return whether it is a reply to one client, and not for viewers."""
        if isinstance(event, (SideText, SideAnswer, SideRefused)):
            if event.question in self._open:
                self._open[event.question].put_nowait(event)
            return True
        if isinstance(event, Summary) or (isinstance(event, Restarted) and event.process != ANSWERS):
            for number, replies in self._open.items():
                replies.put_nowait(
                    SideRefused(question=number, error=ENDED if isinstance(event, Summary) else RESTARTED)
                )
        return False


class WatchReplies:
    """Replies to changes of one camera's watches, each for the client that asked. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[str | None]] = {}
        self._rate = RateLimit(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)

    async def change(self, monitor: RunMonitor | None, change: WatchChange) -> None:
        """Add or remove a watch of the run that `monitor` follows; return once that is done. Raises QuestionRefused."""
        if len(self._open) >= WATCH_CHANGES_MAX or change.name in self._open or not self._rate.take(time.monotonic()):
            raise QuestionRefused("too many changes at once; try again in a moment", 429)
        reply: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._open[change.name] = reply
        try:
            problem = "nothing runs; choose a source first" if monitor is None else monitor.send(change)
            if problem is None:
                problem = await asyncio.wait_for(reply, REPLY_LIMIT_S)
        except asyncio.TimeoutError:
            raise QuestionRefused(f"no reply came for {REPLY_LIMIT_S:.0f} s; list the watches", 504) from None
        finally:
            del self._open[change.name]
        if problem is not None:
            raise QuestionRefused(problem, 409)

    def take(self, event: Event) -> None:
        """Take an event of the run."""
        if isinstance(event, WatchesChanged):
            self._settle(event.watch, event.error)
        elif isinstance(event, Summary):
            for name in self._open:
                self._settle(name, ENDED)

    def _settle(self, name: str, error: str | None) -> None:
        if (reply := self._open.get(name)) is not None and not reply.done():
            reply.set_result(error)
