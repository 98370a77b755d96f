"""One run in this process: wires the stages, starts them, watches them, and stops them whatever happens."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import cv2
import torch

from arr_coc.errors import ArrCocError, DeviceLost
from arr_coc.ops.backends import try_store
from arr_coc.ops.store.base import Backend
from arr_coc.types import FramePlanes
from arr_coc.video.texture_updater import TextureUpdater
from stream.answer.client_table import ServerOptions
from stream.answer.latency import target_off
from stream.answer.model import QWEN, load_answer_model, model_name
from stream.answer.model_world import check_watched
from stream.answer.scheduler import AnswerEndpoint, cancel_off
from stream.answer.server import AnswerServer
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.control import RunControl, describe
from stream.errors import ConfigError, StageDied
from stream.events import AnyEvent, FrameReady, Notice, Restarted, Started, store_lost, unpack_event
from stream.media import Overlay
from stream.monitor.statistics import RunStatistics
from stream.protocol.buffers import Slots
from stream.recording.identity import answering
from stream.recording.journal import Journal
from stream.recording.recorder import RecordedTalk, Recorder
from stream.runtime.answer_worker import ANSWERS, AnswerWorker, SharedAnswerWorker, remote_endpoint
from stream.runtime.child import ProcessSupervisor
from stream.runtime.wiring import (
    allocate_policy,
    allocator_for,
    capture_policy,
    latency_target,
    manners,
    restarts,
    speak_policy,
    texture_options,
)
from stream.sources import SourceInfo
from stream.sources.factory import open_source
from stream.stages.allocate import AllocateStage, AllocateWiring
from stream.stages.base import ALLOCATE_ANSWER, EVENTS, Stage, StageThread
from stream.stages.capture import CaptureStage
from stream.stages.texture import TextureStage
from stream.transport import EventSource, Transport

POLL_MS = 50
"""How long the main thread waits for an event before it looks after the stages."""

PLANES = 4
"""Frames whose planes may be between capture and texture; credits keep them fewer."""

OVERLAYS = 2
"""Pictures that may wait for the sink that draws them."""


class Pipeline:
    """A source, a question and a model, run once.

    Making one tries the texture store, opens the source and looks at the model's folder, so that what cannot work fails
    here: raises StreamError or ArrCocError. `run` is a generator for the main thread. `end` and `cancel` may be called
    from any thread and from signal handlers. `speaker` names the function that opens the model, as "module:function";
    `answers` is an answer stage that somebody else runs, `shared` a process that answers for other runs too; `journal`
    holds the answers of a run that this one continues, `holds` is the answer to its standing question.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        speaker: str = QWEN,
        answers: AnswerEndpoint | None = None,
        shared: SharedAnswerWorker | None = None,
        journal: Journal | None = None,
        holds: bool | None = None,
    ) -> None:
        self._config = config
        self._journal = journal
        self._holds = holds
        self._answers = remote_endpoint(config) if answers is None and config.answer.server else answers
        self._shared = shared
        self._clock = clock or MonotonicClock()
        self._speaker = speaker
        self._store_lost: Notice | None = None
        wanted = self._try_store()
        self._source = open_source(config.source, config.capture, self._clock, config.network)
        self._info = self._source.describe()
        self._model = self._model_name()
        self._control = RunControl()
        self._overlays: Slots[Overlay] = Slots(OVERLAYS)
        self._updater = TextureUpdater(texture_options(config, wanted))
        self._group: StageGroup | None = None
        self._recorder: Recorder | None = None
        self.statistics = RunStatistics(self._clock, self._info.fps)

    @property
    def source_info(self) -> SourceInfo:
        """What the source says about itself."""
        return self._info

    @property
    def backend(self) -> str:
        """The texture store that runs."""
        return "cpu" if self._updater.fallbacks else self._backend

    def end(self) -> None:
        """No new frames; what is in flight is finished."""
        self._control.end()

    def cancel(self) -> None:
        """Everything stops; what is in flight is dropped."""
        self._control.cancel()

    def ask(self, query: str) -> None:
        """Changes the question, from any thread; an `Asked` event tells what became of it."""
        self._control.ask(query)

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do ("frames", "answers"), and their ids."""
        answers = {} if self._group is None else self._group.processes
        return {"frames": os.getpid(), **answers}

    def drops(self) -> dict[str, int]:
        """What has been dropped so far, by queue and cause; for any thread."""
        return {} if self._group is None else self._group.drops

    def is_alive(self) -> bool:
        """Whether the stages show signs of life."""
        return self._control.is_alive(self._config.pipeline.heartbeat_s)

    def take_overlay(self, slot: int) -> Overlay:
        """The picture that a FrameReady names; there until the next event is asked for.

        Raises TransportError where it has been taken before or is gone.
        """
        return self._overlays.take(slot)

    def run(self) -> Generator[AnyEvent, None, None]:
        """Every event of the run, in order, the summary last; called once, and read by one thread.

        Closing the iterator stops everything. After the summary of a run that failed, raises what it failed of:
        StageDied, which names the stage, or the error that the user can put right.
        """
        with ExitStack() as stack:
            if self._config.output.record is not None:
                self._recorder = Recorder(self._config.output.record, self._info.name, live=self._info.live)
                stack.callback(self._recorder.close)
            yield from self._run()

    def _run(self) -> Generator[AnyEvent, None, None]:
        with self._stages() as (source, group):
            query = self._config.answer.asked
            yield Started(source=self._info.name, model=self._model, query=query, backend=self._backend)
            if self._store_lost is not None:
                yield self._store_lost
            yield Notice(code="loading", message=f"loading {self._model}")
            if self._config.answer.target_ms is not None and latency_target(self._config, self._info) is None:
                yield target_off()
            policy = speak_policy(self._config, self._info)
            if policy.cancel_on_cut and policy.lockstep:
                yield cancel_off()
            for event in _received(source, group):
                self.statistics.add(event)
                yield event
                if isinstance(event, FrameReady) and event.slot is not None:
                    self._overlays.discard(event.slot)
                if self._recorder is not None and (notice := self._recorder.take_notice()) is not None:
                    yield notice
            outcome = self._control.outcome
        failure = self._control.failure
        ended, error = (outcome, None) if failure is None else ("error", describe(failure))
        summary = self.statistics.summary(ended, error, group.drops, self.backend)
        if self._recorder is not None:
            self._recorder.happened(summary)
            self._recorder.close()  # whoever hears the summary may end this process
        yield summary
        if failure is not None:
            raise failure

    def _try_store(self) -> Backend:
        """Finds out which texture store runs; returns what is to be asked of it."""
        wanted = self._config.texture.backend
        try:
            self._backend = try_store(wanted)
        except DeviceLost as error:
            if wanted != "auto":
                raise
            self._backend, self._store_lost = "cpu", store_lost(str(error))
            return "cpu"
        return wanted

    def _model_name(self) -> str:
        if self._speaker != QWEN:
            return self._speaker
        if self._config.answer.server is not None:
            return self._config.answer.server
        try:
            check_watched(self._config)
            return model_name(self._config)
        except (ArrCocError, ConfigError):
            self._source.close()
            raise

    @contextmanager
    def _stages(self) -> Iterator[tuple[EventSource, StageGroup]]:
        """The running stages; stopped and tidied up at the end, however it comes."""
        with ExitStack() as stack:
            if not self._config.pipeline.single_process:
                stack.enter_context(_one_thread_each())
            transport = Transport()
            events = transport.event_source(EVENTS)
            group = self._group = StageGroup(self._control)
            try:
                answer = self._start_answer(stack, transport, group)
                self._start_frame_stages(transport, answer, group)
                yield events, group
            finally:
                ended = group.stop()
                events.close()
                self._updater.close()
                if ended:
                    transport.close()

    def _start_answer(self, stack: ExitStack, transport: Transport, group: StageGroup) -> AnswerEndpoint:
        """Starts the answer stage first, because its model takes longest, as a process or as a thread."""
        if self._answers is not None:
            return self._answers
        if self._shared is not None:
            group.add_process(ANSWERS, self._shared.supervisor(), lent=True)
            return self._shared.reach
        if self._config.pipeline.single_process:
            place = ServerOptions(ALLOCATE_ANSWER, answering=lambda: answering(self._config))
            group.start(
                AnswerServer(lambda: load_answer_model(self._speaker, self._config), place, transport, self._control)
            )
            return AnswerEndpoint(ALLOCATE_ANSWER)
        restart = restarts(self._config, self._info)
        answers = AnswerWorker(self._config, self._speaker, self._clock, restart=restart)
        stack.callback(answers.close)
        group.add_process(ANSWERS, answers.start())
        return answers.reach

    def _start_frame_stages(self, transport: Transport, answer: AnswerEndpoint, group: StageGroup) -> None:
        config, control, clock = self._config, self._control, self._clock
        planes: Slots[FramePlanes] = Slots(PLANES)
        if self._recorder is not None:
            answer = replace(answer, tap=RecordedTalk(self._recorder, answer.snapshot))
        policy = capture_policy(config, self._info)
        wiring = AllocateWiring(
            transport=transport,
            answer=answer,
            speak=speak_policy(config, self._info, self._holds),
            manners=manners(config, self._info, answer, self._journal),
            overlays=self._overlays if config.output.heatmap else None,
            lease=self._updater.lease,
            make_allocator=lambda hello: allocator_for(config, self._info, hello),
            target=latency_target(config, self._info),
            recorder=self._recorder,
        )
        group.start(
            CaptureStage(self._source, policy, planes, transport, control, clock),
            TextureStage(self._updater, planes, transport, control, newest=policy.newest),
            AllocateStage(allocate_policy(config, self._info), wiring, control, clock),
        )


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Keeps torch and OpenCV to the stages' own threads: their pools would take the answer process's cores."""
    torch_threads, cv2_threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        cv2.setNumThreads(cv2_threads)


def _received(source: EventSource, group: StageGroup) -> Iterator[AnyEvent]:
    """Events until the allocate stage has ended and nothing of it is left."""
    while True:
        yield from group.poll()
        alive = group.is_alive("allocate")
        data = source.receive(POLL_MS if alive else 0)
        if data is not None:
            yield unpack_event(data)
        elif not alive:
            return


JOIN_LIMIT_S = 5.0
"""How long the stages may take to end once they have been told to."""

log = logging.getLogger(__name__)


class StageGroup:
    """The threads and the child processes of one run."""

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._stages: list[Stage] = []
        self._threads: dict[str, StageThread] = {}
        self._supervisors: dict[str, ProcessSupervisor] = {}
        self._lent: set[str] = set()

    def start(self, *stages: Stage) -> None:
        """Runs each stage in a thread of its own."""
        for stage in stages:
            self._stages.append(stage)
            self._threads[stage.name] = StageThread(stage, self._control)
            self._threads[stage.name].start()

    def add_process(self, name: str, supervisor: ProcessSupervisor, *, lent: bool = False) -> None:
        """Looks after a child process from here on; one that is `lent` outlives this run."""
        self._supervisors[name] = supervisor
        if lent:
            self._lent.add(name)

    def is_alive(self, stage: str) -> bool:
        """Whether the stage's thread is still running."""
        return self._threads[stage].is_alive()

    @property
    def processes(self) -> dict[str, int]:
        """The child processes by name, and their ids."""
        supervisors = self._supervisors.copy()  # any thread asks, and the main one adds to them
        return {name: supervisor.child.pid for name, supervisor in supervisors.items()}

    @property
    def drops(self) -> dict[str, int]:
        """What was dropped, by queue and cause."""
        return {queue: count for stage in self._stages for queue, count in stage.drops.items()}

    def poll(self) -> list[Restarted]:
        """Looks after the children, often: which of them had to be started again. A death for good fails the run."""
        if self._control.cancelled:
            return []
        try:
            return [told for supervisor in self._supervisors.values() if (told := supervisor.poll()) is not None]
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
        for name, supervisor in self._supervisors.items():
            if name not in self._lent:
                supervisor.stop()
        stuck = [name for name, thread in self._threads.items() if thread.is_alive()]
        if stuck:
            log.error("still running %s s after they were told to end: %s", JOIN_LIMIT_S, ", ".join(stuck))
        return not stuck
