"""The frame processes of one run: how they are started one after another, and what each leaves to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from stream.answer.triggers import NO_YES_OR_NO
from stream.clock import Clock
from stream.config import CaptureConfig, Config
from stream.events import STORE_LOST, Event, EventRebaser, Notice, QueryChanged, Started, YesNoResult
from stream.runtime.answer_worker import AnswerWorker
from stream.runtime.child import ChildProcess
from stream.runtime.worker_messages import FrameWorkerConfig, SourceOpened, WorkerCommand
from stream.transport import SocketDirectory

ONCE = ("loading", "model-world", NO_YES_OR_NO)
"""Notices that need no repeating by a frame process that was started again."""


LEAST_S = 1e-3
"""Of a file's part, where its end has passed by now: the frame process finds nothing in it, and ends."""


class RunContinuity:
    """The frame processes of one run, one after another, as if they were one.

    `config` is the whole run's. `backend`: the texture store that runs; `asked`: a question that no answer stage has
    taken or refused yet; `holds`: the answer to the standing question; None where that is not known.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._query = config.answer.query
        self._rebaser = EventRebaser()
        self._told_once = {"loading"}
        self._drops: Counter[str] = Counter()
        self._drops_before: Counter[str] = Counter()
        self.backend = ""
        self.asked: str | None = None
        self.holds: bool | None = None

    @property
    def frames_before(self) -> int:
        """How many frames there were before the present frame process."""
        return self._rebaser.frames_before

    def opened(self, report: SourceOpened) -> None:
        """The present frame process has opened its source."""
        self.backend = report.backend
        self._rebaser.live = report.info.live

    def dropped(self, drops: Mapping[str, int]) -> None:
        """What the present frame process has dropped so far."""
        self._drops = Counter(drops)

    def drops(self) -> dict[str, int]:
        """What has been dropped in all; for any thread."""
        return dict(self._drops_before + self._drops)

    def take(self, event: Event) -> Event | None:
        """An event of the present frame process as the whole run counts; None for what has been told before."""
        if self._told_before(event):
            return None
        if isinstance(event, QueryChanged):
            self.asked = None
            self._query = self._query if event.error is not None else event.query
        elif isinstance(event, Notice) and event.code == STORE_LOST:
            self.backend = "cpu"
        elif isinstance(event, YesNoResult) and event.holds is not None:
            self.holds = event.holds == "yes"
        return self._rebaser.apply(event)

    def next(self) -> Config:
        """The configuration of the frame process that begins now, which goes on from where things stand."""
        self._drops_before = self._drops_before + self._drops  # another object: any thread reads the one there was
        self._drops = Counter()
        answer = self._config.answer.model_copy(update={"query": self._query})
        return self._config.model_copy(update={"answer": answer, "capture": self._rest_of_source()})

    def _rest_of_source(self) -> CaptureConfig:
        """What is left to be read."""
        capture = self._config.capture
        begin_s = self._rebaser.next_epoch(self._clock.now_ns())
        if begin_s is None:
            return capture
        rest: dict[str, object] = {} if self._rebaser.live else {"start_s": begin_s}
        if begin_s is not None and capture.duration_s is not None:
            rest["duration_s"] = max(LEAST_S, capture.start_s + capture.duration_s - begin_s)
        if capture.max_frames is not None:
            rest["max_frames"] = max(1, capture.max_frames - self._rebaser.frames_before)
        return capture.model_copy(update=rest)

    def _told_before(self, event: Event) -> bool:
        """What every frame process tells as it begins, and the whole run tells once."""
        if not isinstance(event, Notice) or event.code not in ONCE:
            return isinstance(event, Started)
        before = event.code in self._told_once
        self._told_once.add(event.code)
        return before


class FrameWorkers:
    """Makes a run's frame processes. They report to the address `reports`; `answers` None: those are elsewhere.

    `directory` is the run's own, which a child removes where its parent cannot.
    """

    def __init__(
        self,
        continuity: RunContinuity,
        answers: AnswerWorker | None,
        speaker: str,
        reports: str,
        directory: SocketDirectory,
    ) -> None:
        self._continuity = continuity
        self._answers = answers
        self._speaker = speaker
        self._reports = reports
        self._directory = directory
        self._spare: ChildProcess | None = None

    def start(self) -> ChildProcess:
        """A frame process at work: the spare one where there is one, else a new one."""
        if self._spare is not None and self._spare.exit_error() is not None:
            self._spare.stop()
            self._spare = None
        child, self._spare = self._spare or self._new(), None
        config = self._continuity.next()
        orders = FrameWorkerConfig(
            reports_to=self._reports,
            answers="" if self._answers is None else self._answers.address,
            snapshot=-1 if self._answers is None else self._answers.snapshot.descriptor,
            heartbeat=child.heartbeat_writer,
            directory=self._directory,
            speaker=self._speaker,
            config=config.model_dump_json(),
            holds=self._continuity.holds,
        )
        child.send_line(msgspec.json.encode(orders))
        if self._continuity.asked is not None:
            child.send_line(msgspec.json.encode(WorkerCommand(ask=self._continuity.asked)))
        return child

    def prestart(self) -> None:
        """Starts the next frame process, up to its orders, where none waits; for when there is time."""
        if self._spare is None:
            self._spare = self._new()

    def stop_spare(self) -> None:
        """Ends the one that waits: it holds nothing, and may still be importing."""
        if self._spare is not None:
            self._spare.kill()
            self._spare.stop()

    def _new(self) -> ChildProcess:
        inherited = () if self._answers is None else (self._answers.snapshot.descriptor,)
        return ChildProcess("frame", "stream.runtime.frame_worker", inherited, {"OMP_NUM_THREADS": "1"})
