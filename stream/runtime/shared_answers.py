"""Answer process that several runs of this program share: the model is loaded once, and they take turns."""

from __future__ import annotations

import threading

from arr_coc.types import NS_PER_S
from stream.answer.model import CONFIGURED
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.events import Restarted
from stream.runtime.answer_worker import AnswerWorker
from stream.runtime.child import ProcessSupervisor
from stream.runtime.fork_server import ForkServer


class SharedAnswers:
    """Answer process for several runs at once.

    Its owner's thread starts, polls and closes it; the runs' threads ask for the rest. `config` holds the model and
    the options that all of them have in common, `runs` is their number. `forks` forks the process, where it is given.
    """

    snapshot = None
    """No memory is shared with the runs: one of them would overwrite the frame of another."""

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        runs: int = 1,
        model_loader: str = CONFIGURED,
        forks: ForkServer | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._silence_limit_s = config.pipeline.timeout_s
        self._worker = AnswerWorker(
            config, self._clock, restart=True, several=runs, model_loader=model_loader, forks=forks
        )
        self._supervisor: ProcessSupervisor | None = None
        self._lock = threading.Lock()
        self._restarts: list[Restarted] = []
        self._started_ns = 0
        self._hung = False

    @property
    def address(self) -> str:
        """Address of the process; there before it is started."""
        return self._worker.address

    @property
    def pid(self) -> int | None:
        """Id of the process; None before it is started."""
        return None if self._supervisor is None else self._supervisor.child.pid

    def start(self) -> None:
        """Starts the process."""
        self._started_ns = self._clock.now_ns()
        self._supervisor = self._worker.start()

    def poll(self) -> Restarted | None:
        """Starts the process again where it died or hangs; returns the event of that. To be called often.

        Raises StageDied in a crash loop.
        """
        assert self._supervisor is not None, "it was started"
        with self._lock:
            hung, self._hung = self._hung, False
        if hung:
            self._worker.kill_hung()
        restarted = self._supervisor.poll()
        if restarted is not None:
            with self._lock:
                self._started_ns = self._clock.now_ns()
                self._restarts.append(restarted)
        return restarted

    def restarts_since(self, seen: int) -> list[Restarted]:
        """Returns the restarts after the first `seen` ones; for any thread."""
        with self._lock:
            return self._restarts[seen:]

    def report_hung(self) -> None:
        """Reports that a run has waited for it too long; for any thread.

        Several runs report the same silence: what was started since cannot have been silent for so long.
        """
        with self._lock:
            up_s = (self._clock.now_ns() - self._started_ns) / NS_PER_S
            self._hung = self._hung or up_s > self._silence_limit_s

    def close(self) -> None:
        """Stops the process."""
        self._worker.close()
