"""Messages between a run, its frame worker and its answer process. Imports no torch."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stream.answer.triggers import WatchStates
from stream.control import AddWatch, Ask, AskAside, RemoveWatch, Stop
from stream.events import AnyEvent
from stream.protocol.pictures import PictureEndpoints
from stream.sources import SourceInfo
from stream.transport import SocketDirectory
from stream.transport.pool import SetServers


class FrameWorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of a frame process, its first line on stdin.

    `answers` is the address of its parent's answer process, None if the answer server is elsewhere; `snapshot` the
    descriptor of the memory shared with that, None if it answers for other runs too. `heartbeat` is the descriptor
    of the heartbeat's writing end. `watches`: the states of the watches of the process before.
    `pictures_to`: the address for requested pictures of frames. `first_frame`: number of frames of the processes
    before. `nice` is added to the process's niceness.
    """

    reports_to: str
    answers: str | None
    snapshot: int | None
    heartbeat: int
    directory: SocketDirectory
    model_loader: str
    config: str
    watches: WatchStates = msgspec.field(default_factory=WatchStates)
    pictures_to: PictureEndpoints = PictureEndpoints()
    first_frame: int = 0
    nice: int = 0


class AnswerWorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of an answer process, its first line on stdin. `reports_to` is the address for warnings of its log;
    `snapshot` (None without shared memory) and `heartbeat` are descriptors; `runs`: number of runs that it answers at
    once, 0 for one after another."""

    endpoint: str
    reports_to: str
    directory: SocketDirectory
    snapshot: int | None
    heartbeat: int
    threads: int
    model_loader: str
    config: str
    runs: int = 0


AnyCommand: TypeAlias = Ask | AskAside | AddWatch | RemoveWatch | SetServers | Stop
"""Command to a frame worker; to a frame process, a line on stdin."""


class SourceOpened(msgspec.Struct, frozen=True, tag_field="type", tag="source-opened"):
    """Report that the source is open. `backend` and `kernel` are as the event `started` has them."""

    info: SourceInfo
    backend: str
    kernel: str = ""


class DropReport(msgspec.Struct, frozen=True, tag_field="type", tag="drops"):
    """Report of the worker's drops so far, by queue and cause."""

    drops: dict[str, int]


class WorkerNote(msgspec.Struct, frozen=True, tag_field="type", tag="note"):
    """Report of a warning in the worker's log, for the log of the run."""

    logger: str
    message: str


class AnswerTimeout(msgspec.Struct, frozen=True, tag_field="type", tag="answer-timeout"):
    """Report that the answer process has been silent for too long."""


class WorkerFinished(msgspec.Struct, frozen=True, tag_field="type", tag="finished"):
    """Report that the frame stages have ended well."""


class WorkerFailed(msgspec.Struct, frozen=True, tag_field="type", tag="failed"):
    """Report that the frame stages have failed: class and message of the error."""

    error: str
    message: str


Report: TypeAlias = AnyEvent | SourceOpened | DropReport | WorkerNote | AnswerTimeout | WorkerFinished | WorkerFailed
"""Report of a frame worker. An event is one as it was packed by its stage: nothing between packs it again."""

pack_report = msgspec.msgpack.Encoder().encode
"""Returns the report as bytes."""

unpack_report = msgspec.msgpack.Decoder(Report).decode
"""Returns the report that `pack_report` or `pack_event` packed. Raises msgspec.DecodeError for anything else."""
