"""An error that another process has told: the name of its class, and its message."""

from __future__ import annotations

from arr_coc import errors as arr_coc_errors
from arr_coc.errors import ArrCocError
from stream import errors as stream_errors
from stream.errors import StageDied, StreamError


def told_error(name: str, message: str) -> ArrCocError | StreamError | None:
    """The error as it was raised there; None where its class is none of the project's own.

    StageDied is no such class: whoever hears of it knows better which stage that is.
    """
    kind = getattr(arr_coc_errors, name, None) or getattr(stream_errors, name, None)
    if isinstance(kind, type) and issubclass(kind, (ArrCocError, StreamError)) and not issubclass(kind, StageDied):
        try:
            return kind(message)
        except TypeError:  # one that is made of more than a message, and never told
            return None
    return None
