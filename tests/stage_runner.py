"""Runs one stage in a thread, with the test at the other ends of its links."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from stream.control import RunControl
from stream.messages import Message
from stream.stages.base import Stage, StageThread
from stream.transport import EventSource, Link, Port, Received, Transport
from tests.waiting import LIMIT_MS

M = TypeVar("M", bound=Message)


class StageRunner:
    """A context, a control, and what the test needs of both; closes everything at the end."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.control = RunControl()
        self._links: list[Link | EventSource | Port] = []
        self._thread: StageThread | None = None

    def link(self, endpoint: str, *, bind: bool = False) -> Link:
        link = self.transport.link(endpoint, bind=bind)
        self._links.append(link)
        return link

    def closing(self, end: EventSource | Port) -> None:
        """Closes `end` with the links."""
        self._links.append(end)

    def start(self, stage: Stage) -> None:
        self._thread = StageThread(stage, self.control)
        self._thread.start()

    def join(self) -> Exception | None:
        """Waits for the stage to end; the failure that it reported."""
        assert self._thread is not None
        self._thread.join(LIMIT_MS / 1000)
        assert not self._thread.is_alive()
        return self.control.failure

    def close(self) -> None:
        self.control.cancel()
        if self._thread is not None:
            self.join()
        for link in self._links:
            link.close()
        self.transport.close()


@contextmanager
def stage_runner() -> Iterator[StageRunner]:
    runner = StageRunner()
    try:
        yield runner
    finally:
        runner.close()


def expect(link: Link, kind: type[M]) -> M:
    """The next message, which must be of this kind."""
    return expect_whole(link, kind)[0]


def expect_whole(link: Link, kind: type[M]) -> tuple[M, Received]:
    """The next message, which must be of this kind, and what came with it."""
    received = link.receive(LIMIT_MS)
    assert received is not None, f"no {kind.__name__} came"
    assert isinstance(received.message, kind), f"{received.message} came"
    return received.message, received
