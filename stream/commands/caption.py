"""`caption`: a video goes in, captions come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arr_coc.errors import counted
from stream.commands.options import RunOptions, takes_run_options
from stream.commands.outcome import also_written, exit_status, report_note, report_written
from stream.commands.several import configs_of, run_each
from stream.commands.text_options import Key, key_layers
from stream.errors import ConfigError
from stream.layers import Layer
from stream.runtime.preflight import check_run

if TYPE_CHECKING:
    from stream.config import Config
    from stream.events import Summary
    from stream.journal import Journal
    from stream.monitor.health import RunHandle
    from stream.runtime.answer_worker import SharedAnswerWorker

CONTINUE = "not finished: the same command with --resume goes on from here"


@takes_run_options
def caption(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...", help="Video files or pictures, or scene:NAME; several in turn.", show_default=False
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Captions as .vtt, .srt or .jsonl, - for JSON lines on stdout; may be repeated. [lines on stdout]",
            show_default=False,
        ),
        Key("output.paths"),
    ] = None,
    timing: Annotated[
        bool | None,
        typer.Option(
            "--timing/--no-timing", help="Latencies in .jsonl; without them two runs write the same bytes. [timing]"
        ),
        Key("output.timing"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run that was killed or interrupted stopped.")
    ] = False,
    *,
    run: RunOptions,
) -> int:
    """Say what happens in a video, while it runs."""
    top = [Layer("FILE", {"source": source[0]})] if source else []
    top += key_layers(caption, output=output, timing=timing)
    config = run.configuration(top=top)
    if not config.source:
        raise ConfigError("no FILE to caption; give a video file, or scene:demo for a drawn one")
    if source and len(source) > 1:
        return run_each(configs_of(config, source), lambda one, shared: _captioned(one, shared, resume=resume))
    return exit_status(_captioned(config, resume=resume), watching=config.answer.until.question is not None)


def _captioned(config: Config, shared: SharedAnswerWorker | None = None, *, resume: bool) -> Summary:
    check_run(config)
    summary = _run(config, _journal(config, resume=resume), shared, resume=resume)
    report_written([*config.output.paths, *also_written(config.output)])
    return summary


def _journal(config: Config, *, resume: bool) -> Journal | None:
    """The run's journal, and a line about one that lies there already. Raises ResumeError."""
    from stream.resume import could_continue, journal_for

    journal = journal_for(config, resume=resume)
    if journal is None:
        return None
    if journal.recalls:
        report_note(f"note: taking {counted(journal.recalls, 'answer')} from {journal.path}")
    elif resume:
        report_note("note: nothing was answered yet; starting from the beginning")
    elif could_continue(journal):
        report_note(f"note: starting afresh; --resume would have continued {config.output.paths[0]}")
    return journal


def _run(config: Config, journal: Journal | None, shared: SharedAnswerWorker | None, *, resume: bool) -> Summary:
    """Runs with the journal, which is removed once the run has finished."""
    from stream.display import open_display
    from stream.runtime.pipeline import Pipeline
    from stream.runtime.session import open_run, run_session

    def make_run(config: Config) -> RunHandle:
        if journal is None:
            return open_run(config, shared)
        pipeline = Pipeline(config, journal=journal, shared=shared)
        journal.begin()
        return pipeline

    terminal = open_display(captions=not config.output.paths)
    finished = False
    try:
        summary = run_session(config, terminal, make_run=make_run, resume=resume)
        finished = summary.ended == "finished"
        return summary
    finally:
        terminal.close()
        if journal is not None:
            _end(journal, finished=finished)


def _end(journal: Journal, *, finished: bool) -> None:
    if finished:
        journal.remove()
        return
    remains = journal.remains
    journal.close()
    if remains:
        report_note(CONTINUE)
