"""Base of all runs: the events at the beginning and the end, the statistics, and the error that is raised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager

from arr_coc.errors import ArrCocError
from stream.answer.model import CONFIGURED, check_watched, model_name
from stream.clock import Clock, MonotonicClock
from stream.config import Config, OutputConfig
from stream.control import INTERRUPTED, RunControl, describe
from stream.errors import StreamError
from stream.events import Event, Notice, Started, Summary
from stream.media import SourceInfo
from stream.monitor.statistics import RunStatistics
from stream.protocol.pictures import PictureEndpoints
from stream.transport import SocketDirectory, ipc_endpoint

PICTURE_SOCKETS = PictureEndpoints(page="picture", microscope="inspect", heatmap="heatmap")
"""Names of the sockets of live pictures in the directory of a run."""


def picture_endpoints(output: OutputConfig, directory: SocketDirectory) -> PictureEndpoints:
    """Return the addresses in a run's directory at which those wait who look at frames that do not wait for them."""

    def named(name: str | None, *, wanted: bool) -> str | None:
        return ipc_endpoint(directory, name) if wanted and name is not None else None

    names, web = PICTURE_SOCKETS, output.web is not None
    return PictureEndpoints(
        page=named(names.page, wanted=web),
        microscope=named(names.microscope, wanted=web),
        heatmap=named(names.heatmap, wanted=output.heatmap is not None),
    )


class BaseRun(ABC):
    """Run of a source, a query and a model, once; a `RunHandle`. `control` ends it from outside, also before it begins.

    Making one opens the source, and raises StreamError or ArrCocError where that, the store or the model cannot work.
    `run` is a generator for the main thread; `end`, `cancel`, `ask`, `drops` and `processes` may be called from any
    thread, the first two from signal handlers too. `model_loader` names the function that loads the model, as
    "module:function". A subclass sets `source_info` with `_set_source`, and supplies the events.
    """

    source_info: SourceInfo
    statistics: RunStatistics
    picture_endpoints = PictureEndpoints()
    """Addresses at which the frame process looks for those who want pictures of frames."""

    def __init__(
        self, config: Config, clock: Clock | None, model_loader: str, control: RunControl | None = None
    ) -> None:
        self._config = config
        self._clock = clock or MonotonicClock()
        self._model_loader = model_loader
        self._control = control or RunControl()

    def _set_source(self, info: SourceInfo) -> None:
        """Takes what the open source says about itself. Raises ArrCocError or ConfigError for an unusable model."""
        self.source_info = info
        self.statistics = RunStatistics(self._clock, info.fps)
        self._model = self._model_name()

    def _model_name(self) -> str:
        if self._config.answer.server is not None:
            return self._config.answer.server
        if self._model_loader != CONFIGURED:
            return self._model_loader
        check_watched(self._config)
        return model_name(self._config)

    def end(self, outcome: str = INTERRUPTED) -> None:
        """Takes no new frames; what is in flight is finished. `outcome` stands in the summary."""
        self._control.end(outcome)

    def cancel(self) -> None:
        """Stops everything; what is in flight is dropped."""
        self._control.cancel()

    def ask(self, query: str) -> None:
        """Changes the query; a `QueryChanged` event says whether it was accepted."""
        self._control.ask(query)

    @property
    @abstractmethod
    def backend(self) -> str:
        """The texture store that runs."""

    @property
    @abstractmethod
    def kernel(self) -> str:
        """The kernel that works on texels in host memory, as `Started` has it."""

    @abstractmethod
    def processes(self) -> dict[str, int]:
        """The processes of the run by what they do ("main", "frames", "answers"), and their ids."""

    @abstractmethod
    def drops(self) -> dict[str, int]:
        """Number of dropped items so far, by queue and cause."""

    @abstractmethod
    def _running(self) -> AbstractContextManager[Iterator[Event]]:
        """Runs what makes events inside the block, and gives them; stops and tidies up at its end."""

    def _notices(self) -> list[Notice]:
        """Returns the notices before the first frame."""
        answer = self._config.answer
        verb = "connecting to" if answer.elsewhere else "loading"
        return [Notice(code="loading", message=f"{verb} {self._model}")]

    def run(self) -> Generator[Event, None, None]:
        """Yields every event of the run, in order, the summary last; called once, and read by one thread.

        Closing the iterator stops everything. After the summary of a run that failed, raises what it failed of:
        StageDied, which names the stage, or the error that the user can put right.
        """
        with self._running() as events:
            query = self._config.answer.asked
            yield Started(
                source=self.source_info.name, model=self._model, query=query, backend=self.backend, kernel=self.kernel
            )
            yield from self._notices()
            try:
                for event in events:
                    self.statistics.add(event)
                    yield event
            except (StreamError, ArrCocError) as error:
                self._control.fail(error)
            summary = self._summary()
        yield summary  # after everything has been tidied up: whoever hears it may end this process
        if self._control.failure is not None:
            raise self._control.failure

    def _summary(self) -> Summary:
        control = self._control
        error = None if control.failure is None else describe(control.failure)
        return self.statistics.summary(control.outcome, error, self.drops(), self.backend)
