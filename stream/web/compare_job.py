"""Comparisons that viewers ask for: their messages, checked, and the job that they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, get_args

import msgspec

from arr_coc.budget import check_budget
from arr_coc.errors import BudgetError
from arr_coc.types import Encode
from stream.config import AllocateConfig
from stream.errors import StreamError
from stream.scenes.stills import KnownAnswer
from stream.untrusted import QUERY_LIMIT_CHARS
from stream.web.uploads.store import KeptPicture
from stream.web.viewer import MessageRefused

COLUMNS_MAX = 6
TEXT_TOKENS_MAX = 256
BUDGET_MAX = 4096
SEED_MAX = 2**31 - 1

ENCODES: tuple[str, ...] = get_args(Encode)
STRATEGIES: tuple[str, ...] = get_args(AllocateConfig.model_fields["strategy"].annotation)


class ColumnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one answer: model, and as in `ARRCOCQwen.generate` how it is shown the picture."""

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


class CompareMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a viewer of the compare page."""

    run: ComparisonRequest | None = None
    cancel: bool = False


class CompareJob(msgspec.Struct, frozen=True):
    """A comparison as the process that answers gets it: `pixels` are uint8 [height, width, 3].

    `known`: the answer, if the question is that of a drawn example."""

    number: int
    pixels: bytes
    height: int
    width: int
    request: ComparisonRequest
    known: KnownAnswer | None = None


class CompareFailed(StreamError, RuntimeError):
    """A comparison that could not be finished."""


class CompareEngine(Protocol):
    """Whatever answers; one job at a time."""

    def answer(self, job: CompareJob, tell: Callable[[dict[str, Any]], None]) -> None:
        """Answer in all columns; `tell` is called with each message for the viewer. Raises CompareFailed."""
        ...

    def cancel(self, number: int) -> None:
        """End the job of this number soon, if it runs; for any thread."""
        ...

    def close(self) -> None:
        """End the running job and let go of all memory."""
        ...


_decoder = msgspec.json.Decoder(CompareMessage)


def read_compare_message(text: str | bytes, models: Sequence[str]) -> CompareMessage:
    """Return a viewer's message. Raises MessageRefused, in one line."""
    try:
        message = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MessageRefused(f"not a message: {error}") from error
    if message.run is not None:
        _check(message.run, models)
    return message


def make_job(
    number: int, picture: KeptPicture, request: ComparisonRequest, known: KnownAnswer | None = None
) -> CompareJob:
    """Return the job of a request about a picture."""
    height, width = picture.rgb.shape[:2]
    return CompareJob(number, picture.rgb.tobytes(), height, width, request, known)


def _check(request: ComparisonRequest, models: Sequence[str]) -> None:
    if not request.question.strip():
        raise MessageRefused("the question is empty")
    if len(request.question) > QUERY_LIMIT_CHARS:
        raise MessageRefused(
            f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(request.question)}"
        )
    if not 1 <= len(request.columns) <= COLUMNS_MAX:
        raise MessageRefused(f"a comparison has from 1 to {COLUMNS_MAX} columns")
    if not 1 <= request.max_tokens <= TEXT_TOKENS_MAX:
        raise MessageRefused(f"an answer has from 1 to {TEXT_TOKENS_MAX} tokens")
    if not 0 <= request.seed <= SEED_MAX:
        raise MessageRefused(f"the seed is from 0 to {SEED_MAX}")
    for column in request.columns:
        for name, value, known in (
            ("model", column.model, models),
            ("encode", column.encode, ENCODES),
            ("strategy", column.strategy, STRATEGIES),
        ):
            if value not in known:
                raise MessageRefused(f"{name} is one of {', '.join(known)}")
        _check_budget(column.budget)


def _check_budget(budget: int | str) -> None:
    try:
        check_budget(budget)
    except BudgetError as error:
        raise MessageRefused(str(error)) from error
    if isinstance(budget, int) and budget > BUDGET_MAX:
        raise MessageRefused(f"a budget has at most {BUDGET_MAX} tokens, got {budget}")
