"""Frame processes of one run, one after another: how they are started, and the state that one leaves to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from stream.answer.triggers import NO_YES_OR_NO
from stream.clock import Clock
from stream.config import CaptureConfig, Config
from stream.events import STORE_LOST, Event, EventRebaser, Notice, QueryChanged, YesNoResult
from stream.protocol.pictures import PictureEndpoints
from stream.runtime.answer_service import AnswerService
from stream.runtime.child import ChildProcess
from stream.runtime.fork_server import ForkServer
from stream.runtime.worker_messages import FrameWorkerConfig, SourceOpened, WorkerCommand
from stream.transport import SocketDirectory

REPORTED_ONCE = ("loading", "model-files", "model-world", "glances-off", NO_YES_OR_NO)
"""Codes of notices that a frame process which was started again need not repeat."""

LEAST_PART_S = 1e-3
"""Part of a file that is left where its end has passed by now: the frame process finds nothing in it, and ends."""


class RunContinuity:
    """State that outlives a frame process: it makes those of one run, one after another, look like one.

    `config` is the whole run's. `backend`, `kernel`: as the event `started` has them; `pending_query`: a query that no
    answer server has accepted or refused yet; `verdict`: the answer to the standing query; None where that is unknown.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._query = config.answer.query
        self._rebaser = EventRebaser()
        self._reported = {"loading"}
        self._drops: Counter[str] = Counter()
        self._drops_before: Counter[str] = Counter()
        self.backend = self.kernel = ""
        self.pending_query: str | None = None
        self.verdict: bool | None = None

    @property
    def frames_before(self) -> int:
        """Number of frames before the present frame process."""
        return self._rebaser.frames_before

    def note_source(self, report: SourceOpened) -> None:
        """Notes that the present frame process has opened its source."""
        self.backend, self.kernel = report.backend, report.kernel
        self._rebaser.live = report.info.live

    def note_drops(self, drops: Mapping[str, int]) -> None:
        """Notes what the present frame process has dropped so far."""
        self._drops = Counter(drops)

    def drops(self) -> dict[str, int]:
        """Returns what all of them have dropped; for any thread."""
        return dict(self._drops_before + self._drops)

    def rebase(self, event: Event) -> Event | None:
        """Returns an event with the numbers and times of the whole run; None for a notice that was reported before."""
        if isinstance(event, Notice) and event.code in REPORTED_ONCE:
            if event.code in self._reported:
                return None
            self._reported.add(event.code)
        if isinstance(event, QueryChanged):
            self.pending_query = None
            self._query = self._query if event.error is not None else event.query
        elif isinstance(event, Notice) and event.code == STORE_LOST:
            self.backend = "cpu"
        elif isinstance(event, YesNoResult) and event.holds is not None:
            self.verdict = event.holds == "yes"
        return self._rebaser.apply(event)

    def next_config(self) -> Config:
        """Begins another frame process; returns its configuration, which goes on from where things stand."""
        self._drops_before = self._drops_before + self._drops  # another object: any thread reads the one there was
        self._drops = Counter()
        answer = self._config.answer.model_copy(update={"query": self._query})
        return self._config.model_copy(update={"answer": answer, "capture": self._rest_of_source()})

    def _rest_of_source(self) -> CaptureConfig:
        capture = self._config.capture
        begin_s = self._rebaser.next_epoch(self._clock.now_ns())
        if begin_s is None:
            return capture
        rest: dict[str, object] = {} if self._rebaser.live else {"start_s": begin_s}
        if capture.duration_s is not None:
            rest["duration_s"] = max(LEAST_PART_S, capture.start_s + capture.duration_s - begin_s)
        if capture.max_frames is not None:
            rest["max_frames"] = max(1, capture.max_frames - self._rebaser.frames_before)
        return capture.model_copy(update=rest)


class FrameWorkers:
    """Frame processes of a run: the one at work, and a spare one that waits with everything imported.

    They report to the address `reports_to`, and send live pictures to `pictures_to`. `answers` is None where the answer
    server is elsewhere. `directory` is the run's own, which a child removes where its parent cannot. `forks` forks
    them, where it is given. `spare`: another one is kept ready; `nice`: their niceness.
    """

    def __init__(
        self,
        continuity: RunContinuity,
        answers: AnswerService | None,
        model_loader: str,
        reports_to: str,
        directory: SocketDirectory,
        pictures_to: PictureEndpoints | None = None,
        forks: ForkServer | None = None,
        *,
        spare: bool = True,
        nice: int = 0,
    ) -> None:
        self._forks = forks
        self._keeps_spare = spare
        self._nice = nice
        self._continuity = continuity
        self._answers = answers
        self._model_loader = model_loader
        self._reports_to = reports_to
        self._directory = directory
        self._pictures_to = pictures_to or PictureEndpoints()
        self._spare: ChildProcess | None = None

    def start(self) -> ChildProcess:
        """Sets a frame process to work: the spare one, or a new one where that is not there or has died."""
        child, self._spare = self._spare or self._new(), None
        if child.exit_error() is not None:
            child.stop()
            child = self._new()
        config = FrameWorkerConfig(
            reports_to=self._reports_to,
            answers=None if self._answers is None else self._answers.address,
            snapshot=next(iter(self._inherited), None),
            heartbeat=child.heartbeat_writer,
            directory=self._directory,
            model_loader=self._model_loader,
            config=self._continuity.next_config().model_dump_json(),
            initial_verdict=self._continuity.verdict,
            pictures_to=self._pictures_to,
            first_frame=self._continuity.frames_before,
            nice=self._nice,
        )
        child.send_line(msgspec.json.encode(config))
        if self._continuity.pending_query is not None:
            child.send_line(msgspec.json.encode(WorkerCommand(query=self._continuity.pending_query)))
        return child

    def prestart(self) -> None:
        """Starts the spare process where there is to be one and none is, up to its imports."""
        if self._keeps_spare:
            self._spare = self._spare or self._new()

    def stop_spare(self) -> None:
        """Kills the spare process: it holds nothing, and may still be importing."""
        if self._spare is not None:
            self._spare.kill()
            self._spare.stop()

    @property
    def _inherited(self) -> tuple[int, ...]:
        """Descriptor of the memory that is shared with the answer process, if any."""
        shared = None if self._answers is None else self._answers.snapshot
        return () if shared is None else (shared.descriptor,)

    def _new(self) -> ChildProcess:
        environment = {"OMP_NUM_THREADS": "1"}
        return ChildProcess(
            "frame", "stream.runtime.frame_worker", self._inherited, environment, forks=self._forks, preload=True
        )
