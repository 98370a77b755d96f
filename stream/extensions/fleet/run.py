"""Runs of several cameras at once: a thread for each, one process that answers for all, and the outcome of each."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass

from arr_coc.errors import ArrCocError
from stream.answer.model import CONFIGURED
from stream.config import Config
from stream.control import RunControl, describe, signals_handled
from stream.errors import OpeningCancelled, ReaderGone, SourceError, SourceOver, StreamError
from stream.events import Restarted, Summary
from stream.extension import SharedOpening, SinkType
from stream.extensions.fleet.cameras import NamedCamera, answered_together
from stream.extensions.fleet.outputs import CameraLines, without_shared
from stream.monitor.health import RunHandle, RunMonitor
from stream.runtime.answer_service import AnswerService
from stream.runtime.child import start_fork_server
from stream.runtime.fork_server import ForkServer
from stream.runtime.frame_process import run_in_child
from stream.runtime.session import FINISHING, STOPPING, run_session
from stream.sinks.base import Display, SharedSink
from stream.sinks.types import sink_types
from stream.sources.address import is_live_address, scrubbed
from stream.sources.timing import Backoff

POLL_S = 0.05
"""Time between two checks for cameras that have ended, and for restarts of answer processes."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CameraOutcome:
    """End of one camera: the summary of its run, or its error; neither if it was ended before its source was open."""

    camera: str
    summary: Summary | None = None
    error: Exception | None = None


def niceness(cameras: int) -> int:
    """Return the niceness of frame processes, with which they together weigh no more than two other processes.

    Otherwise the one process that answers for sixteen cameras has a seventeenth of a busy machine's time. A step of
    niceness is a factor of 1.25 (Linux, `sched_prio_to_weight`).
    """
    return max(0, math.ceil(math.log(cameras / 2, 1.25)))


def may_come_back(error: SourceError, config: Config) -> bool:
    """Return whether a source that cannot be opened is tried again, as one is that was lost: a live one."""
    may_reconnect = config.capture.reconnect and is_live_address(config.source)
    return may_reconnect and not isinstance(error, (OpeningCancelled, SourceOver))


class Fleet:
    """Several cameras, watched at once.

    Each has its own frame process, and a thread of this process for its outputs, and fails separately. `limit_s` ends
    each camera this many seconds after its first frame. `refused` maps cameras that are not begun to the reason, for
    metrics and page. `run` is for the main thread.
    """

    def __init__(
        self,
        cameras: Sequence[NamedCamera],
        display: Display,
        *,
        limit_s: float | None = None,
        refused: Mapping[str, str] | None = None,
        model_loader: str = CONFIGURED,
    ) -> None:
        self._refused = refused or {}
        self._monitors = {camera.name: RunMonitor(camera.config) for camera in cameras}
        self._shared_types: list[SinkType] = []
        self._shared: list[SharedSink] = []
        self._cameras = list(cameras)
        self._forks: ForkServer | None = None
        self._answers: dict[str, AnswerService] = {}
        self._restarts: list[deque[Restarted]] = []
        self._display = display
        self._limit_s = limit_s
        self._model_loader = model_loader
        self._controls = {camera.name: RunControl() for camera in cameras}
        self._outcomes: dict[str, CameraOutcome] = {}
        self._reader_gone: ReaderGone | None = None
        self._signals = 0
        self._unreachable: dict[str, str] = {}

    @property
    def controls(self) -> Sequence[RunControl]:
        """Controls of the cameras' runs, in their order."""
        return list(self._controls.values())

    def processes(self) -> dict[str, int]:
        """Return the shared processes, by what they do, and their ids; for any thread."""
        services = dict.fromkeys(self._answers.values())
        pids = {f"answers-{n}" if n > 1 else "answers": service.pid for n, service in enumerate(services, 1)}
        return {"main": os.getpid(), **{name: pid for name, pid in pids.items() if pid is not None}}

    def run(self) -> list[CameraOutcome]:
        """Run until every camera has ended; return the outcome of each, in their order.

        Raises OutputError if a file of JSON lines cannot be written, ReaderGone if the reader of stdout has gone.
        """
        with ExitStack() as stack:
            self._lines = stack.enter_context(closing(CameraLines(self._cameras)))
            self._open_shared(stack)
            self._start_answers(stack)
            stack.enter_context(signals_handled(self._on_signal))
            threads = {
                camera.name: threading.Thread(target=self._watch, args=(camera,), name=camera.name, daemon=True)
                for camera in self._cameras
            }
            for thread in threads.values():
                thread.start()
            # restarts of answer processes are shown until every camera has ended
            while running := [name for name, thread in threads.items() if thread.is_alive()]:
                for restarts in self._restarts:
                    while restarts:
                        restarted = restarts.popleft()
                        self._display.show_note(f"restarting {restarted.process}: {restarted.cause}")
                threads[running[0]].join(POLL_S)
        if self._reader_gone is not None:
            raise self._reader_gone
        return [self._outcomes[camera.name] for camera in self._cameras]

    def _start_answers(self, stack: ExitStack) -> None:
        """Start the fork server and the answer processes of this machine, until `stack` is closed."""
        self._forks = start_fork_server()
        if self._forks is not None:
            stack.enter_context(self._forks)
        for users in answered_together(self._cameras).values():
            service = AnswerService(
                users[0].config, runs=len(users), model_loader=self._model_loader, forks=self._forks
            )
            self._restarts.append(stack.enter_context(service.hold()))
            self._answers |= {camera.name: service for camera in users}

    def _open_shared(self, stack: ExitStack) -> None:
        """Open the outputs that all cameras share, such as the page, until `stack` is closed."""
        configs = {camera.name: camera.config for camera in self._cameras}
        self._shared_types = [
            sink for sink in sink_types() if sink.shared and any(sink.applies(config) for config in configs.values())
        ]
        opening = SharedOpening(configs, self._monitors, self._refused, self.processes)
        for sink_type in self._shared_types:
            self._shared.append(stack.enter_context(closing(sink_type.open_shared(opening))))

    def _watch(self, camera: NamedCamera) -> None:
        """Run one camera to its end, in a separate thread."""
        name = camera.name
        control = self._controls[camera.name]
        answers = self._answers.get(name)
        try:
            # Held also while the source is not there: a crash loop of the model ends the wait for it.
            with nullcontext() if answers is None else answers.hold(control):
                config = without_shared(camera.config)
                parts = [shared.part(name, camera.config, self._monitors[name]) for shared in self._shared]
                summary = run_session(
                    config,
                    self._display.camera(name),
                    extra=[*self._lines.sinks(camera), *parts],
                    make_run=self._opener(camera),
                    camera=name,
                    limit_s=self._limit_s,
                    left_out=self._shared_types,
                    monitor=self._monitors[name] if parts else None,
                    signals=False,
                )
            self._outcomes[name] = CameraOutcome(name, summary)
        except ReaderGone as error:
            self._reader_gone = error
            self._outcomes[name] = CameraOutcome(name, error=error)
            self._end_all()
        except OpeningCancelled:
            self._note_failure(camera, control.failure)
        except Exception as error:
            self._note_failure(camera, error)

    def _note_failure(self, camera: NamedCamera, error: Exception | None) -> None:
        """Note that a camera has ended without a summary; with no error, it was ended before its source was open."""
        self._outcomes[camera.name] = CameraOutcome(camera.name, error=error)
        if error is not None:
            log.debug("%s failed", camera.name, exc_info=error)
            message = describe(error)
            if not isinstance(error, (ArrCocError, StreamError)):
                message = f"unexpected {message}; this is a bug: --debug shows where"
            message = scrubbed(message, camera.config.source)
            self._display.show_failure(camera.name, message)
            self._monitors[camera.name].fail(message)
            for shared in self._shared:
                shared.failed(camera.name, message)

    def _opener(self, camera: NamedCamera) -> Callable[[Config], RunHandle]:
        """Return the opener of a camera's run, which tries again while the source may come back."""

        def opened(config: Config) -> RunHandle:
            waits = Backoff()
            while True:
                try:
                    return self._open(camera, config)
                except SourceError as error:
                    if not may_come_back(error, config):
                        raise
                    self._wait_for(camera, error, waits.next_s())

        return opened

    def _open(self, camera: NamedCamera, config: Config) -> RunHandle:
        """Return the open run of a camera."""
        return run_in_child(
            config,
            model_loader=self._model_loader,
            control=self._controls[camera.name],
            forks=self._forks,
            answers=self._answers.get(camera.name),
            standalone=False,
            nice=niceness(len(self._cameras)),
        )

    def _wait_for(self, camera: NamedCamera, error: SourceError, wait_s: float) -> None:
        """Report that a camera is unreachable, once for each reason, and wait before the next attempt."""
        reason = scrubbed(describe(error), camera.config.source)
        if self._unreachable.get(camera.name) != reason:
            self._unreachable[camera.name] = reason
            self._display.show_unreachable(camera.name, f"{reason}; trying again")
            self._monitors[camera.name].unreachable(reason)
            for shared in self._shared:
                shared.unreachable(camera.name, reason)
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s and not self._controls[camera.name].ending:
            time.sleep(POLL_S)

    def _on_signal(self, number: signal.Signals) -> None:
        """End all cameras well; the second signal cancels them, a third kills."""
        if number == signal.SIGHUP and self._signals:
            return
        self._signals += 1
        if self._signals == 1:
            self._end_all()
            self._display.show_message(FINISHING[number])
        elif self._signals == 2:
            for control in self._controls.values():
                control.cancel()
            self._display.show_message(STOPPING)
        else:
            raise KeyboardInterrupt

    def _end_all(self) -> None:
        for control in self._controls.values():
            control.end()
