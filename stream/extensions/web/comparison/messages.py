"""Comparisons of answers: the page's requests, and the messages to the process that answers them, one JSON line each.

The process replies with messages for the page, one JSON line each; the last one has the topic `ENDED`.
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
    """Request with the key of a picture, a question, and the columns. `warm`: generate each kind of answer once before
    it is measured."""

    picture: str
    question: str
    columns: list[ColumnSettings]
    max_tokens: int = 48
    seed: int = 0
    warm: bool = True


class CompareJob(msgspec.Struct, frozen=True):
    """Comparison for the process: `pixels` are uint8 [height, width, 3].

    `known`: the answer, if the question is that of a drawn example."""

    number: int
    pixels: bytes
    height: int
    width: int
    request: ComparisonRequest
    known: KnownAnswer | None = None


class ModelChoice(msgspec.Struct, frozen=True):
    """Model with the name that viewers see. `model` and `allocator` are as for `load_qwen`; `allocator` may be `none`.

    `world`: the only one that the model knows, such as "drawn scenes"; None for a general model.
    """

    name: str
    model: str | None = None
    allocator: str | None = None
    world: str | None = None


class CompareOptions(msgspec.Struct, frozen=True):
    """Models of the process, device and dtype, and number of models kept loaded; None: as many as fit into memory."""

    models: list[ModelChoice]
    device: str = "auto"
    dtype: str = "auto"
    loaded: int | None = None


class CompareWorkerConfig(msgspec.Struct, frozen=True):
    """Configuration of the process, its first line on stdin. `replies` is the descriptor for its replies."""

    options: CompareOptions
    replies: int


class CompareOrder(msgspec.Struct, frozen=True):
    """Later line on stdin: a job, or the number of a job to cancel."""

    job: CompareJob | None = None
    cancel: int | None = None


class CompareFailed(StreamError, RuntimeError):
    """Comparison that could not be finished."""
