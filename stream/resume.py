"""Whether a captioning run can be continued when it is killed, and whether an earlier one can be continued now."""

from __future__ import annotations

import os
from pathlib import Path

from stream.config import Config
from stream.errors import NothingToContinue, ResumeError
from stream.identity import identity_of
from stream.journal import Journal, journal_path
from stream.sinks.output_check import STDOUT

AFRESH = "leave --resume out to start afresh"


def journal_for(config: Config, *, resume: bool) -> Journal | None:
    """The journal of a run that is about to begin; None where it could not be continued.

    `resume`: it continues an earlier one. Raises ResumeError where that cannot be done.
    """
    obstacle = _obstacle(config)
    identity = None if obstacle else identity_of(config)
    if identity is None:
        if resume and (obstacle or _exists(config.source)):
            raise ResumeError(obstacle or f"--resume cannot read a live picture twice; {AFRESH}")
        return None
    path = journal_path(config.output.paths[0])
    if not resume:
        return Journal.fresh(path, identity)
    if path.exists():
        return Journal.continued(path, identity)
    for output in config.output.paths:
        if os.path.exists(output) and os.path.getsize(output):
            raise NothingToContinue(
                f"there is nothing to continue: {output!r} has no {path.name!r} beside it, so it is complete or was "
                f"written in another way; {AFRESH}"
            )
    return Journal.fresh(path, identity)


def could_continue(journal: Journal) -> bool:
    """Whether the journal that a fresh run is about to replace holds answers which `--resume` would have used."""
    try:
        return bool(Journal.continued(journal.path, journal.identity).recalls)
    except ResumeError:
        return False


def _obstacle(config: Config) -> str | None:
    """Why such a run is different each time, or cannot be read twice."""
    paths, pipeline = config.output.paths, config.pipeline
    if not paths:
        return "--resume needs the file of the earlier run: name it with -o"
    if any(path == STDOUT or (os.path.exists(path) and not os.path.isfile(path)) for path in paths):
        return "--resume needs outputs that are ordinary files"
    if config.capture.realtime:
        return "--resume and --realtime do not go together: a run in real time is different each time"
    if pipeline.frames == "newest" or pipeline.answers == "newest":
        return "--resume needs a run that drops nothing: set pipeline.frames=lossless and pipeline.answers=lockstep"
    if config.answer.encode == "incremental":
        return (
            "--resume needs answers that do not build on what earlier ones left in memory: "
            "give --encode sparse instead of incremental"
        )
    if config.answer.window.frames > 1:
        return "--resume needs answers that speak of one frame each: leave answer.window.frames at 1"
    if config.answer.until.question is not None:
        return "--resume goes on with answers, and --until watches: a journal holds no looks"
    if config.answer.shadow_every is not None:
        return "--resume does not repeat the checks of answers: leave answer.shadow_every out"
    if config.source == "-":
        return "--resume cannot read standard input twice; save it to a file first"
    return None


def _exists(address: str) -> bool:
    """Whether this can be opened although it is no file: an address, a camera's number, a device."""
    return "://" in address or address.isdigit() or Path(os.path.expanduser(address)).exists()
