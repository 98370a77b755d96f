"""Runs of a command: checks before anything is loaded, and one source after another.

A command imports this when it runs, not for its help. Loading torch, OpenCV and FFmpeg takes seconds; a mistyped name
is reported at once. Nothing is opened here, and the code that opens it checks again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stream import logs
from stream.answer.loading import model_name
from stream.commands.kernel_build import build_kernels
from stream.commands.outcome import FAILED, INTERRUPTED, exit_status, report_error, report_note
from stream.config import Config, check_reachable, needs_keys, server_addresses
from stream.errors import (
    NothingToContinue,
    OutputError,
    ReaderGone,
    SourceError,
    StageDied,
    TransportError,
)
from stream.options.extra import SCHEMA
from stream.sinks.checks import check_outputs
from stream.sinks.output_file import check_distinct
from stream.sinks.paths import STDOUT
from stream.sinks.types import output_files, path_form, sinks_of
from stream.sources.address import LEROBOT_PREFIX
from stream.sources.factory import check_source

if TYPE_CHECKING:
    from stream.events import Summary
    from stream.runtime.answer_service import AnswerService


NAME = "{name}"
CAMERA = "{camera}"
"""Placeholders in an output's name: for the source's name without folder and suffix, or the camera's name."""

CAPTIONS = ".vtt"
"""Suffix of the output if `-o` names a folder."""

RunOne = Callable[["Config", "AnswerService | None"], "Summary"]


def report_written(paths: Sequence[str]) -> None:
    """Report the files that were written; an output without content is not written."""
    for path in paths:
        if path == STDOUT or not os.path.lexists(path):
            continue
        logs.say(f"wrote {path}", event="wrote", path=path)


def also_written(config: Config) -> list[str]:
    """Return the files and folders that a run wrote beside its captions."""
    return [config.value(sink.key) for sink in sinks_of(config) if sink.writes_place and sink.lasts]


def configs_of(config: Config, sources: Sequence[str]) -> list[Config]:
    """Return the configuration for each source, its outputs named after it.

    Raises OutputError if two sources would be written to one file, a source would be overwritten, and for an
    unknown suffix and a place that cannot be written.
    """
    configs = [output_for(config, _name_of(source)).model_copy(update={"source": source}) for source in sources]
    files = [path for source_config in configs for path in output_files(source_config) if path != STDOUT]
    check_distinct(files, sources[0], *sources[1:])
    for source_config in configs:
        check_outputs(source_config)
    return configs


def run_each(configs: Sequence[Config], run_one: RunOne) -> int:
    """Run one after another with one model; return the exit status of all.

    The failure of a source is reported, and the next one follows; so it does after one that an earlier run has
    finished. Ctrl-C ends all.
    """
    from stream.runtime.answer_service import early_answers

    statuses = []
    with early_answers(configs[0]) as service:
        for number, config in enumerate(configs, 1):
            report_note(f"{config.source} ({number} of {len(configs)})")
            try:
                summary = run_one(config, service)
            except ReaderGone:
                raise
            except NothingToContinue:
                report_note(f"note: {config.source} was finished before; its outputs stay as they are")
                statuses.append(0)
                continue
            except (SourceError, OutputError, StageDied, TransportError) as error:
                report_error(str(error))
                statuses.append(FAILED)
                continue
            statuses.append(exit_status(summary, watching=bool(config.watch)))
            if statuses[-1] == INTERRUPTED:
                return INTERRUPTED
    if FAILED in statuses:
        return FAILED
    return min(statuses)  # with watches: 0 if one of them matched


def output_for(config: Config, name: str, *, is_camera: bool = False) -> Config:
    """Return the configuration of one of several sources, `name` in the place of `{name}` in its outputs.

    A folder for captions gets a file of that name. Cameras run at once, and `{camera}` is their name too: a folder that
    sources share in turn then gets one for each. Raises OutputError if an output that no two sources can write has no
    `{name}`; cameras are compared later.
    """

    def named(path: str) -> str:
        if is_camera:
            path = path.replace(CAMERA, name)
        return path.replace(NAME, name)

    values: dict[str, object] = {}
    for sink in sinks_of(config):
        if sink.place not in ("file", "folder", "shared file", "shared folder"):
            continue
        path = config.value(sink.key)
        values[sink.key] = named(path)
        if is_camera and sink.place == "shared folder" and named(path) == path:
            values[sink.key] = os.path.join(path, name)
        elif not is_camera and sink.place in ("file", "folder"):
            _check_named(sink.option, path)
    paths = []
    for path in config.output.paths:
        place = named(path)
        is_folder = place.endswith(os.sep) or (os.path.isdir(place) and path_form(place) != "new folder")
        if is_folder and path != STDOUT:
            place = os.path.join(place, name + CAPTIONS)
        elif not is_camera and path != STDOUT:
            _check_named("-o", path, ", or name a folder")
        paths.append(place)
    return config.with_values({**values, "output.paths": tuple(paths)})


def _check_named(option: str, path: str, hint: str = "") -> None:
    """Raise OutputError if a path of one of several sources has no `{name}`."""
    if NAME in path:
        return
    if path_form(path) == "file in own folder":
        example = os.path.join(NAME, Path(path).name)
    else:
        example = f"{NAME}{Path(path).suffix}"
    raise OutputError(f"{option} {path!r} names one place for several sources; write {option} '{example}'{hint}")


def _name_of(source: str) -> str:
    """Return the file's name without folder and suffix; of an address the part that makes a file name."""
    if source.startswith(LEROBOT_PREFIX):
        stem = Path(source.removeprefix(LEROBOT_PREFIX)).name
    elif "://" in source:
        stem = source.partition("://")[2]
    else:
        stem = Path(source).stem
    return re.sub(r"[^\w.+-]+", "_", stem).strip("_") or "source"


def check_run(config: Config, *, remote: bool = False) -> None:
    """Raise StreamError or ArrCocError if a run of this configuration would fail at once.

    A checkout that lacks its compiled kernels then builds them. `remote`: the run's source and its model are on other
    machines.
    """
    check_outputs(config)
    for sink in sinks_of(config):
        sink.check_config(config)
    if not remote:
        check_source(config.source, config.capture, config.network)
    if config.answer.server is not None:
        for address in server_addresses(config.answer.server):
            needs_keys(config.network, address)
            check_reachable(address)
    elif not remote:
        model_name(config)
        if config.answer.schema_of_answers is not None and config.model_key is None:
            SCHEMA.require("--schema" if config.answer.choices is None else "--choices")
    if not remote:
        build_kernels()
