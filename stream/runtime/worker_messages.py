"""Messages between a run and its worker processes: commands on stdin, reports over a socket. Imports no torch."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stream.protocol.pictures import PictureEndpoints
from stream.sources import SourceInfo
from stream.transport import SocketDirectory


class FrameWorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of a frame process, its first line on stdin.

    `answers` is the address of its parent's answer process, None where the answer server is elsewhere; `snapshot` the
    descriptor of the memory shared with that, None where it answers for other runs too. `heartbeat` is the descriptor
    of the heartbeat's writing end. `initial_verdict`: the answer to the standing query, as the process before left it.
    `pictures_to`: where those wait who want pictures of frames. `first_frame`: number of frames of the processes
    before. `nice` is added to the process's niceness.
    """

    reports_to: str
    answers: str | None
    snapshot: int | None
    heartbeat: int
    directory: SocketDirectory
    model_loader: str
    config: str
    initial_verdict: bool | None = None
    pictures_to: PictureEndpoints = PictureEndpoints()
    first_frame: int = 0
    nice: int = 0


class AnswerWorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of an answer process, its first line on stdin. `snapshot` (None without shared memory) and
    `heartbeat` are descriptors; `runs`: number of runs that it answers at once, 0 for one after another."""

    endpoint: str
    directory: SocketDirectory
    snapshot: int | None
    heartbeat: int
    threads: int
    model_loader: str
    config: str
    runs: int = 0


class WorkerCommand(msgspec.Struct, frozen=True):
    """Command to a frame process, a line on stdin. `query`: the query from the next answer on."""

    end: bool = False
    cancel: bool = False
    query: str | None = None


class SourceOpened(msgspec.Struct, frozen=True, tag="source-opened"):
    """Report that the source is open. `backend` and `kernel` are as the event `started` has them."""

    info: SourceInfo
    backend: str
    kernel: str = ""


class EventReport(msgspec.Struct, frozen=True, tag="event"):
    """Report of an event, packed."""

    event: bytes


class DropReport(msgspec.Struct, frozen=True, tag="drops"):
    """Report of what this process has dropped so far, by queue and cause."""

    drops: dict[str, int]


class AnswerTimeout(msgspec.Struct, frozen=True, tag="answer-timeout"):
    """Report that the answer process has been silent for too long."""


class WorkerFinished(msgspec.Struct, frozen=True, tag="finished"):
    """Report that the frame stages have ended well; `drops` as in DropReport."""

    drops: dict[str, int]


class WorkerFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Report that the frame stages have failed: class and message of the error."""

    error: str
    message: str


Report: TypeAlias = SourceOpened | EventReport | DropReport | AnswerTimeout | WorkerFinished | WorkerFailed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


def pack_report(report: Report) -> bytes:
    """Returns the report as bytes."""
    return _encoder.encode(report)


def unpack_report(data: bytes) -> Report:
    """Returns the report that `pack_report` packed. Raises msgspec.DecodeError where it is none."""
    return _decoder.decode(data)
