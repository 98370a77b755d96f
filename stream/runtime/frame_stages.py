"""Frame stages as threads of this process: started, asked for their events, and stopped, however the run ends."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import cv2
import torch
from msgspec import structs

from arr_coc.backends.registry import probe_backend
from arr_coc.errors import DeviceLost
from arr_coc.texture.store.base import Backend
from arr_coc.texture.store.native import kernel_in_use
from arr_coc.types import FramePlanes, TileMotion
from arr_coc.video.picture_mask import PictureMask
from arr_coc.video.texture_updater import TextureUpdater
from stream.answer.admission import ServerOptions
from stream.answer.connection import AnswerEndpoint
from stream.answer.filters import Continuation
from stream.answer.model import CONFIGURED, load_answer_model
from stream.answer.scheduler import AnswerScheduler
from stream.answer.server import AnswerServer
from stream.answer.triggers import WatchStates
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.control import Command, RunControl, describe
from stream.events import Event, Notice, Restarted, pack_event, store_lost
from stream.extension.registry import parts_of
from stream.media import AllocationOverlay
from stream.monitor.statistics import RunStatistics
from stream.protocol.buffers import SlotTable
from stream.protocol.device_pixels import IpcPixelSender, LocalPixels
from stream.protocol.pictures import PictureEndpoints, PictureExchange
from stream.recording.identity import answer_provenance
from stream.runtime.answer_service import ANSWERS, AnswerService, remote_endpoint
from stream.runtime.pacing import short_pauses
from stream.runtime.pictures import PictureThread
from stream.runtime.plan import RunPlan, texture_interop
from stream.runtime.run import FRAMES, Run, picture_endpoints
from stream.runtime.worker_messages import (
    DropReport,
    Report,
    SourceOpened,
    WorkerFinished,
    pack_report,
    unpack_report,
)
from stream.sinks.types import caption_type, is_needed
from stream.sources.factory import open_source
from stream.sources.segments import SegmentRecorder
from stream.stages.allocate import AllocateContext, AllocateStage
from stream.stages.base import ALLOCATE_ANSWER, EVENTS, Stage, StageThread
from stream.stages.capture import CaptureStage
from stream.stages.frame_observer import FrameObserver
from stream.stages.frame_tap import FrameTap
from stream.stages.newest_frame import FrameParts
from stream.stages.texture import TextureStage
from stream.transport import EventReceiver, Transport, private_directory

POLL_MS = 50
"""Time that the main thread waits for an event before it polls the stages."""

PLANES = 4
"""Frames whose planes may be between capture and texture; credits keep them fewer."""

MOTIONS = 2
"""Frames whose motion may be between texture and allocate: each has a credit."""

DROPS_EVERY_S = 0.5
"""Time between two reports of drops."""

JOIN_LIMIT_S = 5.0
"""Time that the stages may take to end once the run has been cancelled."""

log = logging.getLogger(__name__)


class StageGroup:
    """Threads of one run."""

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._stages: list[Stage] = []
        self._threads: dict[str, StageThread] = {}

    def start(self, *stages: Stage) -> None:
        """Runs each stage in a separate thread."""
        for stage in stages:
            self._stages.append(stage)
            self._threads[stage.name] = StageThread(stage, self._control)
            self._threads[stage.name].start()

    def is_alive(self, stage: str) -> bool:
        """Returns whether the stage's thread is still running."""
        return self._threads[stage].is_alive()

    @property
    def drops(self) -> dict[str, int]:
        """Number of dropped items by queue and cause."""
        return {queue: count for stage in self._stages for queue, count in stage.drops.items()}

    def stop(self) -> bool:
        """Cancels the run and waits for the stages; returns whether all of them ended within JOIN_LIMIT_S.

        A thread that does not end is named in the log and left behind.
        """
        self._control.cancel()
        deadline_s = time.monotonic() + JOIN_LIMIT_S
        for thread in self._threads.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))
        stuck = [name for name, thread in self._threads.items() if thread.is_alive()]
        if stuck:
            log.error("still running %s s after the request to end: %s", JOIN_LIMIT_S, ", ".join(stuck))
        return not stuck


class FrameStages:
    """Frame worker in threads of this process, with its own answer stage or process if it is given none.

    Making one opens the source. `answers` is the answer process that it holds, `endpoint` one that its parent holds;
    `overlays` takes pictures for a heat map. `continuation` continues an earlier run, `watches` are the
    states of its watches. `maps`: frame events hold their relevance and regions, whatever the outputs. `wall_s` returns
    the Unix time that schedules count. `pictures_to`: addresses at which viewers of live pictures are served, if not in
    this process; `first_frame`: number of frames of the workers before.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        model_loader: str = CONFIGURED,
        answers: AnswerService | None = None,
        endpoint: AnswerEndpoint | None = None,
        overlays: SlotTable[AllocationOverlay] | None = None,
        continuation: Continuation | None = None,
        watches: WatchStates | None = None,
        maps: bool = False,
        wall_s: Callable[[], float] = time.time,
        pictures_to: PictureEndpoints | None = None,
        first_frame: int = 0,
    ) -> None:
        self._config = config
        self._clock = clock or MonotonicClock()
        self._control = RunControl()
        self._model_loader = model_loader
        self._answers = answers
        self._endpoint = remote_endpoint(config) if endpoint is None and config.answer.server else endpoint
        self._first_frame = first_frame
        self._notices: list[Notice] = []
        store = self._try_store()
        self._segments = _segment_recorder(config)
        self._source = open_source(config.source, config.capture, self._clock, config.network, self._segments)
        with ExitStack() as stack:
            stack.callback(self._source.close)
            self._info = info = self._source.describe()
            plan = RunPlan.of(config, info, continuation=continuation, watches=watches, wall_s=wall_s)
            self._plan = replace(plan, tap=replace(plan.tap, maps=plan.tap.maps or maps))
            stack.pop_all()
        # Drawn into the heat map: every frame, for which allocate waits. A live source does not wait.
        if is_needed(config, "overlays") and not self._plan.paced:
            self._overlays = overlays
        else:
            self._overlays = None
        interop, interop_off = texture_interop(config, self._backend)
        self._notices += [] if interop_off is None else [interop_off]
        self._interop = interop
        self._updater = TextureUpdater(replace(self._plan.texture, backend=store, interop=interop))
        self._group = StageGroup(self._control)
        self._reports = self.reports()
        self._resources = ExitStack()
        self.picture_endpoints = pictures_to or PictureEndpoints()
        if pictures_to is None and (is_needed(config, "viewer pictures") or is_needed(config, "overlays")):
            self.picture_endpoints = picture_endpoints(config, self._resources.enter_context(private_directory()))
        if self._overlays is not None:
            self.picture_endpoints = structs.replace(self.picture_endpoints, heatmap=None)

    def _try_store(self) -> Backend:
        """Probes which texture store runs; returns the backend to open."""
        backend = self._config.texture.backend
        try:
            self._backend = probe_backend(backend)
        except DeviceLost as error:
            if backend != "auto":
                raise
            self._backend = "cpu"
            self._notices.append(store_lost(str(error)))
            return "cpu"
        return backend

    @property
    def texture(self) -> TextureUpdater:
        """The texture that the stages write and read; closed at their end."""
        return self._updater

    def processes(self) -> dict[str, int]:
        """This process, and its answer process."""
        if self._answers is None:
            answers = None
        else:
            answers = self._answers.pid
        if answers is None:
            return {FRAMES: os.getpid()}
        return {FRAMES: os.getpid(), ANSWERS: answers}

    def is_alive(self) -> bool:
        """Returns whether the stages show signs of life; for any thread."""
        return self._control.is_alive(self._config.pipeline.heartbeat_s)

    def send(self, command: Command) -> None:
        """Passes a command on to the stages; for any thread."""
        self._control.send(command)

    def receive(self) -> Sequence[Report]:
        """Returns the next report, if one comes soon; the second call starts the stages."""
        data = next(self._reports, b"")
        return (unpack_report(data),) if data else ()

    def recover(self, error: Exception, *, source_lost: bool) -> None:
        """Raises the error: threads are not started again."""
        raise error

    def stop(self) -> None:
        """Cancels the stages, and waits for them."""
        self._reports.close()
        self._resources.close()

    def reports(self) -> Generator[bytes, None, None]:
        """Yields packed reports: the open source, the events of the stages, and their end. Nothing for a moment is b"".

        The stages begin with the second report. Raises the error of a stage that failed.
        """
        yield pack_report(SourceOpened(self._info, self._backend, kernel_in_use()))
        reported_s = time.monotonic()
        with self._stages() as events:
            yield from map(pack_event, [*self._notices, *self._plan.notices])
            for data in events:
                yield data
                if time.monotonic() - reported_s > DROPS_EVERY_S:
                    reported_s = time.monotonic()
                    yield pack_report(DropReport(self._group.drops))
        yield pack_report(DropReport(self._group.drops))
        if self._control.failure is not None:
            raise self._control.failure
        yield pack_report(WorkerFinished())

    @contextmanager
    def _stages(self) -> Iterator[Iterator[bytes]]:
        """Runs the stages inside the block, and gives their events, packed; stops and tidies up at its end."""
        with ExitStack() as stack:
            observers = self._open_observers(stack)
            if not self._config.pipeline.single_process:
                stack.enter_context(_one_thread_each())
            if self._plan.paced and self._config.pipeline.steady:
                stack.enter_context(short_pauses())
            transport = Transport()
            viewed = [endpoint for endpoint in structs.astuple(self.picture_endpoints) if endpoint is not None]
            pictures = [PictureThread(transport, endpoint, self._first_frame) for endpoint in viewed]
            events = transport.event_receiver(EVENTS)
            try:
                exchanges = tuple(thread.exchange for thread in pictures)
                endpoint, restarts = self._start_answer(stack, transport)
                endpoint = self._shared_pixels(stack, endpoint)
                received = self._received(events, restarts)
                on_event: tuple[Callable[[Event], None], ...] = ()
                if observers:
                    statistics = RunStatistics(self._clock, self._info.fps)
                    on_event = (statistics.add, *(observer.observe_event for observer in observers))
                    received = self._observed(received, observers, statistics)
                    opened = [observer.link_observer(endpoint.snapshot) for observer in observers]
                    if links := tuple(link for link in opened if link is not None):
                        endpoint = replace(endpoint, observers=links, pixels=None)
                self._start_frame_stages(transport, exchanges, endpoint, on_event, observers)
                yield received
            finally:
                ended = self._group.stop()
                for thread in pictures:
                    thread.stop()
                events.close()
                self._updater.close()
                if ended:
                    transport.close()

    def _open_observers(self, stack: ExitStack) -> list[FrameObserver]:
        """Opens the observers of these stages, which the extensions have, until `stack` is closed."""
        observers: list[FrameObserver] = []
        for observer in parts_of("frame_observer", self._config, self._info):
            stack.callback(observer.close)
            observers.append(observer)
        return observers

    def _received(self, events: EventReceiver, restarts: deque[Restarted]) -> Iterator[bytes]:
        """Yields events until the allocate stage has ended and nothing of it is left."""
        while True:
            while restarts:
                yield pack_event(restarts.popleft())
            alive = self._group.is_alive("allocate")
            data = events.receive(POLL_MS if alive else 0)
            if data is None and not alive:
                return
            yield data or b""

    def _observed(
        self, events: Iterator[bytes], observers: Sequence[FrameObserver], statistics: RunStatistics
    ) -> Iterator[bytes]:
        """Yields events and notices of the observers, which get a summary of these stages in the end."""
        for data in events:
            yield data
            for observer in observers:
                if (notice := observer.take_notice()) is not None:
                    yield pack_event(notice)
        control = self._control
        if self._updater.fallbacks:
            backend = "cpu"
        else:
            backend = self._backend
        if control.failure is None:
            error = None
        else:
            error = describe(control.failure)
        summary = statistics.summary(control.outcome, error, self._group.drops, backend)
        for observer in observers:
            observer.observe_event(summary)

    def _start_answer(self, stack: ExitStack, transport: Transport) -> tuple[AnswerEndpoint, deque[Restarted]]:
        """Starts the answer server, as a process or a thread, before the other stages: loading takes longest."""
        if self._endpoint is not None:
            return self._endpoint, deque()
        if self._config.pipeline.single_process and self._answers is None:
            place = ServerOptions(ALLOCATE_ANSWER, provenance=lambda: answer_provenance(self._config))
            pixels = LocalPixels()
            server = AnswerServer(
                lambda: load_answer_model(self._model_loader, self._config),
                place,
                transport,
                self._control,
                pixels=pixels,
            )
            self._group.start(server)
            return AnswerEndpoint(ALLOCATE_ANSWER, pixels=pixels), deque()
        self._answers = self._answers or AnswerService(
            self._config,
            self._clock,
            restart=self._plan.restart,
            lockstep=self._plan.schedule.lockstep,
            model_loader=self._model_loader,
        )
        restarts = stack.enter_context(self._answers.hold(self._control))
        return self._answers.endpoint, restarts

    def _shared_pixels(self, stack: ExitStack, endpoint: AnswerEndpoint) -> AnswerEndpoint:
        """Returns the endpoint with device memory shared with this process, if both may use a device."""
        on_cuda = self._backend == "cuda" or self._interop is not None
        if not on_cuda or endpoint.snapshot is None or endpoint.pixels is not None:
            return endpoint
        pixels = IpcPixelSender(self._interop)
        stack.callback(pixels.close)
        return replace(endpoint, pixels=pixels)

    def _start_frame_stages(
        self,
        transport: Transport,
        pictures: tuple[PictureExchange, ...],
        endpoint: AnswerEndpoint,
        on_event: tuple[Callable[[Event], None], ...],
        observers: Sequence[FrameObserver],
    ) -> None:
        plan = self._plan
        control = self._control
        clock = self._clock
        planes: SlotTable[FramePlanes] = SlotTable(PLANES)
        motions: SlotTable[TileMotion] = SlotTable(MOTIONS)
        client = replace(plan.client, snapshot=endpoint.snapshot, pixels=endpoint.pixels)
        context = AllocateContext(
            transport=transport,
            make_scheduler=lambda observer: AnswerScheduler(plan.schedule, endpoint, client, observer, control, clock),
            frame=FrameParts(
                tap=FrameTap(plan.tap, self._overlays, pictures, control.check, observers),
                lease=self._updater.lease,
                make_allocator=plan.make_allocator,
                budget=plan.budget,
                detections=plan.make_box_feed(clock),
            ),
            motions=motions,
            fragments=SlotTable(1, len) if self._segments is None else self._segments.fragments,
            observers=on_event,
        )
        self._group.start(
            CaptureStage(
                self._source,
                planes,
                transport,
                control,
                clock,
                drop_frames=plan.drop_frames,
                realtime=plan.realtime,
                segments=self._segments,
                mask=PictureMask(self._config.masks) if self._config.masks else None,
            ),
            TextureStage(self._updater, planes, motions, transport, control, drop_frames=plan.drop_frames),
            AllocateStage(plan.allocate, context, control, clock),
        )


def run_in_threads(
    config: Config,
    clock: Clock | None = None,
    *,
    model_loader: str = CONFIGURED,
    answers: AnswerService | None = None,
    continuation: Continuation | None = None,
    maps: bool = False,
) -> Run:
    """Opens a run whose frame stages, and so its `texture`, are in this process.

    Args:
        config: Configuration of the run.
        clock: Clock of the run, by default the monotonic one.
        model_loader: Name of the function that loads the model.
        answers: Answer process shared with other runs.
        continuation: What continues an earlier run.
        maps: Frame events hold their relevance and regions.

    Raises:
        StreamError: As `Run`.
        ArrCocError: As `Run`.
    """

    def stages(run: Run) -> FrameStages:
        return FrameStages(
            config,
            run.clock,
            model_loader=model_loader,
            answers=answers,
            overlays=run.overlays,
            continuation=continuation,
            maps=maps,
        )

    return Run(config, stages, clock, model_loader=model_loader)


def _segment_recorder(config: Config) -> SegmentRecorder | None:
    """Return the recorder of the source's video for outputs that need it, None without one. With masks it copies
    none."""
    streams = (path for path in config.output.paths if "segments" in caption_type(path).needs)
    folder = next((os.path.dirname(path) or "." for path in streams), None)
    in_memory = is_needed(config, "video")
    if folder is None and not in_memory:
        return None
    return SegmentRecorder(folder, config.value("hls.segment_s"), in_memory=in_memory, copies=not config.masks)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limits torch and OpenCV to one thread a stage: their pools would take the answer process's cores."""
    torch_threads = torch.get_num_threads()
    cv2_threads = cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        cv2.setNumThreads(cv2_threads)
