"""Which way a configuration is run: all in this process but the model, or with every stage under supervision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.config import Config
from stream.sources.address import is_live_address, is_read_once

if TYPE_CHECKING:
    from stream.answers import SharedAnswers
    from stream.pipeline import Pipeline
    from stream.supervised import SupervisedRun


def open_run(config: Config, shared: SharedAnswers | None = None) -> Pipeline | SupervisedRun:
    """The run of a configuration; `shared` answers, unless all stages are under supervision.

    Raises StreamError or ArrCocError where it cannot begin.
    """
    if supervised(config):
        from stream.supervised import SupervisedRun

        return SupervisedRun(config)
    from stream.pipeline import Pipeline

    return Pipeline(config, shared=shared)


def supervised(config: Config) -> bool:
    """Whether the frame stages are a process that is started again when it dies.

    Only where frames come at their own pace: a file that is read without a loss cannot go on without what was lost. Not
    where the source can be read once only, because a second process could not go on from there. Nor where a heat map is
    drawn, whose pictures stay in the process that captures them. The answer process may be started again in any case.
    """
    if config.pipeline.single_process or config.output.heatmap is not None or is_read_once(config.source):
        return False
    live = is_live_address(config.source)
    restart = live if config.pipeline.restart is None else config.pipeline.restart
    return restart and (live or config.capture.realtime)
