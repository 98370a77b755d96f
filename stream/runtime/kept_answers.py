"""Answer process of runs that follow one another: the model is loaded for the first of them and stays."""

from __future__ import annotations

import threading
from contextlib import suppress

from stream.answer.model import CONFIGURED
from stream.config import Config
from stream.control import RunControl
from stream.errors import StageDied
from stream.runtime.fork_server import ForkServer
from stream.runtime.shared_answers import SharedAnswers

POLL_S = 0.05
"""Time between two looks at the process."""


class KeptAnswers:
    """Answer process of one run after another, which all have the same model and options.

    A thread of its own starts the process again where it dies. `forks` forks it, where it is given.
    """

    def __init__(self, config: Config, *, model_loader: str = CONFIGURED, forks: ForkServer | None = None) -> None:
        self._config = config
        self._model_loader = model_loader
        self._forks = forks
        self._lock = threading.Lock()
        self._answers: SharedAnswers | None = None
        self._control: RunControl | None = None
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name="answers", daemon=True)

    def of(self, control: RunControl) -> SharedAnswers | None:
        """Return the process for the next run, `control`'s; None where a server elsewhere answers."""
        if self._config.answer.elsewhere:
            return None
        with self._lock:
            self._control = control
            if self._answers is None:
                self._answers = SharedAnswers(self._config, model_loader=self._model_loader, forks=self._forks)
                self._answers.start()
            if not self._watch.is_alive():
                self._watch.start()
            return self._answers

    def forget(self) -> None:
        """Stop the process, so that the next run begins with a new one."""
        with self._lock:
            self._stop()

    def close(self) -> None:
        """Stop the process for good."""
        self._closing.set()
        with suppress(RuntimeError):  # it was never started
            self._watch.join()
        self.forget()

    def _stop(self) -> None:
        if self._answers is not None:
            self._answers.close()
        self._answers = None

    def _keep_alive(self) -> None:
        while not self._closing.wait(POLL_S):
            with self._lock:
                if self._answers is None:
                    continue
                try:
                    self._answers.poll()
                except StageDied as error:
                    self._stop()
                    if self._control is not None:
                        self._control.fail(error)
