"""Starts the stages, notices the one that dies, and stops them all, every wait with a limit."""

from __future__ import annotations

import logging
import time

from stream.control import Control
from stream.errors import StageDied
from stream.events import Restarted
from stream.keeper import Keeper
from stream.stages.base import Stage, StageThread

JOIN_LIMIT_S = 5.0
"""How long the stages may take to end once they have been told to."""

log = logging.getLogger(__name__)


class Supervisor:
    """The threads and the child processes of one run."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._stages: list[Stage] = []
        self._threads: dict[str, StageThread] = {}
        self._keepers: dict[str, Keeper] = {}
        self._lent: set[str] = set()

    def start(self, *stages: Stage) -> None:
        """Runs each stage in a thread of its own."""
        for stage in stages:
            self._stages.append(stage)
            self._threads[stage.name] = StageThread(stage, self._control)
            self._threads[stage.name].start()

    def adopt(self, name: str, keeper: Keeper, *, lent: bool = False) -> None:
        """Looks after a child process from here on; one that is `lent` outlives this run."""
        self._keepers[name] = keeper
        if lent:
            self._lent.add(name)

    def alive(self, stage: str) -> bool:
        """Whether the stage's thread is still running."""
        return self._threads[stage].is_alive()

    @property
    def processes(self) -> dict[str, int]:
        """The child processes by name, and their ids."""
        keepers = self._keepers.copy()  # any thread asks, and the main one adds to them
        return {name: keeper.child.pid for name, keeper in keepers.items()}

    @property
    def drops(self) -> dict[str, int]:
        """What was dropped, by queue and cause."""
        return {queue: count for stage in self._stages for queue, count in stage.drops.items()}

    def watch(self) -> list[Restarted]:
        """Looks after the children, often: which of them had to be started again. A death for good fails the run."""
        if self._control.cancelled:
            return []
        try:
            return [told for keeper in self._keepers.values() if (told := keeper.watch()) is not None]
        except StageDied as death:
            self._control.fail(death)
            return []

    def stop(self) -> bool:
        """Tells every stage to end and waits for it; whether all of them did within JOIN_LIMIT_S.

        A thread that does not end is named in the log and left behind; a child is killed.
        """
        self._control.cancel()
        deadline_s = time.monotonic() + JOIN_LIMIT_S
        for thread in self._threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        for name, keeper in self._keepers.items():
            if name not in self._lent:
                keeper.stop()
        stuck = [name for name, thread in self._threads.items() if thread.is_alive()]
        if stuck:
            log.error("still running %s s after they were told to end: %s", JOIN_LIMIT_S, ", ".join(stuck))
        return not stuck
