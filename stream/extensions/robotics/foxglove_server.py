"""Live connection for Foxglove: the topics of a run over its WebSocket protocol."""

from __future__ import annotations

import foxglove
from foxglove import Context

from stream import logs
from stream.config import Config
from stream.errors import OutputError
from stream.events import Event
from stream.extension import SinkOpening
from stream.extensions.robotics.address import foxglove_address
from stream.extensions.robotics.foxglove_topics import FoxgloveTopics
from stream.extensions.robotics.pictures import EventClock
from stream.extensions.robotics.section import RoboticsSection
from stream.sinks.base import Sink

ERRORS = {
    "Address already in use": "another program uses that port; name another with --foxglove",
    "Cannot assign requested address": "this machine does not have that address; give --foxglove PORT",
    "failed to lookup address": "no name server knows that name; give --foxglove PORT",
    "Permission denied": "ports below 1024 are for the system; name another with --foxglove",
}
"""Remedies by the SDK's error message if it cannot listen."""


class FoxgloveSink(Sink):
    """Server of a run at `robotics.foxglove`. Threads of the SDK send; the run never waits for a viewer.

    Raises ConfigError as `foxglove_address`, OutputError if the address is not available.
    """

    def __init__(self, config: Config) -> None:
        host, port = foxglove_address(config)
        context = Context()
        section = RoboticsSection.of(config)
        clock = EventClock(unix=section.log_time == "unix")
        self._topics = FoxgloveTopics(context, clock, section.frame_id)
        try:
            self._server = foxglove.start_server(
                # queue length per viewer; a slow viewer loses its oldest messages, other viewers are not affected
                name="ARR-COC Stream",
                host=host,
                port=port,
                context=context,
                message_backlog_size=128,
            )
        except RuntimeError as error:
            remedy = next((remedy for text, remedy in ERRORS.items() if text in str(error)), str(error))
            raise OutputError(f"Foxglove cannot be served at {host}:{port}; {remedy}") from error
        place = f"[{host}]" if ":" in host else host
        self.address = f"ws://{place}:{self._server.port}"
        self._open = True
        logs.say(f"Foxglove connects to {self.address}", event="foxglove", address=self.address)

    @classmethod
    def open(cls, opening: SinkOpening) -> FoxgloveSink:
        """Open the sink of a run."""
        return cls(opening.config)

    def write(self, event: Event) -> None:
        self._topics.write(event)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._server.stop()
