"""Subtitles of a video as part of a question, as Video-MME gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pysubs2

from evaluation.errors import QuestionsError

HEADING = "This video's subtitles are listed below:"


def before_question(path: Path, times_s: Sequence[float], text: str) -> str:
    """The question after the subtitles that are shown at those times, each once; alone if there are none.

    Raises QuestionsError for a file that is no SRT.
    """
    try:
        events = pysubs2.load(str(path), encoding="utf-8").events
    except (OSError, UnicodeDecodeError, pysubs2.Pysubs2Error) as error:
        raise QuestionsError(f"{path} holds no subtitles ({error}); unpack subtitle.zip again") from error
    lines = [
        " ".join(event.plaintext.split())
        for event in events
        if any(event.start <= time_s * 1e3 < event.end for time_s in times_s)
    ]
    return "\n".join([HEADING, *dict.fromkeys(lines), text]) if lines else text
