"""`caption` command: a video in, captions out; and `demo`: the same on a drawn clip, with a heat map."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.options import GivenOptions, takes_options
from stream.commands.outcome import exit_status, report_note
from stream.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from stream.answer.filters import Continuation
    from stream.config import Config
    from stream.events import Summary
    from stream.monitor.health import RunHandle
    from stream.runtime.answer_service import AnswerService


@takes_options
def caption(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...", help="Video files or pictures, or scene:NAME; several in turn.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an earlier run that was killed or interrupted.")
    ] = False,
    *,
    options: GivenOptions,
) -> int:
    """Describe a video while it runs."""
    from stream.commands.run import configs_of, run_each
    from stream.config_loading import ConfigLayer

    if source:
        top = [ConfigLayer("FILE", {"source": source[0]})]
    else:
        top = []
    config = options.configuration(top=top)
    if not config.source:
        raise ConfigError("no FILE to caption; give a video file, or scene:demo for a drawn one")
    if source and len(source) > 1:
        return run_each(
            configs_of(config, source), lambda source_config, service: _captioned(source_config, service, resume=resume)
        )
    return exit_status(_captioned(config, resume=resume), watching=bool(config.watch))


def _captioned(config: Config, service: AnswerService | None = None, *, resume: bool) -> Summary:
    from stream.commands.run import also_written, check_run, report_written

    check_run(config)
    continuation = _continuation(config, resume=resume)
    if service is None:
        from stream.runtime.answer_service import early_answers

        with early_answers(config) as answers:
            summary = _run(config, continuation, answers, resume=resume)
    else:
        summary = _run(config, continuation, service, resume=resume)
    report_written([*config.output.paths, *also_written(config)])
    return summary


def _continuation(config: Config, *, resume: bool) -> Continuation | None:
    """Return what continues a run, of the first extension that can, and report its notes. Raises ResumeError."""
    from stream.extension.registry import first_part

    continuation: Continuation | None = first_part("continuation", config, resume=resume)
    if continuation is not None:
        for note in continuation.notes:
            report_note(note)
    return continuation


def _run(config: Config, continuation: Continuation | None, service: AnswerService | None, *, resume: bool) -> Summary:
    """Run; what continues the run is closed at its end, however it ends."""
    from stream.display.choice import open_display
    from stream.runtime.frame_stages import run_in_threads
    from stream.runtime.session import open_run, run_session

    def make_run(config: Config) -> RunHandle:
        if continuation is None:
            return open_run(config, service)
        run = run_in_threads(config, continuation=continuation, answers=service)
        continuation.open()
        return run

    terminal = open_display(captions=not config.output.paths)
    is_finished = False
    try:
        summary = run_session(config, terminal, make_run=make_run, resume=resume)
        is_finished = summary.ended == "finished"
        return summary
    finally:
        terminal.close()
        if continuation is not None and (note := continuation.close(is_finished=is_finished)) is not None:
            report_note(note)


MARK = ".arr-coc-demo"
"""Mark of a folder that a demo has written to, so that the next one may overwrite its results."""


@takes_options
def demo(
    folder: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the results. [demo]", show_default=False)
    ] = "demo",
    *,
    options: GivenOptions,
) -> int:
    """Caption a drawn clip, and draw where the model looked.

    With --web nothing is written: the clip is shown in a page, beside the compare page and the microscope.
    """
    from stream.commands.run import also_written, report_written
    from stream.config_loading import ConfigLayer, layer_from_file
    from stream.extension.registry import first_part

    captions = tuple(os.path.join(folder, name) for name in ("captions.vtt", "captions.jsonl"))
    summary_path = os.path.join(folder, "summary.json")
    heatmap = os.path.join(folder, "heatmap.mp4")
    outputs = ConfigLayer("demo", {"output.paths": captions, "heatmap.file": heatmap})
    config = options.configuration(base=[layer_from_file("demo"), outputs])
    status: int | None = first_part("demo", config)
    if status is not None:
        return status
    _claim(folder, [*captions, summary_path, heatmap])

    from stream.display.choice import open_display
    from stream.sinks.output_file import OutputFile

    terminal = open_display(captions=True)
    summary_file = OutputFile(summary_path)
    try:
        from stream.events import encode_event
        from stream.runtime.answer_service import early_answers
        from stream.runtime.session import open_run, run_session

        with early_answers(config) as answers:
            summary = run_session(config, terminal, make_run=lambda run_config: open_run(run_config, answers))
        summary_file.append(encode_event(summary) + "\n")
    finally:
        terminal.close()
        summary_file.close()
    report_written([*config.output.paths, summary_path, *also_written(config)])
    report_note("In the video, bright tiles were shown in full resolution, dark ones coarsely or not at all.")
    return exit_status(summary)


def _claim(folder: str, outputs: Sequence[str]) -> None:
    """Make the folder, and mark it as a demo's.

    Raises OutputError if it cannot be made, or holds a file that would be overwritten and is not a demo's.
    """
    mark = os.path.join(folder, MARK)
    existing_paths = [path for path in outputs if os.path.lexists(path)]
    if existing_paths and not os.path.isfile(mark):
        raise OutputError(
            f"{existing_paths[0]!r} exists already and was not written by demo; name another folder with -o"
        )
    try:
        os.makedirs(folder, exist_ok=True)
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o666))
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder!r}: {error.strerror}; name another with -o") from error
