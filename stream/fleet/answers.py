"""Answer processes of several cameras: one for all whose model and options are the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from arr_coc.budget import ADAPTIVE, AUTO
from stream.answer.model import CONFIGURED
from stream.config import Config
from stream.errors import StageDied
from stream.events import Restarted
from stream.fleet.cameras import NamedCamera
from stream.recording.identity import ANSWER_KEYS
from stream.runtime.fork_server import ForkServer
from stream.runtime.shared_answers import SharedAnswers

ANSWERED_BY = {*ANSWER_KEYS, "model", "allocator", "slots"} - {"target_ms"}
"""Keys of `answer` that an answer process is started with; the other keys are each camera's own."""


def answering_options(config: Config) -> str | None:
    """Return what an answer process must be started with, equal where one may answer for both; None where a camera
    has an answer server elsewhere, or a process of its own that asks one over the network."""
    answer = config.answer
    if answer.elsewhere:
        return None
    options = answer.model_dump(mode="json", include=ANSWERED_BY)
    if answer.window.frames > 1:
        allocate, has_target = config.allocate, answer.target_ms is not None
        options |= {"budget": allocate.budget, "target": has_target}
        if has_target or allocate.budget in (AUTO, ADAPTIVE):
            options |= {"limits": [allocate.min_tokens, allocate.max_tokens]}
    return json.dumps(options, sort_keys=True)


def answered_together(cameras: Iterable[NamedCamera]) -> dict[str, list[NamedCamera]]:
    """Return the cameras for which one answer process may answer, by what it must be started with; none of those that
    have an answer server elsewhere."""
    together: dict[str, list[NamedCamera]] = {}
    for camera in cameras:
        options = answering_options(camera.config)
        if options is not None:
            together.setdefault(options, []).append(camera)
    return together


class AnswersOfCameras(Protocol):
    """Answer servers of several cameras, as the fleet sees them: processes of this machine, or servers elsewhere."""

    def of(self, camera: NamedCamera) -> SharedAnswers | None: ...

    def running(
        self, model_loader: str = CONFIGURED, forks: ForkServer | None = None
    ) -> AbstractContextManager[None]: ...

    def poll(self, needed: Iterable[str]) -> Iterator[tuple[list[str], Restarted | Exception]]: ...

    def processes(self) -> dict[str, int]: ...


class CameraAnswers:
    """Answer processes of several cameras; `running` and `poll` are for one thread, the rest for any."""

    def __init__(self, cameras: Iterable[NamedCamera]) -> None:
        together = answered_together(cameras)
        self._configs = {options: users[0].config for options, users in together.items()}
        self._users = {options: [camera.name for camera in users] for options, users in together.items()}
        self._shared: dict[str, SharedAnswers] = {}
        self._alive: set[str] = set()

    def __len__(self) -> int:
        return len(self._configs)

    def of(self, camera: NamedCamera) -> SharedAnswers | None:
        """Return the process that answers for a camera; None where it has another answer server."""
        options = answering_options(camera.config)
        return None if options is None else self._shared[options]

    @contextmanager
    def running(self, model_loader: str = CONFIGURED, forks: ForkServer | None = None) -> Iterator[None]:
        """Runs the processes inside the block; `forks` forks them, where it is given."""
        try:
            for options, config in self._configs.items():
                answers = self._shared[options] = SharedAnswers(
                    config, runs=len(self._users[options]), model_loader=model_loader, forks=forks
                )
                answers.start()
                self._alive.add(options)
            yield
        finally:
            for answers in self._shared.values():
                answers.close()

    def poll(self, needed: Iterable[str]) -> Iterator[tuple[list[str], Restarted | StageDied]]:
        """Yields, for each process that was started again or has died for good, the names of its cameras and that.

        A process that is needed by no camera of `needed` any more is left alone.
        """
        names = set(needed)
        for options in sorted(self._alive):
            users = self._users[options]
            if names.isdisjoint(users):
                continue
            try:
                restarted = self._shared[options].poll()
            except StageDied as error:
                self._alive.discard(options)
                yield users, error
            else:
                if restarted is not None:
                    yield users, restarted

    def processes(self) -> dict[str, int]:
        """Return the ids of the processes, "answers" and, where there are several, "answers-2" and so on."""
        pids = [answers.pid for answers in tuple(self._shared.values())]
        return {f"answers-{n}" if n > 1 else "answers": pid for n, pid in enumerate(pids, 1) if pid is not None}
