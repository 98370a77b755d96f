"""Which way a configuration is run: all in this process but the model, or with every stage under supervision."""

from __future__ import annotations

from collections.abc import Callable

from stream.config import Config
from stream.pipeline import Pipeline
from stream.sources.address import is_live_address
from stream.supervised import SupervisedRun


def open_run(config: Config) -> Pipeline | SupervisedRun:
    """The run of a configuration. Raises StreamError or ArrCocError where it cannot begin."""
    how: Callable[[Config], Pipeline | SupervisedRun] = SupervisedRun if supervised(config) else Pipeline
    return how(config)


def supervised(config: Config) -> bool:
    """Whether the frame stages are a process that is started again when it dies.

    Not where a heat map is drawn, whose pictures stay in the process that captures them; its answer process may still
    be started again.
    """
    if config.pipeline.single_process or config.output.heatmap is not None:
        return False
    restart = config.pipeline.restart
    return is_live_address(config.source) if restart is None else restart
