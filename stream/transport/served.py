"""A socket that other programs reach, with a thread of its own that makes it, serves it and closes it."""

from __future__ import annotations

import threading
import time
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
RELEASE_POLL_S = 0.01
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
            try:
                self._public = self._opened(self._asked_endpoint)
            except Exception as error:
                if self._bound.set_running_or_notify_cancel():
                    self._bound.set_exception(error)
                return
            try:
                if self._bound.set_running_or_notify_cancel():
                    self._bound.set_result(self._public.getsockopt_string(zmq.LAST_ENDPOINT))
                    self.serve(self._public)
            finally:
                self._public.close(linger=LINGER_MS)

    def renewed(self) -> zmq.Socket[bytes]:
        """Closes the socket with all its connections, and returns another one at the same address, to which peers come
        back by themselves. Raises OutputError where the address cannot be bound again within START_LIMIT_S.
        """
        endpoint = self._public.getsockopt_string(zmq.LAST_ENDPOINT)
        self._public.close(linger=0)
        limit_s = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._public = self._opened(endpoint)
                return self._public
            except OutputError:
                if time.monotonic() > limit_s:
                    raise
                time.sleep(RELEASE_POLL_S)  # ZeroMQ closes the old socket in a thread of its own

    def _opened(self, endpoint: str) -> zmq.Socket[bytes]:
        public = self._transport.context.socket(self._kind)
        try:
            for option, value in self.options.items():
                public.setsockopt(option, value)
            if self._curve is not None:
                self._curve.apply(public)
            bind_output(public, endpoint)
        except BaseException:
            public.close(linger=0)
            raise
        return public
