"""Requests of other programs, taken at `output.control` as long as the other outputs are open."""

from __future__ import annotations

from stream.config import Config
from stream.events import Event
from stream.monitor.health import RunMonitor
from stream.requests import ControlHandler
from stream.sinks.base import Sink
from stream.transport.control import ControlServer
from stream.transport.curve import server_curve


class ControlSink(Sink):
    """Replies to requests in a thread of its own; it knows the run by `monitor`.

    Raises OutputError where the address cannot be bound, ConfigError where it needs keys that are not there.
    """

    def __init__(self, config: Config, monitor: RunMonitor) -> None:
        endpoint = config.output.control
        assert endpoint is not None
        self._server = ControlServer(endpoint, server_curve(config.network, endpoint), ControlHandler(monitor).handle)

    @property
    def endpoint(self) -> str:
        """Where it can be reached."""
        return self._server.endpoint

    def write(self, event: Event) -> None:
        pass

    def close(self) -> None:
        self._server.close()
