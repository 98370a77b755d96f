"""What was spoken, as the messages that tell it: a header, and the feedback's arrays as parts."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from stream.messages import Answered, Looked
from stream.packets import feedback_arrays, specs_of
from stream.speaker import Spoken

Parts = list[npt.NDArray[Any]]


def answered_message(number: int, query: str, text: str, spoken: Spoken) -> tuple[Answered, Parts]:
    """An answer that has ended."""
    arrays = feedback_arrays(spoken.feedback)
    message = Answered(
        answer=number,
        query=query,
        text=text,
        tokens_used=spoken.tokens_used,
        text_tokens=spoken.text_tokens,
        encode_ms=spoken.encode_ms,
        prefill_ms=spoken.prefill_ms,
        decode_ms=spoken.decode_ms,
        frames=spoken.frames,
        since_ns=spoken.since_ns,
        kept_bytes=spoken.kept_bytes,
        flops=spoken.flops,
        full_flops=spoken.full_flops,
        feedback_stamp=None if spoken.feedback is None else spoken.feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays


def looked_message(number: int, look: tuple[float, float], spoken: Spoken, *, teaches: bool) -> tuple[Looked, Parts]:
    """A look at a standing question; what it learnt goes along only where it `teaches`."""
    feedback = spoken.feedback if teaches else None
    arrays = feedback_arrays(feedback)
    yes, certain = look
    message = Looked(
        answer=number,
        yes=yes,
        certain=certain,
        tokens_used=spoken.tokens_used,
        encode_ms=spoken.encode_ms,
        prefill_ms=spoken.prefill_ms,
        kept_bytes=spoken.kept_bytes,
        feedback_stamp=None if feedback is None else feedback.stamp,
        arrays=specs_of(*arrays),
    )
    return message, arrays
