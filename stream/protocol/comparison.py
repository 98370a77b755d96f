"""Comparisons of answers: the page's requests, and the messages to the process that answers them, each a line of JSON.

The process replies with the page's own messages, a line of JSON each; the last one has the topic `ENDED`.
"""

from __future__ import annotations

import msgspec

from stream.errors import StreamError
from stream.scenes.stills import KnownAnswer

ENDED = "ended"
"""Topic of a job's last message."""

NO_ALLOCATOR = "none"
"""Allocator of a choice without a trained one."""


class ColumnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one answer: the model, and encoding, strategy and budget as in `ARRCOCQwen.generate`."""

    model: str
    encode: str = "sparse"
    strategy: str = "auto"
    budget: int | str = "auto"


class ComparisonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture by its key, a question, and the columns. `warm`: each kind of answer is made once before it counts."""

    picture: str
    question: str
    columns: list[ColumnSettings]
    max_tokens: int = 48
    seed: int = 0
    warm: bool = True


class CompareJob(msgspec.Struct, frozen=True):
    """A comparison as the process gets it: `pixels` are uint8 [height, width, 3].

    `known`: the answer, if the question is that of a drawn example."""

    number: int
    pixels: bytes
    height: int
    width: int
    request: ComparisonRequest
    known: KnownAnswer | None = None


class ModelChoice(msgspec.Struct, frozen=True):
    """A model under the name that viewers see. `model` as `load_qwen` takes it; `allocator` too, or `none`.

    `world`: the only one that the model knows, such as "drawn scenes"; None for a general model.
    """

    name: str
    model: str | None = None
    allocator: str | None = None
    world: str | None = None


class CompareOptions(msgspec.Struct, frozen=True):
    """Models of the process, their device and dtype, and how many stay loaded; None for as many as fit into memory."""

    models: list[ModelChoice]
    device: str = "auto"
    dtype: str = "auto"
    loaded: int | None = None


class CompareWorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of the process, its first line on stdin. `replies` is the descriptor that it writes replies to."""

    options: CompareOptions
    replies: int


class CompareOrder(msgspec.Struct, frozen=True):
    """Any later line on stdin: a job, or the number of one to cancel."""

    job: CompareJob | None = None
    cancel: int | None = None


class CompareFailed(StreamError, RuntimeError):
    """A comparison that could not be finished."""
