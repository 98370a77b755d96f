"""Starts the stages, notices the one that dies, and stops them all, every wait with a limit."""

from __future__ import annotations

import logging
import time

from stream.answer_process import AnswerProcess
from stream.stages.base import Control, Stage, StageThread

JOIN_LIMIT_S = 5.0
"""How long the stages may take to end once they have been told to."""

LAST_WORDS_S = 0.5
"""How long a dead child's last message may take to be heard, before the death itself is reported."""

log = logging.getLogger(__name__)


class Supervisor:
    """The threads and the child process of one run."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._stages: list[Stage] = []
        self._threads: dict[str, StageThread] = {}
        self._child: AnswerProcess | None = None
        self._death_seen_s: float | None = None

    def start(self, *stages: Stage) -> None:
        """Runs each stage in a thread of its own."""
        for stage in stages:
            self._stages.append(stage)
            self._threads[stage.name] = StageThread(stage, self._control)
            self._threads[stage.name].start()

    def adopt(self, child: AnswerProcess) -> None:
        """Looks after the answer process from here on."""
        self._child = child

    def alive(self, stage: str) -> bool:
        """Whether the stage's thread is still running."""
        return self._threads[stage].is_alive()

    @property
    def processes(self) -> dict[str, int]:
        """The child's process id, where there is one."""
        return {} if self._child is None else {"answers": self._child.pid}

    @property
    def drops(self) -> dict[str, int]:
        """What was dropped, by queue and cause."""
        return {queue: count for stage in self._stages for queue, count in stage.drops.items()}

    def watch(self) -> None:
        """Reports the death of the child, once its last words have had time to arrive. To be called often."""
        death = self._child.death() if self._child else None
        if death is None or self._control.cancelled:
            return
        now_s = time.monotonic()
        if self._death_seen_s is None:
            self._death_seen_s = now_s
        elif now_s - self._death_seen_s > LAST_WORDS_S:
            self._control.fail(death)

    def stop(self) -> bool:
        """Tells every stage to end and waits for it; whether all of them did within JOIN_LIMIT_S.

        A thread that does not end is named in the log and left behind; the child is killed.
        """
        self._control.cancel()
        deadline_s = time.monotonic() + JOIN_LIMIT_S
        for thread in self._threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._child is not None:
            self._child.stop()
        stuck = [name for name, thread in self._threads.items() if thread.is_alive()]
        if stuck:
            log.error("still running %s s after they were told to end: %s", JOIN_LIMIT_S, ", ".join(stuck))
        return not stuck
