"""Cameras that one answer process can serve: those whose model and options are the same."""

from __future__ import annotations

import json
from collections.abc import Iterable

from arr_coc.budget import ADAPTIVE, AUTO
from stream.config import Config
from stream.fleet.cameras import NamedCamera
from stream.recording.identity import ANSWER_KEYS

ANSWERED_BY = {*ANSWER_KEYS, "model", "allocator", "slots"} - {"target_ms"}
"""Keys of `answer` that an answer process is started with; the other keys are each camera's own."""


def answering_options(config: Config) -> str | None:
    """Return what an answer process must be started with, equal where one may answer for both; None where a camera
    has an answer server elsewhere, or a process of its own that asks one over the network."""
    answer = config.answer
    if answer.elsewhere:
        return None
    options = answer.model_dump(mode="json", include=ANSWERED_BY)
    if answer.window.frames > 1:
        allocate, has_target = config.allocate, answer.target_ms is not None
        options |= {"budget": allocate.budget, "target": has_target}
        if has_target or allocate.budget in (AUTO, ADAPTIVE):
            options |= {"limits": [allocate.min_tokens, allocate.max_tokens]}
    return json.dumps(options, sort_keys=True)


def answered_together(cameras: Iterable[NamedCamera]) -> dict[str, list[NamedCamera]]:
    """Return the cameras for which one answer process may answer, by what it must be started with; none of those that
    have an answer server elsewhere."""
    together: dict[str, list[NamedCamera]] = {}
    for camera in cameras:
        options = answering_options(camera.config)
        if options is not None:
            together.setdefault(options, []).append(camera)
    return together
