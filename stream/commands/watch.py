"""`watch` command: a live source, or a file at its own pace, as a live view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stream.commands.options import (
    REALTIME,
    STATS_EVERY,
    AskStdin,
    ForTime,
    GivenOptions,
    StatsEvery,
    limits_of,
    takes_options,
)
from stream.commands.outcome import exit_status
from stream.errors import ConfigError

if TYPE_CHECKING:
    from stream.config import Config
    from stream.events import Summary
    from stream.runtime.answer_service import AnswerService


@takes_options
def watch(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="Camera, address, file, folder, scene:NAME, browser:; several in turn, or NAME=SOURCE at once.",
            show_default=False,
        ),
    ] = None,
    for_time: ForTime = None,
    stats_every: StatsEvery = STATS_EVERY,
    ask_stdin: AskStdin = False,
    *,
    options: GivenOptions,
) -> int:
    """Watch a camera, an address or a file, and ask about it.

    At a terminal: text, figures, and questions typed while it runs. A file plays at its own pace, so frames that come
    too late are dropped, and counted.
    """
    from dataclasses import replace

    from stream.commands.run import also_written, check_run, configs_of, report_written, run_each
    from stream.config_loading import ConfigLayer
    from stream.display import WatchOptions
    from stream.display.choice import open_display
    from stream.extension import WatchRequest
    from stream.extension.registry import first_part
    from stream.sinks.paths import STDOUT

    if source:
        top = [ConfigLayer("SOURCE", {"source": source[0]})]
    else:
        top = []
    limit_s, every_s = limits_of(for_time, stats_every)
    config = options.configuration(base=[ConfigLayer("watch", REALTIME)], top=top)
    if not config.source:
        raise ConfigError("no SOURCE to watch; give a camera such as 0, an address, a file, or scene:demo")
    if ask_stdin and config.source == "-":
        raise ConfigError("--ask-stdin needs standard input for questions, but the source reads it")

    watch_options = WatchOptions(every_s, ask_stdin, live=not options["debug"])

    def watch_one(config: Config, service: AnswerService | None = None) -> Summary:
        check_run(config)
        display_options = replace(watch_options, keyboard=config.source != "-")
        display = open_display(captions=STDOUT not in config.output.paths, watch_options=display_options)
        try:
            from stream.runtime.session import open_run, run_session

            summary = run_session(
                config, display, make_run=lambda run_config: open_run(run_config, service), limit_s=limit_s
            )
        finally:
            display.close()
        report_written([*config.output.paths, *also_written(config)])
        return summary

    request = WatchRequest(config, tuple(source or ()), limit_s, watch_options, watch_one)
    status: int | None = first_part("watch", request)
    if status is not None:
        return status
    if source and len(source) > 1:
        return run_each(configs_of(config, source), watch_one)
    return exit_status(watch_one(config), watching=bool(config.watch))
