"""Run in this process: starts the stages, polls them for events, and stops them, however the run ends."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import cv2
import torch
from msgspec import structs

from arr_coc.errors import DeviceLost
from arr_coc.ops.backends import probe_backend
from arr_coc.ops.store.base import Backend
from arr_coc.ops.store.native import kernel_in_use
from arr_coc.types import FramePlanes
from arr_coc.video.texture_updater import TextureUpdater
from stream.answer.client_table import ServerOptions
from stream.answer.connection import AnswerEndpoint
from stream.answer.model import CONFIGURED, load_answer_model
from stream.answer.server import AnswerServer
from stream.clock import Clock
from stream.config import Config, OutputConfig, is_hls
from stream.control import RunControl
from stream.events import Event, FrameReady, Glance, Notice, Restarted, Summary, pack_event, store_lost, unpack_event
from stream.media import AllocationOverlay
from stream.protocol.buffers import SlotTable
from stream.protocol.device_pixels import IpcPixelSender, LocalPixels
from stream.protocol.pictures import PictureEndpoints, PictureExchange
from stream.recording.identity import answer_provenance
from stream.recording.journal import Journal
from stream.recording.recorder import LinkRecorder, Recorder
from stream.runtime.answer_service import ANSWERS, AnswerService, remote_endpoint
from stream.runtime.pacing import short_pauses
from stream.runtime.pictures import PictureThread
from stream.runtime.plan import RunPlan, texture_interop
from stream.runtime.run import BaseRun, picture_endpoints
from stream.sources.factory import open_source
from stream.sources.segments import SegmentRecorder
from stream.stages.allocate import AllocateContext, AllocateStage
from stream.stages.base import ALLOCATE_ANSWER, EVENTS, Stage, StageThread
from stream.stages.capture import CaptureStage
from stream.stages.texture import TextureStage
from stream.transport import EventReceiver, Transport, private_directory

POLL_MS = 50
"""Time that the main thread waits for an event before it polls the stages."""

PLANES = 4
"""Frames whose planes may be between capture and texture; credits keep them fewer."""

OVERLAYS = 2
"""Pictures that may wait for the sink that draws them."""

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
        """Runs each stage in a thread of its own."""
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


class Pipeline(BaseRun):
    """A run whose frame stages are threads of this process.

    `endpoint` is an answer server that somebody else runs, `shared` a process that answers for other runs too;
    `journal` holds the answers of a run that this one continues, `initial_verdict` the answer to its standing query.
    `pictures_to` is where viewers ask for live pictures, if not in this process; `first_frame` the number of frames
    before this run's.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        model_loader: str = CONFIGURED,
        endpoint: AnswerEndpoint | None = None,
        shared: AnswerService | None = None,
        journal: Journal | None = None,
        initial_verdict: bool | None = None,
        pictures_to: PictureEndpoints | None = None,
        first_frame: int = 0,
    ) -> None:
        super().__init__(config, clock, model_loader)
        self._endpoint = remote_endpoint(config) if endpoint is None and config.answer.server else endpoint
        self._answers = shared
        self._answer_restarts: deque[Restarted] = deque()
        self._first_frame = first_frame
        self._store_lost: Notice | None = None
        self._pictures_to = pictures_to
        store = self._try_store()
        self._segments = _segment_recorder(config.output)
        self._source = open_source(config.source, config.capture, self._clock, config.network, self._segments)
        with ExitStack() as stack:
            stack.callback(self._source.close)
            info = self._source.describe()
            self._set_source(info)
            stack.pop_all()
        self._overlays: SlotTable[AllocationOverlay] = SlotTable(OVERLAYS)
        self._plan = RunPlan.of(config, info, journal=journal, initial_verdict=initial_verdict)
        interop, self._interop_off = texture_interop(config, self._backend)
        self._on_cuda = self._backend == "cuda" or interop is not None
        self._updater = TextureUpdater(replace(self._plan.texture, backend=store, interop=interop))
        self._group = StageGroup(self._control)
        self._recorder: Recorder | None = None

    def _try_store(self) -> Backend:
        """Probes which texture store runs; returns the backend to open."""
        wanted = self._config.texture.backend
        try:
            self._backend = probe_backend(wanted)
        except DeviceLost as error:
            if wanted != "auto":
                raise
            self._backend, self._store_lost = "cpu", store_lost(str(error))
            return "cpu"
        return wanted

    @property
    def backend(self) -> str:
        """The texture store that runs."""
        return "cpu" if self._updater.fallbacks else self._backend

    @property
    def kernel(self) -> str:
        """The kernel that works on texels in host memory."""
        return kernel_in_use()

    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do ("frames", "answers"), and their ids."""
        answers = None if self._answers is None else self._answers.pid
        return {"frames": os.getpid()} if answers is None else {"frames": os.getpid(), ANSWERS: answers}

    def drops(self) -> dict[str, int]:
        """Number of dropped items so far, by queue and cause; for any thread."""
        return self._group.drops

    def is_alive(self) -> bool:
        """Returns whether the stages show signs of life."""
        return self._control.is_alive(self._config.pipeline.heartbeat_s)

    def take_overlay(self, slot: int) -> AllocationOverlay:
        """Returns the picture that a FrameReady names; it is there until the next event is asked for.

        Raises TransportError where it has been taken before or is gone.
        """
        return self._overlays.take(slot)

    def packed_events(self) -> Generator[bytes, None, None]:
        """Yields the events of the stages, packed, for another process that counts them; in the place of `run`.

        Raises what the run failed of.
        """
        with self._stages() as events:
            yield from map(pack_event, self._notices())
            for event in events:
                if self._recorder is not None:
                    self.statistics.add(unpack_event(event))  # a recording has a summary of its own
                yield event
            self._summary()
        if self._control.failure is not None:
            raise self._control.failure

    @contextmanager
    def _running(self) -> Iterator[Iterator[Event]]:
        with self._stages() as events:
            yield self._unpacked(events)

    def _unpacked(self, events: Iterator[bytes]) -> Iterator[Event]:
        """Yields the events; the picture that one of them names is discarded when the next one is asked for."""
        for data in events:
            event = unpack_event(data)
            yield event
            if isinstance(event, (FrameReady, Glance)) and event.slot is not None:
                self._overlays.discard(event.slot)

    def _notices(self) -> list[Notice]:
        lost = [notice for notice in (self._store_lost, self._interop_off) if notice is not None]
        return [*lost, *super()._notices(), *self._plan.notices]

    def _summary(self) -> Summary:
        summary = super()._summary()
        if self._recorder is not None:
            self._recorder.event(summary)
        return summary

    @contextmanager
    def _stages(self) -> Iterator[Iterator[bytes]]:
        """Runs the stages inside the block, and gives their events, packed; stops and tidies up at its end."""
        with ExitStack() as stack:
            if self._config.output.record is not None:
                info = self.source_info
                self._recorder = Recorder(self._config.output.record, info.name, live=info.live)
                stack.callback(self._recorder.close)
            if not self._config.pipeline.single_process:
                stack.enter_context(_one_thread_each())
            if self._plan.paced and self._config.pipeline.steady:
                stack.enter_context(short_pauses())
            transport = Transport()
            pictures = self._start_pictures(stack, transport)
            events = transport.event_receiver(EVENTS)
            try:
                exchanges = tuple(thread.exchange for thread in pictures)
                self._start_frame_stages(
                    transport, exchanges, self._shared_pixels(stack, self._start_answer(stack, transport))
                )
                yield self._received(events)
            finally:
                ended = self._group.stop()
                for thread in pictures:
                    thread.stop()
                events.close()
                self._updater.close()
                if ended:
                    transport.close()

    def _received(self, events: EventReceiver) -> Iterator[bytes]:
        """Yields events until the allocate stage has ended and nothing of it is left."""
        while True:
            while self._answer_restarts:
                yield pack_event(self._answer_restarts.popleft())
            if self._recorder is not None and (notice := self._recorder.take_notice()) is not None:
                yield pack_event(notice)
            alive = self._group.is_alive("allocate")
            data = events.receive(POLL_MS if alive else 0)
            if data is not None:
                yield data
            elif not alive:
                return

    def _start_answer(self, stack: ExitStack, transport: Transport) -> AnswerEndpoint:
        """Starts the answer server, as a process or a thread, before the other stages: loading takes longest."""
        if self._endpoint is not None:
            return self._endpoint
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
            return AnswerEndpoint(ALLOCATE_ANSWER, pixels=pixels)
        self._answers = self._answers or AnswerService(
            self._config,
            self._clock,
            restart=self._plan.restart,
            lockstep=self._plan.schedule.lockstep,
            model_loader=self._model_loader,
        )
        self._answer_restarts = stack.enter_context(self._answers.hold(self._control))
        return self._answers.endpoint

    @property
    def _draws_all(self) -> bool:
        """Whether a heat map shows every frame, for which allocate waits: of a source that waits for it too."""
        return self._config.output.heatmap is not None and not self._plan.paced

    def _start_pictures(self, stack: ExitStack, transport: Transport) -> list[PictureThread]:
        """Starts what encodes pictures for whoever looks at frames that do not wait, where there may be somebody."""
        output = self._config.output
        if self._pictures_to is not None:
            self.picture_endpoints = self._pictures_to
        elif output.web is not None or output.heatmap is not None:
            self.picture_endpoints = picture_endpoints(output, stack.enter_context(private_directory()))
        if self._draws_all:
            self.picture_endpoints = structs.replace(self.picture_endpoints, heatmap=None)
        named = structs.astuple(self.picture_endpoints)
        return [PictureThread(transport, endpoint, self._first_frame) for endpoint in named if endpoint is not None]

    def _shared_pixels(self, stack: ExitStack, endpoint: AnswerEndpoint) -> AnswerEndpoint:
        """Returns the endpoint with device memory that it shares with this process, where both may have a device."""
        if not self._on_cuda or endpoint.snapshot is None or endpoint.pixels is not None:
            return endpoint
        pixels = IpcPixelSender()
        stack.callback(pixels.close)
        return replace(endpoint, pixels=pixels)

    def _start_frame_stages(
        self, transport: Transport, pictures: tuple[PictureExchange, ...], endpoint: AnswerEndpoint
    ) -> None:
        plan, control, clock = self._plan, self._control, self._clock
        planes: SlotTable[FramePlanes] = SlotTable(PLANES)
        if self._recorder is not None:
            endpoint = replace(endpoint, observer=LinkRecorder(self._recorder, endpoint.snapshot), pixels=None)
        context = AllocateContext(
            transport=transport,
            endpoint=endpoint,
            schedule=plan.schedule,
            client=replace(plan.client, snapshot=endpoint.snapshot, pixels=endpoint.pixels),
            overlays=self._overlays if self._draws_all else None,
            lease=self._updater.lease,
            make_allocator=plan.make_allocator,
            latency=plan.make_latency_controller(),
            recorder=self._recorder,
            pictures=pictures,
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
            ),
            TextureStage(self._updater, planes, transport, control, drop_frames=plan.drop_frames),
            AllocateStage(plan.allocate, context, control, clock),
        )


def _segment_recorder(output: OutputConfig) -> SegmentRecorder | None:
    """Returns what records the source's video for an output of HLS, where there is one."""
    folder = next((os.path.dirname(path) or "." for path in output.paths if is_hls(path)), None)
    return None if folder is None else SegmentRecorder(folder, output.hls.segment_s)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limits torch and OpenCV to one thread a stage: their pools would take the answer process's cores."""
    torch_threads, cv2_threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        cv2.setNumThreads(cv2_threads)
