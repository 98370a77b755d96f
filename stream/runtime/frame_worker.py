"""The frame stages as a process of their own: capture, texture and allocate, told by lines, telling by reports.

Its parent holds the answer process and the sinks, so that neither a loaded model nor an open output is lost when the
frame stages die. See `stream.runtime.supervised`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing

import msgspec

from stream.answer.scheduler import AnswerEndpoint
from stream.clock import MonotonicClock
from stream.config import Config
from stream.control import describe
from stream.protocol.buffers import SharedFrameWriter
from stream.runtime.child import Heartbeat
from stream.runtime.pipeline import Pipeline
from stream.runtime.worker_messages import (
    AnswerTimeout,
    DropReport,
    EventReport,
    FrameWorkerConfig,
    Report,
    SourceOpened,
    WorkerCommand,
    WorkerFailed,
    WorkerFinished,
    pack_report,
)
from stream.transport import EventSender, SocketDirectory, Transport

DROPS_EVERY_S = 0.5
"""How often the parent is told what has been dropped."""

ROOM_MS = 50
"""Longest single wait for the parent to take a report."""


class ReportSender:
    """The child's way to its parent; belongs to the thread that made it."""

    def __init__(self, transport: Transport, endpoint: str) -> None:
        self._sink: EventSender = transport.event_sender(endpoint)

    def send(self, report: Report) -> None:
        """Waits until the parent takes it: without a parent this process ends anyway."""
        data = pack_report(report)
        while not self._sink.send(data, ROOM_MS):
            pass

    def close(self) -> None:
        self._sink.close()


class ParentCommands:
    """Does what the parent tells, in a thread of its own; ends this process when stdin ends, as the parent is gone or
    wants no more.

    It listens from the beginning, because a source may take long to open. Until a pipeline is attached nothing is in
    flight: to be told to end is then to end at once.
    """

    def __init__(self, directory: SocketDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._pipeline: Pipeline | None = None
        self._asked: str | None = None
        threading.Thread(target=self._follow, name="lifeline", daemon=True).start()

    def attach(self, pipeline: Pipeline) -> None:
        """From here on `pipeline` is told."""
        with self._lock:
            self._pipeline = pipeline
            if self._asked is not None:
                pipeline.ask(self._asked)

    def _follow(self) -> None:
        for line in sys.stdin.buffer:
            with self._lock:
                self._hear(msgspec.json.decode(line, type=WorkerCommand))
        self._directory.remove()
        os._exit(1)

    def _hear(self, told: WorkerCommand) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            self._asked = told.ask or self._asked
            if told.end or told.cancel:
                os._exit(0)
            return
        if told.ask is not None:
            pipeline.ask(told.ask)
        if told.end:
            pipeline.end()
        if told.cancel:
            pipeline.cancel()


def main() -> int:
    """The child: runs the frame stages until they end, or its parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    worker = msgspec.json.decode(line, type=FrameWorkerConfig)
    transport = Transport()
    try:
        with closing(ReportSender(transport, worker.reports_to)) as reports:
            return _run(worker, transport, reports)
    finally:
        transport.close()


def _run(worker: FrameWorkerConfig, transport: Transport, reports: ReportSender) -> int:
    parent = ParentCommands(worker.directory)
    try:
        pipeline = Pipeline(
            Config.model_validate_json(worker.config),
            MonotonicClock(),
            speaker=worker.speaker,
            endpoint=_answer_endpoint(worker, transport),
            holds=worker.holds,
        )
        parent.attach(pipeline)
        reports.send(SourceOpened(info=pipeline.source_info, backend=pipeline.backend))
        Heartbeat(worker.heartbeat, pipeline.is_alive).ready()
        with closing(pipeline.packed_events()) as events:
            _report(events, pipeline, reports)
    except Exception as error:
        traceback.print_exc()
        reports.send(WorkerFailed(error=type(error).__name__, message=describe(error)))
        return 1
    return 0


def _report(events: Iterator[bytes], pipeline: Pipeline, reports: ReportSender) -> None:
    """Passes the run's events on, and what it has dropped."""
    told_s = time.monotonic()
    for event in events:
        reports.send(EventReport(event=event))
        if time.monotonic() - told_s > DROPS_EVERY_S:
            told_s = time.monotonic()
            reports.send(DropReport(drops=pipeline.drops()))
    reports.send(WorkerFinished(drops=pipeline.drops()))


def _answer_endpoint(worker: FrameWorkerConfig, transport: Transport) -> AnswerEndpoint | None:
    if not worker.answers:
        return None

    def hung() -> None:
        with closing(ReportSender(transport, worker.reports_to)) as own:
            own.send(AnswerTimeout())

    return AnswerEndpoint(worker.answers, snapshot=SharedFrameWriter(worker.snapshot), on_timeout=hung)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips taking torch apart, which the parent would wait for
