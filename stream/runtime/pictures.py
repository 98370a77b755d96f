"""Thread of the frame process that encodes live pictures when somebody asks for one."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing

import cv2
import numpy as np
import numpy.typing as npt

from stream.errors import TransportError
from stream.protocol.pictures import PictureExchange, ViewedFrame, pack_picture
from stream.transport import Transport

QUALITY = 75
"""JPEG quality: text of 12 pixels stays readable, and a frame of 720p has some 75 kB."""

WAIT_MS = 50
"""Longest single wait for a request."""

FRAME_WAIT_S = 0.02
"""Longest single wait for the frame that was asked for, before newer requests are looked at."""

STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


class PictureThread:
    """Encodes and sends the frames that the allocate stage leaves in `exchange`, to the viewers at `endpoint`.

    `first_frame`: number of frames before those of this process. The socket belongs to the thread.
    """

    def __init__(self, transport: Transport, endpoint: str, first_frame: int = 0) -> None:
        self.exchange = PictureExchange()
        self._transport = transport
        self._endpoint = endpoint
        self._first_frame = first_frame
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its socket."""
        self._stop.set()
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        wanted = False
        with closing(self._transport.picture_sender(self._endpoint)) as sender:
            while not self._stop.is_set():
                try:
                    request = sender.receive(0 if wanted else WAIT_MS)
                    if request is not None:
                        self.exchange.want(request.widths)
                        wanted = True
                    frame = self.exchange.take(FRAME_WAIT_S) if wanted else None
                    if frame is not None:
                        wanted = False
                        sender.send(self._encoded(frame))
                except (TransportError, cv2.error) as error:
                    log.warning("a picture for viewers failed: %s", error)

    def _encoded(self, frame: ViewedFrame) -> list[tuple[int, bytes]]:
        """Return the picture message for each width; two widths of one level share theirs."""
        unix_ns = frame.capture_ns + time.time_ns() - time.monotonic_ns()
        packed = {
            level: pack_picture(frame, level, encode_jpeg(image), unix_ns, self._first_frame)
            for level, image in frame.images.items()
        }
        return [(width, packed[level]) for width, level in frame.levels.items()]


def encode_jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    """Return uint8 RGB [H, W, 3] as JPEG. Raises cv2.error where it cannot be encoded."""
    works, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not works:
        raise cv2.error("no JPEG encoder")
    return data.tobytes()
