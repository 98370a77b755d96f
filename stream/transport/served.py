"""A socket that other programs reach, with a thread of its own that makes it, serves it and closes it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from contextlib import suppress

import zmq

from stream.errors import OutputError
from stream.transport.bind import bind_output
from stream.transport.context import Transport
from stream.transport.curve import ServerCurve

LINGER_MS = 500
"""How long the last messages may take at the end."""

START_LIMIT_S = 5.0
STOP_LIMIT_S = 5.0


class ServedSocket(ABC):
    """A bound socket and its thread. Whoever calls `start` calls `finish`, also where `start` fails."""

    def __init__(self, name: str, kind: int, endpoint: str, curve: ServerCurve | None) -> None:
        self._kind = kind
        self._asked_endpoint = endpoint
        self._curve = curve
        self._bound: Future[str] = Future()
        self._transport = Transport()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> str:
        """Where the socket can be reached, once it can: a port that was left open is a number now.

        Raises OutputError where the endpoint cannot be bound.
        """
        if self._curve is not None:
            self._transport.guard(self._curve)
        self._thread.start()
        try:
            return self._bound.result(START_LIMIT_S)
        except WaitedTooLong as error:
            self._bound.cancel()
            raise OutputError(f"cannot open {self._asked_endpoint}: nothing happens") from error

    def finish(self) -> None:
        """Waits for the thread, which has been told to end, and ends the context."""
        self._thread.join(STOP_LIMIT_S)
        self._transport.close()

    @property
    @abstractmethod
    def options(self) -> Mapping[int, int]:
        """Options of the socket."""

    @abstractmethod
    def serve(self, public: zmq.Socket[bytes]) -> None:
        """What the thread does until it is told to end."""

    def _run(self) -> None:
        with suppress(zmq.ContextTerminated):
            public = self._transport.context.socket(self._kind)
            try:
                self._open(public)
            except Exception as error:
                public.close(linger=0)
                if self._bound.set_running_or_notify_cancel():
                    self._bound.set_exception(error)
                return
            try:
                if self._bound.set_running_or_notify_cancel():
                    self._bound.set_result(public.getsockopt_string(zmq.LAST_ENDPOINT))
                    self.serve(public)
            finally:
                public.close(linger=LINGER_MS)

    def _open(self, public: zmq.Socket[bytes]) -> None:
        for option, value in self.options.items():
            public.setsockopt(option, value)
        if self._curve is not None:
            self._curve.apply(public)
        bind_output(public, self._asked_endpoint)
