"""Thread that passes requests for pictures to the frame process, and its pictures to the viewers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing

from stream.errors import TransportError
from stream.protocol.pictures import PictureRequest
from stream.transport import PictureReceiver, Transport

WAIT_MS = 500
STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


class PictureRelay:
    """Waits at `endpoint` for the frame processes of a run, one after another; gives `show` the pictures by width."""

    def __init__(self, endpoint: str, show: Callable[[dict[int, bytes]], None]) -> None:
        self._endpoint = endpoint
        self._show = show
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._request: PictureRequest | None = None
        self._receiver: PictureReceiver | None = None
        self._thread = threading.Thread(target=self._run, name="picture relay", daemon=True)
        self._thread.start()

    def request(self, request: PictureRequest) -> None:
        """Ask for pictures of the next frame; for any thread."""
        self._wake(request)

    def _wake(self, request: PictureRequest | None) -> None:
        with self._lock:
            self._request = request
            if self._receiver is not None:
                self._receiver.wake()

    def close(self) -> None:
        """End the thread and close its socket."""
        self._stop.set()
        self._wake(None)
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        with closing(Transport()) as transport:
            try:
                receiver = transport.picture_receiver(self._endpoint)
            except TransportError as error:
                log.warning("no pictures for viewers: %s", error)
                return
            with closing(receiver):
                with self._lock:
                    self._receiver = receiver
                try:
                    while not self._stop.is_set():
                        with self._lock:
                            request = self._request
                            self._request = None
                        if request is not None:
                            receiver.request(request)
                        pictures = receiver.receive(WAIT_MS)
                        if pictures is not None:
                            self._show(pictures)
                finally:
                    with self._lock:
                        self._receiver = None
