"""A stage of the pipeline, the thread that runs it, and the names of the links between stages."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from stream.control import CancelledError, RunControl, failure_of

CAPTURE_TEXTURE = "inproc://capture-texture"
TEXTURE_ALLOCATE = "inproc://texture-allocate"
ALLOCATE_ANSWER = "inproc://allocate-answer"
EVENTS = "inproc://events"

log = logging.getLogger(__name__)


class Stage(Protocol):
    """A step of the pipeline; `run` makes, uses and closes the stage's links, and returns after End or Cancel."""

    name: str

    @property
    def drops(self) -> dict[str, int]:
        """Number of dropped items by queue and cause."""
        ...

    def run(self) -> None: ...


class StageThread(threading.Thread):
    """Thread that runs one stage and reports its error."""

    def __init__(self, stage: Stage, control: RunControl) -> None:
        super().__init__(name=stage.name, daemon=True)
        self._stage = stage
        self._control = control

    def run(self) -> None:
        """Runs the stage; an error fails the run."""
        try:
            self._stage.run()
        except CancelledError:
            log.debug("the %s stage was cancelled", self._stage.name)
        except Exception as error:
            log.debug("the %s stage failed", self._stage.name, exc_info=True)
            self._control.fail(failure_of(self._stage.name, error))
        finally:
            self._control.stage_ended()
