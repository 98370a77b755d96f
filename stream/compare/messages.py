"""Messages between the page's server and the process that answers comparisons, and their framing on a pipe."""

from __future__ import annotations

from typing import IO

import msgspec

from stream.web.compare_job import CompareJob

LENGTH_BYTES = 8

NO_ALLOCATOR = "none"
"""Allocator of a choice without a trained one."""


class ModelChoice(msgspec.Struct, frozen=True):
    """A model under the name that viewers see. `model` as `load_qwen` takes it; `allocator` too, or `none`.

    `world`: the only one that the model knows, such as "drawn scenes"; None for a general model.
    """

    name: str
    model: str | None = None
    allocator: str | None = None
    world: str | None = None


class WorkerOptions(msgspec.Struct, frozen=True):
    """First message to the process: its models, the device and dtype that they compute with, and how many models stay
    loaded; None for as many as the memory allows."""

    models: list[ModelChoice]
    device: str = "auto"
    dtype: str = "auto"
    loaded: int | None = None


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
