"""Messages between a run and its worker processes: small structs on stdin and over a socket. Imports no torch."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stream.sources import SourceInfo
from stream.transport import SocketDirectory


class FrameWorkerConfig(msgspec.Struct, frozen=True):
    """What a frame process must know. `answers` is where its parent's answer process is reached; "" for one elsewhere.

    `holds`: the answer to the standing question, as the child before it left it.
    """

    reports_to: str
    answers: str
    snapshot: int
    heartbeat: int
    directory: SocketDirectory
    speaker: str
    config: str
    holds: bool | None = None


class AnswerWorkerConfig(msgspec.Struct, frozen=True):
    """What an answer process must know."""

    endpoint: str
    directory: SocketDirectory
    snapshot: int
    heartbeat: int
    threads: int
    speaker: str
    config: str


class WorkerCommand(msgspec.Struct, frozen=True):
    """The line that tells the child something while it runs: `ask` changes the question."""

    end: bool = False
    cancel: bool = False
    ask: str | None = None


class SourceOpened(msgspec.Struct, frozen=True, tag="source-opened"):
    """The source is open. `backend` is the texture store that works there."""

    info: SourceInfo
    backend: str


class EventReport(msgspec.Struct, frozen=True, tag="event"):
    """An event of the run, packed."""

    event: bytes


class DropReport(msgspec.Struct, frozen=True, tag="drops"):
    """What this process has dropped so far."""

    drops: dict[str, int]


class AnswerTimeout(msgspec.Struct, frozen=True, tag="answer-timeout"):
    """The answer process says nothing any more."""


class WorkerFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The frame stages have ended well, after so many drops."""

    drops: dict[str, int]


class WorkerFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The run ended with an error: its class and its message."""

    error: str
    message: str


Report: TypeAlias = SourceOpened | EventReport | DropReport | AnswerTimeout | WorkerFinished | WorkerFailed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


def pack_report(report: Report) -> bytes:
    """The report in the form in which it travels."""
    return _encoder.encode(report)


def unpack_report(data: bytes) -> Report:
    """What a child has told. Raises msgspec.DecodeError where it is nothing of the kind."""
    return _decoder.decode(data)
