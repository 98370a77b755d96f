"""Messages between the page's server and the process that answers comparisons, and their framing on a pipe."""

from __future__ import annotations

from typing import IO

import msgspec

from stream.web.compare_job import CompareJob

LENGTH_BYTES = 8


class ModelChoice(msgspec.Struct, frozen=True):
    """A model under the name that viewers see. `model` and `allocator` as `load_qwen` takes them."""

    name: str
    model: str | None = None
    allocator: str | None = None


class WorkerOptions(msgspec.Struct, frozen=True):
    """First message to the process: its models, and the device and dtype that they compute with."""

    models: list[ModelChoice]
    device: str = "auto"
    dtype: str = "auto"


class WorkerOrder(msgspec.Struct, frozen=True):
    """Any later message: a job, or the number of one that is to end."""

    job: CompareJob | None = None
    cancel: int | None = None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Write one message: its length, little-endian, and its bytes."""
    stream.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    body = stream.read(length)
    return body if len(body) == length else None
