"""Sink that shows a run in a Rerun viewer. A thread sends the newest events; the run never waits for the viewer."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from stream import logs
from stream.errors import OutputError
from stream.events import AnswerDeltaEvent, AskedPicture, Event, Started
from stream.extension import SinkOpening
from stream.extensions.rerun import RERUN
from stream.extensions.rerun.address import ViewerAddress
from stream.extensions.rerun.library import rr
from stream.extensions.rerun.recording import APPLICATION, RunRecording, blueprint
from stream.extensions.rerun.section import RerunSection
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


class EventMailbox:
    """Mailbox of the newest events for a slower thread. Thread-safe; `put` never waits.

    `dropped` counts events displaced by newer ones.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._picture: AskedPicture | None = None
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events) + (self._picture is not None)

    def put(self, event: Event) -> None:
        """Add an event."""
        with self._changed:
            if isinstance(event, AskedPicture):
                self.dropped += self._picture is not None and self._picture.frame_index != event.frame_index
                self._picture = event
            else:
                if len(self._events) >= EVENTS_MAX:
                    self._events.popleft()
                    self.dropped += 1
                self._events.append(event)
            self._changed.notify()

    def wake(self) -> None:
        """End a `take` that waits."""
        with self._changed:
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Event]:
        """Return all waiting events, the picture first; an empty list after the time limit."""
        with self._changed:
            if not len(self):
                self._changed.wait(timeout_s)
            events = [*([] if self._picture is None else [self._picture]), *self._events]
            self._events.clear()
            self._picture = None
            return events


class RerunViewerSink(Sink):
    """Sender of events to the viewer at `address`; the run never waits for it.

    An unreachable viewer is reported once and retried. Raises OutputError if `address.spawn` is set and the viewer
    cannot be opened. `name`: title of the recording. `retry_s`: as RETRY_S.
    """

    def __init__(self, address: ViewerAddress, name: str, retry_s: tuple[float, float] = RETRY_S) -> None:
        self.mailbox = EventMailbox()
        self._address = address
        self._name = name
        self._retry_s = retry_s
        self._id = uuid.uuid4()
        self._started: Started | None = None
        self._ending = threading.Event()
        self._end_s = 0.0
        self._reported_lost = False
        if address.spawn and not is_listening(address):
            open_viewer(address)
        self._thread = threading.Thread(target=self._run, name="rerun", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, opening: SinkOpening) -> RerunViewerSink:
        """Open the sink of a run."""
        config = opening.config
        return cls(ViewerAddress.of(RerunSection.of(config).address or ""), redacted(config.source))

    def write(self, event: Event) -> None:
        if not isinstance(event, AnswerDeltaEvent):
            self.mailbox.put(event)

    def close(self) -> None:
        """End the thread once the waiting events are sent, or after `STOP_LIMIT_S`."""
        if self._ending.is_set():
            return
        self._end_s = time.monotonic() + STOP_LIMIT_S
        self._ending.set()
        self.mailbox.wake()
        self._thread.join(STOP_LIMIT_S)  # a thread that still waits for a viewer ends with the program
        if lost_events := self.mailbox.dropped + len(self.mailbox):
            log.info("rerun: %d events were not shown", lost_events)

    def _run(self) -> None:
        wait_s = self._retry_s[0]
        while not self._ending.is_set():
            try:
                if is_listening(self._address):
                    wait_s = self._retry_s[0]
                    self._serve()
                elif not self._ending.is_set():
                    self._report_loss("no program listens at this address")
            except Exception as error:
                log.debug("the connection to the Rerun viewer failed", exc_info=True)
                self._report_loss(f"unexpected {type(error).__name__}")
            self._ending.wait(wait_s)
            wait_s = min(self._retry_s[1], 2 * wait_s)

    def _serve(self) -> None:
        """Send events until the end, or until the viewer is gone."""
        stream = rr.RecordingStream(APPLICATION, recording_id=self._id)
        stream.connect_grpc(self._address.url, default_blueprint=blueprint())
        recording = RunRecording(stream, self._name)
        if self._started is not None:
            recording.write(self._started)
        if not self._is_taken(stream):
            return
        if self._reported_lost:
            self._reported_lost = False
            logs.say(f"the Rerun viewer at {self._address.url} is there", event="rerun", address=self._address.url)
        while True:
            ending = self._ending.is_set()
            for event in self.mailbox.take(FLUSH_S):
                if isinstance(event, Started):
                    self._started = event
                recording.write(event)
            recording.send_figures()
            if not self._is_taken(stream):
                return
            if ending:
                stream.disconnect()
                return

    def _is_taken(self, stream: rr.RecordingStream) -> bool:
        """Wait until the viewer has received the sent events; return False if it is gone, or the run ends first."""
        while not self._ending.is_set() or time.monotonic() < self._end_s:
            try:
                stream.flush(timeout_sec=FLUSH_S)
                return True
            except (RuntimeError, ValueError) as error:
                if "timed out" not in str(error):
                    self._report_loss("it is gone")
                    log.debug("the Rerun viewer is gone: %s", error)
                    return False
        return False

    def _report_loss(self, reason: str) -> None:
        """Report that the viewer is unreachable, once until it is reached again."""
        if self._reported_lost or self._ending.is_set():
            return
        self._reported_lost = True
        url = self._address.url
        text = f"note: no Rerun viewer at {url}: {reason}; the run goes on, and it is tried again"
        logs.say(text, "warning", event="rerun", address=url, reason=reason)


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
