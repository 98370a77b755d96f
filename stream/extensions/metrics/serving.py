"""Metrics beside an answer server. Loads the library only if a port is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.config import Config
from stream.extensions.metrics.section import MetricsSection

if TYPE_CHECKING:
    from stream.answer.server_statistics import ServerStatistics
    from stream.control import RunControl
    from stream.extensions.metrics.sink import ServerMetrics


def open_server(config: Config, statistics: ServerStatistics, control: RunControl) -> ServerMetrics | None:
    """Serve the metrics of an answer server at `metrics.port`; None without a port. Raises OutputError."""
    if MetricsSection.of(config).port is None:
        return None
    from stream.extensions.metrics.sink import ServerMetrics  # loads the library

    return ServerMetrics(config, statistics, control)
