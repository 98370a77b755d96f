"""Provenance of recorded answers, and the configuration that gives them again."""

from __future__ import annotations

import json

import msgspec

from stream.config import Config
from stream.errors import RecordingError
from stream.recording.identity import AnswerProvenance


def parse_provenance(text: str) -> AnswerProvenance:
    """Decode the result of `answer_provenance`. Raises RecordingError if the text is invalid."""
    try:
        return msgspec.json.decode(text, type=AnswerProvenance)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"the recording has no valid provenance ({error}); record it again") from None


def config_of(provenance: AnswerProvenance) -> Config:
    """Return the configuration of an answer stage that gives the same answers. Raises RecordingError."""
    try:
        return Config.decode(json.dumps(provenance.settings))
    except ValueError as error:
        reason = str(error).splitlines()[-1].strip()
        raise RecordingError(
            f"the recording has settings that this program does not know ({reason}); replay it with version "
            f"{provenance.program}, which recorded it"
        ) from None
