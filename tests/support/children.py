"""The processes that the tests' own process has started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker

import psutil

from stream.runtime.answer_service import AnswerService
from stream.runtime.child import ChildProcess, start_fork_server
from stream.runtime.fork_server import ForkedProcess, ForkServer
from stream.runtime.frame_process import run_in_child


class SharedForkServer:
    """Fork server of a whole test session, started with the first process: torch is imported once, not once a run."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._environment = dict(os.environ)
        self._server: ForkServer | None = None

    @property
    def pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def fork(
        self,
        module: str,
        output: int,
        inherited: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        *,
        preload: bool = False,
    ) -> ForkedProcess | None:
        """Forks a process that also has the environment variables which a test has set."""
        if self._server is None and (started := start_fork_server()) is not None:
            self._environment = dict(os.environ)
            self._server = self._stack.enter_context(started)
        if self._server is None:
            return None
        changed = {name: value for name, value in os.environ.items() if self._environment.get(name) != value}
        return self._server.fork(module, output, inherited, {**changed, **(environment or {})}, preload=preload)

    def __enter__(self) -> SharedForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        """It outlives the run that it was given to."""

    def close(self) -> None:
        self._stack.close()


SHARED = SharedForkServer()


@contextmanager
def forks_shared() -> Iterator[None]:
    """Processes that are started within are forked from `SHARED`, unless the caller names a fork server or None."""
    starters = (ChildProcess.__init__, AnswerService.__init__, run_in_child)
    for starter in starters:
        starter.__kwdefaults__["forks"] = SHARED
    yield
    for starter in starters:
        starter.__kwdefaults__["forks"] = None
    SHARED.close()


def own_children() -> list[psutil.Process]:
    """Every process below this one that is alive, but the shared fork server and multiprocessing's own process."""
    tracker = getattr(resource_tracker, "_resource_tracker")  # noqa: B009
    shared_pids = {tracker._pid, SHARED.pid}
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in shared_pids]
