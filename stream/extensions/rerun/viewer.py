"""Sink that shows a run in a Rerun viewer. A thread sends the newest events; the run never waits for the viewer."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from importlib.util import find_spec
from pathlib import Path

from stream.errors import OutputError
from stream.events import AnswerDeltaEvent, AskedPicture, Event, Started
from stream.extension import SinkOpening
from stream.extensions.rerun import RERUN
from stream.extensions.rerun.address import ViewerAddress
from stream.extensions.rerun.library import rr
from stream.extensions.rerun.recording import APPLICATION, RunRecording, blueprint
from stream.extensions.rerun.section import RerunSection
from stream.sinks.background import BackgroundSender, Outbox, Unreachable
from stream.sinks.base import Sink
from stream.sources.address import redacted

EVENTS_MAX = 512
"""Limit of events that wait for a viewer; the oldest are dropped. Of pictures only the newest waits."""

RETRY_S = (0.5, 10.0)
"""First and longest wait before another attempt to connect; each wait is twice the one before."""

FLUSH_S = 0.5
"""Longest single wait for a viewer to receive the sent events."""

REMEDY = "write -o FILE.rrd and open it on a machine with a display, or name a viewer elsewhere as HOST:PORT"

STOP_LIMIT_S = 2.0
"""Time limit of the last events."""

log = logging.getLogger(__name__)


class RerunViewerSink(BackgroundSender[Event], Sink):
    """Sender of events to the viewer at `address`; the run never waits for it.

    An unreachable viewer is reported once and retried. Raises OutputError if `address.spawn` is set and the viewer
    cannot be opened. `name`: title of the recording. `retry_s`: as RETRY_S.
    """

    def __init__(self, address: ViewerAddress, name: str, retry_s: tuple[float, float] = RETRY_S) -> None:
        super().__init__(
            "rerun",
            Outbox(lambda event: "picture" if isinstance(event, AskedPicture) else None, EVENTS_MAX),
            "no Rerun viewer at {address}: {reason}; the run goes on, and it is tried again",
            "the Rerun viewer at {address} is there",
            retry_s,
            address=address.url,
        )
        self._address = address
        self._name = name
        self._id = uuid.uuid4()
        self._started: Started | None = None
        if address.spawn and not is_listening(address):
            open_viewer(address)
        self.start()

    @classmethod
    def open(cls, opening: SinkOpening) -> RerunViewerSink:
        """Open the sink of a run."""
        config = opening.config
        return cls(ViewerAddress.of(RerunSection.of(config).address or ""), redacted(config.source))

    def write(self, event: Event) -> None:
        if not isinstance(event, AnswerDeltaEvent):
            self.put(event)

    def close(self) -> None:
        """End the thread once the waiting events are sent, or after `STOP_LIMIT_S`."""
        if self.ending:
            return
        self.end(STOP_LIMIT_S)
        if lost_events := self.outbox.dropped + len(self.outbox):
            log.info("rerun: %d events were not shown", lost_events)

    def serve(self) -> None:
        if not is_listening(self._address):
            raise Unreachable("no program listens at this address")
        self.failures = 0
        stream = rr.RecordingStream(APPLICATION, recording_id=self._id)
        stream.connect_grpc(self._address.url, default_blueprint=blueprint())
        recording = RunRecording(stream, self._name)
        if self._started is not None:
            recording.write(self._started)
        self._flush(stream)
        self.reached()
        ending = False
        while not ending:
            ending = self.ending
            for event in self.take(EVENTS_MAX + 1, FLUSH_S):
                if isinstance(event, Started):
                    self._started = event
                recording.write(event)
            recording.send_figures()
            self._flush(stream)
        stream.disconnect()

    def _flush(self, stream: rr.RecordingStream) -> None:
        """Wait until the viewer has received the sent events. Raises Unreachable if it is gone, or the time is up."""
        while not self.overdue:
            try:
                stream.flush(timeout_sec=FLUSH_S)
                return
            except (RuntimeError, ValueError) as error:
                if "timed out" not in str(error):
                    log.debug("the Rerun viewer is gone: %s", error)
                    raise Unreachable("it is gone") from error
        raise Unreachable


def is_listening(address: ViewerAddress) -> bool:
    """Return True if a program accepts connections at the address."""
    try:
        socket.create_connection((address.host, address.port), 1.0).close()
    except OSError:
        return False
    return True


# longest wait for the new viewer to listen
def open_viewer(address: ViewerAddress, limit_s: float = 30.0) -> None:
    """Open a viewer on this machine that listens on loopback only and outlives the run.

    Raises OutputError if it ends at once, or does not listen within the time limit.
    """
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        raise OutputError("a Rerun viewer cannot be opened: there is no display", REMEDY)
    spec = find_spec("rerun_cli")
    program = Path((spec and spec.origin) or "").with_name("rerun")
    if not program.is_file():
        raise OutputError("the Rerun viewer is missing beside its library", f"reinstall it: {RERUN.install}")
    command = [str(program), "--bind", address.host, "--port", str(address.port), "--hide-welcome-screen"]
    with tempfile.TemporaryFile() as output:
        viewer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "RERUN_APP_ONLY": "true", "RUST_LOG": "error"},
            start_new_session=True,
        )
        end_s = time.monotonic() + limit_s
        listening_s: float | None = None
        while time.monotonic() < end_s:
            if viewer.poll() is not None:
                raise OutputError(f"the Rerun viewer ended at once: {_last_line(output.fileno())}", REMEDY)
            if listening_s is None and is_listening(address):
                listening_s = time.monotonic()
            # a viewer listens before it has a window, and exits if it gets none
            if listening_s is not None and time.monotonic() - listening_s > 1.0:
                return
            time.sleep(0.05)
        viewer.kill()
        viewer.wait()
    raise OutputError(f"the Rerun viewer did not open within {limit_s:g} s", REMEDY)


def _last_line(fd: int) -> str:
    lines = os.pread(fd, 1 << 16, 0).decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
