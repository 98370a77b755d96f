"""Entry point of a frame process: capture, texture and allocate, commanded by lines on stdin, reporting by a socket.

Its parent, a `FrameProcess`, holds the answer process, and its run the sinks: neither a loaded model nor an open output
is lost when the frame stages die.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from contextlib import closing
from pathlib import Path

import msgspec

from stream.answer.connection import AnswerEndpoint
from stream.clock import MonotonicClock
from stream.config import Config
from stream.control import Command, Stop, describe
from stream.protocol.buffers import SharedFrameWriter
from stream.runtime.child import Heartbeat
from stream.runtime.frame_stages import FrameStages
from stream.runtime.worker_log import ParentLog
from stream.runtime.worker_messages import (
    AnswerTimeout,
    AnyCommand,
    FrameWorkerConfig,
    WorkerFailed,
    pack_report,
)
from stream.transport import EventSender, SocketDirectory, Transport, remove_after_parent

SEND_MS = 50
"""Longest single wait for the parent to take a report."""


class ReportSender:
    """Sends reports to the parent; belongs to the thread that made it."""

    def __init__(self, transport: Transport, endpoint: str) -> None:
        self._sink: EventSender = transport.event_sender(endpoint)

    def send(self, report: bytes) -> None:
        """Sends a packed report; waits until the parent takes it. Without a parent this process ends anyway."""
        while not self._sink.send(report, SEND_MS):
            pass

    def close(self) -> None:
        """Closes the socket."""
        self._sink.close()


class ParentCommands:
    """Follows the parent's commands, in a separate thread.

    The end of stdin ends this process: the parent is gone, or has stopped it. Commands are followed from the beginning,
    because a source may take long to open. Until the stages are attached nothing is in flight, and the process ends at
    once.
    """

    def __init__(self, directory: SocketDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._stages: FrameStages | None = None
        self._waiting: list[Command] = []
        threading.Thread(target=self._follow, name="lifeline", daemon=True).start()

    def attach(self, stages: FrameStages) -> None:
        """Passes commands to `stages` from here on."""
        with self._lock:
            self._stages = stages
            for command in self._waiting:
                stages.send(command)

    def _follow(self) -> None:
        for line in sys.stdin.buffer:
            with self._lock:
                self._obey(msgspec.json.decode(line, type=AnyCommand))
        remove_after_parent(self._directory)
        os._exit(1)

    def _obey(self, command: Command) -> None:
        if self._stages is not None:
            self._stages.send(command)
        elif isinstance(command, Stop):
            os._exit(0)
        else:
            self._waiting.append(command)


def main() -> int:
    """Runs the frame stages until they end, or the parent is gone; returns the exit status."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    worker = msgspec.json.decode(line, type=FrameWorkerConfig)
    if worker.nice:
        _be_nice(worker.nice)
    transport = Transport()
    log_handler = ParentLog(transport, worker.reports_to)
    logging.getLogger().addHandler(log_handler)
    try:
        with closing(ReportSender(transport, worker.reports_to)) as reports:
            return _run(worker, transport, reports)
    finally:
        log_handler.close()
        transport.close()


def _be_nice(by: int) -> None:
    """Leaves the processor to other processes of the run.

    This process runs in a separate session. Linux may schedule sessions as groups (autogroup); then the group's
    niceness counts, not the process's.
    """
    os.nice(by)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(by), encoding="ascii")


def _run(worker: FrameWorkerConfig, transport: Transport, reports: ReportSender) -> int:
    parent = ParentCommands(worker.directory)
    try:
        stages = FrameStages(
            Config.decode(worker.config),
            MonotonicClock(),
            model_loader=worker.model_loader,
            endpoint=_answer_endpoint(worker, transport),
            watches=worker.watches,
            pictures_to=worker.pictures_to,
            first_frame=worker.first_frame,
        )
        parent.attach(stages)
        with closing(stages.reports()) as packed:
            reports.send(next(packed))  # the source is open
            Heartbeat(worker.heartbeat, stages.is_alive).ready()
            for report in packed:
                if report:
                    reports.send(report)
    except Exception as error:
        traceback.print_exc()
        reports.send(pack_report(WorkerFailed(error=type(error).__name__, message=describe(error))))
        return 1
    return 0


def _answer_endpoint(worker: FrameWorkerConfig, transport: Transport) -> AnswerEndpoint | None:
    if worker.answers is None:
        return None

    def report_timeout() -> None:
        with closing(ReportSender(transport, worker.reports_to)) as sender:
            sender.send(pack_report(AnswerTimeout()))

    if worker.snapshot is None:
        snapshot = None
    else:
        snapshot = SharedFrameWriter(worker.snapshot)
    return AnswerEndpoint(worker.answers, snapshot=snapshot, on_timeout=report_timeout)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skips taking torch apart, which the parent would wait for
